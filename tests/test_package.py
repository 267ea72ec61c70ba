"""What the package promises before anything is called."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import secateurs
from secateurs.errors import MissingExtraError


def test_importing_is_light() -> None:
    heavy = ["torch", "numba", "faiss", "onnxruntime", "tokenizers", "numkong", "typer", "rich", "numpy"]
    heavy += ["langchain_core", "llama_index", "haystack", "mcp", "pydantic"]
    code = f"import secateurs, sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_help_is_quick_because_it_loads_no_engine() -> None:
    heavy = ["torch", "numba", "faiss", "onnxruntime", "tokenizers", "numkong", "scipy", "pandas", "ray", "fastapi"]
    code = (
        "import sys; sys.argv = ['secateurs', '--help']\n"
        "from secateurs.cli import main\n"
        "try: main()\n"
        f"except SystemExit: print([m for m in {heavy} if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "evaluate" in done.stdout
    assert done.stderr.strip() == "[]"


def test_only_the_command_line_imports_typer() -> None:
    package = Path(secateurs.__file__).parent
    for path in package.rglob("*.py"):
        if package / "cli" not in path.parents:
            assert not re.search(r"^\s*(import|from) (typer|click)\b", path.read_text("utf-8"), re.MULTILINE), path


def test_every_public_name_can_be_imported() -> None:
    assert set(secateurs.__all__) == {"__version__", *secateurs._HOME}
    for name in secateurs.__all__:
        assert getattr(secateurs, name) is not None
    assert dir(secateurs) == sorted(secateurs.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(secateurs, "Pruner")


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index.core", "llama-index"),
        ("haystack", "haystack", "haystack"),
        ("rerankers", "rerankers", "rerankers"),
        ("pylate", "pylate", "pylate"),
        ("mteb", "mteb", "mteb"),
        ("lancedb", "lancedb", "lancedb"),
        ("qdrant", "qdrant_client", "qdrant"),
        ("voyager", "voyager", "voyager"),
        ("milvus", "pymilvus", "milvus"),
    ],
)
def test_an_integration_without_its_package_names_the_pip_line(
    monkeypatch: pytest.MonkeyPatch, module: str, package: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, f"secateurs.integrations.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # as if it were not installed
    with pytest.raises(MissingExtraError, match=rf'pip install "secateurs\[{extra}\]"'):
        importlib.import_module(f"secateurs.integrations.{module}")

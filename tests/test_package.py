"""What the package promises before anything is called."""

import subprocess
import sys

import secateurs


def test_importing_is_light() -> None:
    heavy = ["torch", "numba", "faiss", "onnxruntime", "tokenizers", "numkong", "typer", "rich", "numpy"]
    code = f"import secateurs, sys; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_every_public_name_can_be_had() -> None:
    assert set(secateurs.__all__) == {"__version__", *secateurs._HOME}
    for name in secateurs.__all__:
        assert getattr(secateurs, name) is not None
    assert dir(secateurs) == sorted(secateurs.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(secateurs, "Pruner")

"""Installs a wheel in a new virtual environment, as a user does, and runs the README's Python there.

    python tests/wheel.py dist/secateurs-0.1.0-py3-none-any.whl

Needs the network, for pip. `make test-wheel` builds the wheel first.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
NOT_IN_THE_CORE = ("faiss", "torch", "fastapi", "ray", "pandas", "scipy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    wheel = parser.parse_args().wheel.resolve()
    blocks = re.findall(r"^```python\n(.*?)^```$", README.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert blocks, "the README shows no Python"
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "environment"
        venv.create(environment, with_pip=True)
        scripts = environment / ("Scripts" if os.name == "nt" else "bin")

        def run(program: str, *arguments: str) -> str:
            print(f"$ {program} {' '.join(arguments)}"[:100].splitlines()[0], flush=True)
            clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
            done = subprocess.run(
                [str(scripts / program), *arguments], cwd=folder, env=clean, text=True, stdout=subprocess.PIPE
            )
            print(done.stdout, end="", flush=True)
            if done.returncode:
                sys.exit(f"{program} failed with {done.returncode}")
            return done.stdout

        run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[model]")
        present = f"print([m for m in {NOT_IN_THE_CORE} if importlib.util.find_spec(m)])"
        assert run("python", "-c", f"import importlib.util; {present}").strip() == "[]"
        run("python", "-c", "\n".join(blocks))
        found = run("secateurs", "search", "animals.sec", "do goldfish grow", "-k", "1", "--trec")
        assert " fish 1 " in found
        info = run("secateurs", "info", "animals.sec")
        assert "documents         2" in info


if __name__ == "__main__":
    main()

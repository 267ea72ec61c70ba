"""One virtual environment per peer, with the version that the benchmark names: their requirements do not agree.

    python benchmarks/peers/environments.py CACHE [NAME ...] [--torch-index URL]

CACHE/NAME is made anew if it is not there; run the adapters with CACHE/NAME/bin/python. A peer that cannot be installed
is named with the reason, the others go on, and the exit code tells. --torch-index lets fast-plaid take a smaller torch
from elsewhere (https://download.pytorch.org/whl/cpu); xtr-warp must have the one of PyPI, with CUDA, about 5 GB on
disk, because its wheel links to a library of that build even where no GPU is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path


class CannotInstallError(Exception):
    """With the last lines of what the command said."""


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-5:]
        how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
        raise CannotInstallError("\n    ".join([f"{' '.join(map(str, command))} ended with {how}", *said]))


def pip(python: Path, *arguments: str) -> None:
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments)


def tachiom(python: Path, torch_index: str | None) -> None:
    """Its wheel says glibc 2.39, but what is so new in it is optional: where pip refuses it, it still loads."""
    try:
        pip(python, "--only-binary", ":all:", "tachiom==0.4.0")
    except CannotInstallError:
        packages = next((python.parent.parent / "lib").glob("python*/site-packages"))
        pip(python, "numpy")
        wheel = ["--only-binary", ":all:", "--platform", "manylinux_2_39_x86_64"]
        pip(python, "--no-deps", *wheel, "--target", str(packages), "tachiom==0.4.0")
    run(python, "-c", "import tachiom")


def fast_plaid(python: Path, torch_index: str | None) -> None:
    """Built for torch 2.11.0 alone: beside 2.13.0 it imports, and ends in a segmentation fault at the first build."""
    if torch_index:
        pip(python, "torch==2.11.0", "--index-url", torch_index)
    pip(python, "fast-plaid==1.7.0.2110")
    run(python, "-c", "import fast_plaid.search")


def xtr_warp(python: Path, torch_index: str | None) -> None:
    pip(python, "xtr-warp-rs==2.1.0.2110")
    run(python, "-c", "import xtr_warp")


def lancedb(python: Path, torch_index: str | None) -> None:
    pip(python, "lancedb==0.40.0")
    run(python, "-c", "import lancedb")


PEERS: dict[str, Callable[[Path, str | None], None]] = {
    "tachiom": tachiom,
    "fast-plaid": fast_plaid,
    "xtr-warp": xtr_warp,
    "lancedb": lancedb,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cache", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PEERS)}; all if none is given")
    parser.add_argument("--torch-index", metavar="URL")
    given = parser.parse_args()
    if unknown := set(given.names) - set(PEERS):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    failed = False
    for name in given.names or PEERS:
        folder = given.cache / name
        if not folder.exists():
            venv.create(folder, with_pip=True)
        try:
            PEERS[name](folder / "bin" / "python", given.torch_index)
            print(f"{name}: ready in {folder}", flush=True)
        except CannotInstallError as error:
            failed = True
            print(f"{name}: cannot be installed here\n    {error}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()

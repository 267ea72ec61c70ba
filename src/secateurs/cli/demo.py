"""The command that shows what pruning does, on documents that every Python has."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..settings import SearchSettings
from .demo_printing import Pair, print_demo_summary, print_side_by_side
from .interruption import changing, is_index
from .options import whole_number
from .printing import size_of, tokens_of
from .serve import require_service, run_service

if TYPE_CHECKING:
    from ..index import Index

commands = typer.Typer()


@commands.command(epilog="Example:  secateurs demo")
def demo(
    path: Annotated[Path, typer.Argument(metavar="INDEX", help="Where the demo index goes.")] = Path("demo.sec"),
    p: Annotated[
        int,
        typer.Option("-p", "--p", parser=whole_number, metavar="N", help="Query embeddings of the pruned search."),
    ] = 3,
    rebuild: Annotated[
        bool, typer.Option("--rebuild", metavar="", help="Index again even if the index is there.")
    ] = False,
    serve: Annotated[
        bool, typer.Option("--serve", metavar="", help="Then serve the index; the page's address is printed.")
    ] = False,
) -> None:
    """Index the standard library's documentation strings and ask a few questions, pruned and not."""
    from ..demo import QUESTIONS, standard_library
    from ..index import Index

    SearchSettings(p=p)  # a wrong p is an error before the work, not after it
    if serve:
        require_service()
    if is_index(path) and not _is_demo(Index(path)):
        raise UsageError(f"{path} is not an index of this demo: choose another name")
    if rebuild or not is_index(path):
        documents = standard_library()
        typer.echo(f"Indexing {len(documents):,} documentation strings of this Python's standard library.")
        with changing(path):
            opened = Index.build(path, documents, overwrite=rebuild)
    else:
        typer.echo(f"Using the index that is there already: {path}")
        opened = Index(path)
    typer.echo(f"{size_of(opened.info())}\n")
    pairs = []
    for question in QUESTIONS:
        for _ in range(2):  # the first search of an index also checks what it reads: only the second is shown
            full, pruned = (opened.search(question, k=5, p=wanted) for wanted in (None, p))
        pairs.append(Pair(question, full, pruned, tokens_of(opened, pruned)))
        print_side_by_side(pairs[-1])
    print_demo_summary(pairs)
    command, shown = _command(), shlex.quote(str(path))
    typer.echo(f'\nNow try:  {command} search {shown} "delete a whole directory tree" -p {p}')
    typer.echo(f'          {command} explain {shown} "delete a whole directory tree" shutil.rmtree -p {p}')
    if serve:
        typer.echo("")
        run_service([path])
    else:
        typer.echo(f"See it:   {command} serve {shown}     and open http://127.0.0.1:8000/ in a browser")


def _is_demo(opened: Index) -> bool:
    """Whether an index has a document that the standard library of every Python has, with the demo's metadata."""
    return "argparse" in opened and {"kind", "python"} <= opened.get("argparse").metadata.keys()


def _command() -> str:
    """How to call secateurs as it was called now."""
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m secateurs"
    return "secateurs" if shutil.which("secateurs") else sys.argv[0]  # in a virtual environment that is not active

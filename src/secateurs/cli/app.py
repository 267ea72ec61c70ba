"""`secateurs`: the groups of commands, the options before a command, and how a command ends."""

from __future__ import annotations

import io
import sys
import traceback
from typing import Annotated

import typer

from ..errors import SecateursError, UsageError
from ..version import __version__
from . import background, demo, documents, lab, mcp, rerank, search, serve, shards, transfer
from .interruption import Commands, InterruptedCommandError, end_process, notes_of

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Late-interaction search that gathers with the few query embeddings that matter and scores with all of them.",
    epilog="Start with:  secateurs demo",
)
for group in (documents, transfer, background, search, rerank, demo, serve, mcp, lab):
    app.add_typer(group.commands)
app.add_typer(shards.commands, name="shard")
_debug = False


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"secateurs {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", metavar="", help="Show the whole stack trace of an error.")] = False,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    global _debug
    _debug = debug


def main() -> None:
    """Exit codes: 0 fine, 1 a problem with data, 2 wrong usage, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")  # a docno may be any UTF-8, whatever the system's encoding is
    try:
        app(standalone_mode=True)
    except (InterruptedCommandError, KeyboardInterrupt) as error:
        _print_error(f"interrupted{error}")
        end_process(130)
    except SecateursError as error:
        _fail("; ".join([str(error), *notes_of(error)]), 2 if isinstance(error, UsageError) else 1)
    except (OSError, MemoryError) as error:
        _fail("; ".join([str(error) or type(error).__name__, *notes_of(error)]), 1)


def _fail(message: str, code: int) -> None:
    _print_error(message)
    sys.exit(code)


def _print_error(message: str) -> None:
    if _debug:
        traceback.print_exc()
    else:
        typer.echo(f"secateurs: {message}", err=True)

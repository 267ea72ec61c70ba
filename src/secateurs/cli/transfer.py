"""Commands that take documents out of an index, embeddings into one, and whole indexes to and from the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..progress import counted
from ..settings import StoreName
from .interruption import changing
from .options import BuiltGatherers, IndexPath, MergeOption, PoolOption, gatherer_names, merge_threshold
from .printing import SkippedDocuments, print_built, size_of

commands = typer.Typer()
Repository = Annotated[
    str, typer.Argument(metavar="REPO", help="A dataset repository of the Hugging Face Hub: user/name.")
]


@commands.command(epilog="Example:  secateurs export demo.sec documents.jsonl.gz")
def export(
    path: IndexPath,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="A .jsonl, .trec (.gz too) or .parquet file; - is standard output.")
    ],
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="jsonl: text and metadata; parquet: embeddings too; trec: text. By default what FILE ends in.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace a file of that name.")] = False,
) -> None:
    """Write the documents of an index to a file that can be indexed, or imported, again."""
    from ..cluster.search.open_index import open_index

    count = open_index(path).export(file, format=format, overwrite=overwrite)
    if file != "-":
        typer.echo(f"{file}: {counted(count, 'document')}")


@commands.command(name="import", epilog="Example:  secateurs import vectors.npz demo.sec --corpus corpus.jsonl")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="A .parquet, .arrow, .lance, .npz or .npy file, a folder of .parquet or .npy files, or a PLAID index.",
        ),
    ],
    path: IndexPath,
    format: Annotated[
        str | None, typer.Option(metavar="NAME", help="table, arrays or plaid. By default what SOURCE looks like.")
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="CORPUS",
            help="Docnos, texts and metadata for the embeddings, in their order, as  secateurs index  takes them.",
        ),
    ] = None,
    store: Annotated[
        StoreName | None,
        typer.Option(
            parser=str, metavar="NAME", help="As for  secateurs index; by default int8, or that of an exported index."
        ),
    ] = None,
    gather: BuiltGatherers = None,
    merge: MergeOption = "auto",
    pool: PoolOption = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace an index of that name.")] = False,
) -> None:
    """Make an index of embeddings that were made elsewhere, or that  secateurs export  wrote. Nothing is encoded."""
    from ..importing import import_embeddings

    with changing(path):
        built = import_embeddings(
            source,
            path,
            format=format,
            corpus=corpus,
            store=store,
            gather=gatherer_names(gather) if gather else None,
            merge=merge_threshold(merge),
            pool=pool,
            overwrite=overwrite,
        )
    print_built(path, built.info(), SkippedDocuments(), str(source))


@commands.command(epilog="Example:  secateurs push demo.sec user/demo")
def push(
    path: IndexPath,
    repo: Repository,
    public: Annotated[
        bool,
        typer.Option(
            "--public",
            metavar="",
            help="If the repository is new, let everyone read it, the texts of the documents included.",
        ),
    ] = False,
    revision: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A branch, which is made if it is not there; by default main."),
    ] = None,
) -> None:
    """Write an index, or a collection in shards, to a repository of the Hugging Face Hub."""
    from ..cluster.search.open_index import open_index

    with open_index(path) as index:
        address = index.push(repo, public=public, revision=revision)
        typer.echo(f"{repo}: {size_of(index.info())}\n{address}")


@commands.command(epilog="Example:  secateurs pull user/demo demo.sec")
def pull(
    repo: Repository,
    path: IndexPath,
    revision: Annotated[
        str | None, typer.Option(metavar="NAME", help="A branch, a tag or a commit; by default main.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace an index of that name.")] = False,
) -> None:
    """Make an index of one that was pushed to the Hugging Face Hub. Every byte is checked."""
    from ..cluster.search.open_index import open_index, pull_any

    with changing(path):
        pull_any(repo, path, revision, overwrite)
    with open_index(path) as index:
        typer.echo(f"{path}: {size_of(index.info())}")

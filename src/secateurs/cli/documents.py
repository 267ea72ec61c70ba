"""Commands that make, change, check and describe an index."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..background import AUTO
from ..encoders import DEFAULT_MODEL
from ..errors import UsageError
from ..progress import counted
from ..queries import read_lines
from ..settings import DEFAULT_STORE
from .interruption import changing
from .options import (
    AsJson,
    BackgroundOption,
    BuiltGatherers,
    Corpus,
    EncoderKind,
    EncoderSettings,
    IndexPath,
    MergeOption,
    Model,
    PoolOption,
    RayForSearch,
    SkipBad,
    StoreOption,
    background_or_none,
    encoder_settings,
    gatherer_names,
    merge_threshold,
)
from .printing import (
    SkippedDocuments,
    describe_calibration,
    print_built,
    print_changes,
    print_deletions,
    print_document,
    print_fields,
    print_info,
    print_metadata_changes,
    print_missing,
    size_of,
)

commands = typer.Typer()
_SOUND = "every byte is as it was written, and all parts agree"


@commands.command(epilog="Example:  secateurs index corpus.jsonl demo.sec")
def index(
    corpus: Corpus,
    path: IndexPath,
    model: Model = DEFAULT_MODEL,
    encoder: EncoderKind = "onnx",
    setting: EncoderSettings = None,
    store: StoreOption = DEFAULT_STORE,
    gather: BuiltGatherers = None,
    background: BackgroundOption = AUTO,
    merge: MergeOption = "auto",
    pool: PoolOption = 1,
    skip_bad: SkipBad = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", metavar="", help="Replace an index of that name.")] = False,
) -> None:
    """Index documents: encode them, store the embeddings, prepare gathering."""
    from ..encoders import load_encoder
    from ..index import Index

    skipped = SkippedDocuments()
    with changing(path):
        built = Index.build(
            path,
            corpus,
            encoder=load_encoder(model, encoder, settings=encoder_settings(setting)),
            store=store,
            gather=gatherer_names(gather),
            background=background_or_none(background),
            merge=merge_threshold(merge),
            pool=pool,
            overwrite=overwrite,
            on_bad=skipped if skip_bad else None,
        )
    print_built(path, built.info(), skipped, corpus)


@commands.command(epilog="Example:  secateurs add demo.sec more.jsonl")
def add(path: IndexPath, corpus: Corpus, skip_bad: SkipBad = False) -> None:
    """Add documents to an index. A docno that is there already is an error, and then nothing is added."""
    from ..cluster.search.open_index import open_index

    skipped = SkippedDocuments()
    opened = open_index(path)
    with changing(path):
        changes = opened.add(corpus, on_bad=skipped if skip_bad else None)
    print_changes(path, changes, opened.info(), skipped)


@commands.command(epilog="Example:  secateurs update demo.sec changed.jsonl")
def update(
    path: IndexPath,
    corpus: Corpus,
    skip_bad: SkipBad = False,
    metadata_only: Annotated[
        bool,
        typer.Option(
            "--metadata-only",
            metavar="",
            help="Change metadata alone: lines of docno and keys; null removes a key, other keys stay.",
        ),
    ] = False,
) -> None:
    """Add documents to an index, each in place of the one that has its docno, if there is one."""
    from ..cluster.search.open_index import open_index

    if metadata_only:
        if skip_bad:
            raise UsageError("--skip-bad is for documents: with --metadata-only every line must be right")
        _update_metadata(path, corpus)
        return
    skipped = SkippedDocuments()
    opened = open_index(path)
    with changing(path):
        changes = opened.update(corpus, on_bad=skipped if skip_bad else None)
    print_changes(path, changes, opened.info(), skipped)


def _update_metadata(path: Path, source: str) -> None:
    from ..cluster.search.open_index import open_index
    from ..metadata import read_metadata

    opened = open_index(path)
    with changing(path):
        changes = opened.update_metadata(read_metadata(source))
    print_metadata_changes(path, changes, opened.info())
    if changes.missing:
        raise typer.Exit(1)


@commands.command(epilog="Example:  secateurs get demo.sec d17 d18 --json")
def get(
    path: IndexPath,
    docnos: Annotated[list[str], typer.Argument(metavar="DOCNO", help="The documents to print.")],
    as_json: AsJson = False,
) -> None:
    """Print stored documents. Those that are not there are named, and the exit code is 1 then."""
    from ..cluster.search.open_index import open_index

    opened = open_index(path)
    missing = [docno for docno in docnos if docno not in opened]
    present = [docno for docno in docnos if docno not in missing]
    for number, docno in enumerate(present):
        if number and not as_json:
            typer.echo()
        print_document(opened.get(docno), as_json)
    print_missing(missing)
    if missing:
        raise typer.Exit(1)


@commands.command(epilog="Example:  secateurs delete demo.sec d17 d18")
def delete(
    path: IndexPath,
    docnos: Annotated[list[str] | None, typer.Argument(metavar="DOCNO", help="The documents to delete.")] = None,
    file: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="Docnos, one on each line; - reads standard input.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="EXPR", help='Instead of docnos: all documents that match, such as "year < 2000".'),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="With --where: delete without asking.")] = False,
) -> None:
    """Delete documents. Those that are not there are named, and the exit code is 1 then; the others are deleted.

    With --where, the number of matching documents is shown first, and they are deleted after a yes.
    """
    from ..cluster.search.open_index import open_index

    if where is not None:
        if docnos or file is not None:
            raise UsageError("give docnos or --where, not both")
        _delete_where(path, where, yes)
        return
    if yes:
        raise UsageError("--yes is for --where")
    wanted = list(docnos or ())
    if file is not None:
        wanted += [line for _, line in read_lines(file)]
    if not wanted:
        raise UsageError("give docnos to delete, or --from FILE, or --where EXPR")
    opened = open_index(path)
    with changing(path):
        changes = opened.delete(wanted)
    print_deletions(path, changes, opened.info())
    if changes.missing:
        raise typer.Exit(1)


def _delete_where(path: Path, where: str, yes: bool) -> None:
    from ..cluster.search.open_index import open_index
    from ..settings import SearchSettings

    opened = open_index(path)
    if not yes:
        matching = opened.searched().filter(SearchSettings(where=where)).documents
        what = f"{matching:,} of {counted(len(opened), 'document')} in {path}"
        if not matching:
            typer.echo(f"nothing to delete: 0 of {counted(len(opened), 'document')} in {path} match")
            return
        if not sys.stdin.isatty():
            raise UsageError(f"this would delete {what}, and nothing was deleted: to delete them, repeat it with --yes")
        if not typer.confirm(f"delete {what}?", err=True):
            typer.echo("nothing was deleted")
            raise typer.Exit(1)
    with changing(path):
        changes = opened.delete(where=where)
    print_deletions(path, changes, opened.info())


@commands.command(epilog="Example:  secateurs compact demo.sec")
def compact(path: IndexPath) -> None:
    """Rewrite an index as one segment without what was deleted. Changes do this by themselves when it is needed."""
    from ..cluster.search.open_index import open_index

    opened = open_index(path)
    with changing(path):
        opened.compact()
    typer.echo(f"{path}: {size_of(opened.info())}")


@commands.command(epilog="Example:  secateurs calibrate demo.sec --queries queries.tsv")
def calibrate(
    path: IndexPath,
    queries: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Queries such as users ask, in the formats of  search --queries."),
    ] = None,
) -> None:
    """Measure how thorough each effort must be to find what it promises: see docs/effort.md.

    An index does this by itself when it is built and when it has changed much, with parts of its documents as queries.
    """
    from ..cluster.search.open_index import open_index
    from ..queries import read_queries

    texts = None if queries is None else [text for _, text in read_queries(queries)]
    opened = open_index(path)
    with changing(path):
        opened.calibrate(texts)
    measured = opened.info()["calibration"]
    typer.echo(f"{path}: {describe_calibration(measured)}")


@commands.command(epilog="Example:  secateurs check demo.sec")
def check(
    path: IndexPath,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            metavar="",
            help="Rebuild what is damaged, as far as it can be, and name what is lost: exit code 1.",
        ),
    ] = False,
) -> None:
    """Read every byte of an index, compare it with its checksum, and see whether all parts agree."""
    from ..cluster.layout import is_sharded
    from ..cluster.search.open_index import open_index
    from ..storage.repair import repair as repair_index

    lost = False
    if repair:
        if is_sharded(path):
            raise UsageError(f"--repair is for one index: give a shard, such as {path / 'shard-0000'}")
        report = repair_index(path)
        lost = report.lost
        for line in report.lines:
            typer.echo(line)
    open_index(path).check()
    if lost:
        typer.echo("every byte of what is left is as it was written, and all parts agree; what was lost is named above")
        raise typer.Exit(1)
    typer.echo(_SOUND)


@commands.command(epilog="Example:  secateurs info demo.sec --check")
def info(
    path: IndexPath,
    ray: RayForSearch = None,
    as_json: AsJson = False,
    check: Annotated[bool, typer.Option("--check", metavar="", help="The same as  secateurs check  first.")] = False,
    fields: Annotated[
        bool, typer.Option("--fields", metavar="", help="Say which keys the metadata has, and their types, instead.")
    ] = False,
) -> None:
    """Say what an index is and holds; of a collection, each of its shards too."""
    from ..cluster.search.open_index import open_index

    opened = open_index(path, ray=ray)
    if check:
        opened.check()
        if not as_json:
            typer.echo(_SOUND)
    if fields:
        print_fields(opened.fields(), as_json)
    else:
        print_info(opened.info(), as_json)

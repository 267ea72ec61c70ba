"""The group of commands  secateurs shard ...  for collections in shards."""

from __future__ import annotations

from typing import Annotated

import typer

from ..background import AUTO
from ..encoders import DEFAULT_MODEL
from ..errors import UsageError
from ..settings import DEFAULT_STORE
from .documents import info
from .interruption import on_interrupt
from .options import (
    BackgroundOption,
    BuiltGatherers,
    EncoderKind,
    EncoderSettings,
    MergeOption,
    Model,
    PoolOption,
    SkipBad,
    StoreOption,
    background_or_none,
    encoder_settings,
    gatherer_names,
    merge_threshold,
)
from .printing import SkippedDocuments, print_built
from .search import search

commands = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="A collection over many machines: shards that are built and searched on a Ray cluster.",
    epilog="Example:  secateurs shard build corpus.jsonl big.sec --shards 4",
)

RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="A Ray cluster: host:port of its head, or auto for the one this machine is in. "
        "By default RAY_ADDRESS, or else this machine alone.",
    ),
]


@commands.command(epilog="Example:  secateurs shard build part-*.jsonl.gz big.sec --shards 8 --ray auto")
def build(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS... FOLDER",
            help="What to index, as  secateurs index  takes it, in one or many files; and last where the shards go.",
        ),
    ],
    shards: Annotated[int, typer.Option(metavar="N", help="How many. One per machine that will search, or a few.")] = 4,
    ray: RayAddress = None,
    model: Model = DEFAULT_MODEL,
    encoder: EncoderKind = "onnx",
    setting: EncoderSettings = None,
    store: StoreOption = DEFAULT_STORE,
    gather: BuiltGatherers = None,
    background: BackgroundOption = AUTO,
    merge: MergeOption = "auto",
    pool: PoolOption = 1,
    per_node: Annotated[
        bool,
        typer.Option(
            "--per-node", metavar="", help="Each shard on one machine's own disk; otherwise all must see FOLDER."
        ),
    ] = False,
    skip_bad: SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", metavar="", help="Replace a collection of that name, or an unfinished one.")
    ] = False,
) -> None:
    """Index documents into shards, on all cores of a Ray cluster. If it is stopped, repeat the command to continue."""
    from ..cluster.build.builder import build_shards

    *corpus, folder = paths
    if not corpus:
        raise UsageError("name the corpus first and then the folder:  secateurs shard build CORPUS... FOLDER")
    skipped = SkippedDocuments()
    with on_interrupt(lambda: "repeat the command to continue"):
        facts = build_shards(
            folder,
            corpus,
            shards=shards,
            encoder=model,
            encoder_kind=encoder,
            encoder_settings=encoder_settings(setting),
            store=store,
            gather=gatherer_names(gather),
            background=background_or_none(background),
            merge=merge_threshold(merge),
            pool=pool,
            overwrite=overwrite,
            per_node=per_node,
            ray_address=ray,
            on_bad=skipped if skip_bad else None,
        )
    print_built(folder, facts, skipped, ", ".join(corpus))


commands.command(name="info", epilog="Example:  secateurs shard info big.sec")(info)
commands.command(
    name="search", epilog='Example:  secateurs shard search big.sec "do goldfish grow" -p 3 --ray auto --replicas 2'
)(search)

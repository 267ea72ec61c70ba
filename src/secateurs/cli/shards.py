"""`secateurs shard ...`: parse, call the library, print."""

from __future__ import annotations

from typing import Annotated

import typer

from ..encoders import DEFAULT_MODEL
from ..errors import UsageError
from .options import BuiltGatherers, EncoderKind, Model, SkipBad, StoreName, built_as
from .printing import Skipped, size_of

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="A collection over many machines: shards that are built and searched on a Ray cluster.",
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


@app.command(epilog="Example:  secateurs shard build part-*.jsonl.gz big.sec --shards 8 --ray auto")
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
    store: StoreName = "int8",
    gather: BuiltGatherers = None,
    per_node: Annotated[
        bool,
        typer.Option("--per-node", help="Each shard on one machine's own disk; otherwise all must see FOLDER."),
    ] = False,
    skip_bad: SkipBad = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a collection of that name, or an unfinished one.")
    ] = False,
) -> None:
    """Index documents into shards, on all cores of a Ray cluster. If stopped, the same command goes on."""
    from ..cluster.build.builder import build_shards

    *corpus, folder = paths
    if not corpus:
        raise UsageError("name the corpus first and then the folder:  secateurs shard build CORPUS... FOLDER")
    bad = Skipped()
    facts = build_shards(
        folder,
        corpus,
        shards=shards,
        encoder=model,
        encoder_kind=encoder,
        **built_as(store, gather),
        overwrite=overwrite,
        per_node=per_node,
        ray_address=ray,
        on_bad=bad if skip_bad else None,
    )
    typer.echo(f"{folder}: {size_of(facts)}, in {facts['shards']:,} shards")
    if facts["cut_documents"]:
        typer.echo(f"longer than the encoder takes, and cut: {facts['cut_documents']:,}")
    bad.summarise()

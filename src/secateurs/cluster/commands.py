"""`secateurs shard ...`: parse, call the library, print."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..encoders import DEFAULT_MODEL
from ..errors import UsageError
from ..options import (
    AsJson,
    AsTrec,
    Candidates,
    Effort,
    EncoderKind,
    FrequenciesOf,
    GatherName,
    K,
    KPrime,
    Model,
    NProbe,
    OrderName,
    P,
    Prepared,
    Queries,
    Query,
    RayForSearch,
    Replicas,
    SkipBad,
    StoreName,
    Where,
    number_or_word,
)
from ..printing import Skipped, print_info, print_rankings, queries_asked, size_of
from ..records import SearchSettings

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="A collection over many machines: shards that are built and searched on a Ray cluster.",
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="What  secateurs shard build  made.")]
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
    gather: Prepared = None,
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
    from .building import build_shards

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
        store=store,
        gather=tuple(gather or ("cells",)),
        overwrite=overwrite,
        per_node=per_node,
        ray_address=ray,
        on_bad=bad if skip_bad else None,
    )
    typer.echo(f"{folder}: {size_of(facts)}, in {facts['shards']:,} shards")
    if facts["cut_documents"]:
        typer.echo(f"longer than the encoder takes, and cut: {facts['cut_documents']:,}")
    bad.summarise()


@app.command(epilog="Example:  secateurs shard info big.sec")
def info(path: Folder, ray: RayForSearch = None, as_json: AsJson = False) -> None:
    """Say what a collection in shards is and holds, and each of its shards."""
    from .sharded import ShardedIndex

    with ShardedIndex(path, ray=ray) as opened:
        print_info(opened.info(), as_json)


@app.command(epilog='Example:  secateurs shard search big.sec "do goldfish grow" -p 3 --ray auto --replicas 2')
def search(
    path: Folder,
    query: Query = None,
    queries: Queries = None,
    k: K = SearchSettings.k,
    p: P = "auto",
    order: OrderName = "icf",
    gather: GatherName = SearchSettings.gather,
    k_prime: KPrime = SearchSettings.k_prime,
    nprobe: NProbe = SearchSettings.nprobe,
    candidates: Candidates = SearchSettings.candidates,
    effort: Effort = SearchSettings.effort,
    where: Where = SearchSettings.where,
    frequencies: FrequenciesOf = SearchSettings.frequencies,
    partial: Annotated[
        bool, typer.Option("--partial", help="Answer without shards that cannot be reached, and say so.")
    ] = SearchSettings.partial,
    ray: RayForSearch = None,
    replicas: Replicas = 1,
    as_json: AsJson = False,
    trec: AsTrec = False,
) -> None:
    """Search all shards as one index, with one query or with a file of queries."""
    from .sharded import ShardedIndex

    asked = queries_asked(query, queries, as_json, trec)
    settings = SearchSettings(
        k, number_or_word(p), order, gather, k_prime, nprobe, candidates, effort, where, frequencies, partial
    )
    with ShardedIndex(path, ray=ray, replicas=replicas) as opened:
        print_rankings(opened, asked, settings, as_json, trec)

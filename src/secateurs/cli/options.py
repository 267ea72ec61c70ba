"""Arguments and options that several commands have, with the same help texts.

Options whose values are a few words have the Literal types of settings.py, but are parsed as any text: SearchSettings
and Index.build check them, with the same message as everywhere. So do numbers that are search settings. A flag has an
empty metavar, because typer would show its type.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from ..errors import UsageError
from ..settings import (
    EffortName,
    FrequenciesName,
    FuseName,
    GatherName,
    GatherSetting,
    Merge,
    OrderName,
    StoreName,
    WeightsName,
)


def whole_number(text: str) -> int | str:
    """A number, or the text as it is: SearchSettings refuses it, with the same message as any other wrong number."""
    try:
        return int(text)
    except ValueError:
        return text


def any_number(text: str) -> float | str:
    """The same with a decimal point."""
    try:
        return float(text)
    except ValueError:
        return text


IndexPath = Annotated[Path, typer.Argument(metavar="INDEX", help="The index folder, for example demo.sec.")]
Query = Annotated[str | None, typer.Argument(metavar="QUERY", help="What to look for.")]
Queries = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Many queries: qid, tab, text on each line, or BEIR's queries.jsonl; - reads standard input.",
    ),
]
K = Annotated[int, typer.Option("-k", "--k", parser=whole_number, metavar="N", help="Number of hits.")]
Offset = Annotated[
    int, typer.Option(parser=whole_number, metavar="N", help="Leave out the N best: 10 is the second page of 10 hits.")
]
P = Annotated[
    str,
    typer.Option(
        "-p", "--p", metavar="N", help="Query embeddings to gather with: a number, all, or auto to follow the effort."
    ),
]
OrderOption = Annotated[
    OrderName,
    typer.Option(
        parser=str,
        metavar="NAME",
        help="Which embeddings matter most: focus (words like the rest of the query and unlike most documents), "
        "rarity (in the collection and in general text), icf (the paper's), idf, first or random.",
    ),
]
GatherOption = Annotated[
    GatherSetting,
    typer.Option(
        parser=str,
        metavar="NAME",
        help="How candidates are found: cells, faiss, exhaustive, text, cells+text, or auto.",
    ),
]
KPrime = Annotated[
    int,
    typer.Option(parser=whole_number, metavar="N", help="faiss: nearest document embeddings per kept query embedding."),
]
NProbe = Annotated[
    int | None,
    typer.Option(
        parser=whole_number, metavar="N", help="Cells, or partitions of faiss, that each kept embedding looks into."
    ),
]
Candidates = Annotated[
    int | None, typer.Option(parser=whole_number, metavar="N", help="cells, text: documents to score exactly.")
]
EffortOption = Annotated[
    EffortName,
    typer.Option(
        parser=str,
        metavar="NAME",
        help="fast, balanced, thorough or exact: chooses the settings above that you do not give.",
    ),
]
BudgetMs = Annotated[
    float | None,
    typer.Option(
        metavar="MS", help="cells: milliseconds a search may take after encoding; chooses p, nprobe and candidates."
    ),
]
Where = Annotated[
    str | None,
    typer.Option(
        metavar="EXPR", help="Only documents whose metadata matches this condition: \"year >= 2020 and lang = 'en'\"."
    ),
]
FrequenciesOption = Annotated[
    FrequenciesName,
    typer.Option(
        "--frequencies",
        parser=str,
        metavar="NAME",
        help="Where token frequencies are counted: in the collection, or in the documents matching --where.",
    ),
]
WeightsOption = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="NAME",
        help="What embeddings count for in the score: idf gives rare words more, none gives all the same.",
    ),
]
FuseOption = Annotated[
    str,
    typer.Option(
        "--fuse",
        metavar="NAME",
        help="The order of the hits: rrf by the exact score and by BM25, none by the exact score alone.",
    ),
]
MinScore = Annotated[
    float | None,
    typer.Option(
        parser=any_number,
        metavar="X",
        help="Leave out hits with a lower score. Scores grow with the length of the query: see --min-relevance.",
    ),
]
MinRelevance = Annotated[
    float | None,
    typer.Option(
        parser=any_number,
        metavar="X",
        help="Leave out hits with a lower relevance, 0 to 1. It compares between queries; 0.5 is a good first try.",
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", metavar="", help="Go on after documents that cannot be used, and count them.")
]
Corpus = Annotated[
    str,
    typer.Argument(
        metavar="CORPUS",
        help="A .jsonl, .tsv or .csv file (.gz too), a folder of .txt and .md files or of BEIR, ir_datasets:ID, or - "
        "for jsonl on standard input.",
    ),
]
Fields = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES",
        help="--json: what comes with a hit beside rank, docno, score and relevance: text, metadata, or keys of the "
        "metadata, with commas between them. Everything if left out.",
    ),
]
Facets = Annotated[
    str | None,
    typer.Option(
        metavar="KEYS",
        help="Count the values of these keys of the metadata, with commas between them, in all documents that match "
        "--where.",
    ),
]
AsTrec = Annotated[bool, typer.Option("--trec", metavar="", help="Print a TREC run.")]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of a table.")]
Model = Annotated[str, typer.Option(metavar="MODEL", help="The built-in model, a folder or a hub name.")]
EncoderKind = Annotated[str, typer.Option(metavar="KIND", help="onnx, or st for sentence-transformers.")]
EncoderSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--setting",
        metavar="NAME=VALUE",
        help="A setting of an onnx encoder, such as overlap=64; an index remembers it. May be repeated.",
    ),
]
StoreOption = Annotated[
    StoreName,
    typer.Option(
        parser=str,
        metavar="NAME",
        help="int8; int16 (twice its size, as exact as float16); float16; residual4 (half its size).",
    ),
]
BuiltGatherers = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="What to prepare: cells (the default), faiss, text; once for each."),
]
MergeOption = Annotated[
    str,
    typer.Option(
        "--merge",
        metavar="COSINE",
        help="Embeddings of the same word of a document whose cosine is above this become one: auto (what was measured "
        "for the model), none, or a number such as 0.97.",
    ),
]
PoolOption = Annotated[
    int,
    typer.Option(
        metavar="N", help="Store one embedding for N of a document: smaller, and less exact. 1 is all of them."
    ),
]
BackgroundOption = Annotated[
    str,
    typer.Option(
        "--background",
        metavar="NAME",
        help="General text for the order rarity: auto (the package's table, if there is one for the model), none, "
        "english, or a FILE of  secateurs background.",
    ),
]
Partial = Annotated[
    bool, typer.Option("--partial", metavar="", help="Answer without shards that cannot be reached, and say so.")
]
RayForSearch = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Hold the shards of a collection on a Ray cluster: host:port of its head, auto for the one this machine "
        "is in, or local to start one. Without it, all shards are opened in this process.",
    ),
]
Replicas = Annotated[
    int, typer.Option(metavar="N", help="With --ray: actors for each shard, on different nodes if there are any.")
]


def names_of(given: str | None) -> list[str] | None:
    """What --fields or --facets was given."""
    return None if given is None else [name.strip() for name in given.split(",")]


def gatherer_names(gather: list[str] | None) -> tuple[GatherName, ...]:
    """What --gather was given, as Index.build takes it and checks it."""
    return cast(tuple[GatherName, ...], tuple(gather or ("cells",)))


def encoder_settings(given: list[str] | None) -> dict[str, Any]:
    """What --setting was given, as load_encoder takes it and checks it: JSON, or a text where it is none."""
    settings: dict[str, Any] = {}
    for pair in given or ():
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--setting takes NAME=VALUE, such as overlap=64, not {pair!r}")
        try:
            settings[name.strip()] = json.loads(value)
        except ValueError:
            settings[name.strip()] = value
    return settings


def weights_name(weights: str) -> WeightsName | None:
    """What --weights was given, as SearchSettings takes it and checks it."""
    return None if weights == "none" else cast(WeightsName, weights)


def fuse_name(fuse: str) -> FuseName | None:
    """What --fuse was given, as SearchSettings takes it and checks it."""
    return None if fuse == "none" else cast(FuseName, fuse)


def background_or_none(background: str) -> str | None:
    """What --background was given, as Index.build takes it."""
    return None if background == "none" else background


def merge_threshold(merge: str) -> Merge:
    """What --merge was given, as Index.build takes it."""
    if merge == "auto":
        return "auto"
    if merge == "none":
        return None
    try:
        return float(merge)
    except ValueError:
        raise UsageError(f"--merge takes auto, none, or a cosine between 0 and 1, not {merge!r}") from None


def number_or_word(p: str) -> int | Literal["auto"] | None:
    """What -p was given."""
    if p == "auto":
        return "auto"
    if p == "all":
        return None
    try:
        return int(p)
    except ValueError as error:
        raise UsageError(f"p is a number, all or auto, not {p!r}") from error

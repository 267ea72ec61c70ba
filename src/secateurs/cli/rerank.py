"""The command that re-ranks texts that are in no index."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ..corpus import read_texts
from ..encoders import DEFAULT_MODEL
from ..errors import SecateursError, UsageError
from ..hit_fields import chosen_fields
from ..rankings import Hit
from ..records import check_query_text
from ..trec import trec_line
from .options import AsJson, AsTrec, EncoderKind, EncoderSettings, Model, SkipBad, encoder_settings, whole_number
from .printing import SkippedDocuments, print_reranked

commands = typer.Typer()


@commands.command(epilog='Example:  secateurs rerank "do goldfish grow" found.jsonl -k 5')
def rerank(
    query: Annotated[str, typer.Argument(metavar="QUERY", help="What the texts are compared with.")],
    texts: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="What secateurs index takes; or a file of any other name, with a text on each line; - reads standard "
            "input, as JSON if its first line is a JSON object.",
        ),
    ],
    k: Annotated[
        int | None,
        typer.Option("-k", "--k", parser=whole_number, metavar="N", help="Print the best N; all if left out."),
    ] = None,
    model: Model = DEFAULT_MODEL,
    encoder: EncoderKind = "onnx",
    setting: EncoderSettings = None,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
    trec: AsTrec = False,
) -> None:
    """Order texts of any source by their exact MaxSim score: encode them, compare all embeddings, index nothing."""
    from .. import reranking
    from ..encoders import load_encoder

    if as_json and trec:
        raise UsageError("give --json or --trec, not both")
    if k is not None and (not isinstance(k, int) or k < 1):
        raise UsageError(f"k must be a whole number of at least 1, not {k!r}")
    check_query_text(query)
    skipped = SkippedDocuments()
    documents = list(read_texts(texts, skipped if skip_bad else None))
    if not documents:
        raise SecateursError(f"{texts} has no texts in it")
    loaded = load_encoder(model, encoder, settings=encoder_settings(setting))
    ranked = reranking.rerank(query, [document.text for document in documents], loaded, progress=None)[:k]
    hits = [
        Hit(document.docno, text.score, document.text, document.metadata, text.relevance)
        for text, document in ((text, documents[text.number]) for text in ranked)
    ]
    if trec:
        for rank, hit in enumerate(hits, start=1):
            typer.echo(trec_line("1", hit.docno, rank, hit.score))
    elif as_json:
        content = {
            "query": query,
            "hits": [{"rank": rank, **chosen_fields(hit, None)} for rank, hit in enumerate(hits, start=1)],
        }
        typer.echo(json.dumps(content, ensure_ascii=False))
    else:
        print_reranked(query, hits, len(documents))
        skipped.print_count()

"""The package `rerankers`: a ranker that orders texts of any source by MaxSim.

Importing this makes it known to the package: `Reranker("colbert-small", model_type="SecateursRanker")` loads it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, TypeAlias

from ..encoders import DEFAULT_MODEL, Encoder, load_encoder
from ..errors import UsageError, require
from ..reranking import rerank
from .details import reranked_details

require("rerankers", "rerankers")  # says which pip line is missing, where the imports below would only fail

from rerankers.documents import Document  # noqa: E402
from rerankers.models import AVAILABLE_RANKERS  # noqa: E402
from rerankers.models.ranker import BaseRanker  # noqa: E402
from rerankers.results import RankedResults, Result  # noqa: E402
from rerankers.utils import vprint  # noqa: E402

Docs: TypeAlias = str | Document | Sequence[str | Document]


class SecateursRanker(BaseRanker):
    """Encodes the texts and orders them by their exact MaxSim score. `result.relevance` compares between queries.

    `model_name_or_path` is what `load_encoder` takes, with its other arguments in `options`; or an Encoder.
    """

    def __init__(self, model_name_or_path: str | Encoder = DEFAULT_MODEL, verbose: int = 1, **options: Any) -> None:
        """The name `model_name_or_path`, and a `verbose` that is 1, are those of the package."""
        self.verbose = verbose
        self.ranking_type = "pointwise"
        if not isinstance(model_name_or_path, str):
            if options:
                raise UsageError(f"{', '.join(options)}: the encoder is loaded already")
            if not isinstance(model_name_or_path, Encoder):
                raise UsageError(f"give an encoder or the name of a model, not {model_name_or_path!r:.100}")
            self.encoder = model_name_or_path
            return
        vprint(f"Loading the encoder {model_name_or_path}", verbose)
        self.encoder = load_encoder(model_name_or_path, **options)

    def score(self, query: str, doc: str) -> float:
        """The score of a text; minus infinity if it is blank."""
        return rerank(query, [doc], self.encoder)[0].score

    def rank(
        self,
        query: str,
        docs: Docs,
        doc_ids: Sequence[str | int] | None = None,
        metadata: Sequence[dict[str, Any]] | None = None,
    ) -> RankedResults:
        """All documents, best first. A blank text comes last, with the score None."""
        documents = _documents(docs, doc_ids, metadata)
        ranked = rerank(query, [document.text for document in documents], self.encoder)
        results = []
        for rank, text in enumerate(ranked, start=1):
            details, document = reranked_details(text), documents[text.number]
            document.metadata = {**document.metadata, "relevance": details["relevance"]}
            results.append(Result(document, score=details["score"], rank=rank))
        return RankedResults(results, query, has_scores=True)


AVAILABLE_RANKERS["SecateursRanker"] = SecateursRanker


def _documents(
    docs: Docs, doc_ids: Sequence[str | int] | None, metadata: Sequence[dict[str, Any]] | None
) -> list[Document]:
    """Copies, with ids: the documents belong to the caller. An id that is missing is the number of the document.

    The package has a function for this, which fails for an empty list and for documents with `metadata`.
    """
    listed = [docs] if isinstance(docs, str | Document) else list(docs)
    for name, given in (("doc_ids", doc_ids), ("metadata", metadata)):
        if given is not None and len(given) != len(listed):
            raise UsageError(
                f"{name} must have an entry for each document: {len(listed)} documents, {len(given)} entries"
            )
    documents = []
    for number, item in enumerate(listed):
        document = copy(item) if isinstance(item, Document) else Document(item)
        if not isinstance(document.text, str):
            raise UsageError(f"docs[{number}] has no text: an image cannot be ranked")
        if doc_ids is not None:
            document.doc_id = doc_ids[number]
        elif document.doc_id is None:
            document.doc_id = number
        if metadata is not None:
            document.metadata = metadata[number]
        documents.append(document)
    return documents

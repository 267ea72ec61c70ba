"""Texts that are in no index, encoded and re-ranked by the encoders of the indexes that are served."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..cancellation import stop_if_cancelled
from ..contract import AnyIndex
from ..encoders import Encoder
from ..errors import UsageError
from ..records import EncodedText, check_query_text, is_blank
from ..reranking import rerank
from .answers import EncodeAnswer, EncodedAnswer, RerankAnswer, RerankedHit
from .problems import Problem
from .request_work import Allowance


class ServedEncoders:
    """Requests take `allowed`: how much work they may be."""

    def __init__(self, indexes: Mapping[str, AnyIndex]) -> None:
        self._indexes = indexes

    def rerank(self, request: Any, allowed: Allowance) -> RerankAnswer:
        encoder = self._encoder(request.index)
        texts = [text if isinstance(text, str) else text.text for text in request.texts]
        docnos = [None if isinstance(text, str) else text.docno for text in request.texts]
        allowed.check_texts([request.query, *texts], "texts")
        try:
            check_query_text(request.query)
        except UsageError as error:
            raise Problem.of_field("query", str(error)) from error
        return RerankAnswer(
            hits=[
                RerankedHit(
                    rank=rank,
                    number=text.number,
                    docno=docnos[text.number],
                    score=text.score if text.score > float("-inf") else None,
                    relevance=text.relevance,
                )
                for rank, text in enumerate(rerank(request.query, texts, encoder), start=1)
            ]
        )

    def encode(self, request: Any, allowed: Allowance) -> EncodeAnswer:
        encoder = self._encoder(request.index)
        allowed.check_texts(request.texts, "texts")
        for number, text in enumerate(request.texts):
            if is_blank(text):
                raise Problem.of_field(f"texts.{number}", "is blank: there is nothing to encode")
        as_query = request.role == "query"
        encoded = map(encoder.encode_query, request.texts) if as_query else encoder.encode_documents(request.texts)
        answers = []
        for text in encoded:
            stop_if_cancelled()
            answers.append(_answer(encoder, text))
        return EncodeAnswer(encoded=answers, dim=encoder.dim, model=Path(encoder.spec["model"]).name)

    def _encoder(self, name: str | None) -> Encoder:
        """That of the index; without a name, that of all indexes."""
        if name is None:
            by_fingerprint = {
                index.encoder_spec["fingerprint"]: name for name, index in self._indexes.items() if index.has_encoder
            }
            if not by_fingerprint:
                raise Problem.of_field("index", "no index here has an encoder")
            if len(by_fingerprint) > 1:
                some = ", ".join(by_fingerprint.values())
                raise Problem.of_field("index", f"is needed: the indexes here have different encoders, such as {some}")
            (name,) = by_fingerprint.values()
        if name not in self._indexes:
            raise Problem.of_field("index", f"there is no index {name!r} here: there are {', '.join(self._indexes)}")
        if not self._indexes[name].has_encoder:
            raise Problem.of_field("index", f"{name} was built without an encoder")
        return self._indexes[name].encoder


def _answer(encoder: Encoder, text: EncodedText) -> EncodedAnswer:
    return EncodedAnswer(
        embeddings=text.embeddings.tolist(),
        token_ids=text.token_ids.tolist(),
        token_kinds=text.token_kinds.tolist(),
        embedding_weights=None if text.weights is None else text.weights.tolist(),
        tokens=[encoder.token_text(token_id) for token_id in text.token_ids.tolist()],
        cut=text.cut,
    )

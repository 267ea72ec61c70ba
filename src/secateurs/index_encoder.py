"""The encoder of an index: loaded when it is first needed, and compared with the encoder of the documents."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any

from .encoders import LOADED_BY_NAME, Encoder, load_recorded
from .errors import EncoderMismatchError, SecateursError, UsageError
from .records import EncodedText, check_query_text


class WithEncoder(ABC):
    def __init__(self, path: Path, encoder: Encoder | None) -> None:
        self.path = path
        self._encoder: Encoder | None = None
        self._encoder_lock = Lock()
        if encoder is not None:
            self.use_encoder(encoder)

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimensions of an embedding; 0 if there is none yet."""

    @property
    @abstractmethod
    def encoder_spec(self) -> Mapping[str, Any]:
        """The `spec` of the encoder that encoded the documents."""

    @property
    def has_encoder(self) -> bool:
        """False if the documents brought their embeddings: then queries must bring theirs."""
        return bool(self.encoder_spec["kind"] != "precomputed")

    @property
    def encoder(self) -> Encoder:
        """The encoder that the documents were encoded with, loaded when it is first needed."""
        with self._encoder_lock:  # loaded once, by the first thread that needs it
            if self._encoder is None:
                spec = self.encoder_spec
                if spec["kind"] not in LOADED_BY_NAME:
                    raise SecateursError(
                        f"{self.path} was built with {_origin(spec)}, which cannot be loaded by name: "
                        f"open it with {type(self).__name__}(path, encoder=...), or search with an EncodedText"
                    )
                encoder = load_recorded(spec)
                self._check_encoder(encoder)
                self._encoder = encoder
            return self._encoder

    def use_encoder(self, encoder: Encoder) -> None:
        """Use an encoder that is loaded already. It must have the fingerprint of the documents' encoder."""
        self._check_encoder(encoder)
        self._encoder = encoder

    def encode_query(self, query: str | EncodedText) -> EncodedText:
        if isinstance(query, EncodedText):
            encoded = query
        elif isinstance(query, str):
            check_query_text(query)
            encoded = replace(self.encoder.encode_query(query), text=query)
        else:
            raise UsageError(f"a query is a text or an EncodedText, not {type(query).__name__}")
        if len(encoded) == 0:
            raise UsageError("the query is empty: it has no embeddings")
        if self.dim and encoded.embeddings.shape[1] != self.dim:
            raise UsageError(
                f"the query's embeddings have {encoded.embeddings.shape[1]} dimensions, those of the index {self.dim}"
            )
        return encoded

    def _encode_queries(self, queries: Iterable[str | EncodedText] | None) -> list[EncodedText] | None:
        """For `calibrate`; None stays None."""
        if queries is None:
            return None
        check_several(queries, "calibrate takes several queries, such as a list of texts")
        encoded = [self.encode_query(query) for query in queries]
        if not encoded:
            raise UsageError("there are no queries to calibrate with")
        return encoded

    def token_text(self, token_id: int) -> str:
        """The wordpiece of a token id, or "#" and its number if the index has no encoder."""
        if self._encoder is None and not self.has_encoder:
            return f"#{token_id}"
        return self.encoder.token_text(token_id)

    def load(self, query: object = None) -> float:
        """Load what a search for this query needs once per process: the encoder (for a text), and the kernels.

        Returns the milliseconds that it took.
        """
        started = perf_counter()
        if isinstance(query, str) and self._encoder is None and self.has_encoder:
            _ = self.encoder
        self._compile()
        return (perf_counter() - started) * 1000

    @abstractmethod
    def _compile(self) -> None:
        """Compile the kernels of a search, if this process has not compiled them."""

    def _check_encoder(self, encoder: Encoder) -> None:
        stored = self.encoder_spec
        if not self.has_encoder:
            if encoder.dim != self.dim:
                raise EncoderMismatchError(
                    f"{self.path} holds {self.dim}-dimensional embeddings, this encoder makes {encoder.dim}"
                )
        elif encoder.spec["fingerprint"] != stored["fingerprint"]:
            raise EncoderMismatchError(
                f"{self.path} was built with {stored['model']!r} ({stored['fingerprint']}), and this encoder is "
                f"{encoder.spec['model']!r} ({encoder.spec['fingerprint']}): their embeddings do not compare. "
                "Open the index with the encoder that built it, or index the documents again"
            )


def _origin(spec: Mapping[str, Any]) -> str:
    return "embeddings and no encoder" if spec["kind"] == "precomputed" else f"an encoder of kind {spec['kind']!r}"


def check_several(queries: object, otherwise: str) -> None:
    if isinstance(queries, str | bytes | EncodedText) or not isinstance(queries, Iterable):
        raise UsageError(otherwise)

"""What an index needs an encoder for: its queries, and the wordpieces behind token ids."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from .encoders import Encoder, load_encoder
from .errors import EncoderMismatchError, SecateursError, UsageError
from .records import EncodedText


class EncodesQueries(ABC):
    """Loads the encoder that the documents were encoded with, when it is first needed, or takes one that is given."""

    def __init__(self, path: Path, encoder: Encoder | None) -> None:
        self.path = path
        self._lock = Lock()
        self._encoder: Encoder | None = None
        if encoder is not None:
            self.use_encoder(encoder)

    def use_encoder(self, encoder: Encoder) -> None:
        """One that is loaded already, in the place of another copy. It must be the one the documents came from."""
        self._check_encoder(encoder)
        self._encoder = encoder

    @property
    @abstractmethod
    def encoder_spec(self) -> Mapping[str, Any]:
        """What the encoder of the documents said of itself."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimensions of an embedding; 0 if there is none yet."""

    @property
    def has_encoder(self) -> bool:
        """False where the documents brought their embeddings, and queries must too."""
        return bool(self.encoder_spec["kind"] != "precomputed")

    @property
    def encoder(self) -> Encoder:
        with self._lock:  # loaded once, however many threads come for it
            if self._encoder is None:
                spec = self.encoder_spec
                if spec["kind"] not in ("onnx", "st"):
                    raise SecateursError(
                        f"{self.path} was built with {_origin(spec)}, which cannot be loaded by name: "
                        f"open it with {type(self).__name__}(path, encoder=...), or search with an EncodedText"
                    )
                encoder = load_encoder(spec["model"], spec["kind"])
                self._check_encoder(encoder)
                self._encoder = encoder
            return self._encoder

    def encode_query(self, query: str | EncodedText) -> EncodedText:
        if isinstance(query, EncodedText):
            encoded = query
        else:
            try:
                query.encode("utf-8")
            except UnicodeEncodeError as error:
                raise UsageError(f"the query is not valid Unicode ({error.reason})") from error
            encoded = self.encoder.encode_query(query)
        if self.dim and encoded.embeddings.shape[1] != self.dim:
            raise UsageError(
                f"the query's embeddings have {encoded.embeddings.shape[1]} dimensions, those of the index {self.dim}"
            )
        return encoded

    def token_text(self, token_id: int) -> str:
        """The wordpiece of a token id, or its number where the index has no encoder."""
        if self._encoder is None and not self.has_encoder:
            return f"#{token_id}"
        return self.encoder.token_text(token_id)

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

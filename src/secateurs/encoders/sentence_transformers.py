"""Any multi-vector model of sentence-transformers: ColBERT and PyLate checkpoints, by hub name or folder.

The model brings its own prompts, query expansion, length limits and skip list; token ids and kinds are read off the
features that it computes. Needs torch:  pip install "secateurs[st]".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, require
from ..records import EncodedText, TokenKind
from .vocabulary import fingerprint

_READ_AHEAD = 256  # texts sorted by length among themselves, so that a batch holds texts of about one length
_BATCH = 16


class SentenceTransformersEncoder:
    def __init__(self, model: str | Any, name: str | None = None, revision: str | None = None) -> None:
        """`model` is a folder, a hub name, or a loaded MultiVectorEncoder (then `name` says how to load it again).

        `revision` is the commit of a hub model; without one it is the newest, and the spec says which that was.
        """
        library = require("sentence_transformers", "st")
        if isinstance(model, str):
            name = str(Path(model).resolve()) if Path(model).is_dir() else model
            try:
                model = library.MultiVectorEncoder(name, revision=revision)
            except (OSError, ValueError) as error:
                raise SecateursError(f"sentence-transformers cannot load {name!r}: {error}") from error
        self._model = model
        self._revision = revision or _commit_of(model)
        self._lock = Lock()
        self._name = name or "in memory"
        self._tokenizer: Any = model.tokenizer
        self._skipped = _skipped_ids(model)

    @property
    def dim(self) -> int:
        return int(self._model.get_embedding_dimension())

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        """The fingerprint covers the weights and everything that shapes the input."""
        first = self._model[0]
        shape = [
            self._model.prompts,
            getattr(first, "query_expansion", None),
            getattr(first, "query_length", None),
            getattr(first, "document_length", None),
            sorted(self._skipped),
        ]
        digest = hashlib.sha256(json.dumps(shape, sort_keys=True, default=str).encode())
        for name, tensor in sorted(self._model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(require("torch", "st").uint8).numpy())
        spec = {"kind": "st", "model": self._name, "fingerprint": digest.hexdigest()[:16]}
        return spec if self._revision is None else spec | {"revision": self._revision}

    def encode_query(self, text: str) -> EncodedText:
        with self._lock:  # every call changes the tokenizer's settings, so two threads must not call at once
            features = self._model.encode_query([text], output_value=None, show_progress_bar=False)[0]
            return self._to_encoded(text, features, "query")

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        remaining = iter(texts)
        while chunk := list(islice(remaining, _READ_AHEAD)):
            with self._lock:  # released before the chunk is yielded: the caller may search meanwhile
                features = self._model.encode_document(
                    chunk, output_value=None, batch_size=_BATCH, show_progress_bar=False
                )
                encoded = [self._to_encoded(*pair, "document") for pair in zip(chunk, features, strict=True)]
            yield from encoded

    def token_text(self, token_id: int) -> str:
        return str(self._tokenizer.convert_ids_to_tokens(token_id))

    @cached_property
    def vocabulary(self) -> str:
        return fingerprint(self._tokenizer.get_vocab())

    def word_ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        with self._lock:
            pieces = self._tokenizer(list(texts), add_special_tokens=False, truncation=False, verbose=False)
        ids = np.fromiter(chain.from_iterable(pieces["input_ids"]), dtype=np.int32)
        return ids[~np.isin(ids, list(self._skipped))]  # (wordpieces,)

    def _to_encoded(self, text: str, features: Mapping[str, Any], task: str) -> EncodedText:
        embeddings = features["token_embeddings"].float().cpu().numpy()
        ids = features["input_ids"].cpu().numpy()
        if len(embeddings) != len(ids):
            raise SecateursError(
                "this model pools its tokens, so its embeddings have no token ids to rank by: "
                "index them as Document(..., encoded=...) with ids of your own"
            )
        scored = features["attention_mask"].cpu().numpy().astype(bool)
        expansion = features.get("query_expansion_positions")
        masks = np.zeros(len(ids), dtype=bool) if expansion is None else expansion.cpu().numpy().astype(bool)
        kinds = self._kinds(ids, masks, task)
        pieces = len(self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])
        kept = int((scored & np.isin(kinds, (TokenKind.WORD, TokenKind.PUNCTUATION))).sum())
        dropped = int((~scored & np.isin(ids, list(self._skipped))).sum())
        return EncodedText(
            embeddings[scored], ids[scored].astype(np.int32), kinds[scored], max(0, pieces - kept - dropped)
        )

    def _kinds(self, ids: np.ndarray[Any, Any], masks: np.ndarray[Any, Any], task: str) -> np.ndarray[Any, Any]:
        tokenizer = self._tokenizer
        kinds = np.full(len(ids), TokenKind.WORD, dtype=np.uint8)
        kinds[np.isin(ids, list(self._skipped))] = TokenKind.PUNCTUATION
        specials = {
            TokenKind.SEP: (tokenizer.sep_token_id, tokenizer.eos_token_id),
            TokenKind.CLS: (tokenizer.cls_token_id, tokenizer.bos_token_id),
        }
        for kind, named in specials.items():
            kinds[np.isin(ids, [token_id for token_id in named if token_id is not None])] = kind
        prompt = self._model.prompts.get(task) or ""
        marker = tokenizer(prompt, add_special_tokens=False)["input_ids"] if prompt else []
        start = int(len(ids) > 0 and kinds[0] == TokenKind.CLS)
        if marker and ids[start : start + len(marker)].tolist() == list(marker):
            kinds[start : start + len(marker)] = TokenKind.MARKER
        kinds[masks] = TokenKind.MASK
        return kinds


def _commit_of(model: Any) -> str | None:
    """The hub's commit that transformers noted when it loaded the weights; None for a folder."""
    commit = getattr(getattr(getattr(model[0], "auto_model", None), "config", None), "_commit_hash", None)
    return commit if isinstance(commit, str) else None


def _skipped_ids(model: Any) -> set[int]:
    """The token ids that the model's own skip list drops from documents."""
    skipped: set[int] = set()
    for module in model:
        words = getattr(module, "skiplist_words", None) or []
        skipped.update(int(token) for token in model.tokenizer.convert_tokens_to_ids(list(words)))
    skipped.discard(model.tokenizer.unk_token_id)
    return skipped

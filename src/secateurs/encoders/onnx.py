"""ColBERT from an ONNX file: no torch.

A query is   [CLS] [Q] wordpieces [SEP] [MASK] [MASK] ...   padded with MASKs up to `query_length`; the MASKs are
embedded and scored but not attended to. They are nearly alike: with an `expansion` only so many of them are embedded,
the first, the last, and others between them, with the weight of all. A query with more wordpieces than `query_length`
is not cut: it keeps every piece and gets no MASKs, up to `query_limit` positions.

A document is   [CLS] [D] wordpieces [SEP]   with at most `document_limit` positions, less the punctuation. What a limit
cuts is counted in `EncodedText.cut`. With an `overlap` nothing is cut: a longer document is encoded in windows, each
framed like a document (windows.py).

What the network makes of a text does not depend on other texts. The kernels of this package round the activations of
each token by itself. onnxruntime rounds those of all texts that it is given at once by the same scale, so that it is
given one at a time.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..errors import SecateursError, require
from ..records import EncodedText, TokenKind
from ..threads import in_order, usable_cores
from .bert import Input
from .built_in import LAYERS, built_in_settings
from .model_folder import (
    SETTINGS_FILE,
    find_file,
    hub_folder,
    model_files,
    read_projection,
    read_settings,
    sha256,
    wheel_folder,
)
from .networks import KERNELS_ARE_FAST, load_network
from .onnx_settings import OnnxSettings, check_built_in, overridden, recorded
from .protocol import DEFAULT_MODEL
from .vocabulary import fingerprint
from .windows import join, windows

_TOGETHER = 128  # positions that go through the network at once, or more, if windows are short
_AHEAD = 3  # such groups waiting per thread
# Not in the fingerprint: settings that change no embedding of a document and no label, or not with these values.
_NOT_IN_FINGERPRINT = ("expansion", "merge", "relevance", "model_file")
_NOT_IN_FINGERPRINT_IF = {"summary": None, "overlap": None, "lower_case": False}


@dataclass(frozen=True, slots=True)
class _Positions:
    """A tokenised text: what goes into the network, and what each position is."""

    input: Input
    kinds: NDArray[np.uint8]
    cut: int = 0
    weights: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of a document, or all of it, as it goes into the network."""

    positions: _Positions
    stored: NDArray[np.bool_]  # (positions,): whether the document stores it
    pieces: NDArray[np.int64]  # (positions,): the wordpiece of the text; -1 for special tokens
    is_last: bool


class OnnxEncoder:
    """Text to L2-normalised embeddings with an ONNX backbone and one linear layer."""

    def __init__(
        self,
        folder: Path,
        model: str,
        settings: OnnxSettings | None = None,
        projection: NDArray[np.float32] | None = None,
        workers: int | None = None,
        revision: str | None = None,
        overrides: Mapping[str, Any] | None = None,
        kernels: bool = False,
    ) -> None:
        """`projection` replaces the folder's linear layer; `workers` is the number of threads that encode documents.

        `revision`, the commit of a hub model, and `overrides`, settings that the user has chosen, are noted in the
        spec, to load the same encoder again. With `kernels` the network is computed by this package instead of
        onnxruntime: for an int8 BERT only.
        """
        tokenizers = require("tokenizers", "model")
        tokenizer_file = find_file(folder, "tokenizer.json")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the library raises a bare Exception
            raise SecateursError(f"{tokenizer_file} is not a tokenizer: {error}") from error
        self.settings = settings or overridden(read_settings(folder, self._tokenizer), overrides or {})
        self.workers = workers or usable_cores()
        self.merge = self.settings.merge
        model_file, *weights = model_files(folder, self.settings.model_file)
        self._projection = read_projection(folder, self.settings) if projection is None else projection
        self._packed: Any = None
        if self._projection is not None:  # (width, dim), packed row by row of its transpose
            self._packed = numkong.dots_pack(np.ascontiguousarray(self._projection.T, dtype=np.float32))
        self._model, self._revision, self._overrides = model, revision, recorded(overrides or {})
        self._checksums = {path.name: sha256(path) for path in (model_file, *weights, tokenizer_file)}

        self._network = load_network(model_file, kernels)
        width, layer = self._network.width, self._projection
        if layer is not None and (layer.ndim != 2 or (width is not None and layer.shape[0] != width)):
            raise SecateursError(
                f"the linear layer of {folder} has shape {layer.shape}, and the model's states have {width} "
                "dimensions: it must be (width, dim)"
            )

        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True  # "[MASK]" in a text is text
        self._ids: dict[str, int] = {}
        for name in ("mask", "query_marker", "document_marker"):
            token = getattr(self.settings, name)
            token_id = self._tokenizer.token_to_id(token) if isinstance(token, str) else token
            if token is None:
                continue
            if token_id is None or self._tokenizer.id_to_token(token_id) is None:
                raise SecateursError(
                    f"{tokenizer_file} has no token {token!r}: "
                    f'name the right one as "{name}" in {folder / SETTINGS_FILE}'
                )
            self._ids[name] = token_id
        self._head, self._tail = _special_tokens(self._tokenizer)
        skipped = (self._tokenizer.token_to_id(word) for word in self.settings.skip)
        self._skipped = np.array(sorted(token for token in skipped if token is not None), dtype=np.int64)

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        settings: OnnxSettings | Mapping[str, Any] | None = None,
        projection: NDArray[np.float32] | None = None,
        workers: int | None = None,
        revision: str | None = None,
        kernels: bool = KERNELS_ARE_FAST,
    ) -> OnnxEncoder:
        """The built-in model, a folder, or a name on the Hugging Face hub (fetched once, then cached).

        `settings` by name replace settings of the model, and the spec has them; OnnxSettings replace all of them, and
        an index does not remember these. `revision` is the commit of a hub model; without one it is the newest, and the
        spec says which that was. `kernels` is for the built-in model: False computes it by onnxruntime.
        """
        whole = settings if isinstance(settings, OnnxSettings) else None
        overrides = {} if isinstance(settings, OnnxSettings) else dict(settings or {})
        if model in LAYERS:
            folder = wheel_folder(model)
            if whole is None:
                whole = overridden(built_in_settings(model, is_our_layer=projection is None), overrides)
                check_built_in(whole)
            projection = LAYERS[model].projection() if projection is None else projection
            return cls(folder, model, whole, projection, workers, revision, overrides, kernels)
        if Path(model).is_dir():
            folder = Path(model).resolve()
            model = str(folder)
        else:
            folder, revision = hub_folder(model, revision, whole.model_file if whole else overrides.get("model_file"))
        return cls(folder, model, whole, projection, workers, revision, overrides)

    @property
    def dim(self) -> int:
        if self._projection is not None:
            return int(self._projection.shape[1])
        return self._network.width or int(self.encode_document("").embeddings.shape[1])

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        settings = {
            name: value
            for name, value in asdict(self.settings).items()
            if name not in _NOT_IN_FINGERPRINT
            and not (name in _NOT_IN_FINGERPRINT_IF and value == _NOT_IN_FINGERPRINT_IF[name])
        }
        settings["cls"], settings["sep"] = (" ".join(map(self.token_text, ids)) for ids in (self._head, self._tail))
        digest = hashlib.sha256(json.dumps([self._checksums, settings], sort_keys=True).encode())
        if self._projection is not None:
            digest.update(np.ascontiguousarray(self._projection, dtype="<f4").tobytes())
        spec: dict[str, Any] = {"kind": "onnx", "model": self._model, "fingerprint": digest.hexdigest()[:16]}
        if self.settings.relevance is not None:
            spec["relevance"] = list(self.settings.relevance)
        if self._overrides:
            spec["settings"] = self._overrides
        return spec if self._revision is None else spec | {"revision": self._revision}

    def encode_query(self, text: str) -> EncodedText:
        positions = self._query_positions(text)
        (embeddings,) = self._embed([positions])
        token_ids = positions.input.token_ids.astype(np.int32)
        return EncodedText(embeddings, token_ids, positions.kinds, positions.cut, positions.weights)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        """The cores work on different windows: a long document keeps all of them busy, and little waits in memory."""
        framed = (window for text in texts for window in self._windows(self._wordpieces(text).ids))
        groups = ((group,) for group in self._groups(framed))
        with closing(in_order(self._encode_windows, groups, self.workers, ahead=_AHEAD)) as encoded:
            yield from join(chain.from_iterable(encoded))

    def encode_document(self, text: str) -> EncodedText:
        groups = self._groups(self._windows(self._wordpieces(text).ids))
        (document,) = join(chain.from_iterable(map(self._encode_windows, groups)))
        return document

    def token_text(self, token_id: int) -> str:
        return self._tokenizer.id_to_token(token_id) or f"#{token_id}"

    @cached_property
    def vocabulary(self) -> str:
        return fingerprint(self._tokenizer.get_vocab())

    def word_ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        texts = [self._prepared(text) for text in texts]
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)  # on all cores
        ids = np.fromiter((token for encoding in encodings for token in encoding.ids), dtype=np.int32)
        return ids[~np.isin(ids, self._skipped)]  # (wordpieces,)

    def document_spans(self, text: str) -> tuple[NDArray[np.int32], list[tuple[int, int] | None]]:
        """The token ids that a document stores, and where in the text, in characters, each is; None for specials."""
        encoding = self._wordpieces(text)
        offsets, token_ids = self._piece_spans(text, encoding.offsets), []
        spans: list[tuple[int, int] | None] = []
        for window in self._windows(encoding.ids):
            token_ids.append(window.positions.input.token_ids[window.stored])
            spans += [offsets[piece] if piece >= 0 else None for piece in window.pieces[window.stored]]
        return np.concatenate(token_ids).astype(np.int32), spans

    def _query_positions(self, text: str) -> _Positions:
        settings = self.settings
        pieces = self._wordpieces(text).ids
        room = max(0, settings.query_limit - self._frame_length("query_marker"))
        framed = self._framed(pieces[:room], "query_marker")
        length, cut = len(framed.kinds), max(0, len(pieces) - room)
        masks = max(0, settings.query_length - length)
        if not masks:
            return _Positions(framed.input, framed.kinds, cut)
        chosen = embedded_masks(masks, settings.expansion)
        places = length + chosen
        weights = None
        if len(chosen) < masks:
            weights = np.ones(length + len(chosen), dtype=np.float32)
            weights[length:] = masks / max(len(chosen), 1)
        return _Positions(
            Input(
                np.concatenate([framed.input.token_ids, np.full(len(places), self._ids["mask"])]),
                length + masks if settings.attend_to_masks else length,
                np.concatenate([np.arange(length), places]),
            ),
            np.concatenate([framed.kinds, np.full(len(places), TokenKind.MASK, dtype=np.uint8)]),
            cut,
            weights,
        )

    def _windows(self, ids: list[int]) -> Iterator[_Window]:
        """The document as the network reads it; in several parts if it is long and the settings have an overlap."""
        room = max(0, self.settings.document_limit - self._frame_length("document_marker"))
        planned = windows(len(ids), room, self.settings.overlap)
        for window in planned:
            stop_if_cancelled()
            is_last = window is planned[-1]
            cut = len(ids) - window.last if is_last else 0
            framed = self._framed(ids[window.begin : window.end], "document_marker", is_first=window.begin == 0)
            is_piece = (framed.kinds == TokenKind.WORD) | (framed.kinds == TokenKind.PUNCTUATION)
            pieces = np.where(is_piece, window.begin + np.cumsum(is_piece) - 1, -1)
            is_inside = (pieces >= window.first) & (pieces < window.last)
            stored = ~is_piece | (is_inside & (framed.kinds != TokenKind.PUNCTUATION))
            yield _Window(_Positions(framed.input, framed.kinds, cut), stored, pieces, is_last)

    def _groups(self, framed: Iterator[_Window]) -> Iterator[list[_Window]]:
        """Short windows go through the network together: that is faster, and the weights are read once for all."""
        group: list[_Window] = []
        positions = 0
        for window in framed:
            group.append(window)
            positions += len(window.stored)
            if positions >= _TOGETHER:
                yield group
                group, positions = [], 0
        if group:
            yield group

    def _encode_windows(self, group: list[_Window]) -> list[tuple[EncodedText, bool]]:
        """What the documents store of the windows, and whether each is the last of its document."""
        encoded = []
        for window, embeddings in zip(group, self._embed([window.positions for window in group]), strict=True):
            positions, stored = window.positions, window.stored
            token_ids, kinds = positions.input.token_ids[stored].astype(np.int32), positions.kinds[stored]
            encoded.append((EncodedText(embeddings[stored], token_ids, kinds, positions.cut), window.is_last))
        return encoded

    def _wordpieces(self, text: str) -> Any:
        return self._tokenizer.encode(self._prepared(text), add_special_tokens=False)

    def _framed(self, pieces: list[int], marker: str, is_first: bool = True) -> _Positions:
        """[CLS] [marker] wordpieces [SEP]. A text has one summary: in its first window."""
        words = np.where(np.isin(pieces, self._skipped), TokenKind.PUNCTUATION, TokenKind.WORD).tolist()
        token_ids, kinds = [*self._head, *pieces, *self._tail], [TokenKind.CLS] * len(self._head)
        kinds += [*words, *[TokenKind.SEP] * len(self._tail)]
        if marker in self._ids:  # second also where the tokenizer puts nothing before a text: so PyLate trains
            token_ids.insert(1, self._ids[marker])
            kinds.insert(1, TokenKind.MARKER)
        labels = np.array(kinds, dtype=np.uint8)
        if self.settings.summary is not None and is_first:
            labels[labels == TokenKind[self.settings.summary.upper()]] = TokenKind.SUMMARY
        return _Positions(Input(np.array(token_ids, dtype=np.int64), len(token_ids)), labels)

    def _frame_length(self, marker: str) -> int:
        return len(self._head) + len(self._tail) + (marker in self._ids)

    def _prepared(self, text: str) -> str:
        """The text as the tokenizer gets it: a space at its start would change the first token of a byte-level one."""
        return text.strip().lower() if self.settings.lower_case else text.strip()

    def _piece_spans(self, text: str, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Where in the text, in characters, each wordpiece stands; given is where in the prepared text."""
        before = len(text) - len(text.lstrip())
        if not self.settings.lower_case:
            return [(start + before, end + before) for start, end in spans] if before else spans
        # Lower case may be longer, as of İ: `origin` is the character of the text that each prepared one comes from.
        origin = [number for number, character in enumerate(text.strip(), before) for _ in character.lower()]
        return [(origin[start], origin[end - 1] + 1) for start, end in spans]

    def _embed(self, texts: Sequence[_Positions]) -> list[NDArray[np.float32]]:
        """(positions, dim) for each text."""
        embedded = []
        for states in self._network.states([positions.input for positions in texts]):
            # Not `states @ projection`: BLAS would start threads of its own in every worker, at half the throughput.
            projected = states if self._packed is None else np.asarray(numkong.dots_packed(states, self._packed))
            norms = np.linalg.norm(projected, axis=1, keepdims=True)
            embedded.append((projected / np.maximum(norms, 1e-12)).astype(np.float32))
        return embedded


def embedded_masks(masks: int, expansion: int | str) -> NDArray[np.int64]:
    """Which of a query's MASKs are embedded: all, or so many at even distances from the first to the last."""
    if isinstance(expansion, str) or expansion >= masks:
        return np.arange(masks)
    return np.linspace(0, masks - 1, expansion).round().astype(np.int64)


def _special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before a text and after it."""
    encoding = tokenizer.encode("a")
    of_text = [position for position, special in enumerate(encoding.special_tokens_mask) if not special]
    first, last = (of_text[0], of_text[-1]) if of_text else (len(encoding.ids), len(encoding.ids))
    return encoding.ids[:first], encoding.ids[last + 1 :]

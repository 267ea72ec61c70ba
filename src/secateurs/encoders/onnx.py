"""ColBERT on onnxruntime: no torch, no batches.

A query is   [CLS] [Q] wordpieces [SEP] [MASK] [MASK] ...   padded with MASKs up to `query_length`; the MASKs are
embedded and scored but not attended to. A query with more wordpieces than that is not cut: it keeps every piece and
gets no MASKs, up to `query_limit` positions. A document is   [CLS] [D] wordpieces [SEP]   with at most
`document_limit` positions, less the punctuation. What a limit cuts is counted in `EncodedText.cut`.

Every text runs through the network by itself. The int8 backbone scales its activations over the whole batch, so in a
batch a document's embeddings would depend on its neighbours (cosine 0.998 on average, 0.84 at worst, measured by
benchmarks/encoding.py). By itself, its embeddings are a function of the text, there is no padding, and it costs little
speed, because the cores work on different documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, require
from ..records import EncodedText, TokenKind
from ..threads import in_order, usable_cores
from .model_folder import (
    SETTINGS_FILE,
    OnnxSettings,
    find_file,
    hub_folder,
    model_files,
    read_projection,
    read_settings,
    sha256,
    wheel_folder,
)
from .protocol import DEFAULT_MODEL
from .vocabulary import fingerprint

PROJECTION = Path(__file__).parent / "colbert_small_projection.npy"  # (384, dim) float32, see docs/model-card.md
MERGE = 0.95  # of the built-in model: measured by benchmarks/merging.py
RELEVANCE = (0.9022, 106.2)  # of the built-in model: fitted by benchmarks/relevance.py


@dataclass(frozen=True, slots=True)
class _Positions:
    """A tokenised text: what goes into the network, and what each position is."""

    token_ids: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    attended: NDArray[np.int64]
    cut: int


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
    ) -> None:
        """`projection` replaces the folder's linear layer; `workers` is the number of documents encoded at once.

        `revision` is the commit of a hub model, noted in the spec.
        """
        onnxruntime = require("onnxruntime", "model")
        tokenizers = require("tokenizers", "model")
        tokenizer_file = find_file(folder, "tokenizer.json")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # the library raises a bare Exception
            raise SecateursError(f"{tokenizer_file} is not a tokenizer: {error}") from error
        self.settings = settings or read_settings(folder, self._tokenizer)
        self.workers = workers or usable_cores()
        self.merge = self.settings.merge
        model_file, *weights = model_files(folder, self.settings.model_file)
        self._projection = read_projection(folder, self.settings) if projection is None else projection
        self._packed: Any = None
        if self._projection is not None:  # (width, dim), packed row by row of its transpose
            self._packed = numkong.dots_pack(np.ascontiguousarray(self._projection.T, dtype=np.float32))
        self._model, self._revision = model, revision
        self._checksums = {path.name: sha256(path) for path in (model_file, *weights, tokenizer_file)}

        options = onnxruntime.SessionOptions()
        # One thread per text: a query that waits for a second, busy core is slower, and bulk encoding keeps
        # the cores busy with different documents instead.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(model_file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library raises types of its own
            raise SecateursError(f"{folder} has no model that can be loaded: {error}") from error
        width, layer = self._session.get_outputs()[0].shape[-1], self._projection
        if layer is not None and (layer.ndim != 2 or (isinstance(width, int) and layer.shape[0] != width)):
            raise SecateursError(
                f"the linear layer of {folder} has shape {layer.shape}, and the model's states have {width} "
                "dimensions: it must be (width, dim)"
            )
        self._inputs = {node.name for node in self._session.get_inputs()}
        self._output = self._session.get_outputs()[0].name

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
        settings: OnnxSettings | None = None,
        projection: NDArray[np.float32] | None = None,
        workers: int | None = None,
        revision: str | None = None,
    ) -> OnnxEncoder:
        """The built-in model, a folder, or a name on the Hugging Face hub (fetched once, then cached).

        `revision` is the commit of a hub model; without one it is the newest, and the spec says which that was.
        """
        if model == DEFAULT_MODEL:
            folder = wheel_folder()
            if settings is None:
                is_ours = projection is None  # another linear layer makes other similarities
                settings = OnnxSettings(
                    summary="marker", merge=MERGE if is_ours else None, relevance=RELEVANCE if is_ours else None
                )
            projection = np.load(PROJECTION) if projection is None else projection
        elif Path(model).is_dir():
            folder = Path(model).resolve()
            model = str(folder)
        else:
            folder, revision = hub_folder(model, revision, settings.model_file if settings else None)
        return cls(folder, model, settings, projection, workers, revision)

    @property
    def dim(self) -> int:
        if self._projection is not None:
            return int(self._projection.shape[1])
        width = self._session.get_outputs()[0].shape[-1]
        return width if isinstance(width, int) else int(self.encode_document("").embeddings.shape[1])

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        settings = asdict(self.settings)
        if self.settings.summary is None:  # as if there were no such setting: it changes no embedding and no label
            del settings["summary"]
        del settings["merge"], settings["relevance"]  # nor do these
        del settings["model_file"]  # its name and content are among the checksums
        if not self.settings.lower_case:
            del settings["lower_case"]
        settings["cls"], settings["sep"] = (" ".join(map(self.token_text, ids)) for ids in (self._head, self._tail))
        digest = hashlib.sha256(json.dumps([self._checksums, settings], sort_keys=True).encode())
        if self._projection is not None:
            digest.update(np.ascontiguousarray(self._projection, dtype="<f4").tobytes())
        spec: dict[str, Any] = {"kind": "onnx", "model": self._model, "fingerprint": digest.hexdigest()[:16]}
        if self.settings.relevance is not None:
            spec["relevance"] = list(self.settings.relevance)
        return spec if self._revision is None else spec | {"revision": self._revision}

    def encode_query(self, text: str) -> EncodedText:
        positions = self._query_positions(text)
        return EncodedText(self._embed(positions), positions.token_ids.astype(np.int32), positions.kinds, positions.cut)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        return in_order(self.encode_document, ((text,) for text in texts), self.workers)

    def encode_document(self, text: str) -> EncodedText:
        positions = self._document_positions(text)
        stored = positions.kinds != TokenKind.PUNCTUATION
        return EncodedText(
            self._embed(positions)[stored],
            positions.token_ids[stored].astype(np.int32),
            positions.kinds[stored],
            positions.cut,
        )

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
        positions = self._document_positions(text)
        pieces = self._piece_spans(text)[: len(positions.kinds) - self._frame_length("document_marker")]
        spans = self._framed([None] * len(self._head), pieces, [None] * len(self._tail), "document_marker", None)
        stored = np.flatnonzero(positions.kinds != TokenKind.PUNCTUATION)
        return positions.token_ids[stored].astype(np.int32), [spans[position] for position in stored]

    def _query_positions(self, text: str) -> _Positions:
        settings = self.settings
        framed = self._frame(text, "query_marker", settings.query_limit)
        masks = max(0, settings.query_length - len(framed.token_ids))
        return _Positions(
            np.concatenate([framed.token_ids, np.full(masks, self._ids["mask"])]),
            np.concatenate([framed.kinds, np.full(masks, TokenKind.MASK, dtype=np.uint8)]),
            np.concatenate([framed.attended, np.full(masks, int(settings.attend_to_masks))]),
            framed.cut,
        )

    def _document_positions(self, text: str) -> _Positions:
        return self._frame(text, "document_marker", self.settings.document_limit)

    def _frame(self, text: str, marker: str, limit: int) -> _Positions:
        """[CLS] [marker] wordpieces [SEP], at most `limit` positions."""
        pieces = self._tokenizer.encode(self._prepared(text), add_special_tokens=False).ids
        room = max(0, limit - self._frame_length(marker))
        token_ids = np.array(
            self._framed(self._head, pieces[:room], self._tail, marker, self._ids.get(marker)), dtype=np.int64
        )
        words = np.where(np.isin(pieces[:room], self._skipped), TokenKind.PUNCTUATION, TokenKind.WORD).tolist()
        cls, sep = [TokenKind.CLS] * len(self._head), [TokenKind.SEP] * len(self._tail)
        kinds = np.array(self._framed(cls, words, sep, marker, TokenKind.MARKER), dtype=np.uint8)
        if self.settings.summary is not None:
            kinds[kinds == TokenKind[self.settings.summary.upper()]] = TokenKind.SUMMARY
        return _Positions(token_ids, kinds, np.ones(len(token_ids), dtype=np.int64), max(0, len(pieces) - room))

    def _framed(self, head: list[Any], pieces: list[Any], tail: list[Any], marker: str, marked: Any) -> list[Any]:
        """What is before, of and behind a text, in order, with `marked` second if the model has that marker."""
        framed = [*head, *pieces, *tail]
        if marker in self._ids:
            framed.insert(1, marked)  # also where the tokenizer puts nothing before a text: so PyLate trains
        return framed

    def _frame_length(self, marker: str) -> int:
        return len(self._head) + len(self._tail) + (marker in self._ids)

    def _prepared(self, text: str) -> str:
        """The text as the tokenizer gets it: a space at its start would change the first token of a byte-level one."""
        return text.strip().lower() if self.settings.lower_case else text.strip()

    def _piece_spans(self, text: str) -> list[tuple[int, int]]:
        """Where in the text, in characters, each wordpiece stands."""
        spans: list[tuple[int, int]] = self._tokenizer.encode(self._prepared(text), add_special_tokens=False).offsets
        before = len(text) - len(text.lstrip())
        if not self.settings.lower_case:
            return [(start + before, end + before) for start, end in spans]
        # Lower case may be longer, as of İ: `origin` is the character of the text that each prepared one comes from.
        origin = [number for number, character in enumerate(text.strip(), before) for _ in character.lower()]
        return [(origin[start], origin[end - 1] + 1) for start, end in spans]

    def _embed(self, positions: _Positions) -> NDArray[np.float32]:
        feed = {
            "input_ids": positions.token_ids[None],
            "attention_mask": positions.attended[None],
            "token_type_ids": np.zeros_like(positions.token_ids)[None],
        }
        feed = {name: array for name, array in feed.items() if name in self._inputs}
        states: NDArray[np.float32] = self._session.run([self._output], feed)[0][0]  # (positions, width)
        # Not `states @ projection`: BLAS would start threads of its own in every worker, and they halve the throughput.
        projected = states if self._packed is None else np.asarray(numkong.dots_packed(states, self._packed))
        norms = np.linalg.norm(projected, axis=1, keepdims=True)
        normalised: NDArray[np.float32] = (projected / np.maximum(norms, 1e-12)).astype(np.float32)
        return normalised  # (positions, dim)


def _special_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The ids that the tokenizer puts before a text and after it."""
    encoding = tokenizer.encode("a")
    of_text = [position for position, special in enumerate(encoding.special_tokens_mask) if not special]
    first, last = (of_text[0], of_text[-1]) if of_text else (len(encoding.ids), len(encoding.ids))
    return encoding.ids[:first], encoding.ids[last + 1 :]

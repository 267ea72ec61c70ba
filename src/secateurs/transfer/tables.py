"""Tables with the embeddings of documents: Parquet, Arrow and Lance.

The embeddings are in a column of EMBEDDINGS_FIELDS, or in the only column of lists of lists of floats. A column of
DOCNO_FIELDS and a column of TEXT_FIELDS may be there (without the first, the number of a row is its docno), and
`token_ids` and `token_kinds` too. The other columns are metadata; bytes are left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..corpus import DOCNO_FIELDS, TEXT_FIELDS
from ..errors import MissingExtraError, SecateursError, UsageError, require
from ..records import Document, EncodedText
from ..storage.origin import Origin
from .exported_table import EXPORTED, read_header

EMBEDDINGS_FIELDS = ("embeddings", "embedding", "vectors", "vector", "matrix")
_ROWS_READ_AT_ONCE = 64


class Table(NamedTuple):
    """A table that is opened for reading."""

    documents: Iterator[Document]
    total: int | None
    origin: Origin | None  # if an index was exported to it


def read_table(path: Path) -> Table:
    """A Parquet file, a folder of them, an Arrow file or a Lance table."""
    pa = require("pyarrow", "lab")
    try:
        if path.name.rstrip("/").endswith(".lance"):
            schema, total, batches = _open_lance(path)
        elif path.suffix in (".arrow", ".feather"):
            schema, total, batches = _open_arrow(pa, path)
        else:
            schema, total, batches = _open_parquet(path)
        origin = read_header(path, schema.metadata)
        columns = _Columns.of(pa, path, schema)
        if origin is not None and not set(schema.names) >= EXPORTED:
            raise SecateursError(
                f"{path} was exported by secateurs, but {', '.join(sorted(EXPORTED - set(schema.names)))} is gone"
            )
    except pa.ArrowInvalid as error:
        raise SecateursError(f"{path} cannot be read as a table ({error})") from error
    return Table(_documents(pa, path, batches, columns, origin is not None), total, origin)


def _open_parquet(path: Path) -> tuple[Any, int | None, Iterator[Any]]:
    parquet = require("pyarrow.parquet", "lab")
    paths = sorted(path.glob("*.parquet")) if path.is_dir() else [path]
    if not paths:
        raise SecateursError(f"{path} has no .parquet files")
    files = [parquet.ParquetFile(file) for file in paths]
    for file, name in zip(files, paths, strict=True):
        if not file.schema_arrow.equals(files[0].schema_arrow):
            raise SecateursError(f"{name} has other columns than {paths[0]}")
    batches = (batch for file in files for batch in file.iter_batches(_ROWS_READ_AT_ONCE))
    return files[0].schema_arrow, sum(file.metadata.num_rows for file in files), batches


def _open_arrow(pa: Any, path: Path) -> tuple[Any, int | None, Iterator[Any]]:
    """A file, or a stream as the datasets library writes it."""
    source = pa.memory_map(str(path))
    try:
        reader = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        stream = pa.ipc.open_stream(source)
        return stream.schema, None, iter(stream)
    batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
    return reader.schema, None, batches


def _open_lance(path: Path) -> tuple[Any, int | None, Iterator[Any]]:
    try:
        import lancedb  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise MissingExtraError("lancedb is not installed: pip install lancedb") from error
    try:
        table = lancedb.connect(str(path.parent)).open_table(path.name.removesuffix(".lance"))
    except (ValueError, RuntimeError, OSError) as error:
        raise SecateursError(f"{path} cannot be opened as a Lance table ({error})") from error
    count = table.count_rows()
    return table.schema, count, iter(table.search().limit(max(count, 1)).to_batches(_ROWS_READ_AT_ONCE))


class _Columns(NamedTuple):
    embeddings: str
    docno: str | None
    text: str | None
    token_ids: str | None
    token_kinds: str | None
    metadata: tuple[str, ...]

    @classmethod
    def of(cls, pa: Any, path: Path, schema: Any) -> _Columns:
        nested = [field.name for field in schema if _is_matrix(pa, field.type)]
        named = [name for name in EMBEDDINGS_FIELDS if name in nested] or (nested if len(nested) == 1 else [])
        if not named:
            what = ", ".join(f"{field.name} ({field.type})" for field in schema)
            raise SecateursError(
                f"{path} needs a column with a list of vectors for each document, called one of "
                f"{', '.join(EMBEDDINGS_FIELDS)}; its columns are: {what}"
            )
        names = set(schema.names)

        def first(candidates: Iterable[str]) -> str | None:
            return next((name for name in candidates if name in names), None)

        used = cls(named[0], first(DOCNO_FIELDS), first(TEXT_FIELDS), first(["token_ids"]), first(["token_kinds"]), ())
        others = [
            field.name
            for field in schema
            if field.name not in used and not pa.types.is_binary(field.type) and not _is_matrix(pa, field.type)
        ]
        return used._replace(metadata=tuple(others))


def _is_matrix(pa: Any, kind: Any) -> bool:
    def is_list(kind: Any) -> bool:
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))

    inner = kind.value_type if is_list(kind) else None
    return inner is not None and is_list(inner) and bool(pa.types.is_floating(inner.value_type))


def _documents(pa: Any, path: Path, batches: Iterator[Any], columns: _Columns, exported: bool) -> Iterator[Document]:
    number = 0
    try:
        for batch in batches:
            for row in range(batch.num_rows):
                try:
                    yield _document(batch, row, number, columns, exported)
                except (UsageError, ValueError, TypeError) as error:
                    raise UsageError(f"{path}, row {number}: {error}") from error
                number += 1
    except (pa.ArrowInvalid, OSError) as error:
        raise SecateursError(f"{path}, after row {number}: cannot be read further ({error})") from error


def _document(batch: Any, row: int, number: int, columns: _Columns, exported: bool) -> Document:
    def value(name: str | None) -> Any:
        return None if name is None else batch.column(name)[row].as_py()

    matrix = _matrix(batch.column(columns.embeddings)[row], columns.embeddings)
    token_ids, token_kinds, cut = _numbers(batch, row, columns.token_ids), _numbers(batch, row, columns.token_kinds), 0
    docno, text = value(columns.docno), value(columns.text)
    if exported:
        metadata, cut = json.loads(value("metadata")), value("cut")
    else:
        metadata = {name: _plain(value(name)) for name in columns.metadata}
        metadata = {name: plain for name, plain in metadata.items() if plain is not None}
    if columns.docno is not None and docno is None:
        raise UsageError(f"{columns.docno} is null: every document needs a docno")
    encoded = encoded_text(matrix, token_ids, token_kinds, cut)
    return Document(str(number if docno is None else docno), text or "", metadata, encoded)


def _matrix(scalar: Any, name: str) -> NDArray[np.float32]:
    """(positions, dim) of a list of vectors."""
    vectors = scalar.values
    if vectors is None:
        raise UsageError(f"{name} is null: give an empty list to a document without embeddings")
    if len(vectors) == 0:
        return np.zeros((0, 0), dtype=np.float32)
    lengths = vectors.value_lengths().to_numpy(zero_copy_only=False) if hasattr(vectors, "value_lengths") else None
    values = vectors.flatten()
    if vectors.null_count or values.null_count or len(values) % len(vectors):
        raise UsageError(f"{name} has nulls, or vectors of different lengths")
    if lengths is not None and (lengths != lengths[0]).any():
        raise UsageError(f"{name} has vectors of different lengths")
    matrix: NDArray[np.float32] = values.to_numpy(zero_copy_only=False).astype(np.float32).reshape(len(vectors), -1)
    return matrix


def _numbers(batch: Any, row: int, name: str | None) -> NDArray[Any] | None:
    """A list of numbers; None if there is no such column, or it is null."""
    values = None if name is None else batch.column(name)[row].values
    return None if values is None else values.to_numpy(zero_copy_only=False)


def encoded_text(matrix: NDArray[Any], token_ids: Any = None, token_kinds: Any = None, cut: int = 0) -> EncodedText:
    """Embeddings that come with or without their tokens. Without token ids, all are words, and the same word."""
    count = len(matrix)
    return EncodedText(
        np.asarray(matrix),
        np.zeros(count, np.int32) if token_ids is None else np.asarray(token_ids, dtype=np.int64),
        np.zeros(count, np.uint8) if token_kinds is None else np.asarray(token_kinds, dtype=np.int64),
        cut,
    )


def _plain(value: Any) -> Any:
    """A value as JSON has it; None if it has none."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value if isinstance(value, str | int | float | bool) else None

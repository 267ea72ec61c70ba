"""PLAID indexes to documents: those of fast-plaid and next-plaid (.npy) and of ColBERTv2 (.pt).

    centroids             (centroids, dim) float16 or float32
    bucket_weights.npy    (2 ** bits,) float: what each code of a residual means. ColBERTv2: buckets.pt, beside cutoffs
    N.codes               (embeddings,) integers, chunk N: the centroid of each embedding
    N.residuals           (embeddings, dim x bits / 8) uint8: a code of `bits` bits for each dimension, its lowest bit
                          first; these bits fill a byte from its highest bit on
    doclens.N.json        how many embeddings each document of the chunk has
    merged_codes.npy      all chunks one after the other, and padding: fast-plaid moves the rows of chunks there when it
    merged_residuals.npy  opens an index. merged_codes.manifest.json says how many rows each chunk has there
    metadata.json         how many chunks there are

    embedding = centroid + bucket weight of each code, scaled to length 1

This is how the three decode; `avg_residual` takes no part. A chunk is mapped (.npy) or read whole (.pt), and decoded
one document at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError
from ..records import Document
from .arrays import Matrices, encoded_matrix, open_npy
from .torch_file import read_torch_file

_CENTROIDS, _WEIGHTS, _BUCKETS, _METADATA = "centroids", "bucket_weights.npy", "buckets.pt", "metadata.json"


def is_plaid(folder: Path) -> bool:
    return any(
        (folder / f"{_CENTROIDS}{ending}").is_file() and (folder / weights).is_file()
        for ending, weights in ((".npy", _WEIGHTS), (".pt", _BUCKETS))
    )


def read_plaid(folder: Path) -> Matrices:
    """The documents of an index, whose docnos are their numbers."""
    if not is_plaid(folder):
        raise SecateursError(
            f"{folder} is not a PLAID index: expected centroids.npy and {_WEIGHTS} (fast-plaid, next-plaid), or "
            f"centroids.pt and {_BUCKETS} (ColBERTv2)"
        )
    codec = _Codec.read(folder)
    metadata = _json(folder / _METADATA)
    chunks = metadata.get("num_chunks") if isinstance(metadata, dict) else None
    if not isinstance(chunks, int) or chunks < 0:
        raise SecateursError(f"{folder / _METADATA} does not say how many chunks there are (num_chunks)")
    rows, documents = [], 0
    for chunk in range(chunks):
        lengths = _lengths(folder, chunk)
        rows.append(int(lengths.sum()))
        documents += len(lengths)
    return Matrices(_documents(folder, codec, rows), documents)


def _documents(folder: Path, codec: _Codec, rows: list[int]) -> Iterator[Document]:
    number = 0
    for chunk in range(len(rows)):
        lengths = _lengths(folder, chunk)
        codes, code_file = _chunk(folder, "codes", chunk, rows)
        residuals, residual_file = _chunk(folder, "residuals", chunk, rows)
        codec.check(codes, code_file, residuals, residual_file, rows[chunk])
        end = 0
        for length in lengths.tolist():
            start, end = end, end + length
            place = f"{code_file}, document {number}"
            matrix = codec.decode(np.asarray(codes[start:end]), np.asarray(residuals[start:end]), place)
            yield Document(str(number), encoded=encoded_matrix(place, matrix))
            number += 1


class _Codec(NamedTuple):
    centroids: NDArray[np.float32]  # (centroids, dim)
    weights: NDArray[np.float32]  # (2 ** bits,)
    bits: int

    @classmethod
    def read(cls, folder: Path) -> _Codec:
        if (folder / _WEIGHTS).is_file():
            centroids_file, weights_file = folder / f"{_CENTROIDS}.npy", folder / _WEIGHTS
            centroids, weights = open_npy(centroids_file), open_npy(weights_file)
        else:
            centroids_file, weights_file = folder / f"{_CENTROIDS}.pt", folder / _BUCKETS
            centroids, buckets = _torch_array(centroids_file), read_torch_file(weights_file)
            if not isinstance(buckets, tuple) or len(buckets) != 2 or not isinstance(buckets[1], np.ndarray):
                raise SecateursError(f"{weights_file} is not the cutoffs and the weights of PLAID's buckets")
            weights = buckets[1]
        if centroids.ndim != 2 or centroids.dtype.kind != "f" or not len(centroids):
            raise SecateursError(f"{centroids_file} has shape {centroids.shape}, not (centroids, dim) of floats")
        bits = len(weights).bit_length() - 1 if weights.ndim == 1 else 0
        if bits not in (1, 2, 4, 8) or len(weights) != 1 << bits or weights.dtype.kind != "f":
            raise SecateursError(f"{weights_file} has shape {weights.shape}, and 2, 4, 16 or 256 weights are expected")
        if centroids.shape[1] * bits % 8:
            raise SecateursError(
                f"{centroids_file}: {centroids.shape[1]} dimensions of {bits} bits fill no whole bytes"
            )
        return cls(centroids.astype(np.float32), weights.astype(np.float32), bits)

    def check(self, codes: NDArray[Any], code_file: Path, residuals: NDArray[Any], file: Path, rows: int) -> None:
        width = self.centroids.shape[1] * self.bits // 8
        if codes.ndim != 1 or codes.dtype.kind not in "iu" or len(codes) != rows:
            raise SecateursError(f"{code_file} has shape {codes.shape}, and the documents' lengths add up to {rows}")
        if residuals.shape != (rows, width) or residuals.dtype != np.uint8:
            raise SecateursError(
                f"{file} has shape {residuals.shape} of {residuals.dtype}, not {(rows, width)} of uint8"
            )

    def decode(self, codes: NDArray[Any], residuals: NDArray[np.uint8], place: str) -> NDArray[np.float32]:
        unknown = codes[(codes < 0) | (codes >= len(self.centroids))]
        if len(unknown):
            raise SecateursError(f"{place}: there is no centroid {unknown[0]}")
        bits = np.unpackbits(residuals, axis=1).reshape(len(codes), self.centroids.shape[1], self.bits)
        buckets = bits @ (1 << np.arange(self.bits))  # (embeddings, dim)
        embeddings = self.centroids[codes] + self.weights[buckets]
        embeddings /= np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
        decoded: NDArray[np.float32] = embeddings
        return decoded


def _lengths(folder: Path, chunk: int) -> NDArray[np.int64]:
    path = folder / f"doclens.{chunk}.json"
    content = _json(path)
    if not isinstance(content, list) or not all(isinstance(item, int) and 0 <= item < 1 << 48 for item in content):
        raise SecateursError(f"{path} is not a list of lengths")
    return np.array(content, dtype=np.int64)


def _chunk(folder: Path, what: str, chunk: int, rows: list[int]) -> tuple[NDArray[Any], Path]:
    """The codes or residuals of a chunk, and the file they are in. A file of its own is newer than the merged rows."""
    path = folder / f"{chunk}.{what}.npy"
    if path.is_file():
        return open_npy(path), path
    merged = folder / f"merged_{what}.npy"
    if merged.is_file():
        listed = folder / f"merged_{what}.manifest.json"
        known = _json(listed) if listed.is_file() else {}
        try:
            counts = [int(known.get(f"{i}.{what}.npy", {"rows": rows[i]})["rows"]) for i in range(chunk)]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SecateursError(f"{listed} does not say how many rows each chunk has") from error
        return open_npy(merged)[sum(counts) : sum(counts) + rows[chunk]], merged
    path = path.with_suffix(".pt")
    if path.is_file():
        return _torch_array(path), path
    raise SecateursError(f"{folder} has no {chunk}.{what}.npy, {path.name} or {merged.name}: it is not complete")


def _torch_array(path: Path) -> NDArray[Any]:
    array = read_torch_file(path)
    if not isinstance(array, np.ndarray):
        raise SecateursError(f"{path} is not one tensor")
    return array


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise SecateursError(f"{path} cannot be read ({error})") from error

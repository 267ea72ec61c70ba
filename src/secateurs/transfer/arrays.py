"""Arrays of embeddings that were made elsewhere, to documents, one at a time:

    one after the other   (positions, dim), beside the length of each document, or the offsets of all: TACHIOM's
                          vectors.npy, token_ids.npy and doclens.npy in a folder; or the same arrays in an .npz file
    padded                (documents, positions, dim), as ColPali's models give them: an .npy file, or beside a mask in
                          an .npz file or a folder. Without a mask, rows of zeros are padding
    a matrix each         an .npz file with an array (positions, dim) for each document, as np.savez(file, *matrices)
                          writes it, or np.savez(file, **{docno: matrix})

Large arrays are mapped, not read: an .npz file is unpacked to a temporary folder first. Nothing is unpickled.
"""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, UsageError
from ..records import Document
from .tables import EMBEDDINGS_FIELDS, encoded_text

_LENGTHS, _OFFSETS = ("doclens", "lengths", "doc_lengths"), ("offsets", "doc_offsets")
_MASK, _TOKEN_IDS, _DOCNOS = ("mask", "attention_mask"), ("token_ids",), ("docnos", "docno", "ids", "doc_ids")
_KNOWN = (*EMBEDDINGS_FIELDS, *_LENGTHS, *_OFFSETS, *_MASK, *_TOKEN_IDS, *_DOCNOS, "token_kinds")
_NUMBERED = re.compile(r"arr_(\d+)")
EXPECTED = (
    "expected vectors.npy (or embeddings.npy) with doclens.npy, offsets.npy or a third dimension; the same names in an "
    ".npz file; or an .npz file with a matrix for each document"
)


def with_docnos(documents: Any) -> tuple[Any, bool]:
    """Bare matrices, (positions, dim) each, as documents whose docnos are their numbers, and whether they are that.

    Anything else is given back as it came. An iterator is looked at: what is given back starts at its beginning.
    """
    if isinstance(documents, str | Path | Mapping | Document) or not isinstance(documents, Iterable):
        return documents, False
    if isinstance(documents, Sequence | np.ndarray):
        first = documents[0] if len(documents) else None
    else:
        documents = iter(documents)
        first = next(documents, None)
        documents = documents if first is None else chain([first], documents)
    if not hasattr(first, "__array__"):
        return documents, False
    return (Document(str(i), encoded=encoded_matrix(f"matrix {i}", matrix)) for i, matrix in enumerate(documents)), True


class Matrices(NamedTuple):
    documents: Iterator[Document]
    total: int | None


def read_arrays(path: Path) -> Matrices:
    """The documents of a folder of .npy files, of an .npy or of an .npz file."""
    if path.is_dir():
        return _named(path, _open_all(path))
    if path.suffix == ".npy":
        return _named(path, {EMBEDDINGS_FIELDS[0]: open_npy(path)})
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
    except (zipfile.BadZipFile, OSError) as error:
        raise SecateursError(f"{path} is no .npz file ({error})") from error
    if not any(name in EMBEDDINGS_FIELDS for name in names):
        return Matrices(_one_each(path, names), len(names))
    return _unpacked(path)


def _unpacked(path: Path) -> Matrices:
    folder = TemporaryDirectory(prefix="secateurs-import-")
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.removesuffix(".npy") in _KNOWN:  # a known name, so that nothing is written elsewhere
                    with archive.open(name) as packed, (Path(folder.name) / name).open("wb") as file:
                        shutil.copyfileobj(packed, file)
    except (zipfile.BadZipFile, OSError) as error:
        raise SecateursError(f"{path} cannot be read ({error})") from error
    found = _named(path, _open_all(Path(folder.name)))

    def documents() -> Iterator[Document]:
        with folder:
            yield from found.documents

    return Matrices(documents(), found.total)


def _open_all(folder: Path) -> dict[str, NDArray[Any]]:
    return {file.stem: open_npy(file) for file in sorted(folder.glob("*.npy")) if file.stem in _KNOWN}


def open_npy(path: Path) -> NDArray[Any]:
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise SecateursError(_unreadable(str(path), error)) from error
    return array


def _unreadable(what: str, error: Exception) -> str:
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return f"{what} holds Python objects, which are not loaded: save the matrices with  np.savez(file, *matrices)"
    return f"{what} is no array ({error})"


def _one_each(path: Path, names: list[str]) -> Iterator[Document]:
    numbered = [_NUMBERED.fullmatch(name) for name in names]
    docnos = dict(zip(names, names, strict=True))
    if all(numbered):
        docnos = {match[0]: match[1] for match in sorted(filter(None, numbered), key=lambda match: int(match[1]))}
    with np.load(path, allow_pickle=False) as arrays:
        for name, docno in docnos.items():
            try:
                matrix = arrays[name]
            except (ValueError, zipfile.BadZipFile) as error:
                raise SecateursError(_unreadable(f"{path}, array {name!r}", error)) from error
            if matrix.ndim != 2:
                raise UsageError(f"{path}, array {name!r}: has shape {matrix.shape}, not (positions, dim); {EXPECTED}")
            yield Document(docno, encoded=encoded_matrix(f"{path}, array {name!r}", matrix))


def _named(path: Path, arrays: Mapping[str, NDArray[Any]]) -> Matrices:
    def first(names: tuple[str, ...]) -> NDArray[Any] | None:
        return next((arrays[name] for name in names if name in arrays), None)

    vectors, lengths, offsets = first(EMBEDDINGS_FIELDS), first(_LENGTHS), first(_OFFSETS)
    token_ids, mask, docnos = first(_TOKEN_IDS), first(_MASK), first(_DOCNOS)
    if vectors is None:
        raise SecateursError(f"{path} has no embeddings: {EXPECTED}")
    if vectors.dtype == np.uint16:
        vectors = vectors.view(np.float16)  # as TACHIOM takes them
    if vectors.dtype.kind != "f":
        raise SecateursError(f"{path}: embeddings are floats, not {vectors.dtype}")
    if vectors.ndim == 3:
        count = len(vectors)
        _check_shape(path, "mask", mask, vectors.shape[:2])
        _check_shape(path, "token_ids", token_ids, vectors.shape[:2])
    elif vectors.ndim == 2:
        if offsets is None:
            if lengths is None:
                raise SecateursError(
                    f"{path}: embeddings of shape {vectors.shape} need the lengths of the documents (doclens) or their "
                    "offsets; a third dimension is a document's"
                )
            offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, dtype=np.int64))])
        count = len(offsets) - 1
        if offsets[0] != 0 or offsets[-1] != len(vectors) or (np.diff(offsets) < 0).any():
            raise SecateursError(
                f"{path}: the documents' lengths add up to {offsets[-1]}, not to {len(vectors)} vectors"
            )
        _check_shape(path, "token_ids", token_ids, vectors.shape[:1])
    else:
        raise SecateursError(f"{path}: embeddings have shape {vectors.shape}: {EXPECTED}")
    _check_shape(path, "docnos", docnos, (count,))
    return Matrices(_rows(path, count, vectors, offsets, mask, token_ids, docnos), count)


def _check_shape(path: Path, name: str, array: NDArray[Any] | None, shape: tuple[int, ...]) -> None:
    if array is not None and array.shape != shape:
        raise SecateursError(f"{path}: {name} has shape {array.shape}, not {shape}")


def _rows(
    path: Path,
    count: int,
    vectors: NDArray[Any],
    offsets: NDArray[Any] | None,
    mask: NDArray[Any] | None,
    token_ids: NDArray[Any] | None,
    docnos: NDArray[Any] | None,
) -> Iterator[Document]:
    for number in range(count):
        place = f"{path}, document {number}"
        if vectors.ndim == 2:
            assert offsets is not None
            part: Any = slice(int(offsets[number]), int(offsets[number + 1]))
            matrix, ids = vectors[part], None if token_ids is None else token_ids[part]
        else:
            padded = vectors[number]
            part = np.asarray(mask[number]).astype(bool) if mask is not None else (padded != 0).any(axis=1)
            matrix, ids = padded[part], None if token_ids is None else token_ids[number][part]
        docno = str(number if docnos is None else docnos[number])
        yield Document(docno, encoded=encoded_matrix(place, matrix, ids))


def encoded_matrix(place: str, matrix: NDArray[Any], token_ids: NDArray[Any] | None = None) -> Any:
    try:
        return encoded_text(np.asarray(matrix), token_ids)
    except (UsageError, TypeError, RuntimeError) as error:  # the latter two from a tensor that NumPy cannot read
        raise UsageError(f"{place}: {error}") from error

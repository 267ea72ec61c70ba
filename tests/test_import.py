"""Embeddings that were made elsewhere, in every form that is read, become the same index."""

import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_documents, random_text

from secateurs import Document, Index
from secateurs.errors import SecateursError, UsageError
from secateurs.importing import import_embeddings

DOCUMENTS = random_documents(12)
MATRICES = [document.encoded.embeddings.astype(np.float16) for document in DOCUMENTS if document.encoded is not None]
IDS = [document.encoded.token_ids for document in DOCUMENTS if document.encoded is not None]
LENGTHS = np.array([len(matrix) for matrix in MATRICES])
VECTORS, TOKEN_IDS = np.concatenate(MATRICES), np.concatenate(IDS)
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
LONGEST = int(LENGTHS.max())
PADDED = np.stack([np.pad(matrix, ((0, LONGEST - len(matrix)), (0, 0))) for matrix in MATRICES])
MASK = np.arange(LONGEST) < LENGTHS[:, None]
NOISY = np.where(MASK[:, :, None], PADDED, np.float16(0.5))  # padding that is no zeros
PADDED_IDS = np.stack([np.pad(ids, (0, LONGEST - len(ids))) for ids in IDS])


def folder_of(path: Path, **arrays: Any) -> Path:
    path.mkdir()
    for name, array in arrays.items():
        np.save(path / f"{name}.npy", array)
    return path


def npz(path: Path, *arrays: Any, compressed: bool = False, **named: Any) -> Path:
    (np.savez_compressed if compressed else np.savez)(path, *arrays, **named)
    return path


def npy(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


def table(path: Path, **columns: Any) -> Path:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(pa.table(columns), path)
    return path


WITH_TOKEN_IDS: dict[str, Callable[[Path], Path]] = {
    "TACHIOM's arrays": lambda tmp: folder_of(
        tmp / "a",
        vectors=VECTORS.view(np.uint16),
        token_ids=TOKEN_IDS.astype(np.uint32),
        doclens=LENGTHS.astype(np.int32),
    ),
    "offsets in an npz": lambda tmp: npz(tmp / "a.npz", embeddings=VECTORS, offsets=OFFSETS, token_ids=TOKEN_IDS),
    "lengths in a compressed npz": lambda tmp: npz(
        tmp / "a.npz", compressed=True, embeddings=VECTORS, lengths=LENGTHS, token_ids=TOKEN_IDS
    ),
    "padded with a mask": lambda tmp: npz(tmp / "a.npz", embeddings=NOISY, mask=MASK, token_ids=PADDED_IDS),
    "a table": lambda tmp: table(
        tmp / "a.parquet", embeddings=[m.tolist() for m in MATRICES], token_ids=[i.tolist() for i in IDS]
    ),
}
WITHOUT: dict[str, Callable[[Path], Path]] = {
    "a matrix each": lambda tmp: npz(tmp / "a.npz", *MATRICES),
    "a matrix each, by docno": lambda tmp: npz(tmp / "a.npz", **{str(i): m for i, m in enumerate(MATRICES)}),
    "padded, in a file": lambda tmp: npy(tmp / "a.npy", PADDED),
    "padded, in a folder": lambda tmp: folder_of(tmp / "a", embeddings=NOISY, attention_mask=MASK.astype(np.int64)),
    "one after the other": lambda tmp: folder_of(tmp / "a", embeddings=VECTORS, doclens=LENGTHS),
    "float32": lambda tmp: folder_of(tmp / "a", embeddings=VECTORS.astype(np.float32), doclens=LENGTHS),
    "a column of another name": lambda tmp: table(tmp / "a.parquet", patches=[m.tolist() for m in MATRICES]),
}


def check_documents(index: Index, token_ids: bool) -> None:
    found = {document.docno: document.encoded for document in index.documents()}
    assert found.keys() == {str(i) for i in range(len(MATRICES))}
    for number, matrix in enumerate(MATRICES):
        encoded = found[str(number)]
        assert encoded is not None
        np.testing.assert_array_equal(encoded.embeddings.astype(np.float16), matrix)
        np.testing.assert_array_equal(encoded.token_ids, IDS[number] if token_ids else np.zeros(len(matrix)))


@pytest.mark.parametrize("write", WITH_TOKEN_IDS.values(), ids=WITH_TOKEN_IDS)
def test_arrays_with_token_ids_are_the_documents_that_they_came_from(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    check_documents(import_embeddings(write(tmp_path), tmp_path / "b.sec", store="float16"), token_ids=True)


@pytest.mark.parametrize("write", WITHOUT.values(), ids=WITHOUT)
def test_arrays_without_token_ids_are_the_documents_that_they_came_from(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    index = import_embeddings(write(tmp_path), tmp_path / "b.sec", store="float16")
    check_documents(index, token_ids=False)
    assert index.search(random_text(np.random.default_rng(0), 3))


def test_an_arrow_file_an_arrow_stream_and_a_folder_of_parquet_files_are_read(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    content = pa.table({"id": range(12), "vectors": [matrix.astype(np.float32).tolist() for matrix in MATRICES]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_file(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=5)
    with pa.OSFile(str(tmp_path / "b.arrow"), "wb") as file, pa.ipc.new_stream(file, content.schema) as writer:
        writer.write_table(content, max_chunksize=5)
    (tmp_path / "c").mkdir()
    from pyarrow import parquet

    parquet.write_table(content.slice(0, 7), tmp_path / "c" / "part-0.parquet")
    parquet.write_table(content.slice(7), tmp_path / "c" / "part-1.parquet")
    for name in ("a.arrow", "b.arrow", "c"):
        check_documents(import_embeddings(tmp_path / name, tmp_path / f"{name}.sec", store="float16"), token_ids=False)


def test_a_lance_table_is_read(tmp_path: Path) -> None:
    lancedb, pa = pytest.importorskip("lancedb"), pytest.importorskip("pyarrow")
    vectors = pa.array([matrix.tolist() for matrix in MATRICES], pa.list_(pa.list_(pa.float32(), 16)))
    lancedb.connect(str(tmp_path)).create_table("docs", pa.table({"id": range(12), "vector": vectors}))
    index = import_embeddings(tmp_path / "docs.lance", tmp_path / "b.sec", store="float16")
    check_documents(index, token_ids=False)


def test_columns_beside_the_embeddings_are_docno_text_and_metadata(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import datetime

    source = table(
        tmp_path / "a.parquet",
        _id=["x", "y"],
        text=["one", None],
        year=[2020, None],
        seen=[datetime.date(2020, 1, 2), None],
        tags=[["a"], []],
        image=[b"\x00", b"\x01"],
        share=[0.5, float("nan")],
        embeddings=pa.array([MATRICES[0].tolist(), []], pa.list_(pa.list_(pa.float32()))),
    )
    index = import_embeddings(source, tmp_path / "b.sec")
    assert index.get("x") == Document("x", "one", {"year": 2020, "seen": "2020-01-02", "tags": ["a"], "share": 0.5})
    assert index.get("y") == Document("y", "", {"tags": []})


def test_a_corpus_gives_arrays_their_docnos_texts_and_metadata(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(f'{{"docno": "n{i}", "text": "text {i}", "year": {i}}}\n' for i in range(12)))
    index = import_embeddings(npz(tmp_path / "a.npz", *MATRICES), tmp_path / "b.sec", corpus=corpus)
    assert index.get("n7") == Document("n7", "text 7", {"year": 7})
    corpus.write_text('{"docno": "n0", "text": "text 0"}\n')
    with pytest.raises(SecateursError, match=r"corpus.jsonl has 1 documents, and .*a.npz has more"):
        import_embeddings(tmp_path / "a.npz", tmp_path / "c.sec", corpus=corpus)
    assert not (tmp_path / "c.sec").exists()


def objects(path: Path) -> Path:
    np.save(path, np.array([MATRICES[0], MATRICES[1]], dtype=object), allow_pickle=True)
    return path


WRONG: dict[str, tuple[Callable[[Path], Path], str]] = {
    "not there": (lambda tmp: tmp / "gone.npz", "there is no file or folder"),
    "another ending": (lambda tmp: folder_of(tmp / "a"), "what is imported ends in .parquet"),
    "no embeddings": (lambda tmp: folder_of(tmp / "a", doclens=LENGTHS), "has no embeddings: expected vectors.npy"),
    "no lengths": (lambda tmp: folder_of(tmp / "a", vectors=VECTORS), "need the lengths of the documents"),
    "wrong lengths": (lambda tmp: folder_of(tmp / "a", vectors=VECTORS, doclens=LENGTHS[:-1]), "add up to"),
    "wrong ids": (
        lambda tmp: folder_of(tmp / "a", vectors=VECTORS, doclens=LENGTHS, token_ids=TOKEN_IDS[1:]),
        "token_ids has shape",
    ),
    "whole numbers": (lambda tmp: npy(tmp / "a.npy", PADDED.astype(np.int32)), "embeddings are floats, not int32"),
    "a vector each": (lambda tmp: npy(tmp / "a.npy", VECTORS), "need the lengths"),
    "four dimensions": (lambda tmp: npy(tmp / "a.npy", PADDED[None]), "embeddings have shape"),
    "Python objects": (lambda tmp: objects(tmp / "a.npy"), "holds Python objects, which are not loaded"),
    "a vector in an npz": (lambda tmp: npz(tmp / "a.npz", VECTORS[0]), r"array 'arr_0': has shape \(16,\)"),
    "NaN": (lambda tmp: npz(tmp / "a.npz", VECTORS * np.nan), "array 'arr_0': embeddings contain NaN"),
    "other dimensions": (lambda tmp: npz(tmp / "a.npz", VECTORS, VECTORS[:, :8]), "8 dimensions"),
    "a text file": (lambda tmp: written(tmp / "a.npz", b"text"), "is no .npz file"),
    "a pickle": (lambda tmp: written(tmp / "a.npy", pickle.dumps([1])), "a.npy"),
    "no table": (lambda tmp: written(tmp / "a.parquet", b"text"), "cannot be read as a table"),
    "no column": (lambda tmp: table(tmp / "a.parquet", year=[1]), r"its columns are: year \(int64\)"),
    "ragged vectors": (
        lambda tmp: table(tmp / "a.parquet", embeddings=[[[0.1, 0.2], [0.3]]]),
        "row 0: embeddings has .*vectors of different lengths",
    ),
    "null": (lambda tmp: table(tmp / "a.parquet", embeddings=[[[0.1]], None]), "row 1: embeddings is null"),
    "null docno": (lambda tmp: table(tmp / "a.parquet", docno=[None], embeddings=[[[0.1]]]), "row 0: docno is null"),
}


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("write", "message"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_imported_is_named_and_makes_no_index(
    write: Callable[[Path], Path], message: str, tmp_path: Path
) -> None:
    source = write(tmp_path)
    with pytest.raises(SecateursError, match=message):
        import_embeddings(source, tmp_path / "b.sec")
    assert not (tmp_path / "b.sec").exists()


@pytest.mark.parametrize(
    ("format", "message"), [("table", "has no .parquet files"), ("arrays", "has no embeddings"), ("xml", "format")]
)
def test_a_format_that_the_source_does_not_have_is_refused(format: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SecateursError, match=message):
        import_embeddings(folder_of(tmp_path / "a"), tmp_path / "b.sec", format=format)


def test_without_pyarrow_the_pip_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    index = Index.build(tmp_path / "a.sec", DOCUMENTS, encoder=None)
    with pytest.raises(SecateursError, match=r'pip install "secateurs\[lab\]"'):
        index.export(tmp_path / "a.parquet")
    assert not (tmp_path / "a.parquet").exists()
    (tmp_path / "b.parquet").write_bytes(b"")
    with pytest.raises(SecateursError, match=r'pip install "secateurs\[lab\]"'):
        import_embeddings(tmp_path / "b.parquet", tmp_path / "b.sec")


def bare(kind: str) -> Any:
    if kind == "list":
        return [matrix.astype(np.float32) for matrix in MATRICES]
    return generated()


def generated() -> Iterator[Any]:
    yield from MATRICES


@pytest.mark.parametrize("kind", ["list", "generator"])
def test_an_index_is_built_from_bare_matrices_whose_docnos_are_their_numbers(kind: str, tmp_path: Path) -> None:
    check_documents(Index.build(tmp_path / "a.sec", bare(kind), store="float16"), token_ids=False)


def test_a_bare_matrix_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"matrix 1: embeddings must be a \(positions, dim\) matrix"):
        Index.build(tmp_path / "a.sec", [MATRICES[0], MATRICES[0][0]])
    with pytest.raises(UsageError, match=r"matrix 0: embeddings must be a \(positions, dim\) matrix"):
        Index.build(tmp_path / "a.sec", VECTORS)
    assert len(Index.build(tmp_path / "a.sec", iter([]), encoder=None)) == 0

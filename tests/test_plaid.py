"""PLAID indexes become the documents that their embeddings mean.

The files in data/plaid were written and decoded by ColBERT's own code, and merged by fast-plaid's loader; make.py there
says how. fast-plaid's compiled code did not make them: its chunk files are written here from their definition.
"""

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from test_cli import run

from secateurs import Index
from secateurs.errors import SecateursError
from secateurs.importing import import_embeddings
from secateurs.transfer.plaid import read_plaid
from secateurs.transfer.torch_file import read_torch_file

DATA = Path(__file__).parent / "data" / "plaid"
LENGTHS = [3, 1, 4, 2, 5]
EXPECTED = np.load(DATA / "expected.npy")  # (15, 16)


def copied(tmp_path: Path, name: str) -> Path:
    return Path(shutil.copytree(DATA / name, tmp_path / name))


def chunk_files(tmp_path: Path) -> Path:
    """As fast-plaid leaves an index before it opens it for the first time, and next-plaid always."""
    folder = copied(tmp_path, "fast-plaid")
    for what in ("codes", "residuals"):
        merged = np.load(folder / f"merged_{what}.npy")
        np.save(folder / f"0.{what}.npy", merged[:8])
        np.save(folder / f"1.{what}.npy", merged[8:15])
        (folder / f"merged_{what}.npy").unlink()
        (folder / f"merged_{what}.manifest.json").unlink()
    return folder


def embeddings_of(folder: Path) -> NDArray[np.float32]:
    read = read_plaid(folder)
    documents = list(read.documents)
    assert read.total == len(documents)
    assert [document.docno for document in documents] == [str(number) for number in range(len(documents))]
    return np.concatenate([document.encoded.embeddings for document in documents if document.encoded is not None])


@pytest.mark.parametrize(
    "write",
    [
        lambda tmp_path: copied(tmp_path, "colbert"),
        lambda tmp_path: copied(tmp_path, "fast-plaid"),
        chunk_files,
    ],
    ids=["ColBERT", "fast-plaid, merged", "fast-plaid, chunks"],
)
def test_an_imported_index_has_the_embeddings_that_colbert_decodes(
    write: Callable[[Path], Path], tmp_path: Path
) -> None:
    folder = write(tmp_path)
    np.testing.assert_allclose(embeddings_of(folder), EXPECTED, atol=2e-7)
    index = import_embeddings(folder, tmp_path / "a.sec", store="float16", progress=False)
    found = {document.docno: document.encoded for document in index.documents()}
    assert [len(found[str(number)] or ()) for number in range(5)] == LENGTHS
    stored = np.concatenate([found[str(number)].embeddings for number in range(5)])  # type: ignore[union-attr]
    np.testing.assert_allclose(stored, EXPECTED, atol=1e-3)
    assert index.score(found["4"], ["4"]) == pytest.approx([5], abs=0.01)  # type: ignore[arg-type]


def test_a_corpus_gives_the_docnos_and_texts(tmp_path: Path) -> None:
    (tmp_path / "c.tsv").write_text("".join(f"n{number}\tText {number}.\n" for number in range(5)))
    index = import_embeddings(DATA / "colbert", tmp_path / "a.sec", corpus=tmp_path / "c.tsv", progress=False)
    assert index.get("n3").text == "Text 3."


def test_a_chunk_that_was_written_after_merging_counts_and_the_others_stay_where_they_were(tmp_path: Path) -> None:
    folder = copied(tmp_path, "fast-plaid")
    codes, residuals = np.load(folder / "merged_codes.npy"), np.load(folder / "merged_residuals.npy")
    np.save(folder / "0.codes.npy", codes[3:8])  # without the document of three embeddings, which was deleted
    np.save(folder / "0.residuals.npy", residuals[3:8])
    (folder / "doclens.0.json").write_text("[1, 4]")
    np.testing.assert_allclose(embeddings_of(folder), EXPECTED[3:], atol=2e-7)


def test_merged_rows_without_their_manifest_are_found_by_the_lengths(tmp_path: Path) -> None:
    folder = copied(tmp_path, "fast-plaid")
    for manifest in folder.glob("merged_*.manifest.json"):
        manifest.unlink()
    np.save(folder / "merged_codes.npy", np.append(np.load(folder / "merged_codes.npy"), [99, 99]))  # padding
    np.testing.assert_allclose(embeddings_of(folder), EXPECTED, atol=2e-7)


def test_a_byte_of_two_codes_of_four_bits_worked_out_by_hand(tmp_path: Path) -> None:
    """Codes 1 (1000, its lowest bit first) and 12 (0011): the byte 1000 0011, which is 0x83."""
    np.save(tmp_path / "centroids.npy", np.array([[0.0, 0.0], [0.0, 3.0]], np.float32))
    np.save(tmp_path / "bucket_weights.npy", np.arange(16, dtype=np.float32))
    np.save(tmp_path / "0.codes.npy", np.array([0, 1]))
    np.save(tmp_path / "0.residuals.npy", np.array([[0x83], [0x83]], np.uint8))
    (tmp_path / "doclens.0.json").write_text("[2]")
    (tmp_path / "metadata.json").write_text('{"num_chunks": 1, "nbits": 4}')
    expected = np.array([[1, 12], [1, 15]]) / np.sqrt([[145], [226]])
    np.testing.assert_allclose(embeddings_of(tmp_path), expected, rtol=1e-6)


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_codes_of_any_width_are_unpacked(bits: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(bits)
    buckets = rng.integers(0, 1 << bits, (20, 8))
    weights, centroids, codes = rng.normal(size=1 << bits), rng.normal(size=(3, 8)), rng.integers(0, 3, 20)
    packed = np.zeros((20, bits), np.uint8)
    for row in range(20):  # bit after bit, as next-plaid's quantize_residuals does it
        for at in range(8 * bits):
            packed[row, at // 8] |= (int(buckets[row, at // bits]) >> (at % bits) & 1) << (7 - at % 8)
    np.save(tmp_path / "centroids.npy", centroids)
    np.save(tmp_path / "bucket_weights.npy", weights)
    np.save(tmp_path / "0.codes.npy", codes)
    np.save(tmp_path / "0.residuals.npy", packed)
    (tmp_path / "doclens.0.json").write_text("[12, 0, 8]")
    (tmp_path / "metadata.json").write_text('{"num_chunks": 1}')
    expected = centroids[codes] + weights[buckets]
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings_of(tmp_path), expected, atol=1e-6)


def replaced(name: str, content: Any) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        if isinstance(content, np.ndarray):
            np.save(folder / name, content)
        else:
            (folder / name).write_text(content)

    return write


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no metadata": (lambda folder: (folder / "metadata.json").unlink(), r"metadata\.json cannot be read"),
    "no chunks": (replaced("metadata.json", "{}"), r"metadata\.json does not say how many chunks"),
    "no JSON": (replaced("doclens.1.json", "[2,"), r"doclens\.1\.json cannot be read"),
    "other JSON": (replaced("doclens.1.json", '["2"]'), r"doclens\.1\.json is not a list of lengths"),
    "negative": (replaced("doclens.1.json", "[-2, 9]"), r"doclens\.1\.json is not a list of lengths"),
    "huge": (replaced("doclens.1.json", f"[{2**70}]"), r"doclens\.1\.json is not a list of lengths"),
    "bytes": (replaced("centroids.npy", np.zeros((8, 15))), r"15 dimensions of 2 bits fill no whole bytes"),
    "lengths": (
        replaced("doclens.1.json", "[2, 6]"),
        r"1\.codes\.npy has shape \(7,\), and the documents' lengths add up",
    ),
    "no codes": (
        lambda folder: (folder / "1.codes.npy").unlink(),
        r"has no 1\.codes\.npy, 1\.codes\.pt or merged_codes",
    ),
    "a code": (replaced("1.codes.npy", np.full(7, 8)), r"1\.codes\.npy, document 3: there is no centroid 8"),
    "floats": (replaced("1.codes.npy", np.full(7, 1.5)), r"1\.codes\.npy has shape"),
    "residuals": (
        replaced("1.residuals.npy", np.zeros((7, 8), np.uint8)),
        r"1\.residuals\.npy has shape \(7, 8\) of uint8, not \(7, 4\)",
    ),
    "weights": (
        replaced("bucket_weights.npy", np.zeros(5)),
        r"bucket_weights\.npy has shape \(5,\), and 2, 4, 16 or 256",
    ),
    "centroids": (replaced("centroids.npy", np.zeros(16)), r"centroids\.npy has shape \(16,\), not \(centroids, dim\)"),
    "NaN": (replaced("centroids.npy", np.full((8, 16), np.nan)), r"0\.codes\.npy, document 0: embeddings contain NaN"),
    "text": (replaced("1.codes.npy", "text"), r"1\.codes\.npy is no array|1\.codes\.npy holds Python objects"),
}


@pytest.mark.parametrize(("spoil", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named_with_its_file_and_no_index_is_made(
    spoil: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    folder = chunk_files(tmp_path)
    spoil(folder)
    with pytest.raises(SecateursError, match=message):
        import_embeddings(folder, tmp_path / "a.sec", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fast-plaid"]


def test_a_damaged_manifest_of_merged_rows_and_a_folder_that_is_no_index_are_named(tmp_path: Path) -> None:
    folder = copied(tmp_path, "fast-plaid")
    (folder / "merged_codes.manifest.json").write_text('{"0.codes.npy": {"mtime": null}}')
    with pytest.raises(SecateursError, match=r"merged_codes\.manifest\.json does not say how many rows"):
        embeddings_of(folder)
    with pytest.raises(SecateursError, match=r"is not a PLAID index: expected centroids\.npy"):
        import_embeddings(DATA, tmp_path / "a.sec", format="plaid")


def torch_file(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED, data: bytes = b"\0" * 24) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a/data.pkl", content)
        archive.writestr("a/data/0", data)
    return path


def tensor_pickle(
    name: str = "FloatStorage", shape: bytes = b"(K\x02K\x03t", strides: bytes = b"(K\x03K\x01t"
) -> bytes:
    """The opcodes that torch.save writes for a tensor of six numbers, (2, 3) if nothing else is said."""
    storage = b"(X\x07\x00\x00\x00storagectorch\n" + name.encode() + b"\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06tQ"
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x00" + shape + strides + b"\x89NtR."


def test_a_file_of_torch_is_read_without_torch(tmp_path: Path) -> None:
    numbers = np.arange(6, dtype=np.float32)
    read = read_torch_file(torch_file(tmp_path / "a.pt", tensor_pickle(), data=numbers.tobytes()))
    np.testing.assert_array_equal(read, numbers.reshape(2, 3))
    cutoffs, weights = read_torch_file(DATA / "colbert" / "buckets.pt")
    assert (cutoffs.shape, weights.shape) == ((3,), (4,))


class Harmful:
    def __reduce__(self) -> Any:
        return os.mkdir, ("harmed",)


UNREADABLE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "code": (
        lambda path: torch_file(path, pickle.dumps(Harmful())),
        r"a\.pt: it holds (posix|nt)\.mkdir, and only tensors",
    ),
    "a getter": (lambda path: torch_file(path, b"cbuiltins\ngetattr\n."), r"a\.pt: it holds builtins\.getattr"),
    "a type": (lambda path: torch_file(path, tensor_pickle("BFloat16Storage")), r"it holds torch\.BFloat16Storage"),
    "no zip": (lambda path: path.write_bytes(b"text"), r"a\.pt is not a file of tensors as torch\.save writes it"),
    "cut short": (lambda path: torch_file(path, tensor_pickle(), data=b"\0" * 20), "a tensor is cut short"),
    "compressed": (lambda path: torch_file(path, tensor_pickle(), zipfile.ZIP_DEFLATED), "it is compressed"),
    "larger": (lambda path: torch_file(path, tensor_pickle(shape=b"(K\x02K\x03K\x02t")), "not a file of tensors"),
    "strides": (lambda path: torch_file(path, tensor_pickle(strides=b"(K\x01K\x02t")), "is not contiguous"),
    "beyond": (lambda path: torch_file(path, tensor_pickle(shape=b"(K\x03K\x03t")), "a tensor is cut short"),
    "negative": (
        lambda path: torch_file(path, tensor_pickle(shape=b"(J\xff\xff\xff\xffK\x03t")),
        "a tensor is cut short",
    ),
    "no pickle": (lambda path: torch_file(path, b""), "not a file of tensors"),
}


@pytest.mark.parametrize(("write", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_file_of_torch_that_holds_other_things_is_refused_and_runs_nothing(
    write: Callable[[Path], Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.pt")
    with pytest.raises(SecateursError, match=message):
        read_torch_file(tmp_path / "a.pt")
    assert not (tmp_path / "harmed").exists()


@pytest.mark.slow
def test_the_command_imports_a_plaid_index(tmp_path: Path) -> None:
    done = run("import", DATA / "fast-plaid", tmp_path / "a.sec")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{tmp_path / 'a.sec'}: 5 documents, 15 embeddings")
    assert len(Index(tmp_path / "a.sec")) == 5
    broken = copied(tmp_path, "colbert")
    (broken / "metadata.json").write_text(json.dumps({"num_chunks": 3}))
    refused = run("import", broken, tmp_path / "b.sec")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "doclens.2.json cannot be read" in refused.stderr

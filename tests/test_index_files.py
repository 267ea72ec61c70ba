"""The files of an index under damage, replacement and several writers."""

import copy
import gc
import multiprocessing
import os
import pickle
import shutil
import sqlite3
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import build_random, random_documents, random_text

from secateurs import Document, Index, SecateursError
from secateurs.errors import DamagedIndexError
from secateurs.kernels import probing
from secateurs.storage import locks
from secateurs.storage.manifest import MANIFEST, Manifest

FILES = {
    "segments": (
        "embeddings.npy",
        "blocks.npy",
        "offsets.npy",
        "token_ids.npy",
        "token_blocks.npy",
        "token_kinds.npy",
        "frequencies.npy",
        "documents.sqlite",
        "faiss.index",
        "cell_offsets.npy",
        "cell_documents.npy",
        "code_numbers.npy",
    ),
    "codebooks": (
        "centre.npy",
        "cell_centroids.npy",
        "cell_groups.npy",
        "code_centroids.npy",
        "code_levels.npy",
        "background.npy",
    ),
    "deletions": ("numbers.npy", "frequencies.npy"),
}
EVERY_FILE = [f"{part}/{name}" for part, names in FILES.items() for name in names]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two segments, something deleted, and the store with the most files."""
    path = tmp_path_factory.mktemp("sound") / "i.sec"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "MANY_CELLS", 1)
        index = build_random(path, store="residual4", gather=("cells", "faiss"), background="english")
    index.add([Document("new", "text", {"i": 7}, random_text(np.random.default_rng(3), 4))])
    index.delete(["d004", "d005"])
    for part, names in FILES.items():
        assert {file.name for file in (path / part).glob("*/*")} == set(names)
    return path


def file_of(path: Path, name: str) -> Path:
    """The first segment's, of `segments/offsets.npy`: the one with the deletions."""
    part, file = name.split("/")
    first = Manifest.read(path).segments[0].name
    return next(f for f in (path / part).glob(f"*/{file}") if part != "segments" or f.parent.name == first)


def use(path: Path) -> object:
    """Everything that reads: all ways of gathering, filtering, explaining, fetching, finding nothing."""
    index = Index(path)
    query = random_text(np.random.default_rng(0), 3)
    seen: list[object] = []
    for gather in ("exhaustive", "faiss", "cells"):
        hits = index.search(query, gather=gather).hits
        seen += [hits, index.search(query, gather=gather, where="i < 20", frequencies="matching").hits]
        seen.append(index.explain(query, hits[0].docno, gather=gather))
    return [*seen, index.frequencies.token_ids.tolist(), index.get("d001").text, "missing" in index]


@pytest.mark.parametrize("name", [*EVERY_FILE, MANIFEST])
def test_one_flipped_bit_anywhere_is_found_before_it_can_change_an_answer(
    sound: Path, name: str, tmp_path: Path
) -> None:
    answer = use(sound)
    copy = tmp_path / "copy.sec"
    shutil.copytree(sound, copy)
    path = copy / MANIFEST if name == MANIFEST else file_of(copy, name)
    content = bytearray(path.read_bytes())
    caught = 0
    for position in (0.0, 0.2, 0.5, 0.8, 0.999):
        at = int(position * len(content))
        content[at] ^= 4
        path.write_bytes(content)
        content[at] ^= 4
        with pytest.raises(SecateursError):
            Index(copy).check()
        try:
            assert use(copy) == answer  # the bit was in a part that no answer came from
        except SecateursError:
            caught += 1
    assert caught >= 3 or name == "segments/token_kinds.npy"  # which no search needs


@pytest.mark.parametrize("name", EVERY_FILE)
@pytest.mark.parametrize("change", ["cut", "removed"])
def test_a_missing_or_shortened_file_is_named_with_what_to_do(
    sound: Path, name: str, change: str, tmp_path: Path
) -> None:
    shutil.copytree(sound, tmp_path / "copy.sec")
    path = file_of(tmp_path / "copy.sec", name)
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DamagedIndexError, match=rf"{path.name}.*restore it from a copy, or try .*--repair"):
        Index(tmp_path / "copy.sec")


def test_check_reads_every_byte(sound: Path, tmp_path: Path) -> None:
    Index(sound).check()
    shutil.copytree(sound, tmp_path / "copy.sec")
    path = file_of(tmp_path / "copy.sec", "segments/embeddings.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    index = Index(tmp_path / "copy.sec")  # opening does not read the embeddings
    with pytest.raises(DamagedIndexError, match=r"embeddings\.npy"):
        index.check()


def test_a_damaged_index_can_be_replaced(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "i.sec")
    (tmp_path / "i.sec" / MANIFEST).write_text("{}")
    assert len(build_random(tmp_path / "i.sec", 3, overwrite=True)) == 3


def test_a_row_under_another_number_is_found_out(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "i.sec")
    with sqlite3.connect(file_of(tmp_path / "i.sec", "segments/documents.sqlite")) as connection:
        connection.execute("UPDATE documents SET number = 100 WHERE number = 2")
        connection.execute("UPDATE documents SET number = 2 WHERE number = 3")
        connection.execute("UPDATE documents SET number = 3 WHERE number = 100")
    with pytest.raises(DamagedIndexError, match="document 2"):
        Index(tmp_path / "i.sec").snapshot.segments[0].documents.get([2])


def test_searching_writes_nothing(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "copy.sec")
    for path in (tmp_path / "copy.sec").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "copy.sec").rglob("*")}
    use(tmp_path / "copy.sec")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "copy.sec").rglob("*")} == before


def test_a_reader_keeps_what_it_opened_when_the_index_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    query = random_text(np.random.default_rng(9), 3)
    expected = build_random(path).search(query, gather="exhaustive").hits
    early, late = Index(path), Index(path)
    early.search(query, gather="cells")
    Index.build(path, random_documents(40, seed=77), encoder=None, overwrite=True)
    with ThreadPoolExecutor(1) as another_thread:
        for reader in (early, late):
            assert another_thread.submit(reader.search, query, gather="exhaustive").result().hits == expected
            assert reader.search(query, gather="cells").hits == expected
    assert Index(path).search(query, gather="exhaustive").hits != expected


@pytest.mark.parametrize("step", ["rename", "manifest"])
def test_an_overwrite_that_fails_half_way_leaves_the_old_index(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "i.sec"
    build_random(path, 30, gather=("cells", "faiss"))

    def fail(*arguments: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail) if step == "rename" else patch.setattr(Manifest, "write", fail)
        with pytest.raises(OSError, match="no space"):
            build_random(path, 6, overwrite=True)
    assert len(Index(path)) == 30
    use(path)
    assert len(build_random(path, 7, overwrite=True)) == 7
    assert [f.name for f in tmp_path.iterdir()] == ["i.sec"]
    assert len(list((path / "segments").iterdir())) == 1


def pickled(thing: Any) -> Any:
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_an_open_folder_cannot_be_copied_and_closes_no_file_but_its_own(
    tmp_path: Path, copied: Callable[[Any], Any]
) -> None:
    index = build_random(tmp_path / "i.sec", 5)
    with pytest.raises(TypeError, match="open the index again by its path"):
        copied(index.snapshot.codebook._hold)
    if copied is not copy.copy:  # that of a snapshot shares its parts
        with pytest.raises(TypeError):
            copied(index.snapshot)
    del index
    gc.collect()
    with (tmp_path / "mine").open("wb") as mine:  # with a number that was free just now
        gc.collect()
        mine.write(b"still open")
    assert (tmp_path / "mine").read_bytes() == b"still open"


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at open files")
def test_a_folder_that_cannot_be_held_leaves_no_file_open(tmp_path: Path) -> None:
    import fcntl

    index = build_random(tmp_path / "i.sec", 5)
    folder = index.snapshot.segments[0].folder
    del index
    gc.collect()
    handle = os.open(folder, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)  # as a writer that removes it
    for path in (folder, folder / "nowhere"):
        with pytest.raises(locks.FolderGoneError):
            locks.Hold(path)
    gc.collect()
    # Other threads of this process, of databases that other tests have opened, open and close files of their own.
    opened = [file for file in Path("/proc/self/fd").iterdir() if os.path.realpath(file).startswith(str(tmp_path))]
    assert [file.name for file in opened] == [str(handle)]
    os.close(handle)


def found_by(index: Index) -> list[tuple[str, float]]:
    query = random_text(np.random.default_rng(9), 3)
    return [(hit.docno, hit.score) for hit in index.search(query)]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickled])
def test_a_copy_of_an_index_opens_the_same_folder_again(tmp_path: Path, copied: Callable[[Index], Index]) -> None:
    index = build_random(tmp_path / "i.sec")
    other = copied(index)
    assert other.snapshot is not index.snapshot
    assert found_by(other) == found_by(index)
    index.close()
    other.delete(["d001"])  # also when the first is closed
    assert len(other) == 39
    with (tmp_path / "mine").open("wb") as mine:
        del index, other
        gc.collect()
        mine.write(b"still open")
    assert (tmp_path / "mine").read_bytes() == b"still open"


@pytest.mark.slow
def test_an_index_can_be_sent_to_a_process_that_is_started_anew(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec")
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(found_by, index).result() == found_by(index)


def test_two_builds_of_one_name_do_not_disturb_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(build_random, tmp_path / "i.sec", 30, overwrite=True) for _ in range(8)]:
            try:
                future.result()
            except (OSError, SecateursError):
                continue  # another build was first
    assert len(Index(tmp_path / "i.sec")) == 30
    assert [f.name for f in tmp_path.iterdir()] == ["i.sec"]

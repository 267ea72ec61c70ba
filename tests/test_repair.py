"""`secateurs check --repair`: what can be rebuilt is, and what cannot is named."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import random_text

from secateurs import Document, Index, SecateursError
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DamagedIndexError
from secateurs.storage.manifest import MANIFEST, MANIFEST_COPY, Manifest
from secateurs.storage.repair import repair


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings of the user's own: nothing can encode them again."""
    rng = np.random.default_rng(0)
    items = [Document(f"d{i:03}", f"text {i}", {"i": i}, random_text(rng, 9)) for i in range(60)]
    path = tmp_path_factory.mktemp("repair") / "i.sec"
    index = Index.build(path, items[:50], encoder=None, gather=("cells", "faiss"))
    index.add(items[50:])
    index.delete(["d007", "d008"])
    return path


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 8
    path.write_bytes(content)


def first(path: Path, name: str, part: str = "segments") -> Path:
    if part == "segments":
        return path / part / Manifest.read(path).segments[0].name / name
    return next((path / part).glob(f"*/{name}"))


def answers(path: Path) -> list[object]:
    index = Index(path)
    query = random_text(np.random.default_rng(1), 4)
    return [[(hit.docno, round(hit.score, 1)) for hit in index.search(query, k=60, gather="exhaustive")], len(index)]


def test_nothing_is_done_to_a_sound_index(sound: Path) -> None:
    before = Manifest.read(sound)
    assert repair(sound) == ["nothing is damaged"]
    assert Manifest.read(sound) == before


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("blocks.npy", "segments"),
        ("token_blocks.npy", "segments"),
        ("frequencies.npy", "segments"),
        ("cell_documents.npy", "segments"),
        ("cell_offsets.npy", "segments"),
        ("faiss.index", "segments"),
        ("cell_centroids.npy", "codebooks"),
        ("frequencies.npy", "deletions"),
    ],
)
@pytest.mark.parametrize("removed", [False, True])
def test_what_follows_from_the_rest_is_rebuilt(
    sound: Path, name: str, part: str, removed: bool, tmp_path: Path
) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    expected = answers(path)
    victim = first(path, name, part)
    victim.unlink() if removed else flip(victim)
    with pytest.raises(DamagedIndexError):
        Index(path).check()
    said = repair(path)
    assert name in said[0]
    assert "no document is lost" in said
    Index(path).check()
    assert answers(path)[1] == expected[1]
    assert [d for d, _ in answers(path)[0]][:5] == [d for d, _ in expected[0]][:5]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [MANIFEST, MANIFEST_COPY])
def test_a_manifest_is_restored_from_the_other(sound: Path, name: str, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    expected = answers(path)
    flip(path / name)
    assert name in repair(path)[0]
    assert answers(path) == expected
    assert repair(path) == ["nothing is damaged"]
    flip(path / MANIFEST)
    flip(path / MANIFEST_COPY)
    with pytest.raises(SecateursError, match="index again"):
        repair(path)


@pytest.mark.parametrize("part", ["codebooks", "deletions"])
def test_a_folder_that_is_missing_is_named_and_repaired(sound: Path, part: str, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    shutil.rmtree(next((path / part).iterdir()))
    with pytest.raises(DamagedIndexError, match=r"is missing: .*--repair"):
        Index(path)
    repair(path)
    Index(path).check()


def test_check_reads_the_copy_of_the_manifest_too(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "i.sec")
    flip(tmp_path / "i.sec" / MANIFEST_COPY)
    with pytest.raises(DamagedIndexError, match=MANIFEST_COPY):
        Index(tmp_path / "i.sec").check()


def test_what_cannot_be_rebuilt_is_named_and_the_rest_is_kept(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    flip(first(path, "embeddings.npy"), at=0.999)
    said = repair(path)
    lost = [line.split("'")[1] for line in said if line.startswith("lost: '")]
    assert 1 <= len(lost) <= 8  # one block of 64 rows
    index = Index(path)
    index.check()
    assert len(index) == 58 - len(lost)
    assert not any(docno in index for docno in lost)


def test_a_damaged_list_of_deletions_loses_nothing(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    flip(first(path, "numbers.npy", "deletions"))
    assert any("back again" in line for line in repair(path))
    assert len(Index(path)) == 60


@pytest.mark.parametrize(
    ("name", "part"), [("embeddings.npy", "segments"), ("offsets.npy", "segments"), ("centre.npy", "codebooks")]
)
def test_embeddings_are_made_again_from_the_text(encoder: OnnxEncoder, name: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    texts = ["Goldfish grow.", "Cats sleep.", "Bees dance to tell where flowers are."]
    Index.build(path, [{"docno": str(i), "text": text} for i, text in enumerate(texts)], encoder=encoder)
    expected = [(hit.docno, hit.score) for hit in Index(path, encoder).search("where are flowers")]
    flip(first(path, name, part), at=0.9)
    said = repair(path)
    assert "no document is lost" in said
    assert any("encoded again from their text" in line for line in said)
    found = [(hit.docno, hit.score) for hit in Index(path, encoder).search("where are flowers")]
    assert [docno for docno, _ in found] == [docno for docno, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=0.05)

"""`secateurs check --repair`: what can be rebuilt is rebuilt, what cannot is named, and the damaged index is kept."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import random_text
from typer.testing import CliRunner

from secateurs import Document, Index, SecateursError
from secateurs.cli.app import app
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DamagedIndexError
from secateurs.storage.manifest import MANIFEST, MANIFEST_COPY, Manifest
from secateurs.storage.repair import repair


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Embeddings that the documents brought: no encoder can make them again."""
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
    assert repair(sound) == (["nothing is damaged"], False)
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
    report = repair(path)
    assert name in report.lines[0]
    assert "no document is lost" in report.lines
    assert not report.lost
    assert not (path / "lost").exists()
    Index(path).check()
    assert answers(path)[1] == expected[1]
    assert [d for d, _ in answers(path)[0]][:5] == [d for d, _ in expected[0]][:5]  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [MANIFEST, MANIFEST_COPY])
def test_a_manifest_is_restored_from_the_other(sound: Path, name: str, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    expected = answers(path)
    flip(path / name)
    report = repair(path)
    assert name in report.lines[0]
    assert not report.lost
    assert answers(path) == expected
    assert repair(path) == (["nothing is damaged"], False)
    flip(path / MANIFEST)
    flip(path / MANIFEST_COPY)
    with pytest.raises(SecateursError, match="index again"):
        repair(path)


def put_aside(path: Path) -> Path:
    (aside,) = (path / "lost").iterdir()
    return aside


@pytest.mark.parametrize("part", ["segments", "codebooks", "deletions"])
def test_a_folder_that_is_missing_is_named_and_the_rest_is_put_aside(sound: Path, part: str, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    folder = first(path, "offsets.npy").parent if part == "segments" else next((path / part).iterdir())
    backup = shutil.copytree(folder, tmp_path / "backup")
    expected = answers(path)
    shutil.rmtree(folder)
    with pytest.raises(DamagedIndexError, match=r"is missing: .*--repair"):
        Index(path)
    report = repair(path)
    assert report.lost
    assert report.lines[0] == f"found: {folder} is missing"
    assert any(str(put_aside(path)) in line for line in report.lines)
    Index(path).check()
    assert len(Index(path)) == {"segments": 10, "codebooks": 0, "deletions": 60}[part]
    Index(path).compact()  # changes do not remove what is put aside
    shutil.copytree(backup, put_aside(path) / part / folder.name)  # with what was missing it is the index as it was
    Index(put_aside(path)).check()
    assert answers(put_aside(path)) == expected


@pytest.mark.parametrize("damage", ["removed", "not a database", "cut in half"])
def test_embeddings_whose_database_is_damaged_are_never_deleted(sound: Path, damage: str, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    database = first(path, "documents.sqlite")
    content = database.read_bytes()
    if damage == "removed":
        database.unlink()
    else:
        database.write_bytes(b"x" * len(content) if damage == "not a database" else content[: len(content) // 2])
    embeddings = first(path, "embeddings.npy").read_bytes()
    expected = answers(sound)
    report = repair(path)
    assert report.lost
    assert any("documents" in line and line.startswith("lost: ") for line in report.lines)
    Index(path).check()
    assert 10 <= len(Index(path)) < 58
    aside = put_aside(path)
    assert first(aside, "embeddings.npy").read_bytes() == embeddings
    first(aside, "documents.sqlite").write_bytes(content)
    assert answers(aside) == expected
    assert repair(path) == (["nothing is damaged"], False)


def test_a_document_whose_text_is_damaged_is_lost_alone_and_put_aside(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    database = first(path, "documents.sqlite")
    database.write_bytes(database.read_bytes().replace(b"text 31", b"test 31"))
    report = repair(path)
    assert report.lost
    assert "lost: 1 documents" in report.lines
    assert len(Index(path)) == 57
    assert "d031" not in Index(path)
    assert put_aside(path).is_dir()


def test_a_reader_keeps_its_files_when_they_are_put_aside(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    reader = Index(path)
    database = first(path, "documents.sqlite")
    database.write_bytes(database.read_bytes().replace(b"text 31", b"test 31"))
    assert repair(path).lost
    wanted = next(document for document in Index(sound).documents() if document.docno == "d005").encoded
    assert wanted is not None
    for gather in ("cells", "faiss"):  # whose files the reader opens now
        assert [hit.docno for hit in reader.search(wanted, gather=gather, k=1)] == ["d005"]


def test_a_commit_that_the_copy_of_the_manifest_does_not_have_is_put_aside(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    earlier = (path / MANIFEST_COPY).read_bytes()
    Index(path).add([Document("later", "text", {}, random_text(np.random.default_rng(5), 4))])
    (path / MANIFEST_COPY).write_bytes(earlier)  # as on a disk that was full just then
    newest = Manifest.read(path).segments[-1].name
    flip(path / MANIFEST)
    report = repair(path)
    assert report.lost
    assert "later" not in Index(path)
    Index(path).add([Document("latest", "text", {}, random_text(np.random.default_rng(6), 4))])
    assert (put_aside(path) / "segments" / newest / "documents.sqlite").is_file()


def test_documents_without_text_keep_the_embeddings_that_they_brought(tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    rng = np.random.default_rng(0)
    items = [Document(f"d{i}", "", {"i": i}, random_text(rng, i)) for i in range(5)]  # the first has none
    Index.build(path, items, encoder=None)
    expected = answers(path)
    flip(first(path, "frequencies.npy"))
    assert not repair(path).lost
    assert answers(path) == expected
    assert len(Index(path)) == 5
    flip(first(path, "centre.npy", "codebooks"))
    assert repair(path).lost
    assert [document.docno for document in Index(path).documents()] == ["d0"]


def test_text_that_is_blank_is_not_encoded_in_place_of_embeddings_that_were_brought(
    encoder: OnnxEncoder, tmp_path: Path
) -> None:
    path = tmp_path / "i.sec"
    index = Index.build(path, [{"docno": "text", "text": "Cats sleep."}], encoder=encoder)
    blank = Document("blank", "", {}, random_text(np.random.default_rng(0), 4, 96))
    index.change(lambda writer: writer.add([("", blank)], None, None, replacing=False))
    flip(first(path, "centre.npy", "codebooks"))
    report = repair(path)
    assert report.lost
    assert [document.docno for document in Index(path).documents()] == ["text"]


def test_the_command_ends_with_1_if_anything_is_lost_and_does_not_say_that_all_is_well(
    sound: Path, tmp_path: Path
) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    first(path, "documents.sqlite").unlink()
    done = CliRunner().invoke(app, ["check", str(path), "--repair"])
    assert done.exit_code == 1
    assert "lost: 48 documents" in done.output
    assert str(put_aside(path)) in done.output
    assert "every byte is as it was written" not in done.output
    again = CliRunner().invoke(app, ["check", str(path), "--repair"])
    assert again.exit_code == 0
    assert "every byte is as it was written" in again.output


def test_check_reads_the_copy_of_the_manifest_too(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path / "i.sec")
    flip(tmp_path / "i.sec" / MANIFEST_COPY)
    with pytest.raises(DamagedIndexError, match=MANIFEST_COPY):
        Index(tmp_path / "i.sec").check()


def test_what_cannot_be_rebuilt_is_named_and_the_rest_is_kept(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    flip(first(path, "embeddings.npy"), at=0.999)
    report = repair(path)
    lost = [line.split("'")[1] for line in report.lines if line.startswith("lost: '")]
    assert 1 <= len(lost) <= 8  # one block of 64 rows
    assert report.lost
    index = Index(path)
    index.check()
    assert len(index) == 58 - len(lost)
    assert not any(docno in index for docno in lost)


def test_a_damaged_list_of_deletions_brings_the_documents_back_and_says_so(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    shutil.copytree(sound, path)
    flip(first(path, "numbers.npy", "deletions"))
    report = repair(path)
    assert report.lost
    assert any("back again" in line for line in report.lines)
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
    report = repair(path)
    assert not report.lost
    assert "no document is lost" in report.lines
    assert any("encoded again from their text" in line for line in report.lines)
    found = [(hit.docno, hit.score) for hit in Index(path, encoder).search("where are flowers")]
    assert [docno for docno, _ in found] == [docno for docno, _ in expected]
    assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=0.05)

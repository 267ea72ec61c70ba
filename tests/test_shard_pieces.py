"""The pieces, plans and sources of a build of shards, which need no cluster."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from conftest import random_documents

from secateurs import Document
from secateurs.cluster.build import tasks
from secateurs.cluster.build.pieces import (
    HELD,
    PieceLostError,
    Pieces,
    is_written,
    split,
    write_piece,
)
from secateurs.cluster.build.plan import BUILDING, Plan, Scale, check_collection_target
from secateurs.cluster.build.sources import Source
from secateurs.cluster.layout import ShardRecord, shard_of
from secateurs.encoders.built_in import LAYERS
from secateurs.encoders.model_folder import wheel_folder
from secateurs.errors import SecateursError, UsageError
from secateurs.storage import sampling
from secateurs.storage.recipe import Recipe
from secateurs.threads import granted_cores, usable_cores


def test_pieces_are_of_one_shard_in_order_and_bounded() -> None:
    documents = [(f"place {i}", Document(f"d{i}")) for i in range(1000)]
    room = 40 * 525  # bytes: a docno of at most 4 characters is 25 with its punctuation
    pieces = list(split(iter(documents), 7, size=10, held=room))
    for shard in range(7):
        of_shard = [piece for piece in pieces if piece.shard == shard]
        assert [piece.number for piece in of_shard] == list(range(len(of_shard)))
        held = [document for piece in of_shard for document in piece.documents]
        assert held == [item for item in documents if shard_of(item[1].docno, 7) == shard]
    assert max(len(piece.documents) for piece in pieces) <= 10
    assert pieces == list(split(iter(documents), 7, size=10, held=room))

    waiting, most = 0, 0
    taken = split((waiting_one for waiting_one in documents), 7, size=10, held=room)
    read = {docno: i for i, (_, document) in enumerate(documents) for docno in [document.docno]}
    for piece in taken:
        newest = max(read[document.docno] for _, document in piece.documents)
        waiting += len(piece.documents)
        most = max(most, newest + 1 - waiting)
    assert most <= 40


def test_a_piece_of_long_documents_has_fewer_of_them() -> None:
    texts = [("", Document(f"d{i}", "x" * (100 if i == 3 else 30))) for i in range(8)]
    pieces = [[document.docno for _, document in piece.documents] for piece in split(texts, 1, characters=90)]
    assert pieces == [["d0", "d1", "d2"], ["d3"], ["d4", "d5", "d6"], ["d7"]]


def test_pieces_stay_large_with_very_many_shards() -> None:
    texts = (("", Document(f"d{i}", "x" * 300)) for i in range(60_000))
    pieces = [len(piece.documents) for piece in split(texts, 100, held=HELD // 10)]  # as 1,000 shards in all of it
    assert np.mean(pieces[:-100]) > 400  # the last of each shard is what remains


def test_a_sample_has_about_as_many_rows_as_it_should_from_every_document() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64, 50, dtype=np.uint64)
    offsets = np.arange(0, 50 * 1000 + 1, 1000)
    drawn = sampling.sampled_rows(hashes, offsets, 2**64 // 10)
    assert np.all(np.abs(np.bincount(drawn // 1000, minlength=50) - 100) <= 5)
    assert len(sampling.sampled_rows(hashes, offsets, sampling.sample_bound(50_000))) == 50_000


def test_a_folder_that_no_build_has_written_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "big.sec"
    for strange in ("building/notes.txt", "shard-0000.old/notes.txt", "notes.txt"):
        path = folder / strange
        path.parent.mkdir(parents=True)
        path.write_text("mine")
        if not strange.startswith("building"):
            (folder / BUILDING).mkdir()
            (folder / BUILDING / "plan.json").write_text("{}")
        with pytest.raises(SecateursError, match="left as it is"):
            check_collection_target(folder, True)
        tasks.tidy(folder, [])
        assert path.exists() or strange.startswith("building")
        shutil.rmtree(folder)
    for ours in ("shard-0000", "shard-0001-0a1b2c", ".shard-10000-0a1b2c.building-host-1-2", "building"):
        (folder / ours).mkdir(parents=True)
    (folder / BUILDING / "write.lock").touch()
    check_collection_target(folder, False)
    tasks.tidy(folder, ["shard-0000"])
    assert [path.name for path in folder.iterdir()] == ["shard-0000"]


def test_the_state_of_a_folder_changes_only_with_the_files_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one")
    source = Source.of(tmp_path)
    state = source.state()
    (tmp_path / "big.sec" / BUILDING).mkdir(parents=True)
    (tmp_path / "big.sec" / BUILDING / "plan.json").write_text("{}")
    assert source.state() == state
    (tmp_path / "one.txt").rename(tmp_path / "two.txt")
    assert source.state() != state


def test_a_folder_of_beir_is_its_corpus_file_and_standard_input_is_refused(tmp_path: Path) -> None:
    (tmp_path / "queries.jsonl").write_text('{"_id": "q", "text": "fish"}\n')
    (tmp_path / "corpus.jsonl").write_text('{"_id": "1", "text": "swim"}\n')
    source = Source.of(tmp_path)
    assert source.given == str(tmp_path / "corpus.jsonl")
    assert [document.docno for _, document in source.read(None)] == ["1"]
    with pytest.raises(UsageError, match="standard input cannot be read again"):
        Source.of("-")


def test_a_task_uses_the_cores_it_was_granted_and_others_all(monkeypatch: pytest.MonkeyPatch) -> None:
    before = usable_cores()
    with granted_cores(before + 2):
        assert usable_cores() == before + 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert usable_cores() == before


def test_a_plan_of_another_version_counts_as_missing(tmp_path: Path) -> None:
    plan = Plan((ShardRecord("shard-0000"),), {}, "int8", (), None, 1, None)
    plan.write(tmp_path)
    assert Plan.read(tmp_path) == plan
    for other in ("{}", "[]", "null", json.dumps(asdict(plan) | {"colour": "green"})):
        (tmp_path / "plan.json").write_text(other)
        (tmp_path / "scale.json").write_text(other)
        assert Plan.read(tmp_path) is None
        assert Scale.read(tmp_path, plan) is None


@pytest.mark.parametrize("share", [0.5, 0.97])  # in an array, and in the directory of the archive
def test_a_flipped_byte_in_a_piece_is_found_and_the_piece_is_removed(tmp_path: Path, share: float) -> None:
    path = tmp_path / "00000-000000.npz"
    documents = [("here", document) for document in random_documents(20)]
    write_piece(path, documents, None, Recipe("int8", ()), "digest")
    assert is_written(path, "digest")
    assert not is_written(path, "another")
    content = bytearray(path.read_bytes())
    content[int(len(content) * share)] ^= 1
    path.write_bytes(content)
    assert not is_written(path, "digest")
    with pytest.raises(PieceLostError, match="give the same command again"):
        list(Pieces(tmp_path, [1]).items())
    assert not path.exists()


@pytest.mark.slow
def test_tasks_load_the_revision_of_a_hub_model_that_the_plan_records_and_not_the_newest(tmp_path: Path) -> None:
    """In the cache of the hub are two commits of a model, and the newer one is "main"."""
    older, newer = "a" * 40, "b" * 40
    repository = tmp_path / "models--someone--colbert"
    for commit, limit in ((older, 100), (newer, 200)):
        folder = repository / "snapshots" / commit
        folder.mkdir(parents=True)
        for name in ("model.onnx", "tokenizer.json"):
            (folder / name).symlink_to(wheel_folder() / name)
        np.save(folder / "projection.npy", LAYERS["colbert-small"].projection())
        (folder / "secateurs.json").write_text(json.dumps({"document_limit": limit}))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(newer)
    code = (
        "from secateurs.cluster.build import tasks; from secateurs.encoders import load_encoder; "
        f"encoder = load_encoder('someone/colbert', revision='{older}'); "
        "print(tasks.encoder_to_send(None, encoder, by_name=False), tasks.load_recorded_encoder(encoder.spec).settings)"
    )
    pytest.importorskip("huggingface_hub", reason='needs "secateurs[hub]"')
    environment = os.environ | {"HF_HUB_CACHE": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, env=environment)
    assert printed.startswith("None ")
    assert "document_limit=100" in printed

"""Shards are built on a Ray cluster as one index would be, whatever dies meanwhile."""

import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

import ray
from conftest import random_documents
from sharding import NotingEncoder, write_corpus

from secateurs import Document, EncodedText, Index
from secateurs.cluster import building, tasks
from secateurs.cluster.building import build_shards
from secateurs.cluster.layout import Layout, ShardRecord, shard_of
from secateurs.cluster.pieces import HELD, PieceLostError, Pieces, is_written, split, write_piece
from secateurs.cluster.plan import BUILDING, Plan, Scale, check_collection_target
from secateurs.cluster.sources import Source
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DuplicateDocumentError, LockedIndexError, SecateursError, UsageError
from secateurs.index import rows
from secateurs.index.locks import write_lock
from secateurs.threads import granted_cores, usable_cores

pytestmark = pytest.mark.usefixtures("ray_cluster")


def shards_of(folder: Path) -> list[Index]:
    return [Index(folder / record.name) for record in Layout.read(folder).shards]


def stored(indexes: Sequence[Index]) -> dict[str, tuple[Any, ...]]:
    """Everything that is kept of every document, by docno."""
    found: dict[str, tuple[Any, ...]] = {}
    for index in indexes:
        for document in index.documents():
            assert document.docno not in found
            encoded = document.encoded
            assert encoded is not None
            arrays = (encoded.embeddings, encoded.token_ids, encoded.token_kinds)
            text = (document.text, json.dumps(document.metadata), encoded.cut)
            found[document.docno] = (*text, *(array.tobytes() for array in arrays))
    return found


def scale_of(index: Index) -> tuple[bytes, float] | None:
    int8 = index.snapshot.codebook.int8
    return None if int8 is None else (int8.centre.tobytes(), int8.step)


def assert_is_like_one_index(folder: Path, one: Index) -> None:
    shards = shards_of(folder)
    assert stored(shards) == stored([one])
    for number, shard in enumerate(shards):
        shard.check()
        assert all(shard_of(document.docno, len(shards)) == number for document in shard.documents())
        assert scale_of(shard) == scale_of(one)
        for name in ("store", "gather", "encoder", "dim"):
            assert getattr(shard.manifest, name) == getattr(one.manifest, name)
        assert shard.manifest.codebook.embeddings == shard.info()["embeddings"]
    assert not (folder / BUILDING).exists()


def test_pieces_are_of_one_shard_in_order_and_bounded() -> None:
    documents = [(f"place {i}", Document(f"d{i}")) for i in range(1000)]
    room = 40 * 525  # bytes: a docno of at most 4 characters is 25 with its punctuation
    pieces = list(split(iter(documents), 7, size=10, held=room))
    for shard in range(7):
        own = [piece for piece in pieces if piece.shard == shard]
        assert [piece.number for piece in own] == list(range(len(own)))
        held = [document for piece in own for document in piece.documents]
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


@pytest.mark.parametrize(
    ("store", "gather"), [("int8", ("cells",)), ("float16", ()), ("float16", ("cells", "faiss")), ("int8", ())]
)
def test_shards_are_what_one_index_would_be_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, gather: tuple[str, ...]
) -> None:
    documents = random_documents(200)
    one = Index.build(tmp_path / "one.sec", documents, encoder=None, store=store, gather=gather)
    random.Random(1).shuffle(documents)
    facts = build_shards(tmp_path / "big.sec", documents, shards=3, encoder=None, store=store, gather=gather)
    assert_is_like_one_index(tmp_path / "big.sec", one)
    info = one.info()
    assert facts["shards"] == 3
    assert (facts["documents"], facts["embeddings"]) == (info["documents"], info["embeddings"])


def test_the_scale_is_the_same_when_it_is_fitted_to_a_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = random_documents(300)
    everything = Index.build(tmp_path / "all.sec", documents, encoder=None)
    monkeypatch.setattr(rows, "SAMPLE", 100)
    one = Index.build(tmp_path / "one.sec", documents, encoder=None)
    assert scale_of(one) != scale_of(everything)
    build_shards(tmp_path / "big.sec", reversed(documents), shards=4, encoder=None)
    assert_is_like_one_index(tmp_path / "big.sec", one)


def test_a_sample_has_about_as_many_rows_as_it_should_from_every_document() -> None:
    hashes = np.random.default_rng(0).integers(0, 2**64, 50, dtype=np.uint64)
    offsets = np.arange(0, 50 * 1000 + 1, 1000)
    drawn = rows.sampled_rows(hashes, offsets, 2**64 // 10)
    assert np.all(np.abs(np.bincount(drawn // 1000, minlength=50) - 100) <= 5)
    assert len(rows.sampled_rows(hashes, offsets, rows.sample_bound(50_000))) == 50_000


def test_files_are_read_by_tasks_and_encoded_once(tmp_path: Path) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    corpus = write_corpus(tmp_path)
    build_shards(tmp_path / "big.sec", corpus, shards=3, encoder=encoder)
    assert encoder.encoded() == {f"text {i}": 1 for i in range(120)}
    lines = [line.split("\t") for path in corpus for line in path.read_text().splitlines()]
    one = Index.build(tmp_path / "one.sec", [Document(*line) for line in lines], encoder=encoder)
    assert_is_like_one_index(tmp_path / "big.sec", one)
    for number, shard in enumerate(shards_of(tmp_path / "big.sec")):  # in the order of the corpus
        docnos = [document.docno for document in shard.documents()]
        assert docnos == [docno for docno, _ in lines if shard_of(docno, 3) == number]


def pieces_with(text: str, shards: int) -> set[str]:
    """The texts of the piece that a text is in, where each file of 20 documents has one piece per shard."""
    number = int(text.split()[1])
    file = range(number // 20 * 20, number // 20 * 20 + 20)
    return {f"text {i}" for i in file if shard_of(f"d{i}", shards) == shard_of(f"d{number}", shards)}


def test_a_killed_worker_costs_one_piece(tmp_path: Path) -> None:
    encoder = NotingEncoder(tmp_path / "notes", die_at="text 50")
    build_shards(tmp_path / "big.sec", write_corpus(tmp_path), shards=2, encoder=encoder)
    assert encoder.wait_for_trouble()
    assert sum(len(shard) for shard in shards_of(tmp_path / "big.sec")) == 120
    twice = {text for text, count in encoder.encoded().items() if count == 2}
    assert "text 50" in twice
    assert twice <= pieces_with("text 50", 2)
    assert set(encoder.encoded().values()) == {1, 2}


def test_a_killed_node_costs_what_ran_there(tmp_path: Path, ray_cluster: Any) -> None:
    victim = ray_cluster.add_node(node_name="victim", num_cpus=1, object_store_memory=80_000_000)
    ray_cluster.wait_for_nodes()
    (node_id,) = (node["NodeID"] for node in ray.nodes() if node["NodeName"] == "victim")
    encoder = NotingEncoder(tmp_path / "notes", wait_on=node_id)

    def kill() -> None:
        encoder.wait_for_trouble()
        ray_cluster.remove_node(victim, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    build_shards(tmp_path / "big.sec", write_corpus(tmp_path), shards=2, encoder=encoder)
    killer.join()
    assert sum(len(shard) for shard in shards_of(tmp_path / "big.sec")) == 120
    twice = [text for text, count in encoder.encoded().items() if count == 2]
    assert len(twice) == 1  # it waited at the first that it was given
    assert set(encoder.encoded().values()) == {1, 2}


def test_a_killed_build_goes_on_where_it_stopped(tmp_path: Path, ray_cluster: Any) -> None:
    encoder = NotingEncoder(tmp_path / "notes", wait_at="text 50")
    corpus = write_corpus(tmp_path)
    code = (
        "import sys; from pathlib import Path; from sharding import NotingEncoder; "
        "from secateurs.cluster.building import build_shards; root, *corpus = map(Path, sys.argv[2:]); "
        "build_shards(root / 'big.sec', corpus, shards=2, ray_address=sys.argv[1], "
        "encoder=NotingEncoder(root / 'notes', wait_at='text 50'))"
    )
    here = str(Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
    arguments = [ray_cluster.address, str(tmp_path), *map(str, corpus)]
    build = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment)
    encoder.wait_for_trouble()
    folder = tmp_path / "big.sec"
    while len(list(folder.glob("building/shard-*/*.npz"))) < 6:
        assert build.poll() is None
        time.sleep(0.02)
    build.send_signal(signal.SIGKILL)
    build.wait()
    done = list(folder.glob("building/shard-*/*.npz"))
    with pytest.raises(SecateursError, match="is not a collection in shards"):
        Layout.read(folder)
    texts = {document.text for path in done for _, document in read_piece(path)}
    assert 0 < len(texts) < 120

    with pytest.raises(SecateursError, match=r"other settings \(number of shards, store\).*--overwrite"):
        build_shards(folder, corpus, shards=3, store="float16", encoder=encoder)
    build_shards(folder, corpus, shards=2, encoder=encoder)
    assert {encoder.encoded()[text] for text in texts} == {1}
    assert sum(len(shard) for shard in shards_of(folder)) == 120


def read_piece(path: Path) -> list[Any]:
    source, number = (int(part) for part in path.stem.split("-"))
    pieces = Pieces(path.parent, [0] * source + [number + 1])
    pieces._paths = [path]
    return list(pieces.items())


def test_what_a_failed_build_has_encoded_is_used_with_another_store(tmp_path: Path) -> None:
    encoder = NotingEncoder(tmp_path / "notes", fail_at="text 119")
    corpus = write_corpus(tmp_path)
    with pytest.raises(SecateursError, match=r"^no room for text 119$"):
        build_shards(tmp_path / "big.sec", corpus, shards=2, encoder=encoder)
    before = encoder.encoded()
    build_shards(tmp_path / "big.sec", corpus, shards=2, store="float16", encoder=encoder, overwrite=True)
    after = encoder.encoded() - before
    assert set(after) < {f"text {i}" for i in range(120)}
    assert "text 119" in after
    assert {shard.manifest.store for shard in shards_of(tmp_path / "big.sec")} == {"float16"}


def test_finished_shards_are_not_made_again_and_nothing_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    corpus = write_corpus(tmp_path)
    folder = tmp_path / "big.sec"
    real = tasks.finish_shard

    def finish_some(folder: Path, plan: Any, shard: int, scale: Any) -> Any:
        if shard == 1:
            others = [folder / BUILDING / f"shard-000{n}" for n in (0, 2)]
            while not all((other / "finished.json").exists() and not [*other.glob("*.npz")] for other in others):
                time.sleep(0.02)
            raise OSError("no space left")
        return real(folder, plan, shard, scale)

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with monkeypatch.context() as patched:
        patched.setattr(tasks, "finish_shard", finish_some)
        with pytest.raises(OSError, match="no space left"):
            build_shards(folder, corpus, shards=3, encoder=encoder)
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    made = {name: Index(folder / name).manifest.segments[0].name for name in ("shard-0000", "shard-0002")}
    assert not list(folder.glob("building/shard-0000/*.npz"))

    monkeypatch.setattr(building, "read_sources", None)
    build_shards(folder, corpus, shards=3, encoder=encoder)
    assert {name: Index(folder / name).manifest.segments[0].name for name in made} == made
    assert set(encoder.encoded().values()) == {1}
    assert sum(len(shard) for shard in shards_of(folder)) == 120


def test_documents_of_a_program_are_compared_when_a_build_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = random_documents(20)
    with monkeypatch.context() as patched:
        patched.setattr(building._Build, "_commit", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_shards(tmp_path / "big.sec", documents, shards=2, encoder=None)
        with pytest.raises(ZeroDivisionError):
            build_shards(tmp_path / "other.sec", documents, shards=2, encoder=None)
    with pytest.raises(SecateursError, match=r"unfinished build with other settings \(documents\)"):
        build_shards(tmp_path / "big.sec", documents[:-1], shards=2, encoder=None)
    build_shards(tmp_path / "big.sec", documents, shards=2, encoder=None)
    assert sum(len(shard) for shard in shards_of(tmp_path / "big.sec")) == 20
    build_shards(tmp_path / "other.sec", iter(documents[:-1]), shards=2, encoder=None, overwrite=True)
    assert sum(len(shard) for shard in shards_of(tmp_path / "other.sec")) == 19


def test_a_collection_stays_until_the_new_one_is_ready(tmp_path: Path) -> None:
    folder = tmp_path / "big.sec"
    build_shards(folder, random_documents(20), shards=2, encoder=None)
    before = stored(shards_of(folder))
    with pytest.raises(SecateursError, match="already"):
        build_shards(folder, random_documents(30), shards=3, encoder=None)
    encoder = NotingEncoder(tmp_path / "notes", fail_at="text 119")
    corpus = write_corpus(tmp_path)
    with pytest.raises(SecateursError, match="no room"):
        build_shards(folder, corpus, shards=3, encoder=encoder, overwrite=True)
    assert stored(shards_of(folder)) == before
    build_shards(folder, corpus, shards=3, encoder=encoder, overwrite=True)
    assert sum(len(shard) for shard in shards_of(folder)) == 120
    names = {record.name for record in Layout.read(folder).shards}
    assert {path.name for path in folder.iterdir()} == names | {"shards.json"}


def test_an_open_shard_stays_readable_when_its_collection_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "big.sec"
    build_shards(folder, random_documents(20), shards=1, encoder=None)
    opened = shards_of(folder)
    before = stored(opened)
    build_shards(folder, random_documents(10), shards=1, encoder=None, overwrite=True)
    assert stored(opened) == before
    assert len(shards_of(folder)[0]) == 10
    del opened
    gc.collect()
    build_shards(folder, random_documents(5), shards=1, encoder=None, overwrite=True)
    (record,) = Layout.read(folder).shards
    assert {path.name for path in folder.iterdir()} == {record.name, "shards.json"}


def test_bad_and_repeated_documents_are_told_with_their_places_or_skipped(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    good = [json.dumps({"docno": f"d{i}", "text": f"text {i}"}) for i in range(30)]
    first.write_text("\n".join([*good[:10], "not json", *good[10:20]]) + "\n")
    second.write_text("\n".join([*good[20:], good[3].replace("text 3", "another")]) + "\n")
    encoder = NotingEncoder(tmp_path / "notes")
    with pytest.raises(SecateursError, match=r"^\S*first.jsonl, line 11: not JSON"):
        build_shards(tmp_path / "big.sec", [first, second], shards=2, encoder=encoder)
    first.write_text("\n".join(good[:20]) + "\n")
    repeated = r"second.jsonl, line 11: docno 'd3' is already that of \S*first.jsonl, line 4\. .*--skip-bad"
    with pytest.raises(DuplicateDocumentError, match=repeated):
        build_shards(tmp_path / "big.sec", [first, second], shards=2, encoder=encoder, overwrite=True)
    before = encoder.encoded()
    told: list[str] = []
    build_shards(tmp_path / "big.sec", [first, second], shards=2, encoder=encoder, on_bad=told.append)
    assert encoder.encoded() == before
    assert len(told) == 1
    one = Index.build(tmp_path / "one.sec", [json.loads(line) for line in good], encoder=encoder)
    assert_is_like_one_index(tmp_path / "big.sec", one)

    first.write_text("\n".join([*good[:10], "not json", *good[10:20]]) + "\n")
    told.clear()
    build_shards(tmp_path / "big.sec", [first, second], shards=2, encoder=encoder, on_bad=told.append, overwrite=True)
    assert [problem.partition(":")[0] for problem in told] == [f"{first}, line 11", f"{second}, line 11"]
    assert_is_like_one_index(tmp_path / "big.sec", one)


def test_the_same_file_twice_is_every_docno_twice(tmp_path: Path) -> None:
    (path,) = write_corpus(tmp_path, files=1)
    told: list[str] = []
    build_shards(
        tmp_path / "big.sec", [path, path], shards=2, encoder=NotingEncoder(tmp_path / "notes"), on_bad=told.append
    )
    assert len(told) == 20
    assert sum(len(shard) for shard in shards_of(tmp_path / "big.sec")) == 20


@pytest.mark.parametrize("store", ["int8", "residual4", "float16"])
def test_an_empty_shard_is_an_index_like_the_others(tmp_path: Path, store: str) -> None:
    document = random_documents(1)[0]
    build_shards(tmp_path / "big.sec", [document], shards=3, encoder=None, store=store)
    shards = shards_of(tmp_path / "big.sec")
    assert sorted(len(shard) for shard in shards) == [0, 0, 1]
    assert len({scale_of(shard) for shard in shards}) == 1
    for shard in shards:
        shard.check()
        assert shard.manifest.dim == 16
        assert document.encoded is not None
        assert len(shard.search(document.encoded)) == len(shard)


def test_nothing_at_all_makes_empty_shards(tmp_path: Path) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    build_shards(tmp_path / "big.sec", [], shards=2, encoder=encoder)
    for shard in shards_of(tmp_path / "big.sec"):
        assert (len(shard), shard.manifest.dim, shard.manifest.encoder) == (0, 16, encoder.spec)


def test_each_shard_is_built_on_its_node(tmp_path: Path, ray_cluster: Any) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    build_shards(tmp_path / "big.sec", write_corpus(tmp_path), shards=5, encoder=encoder, per_node=True)
    records = Layout.read(tmp_path / "big.sec").shards
    assert [record.node for record in records] == ["head", "one", "two", "head", "one"]
    names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
    for i in range(120):
        assert names[encoder.nodes()[f"text {i}"]] == records[shard_of(f"d{i}", 5)].node


def test_a_node_that_is_gone_is_named_and_the_build_goes_on_when_it_is_back(tmp_path: Path, ray_cluster: Any) -> None:
    options = {"node_name": "victim", "num_cpus": 1, "object_store_memory": 80_000_000}
    victim = ray_cluster.add_node(**options)
    ray_cluster.wait_for_nodes()
    (node_id,) = (node["NodeID"] for node in ray.nodes() if node["NodeName"] == "victim" and node["Alive"])
    encoder = NotingEncoder(tmp_path / "notes", wait_on=node_id)
    corpus = write_corpus(tmp_path)

    def build() -> None:
        build_shards(tmp_path / "big.sec", corpus, shards=4, encoder=encoder, per_node=True)

    def kill() -> None:
        encoder.wait_for_trouble()
        ray_cluster.remove_node(victim, allow_graceful=False)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(SecateursError, match="node 'victim', on whose disk shard-0003 is built, is not there"):
        build()
    killer.join()
    with pytest.raises(SecateursError, match="node 'victim'"):
        build_shards(tmp_path / "big.sec", corpus, shards=4, encoder=encoder, per_node=True)
    back = ray_cluster.add_node(**options)
    ray_cluster.wait_for_nodes()
    build()
    assert [record.node for record in Layout.read(tmp_path / "big.sec").shards] == ["head", "one", "two", "victim"]
    assert sum(len(shard) for shard in shards_of(tmp_path / "big.sec")) == 120
    ray_cluster.remove_node(back, allow_graceful=False)


class Unpicklable(NotingEncoder):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = threading.Lock()


def test_an_encoder_of_its_own_settings_must_be_a_model_folder(tmp_path: Path, encoder: OnnxEncoder) -> None:
    own = OnnxEncoder.load(settings=replace(encoder.settings, document_limit=20))
    with pytest.raises(UsageError, match="save them in a model folder"):
        build_shards(tmp_path / "big.sec", [], shards=1, encoder=own)
    assert not (tmp_path / "big.sec").exists()
    assert building.to_send(ray, encoder, by_name=False) is None


def test_a_folder_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
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


def test_a_collection_that_appears_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout((ShardRecord("shard-0000"),), "somebody")

    def connect(address: str | None) -> Any:
        (tmp_path / "big.sec").mkdir()
        layout.write(tmp_path / "big.sec")
        return ray

    monkeypatch.setattr(building, "connect", connect)
    with pytest.raises(SecateursError, match="there is a collection in shards at"):
        build_shards(tmp_path / "big.sec", random_documents(5), shards=1, encoder=None)
    assert Layout.read(tmp_path / "big.sec") == layout


def test_a_build_that_failed_before_its_first_piece_asks_nothing(tmp_path: Path) -> None:
    (corpus,) = write_corpus(tmp_path, files=1)
    good = corpus.read_text()
    corpus.write_text(good + "no tab\n")
    with pytest.raises(SecateursError, match=r"line 21: no tab .* with --overwrite goes on: what is encoded is kept"):
        build_shards(tmp_path / "big.sec", corpus, shards=2, encoder=NotingEncoder(tmp_path / "notes"))
    corpus.write_text(good)
    build_shards(tmp_path / "big.sec", corpus, shards=2, encoder=NotingEncoder(tmp_path / "notes"))
    assert sum(len(shard) for shard in shards_of(tmp_path / "big.sec")) == 20


def test_a_folder_is_known_again_by_the_files_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one")
    source = Source.of(tmp_path)
    state = source.state()
    (tmp_path / "big.sec" / BUILDING).mkdir(parents=True)
    (tmp_path / "big.sec" / BUILDING / "plan.json").write_text("{}")
    assert source.state() == state
    (tmp_path / "one.txt").rename(tmp_path / "two.txt")
    assert source.state() != state


def test_a_corpus_that_changes_while_it_is_read_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (corpus,) = write_corpus(tmp_path, files=1)
    encoder = NotingEncoder(tmp_path / "notes")
    encode = building._Build._encode

    def encode_and_change(*arguments: Any) -> Any:
        found = encode(*arguments)
        corpus.write_text(corpus.read_text() + "d20\ttext 20\n")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(building._Build, "_encode", encode_and_change)
        with pytest.raises(SecateursError, match="has changed while it was read"):
            build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=encoder)
    build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=encoder, overwrite=True)
    assert len(shards_of(tmp_path / "big.sec")[0]) == 21


def test_a_task_uses_the_cores_it_was_granted_and_others_all(monkeypatch: pytest.MonkeyPatch) -> None:
    before = usable_cores()
    with granted_cores(before + 2):
        assert usable_cores() == before + 2
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert usable_cores() == before


def test_what_another_version_has_written_is_as_if_it_were_not_there(tmp_path: Path) -> None:
    plan = Plan((ShardRecord("shard-0000"),), {}, "int8", (), None)
    plan.write(tmp_path)
    assert Plan.read(tmp_path) == plan
    for other in ("{}", "[]", "null", json.dumps(asdict(plan) | {"colour": "green"})):
        (tmp_path / "plan.json").write_text(other)
        (tmp_path / "scale.json").write_text(other)
        assert Plan.read(tmp_path) is None
        assert Scale.read(tmp_path, plan) is None


def test_embeddings_of_nothing_have_their_dimensions(tmp_path: Path) -> None:
    nothing = EncodedText(np.zeros((0, 16), np.float32), np.zeros(0), np.zeros(0))
    documents = [Document(f"d{i}", encoded=nothing) for i in range(3)]
    one = Index.build(tmp_path / "one.sec", documents, encoder=None)
    build_shards(tmp_path / "big.sec", documents, shards=2, encoder=None)
    assert one.manifest.dim == 16
    assert_is_like_one_index(tmp_path / "big.sec", one)


def test_what_cannot_be_is_told_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (corpus,) = write_corpus(tmp_path, files=1)
    for wrong, message in (
        ({"shards": 0}, "at least one shard"),
        ({"store": "int4"}, "store is one of"),
        ({"gather": ("graphs",)}, "graphs"),
        ({"encoder": "no-such-model", "encoder_kind": "bert"}, "encoder kind"),
    ):
        with pytest.raises(UsageError, match=message):
            build_shards(tmp_path / "big.sec", corpus, **{"shards": 2, "encoder": None} | wrong)  # type: ignore[arg-type]
    with pytest.raises(SecateursError, match="there is no file"):
        build_shards(tmp_path / "big.sec", [corpus, tmp_path / "other.tsv"], shards=2, encoder=None)
    with pytest.raises(SecateursError, match="is not a collection in shards: it is left as it is"):
        build_shards(tmp_path, corpus, shards=2, encoder=None)
    with pytest.raises(UsageError, match="cannot be sent to other processes") as caught:
        build_shards(tmp_path / "big.sec", corpus, shards=2, encoder=Unpicklable(tmp_path / "notes"))
    assert "\n" not in str(caught.value)
    with monkeypatch.context() as patched:
        patched.setattr(ray, "is_initialized", lambda: False)
        with pytest.raises(UsageError, match="Ray client server"):
            build_shards(tmp_path / "big.sec", corpus, shards=2, encoder=None, ray_address="ray://127.0.0.1:1")
    with monkeypatch.context() as patched:
        patched.setattr(ray, "nodes", lambda: [{"Alive": True, "NodeName": "head", "Resources": {}}])
        for per_node in (True, False):
            with pytest.raises(SecateursError, match="no machine of the Ray cluster has a CPU"):
                build_shards(tmp_path / "big.sec", corpus, shards=2, encoder=None, per_node=per_node)
    assert not (tmp_path / "big.sec").exists()
    with pytest.raises(UsageError, match="'d0' has no embeddings"):
        build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=None)


def test_two_builds_of_one_collection_do_not_meet(tmp_path: Path) -> None:
    folder = tmp_path / "big.sec" / BUILDING
    folder.mkdir(parents=True)
    with write_lock(folder), pytest.raises(LockedIndexError, match="another process is building"):
        build_shards(tmp_path / "big.sec", [], shards=2, encoder=None)


def test_embeddings_of_different_dimensions_are_refused(tmp_path: Path) -> None:
    documents = [*random_documents(10), *random_documents(1, dim=8)]
    documents[-1] = Document("last", encoded=documents[-1].encoded)
    with pytest.raises(UsageError, match=r"8 dimensions|of 8"):
        build_shards(tmp_path / "big.sec", documents, shards=4, encoder=None)


def test_pieces_stay_large_with_very_many_shards() -> None:
    texts = (("", Document(f"d{i}", "x" * 300)) for i in range(60_000))
    pieces = [len(piece.documents) for piece in split(texts, 100, held=HELD // 10)]  # as 1,000 shards in all of it
    assert np.mean(pieces[:-100]) > 400  # the last of each shard is what remains


@pytest.mark.parametrize("share", [0.5, 0.98])
def test_a_flipped_byte_in_a_piece_is_noticed_and_the_piece_goes(tmp_path: Path, share: float) -> None:
    path = tmp_path / "00000-000000.npz"
    documents = [("here", document) for document in random_documents(20)]
    write_piece(path, documents, None, "digest")
    assert is_written(path, "digest")
    assert not is_written(path, "another")
    content = bytearray(path.read_bytes())
    content[int(len(content) * share)] ^= 1
    path.write_bytes(content)
    assert not is_written(path, "digest")
    with pytest.raises(PieceLostError, match="give the same command again"):
        list(Pieces(tmp_path, [1]).items())
    assert not path.exists()


def test_a_piece_that_is_lost_at_the_end_is_made_again_and_finished_shards_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    corpus = write_corpus(tmp_path)
    folder = tmp_path / "big.sec"
    with monkeypatch.context() as patched:
        patched.setattr(building._Build, "_each_shard", stop_at_finish)
        with pytest.raises(ZeroDivisionError):
            build_shards(folder, corpus, shards=3, encoder=encoder)
    plan, first = Plan.read(folder / BUILDING), folder / BUILDING / "shard-0000"
    assert plan is not None
    scale = Scale.read(folder / BUILDING, plan)
    assert scale is not None
    tasks.finish_shard(folder, plan, 0, scale)
    assert [path.name for path in first.iterdir()] == ["finished.json"]
    made = Index(folder / "shard-0000").manifest.segments
    lost = folder / BUILDING / "shard-0001" / "00002-000000.npz"
    texts = {document.text for _, document in read_piece(lost)}
    lost.unlink()

    with pytest.raises(SecateursError, match="give the same command again"):
        build_shards(folder, corpus, shards=3, encoder=encoder)
    build_shards(folder, corpus, shards=3, encoder=encoder)
    assert encoder.encoded() == {f"text {i}": 2 if f"text {i}" in texts else 1 for i in range(120)}
    assert Index(folder / "shard-0000").manifest.segments == made
    assert sum(len(shard) for shard in shards_of(folder)) == 120


_each_shard = building._Build._each_shard


def stop_at_finish(build: Any, task: Any, *arguments: Any) -> Any:
    return 1 / 0 if task is tasks.finish_shard else _each_shard(build, task, *arguments)


def test_a_damaged_piece_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    corpus = write_corpus(tmp_path, files=2)
    with monkeypatch.context() as patched:
        patched.setattr(building._Build, "_fit", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=encoder)
    (first, second) = sorted((tmp_path / "big.sec").glob("building/*/*.npz"))
    first.write_bytes(first.read_bytes()[:-100])
    build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=encoder)
    assert encoder.encoded() == {f"text {i}": 2 if i < 20 else 1 for i in range(40)}
    assert second.name == "00001-000000.npz"


def test_the_command_builds_on_ray_of_its_own_with_the_real_encoder(
    tmp_path: Path, passages: list[dict[str, str]], encoder: OnnxEncoder
) -> None:
    for number in range(2):
        lines = [json.dumps(passage) for passage in passages[:60][number::2]]
        (tmp_path / f"part-{number}.jsonl").write_text("\n".join(lines) + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "secateurs", "shard", "build", "part-0.jsonl", "part-1.jsonl", "big.sec"]
    done = subprocess.run(
        [*command, "--shards", "2"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "60 documents" in done.stdout
    assert "in 2 shards" in done.stdout
    one = Index.build(tmp_path / "one.sec", passages[:60], encoder=encoder)
    assert_is_like_one_index(tmp_path / "big.sec", one)
    for wrong, message in (
        (command, "there is a collection in shards at"),
        ([*command[:-1], "other.sec", "--ray", "127.0.0.1:1"], "there is no Ray cluster at '127.0.0.1:1'"),
        ([*command[:5], "other.sec"], "name the corpus first"),
    ):
        failed = subprocess.run(wrong, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert failed.returncode in (1, 2)
        assert failed.stderr.startswith(f"secateurs: {message}")
        assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "other.sec").exists()

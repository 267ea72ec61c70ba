"""A build of shards whose workers, nodes or process are killed, or whose files are damaged, loses only what ran."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

import ray
from conftest import random_documents
from sharding import NotingEncoder, shards_of, write_corpus

from secateurs import Background, Index
from secateurs.cluster.build import builder, tasks
from secateurs.cluster.build.builder import build_shards
from secateurs.cluster.build.pieces import Pieces
from secateurs.cluster.build.plan import BUILDING, Plan, Scale
from secateurs.cluster.layout import Layout, shard_of
from secateurs.errors import SecateursError

pytestmark = pytest.mark.usefixtures("ray_cluster")


def pieces_with(text: str, shards: int) -> set[str]:
    """The texts of the piece that a text is in, where each file of 20 documents has one piece per shard."""
    number = int(text.split()[1])
    file = range(number // 20 * 20, number // 20 * 20 + 20)
    return {f"text {i}" for i in file if shard_of(f"d{i}", shards) == shard_of(f"d{number}", shards)}


def read_piece(path: Path) -> list[Any]:
    source, number = (int(part) for part in path.stem.split("-"))
    pieces = Pieces(path.parent, [0] * source + [number + 1])
    pieces._paths = [path]
    return list(pieces.items())


_each_shard = builder._Build._each_shard


def stop_at_finish(build: Any, task: Any, *arguments: Any) -> Any:
    return 1 / 0 if task is tasks.finish_shard else _each_shard(build, task, *arguments)


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


def test_a_killed_build_continues_where_it_stopped(tmp_path: Path, ray_cluster: Any) -> None:
    encoder = NotingEncoder(tmp_path / "notes", wait_at="text 50")
    corpus = write_corpus(tmp_path)
    code = (
        "import sys; from pathlib import Path; from sharding import NotingEncoder; "
        "from secateurs.cluster.build.builder import build_shards; root, *corpus = map(Path, sys.argv[2:]); "
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


def test_a_node_that_is_gone_is_named_and_the_build_continues_when_it_is_back(tmp_path: Path, ray_cluster: Any) -> None:
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


def test_a_build_that_failed_before_its_first_piece_needs_no_overwrite(tmp_path: Path) -> None:
    (corpus,) = write_corpus(tmp_path, files=1)
    good = corpus.read_text()
    corpus.write_text(good + "no tab\n")
    with pytest.raises(SecateursError, match=r"line 21: no tab .* with --overwrite goes on: what is encoded is kept"):
        build_shards(tmp_path / "big.sec", corpus, shards=2, encoder=NotingEncoder(tmp_path / "notes"))
    corpus.write_text(good)
    build_shards(tmp_path / "big.sec", corpus, shards=2, encoder=NotingEncoder(tmp_path / "notes"))
    assert sum(len(shard) for shard in shards_of(tmp_path / "big.sec")) == 20


def test_finished_shards_are_not_built_again_and_nothing_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    corpus = write_corpus(tmp_path)
    folder = tmp_path / "big.sec"
    real = tasks.finish_shard

    def finish_some(folder: Path, plan: Any, shard: int, *sent: Any) -> Any:
        if shard == 1:
            others = [folder / BUILDING / f"shard-000{n}" for n in (0, 2)]
            while not all((other / "finished.json").exists() and not [*other.glob("*.npz")] for other in others):
                time.sleep(0.02)
            raise OSError("no space left")
        return real(folder, plan, shard, *sent)

    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with monkeypatch.context() as patched:
        patched.setattr(tasks, "finish_shard", finish_some)
        with pytest.raises(OSError, match="no space left"):
            build_shards(folder, corpus, shards=3, encoder=encoder)
    ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    segments = {name: Index(folder / name).manifest.segments[0].name for name in ("shard-0000", "shard-0002")}
    assert not list(folder.glob("building/shard-0000/*.npz"))

    monkeypatch.setattr(builder, "pieces_of_sources", None)
    build_shards(folder, corpus, shards=3, encoder=encoder)
    assert {name: Index(folder / name).manifest.segments[0].name for name in segments} == segments
    assert set(encoder.encoded().values()) == {1}
    assert sum(len(shard) for shard in shards_of(folder)) == 120


def test_another_background_is_another_setting_when_a_build_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents, folder = random_documents(20), tmp_path / "big.sec"
    mine, other = (Background.of_counts("mine", "0" * 16, np.arange(2), np.array([1, n])) for n in (2, 3))
    with monkeypatch.context() as patched:
        patched.setattr(builder._Build, "_commit", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_shards(folder, documents, shards=2, encoder=None, background=mine)
    with pytest.raises(SecateursError, match=r"unfinished build with other settings \(background\)"):
        build_shards(folder, documents, shards=2, encoder=None, background=other)
    build_shards(folder, documents, shards=2, encoder=None, background=other, overwrite=True)
    for shard in shards_of(folder):
        assert shard.frequencies.background is not None
        assert shard.frequencies.background.collection_frequency([0, 1]).tolist() == [1, 3]


def test_documents_of_a_program_are_compared_when_a_build_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = random_documents(20)
    with monkeypatch.context() as patched:
        patched.setattr(builder._Build, "_commit", lambda self: 1 / 0)
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


def test_a_corpus_that_changes_while_it_is_read_is_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (corpus,) = write_corpus(tmp_path, files=1)
    encoder = NotingEncoder(tmp_path / "notes")
    encode = builder._Build._encode

    def encode_and_change(*arguments: Any) -> Any:
        found = encode(*arguments)
        corpus.write_text(corpus.read_text() + "d20\ttext 20\n")
        return found

    with monkeypatch.context() as patched:
        patched.setattr(builder._Build, "_encode", encode_and_change)
        with pytest.raises(SecateursError, match="has changed while it was read"):
            build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=encoder)
    build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=encoder, overwrite=True)
    assert len(shards_of(tmp_path / "big.sec")[0]) == 21


def test_a_damaged_piece_is_encoded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    corpus = write_corpus(tmp_path, files=2)
    with monkeypatch.context() as patched:
        patched.setattr(builder._Build, "_fit", lambda *arguments: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=encoder)
    (first, second) = sorted((tmp_path / "big.sec").glob("building/*/*.npz"))
    first.write_bytes(first.read_bytes()[:-100])
    build_shards(tmp_path / "big.sec", corpus, shards=1, encoder=encoder)
    assert encoder.encoded() == {f"text {i}": 2 if i < 20 else 1 for i in range(40)}
    assert second.name == "00001-000000.npz"


def test_a_piece_that_is_lost_at_the_end_is_encoded_again_and_finished_shards_are_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = NotingEncoder(tmp_path / "notes")
    corpus = write_corpus(tmp_path)
    folder = tmp_path / "big.sec"
    with monkeypatch.context() as patched:
        patched.setattr(builder._Build, "_each_shard", stop_at_finish)
        with pytest.raises(ZeroDivisionError):
            build_shards(folder, corpus, shards=3, encoder=encoder)
    plan, first = Plan.read(folder / BUILDING), folder / BUILDING / "shard-0000"
    assert plan is not None
    scale = Scale.read(folder / BUILDING, plan)
    assert scale is not None
    tasks.finish_shard(folder, plan, 0, scale, None)
    assert [path.name for path in first.iterdir()] == ["finished.json"]
    segments = Index(folder / "shard-0000").manifest.segments
    lost = folder / BUILDING / "shard-0001" / "00002-000000.npz"
    texts = {document.text for _, document in read_piece(lost)}
    lost.unlink()

    with pytest.raises(SecateursError, match="give the same command again"):
        build_shards(folder, corpus, shards=3, encoder=encoder)
    build_shards(folder, corpus, shards=3, encoder=encoder)
    assert encoder.encoded() == {f"text {i}": 2 if f"text {i}" in texts else 1 for i in range(120)}
    assert Index(folder / "shard-0000").manifest.segments == segments
    assert sum(len(shard) for shard in shards_of(folder)) == 120

"""Shards that are built on a Ray cluster hold what one index would hold."""

import gc
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ray")

import ray
from conftest import random_documents
from sharding import NotingEncoder, shards_of, write_corpus

from secateurs import Background, Document, EncodedText, Index, ShardedIndex, load_encoder
from secateurs.cluster.build import builder, tasks
from secateurs.cluster.build.builder import build_shards
from secateurs.cluster.build.plan import BUILDING
from secateurs.cluster.layout import Layout, ShardRecord, shard_of
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DuplicateDocumentError, LockedIndexError, SecateursError, UsageError
from secateurs.storage import sampling
from secateurs.storage.locks import write_lock

pytestmark = pytest.mark.usefixtures("ray_cluster")


def stored(indexes: Sequence[Index]) -> dict[str, tuple[Any, ...]]:
    """Everything that is stored of every document, by docno."""
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
        assert shard.manifest.codebook.background == one.manifest.codebook.background
        assert shard.manifest.codebook.embeddings == shard.info()["embeddings"]
    assert not (folder / BUILDING).exists()


@pytest.mark.parametrize(
    ("store", "gather"),
    [("int8", ("cells",)), ("int16", ("cells",)), ("float16", ()), ("float16", ("cells", "faiss")), ("int8", ())],
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
    monkeypatch.setattr(sampling, "SAMPLE", 100)
    one = Index.build(tmp_path / "one.sec", documents, encoder=None)
    assert scale_of(one) != scale_of(everything)
    build_shards(tmp_path / "big.sec", reversed(documents), shards=4, encoder=None)
    assert_is_like_one_index(tmp_path / "big.sec", one)


def test_every_shard_gets_the_background_that_one_index_gets(tmp_path: Path) -> None:
    mine = Background.of_counts("mine", "0" * 16, np.arange(30), np.arange(1, 31))
    mine.save(tmp_path / "mine.npz")
    one = Index.build(tmp_path / "one.sec", random_documents(40), encoder=None, background=mine)
    build_shards(tmp_path / "big.sec", random_documents(40), shards=2, encoder=None, background=tmp_path / "mine.npz")
    assert_is_like_one_index(tmp_path / "big.sec", one)
    for shard in shards_of(tmp_path / "big.sec"):
        background = shard.frequencies.background
        assert background is not None
        assert background.collection_frequency(np.arange(30)).tolist() == list(range(1, 31))


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


def test_a_collection_stays_until_the_new_one_is_ready(tmp_path: Path) -> None:
    folder = tmp_path / "big.sec"
    build_shards(folder, random_documents(20), shards=2, encoder=None)
    before = stored(shards_of(folder))
    with pytest.raises(SecateursError, match=r"already: .* replace it with --overwrite \(overwrite=True\)"):
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


def test_bad_and_repeated_documents_are_named_with_their_places_or_skipped(tmp_path: Path) -> None:
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
    problems: list[str] = []
    build_shards(tmp_path / "big.sec", [first, second], shards=2, encoder=encoder, on_bad=problems.append)
    assert encoder.encoded() == before
    assert len(problems) == 1
    one = Index.build(tmp_path / "one.sec", [json.loads(line) for line in good], encoder=encoder)
    assert_is_like_one_index(tmp_path / "big.sec", one)

    first.write_text("\n".join([*good[:10], "not json", *good[10:20]]) + "\n")
    problems.clear()
    build_shards(
        tmp_path / "big.sec", [first, second], shards=2, encoder=encoder, on_bad=problems.append, overwrite=True
    )
    assert [problem.partition(":")[0] for problem in problems] == [f"{first}, line 11", f"{second}, line 11"]
    assert_is_like_one_index(tmp_path / "big.sec", one)


def test_the_same_file_twice_is_every_docno_twice(tmp_path: Path) -> None:
    (path,) = write_corpus(tmp_path, files=1)
    problems: list[str] = []
    build_shards(
        tmp_path / "big.sec", [path, path], shards=2, encoder=NotingEncoder(tmp_path / "notes"), on_bad=problems.append
    )
    assert len(problems) == 20
    assert sum(len(shard) for shard in shards_of(tmp_path / "big.sec")) == 20


@pytest.mark.parametrize("store", ["int8", "int16", "residual4", "float16"])
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


def test_no_documents_make_empty_shards(tmp_path: Path) -> None:
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


class Unpicklable(NotingEncoder):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lock = threading.Lock()


def test_an_encoder_that_is_not_what_its_name_loads_is_refused(tmp_path: Path, encoder: OnnxEncoder) -> None:
    changed = OnnxEncoder.load(settings=replace(encoder.settings, document_limit=20))
    with pytest.raises(UsageError, match="save them in a model folder"):
        build_shards(tmp_path / "big.sec", [], shards=1, encoder=changed)
    assert not (tmp_path / "big.sec").exists()
    assert tasks.encoder_to_send(ray, encoder, by_name=False) is None


def test_a_collection_that_appears_meanwhile_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout((ShardRecord("shard-0000"),), "another build")

    def connect(address: str | None) -> Any:
        (tmp_path / "big.sec").mkdir()
        layout.write(tmp_path / "big.sec")
        return ray

    monkeypatch.setattr(builder, "connect", connect)
    with pytest.raises(SecateursError, match="there is a collection in shards at"):
        build_shards(tmp_path / "big.sec", random_documents(5), shards=1, encoder=None)
    assert Layout.read(tmp_path / "big.sec") == layout


def test_documents_without_embeddings_keep_their_dimensions(tmp_path: Path) -> None:
    nothing = EncodedText(np.zeros((0, 16), np.float32), np.zeros(0), np.zeros(0))
    documents = [Document(f"d{i}", encoded=nothing) for i in range(3)]
    one = Index.build(tmp_path / "one.sec", documents, encoder=None)
    build_shards(tmp_path / "big.sec", documents, shards=2, encoder=None)
    assert one.manifest.dim == 16
    assert_is_like_one_index(tmp_path / "big.sec", one)


def test_wrong_arguments_are_refused_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_second_build_of_a_collection_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    folder = tmp_path / "big.sec" / BUILDING
    folder.mkdir(parents=True)
    with write_lock(folder), pytest.raises(LockedIndexError, match="another process is building"):
        build_shards(tmp_path / "big.sec", [], shards=2, encoder=None)


def test_embeddings_of_different_dimensions_are_refused(tmp_path: Path) -> None:
    documents = [*random_documents(10), *random_documents(1, dim=8)]
    documents[-1] = Document("last", encoded=documents[-1].encoded)
    with pytest.raises(UsageError, match=r"8 dimensions|of 8"):
        build_shards(tmp_path / "big.sec", documents, shards=4, encoder=None)


def test_the_command_starts_ray_and_builds_with_the_real_encoder_and_its_settings(
    tmp_path: Path, passages: list[dict[str, str]]
) -> None:
    passages = passages[:24]
    for number in range(2):
        lines = [json.dumps(passage) for passage in passages[number::2]]
        (tmp_path / f"part-{number}.jsonl").write_text("\n".join(lines) + "\n")
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    command = [sys.executable, "-m", "secateurs", "shard", "build", "part-0.jsonl", "part-1.jsonl", "big.sec"]
    done = subprocess.run(
        [*command, "--shards", "2", "--setting", "document_limit=40", "--setting", "overlap=8"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    # A slow machine gets lines of progress, and nothing else is said there.
    assert all(line.startswith("encoding documents: ") for line in done.stderr.splitlines()), done.stderr
    assert "24 documents" in done.stdout
    assert "in 2 shards" in done.stdout
    encoder = load_encoder(settings={"document_limit": 40, "overlap": 8})
    one = Index.build(tmp_path / "one.sec", passages, encoder=encoder)
    assert one.info()["cut_documents"] == 0
    assert ShardedIndex(tmp_path / "big.sec").encoder.spec == encoder.spec
    assert_is_like_one_index(tmp_path / "big.sec", one)
    wrong = {
        "there is a collection in shards at": command,
        "there is no Ray cluster at '127.0.0.1:1'": [*command[:-1], "other.sec", "--ray", "127.0.0.1:1"],
        "name the corpus first": [*command[:5], "other.sec"],
    }
    for message, arguments in wrong.items():
        failed = subprocess.run(arguments, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
        assert failed.returncode in (1, 2)
        assert failed.stderr.startswith(f"secateurs: {message}")
        assert failed.stderr.count("\n") == 1
    assert not (tmp_path / "other.sec").exists()

"""Indexes to and from the Hugging Face Hub, with its real client and a server on this machine in place of the Hub.

The client uploads large files by LFS here. With hf-xet installed it uses another protocol for them on the real Hub,
which is the client's own affair: these tests do not cover it.
"""

import json
import os
import signal
import subprocess
import sys
from _thread import interrupt_main
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from conftest import build_random, random_documents, random_text
from hub_server import READER, TOKEN, Hub, Repo, running_hub
from pages import blocks
from test_sharded import make_shards

from secateurs import Index, ShardedIndex
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DamagedIndexError, MissingExtraError, SecateursError, UsageError
from secateurs.storage.manifest import Manifest
from secateurs.transfer.dataset_card import dataset_card

pytest.importorskip("huggingface_hub", reason='needs "secateurs[hub]"')
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload")  # inside the client
QUERIES = [random_text(np.random.default_rng(seed), 6) for seed in range(5)]


@pytest.fixture(scope="module")
def server() -> Iterator[Hub]:
    """One for all tests: modules of the client keep the address that they find when they are imported."""
    with running_hub() as hub:
        yield hub


@pytest.fixture
def hub(server: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Hub:
    """An empty hub, and a client that knows its address and has a token that may write."""
    server.clear()
    for name, value in {
        "ENDPOINT": server.address,
        "HUGGINGFACE_CO_URL_TEMPLATE": f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_OFFLINE": False,
        "HF_TOKEN_PATH": str(tmp_path / "no-token"),
        "HF_STORED_TOKENS_PATH": str(tmp_path / "no-tokens"),
    }.items():
        monkeypatch.setattr(f"huggingface_hub.constants.{name}", value, raising=False)  # versions of the client differ
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    return server


@pytest.fixture
def index(tmp_path: Path) -> Index:
    """Of two segments, one with deletions."""
    built = build_random(tmp_path / "a.sec", gather=("cells", "text"))
    built.add(random_documents(44)[40:])
    built.delete(["d001", "d002"])
    return built


def content(folder: Path) -> dict[str, bytes]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in files.items() if not name.endswith("write.lock")}


def rankings(index: Index | ShardedIndex) -> list[list[tuple[str, float]]]:
    return [[(hit.docno, hit.score) for hit in index.search(query, p=3)] for query in QUERIES]


def test_a_pushed_index_is_pulled_byte_for_byte_and_ranks_the_same(hub: Hub, index: Index, tmp_path: Path) -> None:
    address = index.push("me/animals", progress=False)
    repo = hub.repos["me/animals"]
    assert address == f"{hub.address}/datasets/me/animals/commit/{repo.branches['main']}"
    pushed = {name: data for name, data in repo.files.items() if name not in (".gitattributes", "README.md")}
    assert pushed == content(index.path)
    embeddings = [data for name, data in pushed.items() if name.endswith("embeddings.npy")]
    assert len(embeddings) == 2
    assert set(embeddings) <= set(hub.objects.values())  # by LFS
    assert pushed["manifest.json"] not in hub.objects.values()

    pulled = Index.pull("me/animals", tmp_path / "b.sec", progress=False)
    assert content(pulled.path) == pushed
    assert rankings(pulled) == rankings(index)
    assert len(pulled) == 42
    pulled.check()
    pulled.update(random_documents(3))  # it is an index like any other
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sec", "b.sec"]


def test_a_text_query_finds_the_same_in_a_pulled_index_of_the_built_in_encoder(
    hub: Hub, encoder: OnnxEncoder, tmp_path: Path
) -> None:
    documents = [{"docno": "cats", "text": "Cats sleep."}, {"docno": "fish", "text": "Goldfish grow."}]
    index = Index.build(tmp_path / "a.sec", documents, encoder=encoder, progress=False)
    index.push("me/animals", progress=False)
    pulled = Index.pull("me/animals", tmp_path / "b.sec", progress=False)
    found = Index(pulled.path, encoder).search("do goldfish grow")
    assert [(hit.docno, hit.score) for hit in found] == [(h.docno, h.score) for h in index.search("do goldfish grow")]
    assert found[0].text == "Goldfish grow."
    assert "| encoder | `colbert-small` |" in hub.repos["me/animals"].files["README.md"].decode()


def test_a_new_repository_is_private_unless_it_shall_be_public(hub: Hub, index: Index, tmp_path: Path) -> None:
    index.push("me/hidden", progress=False)
    index.push("me/open", public=True, progress=False)
    assert (hub.repos["me/hidden"].private, hub.repos["me/open"].private) == (True, False)


def test_what_is_pushed_is_the_state_at_the_beginning_although_the_index_is_rewritten_meanwhile(
    hub: Hub, index: Index, tmp_path: Path
) -> None:
    before, expected = content(index.path), rankings(index)
    rewritten = []

    def rewrite(line: str) -> None:
        if "/preupload/" in line and not rewritten:  # the client has opened no large file yet
            rewritten.append(line)
            thread = Thread(target=lambda: (index.delete(["d010"]), index.compact()))
            thread.start()
            thread.join()

    hub.on_request = rewrite
    index.push("me/animals", progress=False)
    assert rewritten
    assert len(index) == 41
    pushed = {name: data for name, data in hub.repos["me/animals"].files.items() if name in before}
    assert pushed == before
    pulled = Index.pull("me/animals", tmp_path / "b.sec", progress=False)
    assert rankings(pulled) == expected
    assert "d010" in pulled


def test_a_second_push_replaces_the_first_which_stays_in_the_history(hub: Hub, index: Index, tmp_path: Path) -> None:
    first = index.push("me/animals", progress=False).rpartition("/")[2]
    earlier = rankings(index)
    index.delete([f"d{number:03}" for number in range(10, 30)])
    index.compact()
    index.push("me/animals", progress=False)
    repo = hub.repos["me/animals"]
    assert set(repo.files) == {*content(index.path), ".gitattributes", "README.md"}
    assert rankings(Index.pull("me/animals", tmp_path / "new.sec", progress=False)) == rankings(index)
    old = Index.pull("me/animals", tmp_path / "old.sec", revision=first, progress=False)
    assert rankings(old) == earlier
    assert "| documents | 22 |" in repo.files["README.md"].decode()


def test_a_branch_is_made_and_pulled_from(hub: Hub, index: Index, tmp_path: Path) -> None:
    index.push("me/animals", progress=False)
    index.delete(["d020"])
    index.push("me/animals", revision="smaller", progress=False)
    assert "d020" in Index.pull("me/animals", tmp_path / "main.sec", progress=False)
    assert "d020" not in Index.pull("me/animals", tmp_path / "b.sec", revision="smaller", progress=False)
    index.push("me/fresh", revision="first", progress=False)
    assert Index.pull("me/fresh", tmp_path / "c.sec", revision="first", progress=False)
    assert "manifest.json" not in hub.repos["me/fresh"].files


def test_an_index_that_is_there_is_replaced_only_on_request_and_its_readers_keep_it(
    hub: Hub, index: Index, tmp_path: Path
) -> None:
    index.push("me/animals", progress=False)
    other = build_random(tmp_path / "b.sec", 5)
    with pytest.raises(SecateursError, match=r"there is an index at .*b\.sec already"):
        Index.pull("me/animals", tmp_path / "b.sec", progress=False)
    assert len(Index(tmp_path / "b.sec")) == 5
    expected = rankings(other)
    pulled = Index.pull("me/animals", tmp_path / "b.sec", overwrite=True, progress=False)
    assert rankings(pulled) == rankings(index)
    assert rankings(other) == expected
    assert other.refresh()
    assert len(other) == 42


def test_an_index_is_pulled_again_over_itself_and_what_was_damaged_is_as_it_was(
    hub: Hub, index: Index, tmp_path: Path
) -> None:
    index.push("me/animals", progress=False)
    Index.pull("me/animals", tmp_path / "b.sec", progress=False)
    for damage in (lambda data: data, lambda data: data[:-1] + bytes([data[-1] ^ 1])):
        file = next((tmp_path / "b.sec").rglob("embeddings.npy"))
        file.write_bytes(damage(file.read_bytes()))
        with Index.pull("me/animals", tmp_path / "b.sec", overwrite=True, progress=False) as pulled:
            pulled.check()
            assert rankings(pulled) == rankings(index)
            assert content(pulled.path).keys() == content(index.path).keys()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Even if the tests run where SIGINT is ignored, as in the background of a shell."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_pull_leaves_nothing(hub: Hub, index: Index, tmp_path: Path) -> None:
    index.push("me/animals", progress=False)
    manifests = []

    def interrupt(line: str) -> None:
        if line.startswith("HEAD") and line.endswith("token_kinds.npy"):  # one of the last files
            manifests.extend((tmp_path / "there").rglob("manifest*.json"))
            interrupt_main()

    hub.on_request = interrupt
    with pytest.raises(KeyboardInterrupt):
        Index.pull("me/animals", tmp_path / "there" / "b.sec", progress=False)
    assert list((tmp_path / "there").iterdir()) == []
    assert manifests == []  # so that what a killed process leaves is not an index either


def test_a_file_that_arrives_altered_is_named_and_nothing_is_kept(hub: Hub, index: Index, tmp_path: Path) -> None:
    index.push("me/animals", progress=False)
    (tmp_path / "there").mkdir()

    def flip(path: str, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if path.endswith("embeddings.npy") else data

    hub.spoil = flip
    with pytest.raises(DamagedIndexError, match=r"me/animals/segments/\w+/embeddings.npy was altered .*: nothing was"):
        Index.pull("me/animals", tmp_path / "there" / "b.sec", progress=False)
    assert list((tmp_path / "there").iterdir()) == []


def test_a_push_that_another_push_overtook_changes_nothing(hub: Hub, index: Index) -> None:
    index.push("me/animals", progress=False)
    repo = hub.repos["me/animals"]

    def overtake(line: str) -> None:
        if "/commit/" in line:
            repo.commit("main", dict(repo.files) | {"LICENSE": b"mine"})

    hub.on_request = overtake
    index.delete(["d010"])
    with pytest.raises(SecateursError, match="me/animals was changed by another push meanwhile"):
        index.push("me/animals", progress=False)
    hub.on_request = lambda line: None
    index.push("me/animals", progress=False)
    assert repo.files["LICENSE"] == b"mine"
    assert "| documents | 41 |" in repo.files["README.md"].decode()


def test_a_card_that_someone_has_written_is_kept(hub: Hub, index: Index) -> None:
    index.push("me/animals", progress=False)
    repo = hub.repos["me/animals"]
    repo.commit("main", repo.files | {"README.md": b"---\n---\nAll about animals."})
    index.push("me/animals", progress=False)
    assert repo.files["README.md"] == b"---\n---\nAll about animals."


def test_the_card_does_not_tell_where_a_model_lay_on_the_disk(index: Index) -> None:
    facts = index.info()
    for model, shown in {
        "/home/me/models/mine": "`mine`",
        "C:\\models\\mine": "`mine`",
        "../mine": "`mine`",
        "someone/colbert": "`someone/colbert`",
        "colbert-small": "`colbert-small`",
    }.items():
        facts["encoder"] = {"kind": "onnx", "model": model}
        assert f"| encoder | {shown} |" in dataset_card("me/animals", facts)


def test_a_repository_of_something_else_is_neither_pushed_to_nor_pulled(hub: Hub, index: Index, tmp_path: Path) -> None:
    hub.repos["me/table"] = repo = Repo(private=False)
    repo.commit("main", {"README.md": b"a table", "data/train.parquet": b"PAR1"})
    with pytest.raises(SecateursError, match=r"me/table holds other things than an index, such as data/train.parquet"):
        index.push("me/table", progress=False)
    with pytest.raises(SecateursError, match=r"me/table is not an index: it has no manifest.json"):
        Index.pull("me/table", tmp_path / "b.sec", progress=False)
    assert set(repo.files) == {"README.md", "data/train.parquet"}
    assert not (tmp_path / "b.sec").exists()


def test_an_index_of_a_later_format_says_what_to_do(hub: Hub, index: Index, tmp_path: Path) -> None:
    index.push("me/animals", progress=False)
    repo = hub.repos["me/animals"]
    later = json.loads(repo.files["manifest.json"]) | {"format_version": 2}
    repo.commit("main", repo.files | {"manifest.json": json.dumps(later).encode()})
    with pytest.raises(SecateursError, match=r"^me/animals has index format 2, .*: pip install --upgrade secateurs"):
        Index.pull("me/animals", tmp_path / "b.sec", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sec"]


def test_a_manifest_cannot_name_files_outside_of_the_index(hub: Hub, index: Index, tmp_path: Path) -> None:
    index.push("me/animals", progress=False)
    repo = hub.repos["me/animals"]
    manifest = Manifest.read(index.path)
    for name in ("../../escaped", "/escaped", "a/b", "..", "a\\b", ""):
        wrong = replace(manifest, codebook=replace(manifest.codebook, name=name))
        repo.commit("main", repo.files | {"manifest.json": wrong.packed(), f"codebooks/{name}/centre.npy": b""})
        with pytest.raises(SecateursError, match="me/animals is not an index: it names a file"):
            Index.pull("me/animals", tmp_path / "b.sec", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sec"]


def test_a_file_that_the_repository_lost_is_named(hub: Hub, index: Index, tmp_path: Path) -> None:
    index.push("me/animals", progress=False)
    repo = hub.repos["me/animals"]
    repo.commit("main", {name: data for name, data in repo.files.items() if not name.endswith("offsets.npy")})
    with pytest.raises(
        SecateursError, match=r"me/animals has no segments/\w+/(cell_)?offsets.npy: push the index again"
    ):
        Index.pull("me/animals", tmp_path / "b.sec", progress=False)


def test_wrong_names_and_missing_rights_are_sentences_that_say_what_to_do(
    hub: Hub, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "b.sec"
    index.push("me/animals", progress=False)
    for name in ("animals", "me/animals/more", "https://huggingface.co/datasets/me/animals", "", "me/"):
        with pytest.raises(UsageError, match="is no repository: name its owner too, as in  user/name"):
            index.push(name)
    with pytest.raises(UsageError, match=r"me/--"):  # the client knows more rules
        Index.pull("me/--", target)
    with pytest.raises(SecateursError, match="there is no dataset repository me/plants that you can see: its name may"):
        Index.pull("me/plants", target)
    with pytest.raises(SecateursError, match="me/animals has no revision 'v2'"):
        Index.pull("me/animals", target, revision="v2")
    monkeypatch.setenv("HF_TOKEN", READER)
    for name in ("me/animals", "me/plants"):
        with pytest.raises(SecateursError, match=f"your token may not do this to {name}: use one that may write"):
            index.push(name, progress=False)
    monkeypatch.delenv("HF_TOKEN")
    for attempt in (lambda: index.push("me/animals"), lambda: Index.pull("me/animals", target)):
        with pytest.raises(SecateursError, match="that you can see: log in with  hf auth login, or set HF_TOKEN"):
            attempt()
    assert list(hub.repos) == ["me/animals"]
    assert not target.exists()


def test_a_hub_that_does_not_answer_is_said(
    hub: Hub, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(SecateursError, match="me/animals: the hub could not be reached"):
        Index.pull("me/animals", tmp_path / "b.sec")


def test_without_the_client_the_pip_line_is_named(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r'pip install "secateurs\[hub\]"'):
        index.push("me/animals")
    with pytest.raises(MissingExtraError, match=r'pip install "secateurs\[hub\]"'):
        Index.pull("me/animals", "b.sec")


def test_a_collection_in_shards_is_pushed_and_pulled(hub: Hub, tmp_path: Path) -> None:
    with ShardedIndex(make_shards(tmp_path / "big.sec", random_documents(40), 2)) as shards:
        shards.push("me/big", progress=False)
        pushed = {n: d for n, d in hub.repos["me/big"].files.items() if n not in (".gitattributes", "README.md")}
        assert pushed == content(shards.path)
        with pytest.raises(SecateursError, match=r"me/big is a collection in shards: pull it with  ShardedIndex.pull"):
            Index.pull("me/big", tmp_path / "b.sec", progress=False)
        with ShardedIndex.pull("me/big", tmp_path / "b.sec", progress=False) as pulled:
            assert content(pulled.path) == pushed
            assert rankings(pulled) == rankings(shards)
            pulled.check()
        with pytest.raises(
            SecateursError, match="is there already, and a pulled collection in shards replaces nothing"
        ):
            ShardedIndex.pull("me/big", tmp_path / "b.sec", overwrite=True, progress=False)
        one = build_random(tmp_path / "one.sec")
        one.push("me/big", progress=False)  # an index in the place of the collection
        assert set(hub.repos["me/big"].files) == {*content(one.path), ".gitattributes", "README.md"}
        with pytest.raises(SecateursError, match=r"me/big is not a collection in shards: it has no shards.json"):
            ShardedIndex.pull("me/big", tmp_path / "c.sec", progress=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.sec", "big.sec", "one.sec"]


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_pull_of_shards_leaves_nothing(hub: Hub, tmp_path: Path) -> None:
    with ShardedIndex(make_shards(tmp_path / "big.sec", random_documents(40), 2)) as shards:
        shards.push("me/big", progress=False)
    hub.on_request = lambda line: interrupt_main() if line.endswith("shard-0001/manifest.json") else None
    with pytest.raises(KeyboardInterrupt):
        ShardedIndex.pull("me/big", tmp_path / "there" / "b.sec", progress=False)
    assert list((tmp_path / "there").iterdir()) == []


def test_the_python_of_the_page_runs(hub: Hub, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index.path.rename(tmp_path / "demo.sec")
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for block in blocks("transfer.md", "python", "The Hugging Face Hub"):
        exec(block, namespace)
    assert rankings(namespace["copy"]) == rankings(namespace["index"])


@pytest.mark.slow
def test_the_commands_push_and_pull(hub: Hub, index: Index, tmp_path: Path) -> None:
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
        command = [sys.executable, "-m", "secateurs", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)

    pushed = run("push", index.path, "me/animals", "--public")
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout.startswith("me/animals: 42 documents, ")
    assert not hub.repos["me/animals"].private
    pulled = run("pull", "me/animals", tmp_path / "b.sec")
    assert pulled.returncode == 0, pulled.stderr
    assert pulled.stdout.startswith(f"{tmp_path / 'b.sec'}: 42 documents, ")
    assert rankings(Index(tmp_path / "b.sec")) == rankings(index)
    refused = run("pull", "me/animals", tmp_path / "b.sec")
    assert refused.returncode == 1
    assert refused.stderr.startswith(f"secateurs: there is an index at {tmp_path / 'b.sec'} already")
    assert refused.stderr.count("\n") == 1
    assert run("pull", "me/animals", tmp_path / "b.sec", "--overwrite").returncode == 0
    missing = run("pull", "me/plants", tmp_path / "c.sec")
    assert (missing.returncode, missing.stderr.count("\n")) == (1, 1)
    assert run("push", index.path, "animals").returncode == 2
    make_shards(tmp_path / "big.sec", random_documents(20), 2)
    assert run("push", tmp_path / "big.sec", "me/big").returncode == 0
    shards = run("pull", "me/big", tmp_path / "d.sec")
    assert shards.stdout.startswith(f"{tmp_path / 'd.sec'}: 20 documents, "), shards.stderr
    assert not list(tmp_path.glob(".*"))

"""A small real collection, encoded once: documentation strings of the standard library that runs the tests."""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import pickle
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

# FAISS trains on one thread: OpenMP threads that wait for a core that another test uses cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # no test should need a network
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # a dependency of dspy would fetch a list of prices

from secateurs import Document, EncodedText, Index
from secateurs.background import choose_background
from secateurs.demo import standard_library
from secateurs.encoders import protocol
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.storage.files import write_atomically
from secateurs.storage.new_index import make_index
from secateurs.storage.recipe import Recipe

QUERIES = (
    "how do I read a zip archive",
    "wait for a thread to finish",
    "parse command line arguments",
    "difference between two dates",
    "send an email message",
    "most common elements of a list",
    "open a web page in a browser",
    "convert a string to bytes",
    "what does a lock do?",
    "remove a directory tree",
)


@pytest.fixture(scope="session")
def encoder() -> OnnxEncoder:
    """With every MASK, so that a query has 32 embeddings that count the same: Eq. 1."""
    return OnnxEncoder.load(settings={"expansion": "all"})


@pytest.fixture(scope="session")
def passages() -> list[dict[str, str]]:
    return standard_library()[::12]


@pytest.fixture(scope="session")
def encoded_passages(
    encoder: OnnxEncoder, passages: list[dict[str, str]], request: pytest.FixtureRequest
) -> list[Document]:
    """The same passages with their float32 embeddings, which pytest's cache keeps for the next run.

    They are encoded again when a passage, the model, or any file of encoders/ has changed.
    """
    digest = hashlib.sha256(json.dumps([encoder.spec["fingerprint"], passages]).encode())
    for path in sorted(Path(protocol.__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    cached = request.config.cache.mkdir("encoded-passages") / f"{digest.hexdigest()}.pickle"  # type: ignore[union-attr]
    if not cached.exists():
        encoded = list(encoder.encode_documents(passage["text"] for passage in passages))
        write_atomically(cached, pickle.dumps([(e.embeddings, e.token_ids, e.token_kinds, e.cut) for e in encoded]))
    encoded = [EncodedText(*parts) for parts in pickle.loads(cached.read_bytes())]
    return [Document(p["docno"], p["text"], {"kind": p["kind"]}, e) for p, e in zip(passages, encoded, strict=True)]


@pytest.fixture(scope="session")
def encoded_queries(encoder: OnnxEncoder) -> list[EncodedText]:
    return [encoder.encode_query(query) for query in QUERIES]


@pytest.fixture(scope="session")
def index_path(
    tmp_path_factory: pytest.TempPathFactory,
    passages: list[dict[str, str]],
    encoded_passages: list[Document],
    encoder: OnnxEncoder,
) -> Path:
    """What Index.build(path, passages, encoder=encoder) makes, without encoding the passages a second time."""
    path = tmp_path_factory.mktemp("index") / "library.sec"
    documents = [
        replace(encoded, metadata={"kind": passage["kind"], "python": passage["python"]})
        for passage, encoded in zip(passages, encoded_passages, strict=True)
    ]
    make_index(
        path,
        (("", document) for document in documents),
        None,
        Recipe("int8", ("cells",), encoder.merge),
        spec=encoder.spec,
        background=choose_background("auto", encoder),
    )
    return path


@pytest.fixture
def index(index_path: Path, encoder: OnnxEncoder) -> Index:
    return Index(index_path, encoder)


def random_text(rng: np.random.Generator, tokens: int, dim: int = 16, types: int = 30) -> EncodedText:
    """Unit vectors, token ids 0 to types - 1, all of them words."""
    embeddings = rng.normal(size=(tokens, dim)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    return EncodedText(embeddings, rng.integers(0, types, tokens), np.zeros(tokens))


def random_documents(count: int, dim: int = 16, seed: int = 0) -> list[Document]:
    rng = np.random.default_rng(seed)
    return [Document(f"d{i:03}", f"text {i}", {"i": i}, random_text(rng, i % 7 + 1, dim)) for i in range(count)]


def build_random(path: Path, count: int = 40, **options: object) -> Index:
    return Index.build(path, random_documents(count), encoder=None, **options)  # type: ignore[arg-type]


# Files of tests that start Ray, a server or many processes, kill processes, or run whole experiments.
SLOW = {
    *("test_cli", "test_cluster", "test_crash", "test_demo", "test_docs", "test_encoder_st", "test_lab_baselines"),
    *("test_lab_cli", "test_lab_experiment", "test_lab_page", "test_lab_reproduce", "test_living", "test_pyterrier"),
    *("test_repair", "test_service_docs", "test_service_limits", "test_service_page", "test_service_schema"),
    *("test_service_work", "test_service_writes", "test_shard_build", "test_shard_resume", "test_shard_writes"),
}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow tests, and keep the tests of a file, and all tests that use the Ray cluster, on one worker.

    Workers take the groups that take longest first, so that they end at about the same time. Without workers, the tests
    that use the cluster come last, so that it is started once.
    """
    for item in items:
        uses_ray = "ray_cluster" in getattr(item, "fixturenames", ())
        if item.path.stem in SLOW or item.get_closest_marker("slow"):
            item.add_marker("slow")
        item.add_marker(pytest.mark.xdist_group("ray" if uses_ray else item.path.stem))
    with_workers = "PYTEST_XDIST_WORKER" in os.environ

    def place(item: pytest.Item) -> tuple[bool, bool]:
        uses_ray = "ray_cluster" in getattr(item, "fixturenames", ())
        return uses_ray != with_workers, with_workers and item.path.stem not in SLOW

    items.sort(key=place)


_NODE = {"num_cpus": 1, "object_store_memory": 80_000_000}
# A killed node is found dead after 5 checks that fail at once, so after 2.5 seconds instead of 15. A node that is only
# slow has as long to answer as by default.
_DEATH_IS_NOTICED_SOON = {"health_check_period_ms": 500}
_SECONDS_TO_STOP_RAY = 60


@pytest.fixture(scope="session")
def _ray_cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    head = {"node_name": "head", "include_dashboard": False, "_system_config": _DEATH_IS_NOTICED_SOON, **_NODE}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for name in ("one", "two"):
        cluster.add_node(node_name=name, **_NODE)
    yield cluster
    # Ray's shutdown waits for its threads without a limit, and all tests are done: do not wait with it for ever.
    stopping = Thread(target=lambda: (ray.shutdown(), cluster.shutdown()), daemon=True)
    stopping.start()
    stopping.join(_SECONDS_TO_STOP_RAY)
    if stopping.is_alive():
        faulthandler.dump_traceback(all_threads=True)
        warnings.warn("Ray did not stop: its processes are left to the end of this process", stacklevel=1)


@pytest.fixture
def ray_cluster(_ray_cluster: Any) -> Iterator[Any]:
    """A Ray cluster of three nodes on this machine, "head", "one" and "two", with this process connected to it.

    A test may add nodes and remove those that it has added. What it leaves is removed, and the next test begins when
    the cluster knows of no other node.
    """
    import ray

    from secateurs.cluster.ray_connection import connect

    if ray.is_initialized() and ray.get_runtime_context().gcs_address != _ray_cluster.address:
        ray.shutdown()  # a page of the documentation may have started one
    connect(_ray_cluster.address)
    before = set(_ray_cluster.worker_nodes)
    assert {node["NodeName"] for node in ray.nodes() if node["Alive"]} == {"head", "one", "two"}
    yield _ray_cluster
    assert before <= _ray_cluster.worker_nodes
    for node in _ray_cluster.worker_nodes - before:
        _ray_cluster.remove_node(node, allow_graceful=False)
    deadline = time.monotonic() + 60
    while sum(node["Alive"] for node in ray.nodes()) > 1 + len(before):
        assert time.monotonic() < deadline
        time.sleep(0.05)

"""Candidates: all of them, or the paper's FAISS stage."""

from pathlib import Path

import numpy as np
import pytest
from conftest import random_text
from hypothesis import given, settings
from hypothesis import strategies as st

from secateurs import Document, EncodedText, Index
from secateurs.errors import SecateursError, UsageError
from secateurs.gather.faiss_ivfpq import _recipe


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Enough embeddings for partitions and product quantisation."""
    rng = np.random.default_rng(5)
    documents = [Document(f"d{i:04}", encoded=random_text(rng, int(rng.integers(1, 20)))) for i in range(2000)]
    return Index.build(tmp_path_factory.mktemp("large") / "l.sec", documents, encoder=None)


def candidates(index: Index, query: EncodedText, **settings: object) -> set[str]:
    return {hit.docno for hit in index.search(query, k=len(index), **settings)}  # type: ignore[arg-type]


def test_exhaustive_gathers_every_document(large: Index) -> None:
    assert len(candidates(large, random_text(np.random.default_rng(0), 4), gather="exhaustive", p=1)) == 2000


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from(["icf", "first", "random"]))
@settings(max_examples=30, deadline=None)
def test_candidates_grow_with_p(large: Index, seed: int, p: int, order: str) -> None:
    query = random_text(np.random.default_rng(seed), 12)
    fewer = candidates(large, query, p=p, order=order, k_prime=50)
    assert fewer <= candidates(large, query, p=p + 1, order=order, k_prime=50)
    assert fewer


@given(st.integers(0, 10_000), st.sampled_from(["icf", "idf", "first", "random"]))
@settings(max_examples=20, deadline=None)
def test_keeping_every_embedding_is_the_same_as_no_pruning(large: Index, seed: int, order: str) -> None:
    query = random_text(np.random.default_rng(seed), 6)
    kept, full = (large.search(query, k=50, p=p, order=order, k_prime=100) for p in (6, None))
    assert kept.hits == full.hits
    assert kept.stats.documents_scored == full.stats.documents_scored


def test_candidates_grow_with_k_prime_and_nprobe(large: Index) -> None:
    query = random_text(np.random.default_rng(1), 3)
    few, more = (candidates(large, query, k_prime=n, nprobe=4) for n in (10, 200))
    assert few < more
    narrow, wide = (candidates(large, query, k_prime=5000, nprobe=n) for n in (1, 100))
    assert narrow < wide


def test_fewer_neighbours_than_k_prime_never_become_the_last_document(tmp_path: Path) -> None:
    # FAISS fills up with -1, which as an index would be the last document.
    rng = np.random.default_rng(2)
    documents = [Document(f"d{i:04}", encoded=random_text(rng, 6)) for i in range(2000)]
    far = EncodedText(-documents[-1].encoded.embeddings, [0] * 6, [0] * 6)  # type: ignore[union-attr]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    found = candidates(index, far, p=1, nprobe=1, k_prime=12_000)
    assert 0 < len(found) < 2000
    assert "d1999" not in found


def test_faiss_finds_the_documents_that_own_the_nearest_embeddings(large: Index) -> None:
    """Against Eq. 2 computed exactly: nearly all the true owners are found when every partition is looked into."""
    segment = large.segments[0]
    rows = segment.store.decode(np.asarray(segment.embeddings.rows))
    owners = np.repeat(np.arange(len(segment)), np.diff(segment.offsets))
    recalls = []
    for seed in range(20):
        query = random_text(np.random.default_rng(seed), 1)
        nearest = np.argsort(-(rows @ query.embeddings[0]))[:20]
        true = {f"d{owners[i]:04}" for i in nearest}
        recalls.append(len(true & candidates(large, query, k_prime=100, nprobe=10_000)) / len(true))
    assert np.mean(recalls) > 0.9


def test_a_document_without_embeddings_is_never_gathered(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents = [Document("empty", encoded=random_text(rng, 0)), Document("full", encoded=random_text(rng, 3))]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    for gather in ("faiss", "exhaustive"):
        assert [hit.docno for hit in index.search(random_text(rng, 2), gather=gather)] == ["full"]


def test_an_index_without_faiss_says_how_to_get_it(tmp_path: Path) -> None:
    documents = [Document("d", encoded=random_text(np.random.default_rng(0), 3))]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather="exhaustive")
    with pytest.raises(SecateursError, match="--gather faiss"):
        index.search(random_text(np.random.default_rng(0), 2))


def test_an_unknown_gatherer_names_the_known_ones(large: Index) -> None:
    with pytest.raises(UsageError, match="faiss, exhaustive"):
        large.search(random_text(np.random.default_rng(0), 2), gather="hnsw")


def test_embeddings_of_any_length_are_gathered_by_dot_product(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    documents = []
    for i in range(300):
        text = random_text(rng, 4)
        documents.append(
            Document(f"d{i}", encoded=EncodedText(text.embeddings * rng.uniform(0.2, 5), text.token_ids, [0] * 4))
        )
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    shared = 0
    for _ in range(20):
        query = random_text(rng, 3)
        exact, found = (index.search(query, gather=gather, k_prime=60) for gather in ("exhaustive", "faiss"))
        shared += len({h.docno for h in exact} & {h.docno for h in found})
    assert shared > 0.95 * 200


def test_searching_leaves_faiss_its_threads(large: Index) -> None:
    import faiss

    before = faiss.omp_get_max_threads()
    large.search(random_text(np.random.default_rng(0), 2), k=np.int64(3), k_prime=np.int64(7))  # type: ignore[arg-type]
    assert faiss.omp_get_max_threads() == before


def test_partitions_and_codes_follow_the_size_and_the_dimension() -> None:
    assert _recipe(9_999, 96) == "IDMap,Flat"
    assert _recipe(2_900_000, 96) == "IVF4096,PQ16x8"
    assert _recipe(2_900_000, 100) == "IVF4096,PQ10x8"
    assert _recipe(20_000, 17) == "IVF512,Flat"
    assert _recipe(12_000, 96) == "IVF256,PQ16x8"

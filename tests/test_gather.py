"""Candidates: all of them, the paper's FAISS stage, or our cells."""

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from conftest import build_random, random_text
from hypothesis import given, settings
from hypothesis import strategies as st

from secateurs import Document, EncodedText, Index
from secateurs import gather as gathering
from secateurs.errors import MissingExtraError, SecateursError, UsageError
from secateurs.gather import gatherer
from secateurs.kernels.simd import round_query
from secateurs.settings import SearchPlan
from secateurs.storage.faiss_file import _recipe
from secateurs.storage.file_names import CELLS


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Enough embeddings for partitions and product quantisation."""
    rng = np.random.default_rng(5)
    documents = [Document(f"d{i:04}", encoded=random_text(rng, int(rng.integers(1, 20)))) for i in range(2000)]
    path = tmp_path_factory.mktemp("large") / "l.sec"
    return Index.build(path, documents, encoder=None, gather=("cells", "faiss"))


def candidates(index: Index, query: EncodedText, **settings: object) -> set[str]:
    return {hit.docno for hit in index.search(query, k=len(index), **settings)}  # type: ignore[arg-type]


def test_exhaustive_gathers_every_document(large: Index) -> None:
    assert len(candidates(large, random_text(np.random.default_rng(0), 4), gather="exhaustive", p=1)) == 2000


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from(["icf", "first", "random"]))
@settings(max_examples=30, deadline=None)
def test_candidates_grow_with_p(large: Index, seed: int, p: int, order: str) -> None:
    query = random_text(np.random.default_rng(seed), 12)
    fewer = candidates(large, query, p=p, order=order, gather="faiss", k_prime=50)
    assert fewer <= candidates(large, query, p=p + 1, order=order, gather="faiss", k_prime=50)
    assert fewer


@given(st.integers(0, 10_000), st.sampled_from(["icf", "idf", "first", "random"]), st.sampled_from(["cells", "faiss"]))
@settings(max_examples=30, deadline=None)
def test_keeping_every_embedding_is_the_same_as_no_pruning(large: Index, seed: int, order: str, gather: str) -> None:
    query = random_text(np.random.default_rng(seed), 6)
    kept, full = (large.search(query, k=50, p=p, order=order, gather=gather, k_prime=100) for p in (6, None))
    assert kept.hits == full.hits
    assert kept.stats.documents_scored == full.stats.documents_scored


def test_candidates_grow_with_k_prime_and_nprobe(large: Index) -> None:
    query = random_text(np.random.default_rng(1), 3)
    few, more = (candidates(large, query, gather="faiss", k_prime=n, nprobe=4) for n in (10, 200))
    assert few < more
    narrow, wide = (candidates(large, query, gather="faiss", k_prime=5000, nprobe=n) for n in (1, 100))
    assert narrow < wide


def test_fewer_neighbours_than_k_prime_never_become_the_last_document(tmp_path: Path) -> None:
    # FAISS fills up with -1, which as an index would be the last document.
    rng = np.random.default_rng(2)
    documents = [Document(f"d{i:04}", encoded=random_text(rng, 6)) for i in range(2000)]
    far = EncodedText(-documents[-1].encoded.embeddings, [0] * 6, [0] * 6)  # type: ignore[union-attr]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather="faiss")
    found = candidates(index, far, p=1, nprobe=1, k_prime=12_000)
    assert 0 < len(found) < 2000
    assert "d1999" not in found


def test_faiss_finds_the_documents_that_own_the_nearest_embeddings(large: Index) -> None:
    """Against Eq. 2 computed exactly: nearly all the true owners are found when every partition is looked into."""
    segment = large.snapshot.segments[0]
    rows = large.snapshot.store.decode(np.asarray(segment.embeddings.rows))
    owners = np.repeat(np.arange(len(segment)), np.diff(segment.offsets))
    recalls = []
    for seed in range(20):
        query = random_text(np.random.default_rng(seed), 1)
        nearest = np.argsort(-(rows @ query.embeddings[0]))[:20]
        true = {f"d{owners[i]:04}" for i in nearest}
        recalls.append(len(true & candidates(large, query, gather="faiss", k_prime=100, nprobe=10_000)) / len(true))
    assert np.mean(recalls) > 0.9


def test_a_document_without_embeddings_is_never_gathered(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents = [Document("empty", encoded=random_text(rng, 0)), Document("full", encoded=random_text(rng, 3))]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather=("cells", "faiss"))
    for gather in ("cells", "faiss", "exhaustive"):
        assert [hit.docno for hit in index.search(random_text(rng, 2), gather=gather)] == ["full"]


@pytest.mark.parametrize("gather", ["cells", "faiss"])
def test_a_way_of_gathering_that_was_not_built_names_the_option_that_builds_it(tmp_path: Path, gather: str) -> None:
    documents = [Document("d", encoded=random_text(np.random.default_rng(0), 3))]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather="exhaustive")
    assert index.search(random_text(np.random.default_rng(0), 2)).plan.gather == "exhaustive"
    with pytest.raises(SecateursError, match=f"--gather {gather}"):
        index.search(random_text(np.random.default_rng(0), 2), gather=gather)


def test_an_unknown_gatherer_names_the_known_ones(large: Index) -> None:
    with pytest.raises(UsageError, match="cells, faiss, exhaustive"):
        large.search(random_text(np.random.default_rng(0), 2), gather="hnsw")


def test_faiss_is_needed_only_where_it_gathers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_both = build_random(tmp_path / "both.sec", 40, gather=("cells", "faiss"))
    query = random_text(np.random.default_rng(0), 3)
    expected = with_both.search(query, gather="cells").hits
    monkeypatch.setitem(sys.modules, "faiss", None)  # as if it were not installed

    missing = r'faiss is not installed: pip install "secateurs\[faiss\]"'
    opened = Index(with_both.path)
    assert opened.search(query).hits == expected
    with pytest.raises(MissingExtraError, match=missing):
        opened.search(query, gather="faiss")
    with pytest.raises(MissingExtraError, match=missing):
        opened.add([Document("new", encoded=random_text(np.random.default_rng(1), 3))])
    assert "new" not in opened
    with pytest.raises(MissingExtraError, match=missing):
        build_random(tmp_path / "faiss.sec", 40, gather="faiss")
    assert not (tmp_path / "faiss.sec").exists()
    with_cells = build_random(tmp_path / "cells.sec", 40)
    with_cells.delete(["d001"])
    with_cells.compact()
    assert with_cells.search(query, gather="exhaustive", k=40).stats.documents_scored == len(with_cells) == 39


def test_embeddings_of_any_length_are_gathered_by_dot_product(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    documents = []
    for i in range(300):
        text = random_text(rng, 4)
        documents.append(
            Document(f"d{i}", encoded=EncodedText(text.embeddings * rng.uniform(0.2, 5), text.token_ids, [0] * 4))
        )
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather=("cells", "faiss"))
    shared = {"cells": 0, "faiss": 0}
    for _ in range(20):
        query = random_text(rng, 3)
        exact = {hit.docno for hit in index.search(query, gather="exhaustive")}
        for gather in shared:
            found = index.search(query, p=None, gather=gather, k_prime=60, nprobe=100, candidates=150)
            shared[gather] += len(exact & {hit.docno for hit in found})
    assert min(shared.values()) > 0.9 * 200


def test_partitions_and_codes_find_only_what_a_filter_allows(large: Index) -> None:
    allowed = [f"d{i:04}" for i in range(0, 2000, 40)]
    where = f"docno in ({', '.join(map(repr, allowed))})"
    for seed in range(5):
        query = random_text(np.random.default_rng(seed), 3)
        found = large.search(query, k=5, gather="faiss", k_prime=30, nprobe=64, where=where)
        assert {hit.docno for hit in found} <= set(allowed)
        assert 10 < found.stats.documents_gathered < 50


def test_a_search_does_not_change_the_number_of_faiss_threads(large: Index) -> None:
    import faiss

    before = faiss.omp_get_max_threads()
    query = random_text(np.random.default_rng(0), 2)
    large.search(query, k=np.int64(3), gather="faiss", k_prime=np.int64(7))  # type: ignore[arg-type]
    assert faiss.omp_get_max_threads() == before


def test_partitions_and_codes_follow_the_size_and_the_dimension() -> None:
    assert _recipe(9_999, 96) == "IDMap,Flat"
    assert _recipe(2_900_000, 96) == "IVF4096,PQ16x8"
    assert _recipe(2_900_000, 100) == "IVF4096,PQ10x8"
    assert _recipe(20_000, 17) == "IVF512,Flat"
    assert _recipe(12_000, 96) == "IVF256,PQ16x8"


def cells_of(index: Index) -> list[np.ndarray]:
    homes = (index.snapshot.codebook.folder, index.snapshot.segments[0].folder, index.snapshot.segments[0].folder)
    return [np.load(folder / name) for folder, name in zip(homes, CELLS, strict=True)]


def approximate_scores(index: Index, embeddings: np.ndarray, nprobe: int) -> dict[int, float]:
    """What cells.py says in words, in plain Python: the sums over a document's best probed cells, above the lowest."""
    centroids, offsets, listed = cells_of(index)
    rounded, unit = round_query(embeddings)
    scores: dict[int, float] = {}
    for vector, step in zip(rounded.astype(np.int64), unit, strict=True):
        similar = centroids[:, : len(vector)].astype(np.int64) @ vector
        nearest = np.argsort(-similar, kind="stable")
        stand_in = similar[nearest[min(nprobe, len(nearest) - 1)]]
        best: dict[int, float] = {}
        for cell in nearest[:nprobe]:
            for document in listed[offsets[cell] : offsets[cell + 1]].tolist():
                best.setdefault(document, step * (similar[cell] - stand_in))
        for document, gain in best.items():
            scores[document] = scores.get(document, 0.0) + gain
    return scores


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 40), st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_cells_give_the_documents_with_the_best_approximate_scores(
    large: Index, seed: int, kept: int, nprobe: int, wanted: int
) -> None:
    query = random_text(np.random.default_rng(seed), kept)
    expected = approximate_scores(large, query.embeddings, nprobe)
    plan = SearchPlan(1, None, "icf", "cells", 1, nprobe, wanted)
    for _ in range(2):  # the second time on sums that the first has to have cleared
        documents, seen = gatherer(large.snapshot, "cells").gather(query, np.arange(kept), plan)
        assert seen == len(expected)
        assert len(documents) == len(set(documents.tolist())) == min(wanted, seen)
        got = [expected[document] for document in documents.tolist()]
        assert got == pytest.approx(sorted(expected.values(), reverse=True)[:wanted], abs=1e-4)


def test_a_document_is_listed_once_in_each_cell_that_has_an_embedding_of_it(large: Index) -> None:
    segment = large.snapshot.segments[0]
    centroids, offsets, listed = cells_of(large)
    assert len(offsets) == len(centroids) + 1
    for first, last in pairwise(offsets.tolist()):
        documents = listed[first:last]
        assert len(documents) > 0
        assert (np.diff(documents) > 0).all()
    assert set(listed.tolist()) == set(np.flatnonzero(np.diff(segment.offsets)).tolist())


def test_cells_with_every_cell_and_every_candidate_are_exhaustive(large: Index) -> None:
    for seed in range(5):
        query = random_text(np.random.default_rng(seed), 8)
        exact = large.search(query, k=50, gather="exhaustive")
        found = large.search(query, k=50, p=None, gather="cells", nprobe=10**6, candidates=10**6)
        assert found.hits == exact.hits


@pytest.mark.parametrize(("effort", "least"), [("fast", 0.8), ("balanced", 0.95), ("exact", 1.0)])
def test_each_effort_finds_its_share_of_the_exact_ten_on_real_text(
    effort: str, least: float, index: Index, encoded_queries: list[EncodedText]
) -> None:
    shared = 0
    for query in encoded_queries:
        exact = {hit.docno for hit in index.search(query, gather="exhaustive")}
        shared += len(exact & {hit.docno for hit in index.search(query, effort=effort)})
    assert shared >= least * 10 * len(encoded_queries)


def test_embeddings_without_token_ids_are_gathered_as_well(
    encoded_passages: list[Document], encoded_queries: list[EncodedText], tmp_path: Path
) -> None:
    nameless = []
    for document in encoded_passages:
        assert document.encoded is not None
        rows = document.encoded.embeddings
        nameless.append(Document(document.docno, encoded=EncodedText(rows, [0] * len(rows), [0] * len(rows))))
    index = Index.build(tmp_path / "i.sec", nameless, encoder=None)
    shared = 0
    for query in encoded_queries:
        exact, found = (index.search(query, gather=gather) for gather in ("exhaustive", "cells"))
        shared += len({hit.docno for hit in exact} & {hit.docno for hit in found})
    assert shared >= 0.9 * 10 * len(encoded_queries)


def test_dropping_documents_early_changes_no_ranking(large: Index) -> None:
    for seed in range(5):
        query = random_text(np.random.default_rng(seed), 40)
        everything = large.search(query, k=len(large), gather="exhaustive")
        assert large.search(query, k=10, effort="exact").hits == everything.hits[:10]


def test_with_one_cell_per_embedding_a_document_with_all_words_comes_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    words = random_text(rng, 6, dim=64)
    query = EncodedText(words.embeddings, np.arange(6), [0] * 6)
    documents = [
        Document(f"d{i:04}", encoded=EncodedText(words.embeddings[[i % 6]], [i % 6], [0])) for i in range(1000)
    ] + [Document("all", encoded=query)]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    assert index.search(query, k=3, p=None, nprobe=1, candidates=10)[0].docno == "all"


def test_cold_threads_open_the_gatherer_once(large: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = gathering._open
    monkeypatch.setattr(gathering, "_open", lambda snapshot, name: opened.append(name) or real(snapshot, name))
    cold = Index(large.path)
    queries = [random_text(np.random.default_rng(seed), 6) for seed in range(40)]
    assert len(list(cold.search_many(queries, threads=8))) == 40
    assert opened == ["cells"]


def test_search_many_stops_searching_when_its_caller_stops_reading(large: Index) -> None:
    asked: list[int] = []

    def queries() -> Iterator[EncodedText]:
        for seed in range(10_000):
            asked.append(seed)
            yield random_text(np.random.default_rng(seed), 6)

    rankings = large.search_many(queries(), threads=2)
    next(rankings)
    rankings.close()  # type: ignore[attr-defined]
    assert len(asked) < 50
    with pytest.raises(UsageError, match="threads is a whole number of at least 1"):
        large.search_many(queries(), threads=-1)


def test_threads_share_the_cells_without_sharing_their_sums(large: Index) -> None:
    queries = [random_text(np.random.default_rng(seed), 6) for seed in range(200)]
    one_by_one = [large.search(query).hits for query in queries]
    assert [ranking.hits for ranking in large.search_many(queries, threads=8)] == one_by_one

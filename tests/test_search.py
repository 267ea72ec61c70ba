"""The pipeline from query to ranking."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from conftest import QUERIES, build_random, random_text

from secateurs import Document, EncodedText, Index, Ranking
from secateurs import search as pipeline
from secateurs.cancellation import cancelled_by
from secateurs.errors import CancelledError, UsageError
from secateurs.kernels.maxsim import maxsim
from secateurs.settings import OrderName
from secateurs.storage.snapshot import Snapshot


def test_hits_are_scored_with_all_embeddings_however_few_gathered_them(index: Index) -> None:
    for query in QUERIES:
        exact = {hit.docno: hit.score for hit in index.search(query, k=len(index), gather="exhaustive")}
        for hit in index.search(query, k=20, p=1):
            assert hit.score == exact[hit.docno]


def test_pruning_scores_fewer_documents_and_says_so(index: Index) -> None:
    full = index.search("wait for a thread to finish", p=None, nprobe=8, candidates=400)
    pruned = index.search("wait for a thread to finish", p=2, nprobe=8, candidates=400)
    assert pruned.stats.embeddings_kept == len(pruned.kept) == 2
    assert full.stats.embeddings_kept == full.stats.query_embeddings == 32
    assert pruned.stats.documents_scored < full.stats.documents_scored <= full.stats.documents_in_index == len(index)
    assert set(full.stats.milliseconds) == {"encode", "filter", "prune", "gather", "score", "fetch"}


def test_icf_keeps_the_words_that_matter(index: Index) -> None:
    encoded = index.encode_query("the archive of the file")
    kept = index.search("the archive of the file", p=2, order="icf").kept
    assert [index.token_text(int(encoded.token_ids[i])) for i in kept] == ["archive", "file"]


@pytest.mark.parametrize("order", ["focus", "rarity"])
def test_the_words_of_asking_are_dropped(index: Index, order: OrderName) -> None:
    encoded = index.encode_query("how do I read a zip archive")
    kept = index.search(encoded, p=2, order=order).kept
    assert {index.token_text(int(encoded.token_ids[i])) for i in kept} == {"zip", "archive"}


def test_exhaustive_search_is_eq_1_on_the_stored_embeddings(index: Index, encoded_queries: list[EncodedText]) -> None:
    segment = index.snapshot.segments[0]
    rows = index.snapshot.store.decode(np.asarray(segment.embeddings.rows))
    for query in encoded_queries[:3]:
        expected = maxsim(query.embeddings, rows, segment.offsets[:-1], segment.offsets[1:])
        ranking = index.search(query, k=25, gather="exhaustive")
        assert [hit.score for hit in ranking] == pytest.approx(np.sort(expected)[::-1][:25], abs=0.02)


def test_equal_scores_are_ordered_by_docno_also_at_the_cut(tmp_path: Path) -> None:
    text = random_text(np.random.default_rng(0), 3)
    names = ["pear", "apple", "fig", "date", "cherry", "banana"]
    index = Index.build(tmp_path / "i.sec", [Document(name, encoded=text) for name in names], encoder=None)
    for k in range(1, 8):
        ranking = index.search(text, k=k, gather="exhaustive")
        assert [hit.docno for hit in ranking] == sorted(names)[:k]


def test_every_hit_is_there_once_and_there_are_k_if_k_were_gathered(index: Index) -> None:
    for k in (1, 7, 100, 10_000):
        ranking = index.search("a string of bytes", k=k, p=3)
        docnos = [hit.docno for hit in ranking]
        assert len(docnos) == len(set(docnos)) == min(k, ranking.stats.documents_gathered)
        assert [h.score for h in ranking] == sorted((h.score for h in ranking), reverse=True)


@pytest.mark.parametrize("query", ["", "   ", "\n\t", "\u200b", "\x07 \u00a0"])
def test_an_empty_query_is_an_error(index: Index, query: str) -> None:
    with pytest.raises(UsageError, match="the query is empty"):
        index.search(query)
    with pytest.raises(UsageError, match="the query is empty"):
        index.explain(query, "argparse")


def test_a_query_without_embeddings_is_an_error(index: Index) -> None:
    nothing = EncodedText(np.zeros((0, index.manifest.dim)), [], [])
    for verb in (index.search, index.candidates, index.decide):
        with pytest.raises(UsageError, match="the query is empty: it has no embeddings"):
            verb(nothing)


def test_nprobe_of_the_plan_is_at_most_the_number_of_cells(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 300)
    ranking = index.search(random_text(np.random.default_rng(0), 4), gather="cells", nprobe=5000)
    assert ranking.plan.nprobe == index.snapshot.cells < 5000


@pytest.mark.slow
def test_a_damaged_faiss_index_does_not_matter_to_a_search_by_cells(tmp_path: Path) -> None:
    index = build_random(tmp_path / "i.sec", 300, gather=("cells", "faiss"))
    file = next((tmp_path / "i.sec").rglob("faiss.index"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    code = f"""
import numpy as np
from secateurs import EncodedText, Index
query = EncodedText(np.ones((2, 16)), [1, 2], [0, 0])
print(len(Index({str(index.path)!r}).search(query, gather="cells")))
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "10"


def test_threads_get_the_same_rankings(index: Index) -> None:
    alone = [index.search(query, p=3).hits for query in QUERIES]
    with ThreadPoolExecutor(8) as pool:
        together = [ranking.hits for ranking in pool.map(lambda q: index.search(q, p=3), QUERIES * 4)]
    assert together == alone * 4


@pytest.mark.parametrize("query", [None, b"bytes", ["a", "list"], 7, np.zeros((3, 96), dtype=np.float32)])
def test_a_query_that_is_neither_text_nor_encoded_is_a_clear_error(index: Index, query: object) -> None:
    for verb in (index.search, index.candidates, index.decide):
        with pytest.raises(UsageError, match="a query is a text or an EncodedText, not"):
            verb(query)  # type: ignore[operator]
    with pytest.raises(UsageError, match="a query is a text or an EncodedText, not"):
        index.score(query, ["argparse"])  # type: ignore[arg-type]


@pytest.mark.parametrize("queries", ["abc", b"abc", None, 7])
def test_search_many_refuses_one_query_in_the_place_of_several(index: Index, queries: object) -> None:
    with pytest.raises(UsageError, match="search_many takes several queries"):
        index.search_many(queries)  # type: ignore[arg-type]


@pytest.mark.parametrize("where", [{"year": 2020}, 7, ["a = 1"]])
def test_a_filter_that_is_not_a_text_is_a_clear_error(index: Index, where: object) -> None:
    with pytest.raises(UsageError, match="where is a text such as"):
        index.search("a", where=where)  # type: ignore[arg-type]


def test_p_all_is_the_same_as_p_none(index: Index) -> None:
    assert index.search(QUERIES[0], p="all").kept == index.search(QUERIES[0], p=None).kept
    assert index.search(QUERIES[0], p="all").plan.p is None


def test_the_first_search_reports_loading_apart_from_its_stages(index_path: Path) -> None:
    first, second = (ranking.stats for ranking in map(Index(index_path).search, QUERIES[:2]))
    assert first.loading_milliseconds > second.loading_milliseconds >= 0
    assert first.total_milliseconds == sum(first.milliseconds.values())
    assert set(first.milliseconds) == {"encode", "filter", "prune", "gather", "score", "fetch"}


def test_refreshing_an_unchanged_index_opens_no_new_state(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshot, "open", lambda *arguments: pytest.fail("opened"))
    assert index.refresh() is False


@pytest.mark.parametrize(
    ("name", "value"), [("k", 0), ("p", 0), ("k_prime", -1), ("nprobe", 0), ("k", 1.5), ("p", np.array([1, 2]))]
)
def test_settings_that_make_no_sense_are_named(index: Index, name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"{name} must be a whole number of at least 1"):
        index.search("a", **{name: value})  # type: ignore[arg-type]


def test_the_similarities_of_an_explanation_add_up_to_the_score(index: Index) -> None:
    best = index.search("parse command line arguments", p=3)[0]
    explanation = index.explain("parse command line arguments", best.docno, p=3)
    assert explanation.rank == 1
    assert explanation.score == best.score
    assert sum(token.similarity for token in explanation.tokens) == pytest.approx(best.score, abs=1e-9)
    assert [token.kept for token in explanation.tokens] == [True] * 3 + [False] * (len(explanation.tokens) - 3)
    assert any(token.gathers for token in explanation.tokens)
    assert not any(token.gathers for token in explanation.tokens[3:])


def test_explain_ranks_like_search(index: Index) -> None:
    for rank, hit in enumerate(index.search("open a web page", k=8, p=4), start=1):
        assert index.explain("open a web page", hit.docno, p=4).rank == rank


def test_explain_of_a_document_that_was_not_gathered_says_so(index: Index) -> None:
    query = "remove a directory tree"
    found = {hit.docno for hit in index.search(query, k=len(index), p=1, gather="cells", nprobe=2)}
    missed = next(h.docno for h in index.search(query, k=len(index), gather="exhaustive") if h.docno not in found)
    explanation = index.explain(query, missed, p=1, gather="cells", nprobe=2)
    assert not explanation.gathered
    assert explanation.rank is None


def test_the_two_stages_apart_are_the_search(index: Index) -> None:
    query, settings = "open a web page in a browser", {"k": 5, "p": 2, "gather": "cells", "candidates": 30}
    ranking = index.search(query, **settings)
    candidates = index.candidates(query, **settings)
    assert len(set(candidates)) == len(candidates) == ranking.stats.documents_scored
    ranked = sorted((-score, docno) for docno, score in zip(candidates, index.score(query, candidates), strict=True))
    assert [(-score, docno) for score, docno in ranked[:5]] == [(hit.score, hit.docno) for hit in ranking]


def test_scores_come_in_the_order_of_the_docnos_and_do_not_depend_on_the_others(index: Index) -> None:
    docnos = [hit.docno for hit in index.search("send an email message", k=7)]
    asked = [docnos[4], docnos[0], docnos[4], docnos[6]]
    scores = index.score("send an email message", asked)
    assert scores == [index.score("send an email message", [docno])[0] for docno in asked]
    assert scores[0] == scores[2]
    assert index.score("send an email message", []) == []


@pytest.mark.parametrize("gather", ["cells", "exhaustive"])
def test_a_cancelled_search_stops_and_the_next_search_is_right(index: Index, gather: str) -> None:
    expected = index.search(QUERIES[0], gather=gather).hits
    stop = Event()
    stop.set()
    with cancelled_by(stop), pytest.raises(CancelledError):
        index.search(QUERIES[0], gather=gather)
    assert index.search(QUERIES[0], gather=gather).hits == expected


def test_a_search_is_cancelled_between_blocks_of_query_embeddings_and_of_documents(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set the event at the n-th look, for every n until the search is done: each time it stops there."""
    monkeypatch.setattr("secateurs.gather.cells._EMBEDDINGS_AT_ONCE", 4)
    monkeypatch.setattr(pipeline, "_PAIRS_AT_ONCE", 32 * 100)
    settings = {"p": None, "gather": "cells", "candidates": 256}
    expected = index.search(QUERIES[1], **settings).hits  # type: ignore[arg-type]

    class SetAtLook(Event):
        looks = 0

        def is_set(self) -> bool:
            self.looks += 1
            return self.looks > self.allowed

    stopped = 0
    while True:
        stop = SetAtLook()
        stop.allowed = stopped  # type: ignore[attr-defined]
        with cancelled_by(stop):
            try:
                assert index.search(QUERIES[1], **settings).hits == expected  # type: ignore[arg-type]
                break
            except CancelledError:
                stopped += 1
    assert stopped >= 2 * 8 + 2  # 32 embeddings probed and added four at a time, 256 documents scored 100 at a time


@pytest.mark.parametrize(
    ("k", "patience", "settled"),
    [(2, 3, True), (2, 4, False), (1, 4, True), (3, 3, False), (5, 1, False)],
)
def test_the_best_are_settled_when_no_recent_score_is_among_them(k: int, patience: int, settled: bool) -> None:
    assert pipeline._is_settled(np.array([9.0, 8.0, 2.0, 1.0, 1.5]), k, patience) is settled


def test_a_score_that_ties_with_the_last_of_the_best_is_among_them() -> None:
    assert not pipeline._is_settled(np.array([9.0, 8.0, 8.0, 1.0]), 2, 2)
    assert pipeline._is_settled(np.array([9.0, 8.0, 8.0, 1.0]), 2, 1)


@pytest.mark.parametrize("k", [1, 5, 20])
def test_scoring_ends_when_the_best_have_settled(index: Index, k: int) -> None:
    """What was scored is the front of the candidates, and no candidate of its last part is among the best."""
    query = index.encode_query(QUERIES[1])
    ranking = index.search(query, k=k, gather="cells", effort="fast")
    plan, scored = ranking.plan, ranking.stats.documents_scored
    assert plan.patience is not None
    all_of_them = index.candidates(query, k=k, gather="cells", effort="fast", candidates=plan.candidates)
    front = index.candidates(query, k=k, gather="cells", effort="fast")
    assert front == all_of_them[:scored]
    scores = index.score(query, front)
    best = sorted(zip(scores, front, strict=True), key=lambda pair: (-pair[0], pair[1]))[:k]
    assert [(hit.score, hit.docno) for hit in ranking] == best
    assert scored < len(all_of_them)
    assert not {docno for _, docno in best} & set(front[-plan.patience :])


def test_scores_do_not_depend_on_how_many_documents_are_scored_at_once(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = index.search(QUERIES[2], k=20, gather="exhaustive").hits
    monkeypatch.setattr(pipeline, "_PAIRS_AT_ONCE", 32 * 7)
    assert index.search(QUERIES[2], k=20, gather="exhaustive").hits == expected


def test_the_plan_of_a_ranking_says_what_was_done_not_what_was_planned(tmp_path: Path) -> None:
    """A filter under which the cells hold fewer than k matching documents: all matching documents are scored."""
    index = build_random(tmp_path / "i.sec", 600)
    query = random_text(np.random.default_rng(1), 1)
    ranking = index.search(query, k=10, gather="cells", nprobe=1, where="i >= 590")
    assert len(ranking) == 10
    assert ranking.plan.gather == "exhaustive"
    assert ranking.stats.documents_scored == 10
    assert index.search(query, k=1, gather="cells", nprobe=4).plan.gather == "cells"


def test_a_filter_that_nothing_matches_is_answered_without_gathering(index: Index) -> None:
    ranking = index.search(QUERIES[0], p=None, gather="cells", where="docno = 'none'")
    assert len(ranking) == ranking.stats.documents_gathered == ranking.stats.documents_scored == 0


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int64])
def test_numbers_of_numpy_are_numbers(kind: type[np.integer], tmp_path: Path) -> None:
    index, query = build_random(tmp_path / "index.sec", 300), random_text(np.random.default_rng(0), 4)
    given = {"k": 100, "offset": 100, "p": 3, "nprobe": 120, "candidates": 120}
    small = {name: kind(value) for name, value in given.items()}
    assert index.decide(query, gather="cells", **small).plan == index.decide(query, gather="cells", **given).plan
    assert hits(index.search(query, **small)) == hits(index.search(query, **given))


def hits(ranking: Ranking) -> list[tuple[str, float]]:
    return [(hit.docno, hit.score) for hit in ranking]


def test_threads_are_a_whole_number(tmp_path: Path) -> None:
    index, query = build_random(tmp_path / "index.sec"), random_text(np.random.default_rng(0), 4)
    with pytest.raises(UsageError, match="threads is a whole number of at least 1, or None for all cores, not '2'"):
        list(index.search_many([query], threads="2"))  # type: ignore[arg-type]

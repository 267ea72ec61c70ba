"""gather="text" and gather="cells+text": BM25 over the live documents, whatever segments and shards they are in."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sharded import make_shards
from typer.testing import CliRunner

from secateurs import Document, EncodedText, Index, SecateursError, ShardedIndex
from secateurs.cli.app import app
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.importing import import_embeddings
from secateurs.storage.repair import repair
from secateurs.storage.words import split_words

VOCABULARY = ("fox", "dog", "cat", "42", "owl", "emu", "the")


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def bm25(texts: Mapping[str, str], query: str) -> dict[str, float]:
    """A plain twin, for texts of words that are their own stems: docno -> score, of documents that have a word."""
    counts = {docno: Counter(words_of(text)) for docno, text in texts.items()}
    mean = sum(map(Counter.total, counts.values())) / max(len(counts), 1)
    scores: dict[str, float] = {}
    for docno, count in counts.items():
        for word in words_of(query):
            if count[word]:
                df = sum(word in other for other in counts.values())
                idf = math.log(1 + (len(counts) - df + 0.5) / (df + 0.5))
                share = count[word] * 2.2 / (count[word] + 1.2 * (0.25 + 0.75 * count.total() / mean))
                scores[docno] = scores.get(docno, 0) + idf * share
    return scores


def document(docno: str, seed: int, **metadata: Any) -> Document:
    """Of a few words that depend on the seed."""
    rng = np.random.default_rng(seed)
    text = " ".join(rng.choice(VOCABULARY, int(rng.integers(0, 9))))
    return Document(docno, text, metadata, random_text(rng, 4))


def query(text: str, seed: int = 0) -> EncodedText:
    encoded = random_text(np.random.default_rng(seed), 5)
    return EncodedText(encoded.embeddings, encoded.token_ids, encoded.token_kinds, text=text)


def text_scores(index: Index | ShardedIndex, text: str, **how: Any) -> dict[str, float]:
    """BM25 of every document that is gathered."""
    found = index.candidates(query(text), gather="text", candidates=1000, **how)
    assert len(found) == len(set(found))
    scores = {docno: index.explain(query(text), docno, gather="text", **how).text_score for docno in found}
    assert all(score is not None for score in scores.values())
    return scores  # type: ignore[return-value]


def texts(documents: Iterable[Document]) -> dict[str, str]:
    return {item.docno: item.text for item in documents}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "update", "update metadata", "delete", "compact", "reopen"]),
        st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True).map(tuple),
    ),
    max_size=8,
)


@given(STEPS, st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4).map(" ".join))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_after_any_changes_text_gathers_as_plain_bm25_over_the_live_documents(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[tuple[str, tuple[int, ...]]], text: str
) -> None:
    path = tmp_path_factory.mktemp("text") / "i.sec"
    held = {f"d{i}": document(f"d{i}", i) for i in range(5)}
    index = Index.build(path, held.values(), encoder=None, gather=("cells", "text"))
    for turn, (verb, numbers) in enumerate(steps, start=1):
        changed = [document(f"d{number}", 100 * turn + number) for number in numbers]
        if verb == "add":
            changed = [item for item in changed if item.docno not in held]
            index.add(changed)
        elif verb == "update":
            index.update(changed)
        elif verb == "update metadata":
            index.update_metadata({item.docno: {"turn": turn} for item in changed})
        elif verb == "delete":
            index.delete([item.docno for item in changed])
            held = {docno: item for docno, item in held.items() if docno not in texts(changed)}
        elif verb == "compact":
            index.compact()
        else:
            index = Index(path)
        if verb in ("add", "update"):
            held |= {item.docno: item for item in changed}
    index.check()
    expected = bm25(texts(held.values()), text)
    assert text_scores(index, text) == pytest.approx(expected)
    best = index.candidates(query(text), gather="text", candidates=10)  # at least k of them
    assert sorted(expected.values(), reverse=True)[:10] == pytest.approx([expected[docno] for docno in best])


def test_bm25_by_hand(tmp_path: Path) -> None:
    """Three documents of two words on average. "fox" is in one of them: idf = log(1 + 2.5 / 1.5)."""
    documents = [
        Document(docno, text, encoded=random_text(np.random.default_rng(i), 2))
        for i, (docno, text) in enumerate([("a", "fox fox owl"), ("b", "dog cat"), ("c", "emu")])
    ]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather="text")
    share = 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 3 / 2))
    assert text_scores(index, "Fox!") == {"a": pytest.approx(math.log(1 + 2.5 / 1.5) * share)}
    assert text_scores(index, "fox fox") == {"a": pytest.approx(2 * math.log(1 + 2.5 / 1.5) * share)}


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Index:
    documents = [document(f"d{i:03}", i, year=2000 + i % 10) for i in range(300)]
    path = tmp_path_factory.mktemp("zoo") / "i.sec"
    return Index.build(path, documents, encoder=None, gather=("cells", "text"))


def test_both_ways_together_score_what_either_gathers(zoo: Index) -> None:
    for seed in range(10):
        asked = query("owl emu", seed)
        cells, text, both = (
            zoo.search(asked, k=300, gather=gather, candidates=300, nprobe=2, p=2)
            for gather in ("cells", "text", "cells+text")
        )
        docnos = [{hit.docno for hit in ranking} for ranking in (cells, text, both)]
        assert docnos[2] == docnos[0] | docnos[1]
        assert both.stats.documents_gathered == len(docnos[2])
        assert docnos[0] - docnos[1]
        assert docnos[1] - docnos[0]
        exact = {hit.docno: hit.score for hit in zoo.search(asked, k=300, gather="exhaustive")}
        assert all(hit.score == exact[hit.docno] for hit in both)
        assert [hit.score for hit in both] == sorted((hit.score for hit in both), reverse=True)


def test_each_way_chooses_as_many_candidates(zoo: Index) -> None:
    found = zoo.candidates(query("owl"), gather="cells+text", k=1, candidates=7, nprobe=50)
    assert set(found[:7]) == set(zoo.candidates(query("owl"), gather="cells", k=1, candidates=7, nprobe=50))
    assert set(found) >= set(zoo.candidates(query("owl"), gather="text", k=1, candidates=7))
    assert 7 < len(found) <= 14


def test_text_finds_only_what_a_filter_allows_by_the_statistics_of_the_collection(zoo: Index) -> None:
    everything = bm25(texts(zoo.documents()), "owl")
    allowed = {item.docno: item.text for item in zoo.documents() if item.metadata["year"] >= 2007}
    found = text_scores(zoo, "owl", where="year >= 2007")
    assert found == pytest.approx({docno: score for docno, score in everything.items() if docno in allowed})
    of_matching = text_scores(zoo, "owl", where="year >= 2007", frequencies="matching")
    assert of_matching == pytest.approx(bm25(allowed, "owl"))
    assert of_matching != pytest.approx(found)


def test_a_filter_adds_no_documents_without_a_word_of_the_query(zoo: Index) -> None:
    assert len(zoo.search(query("yak"), gather="text", where="year = 2003")) == 0
    assert len(zoo.search(query("yak"), gather="text")) == 0
    assert len(zoo.search(query("yak"), gather="cells+text", where="year = 2003")) == 10


def test_shards_gather_by_the_statistics_of_all_of_them(tmp_path: Path, zoo: Index) -> None:
    path = make_shards(tmp_path / "s.sec", list(zoo.documents()), 3, gather=("cells", "text"))
    with ShardedIndex(path) as shards:
        assert shards.gatherers == ("cells", "exhaustive", "text")
        assert text_scores(shards, "owl the emu") == pytest.approx(bm25(texts(zoo.documents()), "owl the emu"))
        for where in (None, "year >= 2007"):
            one, several = (
                index.search(query("owl emu"), k=300, gather="text", where=where) for index in (zoo, shards)
            )
            assert {hit.docno for hit in several} == {hit.docno for hit in one}
            assert several.stats.documents_gathered == one.stats.documents_gathered
        counted = {"where": "year >= 2007", "frequencies": "matching"}
        assert text_scores(shards, "owl", **counted) == pytest.approx(text_scores(zoo, "owl", **counted))
        shards.delete(list(texts(zoo.documents()))[:100])
        left = dict(list(texts(zoo.documents()).items())[100:])
        assert text_scores(shards, "owl the emu") == pytest.approx(bm25(left, "owl the emu"))


def test_a_document_without_embeddings_counts_but_is_not_gathered(tmp_path: Path) -> None:
    documents = [document("d", 3), Document("empty", "owl", encoded=random_text(np.random.default_rng(0), 0))]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather="text")
    assert "empty" not in index.candidates(query(" ".join(VOCABULARY)), gather="text")
    assert index.explain(query("owl"), "empty", gather="text").text_score == pytest.approx(
        bm25(texts(documents), "owl")["empty"]
    )


@pytest.mark.parametrize(
    "text", ['"', "fox OR", "fox AND (", "NEAR(fox owl, 2)", "text:fox", "fox*", "^fox", "-fox", "'; DROP TABLE words"]
)
def test_nothing_in_a_query_is_syntax(zoo: Index, text: str) -> None:
    assert set(text_scores(zoo, text)) == set(bm25(texts(zoo.documents()), text))


def test_words_have_no_case_no_accents_and_no_english_endings() -> None:
    assert split_words("The Köln of CAFÉ's libc6-dev 3.14, foxes running") == [
        *("the", "koln", "of", "cafe", "s", "libc6", "dev", "3", "14", "fox", "run"),
    ]
    assert split_words("?!") == []


def test_a_word_longer_than_fts5_keeps_is_found_again(tmp_path: Path) -> None:
    """FTS5 cuts it after 32 KiB, here in the middle of a character."""
    long = "語" * 11_000
    documents = [Document("long", long, encoded=random_text(np.random.default_rng(0), 2)), document("d", 3)]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather="text")
    assert index.candidates(query(long), gather="text") == ["long"]


def test_a_word_that_a_document_has_more_than_255_times(tmp_path: Path) -> None:
    documents = [Document("many", "owl " * 300, encoded=random_text(np.random.default_rng(0), 2)), document("d", 3)]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather="text")
    assert text_scores(index, "owl") == pytest.approx(bm25(texts(documents), "owl"))


def test_embeddings_without_text_are_refused(zoo: Index) -> None:
    for gather in ("text", "cells+text"):
        with pytest.raises(UsageError, match="need the text of the query"):
            zoo.search(random_text(np.random.default_rng(0), 3), gather=gather)
    with pytest.raises(UsageError, match="text is a text"):
        EncodedText(np.zeros((1, 2)), [0], [0], text=3)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="not valid Unicode"):
        query("\ud800")


def test_an_index_that_was_not_built_for_text_names_the_options_that_build_it(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", [document("d", 3)], encoder=None)
    with pytest.raises(SecateursError, match=r"--gather text$"):
        index.search(query("owl"), gather="text")
    with pytest.raises(SecateursError, match=r"--gather cells --gather text$"):
        index.search(query("owl"), gather="cells+text")
    with pytest.raises(SecateursError, match="gather is one of cells, faiss, exhaustive, text"):
        Index.build(tmp_path / "j.sec", [document("d", 3)], encoder=None, gather=("cells+text",))  # type: ignore


def test_text_is_never_what_an_index_gathers_with_unless_it_is_asked_to(zoo: Index) -> None:
    assert zoo.search(query("owl"), k=1, candidates=10).plan.gather == "cells"
    only_text = zoo.manifest.gather
    assert only_text == ("cells", "text")
    with pytest.raises(UsageError, match="budget_ms is for"):
        zoo.search(query("owl"), gather="cells+text", budget_ms=5)


def test_an_empty_index_takes_text_queries_and_then_documents(tmp_path: Path) -> None:
    index = Index.build(tmp_path / "i.sec", [], encoder=None, gather=("cells", "text"))
    assert len(index.search(query("owl"), gather="cells+text")) == 0
    index.add([document(f"d{i}", i) for i in range(5)])
    assert text_scores(index, "owl") == pytest.approx(bm25(texts(index.documents()), "owl"))
    other = Index.build(tmp_path / "j.sec", [], encoder=None)
    assert len(other.search(query("owl"), gather="text")) == 0


def test_explain_tells_that_a_word_gathered_the_document(zoo: Index) -> None:
    has_owl = next(item.docno for item in zoo.documents() if "owl" in item.text)
    has_not = next(item.docno for item in zoo.documents() if "owl" not in item.text)
    found, missed = (zoo.explain(query("owl"), docno, gather="text") for docno in (has_owl, has_not))
    assert found.gathered
    assert found.rank is not None
    assert not any(token.gathers for token in found.tokens)
    assert (missed.gathered, missed.rank, missed.text_score) == (False, None, 0.0)
    assert zoo.explain(query("owl"), has_owl, gather="cells").text_score is None
    elsewhere = zoo.explain(query("owl"), has_owl, gather="text", where=f"docno != {has_owl!r}")
    assert not elsewhere.gathered


def test_a_text_query_is_encoded_and_its_words_are_looked_for(tmp_path: Path, encoder: OnnxEncoder) -> None:
    documents = [
        {"docno": "fish", "text": "Goldfish grow as large as their pond lets them."},
        {"docno": "code", "text": "Error E4711 means that the pump is blocked."},
        {"docno": "other", "text": "Error E4712 means that the pump is dry."},
    ]
    index = Index.build(tmp_path / "i.sec", documents, encoder=encoder, gather=("cells", "text"))
    ranking = index.search("E4711", gather="text")
    assert [hit.docno for hit in ranking] == ["code"]
    assert ranking.query.text == "E4711"
    assert ranking.plan.words is not None
    assert ranking.plan.words.words == ("e4711",)


def test_damage_of_the_words_is_found_before_they_are_used(tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    Index.build(path, [document(f"d{i}", i) for i in range(50)], encoder=None, gather="text")
    (database,) = path.rglob("documents.sqlite")
    content = database.read_bytes()
    place = content.rindex(b"owl")
    database.write_bytes(content[:place] + b"oWl" + content[place + 3 :])
    with pytest.raises(SecateursError, match="was altered"):
        Index(path).search(query("owl"), gather="text")


def fused_by_hand(exact: Mapping[str, float], text: Mapping[str, float]) -> list[str]:
    """All documents in the order of the sum of their reciprocal ranks, in plain Python."""

    def rank(docno: str, scores: Mapping[str, float]) -> int:
        return 1 + sum(other > scores[docno] for other in scores.values())

    fused = {
        docno: 1 / (60 + rank(docno, exact)) + (1 / (60 + rank(docno, text)) if docno in text else 0) for docno in exact
    }
    return sorted(fused, key=lambda docno: (-fused[docno], -exact[docno], docno))


@pytest.mark.parametrize("gather", ["cells+text", "exhaustive", "text"])
@pytest.mark.parametrize("where", [None, "year >= 2004"])
def test_fused_hits_go_by_the_reciprocal_ranks_of_both_scores(zoo: Index, gather: str, where: str | None) -> None:
    for seed, text in enumerate(["owl", "the fox", "cat 42 emu"]):
        how: dict[str, Any] = {"gather": gather, "where": where, "candidates": 40}
        scored = zoo.candidates(query(text, seed), **how)
        exact = dict(zip(scored, zoo.score(query(text, seed), scored), strict=True))
        words = {docno: score for docno, score in bm25(texts(zoo.documents()), text).items() if docno in exact}
        expected = fused_by_hand(exact, words)
        ranking = zoo.search(query(text, seed), fuse="rrf", **how)
        assert [hit.docno for hit in ranking] == expected[:10]
        for hit in ranking:
            assert hit.exact_score == exact[hit.docno]
            assert hit.text_score == pytest.approx(words.get(hit.docno, 0))
        assert [hit.score for hit in ranking] == sorted((hit.score for hit in ranking), reverse=True)
        for place in (0, 9, -1):
            explained = zoo.explain(query(text, seed), expected[place], fuse="rrf", **how)
            assert explained.rank == expected.index(expected[place]) + 1
            assert explained.score == exact[expected[place]]


def test_fusing_over_shards_is_fusing_over_one_index(tmp_path: Path) -> None:
    """Of documents with many equal scores, of which docnos decide."""
    documents = [document(f"d{i:03}", i % 40, year=2000 + i % 10) for i in range(120)]
    one = Index.build(tmp_path / "i.sec", documents, encoder=None, store="float16", gather=("cells", "text"))
    path = make_shards(tmp_path / "s.sec", documents, 4, store="float16", gather=("cells", "text"))
    with ShardedIndex(path) as shards:
        for seed, text in enumerate(["owl", "the fox", "cat 42 emu", "yak"]):
            for k in (1, 7, 120):
                how: dict[str, Any] = {"k": k, "gather": "exhaustive", "fuse": "rrf"}
                expected, found = (index.search(query(text, seed), **how) for index in (one, shards))
                assert [(hit.docno, hit.score) for hit in found] == [(hit.docno, hit.score) for hit in expected]
            for place in (0, 50, 119):
                docno = expected[place].docno
                assert shards.explain(query(text, seed), docno, **how).rank == place + 1


@pytest.fixture(scope="module", params=["one index", "shards"])
def paged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index | ShardedIndex]:
    """Of documents with many equal scores, of which docnos decide."""
    documents = [document(f"d{i:03}", i % 40, year=2000 + i % 10) for i in range(120)]
    path, how = tmp_path_factory.mktemp("paged") / "i.sec", {"store": "float16", "gather": ("cells", "text")}
    if request.param == "shards":
        with ShardedIndex(make_shards(path, documents, 3, **how)) as shards:
            yield shards
    else:
        yield Index.build(path, documents, encoder=None, **how)  # type: ignore[arg-type]


@given(
    k=st.integers(1, 130),
    offset=st.integers(0, 130),
    text=st.sampled_from(["owl", "the fox", "cat 42 emu", "yak"]),
    others=st.fixed_dictionaries(
        {},
        optional={
            "where": st.just("year >= 2004"),
            "gather": st.sampled_from(["cells", "text", "cells+text", "exhaustive"]),
            "nprobe": st.integers(1, 8),
            "candidates": st.integers(1, 30),
        },
    ),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_page_of_a_fused_ranking_is_the_slice_of_the_longer_ranking(
    paged: Index | ShardedIndex, k: int, offset: int, text: str, others: dict[str, Any]
) -> None:
    longer = paged.search(query(text), k + offset, fuse="rrf", **others)
    page = paged.search(query(text), k, offset=offset, fuse="rrf", **others)
    assert [(hit.docno, hit.score) for hit in page] == [(hit.docno, hit.score) for hit in longer][offset:]
    assert page.stats.documents_scored == longer.stats.documents_scored


def test_fused_pages_together_have_all_hits_above_a_relevance_without_a_gap_or_a_repeat(
    paged: Index | ShardedIndex,
) -> None:
    how: dict[str, Any] = {"gather": "exhaustive", "fuse": "rrf"}
    whole = paged.search(query("owl"), 120, **how)
    middle = sorted(hit.relevance for hit in whole)[60]
    pages = [paged.search(query("owl"), 25, offset=offset, min_relevance=middle, **how) for offset in range(0, 150, 25)]
    assert [hit.docno for page in pages for hit in page] == [hit.docno for hit in whole if hit.relevance >= middle]


def test_the_relevance_and_its_threshold_go_by_the_exact_score(zoo: Index) -> None:
    fused = zoo.search(query("owl"), gather="exhaustive", fuse="rrf", k=300)
    plain = {hit.docno: hit for hit in zoo.search(query("owl"), gather="exhaustive", k=300)}
    assert all(hit.relevance == plain[hit.docno].relevance for hit in fused)
    middle = sorted(hit.relevance for hit in fused)[150]
    kept = zoo.search(query("owl"), gather="exhaustive", fuse="rrf", k=300, min_relevance=middle)
    assert [hit.docno for hit in kept] == [hit.docno for hit in fused if hit.relevance >= middle]
    assert plain["d000"].exact_score is None


def test_fuse_needs_text_and_gathers_by_it(zoo: Index, tmp_path: Path) -> None:
    assert zoo.search(query("owl"), k=1, candidates=10, fuse="rrf").plan.gather == "cells+text"
    without = Index.build(tmp_path / "i.sec", [document("d", 3)], encoder=None)
    with pytest.raises(SecateursError, match=r"--gather text$"):
        without.search(query("owl"), fuse="rrf")
    with pytest.raises(UsageError, match="need the text of the query"):
        zoo.search(random_text(np.random.default_rng(0), 3), fuse="rrf")
    with pytest.raises(UsageError, match="fuse is rrf, or None"):
        zoo.search(query("owl"), fuse="sum")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="min_relevance"):
        zoo.search(query("owl"), fuse="rrf", min_score=3)
    with pytest.raises(UsageError, match="leave out fuse"):
        zoo.search(query("owl"), fuse="rrf", budget_ms=3)


# ---- The surfaces

CORPUS = (
    '{"docno": "code", "text": "Error E4711 means that the pump is blocked."}\n'
    '{"docno": "other", "text": "Error E4712 means that the pump is dry."}\n'
    '{"docno": "fish", "text": "Goldfish grow as large as their pond lets them."}\n'
)


@pytest.fixture(scope="module")
def pumps(tmp_path_factory: pytest.TempPathFactory, encoder: OnnxEncoder) -> Index:
    documents = [json.loads(line) for line in CORPUS.splitlines()]
    path = tmp_path_factory.mktemp("pumps") / "pumps.sec"
    return Index.build(path, documents, encoder=encoder, gather=("cells", "text"))


def test_http_answers_by_text_and_fused_as_the_library_does(pumps: Index, index_path: Path) -> None:
    pytest.importorskip("fastapi", reason='pip install "secateurs[serve]"')
    from fastapi.testclient import TestClient

    from secateurs.service.app import create_app

    with TestClient(create_app({"pumps": pumps, "cells": Index(index_path, pumps.encoder)})) as client:

        def post(name: str = "pumps", **body: Any) -> Any:
            return client.post(f"/v1/indexes/{name}/search", json=body)

        answer = post(query="E4711", gather="text").json()
        assert [hit["docno"] for hit in answer["hits"]] == ["code"]
        assert answer["plan"]["words"]["words"] == ["e4711"]
        assert answer["hits"][0]["exact_score"] is None
        fused = post(query="E4711", fuse="rrf").json()["hits"]
        expected = pumps.search("E4711", fuse="rrf")
        assert [(hit["docno"], hit["score"], hit["exact_score"], hit["text_score"]) for hit in fused] == [
            (hit.docno, hit.score, hit.exact_score, hit.text_score) for hit in expected
        ]
        (first,) = post(query="E4711", fuse="rrf", k=1, offset=1, fields=["docno"]).json()["hits"]
        assert (first["rank"], first["docno"], first["score"]) == (2, expected[1].docno, expected[1].score)
        assert (first["exact_score"], first["text"]) == (expected[1].exact_score, None)
        assert post(query="E4711", fuse="none").json()["hits"][0]["text_score"] is None
        explained = client.get(
            "/v1/indexes/pumps/explain", params={"query": "E4711", "docno": "code", "gather": "text"}
        ).json()
        assert explained["text_score"] > 0
        curve = client.get("/v1/indexes/pumps/prune-curve", params={"query": "E4711", "gather": "text"}).json()
        assert all(point["overlap"] == 1 for point in curve["points"])
        embeddings = {"embeddings": [[1.0] + [0.0] * (pumps.dim - 1)], "token_ids": [1], "token_kinds": [0]}
        for refused, word in (
            (post(**embeddings, gather="text"), "needs the text of the query"),
            (post(**embeddings, fuse="rrf"), "needs the text of the query"),
            (post("cells", query="E4711", gather="cells+text"), "is prepared for cells, exhaustive only"),
            (post("cells", query="E4711", fuse="rrf"), "not prepared for text"),
        ):
            assert refused.status_code == 422
            assert word in refused.text
            assert str(pumps.path.parent) not in refused.text


def test_the_text_of_a_query_travels_through_pyterriers_stages(pumps: Index) -> None:
    pytest.importorskip("pyterrier", reason='pip install "secateurs[pyterrier]"')
    import pandas as pd

    from secateurs.integrations.pyterrier import Candidates, Prune, QueryEncoder, Scorer

    queries = pd.DataFrame([("q1", "E4711"), ("q2", "goldfish pumps")], columns=["qid", "query"])
    columns = ["qid", "docno", "score", "rank"]
    for gather in ("text", "cells+text"):
        whole = pumps.retriever(gather=gather)(queries)
        stages = QueryEncoder(pumps) >> Prune(pumps, gather=gather) >> Candidates(pumps, gather=gather) >> Scorer(pumps)
        assert stages(queries)[columns].equals(whole[columns])
    fused = pumps.retriever(fuse="rrf", gather="exhaustive")(queries)
    expected = pumps.search("E4711", fuse="rrf", gather="exhaustive")
    assert fused[fused["qid"] == "q1"]["docno"].tolist() == [hit.docno for hit in expected]


def test_a_sweep_takes_both_and_fuse(pumps: Index) -> None:
    from secateurs.lab import sweep

    rows = sweep("gather=cells,cells+text", "fuse=none,rrf")
    assert [(row.gather, row.fuse) for row in rows.values()] == [
        ("cells", None),
        ("cells", "rrf"),
        ("cells+text", None),
        ("cells+text", "rrf"),
    ]
    assert "gather=cells+text fuse=rrf" in rows


def test_the_command_line_builds_and_searches_by_text(tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(CORPUS)
    run = CliRunner().invoke
    index = str(tmp_path / "i.sec")
    built = run(app, ["index", str(tmp_path / "corpus.jsonl"), index, "--gather", "cells", "--gather", "text"])
    assert built.exit_code == 0, built.output
    table = run(app, ["search", index, "E4711", "--gather", "text"])
    assert "gathered 1 of 3 documents by their words, scored 1" in " ".join(table.output.split())
    both = run(app, ["search", index, "E4711", "--gather", "cells+text"])
    assert "and by their words, scored 3" in " ".join(both.output.split())
    fused = json.loads(run(app, ["search", index, "E4711", "--fuse", "rrf", "--json"]).stdout)
    assert fused["hits"][0]["docno"] == "code"
    assert fused["hits"][0]["score"] == pytest.approx(2 / 61)
    assert fused["hits"][0]["text_score"] > 0
    explained = run(app, ["explain", index, "E4711", "code", "--gather", "text"])
    assert "BM25 of its words" in " ".join(explained.output.split())
    missed = run(app, ["explain", index, "E4711", "fish", "--gather", "text"])
    assert "its words do not either" in " ".join(missed.output.split())


def test_a_repaired_index_is_searched_by_text_again(tmp_path: Path) -> None:
    path = tmp_path / "i.sec"
    documents = [document(f"d{i}", i) for i in range(50)]
    index = Index.build(path, documents, encoder=None, gather=("cells", "text"))
    expected = text_scores(index, "owl")
    index.close()
    (lists,) = path.rglob("cell_documents.npy")
    lists.write_bytes(b"damaged")
    assert not repair(path).lost
    assert text_scores(Index(path), "owl") == pytest.approx(expected)


def test_a_change_of_metadata_keeps_the_words_of_the_texts(tmp_path: Path) -> None:
    documents = [document(f"d{i}", i, year=2000) for i in range(50)]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None, gather=("cells", "text"))
    expected = bm25(texts(documents), "owl")
    changed = sorted(expected)[::2]
    index.update_metadata({docno: {"year": 2001} for docno in changed})
    for opened in (index, Index(tmp_path / "i.sec")):
        opened.check()
        assert text_scores(opened, "owl") == pytest.approx(expected)
        of_changed = {docno: expected[docno] for docno in changed}
        assert text_scores(opened, "owl", where="year = 2001") == pytest.approx(of_changed)


def test_an_exported_index_is_imported_for_text_again(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason='pip install "secateurs[lab]"')
    index = Index.build(
        tmp_path / "i.sec", [document(f"d{i}", i) for i in range(50)], encoder=None, gather=("cells", "text")
    )
    index.export(tmp_path / "i.parquet")
    import_embeddings(tmp_path / "i.parquet", tmp_path / "again.sec")
    again = Index(tmp_path / "again.sec")
    assert text_scores(again, "owl") == pytest.approx(text_scores(index, "owl"))
    fused = [opened.search(query("owl fox"), fuse="rrf").hits for opened in (index, again)]
    assert fused[0] == fused[1]


def test_notebook_views_tell_both_scores_of_a_fused_hit(pumps: Index) -> None:
    ranking = pumps.search("E4711", fuse="rrf")
    both = f"exact score {ranking[0].exact_score:.3f} &middot; BM25 {ranking[0].text_score:.3f}"
    assert both in ranking._repr_html_()
    assert both in ranking[0]._repr_html_()
    by_words = pumps.explain("E4711", "code", gather="text")
    assert "gathered by its words" in by_words._repr_html_()
    assert f"BM25 {by_words.text_score:.3f}" in by_words._repr_html_()
    pytest.importorskip("pandas", reason='pip install "secateurs[notebook]"')
    table = ranking.to_pandas()
    assert list(table.columns[:5]) == ["rank", "docno", "score", "exact_score", "text_score"]
    assert table["text_score"][0] == ranking[0].text_score

"""Shards answer as one index does. Here all shards are in this process; test_cluster.py has them on Ray."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import QUERIES, random_documents, random_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from secateurs import Document, EncodedText, Frequencies, Index
from secateurs.cluster.layout import Layout, ShardRecord, shard_names, shard_of
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.effort import share
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import DamagedIndexError, SecateursError, UsageError
from secateurs.hashing import hash_of
from secateurs.rankings import Ranking
from secateurs.storage.manifest import SHARDS
from secateurs.storage.rounding import Int8Store


def make_shards(path: Path, documents: list[Document], shards: int, **options: Any) -> Path:
    """Without Ray: each shard is an ordinary index."""
    names = shard_names(shards)
    for number, name in enumerate(names):
        of_shard = [document for document in documents if shard_of(document.docno, shards) == number]
        Index.build(path / name, of_shard, **({"encoder": None} | options))
    Layout(tuple(map(ShardRecord, names)), "a test").write(path)
    return path


def hits_of(ranking: Ranking) -> list[tuple[str, float]]:
    return [(hit.docno, hit.score) for hit in ranking]


def without_times(ranking: Ranking) -> Any:
    return hits_of(ranking), ranking.kept, replace(ranking.stats, milliseconds={}, loading_milliseconds=0.0)


@pytest.fixture(scope="module")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], tuple[Index, ShardedIndex]]:
    """The same documents as one index and in shards, built when they are first needed."""

    @cache
    def build(documents: int, shards: int) -> tuple[Index, ShardedIndex]:
        folder = tmp_path_factory.mktemp("collections")
        one = Index.build(folder / "one.sec", random_documents(documents), encoder=None, store="float16")
        path = make_shards(folder / "many.sec", random_documents(documents), shards, store="float16")
        return one, ShardedIndex(path)

    return build


@given(
    st.sampled_from([1, 7, 60]),
    st.sampled_from([1, 2, 5]),
    st.integers(1, 70),
    st.sampled_from([None, 1, 3, "auto"]),
    st.sampled_from(["rarity", "icf", "idf", "first", "random"]),
    st.sampled_from([None, "i >= 10", "i in (3, 4, 5)"]),
    st.sampled_from(["collection", "matching"]),
    st.integers(0, 5),
)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_exhaustive_over_shards_is_bit_for_bit_one_index(
    collections: Callable[[int, int], tuple[Index, ShardedIndex]],
    documents: int,
    shards: int,
    k: int,
    p: Any,
    order: str,
    where: str | None,
    frequencies: str,
    seed: int,
) -> None:
    one, many = collections(documents, shards)
    query = random_text(np.random.default_rng(seed), 6)
    how = {"k": k, "p": p, "order": order, "where": where, "frequencies": frequencies, "gather": "exhaustive"}
    assert len(many) == documents
    assert without_times(many.search(query, **how)) == without_times(one.search(query, **how))


def test_equal_scores_go_by_docno_across_shards(tmp_path: Path) -> None:
    same = random_text(np.random.default_rng(0), 3)
    documents = [Document(f"d{i}", "a text", {}, same) for i in range(20)]
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 4)) as many:
        ranking = many.search(same, k=7)
    assert [hit.docno for hit in ranking] == ["d0", "d1", "d10", "d11", "d12", "d13", "d14"]
    assert len({hit.score for hit in ranking}) == 1


def test_importance_is_ordered_by_the_frequencies_of_all_shards(tmp_path: Path) -> None:
    """Token 1 is rare in one shard and frequent in the other; token 2 is the rarer one of the collection."""
    rng = np.random.default_rng(0)

    def text(ids: list[int]) -> EncodedText:
        return replace(random_text(rng, len(ids)), token_ids=np.array(ids, dtype=np.int32))

    here = [f"d{i}" for i in range(50) if shard_of(f"d{i}", 2) == 0]
    there = [f"d{i}" for i in range(50) if shard_of(f"d{i}", 2) == 1]
    documents = [Document(here[0], "a text", {}, text([1, 2, 2]))]
    documents += [Document(docno, "a text", {}, text([1, 1])) for docno in there[:5]]
    query = text([1, 2])
    path = make_shards(tmp_path / "many.sec", documents, 2)
    assert Index(path / "shard-0000").search(query, p=1, order="icf", gather="cells").kept == (0,)
    with ShardedIndex(path) as many:
        assert many.frequencies.collection_frequency([1, 2]).tolist() == [11, 2]
        assert many.search(query, p=1, order="icf", gather="cells").kept == (1,)
        # and they follow what is written
        many.add([Document(docno, "a text", {}, text([2] * 10)) for docno in there[5:7]])
        assert many.frequencies.collection_frequency([1, 2]).tolist() == [11, 22]
        assert many.search(query, p=1, order="icf", gather="cells").kept == (0,)
        many.delete(there[5:7])
        assert many.frequencies.collection_frequency([1, 2]).tolist() == [11, 2]
        assert many.search(query, p=1, order="icf", gather="cells").kept == (1,)


def test_cells_over_shards_find_what_one_index_finds(
    tmp_path: Path, encoded_passages: list[Document], encoded_queries: list[EncodedText]
) -> None:
    documents = encoded_passages[::2]  # few enough for FAISS to train nothing, which would take most of the time
    one = Index.build(tmp_path / "one.sec", documents, encoder=None)
    path = make_shards(tmp_path / "many.sec", documents, 3, gather=("cells", "faiss"))
    found = {"cells": 0.0, "faiss": 0.0}
    with ShardedIndex(path) as many:
        for query in encoded_queries:
            exact = {hit.docno for hit in one.search(query, effort="exact")}
            for gather in found:
                ranking = many.search(query, gather=gather, p=8)
                assert len(ranking.kept) == 8
                assert len(ranking) == 10
                found[gather] += len(exact & {hit.docno for hit in ranking}) / len(exact) / len(encoded_queries)
    assert found["cells"] > 0.9
    assert found["faiss"] > 0.9


def test_explanations_and_similarities_are_those_of_one_index(
    tmp_path: Path, encoded_passages: list[Document], encoded_queries: list[EncodedText]
) -> None:
    one = Index.build(tmp_path / "one.sec", encoded_passages, encoder=None, store="float16")
    path = make_shards(tmp_path / "many.sec", encoded_passages, 3, store="float16")
    query = encoded_queries[0]
    with ShardedIndex(path) as many:
        for docno in [one.search(query, effort="exact")[2].docno, encoded_passages[-1].docno]:
            assert many.explain(query, docno, effort="exact") == one.explain(query, docno, effort="exact")
            ours, theirs = many.similarities(query, docno), one.similarities(query, docno)
            assert np.array_equal(ours[0], theirs[0])
            assert np.array_equal(ours[1], theirs[1])
            assert many.get(docno) == one.get(docno)
            assert docno in many
        assert "absent" not in many
        with pytest.raises(SecateursError, match="no document 'absent'"):
            many.get("absent")
        with pytest.raises(SecateursError, match="no document 'absent'"):
            many.explain(query, "absent")


@pytest.mark.parametrize("store", ["int8", "int16"])
def test_a_collection_with_one_int8_scale_is_bit_for_bit_one_index(
    tmp_path: Path, encoded_passages: list[Document], encoded_queries: list[EncodedText], monkeypatch: Any, store: str
) -> None:
    embeddings = np.concatenate([document.encoded.embeddings for document in encoded_passages if document.encoded])
    scale = Int8Store.fit(embeddings.mean(axis=0), embeddings)
    monkeypatch.setattr(Int8Store, "fit", lambda centre, sample: scale)
    one = Index.build(tmp_path / "one.sec", encoded_passages, encoder=None, store=store)  # type: ignore[arg-type]
    with ShardedIndex(make_shards(tmp_path / "many.sec", encoded_passages, 4, store=store)) as many:
        for query in encoded_queries:
            assert hits_of(many.search(query, effort="exact", k=50)) == hits_of(one.search(query, effort="exact", k=50))


def test_refresh_raises_what_cannot_be_read_and_searches_use_the_last_state(tmp_path: Path) -> None:
    documents = random_documents(20)
    path = make_shards(tmp_path / "many.sec", documents, 2)
    manifest = path / "shard-0001" / "manifest.json"
    with ShardedIndex(path) as many:
        good = manifest.read_bytes()
        manifest.write_bytes(b"{")
        with pytest.raises(SecateursError, match="cannot be read"):
            many.refresh()
        assert len(many.search(documents[0].encoded, k=50, effort="exact")) == 20  # type: ignore[arg-type]
        manifest.write_bytes(good)
        assert not many.refresh()


def test_documents_are_encoded_by_the_encoder_that_was_given(
    tmp_path: Path, encoder: OnnxEncoder, passages: list[dict[str, str]]
) -> None:
    documents = [Document(passage["docno"], passage["text"]) for passage in passages[:20]]
    path = make_shards(tmp_path / "many.sec", documents[:10], 2, encoder=encoder)
    one = Index.build(tmp_path / "one.sec", documents, encoder=encoder, store="float16")
    with ShardedIndex(path, encoder) as many:
        many.add(documents[10:])
        for number in range(2):
            for document in Index(path / shard_names(2)[number]).documents():
                tokens = one.snapshot.similarities(one.encode_query("x"), document.docno)[1]
                assert document.encoded is not None
                assert document.encoded.token_ids.tolist() == tokens.tolist()
        with pytest.raises(UsageError, match="brings its embeddings"):
            many.add([Document("encoded", "a text", {}, random_text(np.random.default_rng(0), 2, dim=96))])
        assert all(shard._index._encoder is None for shard in many._shards.backend.shards)  # type: ignore[attr-defined]


def test_what_another_process_writes_is_seen_and_counted(tmp_path: Path) -> None:
    documents = random_documents(40)
    path = make_shards(tmp_path / "many.sec", documents[:30], 2)
    with ShardedIndex(path) as reader, ShardedIndex(path) as writer:
        writer.add(documents[30:])
        assert reader.refresh()
        assert not reader.refresh()
        assert len(reader) == 40
        assert reader.frequencies.collection.tolist() == writer.frequencies.collection.tolist()
        assert len(reader.search(documents[3].encoded, k=40, effort="exact")) == 40  # type: ignore[arg-type]


def test_a_shard_that_fails_during_a_search_is_an_error_or_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = random_documents(40)
    query = random_text(np.random.default_rng(1), 4)
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 4)) as many:

        def broken(*arguments: object) -> None:
            raise DamagedIndexError("a block was altered")

        monkeypatch.setattr(many._shards.backend.shards[2], "search", broken)  # type: ignore[attr-defined]
        with pytest.raises(DamagedIndexError, match="a block was altered"):
            many.search(query)
        ranking = many.search(query, k=40, partial=True, effort="exact")
        assert ranking.stats.shards_missing == 1
        assert ranking.stats.documents_in_index == 40
        assert {hit.docno for hit in ranking} == {d.docno for d in documents if shard_of(d.docno, 4) != 2}


def test_the_plan_of_a_ranking_is_what_every_shard_used(
    tmp_path: Path, encoded_passages: list[Document], encoded_queries: list[EncodedText]
) -> None:
    path = make_shards(tmp_path / "many.sec", encoded_passages, 3)
    shards = [Index(path / name) for name in shard_names(3)]
    with ShardedIndex(path) as many:
        for query in encoded_queries[:3]:
            ranking = many.search(query, gather="cells", candidates=60, nprobe=20)
            plan = ranking.plan
            assert (plan.gather, plan.candidates, plan.nprobe) == ("cells", share(60, 3), 20)
            assert plan == many.decide(query, gather="cells", candidates=60, nprobe=20).plan
            # Each shard, searched as an index by itself with the numbers of the plan, scores as many documents.
            settings = {"gather": plan.gather, "nprobe": plan.nprobe, "candidates": plan.candidates, "p": plan.p}
            kept = list(ranking.kept)
            kept_only = EncodedText(query.embeddings[kept], query.token_ids[kept], query.token_kinds[kept])
            alone = [shard.search(kept_only, order="first", **settings).stats for shard in shards]  # type: ignore[arg-type]
            assert ranking.stats.documents_scored == sum(stats.documents_scored for stats in alone)
            assert ranking.stats.documents_gathered == sum(stats.documents_gathered for stats in alone)


def test_the_plan_names_the_ways_in_which_shards_gathered_and_leaves_out_those_that_had_nothing_to_gather(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One cell is probed. In shard 0 it holds what matches; in shard 1 it does not; in shard 2 nothing matches."""

    def text(token: int) -> EncodedText:
        embedding = np.zeros((1, 8), dtype=np.float32)
        embedding[0, token] = 1
        return EncodedText(embedding, [token], [0])  # type: ignore[arg-type]

    docnos = [[f"d{i}" for i in range(60) if shard_of(f"d{i}", 3) == shard][:8] for shard in range(3)]
    documents = [Document(docno, "near", {"tag": "yes"}, text(1)) for docno in docnos[0]]
    documents += [Document(docno, "near", {"tag": "no"}, text(1)) for docno in (*docnos[1][:4], *docnos[2])]
    documents += [Document(docno, "far", {"tag": "yes"}, text(2)) for docno in docnos[1][4:]]
    settings: dict[str, Any] = {"k": 3, "p": 1, "gather": "cells", "nprobe": 1, "where": "tag = 'yes'"}
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 3)) as many:
        ranking = many.search(text(1), **settings)
        assert ranking.plan.gather == "cells+exhaustive"
        assert ranking.stats.documents_scored == 8 + 4
        assert many.search(text(1), **settings | {"where": None}).plan.gather == "cells"
        assert many.search(text(1), **settings | {"where": "tag = 'other'"}).plan.gather == "cells"

        def broken(*arguments: object) -> None:
            raise DamagedIndexError("a block was altered")

        for missing, gathered_by, scored in ((0, "exhaustive", 4), (1, "cells", 8), (2, "cells+exhaustive", 12)):
            with monkeypatch.context() as patched:
                patched.setattr(many._shards.backend.shards[missing], "search", broken)  # type: ignore[attr-defined]
                part = many.search(text(1), partial=True, **settings)
            assert (part.plan.gather, part.stats.documents_scored) == (gathered_by, scored)
            assert part.stats.shards_missing == 1


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda folder: (folder / SHARDS).unlink(), "not a collection in shards"),
        (lambda folder: (folder / SHARDS).write_text("{"), "cannot be read"),
        (lambda folder: (folder / SHARDS).write_text('{"format": "other"}'), "cannot be read"),
        (lambda folder: _set(folder, "format_version", 99), "pip install --upgrade"),
        (lambda folder: _set(folder, "shards", []), "no shards"),
        (lambda folder: (folder / "shard-0001").rename(folder / "gone"), "there is no index at"),
    ],
)
def test_what_is_not_a_collection_is_refused(tmp_path: Path, spoil: Callable[[Path], object], said: str) -> None:
    path = make_shards(tmp_path / "many.sec", random_documents(10), 2)
    spoil(path)
    with pytest.raises(SecateursError, match=said):
        ShardedIndex(path)


def test_a_collection_in_shards_is_not_opened_as_one_index(tmp_path: Path) -> None:
    path = make_shards(tmp_path / "many.sec", random_documents(10), 2)
    with pytest.raises(SecateursError, match="a collection in shards, and one index is wanted"):
        Index(path)
    with pytest.raises(UsageError, match="replicas are for a cluster"):
        ShardedIndex(path, replicas=2)
    with pytest.raises(UsageError, match="at least one replica"):
        ShardedIndex(path, replicas=0)


def _set(folder: Path, name: str, value: object) -> None:
    import json

    content = json.loads((folder / SHARDS).read_text())
    (folder / SHARDS).write_text(json.dumps(content | {name: value}))


def test_a_document_in_the_wrong_shard_is_found_by_check(tmp_path: Path) -> None:
    documents = random_documents(10)
    path = make_shards(tmp_path / "many.sec", documents, 2)
    wrong = next(document for document in documents if shard_of(document.docno, 2) == 1)
    Index(path / "shard-0000").add([wrong])
    with ShardedIndex(path) as many, pytest.raises(DamagedIndexError, match="belongs to another shard"):
        many.check()


def test_bad_settings_raise_what_one_index_raises(tmp_path: Path) -> None:
    with ShardedIndex(make_shards(tmp_path / "many.sec", random_documents(10), 2)) as many:
        query = random_text(np.random.default_rng(0), 2)
        for how, said in [
            ({"p": 0}, "p must be"),
            ({"order": "no"}, "order is one of"),
            ({"effort": "no"}, "effort is one of"),
            ({"partial": "no"}, "partial is True or False"),
            ({"where": "i >>> 3"}, "i >>> 3|where|expected|filter"),
        ]:
            with pytest.raises(UsageError, match=said):
                many.search(query, **how)  # type: ignore[arg-type]
        for partial in (False, True):  # which is not that a shard is missing
            with pytest.raises(SecateursError, match="built without"):
                many.search(query, gather="faiss", partial=partial)
        with pytest.raises(UsageError, match="gather"):
            many.search(query, gather="sideways")
        with pytest.raises(UsageError, match="a docno is a text"):
            many.delete([["d001"]])  # type: ignore[list-item]
        with pytest.raises(UsageError, match="2 dimensions"):
            many.search(EncodedText(np.ones((1, 2)), [0], [0]))  # type: ignore[arg-type]


def test_where_a_docno_belongs_never_changes() -> None:
    """Collections on disk depend on these numbers."""
    assert hash_of("d000") == 0x15DB8AC4527B9719
    assert [shard_of(docno, 7) for docno in ("d000", "d001", "MARCO_1", "é", "a b")] == [3, 1, 0, 2, 0]


def test_a_share_covers_what_a_shard_can_hold() -> None:
    assert share(256, 1) == 256
    assert share(256, 4) == 88  # 64 + 3 * 8
    assert share(1, 100) == 1
    rng = np.random.default_rng(0)
    best = rng.multinomial(256, [1 / 8] * 8, size=2000)
    assert (best > share(256, 8)).mean() < 0.005


def test_text_queries_are_encoded_once(tmp_path: Path, encoder: OnnxEncoder, passages: list[dict[str, str]]) -> None:
    path = make_shards(
        tmp_path / "many.sec", [Document(p["docno"], p["text"]) for p in passages[:40]], 2, encoder=encoder
    )
    with ShardedIndex(path, encoder) as many:
        ranking = many.search(QUERIES[0], k=3)
        assert len(ranking) == 3
        assert ranking.stats.milliseconds.keys() >= {"encode", "prune", "cluster", "gather", "score", "fetch"}
        assert [r.hits for r in many.search_many(QUERIES, k=3)] == [many.search(q, k=3).hits for q in QUERIES]
        assert all(shard._index._encoder is None for shard in many._shards.backend.shards)  # type: ignore[attr-defined]
        assert isinstance(many.frequencies, Frequencies)


def test_under_a_filter_each_shard_scores_its_share_of_the_candidates_if_enough_are_gathered(tmp_path: Path) -> None:
    documents = random_documents(300)
    settings: dict[str, Any] = {"k": 10, "candidates": 10, "nprobe": 20, "where": "i >= 100", "gather": "cells"}
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 4)) as many:
        ranking = many.search(random_text(np.random.default_rng(0), 4), **settings)
    assert ranking.plan.candidates < 10
    assert ranking.plan.gather == "cells"
    assert ranking.stats.documents_scored == 4 * ranking.plan.candidates
    assert len(ranking) == 10

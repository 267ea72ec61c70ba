"""search_many over shards: several queries in one call. The shards are in this process, but called as those on Ray."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_documents, random_text
from test_sharded import make_shards, without_times

from secateurs import EncodedText
from secateurs.cluster.search import shard
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.errors import DamagedIndexError, ShardsMissingError, UsageError

SHARDS = 3
DOCUMENTS = [replace(document, metadata={"third": i % 3}) for i, document in enumerate(random_documents(60))]
QUERIES = [random_text(np.random.default_rng(seed), 6) for seed in range(37)]  # two calls and a part


@pytest.fixture
def many(tmp_path: Path) -> Iterator[ShardedIndex]:
    with ShardedIndex(make_shards(tmp_path / "many.sec", DOCUMENTS, SHARDS, store="float16")) as index:
        index._shards.on_cluster = True
        yield index


def calls_of(many: ShardedIndex, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[int, int]]]:
    """Filled with the methods that are called, and for each shard how many queries it gets."""
    calls: list[tuple[str, dict[int, int]]] = []
    backend: Any = many._shards.backend
    read = backend.read

    def noting(method: str, commits: Any, arguments: Any, partial: bool) -> Any:
        if method.startswith("search"):
            calls.append((method, {number: len(values[0]) for number, values in arguments.items()}))
        return read(method, commits, arguments, partial)

    monkeypatch.setattr(backend, "read", noting)
    return calls


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"k": 7, "offset": 3, "p": 2},
        {"where": "third >= 1", "facets": ["third"], "frequencies": "matching"},
        {"effort": "exact", "weights": "idf", "min_score": 1.0},
    ],
)
def test_rankings_are_those_of_one_query_at_a_time(many: ShardedIndex, how: dict[str, Any]) -> None:
    together = list(many.search_many(QUERIES, **how))
    for query, ranking in zip(QUERIES, together, strict=True):
        alone = many.search(query, **how)
        assert without_times(ranking) == without_times(alone)
        assert (ranking.plan, ranking.facets) == (alone.plan, alone.facets)
        assert ranking.stats.milliseconds.keys() == alone.stats.milliseconds.keys()


def test_every_shard_is_called_once_for_sixteen_queries(many: ShardedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = calls_of(many, monkeypatch)
    assert len(list(many.search_many(iter(QUERIES), threads=1))) == 37
    assert calls == [("search_several", dict.fromkeys(range(SHARDS), count)) for count in (16, 16, 5)]


def test_a_shard_without_time_for_all_queries_is_asked_for_the_rest(
    many: ShardedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [without_times(many.search(query)) for query in QUERIES[:5]]
    calls = calls_of(many, monkeypatch)
    monkeypatch.setattr(shard, "_SECONDS_FOR_SEVERAL", -1.0)  # one query for each call
    assert [without_times(ranking) for ranking in many.search_many(QUERIES[:5])] == expected
    assert [counts for _, counts in calls] == [dict.fromkeys(range(SHARDS), count) for count in (5, 4, 3, 2, 1)]


def test_a_shard_that_fails_between_two_calls_is_missing_from_the_later_rankings_only(
    many: ShardedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard, "_SECONDS_FOR_SEVERAL", -1.0)
    failing: Any = many._shards.backend.shards[1]  # type: ignore[attr-defined]
    search_several, calls = failing.search_several, []

    def fails_after_two_calls(commit: int, queries: Any) -> Any:
        calls.append(len(queries))
        if len(calls) > 2:
            raise DamagedIndexError("a block was altered")
        return search_several(commit, queries)

    monkeypatch.setattr(failing, "search_several", fails_after_two_calls)
    rankings = list(many.search_many(QUERIES[:4], partial=True, k=60, effort="exact"))
    assert [ranking.stats.shards_missing for ranking in rankings] == [0, 0, 1, 1]
    assert len(rankings[1]) == 60
    assert len(rankings[2]) == 60 - len(failing._index)
    assert calls == [4, 3, 2]


def test_queries_before_one_that_cannot_be_searched_are_answered(many: ShardedIndex) -> None:
    too_wide = EncodedText(np.ones((1, 2)), [0], [0])  # type: ignore[arg-type]
    rankings = many.search_many([*QUERIES[:2], too_wide, QUERIES[2]])
    for query in QUERIES[:2]:
        assert without_times(next(rankings)) == without_times(many.search(query))
    with pytest.raises(UsageError, match="2 dimensions"):
        next(rankings)


def test_shards_that_cannot_be_reached_are_an_error_at_once(
    many: ShardedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def missing(*arguments: object) -> None:
        calls.append(arguments)
        raise ShardsMissingError("shard-0000 cannot be reached")

    monkeypatch.setattr(many._shards.backend, "read", missing)
    with pytest.raises(ShardsMissingError):
        list(many.search_many(QUERIES[:3]))
    assert len(calls) == 1  # not once more for each query


def test_one_query_is_not_several(many: ShardedIndex) -> None:
    with pytest.raises(UsageError, match="for one query, use search"):
        many.search_many("one text")

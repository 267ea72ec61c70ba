"""Several queries at once over shards on Ray: one call to each shard for all of them.

Calling an actor takes the asking process longer than a small shard takes to search. The rankings are those of one query
at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Protocol

from ...errors import SecateursError, ShardsMissingError
from ...rankings import Facets, Ranking
from ...records import EncodedText
from ...search import Searchable, Stopwatch, decide, make_ranking, search
from ...settings import SearchSettings
from ...storage.facets import ranked_facets
from ...threads import in_order
from .searched_shards import SearchedShards

_AT_ONCE = 16
_AHEAD = 1  # calls that wait for each thread

Query = str | EncodedText


class SearchableShards(Searchable, Protocol):
    def searched(self) -> SearchedShards: ...


def search_in_batches(
    index: SearchableShards, queries: Iterable[Query], settings: SearchSettings, threads: int | None
) -> Iterator[Ranking]:
    """Rankings in the order of the queries."""
    batches = _batched(queries)
    found = in_order(_search_batch, ((index, batch, settings) for batch in batches), threads, _AHEAD)
    return chain.from_iterable(found)


def _batched(queries: Iterable[Query]) -> Iterator[list[Query]]:
    remaining = iter(queries)
    while batch := list(islice(remaining, _AT_ONCE)):
        yield batch


def _search_batch(index: SearchableShards, queries: Sequence[Query], settings: SearchSettings) -> Iterable[Ranking]:
    try:
        return _search_together(index, queries, settings)
    except ShardsMissingError:
        raise
    except SecateursError:  # of one of the queries: those before it are answered
        return (search(index, query, settings) for query in queries)


def _search_together(index: SearchableShards, queries: Sequence[Query], settings: SearchSettings) -> list[Ranking]:
    loading = index.load(queries[0])
    searched = index.searched()
    watches, decisions = [], []
    for query in queries:
        watch = Stopwatch()
        encoded = index.encode_query(query)
        watch.lap("encode")
        decisions.append(decide(searched, encoded, settings, watch))
        watches.append(watch)
    found = searched.find_several(decisions, settings, watches)
    counted = Stopwatch()
    facets: Facets = {}
    if settings.facets:  # the same for every query
        facets = ranked_facets(searched.facets(settings, decisions[0].matching))
        counted.lap("facets")
    rankings = []
    for decision, of_query, watch in zip(decisions, found, watches, strict=True):
        laps = watch.laps | {stage: total / len(queries) for stage, total in counted.laps.items()}
        rankings.append(make_ranking(index, searched, decision, of_query, facets, laps, loading))
        loading = 0.0
    return rankings

"""All shards, as a search sees them: each gathers, scores and ranks, and their rankings are merged."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import islice, starmap
from pathlib import Path
from typing import Any

from ...costs import Costs
from ...explain import Evidence, Standing
from ...frequencies import Frequencies
from ...fusion import best_fused
from ...gather import check_built, check_text
from ...gather.bm25 import WordCounts
from ...rankings import Hit
from ...search import Decision, Found, Matching, Stopwatch
from ...settings import GatherName, SearchPlan, SearchSettings
from ...storage.facets import Counts, check_facets, merge_facets
from ...storage.filters import Filter, KnownKeys, check_keys
from .shard import ShardQuery, ShardRanking
from .shards import Shards


class SearchedShards:
    def __init__(self, path: Path, shards: Shards) -> None:
        self._path, self._shards = path, shards
        self.shards = len(shards)

    def __len__(self) -> int:
        return self._shards.totals()[0]

    @property
    def gatherers(self) -> tuple[GatherName, ...]:
        return self._shards.gatherers

    @property
    def places(self) -> Mapping[str, float]:
        return self._shards.places

    def filter(self, settings: SearchSettings) -> Matching:
        self._shards.fetch_stale_states(settings.partial)
        documents, frequencies = self._shards.totals()
        if settings.where is None:
            return Matching(documents, frequencies)
        of_matching = settings.frequencies == "matching"
        arguments = self._shards.for_all(settings.where, of_matching)
        parts = self._shards.read("matching", arguments, settings.partial).values()
        if len(parts) == self.shards:  # a shard that is missing may have the key
            check_keys(Filter.parse(settings.where), KnownKeys.merged(keys for _, _, keys in parts))
        if of_matching:
            frequencies = reduce(Frequencies.__add__, (part for _, part, _ in parts), frequencies.emptied())
        return Matching(sum(count for count, _, _ in parts), frequencies)

    def count_words(self, words: tuple[str, ...], settings: SearchSettings, matching: Matching) -> WordCounts:
        check_text(self._path, settings.gather, self.gatherers)
        where = settings.where if settings.frequencies == "matching" else None
        parts = self._shards.read("count_words", self._shards.for_all(words, where), settings.partial)
        return WordCounts.sum(parts.values(), len(words))

    def costs(self) -> Costs:
        return self._shards.costs()

    def find(self, decision: Decision, settings: SearchSettings, watch: Stopwatch) -> Found:
        """The shards' best, merged by score, equal scores by docno; or as fusion.py says."""
        plan = decision.plan
        check_built(self._path, plan.gather, self.gatherers)
        arguments = self._shards.for_all(_shard_query(decision))
        rankings: Mapping[int, ShardRanking] = self._shards.read("search", arguments, settings.partial)
        watch.lap("cluster")
        return self._merge(plan, rankings, watch)

    def find_several(
        self, decisions: Sequence[Decision], settings: SearchSettings, watches: Sequence[Stopwatch]
    ) -> list[Found]:
        """As `find` for each, with all of them in one call to each shard. The time of the calls is shared equally."""
        for decision in decisions:
            check_built(self._path, decision.plan.gather, self.gatherers)
        queries = [_shard_query(decision) for decision in decisions]
        calls = Stopwatch()
        rankings: list[dict[int, ShardRanking]] = [{} for _ in queries]
        answered = dict.fromkeys(range(self.shards), 0)  # queries of each shard that has not answered all
        while answered:
            # The same tuple for all shards that have answered as many, so that it is pickled once.
            rest = {count: (queries[count:],) for count in set(answered.values())}
            arguments = {number: rest[count] for number, count in answered.items()}
            answers = self._shards.read("search_several", arguments, settings.partial)
            for number, of_shard in answers.items():
                for position, ranking in enumerate(of_shard, answered[number]):
                    rankings[position][number] = ranking
            counts = {number: answered[number] + len(of_shard) for number, of_shard in answers.items()}
            answered = {number: count for number, count in counts.items() if count < len(queries)}
        calls.lap("cluster")
        for watch in watches:
            watch.laps["cluster"] = calls.laps["cluster"] / len(queries)
        return [
            self._merge(decision.plan, of_query, watch)
            for decision, of_query, watch in zip(decisions, rankings, watches, strict=True)
        ]

    def _merge(self, plan: SearchPlan, rankings: Mapping[int, ShardRanking], watch: Stopwatch) -> Found:
        self._shards.compare_commits({number: ranking.commit for number, ranking in rankings.items()})
        parts = rankings.values()
        fused = [(tuple(starmap(Hit, part.hits)), part.scores) for part in parts if part.scores is not None]
        merged = heapq.merge(*(part.hits for part in parts), key=_by_score_then_docno)
        slowest = max((part.milliseconds for part in parts), key=_sum, default={})
        for stage, milliseconds in slowest.items():
            watch.laps[stage] = watch.laps.get(stage, 0.0) + milliseconds
        watch.laps["cluster"] = max(watch.laps["cluster"] - _sum(slowest), 0.0)
        # A shard without a matching document has gathered in no way at all.
        gathered_by = sorted({part.gather for part in parts if part.scored})
        return Found(
            hits=best_fused(fused, plan.offset, plan.depth)
            if fused
            else tuple(starmap(Hit, islice(merged, plan.offset, plan.depth))),
            gathered=sum(part.gathered for part in parts),
            scored=sum(part.scored for part in parts),
            plan=replace(plan, gather="+".join(gathered_by) or plan.gather),
            shards_missing=len(self._shards) - len(rankings),
        )

    def facets(self, settings: SearchSettings, matching: Matching) -> Mapping[str, Counts]:
        """Those of the shards, added up."""
        arguments = self._shards.for_all(settings.facets, settings.where)
        parts = self._shards.read("facets", arguments, settings.partial).values()
        if len(parts) == self.shards:  # a shard that is missing may have the key
            check_facets(settings.facets, KnownKeys.merged(known for _, known in parts))
        return merge_facets(settings.facets, [counts for counts, _ in parts])

    def candidates(self, decision: Decision, settings: SearchSettings) -> list[str]:
        arguments = self._shards.for_all(_shard_query(decision))
        parts = self._shards.read("candidates", arguments, settings.partial).values()
        return [docno for docnos in parts for docno in docnos]

    def evidence(self, decision: Decision, docno: str) -> Evidence:
        found: Evidence = self._shards.read_one("evidence", docno, _shard_query(decision), docno)
        return found

    def standings(
        self, decision: Decision, settings: SearchSettings, score: float, text_score: float | None, docno: str
    ) -> list[Standing]:
        arguments = self._shards.for_all(_shard_query(decision), score, text_score, docno)
        return list(self._shards.read("standing", arguments, settings.partial).values())


def _shard_query(decision: Decision) -> ShardQuery:
    # The order is decided. A function of the user might not be known in another process. The hits that an offset leaves
    # out may all be in one shard, so that each shard finds them too.
    plan = replace(decision.plan, order="first", k=decision.plan.depth, offset=0)
    return ShardQuery(decision.query, plan, decision.ordered)


def _by_score_then_docno(hit: tuple[Any, ...]) -> tuple[float, str]:
    docno, score, *_ = hit
    return -score, docno


def _sum(milliseconds: Mapping[str, float]) -> float:
    return sum(milliseconds.values())

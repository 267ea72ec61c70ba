"""What Prometheus reads at /metrics. No label comes from a client, so that no client can fill the memory with names."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from ..rankings import SearchStats

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_DOCUMENTS = (10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 1_000_000)


class Metrics:
    """Each application has a separate registry, so that two applications in a process do not mix their counts."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._requests = Counter(
            "secateurs_requests", "Requests answered", ("method", "route", "status"), registry=registry
        )
        self._seconds = Histogram(
            "secateurs_request_seconds", "Time to answer", ("route",), buckets=_SECONDS, registry=registry
        )
        self._stages = Histogram(
            "secateurs_search_stage_seconds",
            "Time of one stage of a search",
            ("index", "stage"),
            buckets=_SECONDS,
            registry=registry,
        )
        self._gathered = Histogram(
            "secateurs_search_documents_gathered",
            "Documents a search gathered",
            ("index",),
            buckets=_DOCUMENTS,
            registry=registry,
        )
        self._scored = Histogram(
            "secateurs_search_documents_scored",
            "Documents a search scored exactly",
            ("index",),
            buckets=_DOCUMENTS,
            registry=registry,
        )
        self.documents = Gauge("secateurs_documents", "Documents in the index", ("index",), registry=registry)
        self.in_flight = Gauge("secateurs_requests_in_flight", "Requests being answered", registry=registry)
        self.cached = Counter(
            "secateurs_query_cache", "Queries whose encoding was or was not in the cache", ("found",), registry=registry
        )

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def search(self, index: str, stats: SearchStats) -> None:
        for stage, milliseconds in stats.milliseconds.items():
            self._stages.labels(index, stage).observe(milliseconds / 1000)
        self._gathered.labels(index).observe(stats.documents_gathered)
        self._scored.labels(index).observe(stats.documents_scored)

    def text(self) -> bytes:
        return generate_latest(self._registry)

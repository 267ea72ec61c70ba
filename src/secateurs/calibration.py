"""An index measures itself: how far up the ladder of effort.py each effort must go to keep its promise.

Queries are searched exhaustively, and then with plans of the ladder. The lowest place at which the promised share of
the exact ten best is found, less its standard error, becomes the effort's place. It is kept in the manifest.

Without queries of the user, parts of the documents are the queries: of one document eight words in a row, of the next
eight of its rarest words. They are stored embeddings, so that no encoder is needed. The document that a part was taken
from has the very same embeddings, which no document has of a real query: each is moved by random noise first, 0.8 times
its distance from the mean of all. docs/effort.md compares their recall with that of real queries.

An index is measured when it is built, when its cells were learnt again, and when it has twice or half the embeddings
that it had. The larger the index, the fewer the queries, but 24 at least.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .cancellation import stop_if_cancelled
from .compiling import compile_kernels
from .effort import LADDER, PROMISES
from .errors import UsageError
from .progress import progress_bar
from .records import EncodedText, TokenKind
from .search import OneIndex, decide, gather, score
from .settings import SearchSettings
from .storage.manifest import CalibrationRecord
from .storage.snapshot import Snapshot
from .threads import in_order

_FEWEST_DOCUMENTS = 1000  # in smaller indexes any effort is quick, and the places of effort.py find nearly everything
_MOST_QUERIES, _FEWEST_QUERIES = 96, 24
_EMBEDDINGS = 200_000_000  # that the exhaustive searches together meet, unless that is fewer than the fewest queries
_WORDS = 8  # in a query
_RAREST_SHARE = 1 / 3  # of a document's words, from which rare words are drawn
_NOISE = 0.8  # times the distance of an embedding from the mean of all
_STEPS = 4  # places between two rungs
_DOUBLED = 2  # times the embeddings, or a half of them: measure again
_K = 10


def is_due(snapshot: Snapshot) -> bool:
    """Whether an index has to be measured: it never was, its cells are new, or it has grown or shrunk much."""
    manifest = snapshot.manifest
    if "cells" not in manifest.gather or not snapshot.embedded:
        return False
    measured = manifest.calibration
    if measured is None:
        return len(snapshot) >= _FEWEST_DOCUMENTS
    if measured.codebook != manifest.codebook.name:
        return True
    embeddings = _live_embeddings(snapshot)
    return not embeddings / _DOUBLED < measured.embeddings < embeddings * _DOUBLED


def calibrate(
    snapshot: Snapshot, queries: Sequence[EncodedText] | None = None, progress: bool | None = None
) -> CalibrationRecord:
    """What is found by which effort. `queries` are parts of the documents if they are not given."""
    if "cells" not in snapshot.gatherers or not snapshot.embedded:
        raise UsageError('only an index with documents that was built for gather="cells" can be calibrated')
    asked = parts_of_documents(snapshot) if queries is None else list(queries)
    if not asked:
        raise UsageError("there are no queries to calibrate with")
    compile_kernels(snapshot)
    with progress_bar("measuring recall", len(asked), "queries", progress) as advance:
        exact = []
        for found in in_order(_found, ((snapshot, query, None) for query in asked)):
            exact.append(found)
            advance(1)
    known: dict[int, NDArray[np.float64]] = {}

    def recall(step: int) -> NDArray[np.float64]:
        """Of each query, at a place."""
        if step not in known:
            stop_if_cancelled()
            place = step / _STEPS
            found = in_order(_found, ((snapshot, query, place) for query in asked))
            known[step] = np.array(
                [len(best & here) / max(len(best), 1) for best, here in zip(exact, found, strict=True)]
            )
        return known[step]

    chosen = {effort: _lowest(recall, promise) for effort, promise in PROMISES.items()}
    return CalibrationRecord(
        places={effort: step / _STEPS for effort, step in chosen.items()},
        recall={effort: round(float(recall(step).mean()), 4) for effort, step in chosen.items()},
        queries=len(asked),
        given=queries is not None,
        codebook=snapshot.manifest.codebook.name,
        embeddings=_live_embeddings(snapshot),
    )


def parts_of_documents(snapshot: Snapshot) -> list[EncodedText]:
    """The queries of an index about itself: always the same for the same documents."""
    wanted = int(np.clip(_EMBEDDINGS // max(_live_embeddings(snapshot), 1), _FEWEST_QUERIES, _MOST_QUERIES))
    live = np.arange(snapshot.firsts[-1]) if snapshot.live is None else np.flatnonzero(snapshot.live)
    numbers = live[np.unique(np.linspace(0, len(live) - 1, wanted).astype(np.int64))]
    rng = np.random.default_rng(0)
    parts = []
    for place, number in enumerate(numbers.tolist()):
        document = snapshot.encoded(number)
        words = np.flatnonzero(document.token_kinds == TokenKind.WORD)
        if len(words) == 0:
            words = np.arange(len(document))
        if len(words) == 0:
            continue
        if place % 2:
            frequency = snapshot.frequencies.collection_frequency(document.token_ids[words])
            rarest = words[np.argsort(frequency, kind="stable")][: max(_WORDS, int(len(words) * _RAREST_SHARE))]
            chosen = np.sort(rng.choice(rarest, min(_WORDS, len(rarest)), replace=False))
        else:
            first = rng.integers(0, max(len(words) - _WORDS, 0) + 1)
            chosen = words[first : first + _WORDS]
        moved = _moved(document.embeddings[chosen], snapshot.frequencies.centre, rng)
        parts.append(EncodedText(moved, document.token_ids[chosen], document.token_kinds[chosen]))
    return parts


def _moved(
    embeddings: NDArray[np.float32], centre: NDArray[np.float32] | None, rng: np.random.Generator
) -> NDArray[np.float32]:
    """By random noise, and back to their length."""
    assert centre is not None  # where there are cells, it is known
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    away = np.linalg.norm(embeddings - centre, axis=1, keepdims=True)
    noise = rng.standard_normal(embeddings.shape, dtype=np.float32) / np.float32(np.sqrt(embeddings.shape[1]))
    moved = embeddings + _NOISE * away * noise
    scaled: NDArray[np.float32] = moved * (lengths / np.maximum(np.linalg.norm(moved, axis=1, keepdims=True), 1e-9))
    return scaled


def describe(records: Iterable[CalibrationRecord]) -> dict[str, Any] | None:
    """For `info`, of an index or of all shards: what an effort promises, and what the least good of them finds."""
    measured = list(records)
    if not measured:
        return None
    is_given = all(record.given for record in measured)
    return {
        "queries": (max if is_given else sum)(record.queries for record in measured),  # given: the same to all shards
        "given": is_given,
        "efforts": {
            effort: {
                "promised": promise,
                "found": min(record.recall[effort] for record in measured),
                "place": max(record.places[effort] for record in measured),
            }
            for effort, promise in PROMISES.items()
        },
    }


def _found(snapshot: Snapshot, query: EncodedText, place: float | None) -> set[int]:
    """The numbers of the ten best documents: by cells, at a place on the ladder; None: exhaustively."""
    searched = OneIndex(snapshot, None if place is None else {"balanced": place})
    decision = decide(searched, query, SearchSettings(k=_K, gather="exhaustive" if place is None else "cells"))
    documents, _, plan = gather(snapshot, decision)
    scores = score(snapshot, decision.query, documents, decision.ordered, _K, plan)
    documents = documents[: len(scores)]
    return set(documents[np.lexsort((documents, -scores))[:_K]].tolist())


def _lowest(recall: Callable[[int], NDArray[np.float64]], promise: float) -> int:
    """The lowest step of the ladder that keeps a promise; the highest if none does. Recall grows along the ladder."""
    low, high = 0, (len(LADDER) - 1) * _STEPS
    while low < high:
        middle = (low + high) // 2
        found = recall(middle)
        error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else 0.0
        low, high = (low, middle) if found.mean() - error >= promise else (middle + 1, high)
    return low


def _live_embeddings(snapshot: Snapshot) -> int:
    return sum(record.live_embeddings for record in snapshot.manifest.segments)

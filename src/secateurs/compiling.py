"""Compiling the kernels of a search before the first search."""

from __future__ import annotations

from contextlib import suppress
from threading import Lock

import numpy as np

from .effort import make_plan
from .errors import DamagedIndexError
from .gather import gatherer
from .records import EncodedText, TokenKind
from .search import score
from .settings import SearchSettings
from .storage.file_names import SUMMARIES
from .storage.snapshot import Snapshot

# (store, whether it has cells, whether it has summaries) whose kernels this process has compiled
_compiled: set[tuple[str, bool, bool]] = set()
_compiling = Lock()


def compile_kernels(snapshot: Snapshot) -> None:
    """Call every kernel once. The first call compiles it or reads the cache, which no search's time should include."""
    has_cells = "cells" in snapshot.gatherers
    manifest = snapshot.manifest  # not the segments, which this would open: it is called before every search
    has_summaries = has_cells and all(SUMMARIES in record.files for record in manifest.segments if record.embeddings)
    key = manifest.store, has_cells, has_summaries
    if key in _compiled or not snapshot.embedded:
        return
    with _compiling:
        if key in _compiled:
            return
        dim = manifest.dim
        kind = TokenKind.SUMMARY if has_summaries else TokenKind.WORD
        query = EncodedText(np.zeros((1, dim), np.float32), np.zeros(1, np.int32), np.full(1, kind))
        first, segment = snapshot.embedded[0]
        documents = np.array([first + int(np.flatnonzero(np.diff(segment.offsets))[0])])
        with suppress(DamagedIndexError):  # the search that needs what is damaged says so
            if has_cells:
                plan = make_plan(SearchSettings(k=1, gather="cells"), np.zeros(1), snapshot.gatherers, len(snapshot))
                documents, _ = gatherer(snapshot, "cells").gather(query, np.zeros(1, dtype=np.int64), plan)
            score(snapshot, query, documents[:1], k=1)
            _compiled.add(key)

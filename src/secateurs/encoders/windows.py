"""A document that is longer than the network takes: overlapping windows, of which each stores its part.

                 0         room
    window 0     |==========-----|
    window 1           |-----======-----|          = stored    - read for context only
    window 2                 |-----==========|
    wordpieces   0 ......................... pieces

Every window has `room` wordpieces, and they begin at even distances, so that none is a small rest and neighbours share
at least `overlap` wordpieces. What two neighbours share is divided in the middle: a wordpiece is stored by the window
in which it is farther from the edge, and each is stored once. The [CLS], marker and [SEP] of every window are stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ..records import EncodedText


class Window(NamedTuple):
    """Wordpieces begin to end are read; of them, first to last are stored."""

    begin: int
    end: int
    first: int
    last: int


def windows(pieces: int, room: int, overlap: int | None) -> list[Window]:
    """The windows of a text of so many wordpieces, at most `room` in each; without overlap, the first one alone."""
    if overlap is None or pieces <= room:
        end = min(pieces, room)
        return [Window(0, end, 0, end)]
    steps = -(-(pieces - room) // (room - overlap))  # from each window to the next; rounded up
    begins = [step * (pieces - room) // steps for step in range(steps + 1)]
    middles = [(begin + room + following) // 2 for begin, following in pairwise(begins)]  # of what neighbours share
    return [
        Window(begin, begin + room, first, last)
        for begin, first, last in zip(begins, [0, *middles], [*middles, pieces], strict=True)
    ]


def join(parts: Iterable[tuple[EncodedText, bool]]) -> Iterator[EncodedText]:
    """Windows to documents. They come in order, each with whether it is the last of its document."""
    of_document: list[EncodedText] = []
    for window, is_last in parts:
        of_document.append(window)
        if is_last:
            document = window if len(of_document) == 1 else _joined(of_document)
            of_document.clear()  # first: the windows are as large as the document, which may be used for long
            yield document


def _joined(parts: list[EncodedText]) -> EncodedText:
    return EncodedText(
        np.concatenate([window.embeddings for window in parts]),
        np.concatenate([window.token_ids for window in parts]),
        np.concatenate([window.token_kinds for window in parts]),
        sum(window.cut for window in parts),
    )

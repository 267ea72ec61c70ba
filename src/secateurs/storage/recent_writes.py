"""Writes that carry an id: the manifest keeps what the latest of them did, so that none is done twice.

A write that is sent to another process is sent again if that process dies before it answers. Whether the first attempt
was committed, only the index can tell: a commit records the id in the manifest, and of each of the write's documents
whether it was in the index before, one bit each. From these bits the same answer is given again.

    {"4f0c...": "eNpjYAAAAAIAAQ=="}    id -> bits, packed, compressed with zlib, in base64; the newest last
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence

import numpy as np

_MOST_WRITES = 128
_BITS_OF_A_COUNT = 64
_MOST_CHARACTERS = 1 << 20  # of all bits together: the manifest is read often and must stay small


def with_write(writes: Mapping[str, str], write_id: str, present: Sequence[bool]) -> dict[str, str]:
    """The recorded writes and one more. The oldest are dropped; the new one is always kept."""
    packed = zlib.compress(np.packbits(np.array(present, dtype=bool)).tobytes())
    kept = {write_id: base64.b64encode(packed).decode()}
    characters = len(kept[write_id])
    for earlier in reversed(list(writes)):
        characters += len(writes[earlier])
        if len(kept) == _MOST_WRITES or characters > _MOST_CHARACTERS:
            break
        kept[earlier] = writes[earlier]
    return dict(reversed(kept.items()))


def with_count(writes: Mapping[str, str], write_id: str, count: int) -> dict[str, str]:
    """The same for a write that names no documents: the bits are those of how many it changed."""
    return with_write(writes, write_id, [bool(count >> place & 1) for place in range(_BITS_OF_A_COUNT)])


def count_before(writes: Mapping[str, str], write_id: str | None) -> int | None:
    """How many documents a recorded write changed; None if the write is not recorded."""
    bits = present_before(writes, write_id, _BITS_OF_A_COUNT)
    return None if bits is None else sum(bit << place for place, bit in enumerate(bits))


def present_before(writes: Mapping[str, str], write_id: str | None, documents: int) -> list[bool] | None:
    """Of each document of a recorded write, whether it was in the index before; None if the write is not recorded."""
    if write_id is None or write_id not in writes:
        return None
    packed = zlib.decompress(base64.b64decode(writes[write_id]))
    bits = np.unpackbits(np.frombuffer(packed, dtype=np.uint8), count=documents)
    present: list[bool] = bits.astype(bool).tolist()
    return present

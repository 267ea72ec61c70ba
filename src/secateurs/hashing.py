"""Names to numbers, the same everywhere and for ever."""

from __future__ import annotations

import hashlib


def hash_of(docno: str) -> int:
    """64 bits of a docno. Which shard it is in, and which of its embeddings decide the int8 step, depend on them."""
    return int.from_bytes(hashlib.blake2b(docno.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")

"""A hash of docnos that is the same on every machine and in every version."""

from __future__ import annotations

import hashlib


def hash_of(docno: str) -> int:
    """64 bits of a docno. They decide its shard, and which of its embeddings are sampled for the int8 step."""
    return int.from_bytes(hashlib.blake2b(docno.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")

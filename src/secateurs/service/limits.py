"""What a request may ask for, how much work it may cause, and how many requests are admitted at once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ..errors import UsageError
from ..threads import usable_cores


@dataclass(frozen=True, slots=True)
class Limits:
    """Beyond a limit the answer is 413, 422, 429 or 503, so that the other requests are still answered in time."""

    body_bytes: int = 4 << 20
    query_characters: int = 2_000
    k: int = 1_000
    p: int = 512  # and the embeddings of a query sent as embeddings
    nprobe: int = 4_096
    candidates: int = 100_000  # and k_prime
    gather_work: int = 500_000  # without a key: query embeddings that gather x cells that each looks into
    score_work: int = 4_000_000  # without a key: documents that are scored x query embeddings
    text_characters: int = 20_000  # of a text to encode or to re-rank
    encode_work: int = 50_000  # without a key: characters of all texts, or queries, of a request
    document_embeddings: int = 4_096  # of a document sent with embeddings
    batch: int = 100  # documents, texts or queries in one request
    threads: int = field(default_factory=usable_cores)  # searches that run at once
    waiting: int = 64  # searches that wait for a thread
    writes: int = 8  # writes that run or wait: there is one writer for each index
    seconds: float = 10.0  # for a search, with its wait, and for a body to arrive

    def __post_init__(self) -> None:
        for limit in fields(self):
            least = 0 if limit.name == "waiting" else 1e-3 if limit.name == "seconds" else 1
            if not getattr(self, limit.name) >= least:  # not "<", which is false for nan
                raise UsageError(f"the limit {limit.name} must be at least {least:g}, not {getattr(self, limit.name)}")

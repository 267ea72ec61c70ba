"""How fast the built-in encoder is, and why every text runs alone.

    python benchmarks/encoding.py --collection DIR

Documents: tokens per second with one worker and with all, one by one and in padded batches sorted by length. Queries:
milliseconds each. Then how far batching moves the embeddings of a document from those it has alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from time import perf_counter

import numkong
import numpy as np
from judged import read_queries
from numpy.typing import NDArray

from secateurs.corpus import read_corpus
from secateurs.encoders.onnx import OnnxEncoder


def _framed(encoder: OnnxEncoder, text: str) -> NDArray[np.int64]:
    return next(encoder._windows(encoder._wordpieces(text).ids)).positions.input.token_ids


def in_batches(encoder: OnnxEncoder, texts: Sequence[str], size: int) -> list[NDArray[np.float32]]:
    """All positions' embeddings per text, from padded batches of texts of about one length, all cores."""
    framed = [_framed(encoder, text) for text in texts]
    order = np.argsort([len(ids) for ids in framed])
    batches = [order[start : start + size] for start in range(0, len(order), size)]

    def run(batch: NDArray[np.int64]) -> Iterable[tuple[int, NDArray[np.float32]]]:
        longest = max(len(framed[i]) for i in batch)
        ids = np.zeros((len(batch), longest), dtype=np.int64)
        there = np.zeros_like(ids)
        for row, i in enumerate(batch):
            ids[row, : len(framed[i])], there[row, : len(framed[i])] = framed[i], 1
        feed = {"input_ids": ids, "attention_mask": there, "token_type_ids": np.zeros_like(ids)}
        states = encoder._session.run([encoder._output], feed)[0]
        flat = np.asarray(numkong.dots_packed(states.reshape(-1, states.shape[-1]), encoder._packed))  # as encoder does
        states = (flat / np.linalg.norm(flat, axis=-1, keepdims=True)).reshape(*states.shape[:2], -1)
        return [(i, states[row, : len(framed[i])]) for row, i in enumerate(batch)]

    with ThreadPoolExecutor(encoder.workers) as pool:
        done = dict(pair for pairs in pool.map(run, batches) for pair in pairs)
    return [done[i] for i in range(len(texts))]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--documents", type=int, default=500)
    options = arguments.parse_args()
    texts = [d.text for d in islice(read_corpus(options.collection / "corpus.jsonl.gz"), options.documents)]
    encoders = {workers: OnnxEncoder.load(workers=workers) for workers in (1, None)}
    everything = encoders[None]
    tokens = sum(len(_framed(everything, text)) for text in texts)
    list(everything.encode_documents(texts[:20]))

    print(f"{len(texts)} documents, {tokens:,} tokens, {everything.workers} cores\n")
    print("| documents | tokens per second |")
    print("|---|---|")
    for workers, encoder in encoders.items():
        start = perf_counter()
        list(encoder.encode_documents(texts))
        name = "one worker" if workers == 1 else "all cores"
        print(f"| one by one, {name} | {tokens / (perf_counter() - start):,.0f} |")
    batched = {}
    for size in (8, 32):
        start = perf_counter()
        batched[size] = in_batches(everything, texts, size)
        print(f"| batches of {size}, all cores | {tokens / (perf_counter() - start):,.0f} |")

    queries, _ = read_queries(options.collection, 100)
    times = []
    for text in queries.values():
        start = perf_counter()
        everything.encode_query(text)
        times.append((perf_counter() - start) * 1000)
    print(
        f"\nqueries, one thread: median {np.median(times):.1f} ms, 95th percentile {np.quantile(times, 0.95):.1f} ms\n"
    )

    print("| batch | mean cosine with the same text alone | lowest of 1,000 | lowest |")
    print("|---|---|---|---|")
    alone = in_batches(everything, texts, 1)
    for size, encoded in batched.items():
        cosines = np.concatenate([(a * b).sum(axis=1) for a, b in zip(alone, encoded, strict=True)])
        print(f"| {size} | {cosines.mean():.4f} | {np.quantile(cosines, 0.001):.4f} | {cosines.min():.4f} |")


if __name__ == "__main__":
    main()

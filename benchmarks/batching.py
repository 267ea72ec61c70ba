"""What a server would gain by putting queries that come at the same time into a batch.

    python benchmarks/batching.py demo.sec

Both stages of a search that could share work between queries, one query at a time and in batches, in turns, on one
thread: encoding (one run of the network for several queries), and looking for the nearest cells (the centroids pass
through the cache once for several queries). Then how far a batch moves a query's embeddings from those it has alone.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

import numkong
import numpy as np
from service_load import questions

from secateurs import Index
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.gather import gatherer as gatherer_of
from secateurs.gather.cells import CellGatherer
from secateurs.kernels.simd import round_query

SIZES = (1, 2, 4, 8)
ROUNDS = 15
NPROBE = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    options = parser.parse_args()
    index = Index(options.index)
    encoder, gatherer = index.encoder, gatherer_of(index.snapshot, "cells")
    assert isinstance(encoder, OnnxEncoder)
    assert isinstance(gatherer, CellGatherer)
    texts = [text for text in questions(index) if len(encoder._query_positions(text).token_ids) == 32][: 8 * ROUNDS]
    alone = [encoder.encode_query(text).embeddings for text in texts]
    spent: dict[tuple[str, int], list[float]] = {}
    together: list[np.ndarray] = []
    for _ in range(2):  # the first time warms up
        spent.clear()
        together.clear()
        for turn in range(ROUNDS):
            eight = slice(8 * turn, 8 * turn + 8)
            for size in SIZES:
                started = perf_counter()
                for at in range(0, 8, size):
                    encoded = encode(encoder, texts[eight][at : at + size])
                    if size == 8:
                        together += list(encoded)
                spent.setdefault(("encode", size), []).append(perf_counter() - started)
                started = perf_counter()
                for at in range(0, 8, size):
                    probe(gatherer, np.concatenate([rows[:8] for rows in alone[eight][at : at + size]]))
                spent.setdefault(("look for cells, 8 embeddings each", size), []).append(perf_counter() - started)
    print("| stage | " + " | ".join(f"{size} at once" for size in SIZES) + " |")
    print("|---" * (len(SIZES) + 1) + "|")
    for stage in dict.fromkeys(stage for stage, _ in spent):
        base = median(spent[stage, 1])
        print(f"| {stage} | " + " | ".join(f"{median(spent[stage, size]) / base:.2f}" for size in SIZES) + " |")
    cosines = [(rows * batched).sum(axis=1) for rows, batched in zip(alone, together, strict=True)]
    every = np.concatenate(cosines)
    print(f"\ncosine of an embedding alone and in a batch of eight: mean {every.mean():.4f}, lowest {every.min():.2f}")


def encode(encoder: OnnxEncoder, texts: list[str]) -> np.ndarray:
    """(queries, positions, dim), from one run of the network for all of them."""
    framed = [encoder._query_positions(text) for text in texts]
    ids = np.stack([positions.token_ids for positions in framed])
    feed = {
        "input_ids": ids,
        "attention_mask": np.stack([positions.attended for positions in framed]),
        "token_type_ids": np.zeros_like(ids),
    }
    feed = {name: array for name, array in feed.items() if name in encoder._inputs}
    states = encoder._session.run([encoder._output], feed)[0]
    flat = np.asarray(numkong.dots_packed(states.reshape(-1, states.shape[-1]), encoder._packed))
    return (flat / np.linalg.norm(flat, axis=-1, keepdims=True)).reshape(*states.shape[:2], -1)


def probe(cells: CellGatherer, embeddings: np.ndarray) -> None:
    """The nearest 32 cells of each embedding, as CellGatherer.gather looks for them."""
    rounded, _ = round_query(embeddings)
    cells._centroids.nearest(rounded, NPROBE + 1)


if __name__ == "__main__":
    main()

"""How fast the built-in encoder is, by the kernels of this package and by onnxruntime, and how near both are to the
network without rounding.

    python benchmarks/encoding.py --collection DIR --cache DIR

    documents   tokens per second, one worker and all cores
    queries     milliseconds of a search by text: encoding and the rest, with all MASKs of a query and with few
    nearness    cosine of an embedding with that of the network whose activations are not rounded
    batches     onnxruntime alone: what an embedding loses when texts share a batch, whose activations share a scale

Every table alternates between its rows, so that other work on the machine meets all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import islice
from math import erf
from pathlib import Path
from time import perf_counter

import numpy as np
from judged import measure, open_collection, progress, read_queries
from numpy.typing import NDArray

from secateurs.corpus import read_corpus
from secateurs.encoders.built_in import EXPANSION
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.networks import OnnxRuntime
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_file import OnnxFile

ROUNDS = 5
HEADS = 12


class Unrounded:
    """The network in NumPy, with the weights of the file and float32 activations."""

    def __init__(self, path: Path) -> None:
        self._file = OnnxFile(path)
        self._places, self._words, self._kinds = (
            self._file.unrounded(f"embeddings.{name}_embeddings.weight") for name in ("position", "word", "token_type")
        )

    def states(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Of a text whose positions are all attended to."""
        length = len(token_ids)
        x = self._words[token_ids] + self._places[:length] + self._kinds[0]
        x = self._normalised(x, "embeddings.LayerNorm")
        for layer in range(12):
            prefix = f"encoder.layer.{layer}."
            query, key, value = (
                self._product(x, f"{prefix}attention.self.{name}").reshape(length, HEADS, -1).swapaxes(0, 1)
                for name in ("query", "key", "value")
            )
            logits = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
            shares = np.exp(logits - logits.max(axis=-1, keepdims=True))
            context = (shares / shares.sum(axis=-1, keepdims=True) @ value).swapaxes(0, 1).reshape(length, -1)
            mixed = self._product(context, f"{prefix}attention.output.dense")
            x = self._normalised(x + mixed, f"{prefix}attention.output.LayerNorm")
            deep = self._product(x, f"{prefix}intermediate.dense")
            deep = deep * 0.5 * (1 + np.vectorize(erf, otypes=[np.float32])(deep / np.sqrt(2)))
            x = self._normalised(x + self._product(deep, f"{prefix}output.dense"), f"{prefix}output.LayerNorm")
        return x.astype(np.float32)

    def _product(self, x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        whole, scale = self._file.factor(name)
        result: NDArray[np.float32] = x @ (whole * scale) + self._file.arrays[f"{name}.bias"]
        return result

    def _normalised(self, x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        away = x - x.mean(axis=1, keepdims=True)
        away /= np.sqrt((away**2).mean(axis=1, keepdims=True) + 1e-12)
        result: NDArray[np.float32] = away * self._file.arrays[f"{name}.weight"] + self._file.arrays[f"{name}.bias"]
        return result


def framed(encoder: OnnxEncoder, text: str) -> NDArray[np.int64]:
    """The token ids of the text's first window."""
    return next(encoder._windows(encoder._wordpieces(text).ids)).positions.input.token_ids


def embedded(encoder: OnnxEncoder, states: NDArray[np.float32]) -> NDArray[np.float32]:
    assert encoder._projection is not None
    projected = states @ encoder._projection
    return projected / np.linalg.norm(projected, axis=1, keepdims=True)


def cosines(one: list[NDArray[np.float32]], other: list[NDArray[np.float32]]) -> str:
    """Mean, lowest of a thousand and lowest cosine of embeddings."""
    found = np.concatenate([(a * b).sum(axis=1) for a, b in zip(one, other, strict=True)])
    return f"{found.mean():.4f} | {np.quantile(found, 0.001):.4f} | {found.min():.4f}"


def documents_table(texts: Sequence[str], encoders: dict[str, dict[int | None, OnnxEncoder]]) -> None:
    any_encoder = next(iter(encoders.values()))[None]
    tokens = sum(len(framed(any_encoder, text)) for text in texts)
    times: dict[tuple[str, int | None], list[float]] = {}
    for _ in progress(range(ROUNDS), "documents"):
        for name, by_workers in encoders.items():
            for workers, encoder in by_workers.items():
                start = perf_counter()
                list(encoder.encode_documents(texts))
                times.setdefault((name, workers), []).append(perf_counter() - start)
    cores = any_encoder.workers
    print(f"{len(texts)} documents, {tokens:,} tokens, {cores} cores\n")
    print("| documents | tokens per second | times onnxruntime |")
    print("|---|---|---|")
    for (name, workers), seconds in times.items():
        base = np.median(times["onnxruntime", workers])
        speed, ratio = tokens / np.median(seconds), base / np.median(seconds)
        print(f"| {name}, {'one worker' if workers else 'all cores'} | {speed:,.0f} | {ratio:.2f} |")


def queries_table(folder: Path, cache: Path) -> None:
    collection = open_collection(folder, cache, gather=("cells",))
    index = collection.index
    texts, _ = read_queries(folder, 200)
    encoders = {
        "onnxruntime, all MASKs": OnnxEncoder.load(settings={"expansion": "all"}, kernels=False),
        "kernels, all MASKs": OnnxEncoder.load(settings={"expansion": "all"}),
        f"kernels, {EXPANSION} MASKs": OnnxEncoder.load(),
    }
    encoding: dict[str, list[float]] = {name: [] for name in encoders}
    whole: dict[str, list[float]] = {name: [] for name in encoders}
    runs: dict[str, dict[str, list[tuple[str, float]]]] = {name: {} for name in encoders}
    for _ in progress(range(ROUNDS), "queries"):
        for qid, text in texts.items():
            for name, encoder in encoders.items():
                start = perf_counter()
                query = encoder.encode_query(text)
                middle = perf_counter()
                hits = index.search(query)
                encoding[name].append(middle - start)
                whole[name].append(perf_counter() - start)
                runs[name][qid] = [(hit.docno, hit.score) for hit in hits]
    print("\n| queries | encoding, ms | search, ms | both, ms | times the first row | nDCG@10 |")
    print("|---|---|---|---|---|---|")
    first = np.median(next(iter(whole.values())))
    for name in encoders:
        encode, both = (1000 * np.median(times[name]) for times in (encoding, whole))
        search = 1000 * np.median(np.array(whole[name]) - encoding[name])
        score = measure(collection.qrels, runs[name], ["nDCG@10"])["nDCG@10"]
        ratio = both / 1000 / first
        print(f"| {name} | {encode:.2f} | {search:.2f} | {both:.2f} | {ratio:.2f} | {score:.4f} |")


def nearness_tables(texts: Sequence[str]) -> None:
    path = wheel_folder() / "model.onnx"
    kernels, runtime, network = OnnxEncoder.load(), OnnxEncoder.load(kernels=False), Unrounded(path)
    inputs = [framed(kernels, text) for text in texts]
    exact = [embedded(kernels, network.states(ids)) for ids in progress(inputs, "without rounding")]
    print("\n| documents | mean cosine with the network without rounding | lowest of 1,000 | lowest |")
    print("|---|---|---|---|")
    alone = []
    for name, encoder in (("kernels", kernels), ("onnxruntime", runtime)):
        states = [
            encoder._network.states([next(encoder._windows(encoder._wordpieces(t).ids)).positions.input])[0]
            for t in texts
        ]
        alone = [embedded(encoder, rows) for rows in states]
        print(f"| {name} | {cosines(exact, alone)} |")
    print("\n| onnxruntime, batch | mean cosine with the same text alone | lowest of 1,000 | lowest |")
    print("|---|---|---|---|")
    for size in (8, 32):
        print(f"| {size} | {cosines(alone, in_batches(runtime, inputs, size))} |")


def in_batches(encoder: OnnxEncoder, inputs: list[NDArray[np.int64]], size: int) -> list[NDArray[np.float32]]:
    """Embeddings from padded batches of texts of about one length."""
    network = encoder._network
    assert isinstance(network, OnnxRuntime)
    order = np.argsort([len(ids) for ids in inputs])
    done: dict[int, NDArray[np.float32]] = {}
    for start in range(0, len(order), size):
        batch = order[start : start + size]
        ids = np.zeros((len(batch), max(len(inputs[i]) for i in batch)), dtype=np.int64)
        there = np.zeros_like(ids)
        for row, i in enumerate(batch):
            ids[row, : len(inputs[i])], there[row, : len(inputs[i])] = inputs[i], 1
        feed = {"input_ids": ids, "attention_mask": there, "token_type_ids": np.zeros_like(ids)}
        states = network._session.run([network._output.name], feed)[0]
        done |= {int(i): embedded(encoder, states[row, : len(inputs[i])]) for row, i in enumerate(batch)}
    return [done[i] for i in range(len(inputs))]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--documents", type=int, default=500)
    options = arguments.parse_args()
    texts = [d.text for d in islice(read_corpus(options.collection / "corpus.jsonl.gz"), options.documents)]
    encoders = {
        name: {workers: OnnxEncoder.load(workers=workers, kernels=kernels) for workers in (1, None)}
        for name, kernels in (("kernels", True), ("onnxruntime", False))
    }
    for by_workers in encoders.values():
        list(by_workers[None].encode_documents(texts[:20]))
    documents_table(texts, encoders)
    queries_table(options.collection, options.cache)
    nearness_tables(texts[:100])


if __name__ == "__main__":
    main()

"""How time, memory and building grow with the collection.

    python benchmarks/growth.py --collection DIR --cache DIR [--most-documents 80000] [--millions 0.3 1 3 10 30]

The documents that answer the queries come first, then the others, so that the queries of every size are the same and
have their answers. Real embeddings as far as they reach; beyond, the same documents again, every embedding moved by
seeded noise of half its distance from the collection's mean (and back to unit length). Each size is indexed in a
process of its own, then searched one query at a time on one thread. Recall is that of the ten best of exhaustive search
over the same index.
Prints the table for the docs; --plot FILE.svg draws it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from engines import PEERS, build, say, search
from judged import encode, read_queries
from numpy.typing import NDArray

from secateurs import Index

SETTINGS: list[dict[str, Any]] = [
    {"effort": "exact"},
    {},
    {"effort": "fast"},
    {"effort": "thorough"},
    {"p": 3},
    {"nprobe": 128, "candidates": 2048},
]
_BLOCK = 65_536


def answers_first(index: Index, qrels: list[ir_measures.Qrel]) -> NDArray[np.int64]:
    """The numbers of all documents of the index: those that answer a query, then the others as they come."""
    answers = index.snapshot.numbers(sorted({qrel.doc_id for qrel in qrels if qrel.relevance > 0}))
    numbers = np.arange(len(index))
    return np.concatenate([answers, numbers[~np.isin(numbers, answers)]])


def grow(folder: Path, cache: Path, most_documents: int | None, embeddings: int, most_queries: int) -> Path:
    """A data folder as benchmarks/peers/common.py wants it, with about so many embeddings."""
    part = f"{most_documents or 'all'}-documents-{most_queries}-queries"
    data = cache / f"{folder.name}-answers-first-{part}-{embeddings}.data"
    if (data / "query_offsets.npy").is_file():
        return data
    data.mkdir(exist_ok=True)
    index = encode(folder, cache, most_documents)
    texts, qrels = read_queries(folder, most_queries, index)
    qrels = [qrel for qrel in qrels if qrel.doc_id in index]
    (segment,) = index.snapshot.segments
    real, token_ids, token_kinds = segment.embeddings.rows, segment.token_ids, segment.token_kinds
    numbers = answers_first(index, qrels)
    lengths = np.diff(segment.offsets)[numbers]
    ends = np.cumsum(lengths)
    row_of = np.arange(len(real)) + np.repeat(segment.offsets[numbers] - (ends - lengths), lengths)
    copies = -(-embeddings // len(real))
    documents = int(np.searchsorted(np.cumsum(np.tile(lengths, copies)), embeddings)) + 1
    offsets = np.concatenate([[0], np.cumsum(np.tile(lengths, copies)[:documents])])
    total = int(offsets[-1])
    np.save(data / "offsets.npy", offsets)
    np.save(data / "token_ids.npy", np.resize(np.asarray(token_ids)[row_of], total))
    np.save(data / "token_kinds.npy", np.resize(np.asarray(token_kinds)[row_of], total))
    centre = np.mean([real[i : i + 1000].astype(np.float32).mean(axis=0) for i in range(0, len(real), 50_000)], axis=0)
    rows = np.lib.format.open_memmap(data / "embeddings.npy", "w+", np.float16, (total, real.shape[1]))
    rng = np.random.default_rng(0)
    for first in range(0, total, _BLOCK):
        wanted = np.arange(first, min(first + _BLOCK, total))
        block = real[row_of[wanted % len(real)]]
        if wanted[-1] >= len(real):
            copied = block.astype(np.float32)
            noise = rng.standard_normal(copied.shape, dtype=np.float32)
            noise *= 0.5 * np.linalg.norm(copied - centre, axis=1, keepdims=True) / np.sqrt(copied.shape[1])
            copied += np.where(wanted[:, None] < len(real), 0, noise)
            block = copied / np.linalg.norm(copied, axis=1, keepdims=True)
        rows[first : first + len(block)] = block
    rows.flush()
    queries = [index.encode_query(text) for text in texts.values()]
    np.save(data / "queries.npy", np.concatenate([query.embeddings for query in queries]))
    np.save(data / "query_token_ids.npy", np.concatenate([query.token_ids for query in queries]))
    np.save(data / "query_token_kinds.npy", np.concatenate([query.token_kinds for query in queries]))
    np.save(data / "query_weights.npy", np.concatenate([query.all_weights for query in queries]))
    np.save(data / "query_offsets.npy", np.cumsum([0, *map(len, queries)]))
    return data


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """Time per query, and a line that grows with the root of the collection, to compare."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import NullFormatter, NullLocator

    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    sizes = np.array([line["embeddings"] for line in table])
    names = {"default": "#d55e00", "effort fast": "#0072b2", "effort thorough": "#cc79a7", "p 3": "#009e73"}
    for (name, colour), marker in zip(names.items(), "os^v", strict=True):
        axes[0].plot(sizes, [line["ms"][name] for line in table], color=colour, marker=marker, label=name)
    ours = table[0]["ms"]["default"]
    axes[0].plot(sizes, ours * np.sqrt(sizes / sizes[0]), color="black", linewidth=0.7, linestyle=":", label="root")
    axes[0].set_ylabel("milliseconds per query, one thread")
    axes[1].plot(
        sizes, [line["build_seconds"] for line in table], color="#d55e00", marker="o", label="seconds to build"
    )
    memory = [line["build_memory"] / 1e6 for line in table]
    axes[1].plot(sizes, memory, color="#0072b2", marker="s", label="peak memory of the build, MB")
    for panel in axes:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("million embeddings")
        panel.set_xticks(sizes, [f"{size / 1e6:.1f}" for size in sizes])
        panel.xaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_formatter("{x:g}" if panel is axes[0] else NullFormatter())
        panel.grid(alpha=0.25)
        panel.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--most-documents", type=int, help="that are encoded; without it, all of the collection")
    arguments.add_argument("--most-queries", type=int, default=100)
    arguments.add_argument("--millions", type=float, nargs="+", default=[0.3, 1, 3, 10, 30])
    arguments.add_argument("--plot", type=Path)
    options = arguments.parse_args()
    command = [sys.executable, str(PEERS / "peer_secateurs.py")]
    table = []
    for millions in options.millions:
        wanted = int(millions * 1e6)
        data = grow(options.collection, options.cache, options.most_documents, wanted, options.most_queries)
        (options.cache / f"{data.stem}.peers").mkdir(exist_ok=True)
        built = build("grown", command, data, options.cache)
        if built is None:
            continue
        say(f"searching {millions:g} million")
        result = search("grown", command, data, options.cache, SETTINGS)
        exact = result["documents"][0]
        line: dict[str, Any] = {
            "embeddings": len(np.load(data / "token_ids.npy", mmap_mode="r")),
            "documents": len(np.load(data / "offsets.npy")) - 1,
            "build_seconds": built["build_seconds"],
            "build_memory": built["peak_memory"],
            "bytes": built["bytes"],
            "search_memory": result["peak_memory"],
            "ms": {},
            "recall": {},
        }
        for setting, times, found in zip(SETTINGS, result["milliseconds"], result["documents"], strict=True):
            name = ", ".join(f"{key} {value}" for key, value in setting.items()).replace("None", "all") or "default"
            line["ms"][name] = float(np.mean(times))
            shared = [len({*a} & {*b}) / max(len(b), 1) for a, b in zip(found, exact, strict=True)]
            line["recall"][name] = float(np.mean(shared))
        table.append(line)
    (options.cache / f"{options.collection.name}.growth.json").write_text(json.dumps(table, indent=1))
    names = list(table[0]["ms"])
    print(
        "| embeddings | documents | build s | build MB | bytes | "
        + " | ".join(f"{n}: ms, recall" for n in names)
        + " |"
    )
    print("|" + "---|" * (5 + len(names)))
    for line in table:
        cells = [f"{line['embeddings']:,}", f"{line['documents']:,}", f"{line['build_seconds']:.0f}"]
        cells += [f"{line['build_memory'] / 1e6:,.0f}", f"{line['bytes'] / line['embeddings']:.0f}"]
        cells += [f"{line['ms'][name]:.2f}, {line['recall'][name]:.3f}" for name in names]
        print(f"| {' | '.join(cells)} |")
    if options.plot:
        draw(table, options.plot)


if __name__ == "__main__":
    main()

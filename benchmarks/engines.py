"""Secateurs beside other engines: same embeddings, same queries, one run, one thread per query.

    python benchmarks/engines.py --collection DIR --cache DIR --environments DIR [--engines NAME ...] [--rounds 3]

Engines are the adapters in benchmarks/peers: secateurs, int16 and residual4 (secateurs with these stores), faiss (the
paper's pipeline, in this package), bm25 (followed by exact MaxSim), tachiom, xtr-warp, fast-plaid, lancedb. Those of
others run in virtual environments that benchmarks/peers/environments.py makes; one that is not there is named and
skipped. Indexes are built once, each in a process of its own, and kept in the cache with what building took. Then the
engines search in turn, as many rounds as asked for, and the median time of each query counts. Writes
CACHE/NAME.engines.json and prints the table for the docs; --plot FILE.svg draws it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
from judged import encode, measure, progress, read_queries
from rich.console import Console

from secateurs import load_encoder

PEERS = Path(__file__).parent / "peers"
OURS = ("secateurs", "int16", "residual4", "faiss", "bm25")  # in this environment
ENGINES = (*OURS, "tachiom", "xtr-warp", "fast-plaid", "lancedb")
say = Console(stderr=True).print


def export(folder: Path, cache: Path, most_queries: int) -> tuple[Path, list[ir_measures.Qrel], list[str], list[str]]:
    """The collection as benchmarks/peers/common.py wants it; its judgements, qids and docnos."""
    index = encode(folder, cache)
    (segment,) = index.snapshot.segments
    texts, qrels = read_queries(folder, most_queries)
    data = cache / f"{folder.name}.data"
    docnos = segment.documents.docnos(range(len(segment)))
    if not (data / "exact.npy").is_file():
        data.mkdir(exist_ok=True)
        for name in ("embeddings.npy", "offsets.npy", "token_ids.npy", "token_kinds.npy"):
            (data / name).unlink(missing_ok=True)
            (data / name).symlink_to((segment.folder / name).resolve())
        with (data / "texts.jsonl").open("w", encoding="utf-8") as file:
            for first in range(0, len(segment), 1000):
                for stored in segment.documents.get(range(first, min(first + 1000, len(segment)))):
                    file.write(json.dumps(stored.text) + "\n")
        (data / "queries.json").write_text(json.dumps(list(texts.values())))
        encoder = load_encoder(settings={"expansion": "all"})  # other engines know no weights of query embeddings
        queries = [encoder.encode_query(text) for text in texts.values()]
        for name in ("embeddings", "token_ids", "token_kinds"):
            rows = np.concatenate([getattr(query, name) for query in queries])
            np.save(data / {"embeddings": "queries.npy"}.get(name, f"query_{name}.npy"), rows)
        np.save(data / "query_offsets.npy", np.cumsum([0, *map(len, queries)]))
        number = {docno: i for i, docno in enumerate(docnos)}
        exact = np.full((len(queries), 10), -1)
        for i, query in enumerate(progress(queries, description="exact MaxSim")):
            hits = [number[hit.docno] for hit in index.search(query, gather="exhaustive")]
            exact[i, : len(hits)] = hits
        np.save(data / "exact.npy", exact)
    return data, qrels, list(texts), docnos


def adapter(engine: str, environments: Path) -> list[str] | None:
    """The command that runs an engine, if it is installed."""
    python = Path(sys.executable) if engine in OURS else environments / engine / "bin" / "python"
    return [str(python), str(PEERS / f"peer_{engine.replace('-', '_')}.py")] if python.exists() else None


def build(engine: str, command: list[str], data: Path, cache: Path) -> dict[str, Any] | None:
    index = cache / f"{data.stem}.peers" / engine
    answer = index.with_suffix(".json")
    if engine in OURS:  # the code may have changed, and it does not take long
        shutil.rmtree(index, ignore_errors=True)
        answer.unlink(missing_ok=True)
    if not answer.is_file():
        say(f"building {engine}")
        done = subprocess.run([*command, "build", str(data), str(index)], stdout=subprocess.PIPE, text=True)
        if done.returncode:
            say(f"{engine} could not build (exit code {done.returncode}): left out")
            return None
        answer.write_text(done.stdout)
    built: dict[str, Any] = json.loads(answer.read_text())
    return built


def search(
    engine: str, command: list[str], data: Path, cache: Path, settings: list[Any], first: int = 0
) -> dict[str, Any]:
    out = cache / f"{data.stem}.peers" / f"{engine}.search.json"
    index = cache / f"{data.stem}.peers" / engine
    chosen = ["--settings", json.dumps(settings), "--first", str(first)]
    subprocess.run([*command, "search", str(data), str(index), "--out", str(out), *chosen], check=True)
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def rows_of(
    engine: str,
    built: dict[str, Any],
    rounds: list[dict[str, Any]],
    data: Path,
    qrels: list[ir_measures.Qrel],
    qids: list[str],
    docnos: list[str],
) -> list[dict[str, Any]]:
    """One line of the table per setting."""
    exact = np.load(data / "exact.npy")
    lines = []
    for i, setting in enumerate(rounds[0]["settings"]):
        times = np.median([result["milliseconds"][i] for result in rounds], axis=0)
        found = rounds[0]["documents"][i]
        run = {
            qid: [(docnos[number], -float(rank)) for rank, number in enumerate(numbers)]
            for qid, numbers in zip(qids, found, strict=True)
        }
        shared = [
            len(set(numbers) & set(row.tolist())) / (row >= 0).sum() for numbers, row in zip(found, exact, strict=True)
        ]
        lines.append(
            {
                "engine": engine,
                "setting": setting,
                "mean_ms": float(times.mean()),
                "p99_ms": float(np.quantile(times, 0.99)),
                "nDCG@10": measure(qrels, run, ["nDCG@10"])["nDCG@10"],
                "recall@10": float(np.mean(shared)),
                "told": {name: float(np.median([r["told"][i][name] for r in rounds])) for name in rounds[0]["told"][i]},
                "build_seconds": built["build_seconds"],
                "bytes_per_document": built["bytes"] / len(docnos),
                "build_memory": built["peak_memory"],
                "search_memory": max(result["peak_memory"] for result in rounds),
                "version": rounds[0]["version"],
            }
        )
    return lines


def worth_showing(lines: list[dict[str, Any]], exact: float) -> list[dict[str, Any]]:
    """Of ours everything; of others the default, the fastest that is as good as exhaustive, and the most faithful."""
    if lines[0]["engine"] in ("secateurs", "int16", "residual4", "faiss"):
        return lines
    good = [line for line in lines if line["nDCG@10"] >= exact - 0.005]
    chosen = [lines[0], max(lines, key=lambda line: (line["recall@10"], -line["mean_ms"]))]
    if good:
        chosen.append(min(good, key=lambda line: line["mean_ms"]))
    return [line for line in lines if line in chosen]


def print_table(table: list[dict[str, Any]], exact: float) -> None:
    default = table[0]["mean_ms"]
    measured = "nDCG@10 | recall@10 | scored | build s | bytes a document | build MB"
    print(f"| engine | setting | ms | p99 ms | times ours | {measured} |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for engine in dict.fromkeys(line["engine"] for line in table):
        for line in worth_showing([line for line in table if line["engine"] == engine], exact):
            setting = ", ".join(f"{name} {value}" for name, value in line["setting"].items()) or "default"
            scored = f"{line['told']['scored']:,.0f}" if "scored" in line["told"] else ""
            quality = [f"{line['nDCG@10']:.4f}", f"{line['recall@10']:.3f}"]
            if setting == "read True":
                setting, quality = "(reading what default scores)", ["", ""]
            cells = [
                engine,
                setting.replace("None", "all"),
                f"{line['mean_ms']:.2f}",
                f"{line['p99_ms']:.2f}",
                f"{line['mean_ms'] / default:.2f}",
                *quality,
                scored,
                f"{line['build_seconds']:.0f}",
                f"{line['bytes_per_document']:,.0f}",
                f"{line['build_memory'] / 1e6:,.0f}",
            ]
            print(f"| {' | '.join(cells)} |")


def draw(table: list[dict[str, Any]], exact: float, name: str, path: Path) -> None:
    """Recall of the exact ten and nDCG@10 against time: to the upper left is better."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = dict(
        zip(
            ENGINES,
            ("#d55e00", "#7f3b08", "#e6ab02", "#0072b2", "#999999", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
            strict=True,
        )
    )
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    for panel, measured in zip(axes, ("recall@10", "nDCG@10"), strict=True):
        for engine, marker in zip(ENGINES, "o*hsD^vPX", strict=True):
            lines = [line for line in table if line["engine"] == engine and "read" not in line["setting"]]
            lines = [line for line in lines if line["setting"] != {"effort": "exact"}]
            points = sorted((line["mean_ms"], line[measured]) for line in lines)
            if points:
                style = {"color": colours[engine], "marker": marker, "markersize": 5, "label": engine}
                panel.plot(*zip(*points, strict=True), linestyle="", **style)
                best = np.maximum.accumulate([value for _, value in points])
                panel.plot([ms for ms, _ in points], best, color=colours[engine], linewidth=0.8)
        if measured == "nDCG@10":
            panel.axhline(exact, color="black", linewidth=0.6, linestyle=":")
            panel.annotate("exhaustive", (0.99, exact), xycoords=("axes fraction", "data"), ha="right", va="top")
        panel.set_xscale("log")
        panel.set_xlabel("milliseconds per query, one thread")
        panel.set_ylabel(measured + (" against exact" if measured == "recall@10" else ""))
        panel.grid(alpha=0.25)
    axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    figure.suptitle(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--environments", type=Path, default=Path("environments"))
    arguments.add_argument("--engines", nargs="+", default=list(ENGINES), choices=ENGINES)
    arguments.add_argument("--most-queries", type=int, default=200)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--only-build", action="store_true")
    arguments.add_argument("--plot", type=Path)
    options = arguments.parse_args()
    if "secateurs" not in options.engines:  # the table divides by it
        options.engines.insert(0, "secateurs")
    data, qrels, qids, docnos = export(options.collection, options.cache, options.most_queries)
    (options.cache / f"{data.stem}.peers").mkdir(exist_ok=True)
    commands, built = {}, {}
    for engine in options.engines:
        command = adapter(engine, options.environments)
        if command is None:
            say(f"{engine} is not installed in {options.environments / engine}: left out")
            continue
        made = build(engine, command, data, options.cache)
        if made is not None:
            commands[engine], built[engine] = command, made
    if options.only_build:
        return
    settings = {}
    for engine, command in commands.items():
        said = subprocess.run([*command, "settings"], stdout=subprocess.PIPE, text=True, check=True).stdout
        settings[engine] = json.loads(said)
    rounds: dict[str, list[dict[str, Any]]] = {engine: [] for engine in commands}
    for turn in range(options.rounds):
        for engine, command in commands.items():
            say(f"round {turn + 1}: {engine}")
            first = (
                1 + turn * len(settings[engine]) // options.rounds
            )  # no setting is always the first, with cold caches
            rounds[engine].append(search(engine, command, data, options.cache, settings[engine], first))
    table = [
        line
        for engine in commands
        for line in rows_of(engine, built[engine], rounds[engine], data, qrels, qids, docnos)
    ]
    (options.cache / f"{data.stem}.engines.json").write_text(json.dumps(table, indent=1))
    exact = next(line["nDCG@10"] for line in table if line["setting"] == {"effort": "exact"})
    print(f"{len(qids)} queries over {len(docnos):,} documents, exhaustive nDCG@10 {exact:.4f}\n")
    print_table(table, exact)
    if options.plot:
        draw(table, exact, data.stem, options.plot)


if __name__ == "__main__":
    main()

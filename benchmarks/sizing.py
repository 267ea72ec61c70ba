"""What a collection of any size needs: a model of a few lines, fitted to measurements and checked against them.

    python benchmarks/sizing.py --growth CACHE/boolq-wiki.growth.json --cluster CACHE/msmarco-dl19.cluster.json

    time of a shard   a * embeddings ^ b, fitted to benchmarks/growth.py from a million embeddings on
    cluster           c + d * shards, from benchmarks/cluster.py: c + d is what calling one actor takes, and d what each
                      further actor adds to the work of the process that searches
    size              bytes per embedding and per passage, of the index of benchmarks/cluster.py
    latency           encoding + cluster + one shard, as many times as shards share a core
    work              encoding + shards * (one shard + 2 d)

It prints what the model predicts for what was measured, with one measurement left out of the fit, and then the sizing.
Prices and machines are assumptions: give your own.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from secateurs.threads import usable_cores

COLLECTIONS = {"MS MARCO v1": 8.8e6, "MS MARCO v2": 138e6, "the web": 10e9}
SETTINGS = {"default": "default", "p = 3": "p 3", "unpruned": "p all"}
OF_CLUSTER = {"default": "default", "p = 3": "p 3", "unpruned": "unpruned"}


@dataclass(frozen=True)
class Model:
    times: dict[str, tuple[float, float]]  # setting -> a, b: milliseconds of one shard are a * embeddings ^ b
    call: tuple[float, float]  # milliseconds: c, d
    encode: float  # milliseconds a query
    bytes_per_passage: float
    embeddings_per_passage: float

    def shard(self, setting: str, embeddings: float) -> float:
        a, b = self.times[setting]
        return float(a * embeddings**b)

    def cluster(self, shards: int) -> float:
        return self.call[0] + self.call[1] * shards

    def latency(self, setting: str, embeddings: float, shards: int, at_once: int) -> float:
        """Milliseconds of a search without encoding, if `at_once` shards run at the same time, each on a core."""
        turns = math.ceil(shards / at_once)
        return self.cluster(shards) + turns * self.shard(setting, embeddings / shards)

    def work(self, setting: str, embeddings: float, shards: int) -> float:
        """Milliseconds of a core that a query takes on all machines together."""
        return self.encode + shards * (self.shard(setting, embeddings / shards) + 2 * self.call[1])


def fit(growth: list[dict[str, Any]], cluster: dict[str, Any], encode: float) -> Model:
    return Model(
        {setting: power_law(growth, name) for setting, name in SETTINGS.items()},
        line(cluster),
        encode,
        cluster["bytes"] / cluster["documents"],
        cluster["embeddings"] / cluster["documents"],
    )


def power_law(growth: list[dict[str, Any]], name: str) -> tuple[float, float]:
    large = [row for row in growth if row["embeddings"] > 9e5]
    sizes = np.log([row["embeddings"] for row in large])
    b, a = np.polyfit(sizes, np.log([row["ms"][name] for row in large]), 1)
    return math.exp(a), float(b)


def line(cluster: dict[str, Any]) -> tuple[float, float]:
    cpu = {int(name.split()[0]): times["default"][2] for name, times in cluster["ms"].items() if "Ray" in name}
    d, _ = np.polyfit(list(cpu), list(cpu.values()), 1)
    one_actor = cluster["ms"]["1 on Ray"]["default"][1]
    return max(one_actor - float(d), 0.0), float(d)


def check(growth: list[dict[str, Any]], cluster: dict[str, Any], model: Model, encode: float) -> None:
    """What was measured, and what the model predicts for it."""
    rows = []
    *smaller, largest = growth
    held_out = fit(smaller, cluster, encode)
    for setting, name in SETTINGS.items():
        predicted = held_out.shard(setting, largest["embeddings"])
        what = f"{largest['embeddings'] / 1e6:.0f} million embeddings, {setting}, from smaller ones"
        rows.append((what, largest["ms"][name], predicted))
    for name, times in cluster["ms"].items():
        shards = 1 if name == "one index" else int(name.split()[0])
        for setting, key in OF_CLUSTER.items():
            if "Ray" in name:
                predicted = model.latency(setting, cluster["embeddings"], shards, usable_cores())
                rows.append((f"{name}, {setting}", times[key][0], predicted))
            elif name == "one index":
                rows.append((f"{name}, {setting}", times[key][0], model.shard(setting, cluster["embeddings"])))
    print("| | measured, ms | model, ms | model / measured |\n|---|---|---|---|")
    for what, measured, predicted in rows:
        print(f"| {what} | {measured:.2f} | {predicted:.2f} | {predicted / measured:.2f} |")


def report(model: Model, options: argparse.Namespace) -> None:
    print(
        "\n| collection | passages | embeddings | disk, TB | machines | shards | memory, TB | setting | latency, ms "
        "| core ms a query | queries a second | $ per 1,000 queries | encoding, core days |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name, passages in COLLECTIONS.items():
        embeddings = passages * model.embeddings_per_passage
        size = passages * model.bytes_per_passage
        held = size * options.replicas
        machines = max(math.ceil(held / (options.share * options.memory * 2**30)), options.replicas)
        per_machine = max(min(options.per_machine, options.most_shards * options.replicas // machines), 1)
        shards = max(machines * per_machine // options.replicas, 1)
        days = passages / options.passages_per_second / 86_400
        for setting in SETTINGS:
            work = model.work(setting, embeddings, shards)
            rate = machines * options.cores * options.load / work * 1000
            cost = machines * options.price / (rate * 3600) * 1000
            latency = model.encode + model.latency(setting, embeddings, shards, shards)
            print(
                f"| {name} | {passages / 1e6:,.1f} M | {embeddings / 1e9:,.1f} G | {held / 1e12:,.2f} | {machines:,} "
                f"| {shards:,} | {machines * options.memory * 2**30 / 1e12:,.2f} | {setting} "
                f"| {latency:.0f} | {work:,.0f} | {rate:,.0f} | {cost:.4f} | {days:,.0f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growth", type=Path, required=True)
    parser.add_argument("--cluster", type=Path, required=True)
    parser.add_argument("--encode", type=float, default=8.0, help="milliseconds a query: benchmarks/encoding.py")
    parser.add_argument("--passages-per-second", type=float, default=56, help="of a core: benchmarks/encoding.py")
    parser.add_argument("--cores", type=int, default=32, help="of a machine")
    parser.add_argument("--memory", type=float, default=256, help="GiB of a machine")
    parser.add_argument("--price", type=float, default=2.0, help="$ an hour for a machine")
    parser.add_argument("--share", type=float, default=0.8, help="of the memory that shards may fill")
    parser.add_argument("--load", type=float, default=0.5, help="how busy the cores may be")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--per-machine", type=int, default=8, help="replicas of shards on a machine")
    parser.add_argument("--most-shards", type=int, default=256, help="to search at once, unless memory needs more")
    options = parser.parse_args()
    growth, cluster = json.loads(options.growth.read_text()), json.loads(options.cluster.read_text())
    model = fit(growth, cluster, options.encode)
    for setting, (a, b) in model.times.items():
        print(f"{setting}: {a:.3g} * embeddings ^ {b:.2f} ms")
    print(f"cluster: {model.call[0]:.2f} + {model.call[1]:.2f} * shards ms")
    print(f"{model.embeddings_per_passage:.1f} embeddings and {model.bytes_per_passage:,.0f} bytes a passage\n")
    check(growth, cluster, model, options.encode)
    report(model, options)


if __name__ == "__main__":
    main()

"""How building shards gains from cores, and what reading costs beside encoding, in one run.

python benchmarks/shard_build.py [--passages 1600] [--folder .cache/shard-build]
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import ray

from secateurs import Index
from secateurs.cluster.build.builder import build_shards
from secateurs.cluster.build.sources import Source
from secateurs.cluster.build.tasks import read_source
from secateurs.demo import standard_library

FILES = SHARDS = 4


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=1600)
    parser.add_argument("--folder", type=Path, default=Path(".cache/shard-build"))
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    passages = standard_library()[: given.passages]
    corpus = [given.folder / f"part-{number}.jsonl" for number in range(FILES)]
    for number, path in enumerate(corpus):
        path.write_text("".join(json.dumps(passage) + "\n" for passage in passages[number::FILES]))

    took = {}
    for cores in (1, 2):
        ray.init("local", num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        build_shards(given.folder / "first.sec", passages[:40], shards=SHARDS, overwrite=True)  # workers start
        folder = given.folder / f"{cores}.sec"
        took[cores] = seconds(lambda folder=folder: build_shards(folder, corpus, shards=SHARDS))  # type: ignore[misc]
        ray.shutdown()
    alone = seconds(lambda: Index.build(given.folder / "one.sec", passages))
    reading = seconds(lambda: [list(read_source(Source.of(path), SHARDS, False)) for path in corpus])
    print(f"{len(passages):,} passages in {SHARDS} shards")
    print(f"one core takes {took[1] / took[2]:.2f} times as long as two")
    print(f"two cores take {took[2] / alone:.2f} times as long as one index on all cores of this machine")
    print(f"one core takes {took[1] / reading:,.0f} times as long as reading alone")


if __name__ == "__main__":
    main()

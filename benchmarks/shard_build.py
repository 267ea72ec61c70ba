"""How much faster shards are built with more cores, and what reading costs beside encoding, in one run.

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
    options = parser.parse_args()
    shutil.rmtree(options.folder, ignore_errors=True)
    options.folder.mkdir(parents=True)
    passages = standard_library()[: options.passages]
    corpus = [options.folder / f"part-{number}.jsonl" for number in range(FILES)]
    for number, path in enumerate(corpus):
        path.write_text("".join(json.dumps(passage) + "\n" for passage in passages[number::FILES]))

    build_seconds = {}
    for cores in (1, 2):
        ray.init("local", num_cpus=cores, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        build_shards(options.folder / "first.sec", passages[:40], shards=SHARDS, overwrite=True)  # workers start
        folder = options.folder / f"{cores}.sec"
        build_seconds[cores] = seconds(lambda folder=folder: build_shards(folder, corpus, shards=SHARDS))  # type: ignore[misc]
        ray.shutdown()
    one_index = seconds(lambda: Index.build(options.folder / "one.sec", passages))
    reading = seconds(lambda: [list(read_source(Source.of(path), SHARDS, False)) for path in corpus])
    print(f"{len(passages):,} passages in {SHARDS} shards")
    print(f"one core takes {build_seconds[1] / build_seconds[2]:.2f} times as long as two")
    print(f"two cores take {build_seconds[2] / one_index:.2f} times as long as one index on all cores of this machine")
    print(f"one core takes {build_seconds[1] / reading:,.0f} times as long as reading alone")


if __name__ == "__main__":
    main()

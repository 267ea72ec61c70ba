"""LanceDB: a table with a multivector column and an IVF_PQ index over it.

A search looks up every query embedding in its `nprobes` nearest partitions and scores documents by what it finds, as
XTR does (Lee et al., 2023). `limit` asks for more than the k documents that are kept here, which makes every look-up as
many times deeper; with `refine_factor`, so many times `limit` documents are scored again by exact MaxSim.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import common
import numpy as np

PACKAGE = "lancedb"
DEFAULT: dict[str, Any] = {}
SWEEP: list[dict[str, Any]] = [
    {"nprobes": 5, "refine_factor": 5},
    {"nprobes": 5, "refine_factor": 10},
    {"nprobes": 5, "limit": 50, "refine_factor": 2},
    {"nprobes": 20, "limit": 50, "refine_factor": 2},
    {"nprobes": 20, "limit": 100, "refine_factor": 1},
    {"nprobes": 20, "limit": 100, "refine_factor": 2},
    {"nprobes": 50, "limit": 100, "refine_factor": 4},
    {"nprobes": 50, "limit": 200, "refine_factor": 5},
]
BATCH = 1024  # documents


def prepare(data: common.Data) -> common.Data:
    import lancedb.index  # noqa: F401 - so that the import is not timed

    return data


def batches(data: common.Data) -> Iterator[Any]:
    """float32, because Lance trains and searches float16 several times slower and no better."""
    import pyarrow

    dim = data.embeddings.shape[1]
    for first in range(0, len(data.starts), BATCH):
        starts, ends = data.starts[first : first + BATCH], data.ends[first : first + BATCH]
        rows = data.embeddings[starts[0] : ends[-1]].astype(np.float32)
        vectors = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(rows.reshape(-1)), dim)
        bounds = np.append(starts, ends[-1]) - starts[0]
        documents = pyarrow.ListArray.from_arrays(pyarrow.array(bounds, pyarrow.int32()), vectors)
        places = pyarrow.array(np.arange(first, first + len(starts)), pyarrow.int32())
        yield pyarrow.RecordBatch.from_arrays([places, documents], ["place", "vector"])


def build(data: common.Data, index: Path, **options: Any) -> None:
    import lancedb
    import pyarrow
    from lancedb.index import IvfPq

    # The library would choose the number of partitions from the number of documents, and so make them far too few.
    options = {"num_partitions": round(len(data.embeddings) ** 0.5), **options}
    vector = pyarrow.list_(pyarrow.list_(pyarrow.float32(), data.embeddings.shape[1]))
    schema = pyarrow.schema([("place", pyarrow.int32()), ("vector", vector)])
    table = lancedb.connect(index).create_table("documents", batches(data), schema=schema)
    table.create_index("vector", config=IvfPq(distance_type="cosine", **options))


def load(index: Path) -> Any:
    """By the asynchronous interface, because the other one hands every search to a thread of its own and waits."""
    import lancedb

    async def opened() -> Any:
        table = await (await lancedb.connect_async(index)).open_table("documents")
        for one in await table.list_indices():
            await table.prewarm_index(one.name)
        return table

    loop = asyncio.new_event_loop()
    return loop, loop.run_until_complete(opened())


def as_query(rows: np.ndarray) -> np.ndarray:
    return rows


def search(loaded: Any, query: np.ndarray, k: int, limit: int | None = None, **setting: Any) -> Any:
    loop, table = loaded
    asked = table.query().nearest_to(query).limit(limit or k).select(["place", "_distance"])
    for name, value in setting.items():
        asked = getattr(asked, name)(value)
    return k, loop.run_until_complete(asked.to_arrow())


def positions(result: Any) -> list[int]:
    k, table = result
    return table["place"].to_pylist()[:k]


if __name__ == "__main__":
    common.main(sys.modules[__name__])

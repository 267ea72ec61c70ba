"""A collection in shards: a folder of ordinary indexes, and a file that lists them.

    big.sec/
      shards.json     which shards there are, and where; written last, so that a folder without it is not a collection
      shard-0000/     an index, as storage/manifest.py describes it
      shard-0001/

A hash of its docno decides which shard a document belongs to, so that a write involves no other shard. The folder has
the same path on every machine: on a file system that all of them see, or on their own disks. In that case shards.json
records which machine has which shard.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from ..errors import DamagedIndexError, SecateursError, UsageError
from ..hashing import hash_of
from ..storage.files import write_atomically
from ..storage.manifest import SHARDS

FORMAT = "secateurs-shards"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class ShardRecord:
    name: str
    node: str | None = None  # the name of the Ray node that has it on its disk; None: every machine sees it


@dataclass(frozen=True)
class Layout:
    shards: tuple[ShardRecord, ...]
    written_by: str
    format: str = FORMAT
    format_version: int = FORMAT_VERSION

    def packed(self) -> bytes:
        """The content of its file."""
        return json.dumps(asdict(self), indent=2, ensure_ascii=False).encode()

    def write(self, folder: Path) -> None:
        write_atomically(folder / SHARDS, self.packed())

    @classmethod
    def read(cls, folder: Path) -> Layout:
        path = folder / SHARDS
        if not path.is_file():
            raise SecateursError(
                f"{folder} is not a collection in shards: it has no {SHARDS}. "
                f"Make one with  secateurs shard build CORPUS {folder}"
            )
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != FORMAT:
                raise ValueError(f"format is {content['format']!r}")
            if int(content["format_version"]) > FORMAT_VERSION:
                raise SecateursError(
                    f"{folder} has shards format {content['format_version']}; this secateurs reads up to "
                    f"{FORMAT_VERSION}: pip install --upgrade secateurs"
                )
            shards = tuple(ShardRecord(**shard) for shard in content["shards"])
            if not shards:
                raise ValueError("no shards")
            return cls(**content | {"shards": shards})
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DamagedIndexError(f"{path} cannot be read ({error}): restore it from a copy") from error


def is_sharded(folder: Path) -> bool:
    return (folder / SHARDS).is_file()


def shard_names(count: int) -> list[str]:
    if count < 1:
        raise UsageError(f"there must be at least one shard, not {count}")
    return [f"shard-{number:04}" for number in range(count)]


def shard_of(docno: str, shards: int) -> int:
    return hash_of(docno) % shards

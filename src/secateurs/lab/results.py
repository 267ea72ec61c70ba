"""The results of an experiment: one tidy table, a row for every setting and query, and what made it.

OUT.parquet has the table and, in its metadata, everything about the experiment. OUT.csv has the same table,
OUT.settings.csv one row per setting (summary.py), OUT.json what made them. `Results.load` reads only the Parquet file:
figures, report and significance are computed from it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError, UsageError, require
from ..storage.files import write_atomically
from .sweeps import parse_settings, plain_word

_METADATA = b"secateurs.lab"
_FORMAT = 1
_SUFFIXES = (".parquet", ".csv", ".settings.csv", ".json")
_NESTED = ("kept", "relevant_ranks")  # lists and mappings: JSON in the files


@dataclass(frozen=True)
class Results:
    rows: Sequence[Mapping[str, Any]]
    measures: Sequence[str]
    about: Mapping[str, Any]  # the experiment: see provenance.py

    @cached_property
    def settings(self) -> dict[str, Mapping[str, Any]]:
        """label -> the first of its rows, where the columns that describe a setting can be read."""
        first: dict[str, Mapping[str, Any]] = {}
        for row in self.rows:
            first.setdefault(row["setting"], row)
        return first

    @cached_property
    def setting_columns(self) -> list[str]:
        """The columns between `setting` and `qid`: what the settings are."""
        names = list(self.columns)
        return names[names.index("setting") + 1 : names.index("qid")]

    @cached_property
    def columns(self) -> dict[str, None]:
        """All columns, in order: rows of different systems have different settings."""
        describing: dict[str, None] = {}
        rest: dict[str, None] = {}
        for names in dict.fromkeys(tuple(row) for row in self.rows):
            describing.update(dict.fromkeys(names[: names.index("qid")]))
            rest.update(dict.fromkeys(names[names.index("qid") :]))
        for name in _NESTED:  # long values come last
            rest[name] = rest.pop(name)
        return {**describing, **rest}

    @cached_property
    def _by_setting(self) -> dict[str, list[Mapping[str, Any]]]:
        grouped: dict[str, list[Mapping[str, Any]]] = {}
        for row in self.rows:
            grouped.setdefault(row["setting"], []).append(row)
        return grouped

    def of(self, setting: str) -> list[Mapping[str, Any]]:
        """The rows of one setting, in the order of the queries."""
        return self._by_setting[setting]

    def values(self, setting: str, column: str) -> NDArray[np.float64]:
        """One number per query; NaN where there is none."""
        return np.array([np.nan if row.get(column) is None else row[column] for row in self.of(setting)], dtype=float)

    def find(self, text: str) -> str:
        """The label of a row by its name, its system ("quit"), or some of its settings: the first that has them all."""
        if text in self.settings:
            return text
        try:
            wanted = {name: plain_word(name, value) for name, value in parse_settings(text).items()}
        except UsageError:
            wanted = None
        for label, row in self.settings.items():
            if row["system"] == text and text != "secateurs":
                return label
            if wanted is not None and all(_has(row, name, value) for name, value in wanted.items()):
                return label
        raise UsageError(f"no setting is {text!r}: there are {', '.join(self.settings)}")

    @cached_property
    def fullest(self) -> str:
        """The setting that gathers with the most embeddings: the baseline, where no other is named."""

        def kept(label: str) -> float:
            values = self.values(label, "embeddings_kept")
            return -1.0 if np.isnan(values).all() else float(np.nanmean(values))

        return max(self.settings, key=kept)  # the first of equals

    def save(self, out: str | Path) -> None:
        """Write the table and what made it, each file whole or not at all; summary.py writes the settings' table."""
        Path(out).parent.mkdir(parents=True, exist_ok=True)
        about = {"format": _FORMAT, "measures": list(self.measures), **self.about}
        columns, rows = list(self.columns), [_flat(row) for row in self.rows]
        write_atomically(Path(f"{out}.csv"), lambda path: write_csv(path, columns, rows))
        write_atomically(Path(f"{out}.json"), json.dumps(about, indent=2).encode() + b"\n")
        packed = json.dumps(about, ensure_ascii=False).encode()
        write_atomically(Path(f"{out}.parquet"), lambda path: _write_parquet(path, columns, rows, packed))

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """What `save` wrote, by the name of any of its files."""
        parquet = Path(f"{stem(path)}.parquet")
        if not parquet.is_file() and Path(path).exists():
            raise SecateursError(
                f"{path} is no result of secateurs evaluate: give the .parquet file of  secateurs evaluate --out NAME"
            )
        if not parquet.is_file():
            raise SecateursError(f"there is no file {parquet}: secateurs evaluate --out {stem(path)} makes it")
        library = require("pyarrow.parquet", "lab")
        try:
            table = library.read_table(parquet)
            about = json.loads((table.schema.metadata or {})[_METADATA])
        except (OSError, KeyError, ValueError) as error:
            raise SecateursError(f"{parquet} is not a table of secateurs evaluate") from error
        if about.pop("format") > _FORMAT:
            raise SecateursError(f"{parquet} was written by a newer secateurs: pip install --upgrade secateurs")
        rows = table.to_pylist()
        for row in rows:
            for name in _NESTED:
                row[name] = json.loads(row[name])
        return cls(rows, about.pop("measures"), about)


def stem(path: str | Path) -> str:
    """The OUT of one of the files of a table of results."""
    name = str(path)
    suffix = next((suffix for suffix in sorted(_SUFFIXES, key=len, reverse=True) if name.endswith(suffix)), "")
    return name[: len(name) - len(suffix)]


def planned(rows: Iterable[tuple[str, str, Mapping[str, Any]]]) -> Results:
    """Results without measurements, from (label, system, settings) of each row: enough to `find` a row."""
    empty: dict[str, Any] = {"qid": None, "kept": [], "relevant_ranks": {}}
    return Results([{"setting": label, "system": name, **settings, **empty} for label, name, settings in rows], [], {})


def check_out(out: str | None, runs: Sequence[Path], overwrite: bool) -> None:
    """Raise if results or runs may not be written there, before any work is done."""
    paths = list(runs)
    if out is not None:
        require("pyarrow", "lab")
        paths += [Path(f"{out}{suffix}") for suffix in _SUFFIXES]
    for path in paths:
        if path.exists() and not overwrite:
            raise SecateursError(f"{path} is there already: choose another name, or allow it with --overwrite")
    for folder in {path.parent for path in paths}:
        folder.mkdir(parents=True, exist_ok=True)


def _has(row: Mapping[str, Any], name: str, value: str) -> bool:
    """Only rows of the index have search settings: a missing one in a run's row is not the default."""
    return row["system"] == "secateurs" and plain_word(name, row.get(name)) == value


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, **{name: json.dumps(row[name], ensure_ascii=False) for name in _NESTED}}


def write_csv(path: Path, columns: list[str], rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)


def _write_parquet(path: Path, columns: list[str], rows: Sequence[Mapping[str, Any]], about: bytes) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({name: _of_one_kind([row.get(name) for row in rows]) for name in columns})
    pyarrow.parquet.write_table(table.replace_schema_metadata({_METADATA: about}), path)


def _of_one_kind(values: list[Any]) -> list[Any]:
    """A column has one type: text, where systems give values of different types."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) < 2 or kinds == {int, float}:
        return values
    return [None if value is None else str(value) for value in values]

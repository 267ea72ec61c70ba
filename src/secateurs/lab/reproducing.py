"""A reproduction is a file: a collection, settings, and what is expected. `secateurs reproduce NAME` runs it.

They are in lab/reproductions/*.yaml and come with the package; a path to a file of your own works too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ..corpus import IR_DATASETS
from ..encoders import DEFAULT_MODEL
from ..errors import SecateursError, UsageError, require
from ..index.index import Index
from .drawing import figures, save_figures
from .expectations import Verdict, check_expectations, kind_of
from .experiment import evaluate
from .made import make
from .page import report
from .results import Results
from .sweeps import DEPTH, sweep
from .topics import Topics, read_topics


@dataclass(frozen=True)
class Reproduction:
    """What a file in lab/reproductions says."""

    name: str
    title: str
    about: str
    collection: Mapping[str, str]  # {made: NAME}, or {ir_datasets: ID}, which --collection FOLDER can stand in for
    gather: Sequence[str]  # what the index is prepared for
    measures: Sequence[str]
    sweep: Sequence[str]
    baseline: str
    expected: Sequence[Mapping[str, Any]]
    k: int = DEPTH
    relevant_grade: int = 1


@dataclass(frozen=True)
class Reproduced:
    results: Results
    verdicts: Sequence[Verdict]

    @property
    def agrees(self) -> bool:
        return all(verdict.agrees is not False for verdict in self.verdicts)


def reproductions() -> list[Reproduction]:
    """All that come with the package, by name."""
    folder = resources.files("secateurs.lab").joinpath("reproductions")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return [_parse(file.name.removesuffix(".yaml"), file.read_text("utf-8")) for file in files]


def find_reproduction(name: str) -> Reproduction:
    """By its name, or by the path of a file."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise SecateursError(f"there is no file {name}")
        return _parse(Path(name).stem, Path(name).read_text("utf-8"))
    known = {one.name: one for one in reproductions()}
    if name not in known:
        raise UsageError(f"there is no reproduction {name!r}: there are {', '.join(known)}")
    return known[name]


def reproduce(
    reproduction: Reproduction,
    folder: str | Path,
    collection: str | Path | None = None,
    index: str | Path | None = None,
    progress: bool | None = None,
    command: str | None = None,
) -> Reproduced:
    """Index the collection, run the experiment, compare. All that is made goes into `folder`; a second start goes on.

    `collection` is a folder with corpus.jsonl[.gz], queries*.tsv and qrels*; `index` one that is built already.
    """
    corpus, topics = _collection(reproduction, collection)
    opened = _index(reproduction, Path(folder), corpus, index, progress)
    results = evaluate(
        opened,
        topics,
        sweep(*reproduction.sweep, k=reproduction.k),
        measures=reproduction.measures,
        relevant_grade=reproduction.relevant_grade,
        baseline=reproduction.baseline,
        out=Path(folder) / "results",
        overwrite=True,
        progress=progress,
        about={"reproduction": reproduction.name, **({"command": command} if command else {})},
    )
    Path(folder, "report.html").write_text(report(results, reproduction.title), "utf-8")
    save_figures(figures(results), Path(folder) / "figures")
    return Reproduced(results, check_expectations(reproduction.expected, results))


def _collection(reproduction: Reproduction, folder: str | Path | None) -> tuple[Any, Topics]:
    """Documents (or what names them), and topics."""
    source = reproduction.collection
    if "made" in source:
        if folder is not None:
            raise UsageError(f"{reproduction.name} makes its own collection: leave --collection out")
        made = make(source["made"])
        return made, made.topics
    if folder is None:
        name = f"{IR_DATASETS}{source['ir_datasets']}"
        return name, read_topics(name, name)
    folder = Path(folder)
    if not folder.is_dir():
        raise SecateursError(f"there is no folder {folder}")
    corpora = [path for path in sorted(folder.glob("corpus.*")) if path.is_file()]
    queries = sorted(folder.glob("queries*.tsv"), key=lambda path: (len(path.name), path.name))
    if not corpora or not queries:
        raise SecateursError(f"{folder} is no collection: it needs corpus.jsonl (or .gz, .tsv, .csv) and queries.tsv")
    qrels = folder / queries[0].name.replace("queries", "qrels").removesuffix(".tsv")
    return corpora[0], read_topics(str(queries[0]), str(qrels))


def _index(
    reproduction: Reproduction, folder: Path, corpus: Any, given: str | Path | None, progress: bool | None
) -> Index:
    if given is not None:
        return Index(given)
    path = folder / "index.sec"
    if path.exists():
        return Index(path)
    documents = getattr(corpus, "documents", corpus)
    encoder = DEFAULT_MODEL if getattr(corpus, "needs_encoder", True) else None
    return Index.build(path, documents, encoder=encoder, gather=tuple(reproduction.gather), progress=progress)


def _parse(name: str, text: str) -> Reproduction:
    yaml = require("yaml", "lab")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SecateursError(f"{name}: not YAML ({' '.join(str(error).split())})") from error
    wanted = {field.name for field in fields(Reproduction)} - {"name"}
    optional = {"k", "relevant_grade"}
    if not isinstance(content, dict) or not wanted - optional <= set(content) <= wanted:
        raise SecateursError(f"{name}: a reproduction has {', '.join(sorted(wanted - optional))}, and may have "
                             f"{', '.join(sorted(optional))}")  # fmt: skip
    for expectation in content["expected"]:
        kind_of(expectation)
    if set(content["collection"]) not in ({"made"}, {"ir_datasets"}):
        raise SecateursError(f"{name}: a collection is {{made: NAME}} or {{ir_datasets: ID}}")
    return Reproduction(name=name, **content)

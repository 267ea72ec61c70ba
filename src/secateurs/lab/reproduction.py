"""A reproduction is a file: a collection, settings, and what is expected. `secateurs reproduce NAME` runs it.

The files in lab/reproductions/*.yaml come with the package; the path of another file works too.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any

from ..corpus import IR_DATASETS
from ..encoders import load_encoder, load_recorded
from ..errors import SecateursError, UsageError, require
from ..index import Index
from ..settings import GatherName
from .built_in_collections import built_in_collection
from .expectations import Verdict, check_expectations, kind_of, resolve
from .experiment import evaluate
from .figures import figures, save_figures
from .measures import Measures
from .report import report
from .results import Results, planned
from .sweeps import DEPTH, plain, sweep
from .topics import Topics, collection_files, read_topics


@dataclass(frozen=True)
class Reproduction:
    """What a file in lab/reproductions says."""

    name: str
    title: str
    about: str
    collection: Mapping[str, str]  # {made: NAME}, or {ir_datasets: ID}, which --collection FOLDER can stand in for
    gather: Sequence[GatherName]  # what the index is prepared for
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
        """No verdict disagrees, and at least one agrees: if all were skipped, nothing was shown."""
        found = {verdict.agrees for verdict in self.verdicts}
        return True in found and False not in found


def reproductions() -> list[Reproduction]:
    """All that come with the package, by name."""
    folder = resources.files("secateurs.lab").joinpath("reproductions")
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".yaml")), key=lambda file: file.name)
    return [_parse(file.name, file.read_bytes()) for file in files]


def find_reproduction(name: str) -> Reproduction:
    """By its name, or by the path of a file."""
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise SecateursError(f"there is no file {name}")
        return _parse(name, Path(name).read_bytes())
    known = {reproduction.name: reproduction for reproduction in reproductions()}
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
    """Index the collection, run the experiment, and compare the results with what is expected.

    Everything that is written goes into `folder`. A second call uses the index that is there, and goes on with the
    searches.

    `collection` is a folder with corpus.jsonl, queries*.tsv or .jsonl, and qrels* (or BEIR's qrels/test.tsv), each
    plain or .gz. `index` is an index of it that is built already.
    """
    settings = sweep(*reproduction.sweep, k=reproduction.k)
    rows = planned((label, "secateurs", plain(given)) for label, given in settings.items())
    rows.find(reproduction.baseline)
    resolve(reproduction.expected, rows, reproduction.measures)
    corpus, topics = _collection(reproduction, collection)
    Measures(reproduction.measures, topics.qrels)  # a wrong measure is an error before anything is indexed
    opened = _index(reproduction, Path(folder), corpus, index, progress)
    results = evaluate(
        opened,
        topics,
        settings,
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
            raise UsageError(f"{reproduction.name} has a built-in collection: leave --collection out")
        built_in = built_in_collection(source["made"])
        return built_in, built_in.topics
    if folder is None:
        name = f"{IR_DATASETS}{source['ir_datasets']}"
        return name, read_topics(name, name)
    corpus, queries, qrels = collection_files(Path(folder))
    return corpus, read_topics(str(queries), str(qrels))


def _index(
    reproduction: Reproduction, folder: Path, corpus: Any, given: str | Path | None, progress: bool | None
) -> Index:
    if given is not None:
        return _with_every_mask(Index(given))
    path, note = folder / "index.sec", folder / "index.source.json"
    source = {"gather": list(reproduction.gather), **_source(reproduction, corpus)}
    if path.exists():
        if not note.is_file() or note.read_text("utf-8") != json.dumps(source):
            raise SecateursError(f"{path} was made of another collection: choose another --folder, or remove it")
        return Index(path)
    folder.mkdir(parents=True, exist_ok=True)
    note.write_text(json.dumps(source), "utf-8")  # before the index, so that no index is without it
    documents = getattr(corpus, "documents", corpus)
    # The paper embeds every MASK of a query, and stores every embedding of a document.
    encoder = load_encoder(settings={"expansion": "all"}) if getattr(corpus, "needs_encoder", True) else None
    gather = tuple(reproduction.gather)
    return Index.build(path, documents, encoder=encoder, gather=gather, merge=None, progress=progress)


def _with_every_mask(index: Index) -> Index:
    """Queries as the paper encodes them, also if the index was built with the defaults, which change no document."""
    spec = index.encoder_spec
    if spec["kind"] == "onnx":
        index.use_encoder(load_recorded({**spec, "settings": {**spec.get("settings", {}), "expansion": "all"}}))
    return index


def _source(reproduction: Reproduction, corpus: Any) -> dict[str, str]:
    """What the documents are: a file by its contents, so that it may move."""
    if isinstance(corpus, Path):
        with corpus.open("rb") as file:
            return {"sha256": hashlib.file_digest(file, "sha256").hexdigest()}
    if "made" in reproduction.collection:
        return {"made": reproduction.collection["made"], "python": platform.python_version()}
    return dict(reproduction.collection)


def _parse(file: str, text: bytes) -> Reproduction:
    yaml = require("yaml", "lab")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SecateursError(f"{file}: not YAML ({' '.join(str(error).split())})") from error
    known = {field.name for field in fields(Reproduction)} - {"name"}
    optional = {"k", "relevant_grade"}
    if not isinstance(content, dict) or not known - optional <= set(content) <= known:
        raise SecateursError(f"{file}: a reproduction has {', '.join(sorted(known - optional))}, and may have "
                             f"{', '.join(sorted(optional))}")  # fmt: skip
    for field in ("title", "about", "baseline"):
        if not isinstance(content[field], str):
            raise SecateursError(f"{file}: {field} is a text, not {content[field]!r}")
    for field in ("gather", "measures", "sweep", "expected"):
        if not isinstance(content[field], list) or not (content[field] or field == "gather"):
            raise SecateursError(f"{file}: {field} is a list with something in it, not {content[field]!r}")
        if field != "expected" and not all(isinstance(value, str) for value in content[field]):
            raise SecateursError(f"{file}: {field} is a list of texts, not {content[field]!r}")
    for field in optional & set(content):
        if type(content[field]) is not int or content[field] < 1:
            raise SecateursError(f"{file}: {field} is a whole number of at least 1, not {content[field]!r}")
    for expectation in content["expected"]:
        try:
            kind_of(expectation)
        except SecateursError as error:
            raise SecateursError(f"{file}: {error}") from error
    collection = content["collection"]
    if not isinstance(collection, dict) or list(collection) not in (["made"], ["ir_datasets"]):
        raise SecateursError(f"{file}: a collection is {{made: NAME}} or {{ir_datasets: ID}}")
    if not isinstance(next(iter(collection.values())), str):
        raise SecateursError(f"{file}: a collection has a name, not {collection}")
    return Reproduction(name=Path(file).stem, **content)

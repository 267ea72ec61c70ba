"""The experiment: every query under every setting, a query at a time.

Queries are encoded once. Before anything is timed, every system searches two queries, so that kernels are loaded and
pages are read. Then each query is searched with all systems before the next query, in an order that is shuffled for
each query: other load on the machine affects all systems alike. No two searches run at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..errors import UsageError
from ..index import Index
from ..progress import progress_bar
from ..settings import SearchSettings
from ..version import __version__
from .measures import Hits, Measures, ranked
from .provenance import provenance
from .results import Results, check_out, planned, stem
from .runs import run_files, write_run
from .significance import check_correction
from .summary import save_summary
from .sweeps import named, sweep
from .systems import (
    UNCOUNTED_STAGES,
    IndexSystem,
    Outcome,
    Query,
    RunSystem,
    System,
)
from .topics import Topics
from .work_file import WorkFile, as_json

DEFAULT_MEASURES = ("nDCG@10", "AP", "RR@10")
_WARM_UP = 2  # queries
_DEEPEST_RANK_KEPT = 1000  # of relevant documents, for the report


def evaluate(
    index: Index,
    topics: Topics,
    settings: Mapping[str, SearchSettings] | Sequence[SearchSettings] | None = None,
    *,
    measures: Sequence[str] = DEFAULT_MEASURES,
    relevant_grade: int = 1,
    systems: Sequence[System] = (),
    runs: Mapping[str, Mapping[str, Hits]] | None = None,
    baseline: str | None = None,
    correction: str = "bonferroni",
    out: str | Path | None = None,
    runs_folder: str | Path | None = None,
    overwrite: bool = False,
    progress: bool | None = None,
    about: Mapping[str, Any] | None = None,
) -> Results:
    """Search every query with every setting, and measure what is found and what it takes.

    settings        of the index, by name; `sweep` makes them. A list is named by what is not the default in it.
                    Without any, the default with k = 1000
    measures        names of ir-measures
    relevant_grade  the lowest grade that `relevant_scored` counts; a measure names its own, as in AP(rel=2)
    systems         further rows: lab.baselines, or anything with the methods of lab.System
    runs            further rows: label -> qid -> (docno, score)
    baseline        the row that the others are compared with: its label, or settings of it such as "p=all"
    correction      of the significance for many comparisons: bonferroni, holm or none
    out             where the tables go: OUT.parquet, OUT.csv, OUT.settings.csv and OUT.json. While it runs,
                    OUT.work.jsonl keeps what is measured, and the same call goes on from there
    runs_folder     where to write a TREC run for every row
    about           anything more to note with the results
    """
    if relevant_grade < 1:
        raise UsageError(f"relevant_grade is at least 1, not {relevant_grade}")
    rows = _systems(index, named(sweep() if settings is None else settings), systems, runs or {})
    lacking = {row.label: count for row in rows if isinstance(row, RunSystem) and (count := row.lacks(topics.queries))}
    measured = Measures(measures, topics.qrels)
    chosen = {"baseline": _baseline(rows, baseline), "correction": correction, "lacking": lacking}
    check_correction(correction)
    out = None if out is None else stem(out)
    work_file = work_file_of(out or "")
    run_paths = run_files(Path(runs_folder), [row.label for row in rows]) if runs_folder is not None else []
    if out is None or not work_file.exists():  # work that was begun may be finished
        check_out(out, run_paths, overwrite)
    experiment = {
        "secateurs": __version__,
        "index": asdict(index.manifest),
        "queries_and_qrels": topics.fingerprint(),
        "measures": measured.names,
        "relevant_grade": relevant_grade,
        "settings": {row.label: _settings(row) for row in rows},
        "runs_folder": runs_folder is not None,
    }
    with nullcontext() if out is None else WorkFile(work_file, experiment) as work:
        records = _measure(index, topics, rows, measured, relevant_grade, runs_folder is not None, work, progress)
        for path, row in zip(run_paths, rows, strict=bool(run_paths)):
            write_run(path, ((record["qid"], record["hits"]) for record in records[row.label]))
        results = Results(
            [_flat(record, row) for row in rows for record in records[row.label]],
            measured.names,
            {**provenance(index, topics, measured.names, relevant_grade), **chosen, **(about or {})},
        )
        if out is not None:
            save_summary(results, out)
            results.save(out)
    if out is not None:
        work_file.unlink(missing_ok=True)
    return results


def work_file_of(out: str | Path) -> Path:
    """The file that keeps what is measured while an experiment with this `out` runs."""
    return Path(f"{stem(out)}.work.jsonl")


def _systems(
    index: Index,
    settings: Mapping[str, SearchSettings],
    systems: Sequence[System],
    runs: Mapping[str, Mapping[str, Hits]],
) -> list[System]:
    rows: list[System] = [IndexSystem(index, given, label) for label, given in settings.items()]
    rows += systems
    rows += [RunSystem(label, run) for label, run in runs.items()]
    if not rows:
        raise UsageError("there is nothing to evaluate: give settings, systems or runs")
    given = [row.label for row in rows]
    for label in given:
        if given.count(label) > 1:
            raise UsageError(f"two rows are called {label!r}")
    return rows


def _baseline(rows: Sequence[System], name: str | None) -> str | None:
    """The label that the name means; a wrong name is an error before anything is searched."""
    if name is None:
        return None
    return planned((row.label, row.name, row.settings) for row in rows).find(name)


def _settings(row: System) -> dict[str, Any]:
    return {name: as_json(value) for name, value in row.settings.items()}


def _measure(
    index: Index,
    topics: Topics,
    rows: Sequence[System],
    measures: Measures,
    relevant_grade: int,
    keep_hits: bool,
    work: WorkFile | None,
    progress: bool | None,
) -> dict[str, list[dict[str, Any]]]:
    """label -> one record per query, in the order of the queries."""
    done = {} if work is None else dict(work.done)
    # Rankings from a file cost nothing, and the file may have changed since: they are always measured again.
    from_files = {row.label for row in rows if isinstance(row, RunSystem)}

    def is_measured(row: System, qid: str) -> bool:
        return row.label not in from_files and (row.label, qid) in done

    remaining_qids = [qid for qid in topics.queries if not all(is_measured(row, qid) for row in rows)]
    queries, encoding = _encode(index, topics, remaining_qids, progress)
    for query in queries[:_WARM_UP]:
        for row in rows:
            row.search(query, set())
    total = len(topics) * len(rows)
    with progress_bar("searching", total, "searches", progress) as advance:
        advance(total - len(remaining_qids) * len(rows))
        for number, query in enumerate(queries):
            relevant = topics.relevant(query.qid, relevant_grade)
            for place in np.random.default_rng(number).permutation(len(rows)):
                row = rows[place]
                if not is_measured(row, query.qid):
                    outcome = row.search(query, relevant)
                    outcome = replace(outcome, hits=ranked(outcome.hits))
                    values = measures.of(query.qid, outcome.hits)
                    record = _record(row.label, query, encoding[query.qid], outcome, values, relevant, keep_hits)
                    done[row.label, query.qid] = record
                    if work is not None and row.label not in from_files:
                        work.add(record)
                advance(1)
    return {row.label: [done[row.label, qid] for qid in topics.queries] for row in rows}


def _encode(
    index: Index, topics: Topics, qids: Iterable[str], progress: bool | None
) -> tuple[list[Query], dict[str, float]]:
    """The queries, each encoded once, and the milliseconds it took."""
    queries, spent = [], {}
    qids = list(qids)
    for qid in qids[:1]:  # untimed: the first query loads the model
        index.encode_query(topics.encoded.get(qid, topics.queries[qid]))
    with progress_bar("encoding queries", len(qids), "queries", progress) as advance:
        for qid in qids:
            started = perf_counter()
            encoded = index.encode_query(topics.encoded.get(qid, topics.queries[qid]))
            spent[qid] = (perf_counter() - started) * 1000
            queries.append(Query(qid, topics.queries[qid], encoded))
            advance(1)
    return queries, spent


def _record(
    label: str,
    query: Query,
    encoding: float,
    outcome: Outcome,
    values: Mapping[str, float],
    relevant: set[str],
    keep_hits: bool,
) -> dict[str, Any]:
    """What the work file keeps of one search."""
    first = enumerate(outcome.hits[:_DEEPEST_RANK_KEPT], start=1)
    ranks = {docno: rank for rank, (docno, _) in first if docno in relevant}
    record: dict[str, Any] = {
        "setting": label,
        "qid": query.qid,
        "query": query.text,
        "measures": dict(values),
        "query_embeddings": len(query.encoded),
        "embeddings_kept": _whole(outcome.embeddings_kept),
        "documents_gathered": _whole(outcome.gathered),
        "documents_scored": _whole(outcome.scored),
        "relevant": len(relevant),
        "relevant_scored": _whole(outcome.relevant_scored),
        "used": {name: as_json(value) for name, value in outcome.used.items()},
        "encode": encoding,
        "milliseconds": {stage: float(spent) for stage, spent in outcome.milliseconds.items()},
        "kept": [str(token) for token in outcome.kept],
        "relevant_ranks": ranks,
    }
    if keep_hits:
        record["hits"] = list(outcome.hits)
    return record


def _whole(count: int | None) -> int | None:
    return None if count is None else int(count)


def _flat(record: Mapping[str, Any], row: System) -> dict[str, Any]:
    """A record as a row of the tidy table."""
    counted = [spent for stage, spent in record["milliseconds"].items() if stage not in UNCOUNTED_STAGES]
    return {
        "setting": record["setting"],
        "system": row.name,
        **_settings(row),
        "qid": record["qid"],
        "query": record["query"],
        **record["measures"],
        **{
            name: record[name]
            for name in (
                "query_embeddings",
                "embeddings_kept",
                "documents_gathered",
                "documents_scored",
                "relevant",
                "relevant_scored",
            )
        },
        **{f"used_{name}": value for name, value in record["used"].items()},
        "milliseconds": sum(counted) if counted else None,
        "milliseconds_encode": record["encode"],
        **{f"milliseconds_{stage}": spent for stage, spent in record["milliseconds"].items()},
        "kept": record["kept"],
        "relevant_ranks": record["relevant_ranks"],
    }

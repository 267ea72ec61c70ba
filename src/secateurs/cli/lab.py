"""Commands that run and report experiments."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from .interruption import on_interrupt
from .options import IndexPath, whole_number

commands = typer.Typer()


@commands.command(
    epilog="Example:  secateurs evaluate demo.sec --queries q.tsv --qrels qrels "
    '-m "nDCG@10 AP RR@10" --sweep p=1:32 --sweep order=first,icf --out demo'
)
def evaluate(
    path: IndexPath,
    queries: Annotated[
        str,
        typer.Option(metavar="FILE", help="qid, tab, text on each line; or BEIR's queries.jsonl; or ir_datasets:ID."),
    ],
    qrels: Annotated[
        str, typer.Option(metavar="FILE", help="Judgements of TREC or BEIR (with its header line); or ir_datasets:ID.")
    ],
    measures: Annotated[
        str, typer.Option("-m", "--measures", metavar="NAMES", help="Any of ir-measures, such as AP(rel=2) or R@1000.")
    ] = "nDCG@10 AP RR@10",
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="A search setting and its values: p=1:32, p=1,2,4,all, order=first,icf. One value fixes it: "
            "gather=faiss. Every combination is a row.",
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="SETTINGS", help='One more row, such as "gather=exhaustive p=all".'),
    ] = None,
    compared_with: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME",
            help="One more row: bm25, bm25+maxsim[:N], quit[:N], mean, dense:bge-small or dense:MODEL.",
        ),
    ] = None,
    run: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="One more row: a TREC run.")] = None,
    k: Annotated[
        int,
        typer.Option("-k", "--k", parser=whole_number, metavar="N", help="Depth of the rankings; the paper's is 1000."),
    ] = 1000,
    relevant_grade: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="The lowest grade that the column relevant counts; measures do not follow it: AP(rel=2).",
        ),
    ] = 1,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help='The row to compare with, such as "p=all" or bm25. By default the row with the largest p.',
        ),
    ] = None,
    correction: Annotated[
        str, typer.Option(metavar="NAME", help="For many comparisons at once: bonferroni, holm or none.")
    ] = "bonferroni",
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="Only N of the queries, the same ones every time.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="NAME",
            help="Write NAME.parquet, .csv, .settings.csv and .json. If it is stopped, repeat the command to continue.",
        ),
    ] = None,
    runs: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a TREC run for every row.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", metavar="", help="Replace results and runs of that name.")
    ] = False,
) -> None:
    """Measure an index on judged queries under many settings: effectiveness, documents, time, significance."""
    from ..index import Index
    from ..lab import baseline_systems, read_run, read_topics
    from ..lab import evaluate as run_experiment
    from ..lab import sweep as combinations
    from ..lab.experiment import work_file_of
    from ..lab.measures import Measures
    from ..lab.results import stem
    from ..lab.significance import check_correction
    from ..lab.sweeps import add_rows
    from .lab_printing import print_summary

    # Wrong input is an error before a baseline encodes the collection.
    check_correction(correction)
    settings = add_rows(combinations(*(sweep or ()), k=k), also or (), k)
    stems = [file.stem for file in run or ()]
    rankings = {
        str(file) if stems.count(file.stem) > 1 else file.stem: {qid: hits[:k] for qid, hits in read_run(file).items()}
        for file in run or ()
    }
    topics = read_topics(queries, qrels)
    Measures(measures.split(), topics.qrels)
    opened = Index(path)
    work_file = None if out is None else work_file_of(out)

    def consequence() -> str:
        if work_file is None or not work_file.exists():
            return ""
        return f"{work_file} has what was measured: repeat the command to continue"

    with on_interrupt(consequence):
        results = run_experiment(
            opened,
            topics if sample is None else topics.sample(sample),
            settings,
            measures=measures.split(),
            relevant_grade=relevant_grade,
            systems=baseline_systems(opened, compared_with or (), k),
            runs=rankings,
            baseline=baseline,
            correction=correction,
            out=out,
            runs_folder=runs,
            overwrite=overwrite,
            about={"command": shlex.join(["secateurs", *sys.argv[1:]])},
        )
    print_summary(results)
    if out is not None:
        name = stem(out)
        typer.echo(f"\n{name}.parquet, {name}.csv, {name}.settings.csv, {name}.json")


@commands.command(epilog="Example:  secateurs report demo.parquet --out demo.html --figures figures")
def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="What secateurs evaluate --out wrote.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page. By default RESULTS with the ending .html.")
    ] = None,
    title: Annotated[str | None, typer.Option(metavar="TEXT", help="The page's heading.")] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the figures there too, as PNG and SVG.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Compare with this row, not with the one evaluate was given.")
    ] = None,
    correction: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="bonferroni, holm or none, not the one evaluate was given."),
    ] = None,
) -> None:
    """Write one HTML page from results: tables, figures, query by query, and how to make it again."""
    from ..lab import Results, save_figures
    from ..lab import figures as make_figures
    from ..lab import report as make_page
    from ..lab.results import stem

    loaded = Results.load(results)
    name = Path(stem(results)).name
    page = out or Path(f"{stem(results)}.html")
    page.write_text(make_page(loaded, title or name, baseline, correction), "utf-8")
    typer.echo(f"{page}")
    if figures is not None:
        for path in save_figures(make_figures(loaded, baseline, correction), figures, f"{name}-"):
            typer.echo(f"{path}")


@commands.command(epilog="Example:  secateurs reproduce synthetic")
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which one, or a .yaml file. Without it, all are listed.")
    ] = None,
    collection: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A folder with corpus, queries and qrels files, instead of ir_datasets."),
    ] = None,
    index: Annotated[Path | None, typer.Option(metavar="INDEX", help="An index of it that is built already.")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where the results go. By default NAME.lab."),
    ] = None,
) -> None:
    """Run an experiment of the paper and say whether the results agree. Exit code 1 if they do not."""
    from ..lab import find_reproduction, reproductions
    from ..lab import reproduce as run_reproduction
    from .lab_printing import print_reproductions, print_summary, print_verdicts

    if name is None:
        print_reproductions(reproductions())
        return
    reproduction = find_reproduction(name)
    target = folder or Path(f"{reproduction.name}.lab")
    command = shlex.join(["secateurs", *sys.argv[1:]])
    with on_interrupt(lambda: "repeat the command to continue"):
        reproduced = run_reproduction(reproduction, target, collection, index, command=command)
    print_summary(reproduced.results)
    print_verdicts(reproduced)
    typer.echo(f"{target / 'report.html'}")
    if not reproduced.agrees:
        raise typer.Exit(1)

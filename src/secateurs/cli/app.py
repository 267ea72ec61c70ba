"""The command line: parse, call the library, print."""

from __future__ import annotations

import io
import json
import shlex
import shutil
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ..encoders import DEFAULT_MODEL
from ..errors import SecateursError, UsageError, require
from ..queries import read_lines
from ..records import SearchSettings
from ..version import __version__
from .options import (
    AsJson,
    AsTrec,
    BuiltGatherers,
    Candidates,
    Corpus,
    Effort,
    EncoderKind,
    FrequenciesOf,
    GatherName,
    IndexPath,
    K,
    KPrime,
    Model,
    NProbe,
    OrderName,
    P,
    Partial,
    Queries,
    Query,
    RayForSearch,
    Replicas,
    SkipBad,
    StoreName,
    Where,
    built_as,
    number_or_word,
)
from .printing import (
    Skipped,
    print_demo_summary,
    print_explanation,
    print_info,
    print_rankings,
    print_side_by_side,
    queries_asked,
    size_of,
)
from .shards import app as shard

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Late-interaction search that gathers with the few query embeddings that matter and scores with all of them.",
    epilog="Start with:  secateurs demo",
)
app.add_typer(shard, name="shard")
_debug = False


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"secateurs {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole stack trace of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    global _debug
    _debug = debug


@app.command(epilog="Example:  secateurs index corpus.jsonl demo.sec")
def index(
    corpus: Corpus,
    path: IndexPath,
    model: Model = DEFAULT_MODEL,
    encoder: EncoderKind = "onnx",
    store: StoreName = "int8",
    gather: BuiltGatherers = None,
    skip_bad: SkipBad = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index of that name.")] = False,
) -> None:
    """Index documents: encode them, store the embeddings, prepare gathering."""
    from ..encoders import load_encoder
    from ..index import Index

    bad = Skipped()
    made = Index.build(
        path,
        corpus,
        encoder=load_encoder(model, encoder),
        **built_as(store, gather),
        overwrite=overwrite,
        on_bad=bad if skip_bad else None,
    )
    facts = made.info()
    typer.echo(f"{path}: {size_of(facts)}")
    if facts["cut_documents"]:
        typer.echo(f"longer than the encoder takes, and cut: {facts['cut_documents']:,}")
    bad.summarise()


@app.command(epilog="Example:  secateurs add demo.sec more.jsonl")
def add(path: IndexPath, corpus: Corpus, skip_bad: SkipBad = False) -> None:
    """Add documents to an index. A docno that is there already is an error, and then nothing is added."""
    _change(path, corpus, skip_bad, "add")


@app.command(epilog="Example:  secateurs update demo.sec changed.jsonl")
def update(path: IndexPath, corpus: Corpus, skip_bad: SkipBad = False) -> None:
    """Add documents to an index, each in place of the one that has its docno, if there is one."""
    _change(path, corpus, skip_bad, "update")


def _change(path: Path, corpus: str, skip_bad: bool, verb: str) -> None:
    from ..cluster.search.open_index import open_index

    bad = Skipped()
    opened = open_index(path)
    changes = getattr(opened, verb)(corpus, on_bad=bad if skip_bad else None)
    typer.echo(f"added {changes.added:,}, replaced {changes.replaced:,}: {path} has {size_of(opened.info())}")
    bad.summarise()


@app.command(epilog="Example:  secateurs delete demo.sec d17 d18")
def delete(
    path: IndexPath,
    docnos: Annotated[list[str] | None, typer.Argument(metavar="[DOCNO]...", help="The documents to delete.")] = None,
    file: Annotated[
        str | None, typer.Option("--from", metavar="FILE", help="Docnos, one on each line; - reads standard input.")
    ] = None,
) -> None:
    """Delete documents. Those that are not there are named, and the exit code is 1 then; the others are deleted."""
    from ..cluster.search.open_index import open_index

    wanted = [*(docnos or ()), *(line for line in read_lines(file) if line)] if file else list(docnos or ())
    if not wanted:
        raise UsageError("give docnos to delete, or --from FILE")
    opened = open_index(path)
    changes = opened.delete(wanted)
    typer.echo(f"deleted {changes.deleted:,}: {path} has {size_of(opened.info())}")
    for docno in changes.missing:
        typer.echo(f"not there: {docno.encode('utf-8', 'replace').decode()}", err=True)
    if changes.missing:
        raise typer.Exit(1)


@app.command(epilog="Example:  secateurs compact demo.sec")
def compact(path: IndexPath) -> None:
    """Rewrite an index as one segment without what was deleted. Changes do this by themselves when it is needed."""
    from ..cluster.search.open_index import open_index

    opened = open_index(path)
    opened.compact()
    typer.echo(f"{path}: {size_of(opened.info())}")


@app.command(epilog="Example:  secateurs check demo.sec")
def check(
    path: IndexPath,
    repair: Annotated[
        bool, typer.Option("--repair", help="Rebuild what is damaged, as far as it can be, and say what was lost.")
    ] = False,
) -> None:
    """Read every byte of an index, compare it with its checksum, and see whether all parts agree."""
    from ..cluster.layout import is_sharded
    from ..cluster.search.open_index import open_index
    from ..storage.repair import repair as mend

    if repair:
        if is_sharded(path):
            raise UsageError(f"--repair mends one index: give a shard, such as {path / 'shard-0000'}")
        for line in mend(path):
            typer.echo(line)
    open_index(path).check()
    typer.echo("every byte is as it was written, and all parts agree")


@app.command(epilog='Example:  secateurs search demo.sec "parse command line arguments" -k 5 -p 3')
def search(
    path: IndexPath,
    query: Query = None,
    queries: Queries = None,
    k: K = SearchSettings.k,
    p: P = "auto",
    order: OrderName = "icf",
    gather: GatherName = SearchSettings.gather,
    k_prime: KPrime = SearchSettings.k_prime,
    nprobe: NProbe = SearchSettings.nprobe,
    candidates: Candidates = SearchSettings.candidates,
    effort: Effort = SearchSettings.effort,
    where: Where = SearchSettings.where,
    frequencies: FrequenciesOf = SearchSettings.frequencies,
    partial: Partial = SearchSettings.partial,
    ray: RayForSearch = None,
    replicas: Replicas = 1,
    as_json: AsJson = False,
    trec: AsTrec = False,
) -> None:
    """Search an index, or all shards of a collection as one, with one query or with a file of queries."""
    from ..cluster.search.open_index import open_index

    asked = queries_asked(query, queries, as_json, trec)
    settings = SearchSettings.of(
        {
            "k": k,
            "p": number_or_word(p),
            "order": order,
            "gather": gather,
            "k_prime": k_prime,
            "nprobe": nprobe,
            "candidates": candidates,
            "effort": effort,
            "where": where,
            "frequencies": frequencies,
            "partial": partial,
        }
    )
    print_rankings(open_index(path, ray=ray, replicas=replicas), asked, settings, as_json, trec)


@app.command(epilog='Example:  secateurs explain demo.sec "parse command line arguments" argparse -p 3')
def explain(
    path: IndexPath,
    query: Annotated[str, typer.Argument(metavar="QUERY")],
    docno: Annotated[str, typer.Argument(metavar="DOCNO", help="The document to explain.")],
    k: Annotated[int, typer.Option("-k", "--k", metavar="N", help="Hits that the search wants.")] = SearchSettings.k,
    p: P = "auto",
    order: OrderName = "icf",
    gather: GatherName = SearchSettings.gather,
    k_prime: KPrime = SearchSettings.k_prime,
    nprobe: NProbe = SearchSettings.nprobe,
    candidates: Candidates = SearchSettings.candidates,
    effort: Effort = SearchSettings.effort,
    where: Where = SearchSettings.where,
    frequencies: FrequenciesOf = SearchSettings.frequencies,
    as_json: AsJson = False,
) -> None:
    """Show token by token why a document has its score, and which embeddings gathered it."""
    from ..cluster.search.open_index import open_index

    settings = SearchSettings.of(
        {
            "k": k,
            "p": number_or_word(p),
            "order": order,
            "gather": gather,
            "k_prime": k_prime,
            "nprobe": nprobe,
            "candidates": candidates,
            "effort": effort,
            "where": where,
            "frequencies": frequencies,
        }
    )
    explanation = open_index(path).explain(query, docno, **vars(settings))
    if as_json:
        typer.echo(json.dumps(asdict(explanation), ensure_ascii=False))
    else:
        print_explanation(explanation, order)


@app.command(epilog="Example:  secateurs info demo.sec --check")
def info(
    path: IndexPath,
    ray: RayForSearch = None,
    as_json: AsJson = False,
    check: Annotated[bool, typer.Option("--check", help="The same as  secateurs check  first.")] = False,
) -> None:
    """Say what an index is and holds; of a collection, each of its shards too."""
    from ..cluster.search.open_index import open_index

    opened = open_index(path, ray=ray)
    if check:
        opened.check()
    print_info(opened.info(), as_json)
    if check and not as_json:
        typer.echo("every byte is as it was written, and all parts agree")


shard.command(name="info", epilog="Example:  secateurs shard info big.sec")(info)
shard.command(
    name="search", epilog='Example:  secateurs shard search big.sec "do goldfish grow" -p 3 --ray auto --replicas 2'
)(search)


@app.command(epilog="Example:  secateurs demo")
def demo(
    path: Annotated[Path, typer.Argument(metavar="[INDEX]", help="Where the demo index goes.")] = Path("demo.sec"),
    p: Annotated[int, typer.Option("-p", "--p", metavar="N", help="What to compare unpruned search with.")] = 3,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Index again even if the index is there.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="Then open the explorer page on it.")] = False,
) -> None:
    """Index the standard library's documentation strings and ask a few questions, pruned and not."""
    from .. import demo as library
    from ..index import Index
    from ..storage.manifest import MANIFEST

    SearchSettings(p=p)
    if serve:
        _require_serve()  # said now, not after the work
    if rebuild or not (path / MANIFEST).is_file():
        documents = library.standard_library()
        typer.echo(f"Indexing {len(documents):,} documentation strings of this Python's standard library.")
        opened = Index.build(path, documents, overwrite=rebuild, progress=True)
    else:
        typer.echo(f"Using the index that is there already: {path}")
        opened = Index(path)
    facts = opened.info()
    typer.echo(f"{size_of(facts)}\n")
    pairs = []
    for question in library.QUESTIONS:
        for _ in range(2):  # the first time kernels compile, and what is read is checked: only the second is shown
            full, pruned = (opened.search(question, k=5, p=wanted) for wanted in (None, p))
        pairs.append((question, full, pruned))
        print_side_by_side(*pairs[-1], opened)
    print_demo_summary([(full, pruned) for _, full, pruned in pairs])
    command = "secateurs" if shutil.which("secateurs") else sys.argv[0]  # in a virtual environment that is not active
    typer.echo(f'\nNow try:  {command} search {path} "delete a whole directory tree" -p {p}')
    typer.echo(f'          {command} explain {path} "delete a whole directory tree" shutil.rmtree -p {p}')
    if serve:
        typer.echo("")
        _serve([path])
    else:
        typer.echo(f"See it:   {command} serve {path}     and open http://127.0.0.1:8000/ in a browser")


@app.command(name="serve", epilog="Example:  secateurs serve demo.sec --api-key-file keys.txt")
def serve_indexes(
    paths: Annotated[list[Path], typer.Argument(metavar="INDEX...", help="Index folders: demo.sec is served as demo.")],
    ray: RayForSearch = None,
    replicas: Replicas = 1,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Who can reach it: by default this machine only.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(metavar="N", help="0 takes any that is free.")] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys, one a line. Who has one may add, update and delete documents."),
    ] = None,
    require_key_for_reads: Annotated[
        bool, typer.Option("--require-key-for-reads", help="Nobody may search without a key either.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name to answer to, besides localhost and ADDRESS: that of a proxy."),
    ] = None,
    max_body: Annotated[int, typer.Option(metavar="BYTES", help="Largest request.")] = 4 << 20,
    max_k: Annotated[int, typer.Option(metavar="N", help="Most hits.")] = 1000,
    max_p: Annotated[
        int, typer.Option(metavar="N", help="Largest p, and most embeddings of a query that brings its own.")
    ] = 512,
    max_query: Annotated[int, typer.Option(metavar="CHARACTERS", help="Longest query.")] = 2000,
    max_gather_work: Annotated[
        int, typer.Option(metavar="N", help="Without a key: most query embeddings times cells that each looks into.")
    ] = 500_000,
    max_score_work: Annotated[
        int, typer.Option(metavar="N", help="Without a key: most documents to score times query embeddings.")
    ] = 4_000_000,
    max_batch: Annotated[int, typer.Option(metavar="N", help="Most documents in one write.")] = 100,
    threads: Annotated[int | None, typer.Option(metavar="N", help="Searches at once: by default one per core.")] = None,
    max_waiting: Annotated[int, typer.Option(metavar="N", help="Searches that wait; more are answered 429.")] = 64,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="For a search, with its wait, and for a body to arrive.")
    ] = 10.0,
) -> None:
    """Serve indexes over HTTP, with an explorer page that shows what pruning does.

    Without a key file the service only reads. It stops on Ctrl-C or SIGTERM, after finishing what runs.
    """
    from ..service.limits import Limits
    from ..threads import usable_cores

    limits = Limits(
        body_bytes=max_body,
        query_characters=max_query,
        k=max_k,
        p=max_p,
        gather_work=max_gather_work,
        score_work=max_score_work,
        batch=max_batch,
        threads=usable_cores() if threads is None else threads,
        waiting=max_waiting,
        seconds=timeout,
    )
    _serve(
        paths,
        host=host,
        port=port,
        api_key_file=api_key_file,
        require_key_for_reads=require_key_for_reads,
        allowed_hosts=allowed_host or (),
        limits=limits,
        ray=ray,
        replicas=replicas,
    )


def _require_serve() -> None:
    for module in ("fastapi", "uvicorn", "prometheus_client", "cachetools"):
        require(module, "serve")


def _serve(paths: list[Path], **options: Any) -> None:
    _require_serve()
    from ..service.server import serve

    serve(paths, **options)


@app.command(
    epilog="Example:  secateurs evaluate demo.sec --queries q.tsv --qrels qrels "
    '-m "nDCG@10 AP RR@10" --sweep p=1:32 --sweep order=first,icf --out demo'
)
def evaluate(
    path: IndexPath,
    queries: Annotated[str, typer.Option(metavar="FILE", help="qid, tab, text on each line; or ir_datasets:ID.")],
    qrels: Annotated[str, typer.Option(metavar="FILE", help="TREC judgements; or ir_datasets:ID.")],
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
            "--with", metavar="NAME", help="One more row: bm25, bm25+maxsim[:N], quit[:N], mean or dense:MODEL."
        ),
    ] = None,
    run: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="One more row: a TREC run.")] = None,
    k: Annotated[
        int, typer.Option("-k", "--k", metavar="N", help="Depth of the rankings; the paper's is 1000.")
    ] = 1000,
    relevant_grade: Annotated[
        int, typer.Option(metavar="N", help="The lowest grade that counts as relevant; measures name their own.")
    ] = 1,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="NAME", help='Compared with: "p=all", bm25, ... By default what keeps most embeddings.'),
    ] = None,
    correction: Annotated[
        str, typer.Option(metavar="NAME", help="For many comparisons at once: bonferroni, holm or none.")
    ] = "bonferroni",
    sample: Annotated[
        int | None, typer.Option(metavar="N", help="So many of the queries, the same ones every time.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="NAME",
            help="Write NAME.parquet, .csv, .settings.csv and .json. If stopped, the same command goes on.",
        ),
    ] = None,
    runs: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write a TREC run for every row.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace results and runs of that name.")] = False,
) -> None:
    """Measure an index on judged queries under many settings: effectiveness, documents, time, significance."""
    from ..index import Index
    from ..lab import baseline_systems, evaluate, parse_settings, read_run, read_topics
    from ..lab import sweep as combinations
    from ..lab.measures import Measures
    from ..lab.results import stem
    from ..lab.significance import check_correction
    from .lab_printing import print_summary

    check_correction(correction)
    settings = combinations(*(sweep or ()), k=k)
    settings += [SearchSettings(**{"k": k, **parse_settings(text)}) for text in also or ()]
    stems = [file.stem for file in run or ()]
    rankings = {
        str(file) if stems.count(file.stem) > 1 else file.stem: {qid: hits[:k] for qid, hits in read_run(file).items()}
        for file in run or ()
    }
    topics = read_topics(queries, qrels)
    Measures(measures.split(), topics.qrels)  # a wrong one should be told before a baseline encodes the collection
    opened = Index(path)
    results = evaluate(
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


@app.command(epilog="Example:  secateurs report demo.parquet --out demo.html --figures figures")
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
        str | None, typer.Option(metavar="NAME", help="Compare with another row than evaluate was told.")
    ] = None,
    correction: Annotated[
        str | None, typer.Option(metavar="NAME", help="bonferroni, holm or none, if another than evaluate was told.")
    ] = None,
) -> None:
    """Write one HTML page from results: tables, figures, query by query, and how to make it again."""
    from ..lab import Results, save_figures
    from ..lab import figures as draw
    from ..lab import report as to_page
    from ..lab.results import stem

    loaded = Results.load(results)
    name = Path(stem(results)).name
    page = out or Path(f"{stem(results)}.html")
    page.write_text(to_page(loaded, title or name, baseline, correction), "utf-8")
    typer.echo(f"{page}")
    if figures is not None:
        for path in save_figures(draw(loaded, baseline, correction), figures, f"{name}-"):
            typer.echo(f"{path}")


@app.command(epilog="Example:  secateurs reproduce synthetic")
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which one, or a .yaml file. Without it, all are listed.")
    ] = None,
    collection: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="corpus.jsonl.gz, queries.tsv and qrels, instead of ir_datasets."),
    ] = None,
    index: Annotated[Path | None, typer.Option(metavar="INDEX", help="An index of it that is built already.")] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where all that is made goes. By default NAME.lab.")
    ] = None,
) -> None:
    """Run an experiment of the paper and say whether the results agree. Exit code 1 if they do not."""
    from ..lab import find_reproduction, reproductions
    from ..lab import reproduce as run
    from .lab_printing import print_reproductions, print_summary, print_verdicts

    if name is None:
        print_reproductions(reproductions())
        return
    wanted = find_reproduction(name)
    target = folder or Path(f"{wanted.name}.lab")
    command = shlex.join(["secateurs", *sys.argv[1:]])
    done = run(wanted, target, collection, index, command=command)
    print_summary(done.results)
    print_verdicts(done)
    typer.echo(f"{target / 'report.html'}")
    if not done.agrees:
        raise typer.Exit(1)


def main() -> None:
    """Exit codes: 0 fine, 1 a problem with data, 2 wrong usage."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            stream.reconfigure(encoding="utf-8")  # a docno may be any UTF-8, whatever the system's own encoding
    try:
        app(standalone_mode=True)
    except SecateursError as error:
        _fail(error, 2 if isinstance(error, UsageError) else 1)
    except (OSError, MemoryError) as error:
        _fail(error, 1)


def _fail(error: BaseException, code: int) -> None:
    if _debug:
        traceback.print_exc()
    else:
        typer.echo(f"secateurs: {str(error) or type(error).__name__}", err=True)
    sys.exit(code)

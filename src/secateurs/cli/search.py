"""Commands that search an index and explain a hit."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import UsageError
from ..progress import progress_bar
from ..queries import read_queries
from ..rankings import Hit, Ranking
from ..settings import SearchSettings
from .options import (
    AsJson,
    AsTrec,
    BudgetMs,
    Candidates,
    EffortOption,
    Facets,
    Fields,
    FrequenciesOption,
    FuseOption,
    GatherOption,
    IndexPath,
    K,
    KPrime,
    MinRelevance,
    MinScore,
    NProbe,
    Offset,
    OrderOption,
    P,
    Partial,
    Queries,
    Query,
    RayForSearch,
    Replicas,
    WeightsOption,
    Where,
    fuse_name,
    names_of,
    number_or_word,
    weights_name,
)
from .printing import (
    print_explanation,
    print_explanation_as_json,
    print_ranking,
    print_ranking_as_json,
    print_ranking_as_trec,
    tokens_of,
)

if TYPE_CHECKING:
    from ..contract import AnyIndex
    from ..matches import Match

commands = typer.Typer()


@commands.command(epilog='Example:  secateurs search demo.sec "parse command line arguments" -k 5 -p 3')
def search(
    path: IndexPath,
    query: Query = None,
    queries: Queries = None,
    k: K = SearchSettings.k,
    p: P = "auto",
    order: OrderOption = "focus",
    gather: GatherOption = SearchSettings.gather,
    k_prime: KPrime = SearchSettings.k_prime,
    nprobe: NProbe = SearchSettings.nprobe,
    candidates: Candidates = SearchSettings.candidates,
    effort: EffortOption = SearchSettings.effort,
    budget_ms: BudgetMs = SearchSettings.budget_ms,
    where: Where = SearchSettings.where,
    frequencies: FrequenciesOption = SearchSettings.frequencies,
    weights: WeightsOption = "none",
    fuse: FuseOption = "none",
    min_score: MinScore = SearchSettings.min_score,
    min_relevance: MinRelevance = SearchSettings.min_relevance,
    partial: Partial = SearchSettings.partial,
    offset: Offset = SearchSettings.offset,
    facets: Facets = None,
    ray: RayForSearch = None,
    replicas: Replicas = 1,
    as_json: AsJson = False,
    fields: Fields = None,
    trec: AsTrec = False,
) -> None:
    """Search an index, or all shards of a collection as one, with one query or with a file of queries."""
    from ..cluster.search.open_index import open_index

    if (query is None) == (queries is None):
        raise UsageError("give either a QUERY or --queries FILE")
    if as_json and trec:
        raise UsageError("give --json or --trec, not both")
    if fields is not None and not as_json:
        raise UsageError("--fields chooses what --json prints: give --json too")
    if facets is not None and trec:
        raise UsageError("a TREC run has no facets: give --facets without --trec")
    settings = SearchSettings(
        k=k,
        p=number_or_word(p),
        order=order,
        gather=gather,
        k_prime=k_prime,
        nprobe=nprobe,
        candidates=candidates,
        effort=effort,
        budget_ms=budget_ms,
        where=where,
        frequencies=frequencies,
        weights=weights_name(weights),
        fuse=fuse_name(fuse),
        min_score=min_score,
        min_relevance=min_relevance,
        partial=partial,
        offset=offset,
        facets=tuple(names_of(facets) or ()),
    )
    # A single query has no qid in a table; in a TREC run and in JSON its qid is 1.
    given: list[tuple[str | None, str]] = [*read_queries(queries)] if queries is not None else [(None, query or "")]
    opened = open_index(path, ray=ray, replicas=replicas)
    rankings = opened.search_many([text for _, text in given], **vars(settings))
    with progress_bar("searching", len(given), "queries", None if len(given) > 1 else False) as advance:
        for number, ((qid, text), ranking) in enumerate(zip(given, rankings, strict=True)):
            if trec:
                print_ranking_as_trec(qid or "1", ranking)
            elif as_json:
                print_ranking_as_json(qid or "1", text, ranking, names_of(fields))
            else:
                kept = tokens_of(opened, ranking)
                # Queries that are searched at once wait for one loading: it is shown with the first.
                loading = ranking.stats.loading_milliseconds if number == 0 else 0.0
                marks = functools.partial(_marks, opened, ranking)
                print_ranking(qid, text, ranking, kept, loading, marks)
            advance(1)


def _marks(index: AnyIndex, ranking: Ranking, hit: Hit) -> list[Match] | None:
    from ..matches import find_matches

    return find_matches(index, ranking.query, index.frequencies, hit.docno, hit.text)


@commands.command(epilog='Example:  secateurs explain demo.sec "parse command line arguments" argparse -p 3')
def explain(
    path: IndexPath,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The query of the search.")],
    docno: Annotated[str, typer.Argument(metavar="DOCNO", help="The document to explain.")],
    k: K = SearchSettings.k,
    p: P = "auto",
    order: OrderOption = "focus",
    gather: GatherOption = SearchSettings.gather,
    k_prime: KPrime = SearchSettings.k_prime,
    nprobe: NProbe = SearchSettings.nprobe,
    candidates: Candidates = SearchSettings.candidates,
    effort: EffortOption = SearchSettings.effort,
    budget_ms: BudgetMs = SearchSettings.budget_ms,
    where: Where = SearchSettings.where,
    frequencies: FrequenciesOption = SearchSettings.frequencies,
    weights: WeightsOption = "none",
    fuse: FuseOption = "none",
    as_json: AsJson = False,
) -> None:
    """Show token by token why a document has its score, and which embeddings gathered it."""
    from ..cluster.search.open_index import open_index

    settings = SearchSettings(
        k=k,
        p=number_or_word(p),
        order=order,
        gather=gather,
        k_prime=k_prime,
        nprobe=nprobe,
        candidates=candidates,
        effort=effort,
        budget_ms=budget_ms,
        where=where,
        frequencies=frequencies,
        weights=weights_name(weights),
        fuse=fuse_name(fuse),
    )
    explanation = open_index(path).explain(query, docno, **vars(settings))
    if as_json:
        print_explanation_as_json(explanation)
    else:
        print_explanation(explanation, order)

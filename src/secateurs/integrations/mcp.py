"""MCP: indexes as tools for agents, over stdio or HTTP. The tools only read, within the limits of the service.

An agent pays for every character that it reads, so that a hit has an excerpt of its text, and `get` the whole text.
"""

# Annotations are objects here, not strings: the limits are known only inside `agent_server`.
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from ..contract import AnyIndex
from ..errors import SecateursError, ShardsMissingError, UsageError, require
from ..settings import EffortName, FuseName, SearchSettings
from ..version import __version__
from .details import check_index
from .excerpts import excerpt_start

for _module in ("mcp", "fastapi", "uvicorn", "prometheus_client", "cachetools"):
    require(_module, "mcp")

from mcp.server.mcpserver import MCPServer  # noqa: E402
from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402
from mcp.server.transport_security import TransportSecuritySettings  # noqa: E402
from mcp.types import ToolAnnotations  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

from ..service.answers import SearchAnswer  # noqa: E402
from ..service.limits import Limits  # noqa: E402
from ..service.metrics import Metrics  # noqa: E402
from ..service.parsing import check_hits  # noqa: E402
from ..service.problems import Problem  # noqa: E402
from ..service.request_work import Allowance, TooMuchWork  # noqa: E402
from ..service.served_index import ServedIndex  # noqa: E402
from ..service.server import address_to_open, host_names, is_loopback, listen, open_indexes, run_until_stopped  # noqa: E402
from ..service.workers import Workers  # noqa: E402

_T = TypeVar("_T")
_FEW = 5  # hits, if the agent does not say how many
_MOST = 100  # unless other limits are given
_EXCERPT = 1_000  # characters of a hit, if the agent does not say how many
_HYBRID = ("gather", "fuse")  # arguments for indexes that are built for text
_LONGEST = 100_000  # characters in one answer of `get`, or of one hit


class FoundDocument(BaseModel):
    rank: int
    docno: str = Field(description="Its name, for the tools get and explain")
    score: float
    relevance: float = Field(description="From 0 to 1, to compare between queries")
    text: str = Field(description="An excerpt, where most of the query matched")
    start: int = Field(description="Where in the text the excerpt begins, in characters")
    length: int = Field(description="Of the whole text, in characters")
    metadata: dict[str, Any]


class Found(BaseModel):
    hits: list[FoundDocument] = Field(description="Best first")
    documents_in_index: int
    documents_matching: int = Field(description="Those that `where` lets through")


class WholeDocument(BaseModel):
    docno: str
    text: str
    start: int = Field(description="Where in the text this begins, in characters")
    next_start: int | None = Field(description="Where the rest begins; null if there is no more")
    metadata: dict[str, Any]


class ExplainedToken(BaseModel):
    token: str = Field(description="A wordpiece of the query")
    kind: str
    weight: float = Field(description="What it counts for in the score")
    similarity: float | None = Field(description="With its best match; null for a document without embeddings")
    match: str = Field(description="The wordpiece of the document that is its best match")
    kept: bool = Field(description="Whether it was used to find candidates")
    gathers: bool = Field(description="Whether it alone finds this document")


class Explained(BaseModel):
    docno: str
    score: float | None = Field(description="The sum of weight x similarity over the tokens")
    relevance: float
    rank: int | None = Field(description="Null if the document was not found")
    gathered: bool
    documents_scored: int
    tokens: list[ExplainedToken] = Field(description="Most important first")


def _leave_out(tool: Callable[..., Any], names: Sequence[str]) -> None:
    """Take arguments, which have defaults, from what agents are told of a tool. They pay for reading it."""
    told = inspect.signature(tool)
    kept = [parameter for name, parameter in told.parameters.items() if name not in names]
    tool.__signature__ = told.replace(parameters=kept)  # type: ignore[attr-defined]


@contextmanager
def agent_server(
    indexes: Mapping[str, AnyIndex], limits: Limits | None = None, about: str | None = None
) -> Iterator[MCPServer]:
    """A server of open indexes by name, until the end of the `with`. `about` tells agents what the documents are."""
    limits = limits or Limits(k=_MOST)
    metrics = Metrics()
    served = {name: ServedIndex(name, check_index(index), metrics) for name, index in indexes.items()}
    sizes = ", ".join(f"{name} ({len(index):,} documents)" for name, index in indexes.items())
    about = about or "Documents in a late-interaction (ColBERT) search index."
    query_text = Annotated[
        str,
        Field(
            max_length=limits.query_characters, description="What to look for: a question or words, in plain language"
        ),
    ]
    docno_text = Annotated[str, Field(description="The docno of a hit")]
    index_name = Annotated[
        str | None,
        Field(description=f"Which index: {', '.join(served)}. May be left out if there is one", examples=list(served)),
    ]
    condition = Annotated[
        str | None,
        Field(description="Only documents whose metadata fulfil this, for example: year >= 2020 and lang = 'en'"),
    ]
    effort_name = Annotated[EffortName, Field(description="exact compares every document; fast looks at fewer")]
    up_to_longest = Field(ge=1, le=_LONGEST, description="Longest text, in characters")
    allowed = Allowance(limits, only_small=False)  # an agent has no key
    readers = Workers("searches", limits.threads, limits.threads + limits.waiting, limits.seconds)

    async def search(
        query: query_text,
        k: Annotated[int, Field(ge=1, le=limits.k, description="Hits wanted")] = min(_FEW, limits.k),
        offset: Annotated[
            int, Field(ge=0, le=limits.k, description="Hits to leave out before them, for the next page")
        ] = SearchSettings.offset,
        where: condition = None,
        min_relevance: Annotated[
            float | None,
            Field(ge=0, le=1, description="Leave out hits with a lower relevance; 0.5 is a good first try"),
        ] = None,
        effort: effort_name = SearchSettings.effort,
        gather: Annotated[
            Literal["auto", "text", "cells+text"],
            Field(
                description="text: only documents with a word of the query, for codes and names; cells+text: both ways"
            ),
        ] = "auto",
        fuse: Annotated[
            FuseName | None,
            Field(description="rrf orders hits by the words of the query too, for a query with codes or rare names"),
        ] = None,
        characters: Annotated[int, up_to_longest] = _EXCERPT,
        index: index_name = None,
    ) -> Found:
        settings = {"k": k, "offset": offset, "where": where, "min_relevance": min_relevance, "effort": effort}
        settings |= {"gather": gather, "fuse": fuse}
        picked = _pick_searchable(served, index)

        def find() -> SearchAnswer:
            check_hits(limits, settings)
            return picked.search(query, settings, True, allowed)

        found = await _run(readers, find)
        hits = []
        for hit in found.hits:
            text = hit.text or ""
            start = excerpt_start(text, characters, hit.highlights)
            hits.append(
                FoundDocument(
                    rank=hit.rank,
                    docno=hit.docno,
                    score=hit.score,
                    relevance=hit.relevance,
                    text=text[start : start + characters],
                    start=start,
                    length=len(text),
                    metadata=hit.metadata,
                )
            )
        stats = found.stats
        return Found(
            hits=hits, documents_in_index=stats.documents_in_index, documents_matching=stats.documents_matching
        )

    async def get(
        docno: docno_text,
        start: Annotated[int, Field(ge=0, description="Where in the text to begin, in characters")] = 0,
        characters: Annotated[int, up_to_longest] = _LONGEST // 5,
        index: index_name = None,
    ) -> WholeDocument:
        document = await _run(readers, _pick(served, index).get, docno)
        end = start + characters
        return WholeDocument(
            docno=docno,
            text=document.text[start:end],
            start=start,
            next_start=end if end < len(document.text) else None,
            metadata=document.metadata,
        )

    async def explain(
        query: query_text,
        docno: docno_text,
        where: condition = None,
        effort: effort_name = SearchSettings.effort,
        index: index_name = None,
    ) -> Explained:
        settings = {"where": where, "effort": effort}
        answer = await _run(readers, _pick_searchable(served, index).explain, query, docno, settings, False, allowed)
        tokens = [
            ExplainedToken(**token.model_dump(include=set(ExplainedToken.model_fields))) for token in answer.tokens
        ]
        return Explained(**answer.model_dump(include=set(Explained.model_fields) - {"tokens"}), tokens=tokens)

    if not any("text" in index.gatherers for index in indexes.values()):
        _leave_out(search, _HYBRID)
    described = {
        search: f"Search by meaning and words. {about} Returns the best documents, each with an excerpt of its text. "
        f"Indexes: {sizes}.",
        get: "The whole text and the metadata of a document that search found, or a part of a long text.",
        explain: "Why a document has its score for a query: each wordpiece of the query with its best match in the "
        "document, whether it found the document, and the rank.",
    }
    server = MCPServer("secateurs", instructions=f"{about} Indexes: {sizes}.", version=__version__, log_level="WARNING")
    read_only = ToolAnnotations(
        read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    )
    for tool, description in described.items():
        server.add_tool(tool, description=description, annotations=read_only)
    with readers:
        yield server


def serve_agents(
    paths: Sequence[Path],
    http: bool = False,
    host: str = "127.0.0.1",
    port: int = 8000,
    allowed_hosts: Iterable[str] = (),
    limits: Limits | None = None,
    about: str | None = None,
    ray: str | None = None,
    replicas: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until standard input ends or, over HTTP, until SIGTERM or Ctrl-C. `say` must not write to standard output
    if that is where the answers go."""
    limits = limits or Limits(k=_MOST)
    listener = listen(host, port) if http else None  # before the indexes: a port in use is said at once
    try:
        indexes = open_indexes(paths, ray=ray, replicas=replicas, seconds=limits.seconds / 2)
        for name, index in indexes.items():
            say(f"{name}: {len(index):,} documents")
        with agent_server(indexes, limits, about) as server:
            if listener is None:
                server.run("stdio")
                return
            names = host_names(host, allowed_hosts)
            app = server.streamable_http_app(
                host=host,
                stateless_http=True,  # every call stands alone: nothing is kept for a client between two calls
                json_response=True,
                max_request_body_size=limits.body_bytes,
                transport_security=_only_from(names),
            )
            if not is_loopback(host):
                say(f"WARNING: {host} can be reached from other machines: EVERY client can read these indexes.")
            say(f"MCP:  http://{address_to_open(host)}:{listener.getsockname()[1]}/mcp     (Ctrl-C stops)")
            run_until_stopped(app, listener)
    finally:
        if listener is not None:
            listener.close()


def _only_from(names: frozenset[str] | None) -> TransportSecuritySettings:
    """Answer to these host names only, against DNS rebinding; None: to any."""
    if names is None:
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    hosts = sorted(names)
    return TransportSecuritySettings(
        allowed_hosts=[*hosts, *(f"{name}:*" for name in hosts)],
        allowed_origins=[
            f"{scheme}://{name}{port}" for name in hosts for scheme in ("http", "https") for port in ("", ":*")
        ],
    )


def _pick(served: Mapping[str, ServedIndex], name: str | None) -> ServedIndex:
    if name is None and len(served) == 1:
        return next(iter(served.values()))
    if name is None or name not in served:
        given = "say which index" if name is None else f"there is no index {name!r}"
        raise ToolError(f"{given}: there are {', '.join(served)}")
    return served[name]


def _pick_searchable(served: Mapping[str, ServedIndex], name: str | None) -> ServedIndex:
    picked = _pick(served, name)
    if not picked.index.has_encoder:
        raise ToolError(f"{picked.name} was built without an encoder: get gives its documents, but it has no search")
    return picked


async def _run(readers: Workers, work: Callable[..., _T], *arguments: Any) -> _T:
    """On a thread, within the time limit. What is refused is told to the agent, without the names of folders."""
    try:
        return await readers.run(work, *arguments)
    except TooMuchWork as problem:
        option = f"--max-{problem.limit.replace('_', '-')}"
        advice = f"Ask for less, or have the server started with a larger {option}"
        raise ToolError(f"{problem.setting}: too much work: {problem.reason}. {advice}") from problem
    except Problem as problem:
        raise ToolError(problem.detail) from problem
    except UsageError as error:
        raise ToolError(str(error)) from error
    except ShardsMissingError as error:
        raise ToolError("a shard of this index cannot be reached: try again later") from error
    except SecateursError as error:
        raise ToolError(f"the index cannot answer this ({type(error).__name__})") from error

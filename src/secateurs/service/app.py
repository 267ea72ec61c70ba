"""The routes. A route checks its request and has the library do the work on a thread, which writes the answer too."""

# Annotations are objects here, not strings: the request models exist only inside `create_app`.
import json
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic_core import PydanticSerializationError
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive

from ..contract import AnyIndex
from ..errors import DuplicateDocumentError, LockedIndexError, PartlyWrittenError, ShardsMissingError, UsageError
from ..version import __version__
from . import answers, metrics
from .admission import HAS_KEY, Admission
from .colbertv2 import ColBERTv2Answer
from .keys import ApiKeys
from .limits import Limits
from .openapi import KEY_NEEDED, answers_with, describe, takes
from .parsing import check_hits, parse, to_changes, to_documents, to_query, to_settings
from .problems import Problem, on_http_error, on_invalid_request, on_problem
from .request_work import SMALL_BODY, Allowance, LargeRequestError
from .requests import RequestModels
from .served_encoders import ServedEncoders
from .served_index import ServedIndex
from .workers import Workers

_MEDIA_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Access:
    """Which clients may do what. Without keys there are no writes."""

    keys: ApiKeys | None = None
    reads_need_a_key: bool = False
    hosts: frozenset[str] | None = None  # names the server answers to; None: any


def create_app(indexes: Mapping[str, AnyIndex], limits: Limits | None = None, access: Access | None = None) -> FastAPI:
    """An application that serves open indexes by name."""
    limits, access = limits or Limits(), access or Access()
    models, measured = RequestModels.within(limits), metrics.Metrics()
    served = {name: ServedIndex(name, index, measured) for name, index in indexes.items()}
    encoders = ServedEncoders(indexes)
    readers = Workers("searches", limits.threads, limits.threads + limits.waiting, limits.seconds)
    few = max(limits.threads // 2, 1)
    large_readers = Workers("large searches", few, few + limits.waiting, limits.seconds)
    writers = {name: Workers("writes", 1, limits.writes) for name in served}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ExitStack() as stack:
            for workers in (readers, large_readers, *writers.values()):
                stack.enter_context(workers)
            yield

    app = FastAPI(
        title="Secateurs",
        version=__version__,
        summary="Gather with the few query embeddings that matter, score with all of them.",
        docs_url=None,  # FastAPI's page of documentation comes from elsewhere; the description itself is here
        redoc_url=None,
        lifespan=lifespan,
        exception_handlers={
            Problem: on_problem,
            HTTPException: on_http_error,
            RequestValidationError: on_invalid_request,
        },
    )
    app.add_middleware(
        Admission,
        limits=limits,
        metrics=measured,
        most_small=limits.threads + few + 2 * limits.waiting + limits.writes * len(served),
        most_large=few + limits.waiting + limits.writes * len(served),
        keys=access.keys,
        reads_need_a_key=access.reads_need_a_key,
        hosts=access.hosts,
    )

    def find(name: str) -> ServedIndex:
        if name not in served:
            known = ", ".join(served)
            raise Problem(404, f"there is no index {name!r} here: there are {known}", [("name", "no such index")])
        return served[name]

    async def read(http: Request, work: Callable[..., BaseModel], *arguments: Any) -> Response:
        return await readers.run(_answer, work, *arguments, gone=partial(_gone, http.receive))

    async def read_within(http: Request, work: Callable[[Allowance], BaseModel], *, large: bool = False) -> Response:
        """A read whose work has limits: on the threads for small requests, unless it is large."""
        within = None if http.scope[HAS_KEY] else limits
        if not large:
            with suppress(LargeRequestError):
                return await read(http, work, Allowance(within, only_small=True))
        arguments = work, Allowance(within, only_small=False)
        return await large_readers.run(_answer, *arguments, gone=partial(_gone, http.receive))

    async def write(name: str, work: Callable[..., BaseModel], *arguments: Any) -> Response:
        return await writers[name].run(_answer, work, *arguments)

    @app.post(
        "/v1/indexes/{name}/search",
        **answers_with(answers.SearchAnswer | answers.SearchesAnswer, 400, 404, 408, 415, 422),
        openapi_extra=takes(models.search),
    )
    async def search(name: str, http: Request) -> Response:
        """The k best documents: gathered with the p most important query embeddings, scored with all of them.

        With `queries`, such a ranking for each of them.
        """
        index, body = find(name), await _json(http)

        def work(allowed: Allowance) -> BaseModel:
            request = parse(models.search, body)
            settings = to_settings(request)
            how = settings, request.details, allowed, request.fields
            check_hits(limits, settings, len(request.queries or [""]))
            return (
                index.search(to_query(request), *how)
                if request.queries is None
                else index.search_many(request.queries, *how)
            )

        return await read_within(http, work, large=len(body) > SMALL_BODY)

    @app.get("/v1/indexes/{name}/explain", **answers_with(answers.ExplainAnswer, 404, 422))
    async def explain(
        name: str,
        request: Annotated[models.explain, Query()],  # type: ignore[name-defined]
        http: Request,
    ) -> Response:
        """Token by token, why a document has its score, and which query embeddings gather it."""
        check_hits(limits, to_settings(request))
        arguments = request.query, request.docno, to_settings(request), request.map
        return await read_within(http, partial(find(name).explain, *arguments))

    @app.get("/v1/indexes/{name}/prune-curve", **answers_with(answers.CurveAnswer, 404, 422))
    async def prune_curve(
        name: str,
        request: Annotated[models.curve, Query()],  # type: ignore[name-defined]
        http: Request,
    ) -> Response:
        """For each p: documents gathered and scored, and how much of the unpruned ranking is found."""
        return await read_within(http, partial(find(name).curve, request.query, to_settings(request)), large=True)

    @app.get("/v1/indexes/{name}/colbertv2", **answers_with(ColBERTv2Answer, 404, 422))
    async def colbertv2(
        name: str,
        request: Annotated[models.colbertv2, Query()],  # type: ignore[name-defined]
        http: Request,
    ) -> Response:
        """A search in the words of ColBERTv2's server, for clients of that server such as `dspy.ColBERTv2`."""
        index = find(name)

        def work(allowed: Allowance) -> BaseModel:
            found = index.search(request.query, to_settings(request), False, allowed)
            return ColBERTv2Answer.of(request.query, found)

        return await read_within(http, work)

    @app.get("/v1/indexes/{name}/info", **answers_with(answers.InfoAnswer, 404, 422))
    async def info(name: str, http: Request) -> Response:
        """What the index is and holds."""
        return await read(http, find(name).info)

    @app.get("/v1/indexes/{name}/fields", **answers_with(answers.FieldsAnswer, 404, 422))
    async def fields(name: str, http: Request) -> Response:
        """The keys of the documents' metadata, which filters can name, and the types of their values."""
        index = find(name)
        return await read_within(http, lambda allowed: index.fields(), large=True)

    @app.get("/v1/indexes", **answers_with(answers.IndexesAnswer))
    async def list_indexes(http: Request) -> Response:
        """Every index that is served."""
        most = answers.LimitsAnswer(**{name: getattr(limits, name) for name in answers.LimitsAnswer.model_fields})
        writable = access.keys is not None

        def work() -> BaseModel:
            listed = []
            for index in served.values():
                with suppress(ShardsMissingError):  # of this index: the others are listed
                    listed.append(index.info())
            return answers.IndexesAnswer(indexes=listed, limits=most, writable=writable)

        return await read(http, work)

    @app.post(
        "/v1/rerank",
        **answers_with(answers.RerankAnswer, 400, 408, 415, 422),
        openapi_extra=takes(models.rerank),
    )
    async def rerank(http: Request) -> Response:
        """Texts that are in no index, in the order of their exact MaxSim scores."""
        body = await _json(http)
        work = partial(_with_body, encoders.rerank, models.rerank, body)
        return await read_within(http, work, large=len(body) > SMALL_BODY)

    @app.post(
        "/v1/encode",
        **answers_with(answers.EncodeAnswer, 400, 408, 415, 422),
        openapi_extra=takes(models.encode),
    )
    async def encode(http: Request) -> Response:
        """Embeddings, token ids, kinds and weights of texts, encoded as queries or as documents."""
        body = await _json(http)
        work = partial(_with_body, encoders.encode, models.encode, body)
        return await read_within(http, work, large=len(body) > SMALL_BODY)

    @app.post(
        "/v1/indexes/{name}/documents",
        **answers_with(answers.ChangesAnswer, 400, 403, 404, 408, 409, 415, 422),
        openapi_extra=KEY_NEEDED | takes(models.documents),
    )
    async def add(name: str, http: Request) -> Response:
        """Add documents. A docno that is there already is a conflict, and then nothing is added."""
        index, body = find(name), await _json(http)
        return await write(name, lambda: index.add(to_documents(parse(models.documents, body))))

    @app.put(
        "/v1/indexes/{name}/documents",
        **answers_with(answers.ChangesAnswer, 400, 403, 404, 408, 409, 415, 422),
        openapi_extra=KEY_NEEDED | takes(models.documents),
    )
    async def update(name: str, http: Request) -> Response:
        """Add documents, or replace those of the same docno."""
        index, body = find(name), await _json(http)
        return await write(name, lambda: index.update(to_documents(parse(models.documents, body))))

    @app.patch(
        "/v1/indexes/{name}/documents",
        **answers_with(answers.ChangesAnswer, 400, 403, 404, 408, 409, 415, 422),
        openapi_extra=KEY_NEEDED | takes(models.metadata),
    )
    async def update_metadata(name: str, http: Request) -> Response:
        """Change the metadata of documents, and nothing else of them. Docnos that are not there are missing."""
        index, body = find(name), await _json(http)
        return await write(name, lambda: index.update_metadata(to_changes(parse(models.metadata, body))))

    @app.delete(
        "/v1/indexes/{name}/documents",
        **answers_with(answers.ChangesAnswer, 403, 404, 409, 422),
        openapi_extra=KEY_NEEDED,
    )
    async def delete_where(name: str, request: Annotated[models.matching, Query()]) -> Response:  # type: ignore[name-defined]
        """Delete all documents whose metadata match the filter."""
        return await write(name, find(name).delete_where, request.where)

    @app.get("/v1/indexes/{name}/documents/{docno:path}", **answers_with(answers.DocumentAnswer, 404, 422))
    async def get(name: str, docno: str, http: Request) -> Response:
        """The stored document of that docno."""
        return await read(http, find(name).get, docno)

    @app.delete(
        "/v1/indexes/{name}/documents/{docno:path}",
        **answers_with(answers.ChangesAnswer, 403, 404, 409, 422),
        openapi_extra=KEY_NEEDED,
    )
    async def delete(name: str, docno: str) -> Response:
        """Delete the document of that docno."""
        return await write(name, find(name).delete, docno)

    @app.head("/healthz", include_in_schema=False)
    @app.get("/healthz", response_model=answers.HealthAnswer)
    async def healthz() -> answers.HealthAnswer:
        """That the server answers, and what it serves."""
        stale = [name for name, index in served.items() if index.stale]
        return answers.HealthAnswer(status="ok", indexes=list(served), stale=stale, version=__version__)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Counts and times, for Prometheus."""
        return Response(measured.text(), media_type=metrics.MEDIA_TYPE)

    _add_page(app)
    _match_whole_paths(app)
    described = (models.search, models.documents, models.metadata, models.rerank, models.encode)
    describe(app, described, access.reads_need_a_key)
    return app


async def _json(http: Request) -> bytes:
    """The body. A body of another type is refused: a form on a page of any site could send it."""
    if http.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "send JSON, with the header  Content-Type: application/json")
    return await http.body()


def _with_body(
    work: Callable[[Any, Allowance], BaseModel], model: type[BaseModel], body: bytes, allowed: Allowance
) -> BaseModel:
    return work(parse(model, body), allowed)


async def _gone(receive: Receive) -> None:
    """Return when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _answer(work: Callable[..., BaseModel], *arguments: Any) -> Response:
    """The result of the work as JSON. What the library refuses becomes a problem."""
    try:
        answer = work(*arguments)
        try:
            written = answer.model_dump_json()
        except PydanticSerializationError:  # metadata nested deeper than Pydantic writes
            written = json.dumps(answer.model_dump(), ensure_ascii=False)
        return Response(written, media_type="application/json")
    except UsageError as error:
        raise Problem.of_usage(error) from error
    except ShardsMissingError as error:
        detail = "a shard of this index cannot be reached: try again, or search the others with  partial"
        raise Problem(503, detail, headers={"Retry-After": "5"}) from error
    except PartlyWrittenError as error:
        raise _partly_written(error) from error
    except LockedIndexError as error:
        raise Problem(409, "another process is writing to this index", headers={"Retry-After": "5"}) from error


def _partly_written(error: PartlyWrittenError) -> Problem:
    """Without the library's message, which names folders of the server."""
    if isinstance(error.__cause__, DuplicateDocumentError):
        added, not_added = (", ".join(map(repr, docnos[:20])) for docnos in (error.written, error.not_written))
        return Problem(
            409,
            f"a docno is in the index already, so its shard added nothing, but others did. Added: {added}. Not added: "
            f"{not_added}. Send those that were not added again, without the docno that is there already",
        )
    detail = "a shard of this index could not be changed, but others were: send the same again, an addition by PUT"
    return Problem(503, detail, headers={"Retry-After": "5"})


def _match_whole_paths(app: FastAPI) -> None:
    """Starlette's patterns end in $, which also matches before a newline: the path of `a%0A` would be that of `a`."""
    for route in app.routes:
        if isinstance(route, Route):
            whole = route.path_regex.pattern.removesuffix("$") + r"\Z"
            route.path_regex = re.compile(whole, re.DOTALL)  # a newline may stand inside a docno too


def _add_page(app: FastAPI) -> None:
    """The explorer: a few files, read once. Nothing outside of their folder can be asked for."""
    pages = {
        file.name: (file.read_bytes(), 200, None, _MEDIA_TYPES[file.name[file.name.rindex(".") :]])
        for file in (files(__package__) / "web").iterdir()
        if file.is_file()
    }

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return Response(*pages["index.html"])

    @app.get("/web/{file}", include_in_schema=False)
    async def part(file: str) -> Response:
        if file not in pages:
            raise HTTPException(404)
        return Response(*pages[file])

"""The command that serves indexes over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import require
from .options import RayForSearch, Replicas

commands = typer.Typer()


@commands.command(name="serve", epilog="Example:  secateurs serve demo.sec --api-key-file keys.txt")
def serve_indexes(
    paths: Annotated[list[Path], typer.Argument(metavar="INDEX", help="Index folders: demo.sec is served as demo.")],
    ray: RayForSearch = None,
    replicas: Replicas = 1,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on: by default only this machine can reach it.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(metavar="N", help="0 takes any that is free.")] = 8000,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keys, one a line. With a key, documents can be added, updated and deleted."),
    ] = None,
    require_key_for_reads: Annotated[
        bool, typer.Option("--require-key-for-reads", metavar="", help="Searching needs a key too.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A host name to answer to, besides localhost and ADDRESS: that of a proxy."),
    ] = None,
    max_body: Annotated[int, typer.Option(metavar="BYTES", help="Largest request.")] = 4 << 20,
    max_k: Annotated[int, typer.Option(metavar="N", help="Most hits.")] = 1000,
    max_p: Annotated[
        int, typer.Option(metavar="N", help="Largest p, and most embeddings of a query sent as embeddings.")
    ] = 512,
    max_query: Annotated[int, typer.Option(metavar="CHARACTERS", help="Longest query.")] = 2000,
    max_gather_work: Annotated[
        int, typer.Option(metavar="N", help="Without a key: most query embeddings times cells that each probes.")
    ] = 500_000,
    max_score_work: Annotated[
        int, typer.Option(metavar="N", help="Without a key: most documents to score times query embeddings.")
    ] = 4_000_000,
    max_text: Annotated[int, typer.Option(metavar="CHARACTERS", help="Longest text to encode or to re-rank.")] = 20_000,
    max_encode_work: Annotated[
        int, typer.Option(metavar="N", help="Without a key: most characters of all texts, or queries, of a request.")
    ] = 50_000,
    max_batch: Annotated[int, typer.Option(metavar="N", help="Most documents, texts or queries in one request.")] = 100,
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
        text_characters=max_text,
        encode_work=max_encode_work,
        batch=max_batch,
        threads=usable_cores() if threads is None else threads,
        waiting=max_waiting,
        seconds=timeout,
    )
    run_service(
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


def require_service() -> None:
    for module in ("fastapi", "uvicorn", "prometheus_client", "cachetools"):
        require(module, "serve")


def run_service(paths: list[Path], **options: Any) -> None:
    require_service()
    from ..service.server import serve

    serve(paths, **options)

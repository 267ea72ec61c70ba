"""The command that gives agents tools to search indexes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import require
from .options import RayForSearch, Replicas

commands = typer.Typer()


@commands.command(name="mcp", epilog='Example:  secateurs mcp demo.sec --about "The documentation of Python"')
def serve_tools(
    paths: Annotated[list[Path], typer.Argument(metavar="INDEX", help="Index folders: demo.sec is served as demo.")],
    about: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="What the documents are, so that agents know when to search them."),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", metavar="", help="Serve over HTTP, instead of standard input and output.")
    ] = False,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="With --http: by default only this machine can reach it.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(metavar="N", help="With --http: 0 takes any that is free.")] = 8000,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="With --http: a host name to answer to, besides localhost and ADDRESS."),
    ] = None,
    max_k: Annotated[int, typer.Option(metavar="N", help="Most hits.")] = 100,
    max_query: Annotated[int, typer.Option(metavar="CHARACTERS", help="Longest query.")] = 2000,
    max_gather_work: Annotated[
        int, typer.Option(metavar="N", help="Most query embeddings times cells that each probes.")
    ] = 500_000,
    max_score_work: Annotated[
        int, typer.Option(metavar="N", help="Most documents to score times query embeddings.")
    ] = 4_000_000,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="For a call, with its wait.")] = 10.0,
    ray: RayForSearch = None,
    replicas: Replicas = 1,
) -> None:
    """Give agents tools to search indexes, by the Model Context Protocol: search, get and explain.

    The tools only read. Over standard input and output, the agent's program starts this command.
    """
    require("mcp", "mcp")
    from ..integrations.mcp import serve_agents
    from ..service.limits import Limits

    serve_agents(
        paths,
        http=http,
        host=host,
        port=port,
        allowed_hosts=allowed_host or (),
        limits=Limits(
            k=max_k,
            query_characters=max_query,
            gather_work=max_gather_work,
            score_work=max_score_work,
            seconds=timeout,
        ),
        about=about,
        ray=ray,
        replicas=replicas,
        say=lambda line: typer.echo(line, err=True),
    )

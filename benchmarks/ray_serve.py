"""HTTP in front of the actors: the service, beside a Ray Serve deployment that does less.

    pip install "ray[serve]"
    python benchmarks/ray_serve.py big.sec

Both hold the same collection on the same Ray, each with its own actors, and get the same queries, as embeddings, in
turn. The deployment parses the body, searches and answers with docnos and scores, without the checks,
limits and texts of the service. Times are multiples of a search without HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import threading
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import uvicorn
from ray import serve
from starlette.requests import Request

from secateurs import EncodedText, ShardedIndex
from secateurs.cluster.ray_connection import connect
from secateurs.service.app import create_app

PORTS = 8765, 8766
QUESTIONS = ("read a zip archive", "wait for a thread", "parse arguments", "send a message", "remove a folder")


@serve.deployment(max_ongoing_requests=64)
class Deployed:
    def __init__(self, path: str) -> None:
        self._index = ShardedIndex(path, ray="auto")

    async def __call__(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        query = EncodedText(body["embeddings"], body["token_ids"], body["token_kinds"])
        ranking = await asyncio.to_thread(self._index.search, query, k=body["k"])
        return {"hits": [{"docno": hit.docno, "score": hit.score} for hit in ranking]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", type=Path)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    connect("local")
    path = str(options.collection.resolve())
    index = ShardedIndex(path, ray="local")
    config = uvicorn.Config(create_app({"big": index}), port=PORTS[0], log_level="error", access_log=False)
    threading.Thread(target=uvicorn.Server(config).run, daemon=True).start()
    serve.start(http_options={"port": PORTS[1]}, logging_config={"enable_access_log": False})
    serve.run(Deployed.bind(path), route_prefix="/search")  # type: ignore[attr-defined]
    queries = [index.encode_query(question) for question in QUESTIONS]
    ways: dict[str, Callable[[EncodedText], object]] = {
        "a search, without HTTP": lambda query: index.search(query),
        "secateurs serve --ray": lambda query: post(PORTS[0], "/v1/indexes/big/search", query),
        "Ray Serve": lambda query: post(PORTS[1], "/search", query),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(options.rounds):
        for name, search in ways.items():
            started = perf_counter()
            search(queries[turn % len(queries)])
            if turn >= len(queries):  # the first of each are not counted
                times[name].append(perf_counter() - started)
    base = median(times["a search, without HTTP"])
    print(f"median of {options.rounds - len(queries)}; a search takes {base * 1000:.1f} ms\n\n| | time |\n|---|---|")
    for name, spent in times.items():
        print(f"| {name} | {median(spent) / base:.2f} |")


def post(port: int, path: str, query: EncodedText) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {
        "embeddings": query.embeddings.tolist(),
        "token_ids": query.token_ids.tolist(),
        "token_kinds": query.token_kinds.tolist(),
        "k": 10,
    }
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert response.status == 200, answer
    assert len(answer["hits"]) == 10
    return answer


if __name__ == "__main__":
    main()

"""A served index under load, on loopback: how long answers take as more clients ask at once.

    python benchmarks/service_load.py demo.sec
    python benchmarks/service_load.py demo.sec --expensive

starts `secateurs serve` on the index and asks it questions made of the documents' words. Each client waits for its
answer before it asks again. The clients share the cores with the server. Every row ends after --seconds.

The first table: 1 to 64 clients search. "New" queries are all different, so each is encoded; "known" ones repeat, so
their encodings are in the cache. Times are multiples of one client's median with known queries.

With --expensive: 16, 64 and 256 clients without a key send requests that are as much work as possible, and ask again at
once, whatever the answer. Beside them one client searches as usual, every half second. If it is answered 429 it asks
again after a second, as Retry-After says. Its times are from its first request to its answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from secateurs import Index

CLIENTS = (1, 4, 16, 64)
EXPENSIVE_CLIENTS = (16, 64, 256)
KNOWN = 100  # queries that repeat
LONGEST_QUERY = 2_000  # characters, the service's default limit
PAUSE = 0.5  # seconds between two searches of the usual client

# Of an index that has the metadata of the demo. In the first, nothing matches; in the second, nearly everything does.
EXPENSIVE: dict[str, dict[str, Any]] = {
    "p all, a filter that nothing matches": {"gather": "cells", "where": "kind = 'none'", "p": "all"},
    "p all, a filter, nprobe 4,096": {"gather": "cells", "where": "kind != 'none'", "p": "all", "nprobe": 4_096},
    "p all, a filter": {"gather": "cells", "where": "kind = 'class'", "p": "all"},
    "effort exact": {"effort": "exact"},
}

Answer = tuple[int, float]  # the status, and the seconds that it took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--seconds", type=float, default=5, help="for each row")
    parser.add_argument("--threads", type=int, help="of the server; by default as it chooses")
    parser.add_argument("--expensive", action="store_true", help="the second table")
    options = parser.parse_args()
    texts = questions(Index(options.index))
    arguments = ["--threads", str(options.threads)] if options.threads else []
    with serving(options.index, *arguments) as port:
        search = f"POST /v1/indexes/{options.index.resolve().stem}/search"
        table = expensive_table if options.expensive else usual_table
        asyncio.run(table(port, search, texts, options.seconds))


@contextmanager
def serving(index: Path, *arguments: str) -> Iterator[int]:
    """The port of a server that ends with the `with`."""
    command = [sys.executable, "-m", "secateurs", "serve", str(index), "--port", "0", *arguments]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = next((int(found[1]) for line in server.stdout if (found := re.search(r":(\d+)/", line))), None)
        if port is None:
            sys.exit("the server did not start")
        yield port
    finally:
        server.terminate()
        server.wait()


def questions(index: Index) -> list[str]:
    """Eight words from somewhere in each document, so that no two are alike."""
    texts = []
    for document in index.documents():
        words = document.text.split()
        texts += [" ".join(words[i : i + 8]) for i in range(0, len(words) - 8, 8)]
    return list(dict.fromkeys(texts))


async def usual_table(port: int, search: str, texts: list[str], seconds: float) -> None:
    fresh, known = count(), count()
    rows: list[tuple[str, int, list[Answer]]] = []

    def known_query() -> dict[str, Any]:
        return {"query": texts[next(known) % KNOWN], "k": 10}

    def new_query() -> dict[str, Any]:
        return {"query": texts[KNOWN + next(fresh) % (len(texts) - KNOWN)], "k": 10}

    await ask_until(port, search, known_query, 2, perf_counter() + 5)  # warm up, and fill the cache
    for kind, query in (("known", known_query), ("new", new_query)):
        for clients in CLIENTS:
            answers = await ask_until(port, search, query, clients, perf_counter() + seconds)
            rows.append((kind, clients, answers))
    base = median(spent for status, spent in rows[0][2] if status == 200)
    print(f"one client's median with known queries: {base * 1000:.1f} ms; {len(texts):,} different queries\n")
    print("| queries | clients | answers a second | median | 95% | 99% | refused (429) | other errors |")
    print("|---|---|---|---|---|---|---|---|")
    first = sum(status == 200 for status, _ in rows[0][2])
    for kind, clients, answers in rows:
        times = [spent for status, spent in answers if status == 200]
        statuses = Counter(status for status, _ in answers)
        cut = quantiles(times, n=100)
        spread = " | ".join(
            f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}" for ratio in (cut[at] / base for at in (49, 94, 98))
        )
        errors = len(answers) - statuses[200] - statuses[429]
        print(f"| {kind} | {clients} | {len(times) / first:.2f} | {spread} | {statuses[429]} | {errors} |")


async def expensive_table(port: int, search: str, texts: list[str], seconds: float) -> None:
    fresh = count()
    known = count()

    def usual() -> dict[str, Any]:
        return {"query": texts[next(known) % KNOWN], "k": 10}

    def expensive(settings: dict[str, Any]) -> dict[str, Any]:
        """With a long query that was not asked before."""
        start = next(fresh) * 7 % (len(texts) - 50)
        return {"query": " ".join(texts[start : start + 50])[:LONGEST_QUERY], **settings}

    await ask_until(port, search, usual, 2, perf_counter() + 5)  # warm up
    alone = await search_as_usual(port, search, usual, perf_counter() + seconds)
    print(f"alone, the usual search takes {median(spent for _, _, spent in alone) * 1000:.1f} ms\n")
    print(
        "| expensive requests | clients | their answers a second | usual searches | answered | asked again | median | ",
        end="",
    )
    print("slowest |\n|---|---|---|---|---|---|---|---|")
    for name, settings in EXPENSIVE.items():
        for clients in EXPENSIVE_CLIENTS:
            end = perf_counter() + seconds
            flood = ask_until(port, search, lambda settings=settings: expensive(settings), clients, end)
            answers, searches = await asyncio.gather(flood, search_as_usual(port, search, usual, end))
            statuses = Counter(status for status, _ in answers)
            told = ", ".join(f"{status}: {number / seconds:.1f}" for status, number in sorted(statuses.items()))
            times = [spent for status, _, spent in searches if status == 200]
            again = sum(refused for _, refused, _ in searches)
            spread = f"{median(times):.2f} s | {max(times):.2f} s" if times else "|"
            row = f"| {name} | {clients} | {told} | {len(searches)} | {len(times)} | {again} | {spread} |"
            print(row, flush=True)


async def search_as_usual(
    port: int, search: str, query: Callable[[], dict[str, Any]], end: float
) -> list[tuple[int, int, float]]:
    """Of each search: its status, how often it was answered 429 before that, and the seconds to its answer."""
    found = []
    while perf_counter() < end:
        started, refused, body = perf_counter(), 0, query()
        while True:
            ((status, _),) = await ask_until(port, search, lambda body=body: body, 1, 0)
            if status != 429:
                break
            refused += 1
            await asyncio.sleep(1)
        found.append((status, refused, perf_counter() - started))
        await asyncio.sleep(PAUSE)
    return found


async def ask_until(
    port: int, search: str, query: Callable[[], dict[str, Any]], clients: int, end: float
) -> list[Answer]:
    """Ask from so many clients, each at least once, until the time has come."""
    answers: list[Answer] = []

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while True:
            body = json.dumps(query()).encode()
            head = (
                f"{search} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            started = perf_counter()
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
            assert length is not None
            await reader.readexactly(int(length[1]))
            answers.append((int(answer[9:12]), perf_counter() - started))
            if perf_counter() >= end:
                break
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return answers


if __name__ == "__main__":
    main()

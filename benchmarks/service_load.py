"""A served index under load, on loopback: how long answers take as more clients ask at once.

    python benchmarks/service_load.py demo.sec

starts `secateurs serve` on the index and asks it questions made of the documents' own first words, from 1 to 64 clients
that each wait for an answer before they ask again. "New" queries are all different, so each is encoded; "known" ones
repeat, so their encodings are in the cache. Times are multiples of one client's median with known queries. The clients
share the cores with the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from statistics import quantiles
from time import perf_counter

from secateurs import Index

CLIENTS = (1, 4, 16, 64)
KNOWN = 100  # queries that repeat


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("index", type=Path)
    parser.add_argument("--seconds", type=float, default=5, help="for each row")
    parser.add_argument("--threads", type=int, help="of the server; by default as it chooses")
    options = parser.parse_args()
    texts = questions(Index(options.index))
    command = [sys.executable, "-m", "secateurs", "serve", str(options.index), "--port", "0"]
    command += ["--threads", str(options.threads)] if options.threads else []
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = next((int(found[1]) for line in server.stdout if (found := re.search(r":(\d+)/", line))), None)
        if port is None:
            sys.exit("the server did not start")
        asyncio.run(report(port, options.index.resolve().stem, texts, options.seconds))
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


async def report(port: int, name: str, texts: list[str], seconds: float) -> None:
    fresh = count()
    rows = []
    known = count()
    await measure(port, name, lambda: texts[next(known) % KNOWN], 2, 5.0)  # warm up, and fill the cache
    for kind in ("known", "new"):
        for clients in CLIENTS:

            def query(kind: str = kind) -> str:
                return texts[next(known) % KNOWN if kind == "known" else KNOWN + next(fresh) % (len(texts) - KNOWN)]

            rows.append((kind, clients, *await measure(port, name, query, clients, seconds)))
    base = quantiles(rows[0][2], n=100)[49]
    print(f"one client's median with known queries: {base * 1000:.1f} ms; {len(texts):,} different queries\n")
    print("| queries | clients | answers a second | median | 95% | 99% | refused (429) | other errors |")
    print("|---|---|---|---|---|---|---|---|")
    first = len(rows[0][2]) / seconds
    for kind, clients, times, refused, errors in rows:
        cut = quantiles(times, n=100)
        spread = " | ".join(
            f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}" for ratio in (cut[at] / base for at in (49, 94, 98))
        )
        print(f"| {kind} | {clients} | {len(times) / seconds / first:.2f} | {spread} | {refused} | {errors} |")


async def measure(port: int, name: str, query, clients: int, seconds: float) -> tuple[list[float], int, int]:
    """Times of the answers, and how many requests were refused or failed."""
    times: list[float] = []
    statuses: list[int] = []
    end = perf_counter() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while perf_counter() < end:
            body = json.dumps({"query": query(), "k": 10}).encode()
            head = (
                f"POST /v1/indexes/{name}/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            started = perf_counter()
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", answer, re.IGNORECASE)
            assert length is not None
            await reader.readexactly(int(length[1]))
            status = int(answer[9:12])
            if status == 200:
                times.append(perf_counter() - started)
            statuses.append(status)
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    refused = statuses.count(429)
    return times, refused, len(statuses) - refused - statuses.count(200)


if __name__ == "__main__":
    main()

"""MCP: agents search, read and explain as the library does, within limits, and cannot write."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import httpx2
import pytest
from conftest import QUERIES, random_documents
from mcp import Client, StdioServerParameters
from test_sharded import make_shards

from secateurs import Document, Index, ShardedIndex
from secateurs.contract import AnyIndex
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.integrations.excerpts import excerpt_start
from secateurs.integrations.mcp import agent_server
from secateurs.service.limits import Limits

QUERY = QUERIES[0]


async def call(
    indexes: AnyIndex | Mapping[str, AnyIndex], tool: str, limits: Limits | None = None, **arguments: Any
) -> Any:
    """The structured answer of a tool, through the client of the package; or the text of an error."""
    named = {"library": indexes} if isinstance(indexes, AnyIndex) else indexes
    with agent_server(named, limits) as server:
        async with Client(server) as client:
            answer = await client.call_tool(tool, arguments)
            text = answer.content[0].text  # type: ignore[union-attr]
            if answer.is_error:
                return text
            assert json.loads(text) == answer.structured_content  # for clients that read only text
            return answer.structured_content


async def test_search_finds_what_the_library_finds(index: Index) -> None:
    found = await call(index, "search", query=QUERY, k=3, where="kind = 'class'", effort="exact")
    expected = index.search(QUERY, k=3, where="kind = 'class'", effort="exact")
    assert found == {
        "hits": [
            {
                "rank": rank,
                "docno": hit.docno,
                "score": hit.score,
                "relevance": hit.relevance,
                "text": hit.text[: len(found["hits"][rank - 1]["text"])],
                "start": 0,
                "length": len(hit.text),
                "metadata": hit.metadata,
            }
            for rank, hit in enumerate(expected, start=1)
        ],
        "documents_in_index": len(index),
        "documents_matching": expected.stats.documents_matching,
    }
    assert len((await call(index, "search", query=QUERY))["hits"]) == 5
    assert (await call(index, "search", query=QUERY, min_relevance=1))["hits"] == []


async def test_an_offset_gives_the_next_page_within_the_limit_of_k(index: Index) -> None:
    expected = [hit.docno for hit in index.search(QUERY, k=7, effort="exact")]
    pages = [
        (await call(index, "search", Limits(k=7), query=QUERY, k=k, offset=offset, effort="exact"))["hits"]
        for k, offset in ((3, 0), (3, 3), (1, 6))
    ]
    hits = [hit for page in pages for hit in page]
    assert [hit["docno"] for hit in hits] == expected
    assert [hit["rank"] for hit in hits] == [1, 2, 3, 4, 5, 6, 7]
    refused = await call(index, "search", Limits(k=7), query=QUERY, k=3, offset=5)
    assert "too many hits: k + offset = 8, at most 7 are allowed" in refused


async def test_an_index_built_for_text_is_searched_by_words_and_others_do_not_offer_it(
    index: Index, tmp_path: Path, encoder: OnnxEncoder
) -> None:
    texts = ["Error E4711 means that the pump is blocked.", "Error E4712 means that the pump is dry.", "Cats sleep."]
    documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
    pumps = Index.build(tmp_path / "pumps.sec", documents, encoder=encoder, gather=("cells", "text"), progress=False)
    found = await call(pumps, "search", query="E4711", gather="text")
    assert (
        [hit["docno"] for hit in found["hits"]] == [hit.docno for hit in pumps.search("E4711", gather="text")] == ["d0"]
    )
    query = "what does E4712 mean"
    for settings in ({"gather": "cells+text"}, {"fuse": "rrf"}):
        hits = (await call(pumps, "search", query=query, **settings))["hits"]
        expected = pumps.search(query, k=5, **settings)  # type: ignore[arg-type]
        assert [(hit["docno"], hit["score"]) for hit in hits] == [(hit.docno, hit.score) for hit in expected]
    assert (await call(pumps, "search", query=query, fuse="rrf"))["hits"][0]["score"] < 0.04  # 1 / 61 + 1 / 61

    async def arguments(indexes: Mapping[str, AnyIndex]) -> set[str]:
        with agent_server(indexes) as server:
            async with Client(server) as client:
                tools = {tool.name: tool for tool in (await client.list_tools()).tools}
                return set(tools["search"].input_schema["properties"])

    both = {"library": index, "pumps": pumps}
    assert await arguments({"pumps": pumps}) - await arguments({"library": index}) == {"gather", "fuse"}
    assert await arguments(both) == await arguments({"pumps": pumps})
    refused = await call(both, "search", query=query, index="library", gather="text")
    assert "gather: library is prepared for cells, exhaustive only" in refused
    refused = await call(both, "search", query=query, index="library", fuse="rrf")
    assert "fuse: library is not prepared for text" in refused
    assert "'auto', 'text' or 'cells+text'" in await call(pumps, "search", query=query, gather="faiss")


async def test_a_long_text_is_found_as_an_excerpt_and_read_in_parts(tmp_path: Path, encoder: OnnxEncoder) -> None:
    text = "Cats sleep all day. " * 10 + "Goldfish grow as large as their pond. " + "Dogs bark at night. " * 10
    built = Index.build(tmp_path / "animals.sec", [{"docno": "all", "text": text}], encoder=encoder, progress=False)
    (hit,) = (await call(built, "search", query="do goldfish grow", characters=80))["hits"]
    assert "Goldfish grow" in hit["text"]
    assert text[hit["start"] : hit["start"] + 80] == hit["text"]
    assert hit["length"] == len(text)
    parts, start = "", 0
    while start is not None:
        part = await call(built, "get", docno="all", start=start, characters=100)
        assert part["start"] == start
        parts, start = parts + part["text"], part["next_start"]
    assert parts == built.get("all").text
    assert (await call(built, "get", docno="all"))["next_start"] is None


class Piece(NamedTuple):
    start: int
    end: int
    contribution: float
    rarity: float


@pytest.mark.parametrize(
    ("pieces", "start"),
    [
        ([], 0),
        (None, 0),
        ([Piece(50, 55, 1.0, 0.0)], 0),  # a common word
        ([Piece(50, 55, -1.0, 1.0)], 0),
        ([Piece(2, 5, 1.0, 1.0), Piece(50, 55, 1.0, 1.0)], 0),  # of equal parts the first
        ([Piece(2, 5, 1.0, 0.5), Piece(50, 55, 1.0, 1.0)], 45),
        ([Piece(2, 5, 1.0, 1.0), Piece(50, 55, 0.7, 1.0), Piece(60, 65, 0.7, 1.0)], 45),
        ([Piece(98, 99, 1.0, 1.0)], 80),  # an excerpt does not go beyond the end
    ],
)
def test_an_excerpt_begins_before_the_pieces_that_tell_most(pieces: list[Piece] | None, start: int) -> None:
    assert excerpt_start("x" * 100, 20, pieces) == start
    assert excerpt_start("x" * 20, 20, pieces) == 0


def test_an_excerpt_begins_at_a_word() -> None:
    text = "twelve of them grow in the goldfish pond behind the house and sing"
    start = text.index("goldfish")
    assert text[excerpt_start(text, 24, [Piece(start, start + 8, 1.0, 1.0)]) :].startswith("in the goldfish")


async def test_get_returns_the_document_with_its_metadata(index: Index) -> None:
    document = index.get(index.search(QUERY, k=1)[0].docno)
    assert await call(index, "get", docno=document.docno) == {
        "docno": document.docno,
        "text": document.text,
        "start": 0,
        "next_start": None,
        "metadata": document.metadata,
    }


async def test_explain_says_what_the_library_says(index: Index) -> None:
    docno = index.search(QUERY, k=1)[0].docno
    answer, expected = await call(index, "explain", query=QUERY, docno=docno), index.explain(QUERY, docno)
    assert {name: answer[name] for name in answer if name != "tokens"} == {
        name: getattr(expected, name) for name in answer if name != "tokens"
    }
    assert answer["rank"] == 1
    assert answer["tokens"] == [
        {name: getattr(token, name) for name in ("token", "kind", "weight", "similarity", "match", "kept", "gathers")}
        for token in expected.tokens
    ]


async def test_the_tools_say_that_they_only_read_and_what_their_limits_are(index: Index) -> None:
    with agent_server({"library": index}, Limits(k=7, query_characters=300), about="Python's library.") as server:
        async with Client(server) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"search", "get", "explain"}
    for tool in tools.values():
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is True
        assert tool.annotations.destructive_hint is False
        assert tool.output_schema is not None
        assert all(field.get("description") for field in tool.input_schema["properties"].values())
    assert "Python's library." in (tools["search"].description or "")
    assert f"library ({len(index):,} documents)" in (tools["search"].description or "")
    properties = tools["search"].input_schema["properties"]
    assert properties["k"]["maximum"] == 7
    assert properties["k"]["default"] == 5
    assert properties["query"]["maxLength"] == 300
    assert tools["search"].input_schema["required"] == ["query"]


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search", {"query": "x" * 21}, "at most 20 characters"),
        ("search", {"query": " "}, "the query is empty"),
        ("search", {}, "query"),
        ("search", {"query": "x", "k": 8}, "less than or equal to 7"),
        ("search", {"query": "x", "k": 0}, "greater than or equal to 1"),
        ("search", {"query": "x", "effort": "much"}, "'fast', 'balanced', 'thorough' or 'exact'"),
        ("search", {"query": "x", "where": "year >"}, "where"),
        ("search", {"query": "x", "where": "colour = 'red'"}, "colour"),
        ("search", {"query": "x", "index": "other"}, "there is no index 'other': there are library"),
        ("get", {"docno": "nobody"}, "there is no document 'nobody' in library"),
        ("get", {"docno": "nobody", "characters": 10**9}, "characters"),
        ("explain", {"query": "x", "docno": "nobody"}, "there is no document 'nobody' in library"),
    ],
)
async def test_what_is_refused_is_told_to_the_agent(
    index: Index, tool: str, arguments: dict[str, Any], message: str
) -> None:
    answer = await call(index, tool, Limits(k=7, query_characters=20), **arguments)
    assert isinstance(answer, str)
    assert message in answer
    assert str(index.path) not in answer


@pytest.mark.parametrize(
    ("limits", "arguments", "message"),
    [
        (Limits(score_work=1_000), {"effort": "exact"}, "effort: too much work: documents to score x query embeddings"),
        (Limits(score_work=1_000), {"effort": "exact"}, "Ask for less, or have the server started with"),
        (Limits(score_work=1_000), {"effort": "exact"}, "larger --max-score-work"),
        (Limits(gather_work=1), {"effort": "fast"}, "larger --max-gather-work"),
    ],
)
async def test_a_call_that_is_too_much_work_is_refused_without_the_offer_of_a_key(
    index: Index, limits: Limits, arguments: dict[str, Any], message: str
) -> None:
    docno = index.search(QUERY, k=1)[0].docno
    for tool, asked in (("search", {}), ("explain", {"docno": docno})):
        answer = await call(index, tool, limits, query=QUERY, **asked, **arguments)
        assert isinstance(answer, str)
        assert message in answer
        assert "key" not in answer.lower()
        assert "hits" in await call(index, "search", limits, query=QUERY, where="kind = 'none'", **arguments)


async def test_several_indexes_are_told_apart(index: Index, tmp_path: Path, encoder: OnnxEncoder) -> None:
    animals = Index.build(tmp_path / "animals.sec", [{"docno": "fish", "text": "Goldfish grow."}], encoder=encoder)
    both = {"library": index, "animals": animals}
    assert [hit["docno"] for hit in (await call(both, "search", query="fish", index="animals"))["hits"]] == ["fish"]
    assert "say which index: there are library, animals" in await call(both, "search", query="fish")


def test_a_path_is_not_taken_for_an_index() -> None:
    server = agent_server({"demo": "demo.sec"})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match=r"an open index.*not 'demo.sec'"), server:
        pass


async def test_by_default_a_search_gives_as_many_hits_as_the_command_does(index: Index) -> None:
    import typer.main

    from secateurs.cli.app import app

    options = typer.main.get_command(app).commands["mcp"].params  # type: ignore[attr-defined]
    (most,) = (option.default for option in options if option.name == "max_k")
    assert f"less than or equal to {most}" in await call(index, "search", query=QUERY, k=most + 1)


async def test_an_index_without_an_encoder_says_so(tmp_path: Path) -> None:
    vectors = Index.build(tmp_path / "vectors.sec", random_documents(5), encoder=None)
    assert "library was built without an encoder: get" in await call(vectors, "search", query="fish")
    assert "library was built without an encoder: get" in await call(vectors, "explain", query="fish", docno="d001")
    assert (await call(vectors, "get", docno="d001"))["metadata"] == {"i": 1}


async def test_a_collection_in_shards_is_searched_as_one_index(
    passages: list[dict[str, str]], encoder: OnnxEncoder, tmp_path: Path
) -> None:
    documents = [Document(passage["docno"], passage["text"]) for passage in passages[:12]]
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 3, encoder=encoder), encoder) as sharded:
        found = await call(sharded, "search", query=QUERY, k=3)
        assert [hit["docno"] for hit in found["hits"]] == [hit.docno for hit in sharded.search(QUERY, k=3)]
        explained = await call(sharded, "explain", query=QUERY, docno=found["hits"][0]["docno"])
        assert explained["rank"] == 1


async def test_a_call_that_takes_too_long_is_given_up(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Event()
    monkeypatch.setattr(type(index), "get", lambda self, docno: ended.wait(60))
    with agent_server({"library": index}, Limits(seconds=0.05)) as server:
        async with Client(server) as client:
            answer = await client.call_tool("get", {"docno": "x"})
            assert not ended.is_set()
            ended.set()  # or the end of the server would wait for the thread
    assert "not finished after 0.05 seconds" in answer.content[0].text  # type: ignore[union-attr]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "secateurs", "mcp", *map(str, arguments)]


@pytest.mark.slow
async def test_the_command_serves_over_standard_input_and_output(index_path: Path, index: Index) -> None:
    program, *arguments = command(index_path, "--about", "The standard library.")
    async with Client(StdioServerParameters(command=program, args=arguments, env=dict(os.environ))) as client:
        assert "The standard library." in ((await client.list_tools()).tools[0].description or "")
        answer = await client.call_tool("search", {"query": QUERY, "k": 2})
        assert answer.structured_content is not None
        assert [hit["docno"] for hit in answer.structured_content["hits"]] == [
            hit.docno for hit in index.search(QUERY, k=2)
        ]
        refused = await client.call_tool("search", {"query": QUERY, "k": 101})
        assert refused.is_error


@pytest.mark.slow
async def test_the_command_serves_over_http_until_it_is_stopped(index_path: Path, index: Index) -> None:
    process = subprocess.Popen(command(index_path, "--http", "--port", "0"), stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        lines = iter(process.stderr.readline, "")
        address = next(found[0] for line in lines if (found := re.search(r"http://127.0.0.1:\d+/mcp", line)))
        async with Client(address) as client:
            answer = await client.call_tool("search", {"query": QUERY, "k": 1})
            assert answer.structured_content is not None
            assert answer.structured_content["hits"][0]["docno"] == index.search(QUERY, k=1)[0].docno
        foreign = httpx2.post(address, json={}, headers={"Host": "evil.example"})
        assert foreign.status_code == 421  # against DNS rebinding
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_the_command_ends_when_its_input_ends_and_names_what_is_wrong(index_path: Path, tmp_path: Path) -> None:
    done = subprocess.run(command(index_path), input="", capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")
    done = subprocess.run(command(tmp_path / "nowhere.sec"), input="", capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    code = f"import sys; sys.modules['mcp'] = None; sys.argv = ['secateurs', 'mcp', {str(index_path)!r}]"
    code += "; from secateurs.cli.app import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stderr == 'secateurs: mcp is not installed: pip install "secateurs[mcp]"\n'

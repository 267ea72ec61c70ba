"""`where`: what the language means, that it is applied before gathering, and what is refused."""

import contextlib
import re
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
from conftest import random_text
from hypothesis import given, settings
from hypothesis import strategies as st

from secateurs import Document, EncodedText, Index, SecateursError
from secateurs.cancellation import cancelled_by
from secateurs.cluster.layout import Layout, ShardRecord, shard_names, shard_of
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.errors import CancelledError, UsageError
from secateurs.storage import snapshot as snapshots
from secateurs.storage.document_writer import DocumentWriter
from secateurs.storage.documents import Documents
from secateurs.storage.filters import Filter
from secateurs.storage.patterns import Pattern

METADATA: dict[str, dict[str, Any]] = {
    "a": {"year": 2019, "lang": "en", "tags": ["old", "short"], "ok": True},
    "b": {"year": 2020, "lang": "de", "tags": ["new"], "ok": False},
    "c": {"year": 2021.5, "lang": "en", "author": {"name": "Ada", "age": 36}},
    "d": {"year": "2021", "lang": "it's", "note": None},
    "e": {"odd key": 1, "ünï": "x", "big": 2**70},
    "f": {},
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    rng = np.random.default_rng(0)
    documents = [  # the first three long, so that the next three change little
        Document(docno, "", metadata, random_text(rng, 100 if docno < "d" else 3))
        for docno, metadata in METADATA.items()
    ]
    index = Index.build(tmp_path_factory.mktemp("where") / "i.sec", documents[:3], encoder=None)
    index.add(documents[3:])
    assert len(index.snapshot.segments) == 2
    return index


def matching(index: Index, where: str) -> str:
    query = random_text(np.random.default_rng(1), 2)
    return "".join(sorted(hit.docno for hit in index.search(query, where=where)))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("year >= 2020", "bc"),
        ("year > 2020", "c"),
        ("year < 2020", "a"),
        ("year <= 2020.0", "ab"),
        ("year = 2021.5", "c"),
        ("year = '2021'", "d"),  # a text is not a number
        ("year >= '2'", "d"),
        ("year != 2019", "bcd"),  # has the key, with another value
        ("not year = 2019", "bcdef"),
        ("lang = 'en' and year > 2020", "c"),
        ("lang = 'en' or lang = 'de'", "abc"),
        ("lang in ('en', 'de')", "abc"),
        ("lang not in ('en', 'de')", "d"),
        ("lang = 'it''s'", "d"),
        ('lang = "en"', "ac"),
        ("lang > 'en'", "d"),
        ("lang <= 'en'", "abc"),
        ("tags = 'new'", "b"),
        ("tags in ('short', 'new')", "ab"),
        ("author.name = 'Ada'", "c"),
        ("author.age < 40", "c"),
        ("ok = true", "a"),
        ("ok != true", "b"),
        ("note is null", "abcdef"),
        ("year is not null", "abcd"),
        ('"odd key" = 1', "e"),
        ("ünï = 'x'", "e"),
        ("big > 1e20", "e"),
        ("docno in ('a', 'f', 'missing')", "af"),
        ("docno != 'a'", "bcdef"),
        ("NOT (year >= 2020 OR lang = 'en') AND docno <> 'f'", "de"),
        ("year = -1 or year = +2019", "a"),
        ("year between 2019 and 2021", "ab"),
        ("year between 2020 and 2020.0", "b"),
        ("year BETWEEN '2' AND '3' AND lang is not null", "d"),
        ("year not between 2019 and 2021", "cd"),  # has the key, with another value
        ("not year between 2019 and 2021", "cdef"),
        ("lang between 'de' and 'en' and year between 2019 and 2019", "a"),
        ("lang like 'e%'", "ac"),
        ("lang like '%'", "abcd"),
        ("lang like '_e'", "b"),
        ("lang like 'E%'", ""),  # capital letters differ
        ("lang LIKE '%''s'", "d"),
        ("lang not like 'e%'", "bd"),
        ("tags like '%o%'", "a"),
        ("tags not like '%d'", "b"),  # no entry may match
        ("author.name like 'A_a'", "c"),
        ("docno like '_'", "abcdef"),
        ("docno not like 'a%' and docno like '%'", "bcdef"),
        ("author is null", "abdef"),
        ("tags is not null", "ab"),
        ("big < " + "9" * 350, "e"),
        ("ok = true or year = 1", "a"),  # true is not 1
        ("year = 1 or ok in (true, false)", "ab"),
        ("year > 2020 or not (year > 2020)", "abcdef"),  # a comparison twice
        ("not (lang = 'en') and (lang = 'en' or lang = 'de') or lang = 'en' and year != 2019", "bc"),
        (f"year in ({', '.join(map(str, range(3000, 4200)))}, 2019)", "a"),  # more than one SQL statement takes
    ],
)
def test_what_a_filter_means(index: Index, where: str, expected: str) -> None:
    assert matching(index, where) == expected


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("", "expected a key"),
        ("year", "expected =, !=, <, <=, >, >=, in, like, between or is"),
        ("lang like", "expected a number, a text in quotes"),
        ("lang like 3", "like takes a text in quotes"),
        ("lang like 'a\0%'", "like takes a text in quotes"),
        ("lang like en", "write 'en' if it is a text"),
        ("year between 2019", "expected and, as in  between 2019 and 2021"),
        ("year between 2019 or 2020", "expected and"),
        ("year between 2021 and 2019", "between takes the smaller value first, at '2021 and 2019'"),
        ("year between 2021 and 'x'", "between takes two numbers, or two texts"),
        ("ok between false and true", "can be compared"),
        ("docno between 'a' and 'b'", "docnos can be compared"),
        ("year >=", "expected a number"),
        ("year >= 2020 and", r"expected a key, such as year, at the end \(character 17 of"),
        ("(year >= 2020", r"expected \)"),
        ("year >= 2020)", "expected and, or, or the end"),
        ("year >= lang", "expected a number, a text in quotes"),
        ("lang = en", "true or false; write 'en' if it is a text, at 'en'"),
        ("lang in (en)", "write 'en' if it is a text"),
        ("year = 'x", "cannot be read"),
        ("year; DROP TABLE documents", "cannot be read"),
        ("year = 20x", "cannot be read"),
        ("lang = '\ud800'", "not valid Unicode"),
        ("ok < true", "true and false can be compared with = and != only"),
        ("docno > 'a'", "docnos can be compared"),
        ("docno = 7", "a docno is a text, in quotes"),
        ("year = " + "9" * 5000, "expected a number"),
        ("docno is null", "every document has a docno"),
        ("year is 3", "expected null"),
        ("lang in 'en'", "expected \\("),
        ("lang in ('en' 'de')", "expected , or \\)"),
        ("lang not 'en'", "expected in, like or between"),
        ("(" * 60 + "a = 1" + ")" * 60, "inside each other"),
        ("a = 1 or " * 2000 + "a = 1", "characters"),
        ("a = 1 or " * 64 + "a = 1", "more than 64 comparisons"),
    ],
)
def test_a_filter_that_makes_no_sense_says_where(index: Index, where: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        matching(index, where)


def test_a_filter_is_a_text(index: Index) -> None:
    with pytest.raises(UsageError, match="where is a text"):
        index.search(random_text(np.random.default_rng(0), 2), where=3)  # type: ignore[arg-type]


@given(st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_filter_or_an_error_that_says_why(text: str) -> None:
    with contextlib.suppress(UsageError):
        Filter.parse(text)


VALUES = st.one_of(st.integers(-(2**40), 2**40), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8))
SIGNS = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


@given(st.lists(VALUES, min_size=1, max_size=6), st.sampled_from(sorted(SIGNS)), VALUES)
@settings(max_examples=60, deadline=None)
def test_comparisons_are_those_of_python_between_values_of_one_kind(
    tmp_path_factory: pytest.TempPathFactory, values: list[Any], sign: str, value: Any
) -> None:
    text = random_text(np.random.default_rng(0), 1)
    documents = [Document(str(i), "", {"x": held}, text) for i, held in enumerate(values)]
    index = Index.build(tmp_path_factory.mktemp("compare") / "i.sec", documents, encoder=None, gather="exhaustive")
    quoted = "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)
    where = f"x {sign} {quoted}"
    if isinstance(value, str) not in {isinstance(held, str) for held in values}:
        with pytest.raises(UsageError, match="where: 'x' is compared with "):
            index.search(text, where=where)
        return
    found = {int(hit.docno) for hit in index.search(text, where=where)}

    def holds(held: Any) -> bool:
        if isinstance(held, str) != isinstance(value, str):
            return sign == "!="
        if isinstance(held, str):  # SQLite compares the bytes
            return SIGNS[sign](held.encode(), value.encode())
        return SIGNS[sign](held, value)

    assert found == {i for i, held in enumerate(values) if holds(held)}


CHARACTERS = st.text(alphabet="ab%_\\*?[]\0é\ud7ff\U0010ffff", max_size=6)


def regular_expression(like: str) -> str:
    """The plain twin of a pattern."""
    pieces = re.findall(r"\\[%_\\]|.", like, flags=re.DOTALL)
    return "".join({"%": ".*", "_": "."}.get(piece) or re.escape(piece[-1]) for piece in pieces)


@given(st.lists(CHARACTERS, min_size=1, max_size=8, unique=True), CHARACTERS.filter(lambda like: "\0" not in like))
@settings(max_examples=150, deadline=None)
def test_like_is_a_regular_expression_and_finds_docnos_and_metadata(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], like: str
) -> None:
    path = tmp_path_factory.mktemp("like") / "documents.sqlite"
    writer = DocumentWriter(path)
    for value in values:
        writer.add(value, "", {"x": value, "listed": [1, value]})
    writer.close()
    documents = Documents(path, lambda: None)
    matching = [re.fullmatch(regular_expression(like), value, re.DOTALL) and "\0" not in value for value in values]
    quoted = like.replace("'", "''")
    for key in ("x", "listed", "docno"):
        assert Filter.parse(f"{key} like '{quoted}'").mask(documents, len(values)).tolist() == list(map(bool, matching))


@given(st.lists(st.lists(VALUES, max_size=3), min_size=1, max_size=6), VALUES, VALUES)
@settings(max_examples=100, deadline=None)
def test_a_value_between_two_is_not_below_the_one_and_not_above_the_other(
    tmp_path_factory: pytest.TempPathFactory, lists: list[list[Any]], least: Any, most: Any
) -> None:
    path = tmp_path_factory.mktemp("between") / "documents.sqlite"
    writer = DocumentWriter(path)
    for number, values in enumerate(lists):
        writer.add(str(number), "", {"x": values})
    writer.close()
    literals = ["'" + v.replace("'", "''") + "'" if isinstance(v, str) else repr(v) for v in (least, most)]
    where = f"x between {literals[0]} and {literals[1]}"
    if isinstance(least, str) != isinstance(most, str) or least > most:
        with pytest.raises(UsageError, match="between takes"):
            Filter.parse(where)
        return
    expected = [
        any(isinstance(value, str) == isinstance(least, str) and least <= value <= most for value in values)
        for values in lists
    ]
    assert Filter.parse(where).mask(Documents(path, lambda: None), len(lists)).tolist() == expected


def test_like_and_between_may_still_be_keys() -> None:
    for where in ("like = 3", "between > 1 and like is null", "like like 'x%' or between between 1 and 2"):
        assert {key for key, _ in Filter.parse(where).compared()} <= {"like", "between"}


@pytest.mark.parametrize("shown", ["year like '%' or lang between 'a' and 'b' or " * 40, "lang like '%a' or " * 65])
def test_like_and_between_count_as_comparisons(shown: str) -> None:
    with pytest.raises(UsageError, match="more than 64 comparisons"):
        Filter.parse(shown + "year = 1")


def test_a_prefix_is_looked_up_and_the_rest_is_not_read(tmp_path: Path) -> None:
    writer = DocumentWriter(tmp_path / "documents.sqlite")
    writer.add("a", "", {"x": "abc"})
    writer.close()
    pattern = Pattern.parse("ab%")
    statement = f"EXPLAIN QUERY PLAN SELECT number FROM facts WHERE key = 0 AND {pattern.condition('value')}"
    ((*_, plan),) = sqlite3.connect(tmp_path / "documents.sqlite").execute(statement, pattern.values).fetchall()
    assert "PRIMARY KEY (key=? AND value>? AND value<?)" in plan


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Index:
    rng = np.random.default_rng(5)
    documents = [
        Document(f"d{i:04}", "", {"i": i, "third": i % 3}, random_text(rng, int(rng.integers(1, 12))))
        for i in range(1500)
    ]
    return Index.build(tmp_path_factory.mktemp("many") / "i.sec", documents, encoder=None, gather=("cells", "faiss"))


@pytest.mark.parametrize("gather", ["auto", "cells", "faiss", "exhaustive"])
@pytest.mark.parametrize("where", ["i < 4", "i >= 1000 and i < 1040", "third = 0", "i >= 0", "docno = 'd1499'"])
def test_there_are_always_k_hits_if_k_documents_match(many: Index, where: str, gather: str) -> None:
    expected = {d.docno for d in many.documents() if _matches(where, d)}
    for seed in range(5):
        query = random_text(np.random.default_rng(seed), 6)
        for settings_ in ({}, {"p": 1, "k_prime": 3, "nprobe": 1}):
            ranking = many.search(query, k=25, where=where, gather=gather, **settings_)  # type: ignore[arg-type]
            assert len(ranking) == min(25, len(expected))
            assert {hit.docno for hit in ranking} <= expected
            assert ranking.stats.documents_matching == len(expected)
            assert ranking.stats.documents_gathered <= len(expected)


def _matches(where: str, document: Document) -> bool:
    i = document.metadata["i"]
    return {
        "i < 4": i < 4,
        "i >= 1000 and i < 1040": 1000 <= i < 1040,
        "third = 0": i % 3 == 0,
        "i >= 0": True,
        "docno = 'd1499'": i == 1499,
    }[where]


def test_what_a_filter_leaves_is_ranked_as_if_there_were_nothing_else(many: Index) -> None:
    for where in ("third = 1", "i < 200"):
        for seed in range(5):
            query = random_text(np.random.default_rng(seed), 6)
            everything = [hit for hit in many.search(query, k=1500, gather="exhaustive") if _holds(where, hit.metadata)]
            assert list(many.search(query, where=where, effort="exact")) == everything[:10]


def _holds(where: str, metadata: Any) -> bool:
    return bool(metadata["third"] == 1 if where == "third = 1" else metadata["i"] < 200)


def test_few_matching_documents_are_all_scored(many: Index) -> None:
    query = random_text(np.random.default_rng(0), 6)
    few = many.search(query, where="i < 200", candidates=100)
    assert few.plan.gather == "exhaustive"
    assert few.stats.documents_scored == 200
    broad = many.search(query, where="i >= 0", candidates=100)
    assert broad.plan.gather == "cells"
    assert broad.hits == many.search(query, candidates=100).hits


def test_importance_can_follow_what_matches(tmp_path: Path) -> None:
    def text(*ids: int) -> EncodedText:
        return EncodedText(np.eye(8, dtype=np.float32)[list(ids)], ids, [0] * len(ids))

    documents = [Document(f"x{i}", "", {"part": "x"}, text(1)) for i in range(5)]
    documents += [Document(f"y{i}", "", {"part": "y"}, text(1, 2)) for i in range(2)]
    documents += [Document("y", "", {"part": "y"}, text(2))]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    query = text(1, 2)
    how: dict[str, Any] = {"p": 1, "order": "icf", "where": "part = 'y'"}
    assert index.search(query, **how).kept == (1,)  # in all: 7 times 1, 3 times 2
    assert index.search(query, **how, frequencies="matching").kept == (0,)  # in y: 2 and 3 times
    assert index.explain(query, "y", **how, frequencies="matching").tokens[0].collection_frequency == 2
    with pytest.raises(UsageError, match="frequencies is one of collection, matching"):
        index.search(query, frequencies="all")


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        (
            "yaer = 2020",
            r"^where: no document has the key 'yaer'; there are: author, author\.age, author\.name, big,",
        ),
        ("year > 2020 and yaer = 2020", "no document has the key 'yaer'"),
        ("yaer is null", "no document has the key 'yaer'"),
        ("not (yaer is not null)", "no document has the key 'yaer'"),
        ("yaer not in ('x')", "no document has the key 'yaer'"),
        ("lang = 3", "^where: 'lang' is compared with a number, but its values are texts$"),
        ("lang != 3", "'lang' is compared with a number"),
        ("lang between 1 and 3", "'lang' is compared with a number"),
        ("ok like 'x%'", "'ok' is compared with a text"),
        ("yaer like 'x%'", "no document has the key 'yaer'"),
        ("lang in ('en', 3)", "'lang' is compared with a number"),
        ("ok = 1", "'ok' is compared with a number, but its values are true or false"),
        ("tags = true", "'tags' is compared with true or false, but its values are texts"),
        ("author = 'Ada'", "'author' is compared with a text, but its values are lists or objects"),
        ("year = true", "'year' is compared with true or false, but its values are numbers or texts"),
    ],
)
def test_a_key_that_no_document_has_and_a_kind_of_value_that_it_never_has_are_errors(
    index: Index, where: str, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem):
        matching(index, where)


def test_a_key_whose_value_was_always_null_is_a_key(index: Index) -> None:
    assert matching(index, "note is not null") == ""
    assert matching(index, "note = 3 or note = 'x'") == ""


def test_a_key_whose_lists_and_objects_are_all_empty_may_be_compared_with_anything(tmp_path: Path) -> None:
    text = random_text(np.random.default_rng(0), 2)
    documents = [Document("a", "", {"tags": [], "author": {}, "other": {"name": "x"}}, text)]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    for where in ("tags = 'x'", "tags > 3", "author = true"):
        assert matching(index, where) == ""
    assert matching(index, "tags is not null") == "a"
    with pytest.raises(UsageError, match="'other' is compared with a text, but its values are lists or objects"):
        matching(index, "other = 'x'")
    index.add([Document("b", "", {"tags": ["x"], "author": {"name": "Ada"}}, text)])
    assert matching(index, "tags = 'x'") == "b"
    for where in ("tags = 3", "author = 'Ada'"):
        with pytest.raises(UsageError, match="is compared with"):
            matching(index, where)


def test_at_most_a_dozen_keys_are_named(tmp_path: Path) -> None:
    text = random_text(np.random.default_rng(0), 2)
    metadata = {f"key{i:02}": i for i in range(20)}
    index = Index.build(tmp_path / "i.sec", [Document("a", "", metadata, text)], encoder=None)
    with pytest.raises(UsageError, match=r"there are: key00, .*, key11, \.\.\.$"):
        index.search(text, where="key20 = 1")
    plain = Index.build(tmp_path / "plain.sec", [Document("a", "", {}, text)], encoder=None)
    with pytest.raises(UsageError, match="no document has metadata"):
        plain.search(text, where="key20 = 1")


def test_an_index_without_documents_takes_every_filter(tmp_path: Path) -> None:
    text = random_text(np.random.default_rng(0), 2)
    index = Index.build(tmp_path / "i.sec", [], encoder=None)
    assert len(index.search(text, where="year > 3")) == 0
    index.add([Document("a", "", {"year": 3}, text)])
    index.delete(["a"])
    assert len(index.search(text, where="lang = 'en'")) == 0


def test_over_shards_a_key_may_be_in_one_shard_only(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    documents = [Document(f"d{i}", "", {}, random_text(rng, 2)) for i in range(9)]
    documents.append(Document("dated", "", {"year": 3}, random_text(rng, 2)))
    names = shard_names(3)
    for number, name in enumerate(names):
        part = [document for document in documents if shard_of(document.docno, 3) == number]
        Index.build(tmp_path / name, part, encoder=None)
    Layout(tuple(map(ShardRecord, names)), "a test").write(tmp_path)
    query = random_text(rng, 2)
    with ShardedIndex(tmp_path) as many:
        assert [hit.docno for hit in many.search(query, where="year = 3")] == ["dated"]
        with pytest.raises(UsageError, match="where: no document has the key 'yaer'; there are: year"):
            many.search(query, where="yaer = 3")
        with pytest.raises(UsageError, match="'year' is compared with a text, but its values are numbers"):
            many.search(query, where="year = '3'")


def test_the_filters_that_are_kept_are_bounded_in_number_and_in_bytes(
    many: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = many.snapshot.filtered("i < 0")
    for number in range(100):
        assert many.snapshot.filtered(f"i < {number}").count == number
    assert len(many.snapshot._filters) == 64
    assert many.snapshot.filtered("i < 0") is not first
    monkeypatch.setattr(snapshots, "_FILTER_BYTES_KEPT", 10 * 1500)  # a byte per document
    for number in range(100):
        assert many.snapshot.filtered(f"i >= {number}").count == 1500 - number
    assert len(many.snapshot._filters) == 10
    monkeypatch.setattr(snapshots, "_FILTER_BYTES_KEPT", 0)
    last = many.snapshot.filtered("third = 1")
    assert list(many.snapshot._filters.values()) == [last]
    assert many.snapshot.filtered("third = 1") is last


def test_fetching_does_not_wait_for_a_filter(many: Index) -> None:
    (segment,) = many.snapshot.segments
    with segment.documents._facts._lock:  # as a filter that takes long
        assert many.get("d0007").metadata["i"] == 7
        assert len(many.search(random_text(np.random.default_rng(0), 6))) == 10


def test_more_numbers_than_sqlite_can_give_at_once_are_an_error_that_says_so(tmp_path: Path) -> None:
    text = random_text(np.random.default_rng(0), 1)
    documents = [Document(str(i), "", {"i": i}, text) for i in range(2000)]
    index = Index.build(tmp_path / "i.sec", documents, encoder=None)
    (segment,) = index.snapshot.segments
    segment.documents._facts._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5000)
    with pytest.raises(SecateursError, match=r"too many documents for one filter .*: use shards"):
        index.search(text, where="i >= 0")


def test_a_comparison_that_is_repeated_is_evaluated_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluated: list[Any] = []
    numbers_where = Documents.numbers_where

    def counted(documents: Documents, condition: str, values: Any) -> Any:
        evaluated.append((condition, *values))
        return numbers_where(documents, condition, values)

    monkeypatch.setattr(Documents, "numbers_where", counted)
    assert matching(index, " or ".join(["year > 2018"] * 30)) == "abc"
    assert len(evaluated) == len(index.snapshot.segments)


def test_a_cancelled_search_stops_before_the_next_comparison(many: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, evaluated = Event(), []
    numbers_where = Documents.numbers_where

    def cancel(documents: Documents, condition: str, values: Any) -> Any:
        evaluated.append(values)
        stop.set()
        return numbers_where(documents, condition, values)

    monkeypatch.setattr(Documents, "numbers_where", cancel)
    query = random_text(np.random.default_rng(0), 2)
    with cancelled_by(stop), pytest.raises(CancelledError):
        many.search(query, where=" or ".join(f"i > {2000 + n}" for n in range(20)))
    assert len(evaluated) == 1


def test_a_cancelled_search_stops_before_it_counts_the_matching_tokens(many: Index) -> None:
    stop = Event()
    where = "third = 2 and i > 7"
    many.snapshot.filtered(where)
    stop.set()
    with cancelled_by(stop), pytest.raises(CancelledError):
        many.search(random_text(np.random.default_rng(0), 2), where=where, frequencies="matching")
    assert "frequencies" not in vars(many.snapshot.filtered(where))


def test_a_new_filter_is_evaluated_once_for_searches_at_the_same_time(
    many: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated: list[Any] = []
    all_wait, go = Event(), Event()
    numbers_where = Documents.numbers_where

    def held(documents: Documents, condition: str, values: Any) -> Any:
        evaluated.append(values)
        assert go.wait(60)
        return numbers_where(documents, condition, values)

    def filtered() -> int:
        if not barrier.wait(60):
            all_wait.set()
        return many.snapshot.filtered("i > 77").count

    barrier = Barrier(4)
    monkeypatch.setattr(Documents, "numbers_where", held)
    with ThreadPoolExecutor(4) as searches:
        counts = [searches.submit(filtered) for _ in range(4)]
        assert all_wait.wait(60)
        time.sleep(0.2)  # for the other three to reach the filter; if they are late, they find it kept
        go.set()
        assert {count.result() for count in counts} == {1422}
    assert len(evaluated) == 1


def test_a_search_that_waits_for_the_filter_of_a_cancelled_search_evaluates_it(
    many: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop, begun, go = Event(), Event(), Event()
    numbers_where = Documents.numbers_where
    where = "i > 78 and third < 3"

    def held(documents: Documents, condition: str, values: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return numbers_where(documents, condition, values)

    def cancelled() -> int:
        with cancelled_by(stop):
            return many.snapshot.filtered(where).count

    monkeypatch.setattr(Documents, "numbers_where", held)
    with ThreadPoolExecutor(3) as searches:
        first = searches.submit(cancelled)
        assert begun.wait(60)
        waiting = searches.submit(cancelled)
        other = searches.submit(lambda: many.snapshot.filtered(where).count)
        stop.set()
        with pytest.raises(CancelledError):
            waiting.result(60)  # while the first still evaluates
        go.set()
        with pytest.raises(CancelledError):
            first.result(60)
        assert other.result(60) == 1421

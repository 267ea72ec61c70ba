"""`Index` and `ShardedIndex` keep one contract: the same verbs, signatures, context management, copying and errors."""

import copy
import inspect
import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_documents, random_text
from test_sharded import hits_of, make_shards

from secateurs import Index
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.contract import AnyIndex
from secateurs.effort import level, share
from secateurs.errors import SecateursError

DOCUMENTS = random_documents(30)
QUERY = random_text(np.random.default_rng(1), 4)
BEYOND_THE_CONTRACT = {Index: {"build", "snapshot", "manifest", "change"}, ShardedIndex: set()}
SPECIAL = {"__len__", "__contains__", "__enter__", "__exit__", "__repr__"}


def verbs(kind: type) -> dict[str, Any]:
    return {
        name: inspect.getattr_static(kind, name) for name in dir(kind) if not name.startswith("_") or name in SPECIAL
    }


@pytest.mark.parametrize("kind", [Index, ShardedIndex])
def test_every_verb_has_the_signature_of_the_contract(kind: type[AnyIndex]) -> None:
    contract, offered = verbs(AnyIndex), verbs(kind)
    assert len(contract) > 30
    assert offered.keys() - contract.keys() == BEYOND_THE_CONTRACT[kind]
    for name, verb in contract.items():
        assert type(offered[name]) is type(verb), name  # a property stays one
        if callable(verb):
            expected, found = inspect.signature(verb), inspect.signature(offered[name])
            assert list(found.parameters.values()) == list(expected.parameters.values()), name
    assert not inspect.isabstract(kind)
    assert list(inspect.signature(kind).parameters)[:2] == ["path", "encoder"]


@pytest.fixture(params=["one index", "shards"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyIndex]:
    index: AnyIndex
    if request.param == "shards":
        index = ShardedIndex(make_shards(tmp_path / "some.sec", DOCUMENTS, 3, store="float16"))
    else:
        index = Index.build(tmp_path / "some.sec", DOCUMENTS, encoder=None, store="float16")
    yield index
    index.close()


def test_repr_names_the_class_the_path_and_the_size_and_says_when_it_is_closed(opened: AnyIndex) -> None:
    name = type(opened).__name__
    assert repr(opened) == f"{name}({str(opened.path)!r}: 30 documents, 16 dimensions)"
    opened.close()
    assert repr(opened) == f"{name}({str(opened.path)!r}: closed)"


def test_calibrating_measures_every_part_and_searches_follow_it(opened: AnyIndex) -> None:
    assert opened.info()["calibration"] is None
    opened.calibrate([QUERY])
    assert opened.info()["calibration"]["given"]
    opened.calibrate()
    measured = opened.info()["calibration"]
    assert (measured["queries"], measured["given"]) == (30, False)
    for effort, values in measured["efforts"].items():
        assert values["promised"] <= values["found"] <= 1
        plan = opened.search(QUERY, effort=effort, gather="cells", k=1).plan
        shards = 3 if "shards" in opened.info() else 1
        assert plan.patience == share(round(level(values["place"]).patience), shards)


def test_the_end_of_a_with_closes_and_closing_again_does_nothing(opened: AnyIndex) -> None:
    with opened as index:
        assert index is opened
        assert len(index.search(QUERY)) == 10
    opened.close()
    opened.close()
    with pytest.raises(SecateursError, match="is closed"):
        opened.search(QUERY)


USES: dict[str, Callable[[AnyIndex], object]] = {
    "search": lambda index: index.search(QUERY),
    "search_many": lambda index: list(index.search_many([QUERY])),
    "decide": lambda index: index.decide(QUERY),
    "explain": lambda index: index.explain(QUERY, "d001"),
    "candidates": lambda index: index.candidates(QUERY),
    "score": lambda index: index.score(QUERY, ["d001"]),
    "similarities": lambda index: index.similarities(QUERY, "d001"),
    "searched": lambda index: len(index.searched()),
    "__len__": len,
    "__contains__": lambda index: "d001" in index,
    "get": lambda index: index.get("d001"),
    "documents": lambda index: list(index.documents()),
    "add": lambda index: index.add(random_documents(1)),
    "update": lambda index: index.update(random_documents(1)),
    "update_metadata": lambda index: index.update_metadata({"d001": {"i": 2}}),
    "delete": lambda index: index.delete("d001"),
    "fields": lambda index: index.fields(),
    "export": lambda index: index.export("-"),
    "push": lambda index: index.push("user/name"),
    "compact": lambda index: index.compact(),
    "calibrate": lambda index: index.calibrate(),
    "refresh": lambda index: index.refresh(),
    "info": lambda index: index.info(),
    "check": lambda index: index.check(),
    "dim": lambda index: index.dim,
    "gatherers": lambda index: index.gatherers,
    "frequencies": lambda index: index.frequencies,
    "encoder_spec": lambda index: index.encoder_spec,
    "has_encoder": lambda index: index.has_encoder,
    "encoder": lambda index: index.encoder,
    "encode_query": lambda index: index.encode_query(QUERY),
    "load": lambda index: index.load(),
    "token_text": lambda index: index.token_text(1),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
}


def test_every_use_of_a_closed_index_says_that_it_is_closed(opened: AnyIndex) -> None:
    opened.close()
    for use in USES.values():
        with pytest.raises(SecateursError, match=r"some\.sec is closed: open it again"):
            use(opened)


def test_every_verb_is_tried_on_a_closed_index() -> None:
    untried = {"close", "pull", "retriever", "text_loader", "use_encoder", "__enter__", "__exit__", "__repr__"}
    assert verbs(AnyIndex).keys() - untried <= USES.keys()


def search_and_close(index: AnyIndex, results: Any) -> None:
    with index:
        results.put(hits_of(index.search(QUERY)))


@pytest.mark.slow
def test_a_pickled_index_is_opened_again_in_another_process(opened: AnyIndex) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=search_and_close, args=(opened, results))
    process.start()
    assert results.get(timeout=120) == hits_of(opened.search(QUERY))
    process.join()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda index: pickle.loads(pickle.dumps(index))])
def test_a_copy_opens_the_folder_again_and_shares_nothing_that_closing_could_take_away(
    opened: AnyIndex, copied: Callable[[AnyIndex], AnyIndex], tmp_path: Path
) -> None:
    expected = hits_of(opened.search(QUERY))
    twin = copied(opened)
    assert type(twin) is type(opened)
    assert hits_of(twin.search(QUERY)) == expected
    twin.close()
    del twin
    with (tmp_path / "unrelated").open("w") as unrelated:
        assert hits_of(opened.search(QUERY)) == expected
        opened.add([random_documents(31)[-1]])
        assert len(opened) == 31
        os.fstat(unrelated.fileno())
        unrelated.write("still open")
        unrelated.flush()
    opened.check()


def test_scores_are_of_the_docnos_of_any_iterable_or_of_one_docno(opened: AnyIndex) -> None:
    expected = opened.score(QUERY, ["d004", "d001"])
    assert opened.score(QUERY, iter(["d004", "d001"])) == expected  # type: ignore[arg-type]
    assert opened.score(QUERY, "d004") == expected[:1]

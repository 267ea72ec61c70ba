"""`offset`: a page of a ranking is the slice of the longer ranking, in one index and over shards."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from conftest import random_documents, random_text
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sharded import hits_of, make_shards

from secateurs import Document, Index
from secateurs.cluster.search.sharded_index import ShardedIndex
from secateurs.contract import AnyIndex
from secateurs.errors import UsageError

DOCUMENTS = [
    Document(document.docno, "", {"even": number % 2 == 0}, document.encoded)
    for number, document in enumerate(random_documents(120))
]
QUERY = random_text(np.random.default_rng(1), 4)


@pytest.fixture(scope="module", params=["one index", "shards"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnyIndex]:
    path = tmp_path_factory.mktemp("pages") / "pages.sec"
    index: AnyIndex
    if request.param == "shards":
        index = ShardedIndex(make_shards(path, DOCUMENTS, 3, store="float16"))
    else:
        index = Index.build(path, DOCUMENTS, encoder=None, store="float16")
    yield index
    index.close()


@given(
    k=st.integers(1, 130),
    offset=st.integers(0, 130),
    others=st.fixed_dictionaries(
        {},
        optional={
            "where": st.just("even = true"),
            "gather": st.sampled_from(["cells", "exhaustive"]),
            "p": st.sampled_from([1, 2, None]),
            "nprobe": st.integers(1, 8),
            "candidates": st.integers(1, 30),
            "min_relevance": st.sampled_from([0.1, 0.2, 0.3]),
        },
    ),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_page_is_the_slice_of_the_longer_ranking(
    opened: AnyIndex, k: int, offset: int, others: dict[str, Any]
) -> None:
    longer = opened.search(QUERY, k + offset, **others)
    page = opened.search(QUERY, k, offset=offset, **others)
    assert hits_of(page) == hits_of(longer)[offset:]
    assert page.stats.documents_scored == longer.stats.documents_scored


def test_exact_pages_together_are_the_whole_ranking_without_a_gap_or_a_repeat(opened: AnyIndex) -> None:
    pages = [opened.search(QUERY, 25, offset=offset, effort="exact") for offset in range(0, 150, 25)]
    assert [len(page) for page in pages] == [25, 25, 25, 25, 20, 0]
    docnos = [hit.docno for page in pages for hit in page]
    assert docnos == [hit.docno for hit in opened.search(QUERY, 120, effort="exact")]
    assert sorted(docnos) == sorted(document.docno for document in DOCUMENTS)


def test_with_candidates_given_all_pages_within_them_come_from_one_ranking(opened: AnyIndex) -> None:
    how: dict[str, Any] = {"gather": "cells", "candidates": 40, "p": 2}
    whole = hits_of(opened.search(QUERY, 40, **how))
    for offset in range(0, 40, 10):
        assert hits_of(opened.search(QUERY, 10, offset=offset, **how)) == whole[offset : offset + 10]


@pytest.mark.parametrize("offset", [-1, 1.5, True, "1", None])
def test_an_offset_is_a_whole_number_of_at_least_0(opened: AnyIndex, offset: Any) -> None:
    with pytest.raises(UsageError, match="offset must be a whole number of at least 0"):
        opened.search(QUERY, offset=offset)

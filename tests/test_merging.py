"""Embeddings of a document that are alike become one; its positions, tokens and frequencies stay what they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import random_text
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_sharded import make_shards

from secateurs import Document, EncodedText, Index, ShardedIndex, TokenKind
from secateurs.cluster.build.pieces import Pieces, piece_path, write_piece
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.errors import UsageError
from secateurs.frequencies import Frequencies
from secateurs.kernels.maxsim import maxsim
from secateurs.kernels.merging import equal_rows, group_nearest, group_repeats
from secateurs.matches import find_matches
from secateurs.settings import STORES
from secateurs.storage.merging import choose_merge, merge_alike
from secateurs.storage.position_rows import TextPositions, share_equal, tokens_of_rows
from secateurs.storage.recipe import Recipe
from secateurs.storage.repair import repair

REPEATS = "the pond and the goldfish and the pond and the goldfish and the cat"


def text_of(embeddings: Any, token_ids: Any, kinds: Any = None) -> EncodedText:
    return EncodedText(embeddings, token_ids, np.zeros(len(token_ids)) if kinds is None else kinds)


def units(rng: np.random.Generator, count: int, dim: int, spread: float = 1.0) -> NDArray[np.float32]:
    """Directions around the first axis, the nearer to it the smaller the spread."""
    rows = rng.standard_normal((count, dim)) * spread
    rows[:, 0] += 1
    unit: NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    return unit


def repeats_in_python(rows: NDArray[np.float32], token_ids: list[int], threshold: float, most: int) -> list[int]:
    """The plain twin of group_repeats."""
    members: list[list[int]] = []
    groups = []
    for i, row in enumerate(rows.astype(np.float64)):
        best, highest = len(members), threshold
        of_token = [number for number, group in enumerate(members) if token_ids[group[0]] == token_ids[i]]
        for number in of_token[-most:]:
            mean = rows[members[number]].astype(np.float64).sum(axis=0)
            cosine = float(row @ mean / np.linalg.norm(mean))
            if cosine > highest:
                best, highest = number, cosine
        if best == len(members):
            members.append([])
        members[best].append(i)
        groups.append(best)
    return groups


@settings(deadline=None)  # the first call compiles
@given(
    st.integers(0, 10_000),
    st.integers(1, 40),
    st.integers(2, 30),
    st.integers(1, 5),
    st.floats(0.2, 0.98),
    st.integers(1, 45),
)
def test_the_kernel_groups_repeats_as_its_plain_twin(
    seed: int, count: int, dim: int, types: int, threshold: float, most: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = units(rng, count, dim, 0.5)
    token_ids = rng.integers(0, types, count).astype(np.int32)
    groups = np.empty(count, dtype=np.int64)
    found = group_repeats(rows, token_ids, np.argsort(token_ids, kind="stable"), threshold, most, groups)
    assert groups.tolist() == repeats_in_python(rows, token_ids.tolist(), threshold, most)
    assert found == groups.max() + 1


def test_of_two_groups_that_are_equally_near_the_first_is_taken() -> None:
    rows = np.array([[1, 0], [0, 1], [1, 0], [0, 1], [0.7071068, 0.7071068]], dtype=np.float32)
    groups = np.empty(5, dtype=np.int64)
    assert group_repeats(rows, np.zeros(5, dtype=np.int32), np.arange(5), 0.5, 9, groups) == 2
    assert groups.tolist() == [0, 1, 0, 1, 0]


def nearest_in_python(
    means: NDArray[np.float32], sizes: NDArray[np.float32], token_ids: NDArray[np.int32], left: int
) -> list[int]:
    """The plain twin of group_nearest: costs from the means of the groups, all of them again after every step."""
    members = [[i] for i in range(len(means))]
    weights = sizes.astype(np.float64)
    for any_token in (False, True):
        while len(members) > left:
            best = None
            for a in range(len(members)):
                for b in range(a + 1, len(members)):
                    first, second = members[a], members[b]
                    if not any_token and token_ids[first[0]] != token_ids[second[0]]:
                        continue
                    n, m = weights[first].sum(), weights[second].sum()
                    apart = np.average(means[first].astype(np.float64), axis=0, weights=weights[first]) - np.average(
                        means[second].astype(np.float64), axis=0, weights=weights[second]
                    )
                    cost = float(apart @ apart) * n * m / (n + m)
                    if best is None or cost < best[0] - 1e-12:
                        best = (cost, a, b)
            if best is None:
                break
            _, a, b = best
            members[a] = sorted(members[a] + members.pop(b))
    joined = [0] * len(means)
    for group in members:
        for i in group:
            joined[i] = group[0]
    return joined


@settings(deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 16), st.integers(1, 4), st.integers(1, 16))
def test_the_kernel_joins_the_nearest_groups_as_its_plain_twin(seed: int, count: int, types: int, left: int) -> None:
    rng = np.random.default_rng(seed)
    means = units(rng, count, 6)
    sizes = rng.integers(1, 4, count).astype(np.float32)
    token_ids = rng.integers(0, types, count).astype(np.int32)
    joined = np.empty(count, dtype=np.int64)
    group_nearest(means, sizes, token_ids, left, joined)
    assert joined.tolist() == nearest_in_python(means, sizes, token_ids, left)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-3, 3), min_size=2, max_size=2), min_size=1, max_size=60))
def test_equal_rows_get_the_same_group_and_others_do_not(rows: list[list[int]]) -> None:
    groups = np.empty(len(rows), dtype=np.int64)
    count = equal_rows(np.array(rows, dtype=np.int64), groups)
    firsts = list(dict.fromkeys(map(tuple, rows)))
    assert groups.tolist() == [firsts.index(tuple(row)) for row in rows]
    assert count == len(firsts)


def test_two_like_embeddings_of_a_word_become_their_normalised_mean() -> None:
    merged = merge_alike(text_of([[0.6, 0.8], [0.8, 0.6], [1.0, 0.0]], [7, 7, 8]), 0.9)
    half = np.sqrt(0.5)  # the direction between (0.6, 0.8) and (0.8, 0.6), whose cosine is 0.96
    assert merged.embeddings == pytest.approx(np.array([[half, half], [half, half], [1.0, 0.0]]))
    assert merged.token_ids.tolist() == [7, 7, 8]


def test_embeddings_of_different_words_or_below_the_threshold_stay_as_they_are() -> None:
    text = text_of([[0.6, 0.8], [0.8, 0.6], [0.6, 0.8]], [7, 7, 8])
    assert merge_alike(text, 0.97).embeddings.tobytes() == text.embeddings.tobytes()
    assert merge_alike(text, None) is text


def test_special_tokens_are_never_merged() -> None:
    special = [TokenKind.CLS, TokenKind.SUMMARY, TokenKind.SEP]
    text = text_of(np.ones((3, 4)), [1, 1, 1], special)
    assert merge_alike(text, 0.5, pool=3) is text


def test_an_embedding_that_is_not_of_length_one_keeps_the_length_of_its_group() -> None:
    merged = merge_alike(text_of([[3.0, 0.0], [5.0, 0.0]], [7, 7]), 0.9)
    assert merged.embeddings.tolist() == [[4.0, 0.0], [4.0, 0.0]]


def test_embeddings_of_length_zero_are_not_merged_with_others() -> None:
    merged = merge_alike(text_of([[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]], [7, 7, 7]), 0.9)
    assert merged.embeddings.tolist() == [[0.0, 0.0], [1.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("pool", [2, 3])
def test_pooling_leaves_one_embedding_for_so_many_words(pool: int) -> None:
    rng = np.random.default_rng(0)
    kinds = np.zeros(25)
    kinds[0] = TokenKind.SUMMARY
    pooled = merge_alike(text_of(units(rng, 25, 8), rng.integers(0, 9, 25), kinds), None, pool)
    assert len(np.unique(pooled.embeddings, axis=0)) == 1 + -(-24 // pool)
    assert np.linalg.norm(pooled.embeddings, axis=1) == pytest.approx(1, abs=1e-5)


def test_a_document_that_is_longer_than_what_is_pooled_at_once_is_pooled_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("secateurs.storage.merging._POOLED_AT_ONCE", 16)
    rng = np.random.default_rng(0)
    pooled = merge_alike(text_of(units(rng, 100, 8), rng.integers(0, 9, 100)), None, 2)
    assert 50 <= len(np.unique(pooled.embeddings, axis=0)) <= 57


def test_rows_that_positions_share_are_stored_once_and_read_back_at_each_position() -> None:
    rows = np.array([[1, 2, 3], [4, 5, 6], [1, 2, 3], [7, 8, 9], [4, 5, 6]], dtype=np.float16)
    different, position_rows = share_equal(rows)
    assert different.tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert different[position_rows].tolist() == rows.tolist()


def test_a_row_of_several_words_has_the_token_of_the_rarest() -> None:
    token_ids = np.array([5, 5, 9, 5, 9, 3], dtype=np.int32)
    positions = TextPositions(np.array([0, 3, 6]), np.array([0, 1, 1, 0, 0, 1]))
    frequencies = Frequencies.of(token_ids, positions.offsets)
    tokens = tokens_of_rows(np.array([0, 2, 4]), positions, token_ids, frequencies)
    assert tokens.tolist() == [5, 9, 9, 3]  # 5 occurs three times, 9 twice, 3 once


@pytest.mark.parametrize("wrong", [0, 1, 1.5, -0.2, True, "0.9", "none"])
def test_a_threshold_that_is_no_cosine_is_an_error(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="merge is a cosine between 0 and 1"):
        Index.build(tmp_path / "i.sec", [], encoder=None, merge=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 2.0, True, "2"])
def test_pooling_by_what_is_no_whole_number_is_an_error(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="pool is a whole number"):
        Index.build(tmp_path / "i.sec", [], encoder=None, pool=wrong)


def test_by_default_the_encoders_description_says_what_to_merge_and_arrays_are_stored_as_given(
    encoder: OnnxEncoder,
) -> None:
    assert choose_merge("auto", encoder) == encoder.settings.merge
    assert choose_merge("auto", None) is None
    assert choose_merge(0.9, None) == 0.9
    assert choose_merge(None, encoder) is None


def repeating_documents(count: int = 60, dim: int = 16) -> list[Document]:
    """Each word of a document occurs several times, in nearly the same direction."""
    rng = np.random.default_rng(1)
    documents = []
    for i in range(count):
        types = rng.choice(40, size=5, replace=False)
        token_ids = rng.choice(types, size=rng.integers(6, 14))
        directions = {token: units(rng, 1, dim)[0] for token in types.tolist()}
        rows = np.stack([directions[token] for token in token_ids.tolist()]) + rng.standard_normal((1, dim)) * 0.02
        rows += rng.standard_normal(rows.shape) * 0.02
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        documents.append(Document(f"d{i}", "", {"even": i % 2 == 0}, text_of(rows, token_ids)))
    return documents


Build = Callable[..., Index]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    def build_next(documents: list[Document], **options: Any) -> Index:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.sec"
        return Index.build(path, documents, encoder=None, progress=False, **options)

    return build_next


@pytest.mark.parametrize("store", STORES)
def test_the_score_is_that_of_the_merged_embeddings(build: Build, store: str) -> None:
    documents = repeating_documents()
    index = build(documents, merge=0.9, store=store)
    assert index.info()["merged_embeddings"] > 100
    query = random_text(np.random.default_rng(5), 6)
    for hit in index.search(query, k=10, gather="exhaustive"):
        encoded = documents[int(hit.docno[1:])].encoded
        assert encoded is not None
        rows = merge_alike(encoded, 0.9).embeddings
        expected = maxsim(query.embeddings, rows, np.array([0]), np.array([len(rows)]))[0]
        assert hit.score == pytest.approx(expected, abs={"int8": 0.05, "residual4": 0.3}.get(store, 0.01))


def test_merging_changes_no_frequency(build: Build) -> None:
    documents = repeating_documents()
    plain, merged, pooled = build(documents), build(documents, merge=0.9), build(documents, pool=3)
    for index in (merged, pooled):
        for frequencies, expected in (
            (index.frequencies, plain.frequencies),
            (index.snapshot.filtered("even = true").frequencies, plain.snapshot.filtered("even = true").frequencies),
        ):
            assert frequencies.token_ids.tolist() == expected.token_ids.tolist()
            assert frequencies.collection.tolist() == expected.collection.tolist()
            assert frequencies.document.tolist() == expected.document.tolist()
    gone = [f"d{i}" for i in range(0, 60, 7)]
    for index in (plain, merged):
        index.delete(gone)
    assert merged.frequencies.collection.tolist() == plain.frequencies.collection.tolist()


def test_added_documents_are_merged_and_those_that_are_copied_are_not_merged_again(build: Build) -> None:
    documents = repeating_documents(80)
    index = build(documents[:40], merge=0.9, store="float16")
    index.add(documents[40:60])
    index.update(documents[50:80])
    expected = build(documents, merge=0.9, store="float16")
    embeddings = {d.docno: d.encoded.embeddings for d in expected.documents() if d.encoded is not None}
    for _ in range(3):
        assert index.info()["embeddings"] == expected.info()["embeddings"]
        assert index.info()["merged_embeddings"] == expected.info()["merged_embeddings"]
        for document in index.documents():
            assert document.encoded is not None
            assert document.encoded.embeddings.tobytes() == embeddings[document.docno].tobytes()
        index.check()
        index.compact()


def test_segments_with_and_without_shared_rows_are_joined(build: Build) -> None:
    documents = repeating_documents(8)
    rng = np.random.default_rng(9)
    single = [Document(f"s{i}", "", {}, text_of(units(rng, 3, 16), [1, 2, 3])) for i in range(8)]
    index = build(documents, merge=0.9)
    for document in single:  # four small segments become one, with the first
        index.add([document])
    index.check()
    assert len(index.manifest.segments) < 5
    found = {document.docno: document.encoded for document in index.documents()}
    for document in single:
        stored = found[document.docno]
        assert stored is not None
        assert document.encoded is not None
        assert stored.token_ids.tolist() == [1, 2, 3]
        assert stored.embeddings == pytest.approx(document.encoded.embeddings, abs=0.02)


def test_a_collection_in_shards_stores_and_finds_what_one_index_does(tmp_path: Path) -> None:
    documents = repeating_documents(120)
    options = {"merge": 0.9, "store": "float16", "progress": False}
    index = Index.build(tmp_path / "one.sec", documents, encoder=None, **options)  # type: ignore[arg-type]
    query = random_text(np.random.default_rng(5), 6)
    with ShardedIndex(make_shards(tmp_path / "many.sec", documents, 3, **options)) as shards:
        for name in ("documents", "embeddings", "merged_embeddings", "merge", "pool"):
            assert shards.info()[name] == index.info()[name]
        ranking = shards.search(query, k=20, gather="exhaustive")
        expected = index.search(query, k=20, gather="exhaustive")
        assert [(hit.docno, hit.score) for hit in ranking] == [(hit.docno, hit.score) for hit in expected]


def test_a_piece_of_a_build_in_shards_holds_merged_documents(tmp_path: Path, build: Build) -> None:
    documents = repeating_documents(20)
    recipe = Recipe("float16", (), 0.9)
    write_piece(piece_path(tmp_path, 0, 0), [("here", document) for document in documents], None, recipe, "digest")
    pieces = Pieces(tmp_path, [1])
    index = build(documents, merge=0.9, store="float16")
    assert pieces.survey().embeddings == index.info()["embeddings"]
    stored = {document.docno: document.encoded for document in index.documents()}
    for _, document in pieces.items():  # noqa: PERF102 (not a mapping)
        assert isinstance(document, Document)
        expected, encoded = stored[document.docno], document.encoded
        assert expected is not None
        assert encoded is not None
        assert encoded.token_ids.tolist() == expected.token_ids.tolist()
        assert encoded.embeddings.tobytes() == expected.embeddings.tobytes()


def test_a_repair_keeps_what_was_merged(build: Build) -> None:
    index = build(repeating_documents(), merge=0.9)
    before = {document.docno: document.encoded for document in index.documents()}
    (segment,) = index.snapshot.segments
    path = segment.folder / "cell_documents.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    path = index.path
    index.close()
    assert not repair(path).lost
    repaired = Index(path)
    repaired.check()
    for document in repaired.documents():
        expected, encoded = before[document.docno], document.encoded
        assert expected is not None
        assert encoded is not None
        assert encoded.embeddings.tobytes() == expected.embeddings.tobytes()


def test_explain_and_highlights_point_at_every_place_of_a_merged_word(encoder: OnnxEncoder, tmp_path: Path) -> None:
    index = Index.build(
        tmp_path / "i.sec", [{"docno": "d", "text": REPEATS}], encoder=encoder, progress=False, merge=0.5
    )
    assert index.info()["merged_embeddings"] > 0
    explanation = index.explain("goldfish", "d")
    fish = next(token for token in explanation.tokens if token.token == "##fish")
    similarities, token_ids = index.similarities(index.encode_query("goldfish"), "d")
    assert len(token_ids) == len(similarities)
    assert len(fish.match_positions) == 2
    assert {encoder.token_text(int(token_ids[position])) for position in fish.match_positions} == {"##fish"}
    query = index.encode_query("goldfish")
    matches = find_matches(index, query, index.frequencies, "d", REPEATS) or []
    at = [match.start for match in matches if fish.position in match.positions]
    assert at == [REPEATS.index("fish"), REPEATS.rindex("fish")]


def test_every_query_embedding_is_counted_once_in_the_contributions_of_all_places(
    encoder: OnnxEncoder, tmp_path: Path
) -> None:
    from secateurs.service.highlights import highlights

    index = Index.build(
        tmp_path / "i.sec", [{"docno": "d", "text": REPEATS}], encoder=encoder, progress=False, merge=0.5
    )
    query = index.encode_query("goldfish pond")
    similarities, _ = index.similarities(query, "d")
    found = highlights(index, query, index.frequencies, "d", REPEATS) or []
    marked = {position for highlight in found for position in highlight.positions}
    expected = similarities.max(axis=0)[sorted(marked)].sum()
    assert sum(highlight.contribution for highlight in found) == pytest.approx(expected)

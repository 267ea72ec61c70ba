"""Store residual4: a row is coded once, whatever happens to the index afterwards."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from secateurs import Document, EncodedText, Index
from secateurs.storage import code_tables
from secateurs.storage.code_tables import CodeTable, learn_table
from secateurs.storage.rounding import Int8Store

DIM = 36  # a whole group of codes, and a smaller group


def documents(first: int, count: int, size: float = 1.0, topic: int = 0) -> list[Document]:
    """Embeddings near the hundred words of a topic. `size` stretches them."""
    words = np.random.default_rng(1000 + topic).normal(size=(100, DIM))
    made = []
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        ids = rng.integers(0, 100, 20)
        embeddings = (words[ids] + 0.2 * rng.normal(size=(20, DIM))) * size
        encoded = EncodedText(embeddings.astype(np.float32), ids.astype(np.int32), np.zeros(20, np.uint8))
        made.append(Document(f"d{number}", "", {}, encoded))
    return made


def build(path: Path, given: list[Document], **options: Any) -> Index:
    return Index.build(path / "i.sec", given, encoder=None, store="residual4", **options)


def decoded(index: Index, docnos: set[str]) -> dict[str, np.ndarray]:
    stored = {d.docno: d.encoded.embeddings for d in index.documents() if d.encoded is not None}
    return {docno: stored[docno] for docno in docnos}


def equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(one[docno], other[docno]) for docno in one)


def test_ten_compactions_and_many_additions_leave_embeddings_as_they_were(tmp_path: Path) -> None:
    index = build(tmp_path, documents(0, 60))
    first = {f"d{i}" for i in range(60)}
    as_built, scale = decoded(index, first), index.snapshot.codebook.int8
    for _ in range(5):
        index.compact()
    assert equal(decoded(index, first), as_built)
    learnt = {index.snapshot.manifest.codebook.name}
    for start in range(60, 900, 120):
        index.add(documents(start, 120))
        learnt.add(index.snapshot.manifest.codebook.name)
    assert len(learnt) > 1  # the codebook was learnt again on the way
    later = {f"d{i}" for i in range(900)}
    as_added = decoded(index, later)
    index.delete(["d7", "d70"])
    for _ in range(5):
        index.compact()
    assert index.snapshot.codebook.int8 is not None
    assert scale is not None
    assert index.snapshot.codebook.int8.step == scale.step
    assert equal(decoded(index, first - {"d7"}), as_built)
    assert equal(decoded(index, later - {"d7", "d70"}), as_added)


def test_on_another_scale_embeddings_are_rounded_once(tmp_path: Path) -> None:
    index = build(tmp_path, documents(0, 40))
    first = {f"d{i}" for i in range(40)}
    as_built = decoded(index, first)
    scales = [index.snapshot.codebook.int8]
    for size, start in ((3.0, 100), (9.0, 200)):
        index.add(documents(start, 40, size))
        scales.append(index.snapshot.codebook.int8)
        assert scales[0] is not None
        assert scales[-1] is not None
        now = decoded(index, first)
        for docno in first:
            # What the first scale cut off is not cut off any more.
            within = np.abs((as_built[docno] - scales[0].centre) / scales[0].step) < 126.5
            # A centroid and an offset are rounded to half a step each, on either scale, after any number of scales.
            apart = np.abs(now[docno] - as_built[docno])[within]
            assert apart.max() <= scales[0].step + scales[-1].step
    assert len({scale.step for scale in scales if scale is not None}) == 3
    index.compact()
    assert equal(decoded(index, first), now)


def test_embeddings_that_decode_to_the_same_row_survive_a_compaction(tmp_path: Path) -> None:
    given = documents(0, 30)
    encoded = given[3].encoded
    assert encoded is not None
    embeddings = np.repeat(encoded.embeddings[:10], 2, axis=0)
    embeddings[1::2] += 1e-3  # less than a step
    given[3] = Document("d3", "", {}, EncodedText(embeddings, encoded.token_ids, encoded.token_kinds))
    index = build(tmp_path, given)
    everything = {document.docno for document in given}
    as_built = decoded(index, everything)
    assert (as_built["d3"][::2] == as_built["d3"][1::2]).all(axis=1).any()
    for _ in range(2):
        index.compact()
    assert equal(decoded(index, everything), as_built)


def test_a_table_is_extended_for_more_rows_and_for_rows_of_another_kind(tmp_path: Path) -> None:
    index = build(tmp_path, documents(0, 64))  # 1,280 rows

    def table() -> CodeTable:
        code = index.snapshot.codebook.code
        assert code is not None
        return code

    assert (len(table().centroids), table().newest) == (40, 0)
    index.compact()
    assert len(table().centroids) == 40  # nothing new to learn
    index.add(documents(64, 64, topic=1))
    index.compact()
    assert len(table().centroids) == 40 + 80
    assert table().newest == 40
    as_coded = decoded(index, {"d5", "d100"})
    for _ in range(3):
        index.compact()
    assert len(table().centroids) == 120  # no row has the new ones yet, so nothing says that they do not fit
    assert equal(decoded(index, {"d5", "d100"}), as_coded)
    index.add(documents(128, 64, topic=1))
    segment = index.snapshot.segments[-1]
    assert (segment.arrays["code_numbers.npy"] >= 80).mean() > 0.9


def test_rows_far_from_their_centroids_ask_for_a_new_table() -> None:
    table = CodeTable(np.zeros((100, 4), np.float16), np.zeros((100, 16), np.float16), newest=50)
    old, narrow, wide = np.uint16(3), np.uint16(120), np.uint16(121)
    assert not table.is_outgrown(np.repeat([old, narrow, wide], [50, 36, 14]), rows=100)
    assert table.is_outgrown(np.repeat([old, narrow, wide], [50, 34, 16]), rows=100)
    assert not table.is_outgrown(np.repeat([old, wide], [80, 20]), rows=100)  # too few to tell
    assert table.is_outgrown(np.repeat([narrow], [10]), rows=32 * 200)  # twice as many centroids are due


def test_a_full_table_is_not_extended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_tables, "_MOST", 5)
    rows = np.random.default_rng(0).integers(-100, 100, (96, 8)).astype(np.int8)
    int8 = Int8Store(np.zeros(8, np.float32), 0.01)
    table = learn_table(rows, int8)
    assert len(table.centroids) == 3
    assert table.extended(rows, int8) is table


def test_levels_are_as_wide_as_the_rows_of_their_centroid_spread() -> None:
    rng = np.random.default_rng(0)
    near, far = rng.normal(-60, 2, (480, 8)), rng.normal(60, 12, (480, 8))
    rows = np.clip(np.rint(np.concatenate([near, far])), -127, 127).astype(np.int8)
    table = learn_table(rows, Int8Store(np.zeros(8, np.float32), 1.0))
    widths = (table.levels[:, -1] - table.levels[:, 0]).astype(np.float64)
    is_near = table.centroids[:, 0] < 0
    assert np.median(widths[~is_near]) > 3 * np.median(widths[is_near])

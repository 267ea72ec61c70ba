"""What each store loses against float32."""

import numpy as np
import pytest

from secateurs import Document, EncodedText, Index
from secateurs.errors import UsageError
from secateurs.kernels.decoding import CodedRows, encode_rows
from secateurs.kernels.maxsim import maxsim
from secateurs.storage.code_tables import CodeTable, fit_levels
from secateurs.storage.codecs import codec
from secateurs.storage.rounding import Float16Store, Int8Store


def test_int8_rounds_to_steps_around_the_centre() -> None:
    store = Int8Store(np.array([0.5, -0.5], dtype=np.float32), step=0.01)
    rows = store.encode(np.array([[0.5, -0.5], [0.514, -0.486], [9.0, -9.0]], dtype=np.float32))
    assert rows.tolist() == [[0, 0], [1, 1], [127, -127]]
    assert store.decode(rows)[1] == pytest.approx([0.51, -0.49])


def test_centring_moves_every_score_of_a_query_by_the_same_amount() -> None:
    rng = np.random.default_rng(0)
    embeddings = rng.normal(size=(6, 8)).astype(np.float32)
    query = rng.normal(size=(3, 8)).astype(np.float32)
    centre = embeddings.mean(axis=0)
    starts, ends = np.array([0, 2, 3]), np.array([2, 3, 6])
    shift = maxsim(query, embeddings, starts, ends) - maxsim(query, embeddings - centre, starts, ends)
    assert shift == pytest.approx([float((query @ centre).sum())] * 3, abs=1e-5)


def test_float16_is_exact_to_half_precision() -> None:
    values = np.array([[0.1, -0.9997]], dtype=np.float32)
    assert Float16Store().decode(Float16Store().encode(values)) == pytest.approx(values, rel=2**-11)


def test_an_unknown_store_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="int8, int16, float16, residual4"):
        codec("int4")


def test_two_residual_codes_share_a_byte() -> None:
    int8 = Int8Store(np.zeros(4, dtype=np.float32), step=0.5)
    levels = np.arange(-8, 8) * 1.5  # three steps apart
    table = CodeTable(np.array([[5, 2.5, 0, 0]], np.float16), levels[None].astype(np.float16)).rounded(int8)
    assert table[0].tolist() == [10, 5, 0, 0, *range(-24, 24, 3)]
    assert table[1].tolist() == [10, 5, 0, 0, *range(-48, 48, 6)]  # twice as wide
    rows = np.array([[10, 11, -24, 0], [58, 5, -48, 0]], dtype=np.int8)
    codes, numbers = np.empty((2, 2), dtype=np.uint8), np.zeros(2, dtype=np.uint16)
    encode_rows(rows, table, numbers, codes)
    # differences 0, 6, -24, 0 are codes 8, 10, 0, 8: dimensions 0 and 2 meet in byte 0
    assert codes[0].tolist() == [8 | 0 << 4, 10 | 8 << 4]
    assert numbers.tolist() == [0, 1]  # the second row is too far for the narrow levels
    assert CodedRows(codes, numbers, table, dim=3)[:].tolist() == [[10, 11, -24], [52, 5, -48]]


def test_levels_settle_where_the_values_are() -> None:
    values = np.repeat(np.arange(-40.0, 40, 5), 100)
    assert fit_levels(values).tolist() == list(range(-40, 40, 5))


@pytest.mark.parametrize(("store", "least"), [("residual4", 0.85), ("int8", 0.93), ("int16", 0.995), ("float16", 0.99)])
def test_top_ten_overlaps_that_of_float32_on_real_embeddings(
    store: str,
    least: float,
    encoded_passages: list[Document],
    encoded_queries: list[EncodedText],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    index = Index.build(
        tmp_path_factory.mktemp("store") / "s.sec", encoded_passages, encoder=None, store=store, gather=()
    )
    rows = np.concatenate([d.encoded.embeddings for d in encoded_passages if d.encoded is not None])
    offsets = np.cumsum([0, *(len(d.encoded) for d in encoded_passages if d.encoded is not None)])
    shared = 0
    for query in encoded_queries:
        scores = maxsim(query.embeddings, rows, offsets[:-1], offsets[1:])
        exact = {encoded_passages[i].docno for i in np.argsort(-scores)[:10]}
        shared += len(exact & {hit.docno for hit in index.search(query, gather="exhaustive")})
    assert shared / (10 * len(encoded_queries)) >= least

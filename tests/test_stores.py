"""What each store loses against float32."""

import numpy as np
import pytest

from secateurs import Document, EncodedText, Index
from secateurs.errors import UsageError
from secateurs.kernels.maxsim import maxsim
from secateurs.storage.codecs import codec
from secateurs.storage.codecs.residual4 import Residuals, encode_residuals, fit_levels
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
    levels = np.arange(-8, 8, dtype=np.int8) * 3
    rows = np.array([[10, 11, -24, 127]], dtype=np.int8)
    centroids = np.array([[10, 5, 0, -127]], dtype=np.int8)
    # differences 0, 6, -24, 254: levels 0, 6, -24 and, of too far, the last; dimensions 0 and 2 meet in byte 0
    assert encode_residuals(rows, centroids, levels).tolist() == [[8 | 0 << 4, 10 | 15 << 4]]
    decoded = Residuals(
        encode_residuals(rows, centroids, levels), np.array([0], dtype=np.uint32), centroids, levels, dim=3
    )
    assert decoded[:1].tolist() == [[10, 11, -24]]


def test_levels_settle_where_the_values_are() -> None:
    values = np.repeat(np.arange(-40, 40, 5), 100).astype(np.int16)
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

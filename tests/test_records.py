"""Arrays of a user's own, as an EncodedText takes and refuses them."""

import numpy as np
import pytest

from secateurs import EncodedText, TokenKind
from secateurs.errors import UsageError

ROWS = np.eye(2, 4, dtype=np.float32)


@pytest.mark.parametrize(
    ("embeddings", "token_ids", "token_kinds", "message"),
    [
        (ROWS[0], [1], [0], "embeddings must be a .positions, dim. matrix"),
        (ROWS * np.nan, [1, 2], [0, 0], "NaN or infinity"),
        ([[1.0, 2.0], [1.0]], [1, 2], [0, 0], "the rows do not all have the same number of dimensions"),
        ([["a", "b"], ["c", "d"]], [1, 2], [0, 0], "embeddings must be numbers"),
        (ROWS, [1], [0, 0], "token_ids must have one entry per embedding"),
        (ROWS, [1, 2], [0], "token_kinds must have one entry per embedding"),
        (ROWS, [1, 2**31], [0, 0], "token_ids must be whole numbers from -2147483648 to 2147483647"),
        (ROWS, [1, 2.5], [0, 0], "token_ids must be whole numbers"),
        (ROWS, ["gold", "##fish"], [0, 0], "token_ids must be numbers"),
        (ROWS, [1, 2], ["word", "word"], "token_kinds must be values of TokenKind: 0 WORD, 1 PUNCTUATION"),
        (ROWS, [1, 2], [0, 9], "token_kinds must be values of TokenKind"),
        (ROWS, [1, 2], [0, -1], "token_kinds must be whole numbers from 0 to 255"),
    ],
)
def test_arrays_that_are_no_encoded_text_are_named(
    embeddings: object, token_ids: object, token_kinds: object, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        EncodedText(embeddings, token_ids, token_kinds)  # type: ignore[arg-type]


def test_lists_and_other_number_types_become_the_arrays_that_are_stored() -> None:
    encoded = EncodedText(ROWS.tolist(), [1.0, 2.0], [TokenKind.WORD, TokenKind.MASK])  # type: ignore[arg-type]
    assert encoded.embeddings.dtype == np.float32
    assert encoded.token_ids.tolist() == [1, 2]
    assert encoded.token_ids.dtype == np.int32
    assert encoded.token_kinds.tolist() == [0, 5]
    assert len(encoded) == 2

"""How a store keeps embeddings: one file per store, behind one protocol.

A codec says which arrays of a segment have an entry per embedding (merging copies them entry by entry), and how these
arrays are written and read. Everything else treats all stores alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...settings import STORES, check_choice
from ..codebooks import AnyCodebook, CodebookContent
from ..rounding import Store
from .float16 import Float16
from .int8 import Int8
from .int16 import Int16
from .residual4 import Residual4

Entry = tuple[type[np.generic], tuple[int, ...]]  # dtype and shape of one entry of an array


class Codec(Protocol):
    needs_int8: bool  # whether rows are made from int8 rows
    copies_rows: bool  # whether a rewrite copies what is stored of a row, instead of storing the row again
    staged: type[np.floating[Any]]  # what embeddings are kept as until they are stored
    int8_file: str  # of a new segment: where int8 rows go, if there are any
    codebook_files: tuple[str, ...]  # without which rows cannot be read

    def arrays(self, dim: int) -> Mapping[str, Entry]:
        """The files of a segment with an entry per embedding, the rows among them."""

    def write(
        self,
        folder: Path,
        embeddings: NDArray[Any],
        int8_rows: NDArray[np.int8] | None,
        codebook: CodebookContent,
        progress: bool | None,
        stored: Mapping[str, NDArray[Any]] | None = None,
    ) -> tuple[Any, CodebookContent]:
        """Embeddings, (embeddings, dim), to the files of a new segment; what `rows` would give, and the codebook.

        `int8_rows`, (embeddings, dim), are in `int8_file`; None if nothing needs them. With `copies_rows`, a rewrite
        gives what is `stored` of the last embeddings, as `arrays` describes it: it is copied as it is.
        """

    def rows(self, arrays: Mapping[str, NDArray[Any]], codebook: AnyCodebook) -> Any:
        """What reads like the stored rows, (embeddings, dim), from the opened arrays."""

    def store(self, codebook: AnyCodebook, reach: tuple[float, float] | None = None) -> Store:
        """What decodes rows, and prepares queries for them; `reach` as in SegmentRecord."""

    def reach(self, rows: Any, codebook: AnyCodebook) -> tuple[float, float] | None:
        """Of new rows, for SegmentRecord."""


_CODECS: Mapping[str, Codec] = {"int8": Int8(), "int16": Int16(), "float16": Float16(), "residual4": Residual4()}


def codec(store: str) -> Codec:
    check_choice("store", store, STORES)
    return _CODECS[store]

"""Store int16: int8 rows, and 8 more bits for each value in a second file, which is read for the best documents only.

A search scores documents on the int8 rows, and those that can be among the k best again on both: see
kernels/refining.py. So it is about as fast as int8, and as exact as float16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.refining import RefinedQuery, RefinedRows, encode_refinements, prepare_refined
from ...progress import progress_bar
from ..codebooks import AnyCodebook, CodebookContent
from ..file_names import CENTRE, EMBEDDINGS, REFINEMENTS
from ..files import new_array
from ..rounding import BLOCK, Int8Store, reach_of


@dataclass(frozen=True, slots=True)
class Int16Store:
    int8: Int8Store

    def encode(self, embeddings: NDArray[np.float32]) -> NDArray[np.int8]:
        """The int8 rows alone."""
        return self.int8.encode(embeddings)

    def decode(self, rows: NDArray[Any]) -> NDArray[np.float32]:
        """Rows as RefinedRows gives them, in steps."""
        return self.int8.decode(rows)

    def prepare(self, query: NDArray[np.float32], positions: NDArray[np.int64] | None = None) -> RefinedQuery:
        return prepare_refined(query, self.int8.centre, self.int8.step, positions, self.int8.reach)


class Int16:
    needs_int8 = True
    copies_rows = False
    staged: type[np.floating[Any]] = np.float32  # float16 loses more of a large value than the codes do
    int8_file = EMBEDDINGS
    codebook_files: tuple[str, ...] = (CENTRE,)

    def arrays(self, dim: int) -> Mapping[str, tuple[type[np.generic], tuple[int, ...]]]:
        return {EMBEDDINGS: (np.int8, (dim,)), REFINEMENTS: (np.uint8, (dim,))}

    def write(
        self,
        folder: Path,
        embeddings: NDArray[Any],
        int8_rows: NDArray[np.int8] | None,
        codebook: CodebookContent,
        progress: bool | None,
        stored: Mapping[str, NDArray[Any]] | None = None,
    ) -> tuple[RefinedRows, CodebookContent]:
        assert int8_rows is not None  # in their file already
        assert codebook.int8 is not None
        centre, inverse_step = codebook.int8.centre, np.float32(1 / codebook.int8.step)
        codes = new_array(folder / REFINEMENTS, np.uint8, embeddings.shape)
        with progress_bar("refining embeddings", len(embeddings), "embeddings", progress) as advance:
            for start in range(0, len(embeddings), BLOCK):
                block = slice(start, start + BLOCK)
                in_steps = (embeddings[block].astype(np.float32) - centre) * inverse_step
                codes[block] = encode_refinements(in_steps, int8_rows[block])
                advance(len(in_steps))
        return RefinedRows(int8_rows, codes), codebook

    def rows(self, arrays: Mapping[str, NDArray[Any]], codebook: AnyCodebook) -> RefinedRows:
        return RefinedRows(arrays[EMBEDDINGS], arrays[REFINEMENTS])

    def store(self, codebook: AnyCodebook, reach: tuple[float, float] | None = None) -> Int16Store:
        assert codebook.int8 is not None
        return Int16Store(Int8Store(codebook.int8.centre, codebook.int8.step, reach))

    def reach(self, rows: RefinedRows, codebook: AnyCodebook) -> tuple[float, float]:
        """Of the int8 rows alone, which decide what is dropped early."""
        assert codebook.int8 is not None
        return reach_of(codebook.int8, rows.rows)

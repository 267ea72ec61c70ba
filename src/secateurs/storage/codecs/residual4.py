"""Store residual4: per dimension one of 16 levels, for the difference between an int8 row and its nearest centroid.

The centroids are not those of the cells: see code_tables.py, and kernels/decoding.py for the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.decoding import CodedRows, encode_rows
from ...kernels.maxsim import whole_dwords
from ...progress import progress_bar
from ..code_tables import learn_table
from ..codebooks import AnyCodebook, CodebookContent
from ..file_names import CENTRE, CODE_CENTROIDS, CODE_LEVELS, CODE_NUMBERS, EMBEDDINGS
from ..files import new_array
from ..rounding import BLOCK
from .int8 import Int8


class Residual4(Int8):
    int8_file = "staged.int8.npy"
    codebook_files: tuple[str, ...] = (CENTRE, CODE_CENTROIDS, CODE_LEVELS)
    copies_rows = True

    def arrays(self, dim: int) -> Mapping[str, tuple[type[np.generic], tuple[int, ...]]]:
        return {EMBEDDINGS: (np.uint8, (-(-dim // 4) * 2,)), CODE_NUMBERS: (np.uint16, ())}

    def write(
        self,
        folder: Path,
        embeddings: NDArray[np.float16],
        int8_rows: NDArray[np.int8] | None,
        codebook: CodebookContent,
        progress: bool | None,
        stored: Mapping[str, NDArray[Any]] | None = None,
    ) -> tuple[Any, CodebookContent]:
        int8, table = codebook.int8, codebook.code
        assert int8_rows is not None
        assert int8 is not None
        total, dim = int8_rows.shape
        coded = 0 if stored is None else len(stored[EMBEDDINGS])  # the last rows
        if table is None:
            table = learn_table(int8_rows, int8)
        elif stored is not None and (
            # rows that come with a rewrite did not fit the scale, so they are of another kind
            coded < total or table.is_outgrown(stored[CODE_NUMBERS], total)
        ):
            table = table.extended(int8_rows, int8)
        arrays = {
            name: new_array(folder / name, kind, (total, *shape)) for name, (kind, shape) in self.arrays(dim).items()
        }
        codes, numbers = arrays[EMBEDDINGS], arrays[CODE_NUMBERS]
        lines = table.rounded(int8)
        with progress_bar("coding residuals", total - coded, "embeddings", progress) as advance:
            for start in range(0, total - coded, BLOCK):
                block = slice(start, min(start + BLOCK, total - coded))
                numbers[block] = table.nearest(int8_rows[block], int8)
                encode_rows(whole_dwords(int8_rows[block]), lines, numbers[block], codes[block])
                advance(block.stop - start)
        for name, array in (stored or {}).items():
            arrays[name][total - coded :] = array
        codebook = codebook._replace(code=table)
        return self.rows(arrays, codebook), codebook

    def rows(self, arrays: Mapping[str, NDArray[Any]], codebook: AnyCodebook) -> CodedRows:
        assert codebook.int8 is not None
        assert codebook.code is not None
        table = codebook.rounded_code()
        return CodedRows(arrays[EMBEDDINGS], arrays[CODE_NUMBERS], table, len(codebook.int8.centre))

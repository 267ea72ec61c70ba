"""Store int8: an embedding in steps around the mean of all embeddings, see rounding.py."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codebooks import AnyCodebook, CodebookContent
from ..file_names import CENTRE, EMBEDDINGS
from ..rounding import Int8Store, reach_of


class Int8:
    needs_int8 = True
    copies_rows = False
    staged: type[np.floating[Any]] = np.float16
    int8_file = EMBEDDINGS
    codebook_files: tuple[str, ...] = (CENTRE,)

    def arrays(self, dim: int) -> Mapping[str, tuple[type[np.generic], tuple[int, ...]]]:
        return {EMBEDDINGS: (np.int8, (dim,))}

    def write(
        self,
        folder: Path,
        embeddings: NDArray[np.float16],
        int8_rows: NDArray[np.int8] | None,
        codebook: CodebookContent,
        progress: bool | None,
        stored: Mapping[str, NDArray[Any]] | None = None,
    ) -> tuple[Any, CodebookContent]:
        return int8_rows, codebook  # in their file already

    def rows(self, arrays: Mapping[str, NDArray[Any]], codebook: AnyCodebook) -> Any:
        return arrays[EMBEDDINGS]

    def store(self, codebook: AnyCodebook, reach: tuple[float, float] | None = None) -> Int8Store:
        assert codebook.int8 is not None
        return Int8Store(codebook.int8.centre, codebook.int8.step, reach)

    def reach(self, rows: Any, codebook: AnyCodebook) -> tuple[float, float]:
        return reach_of(self.store(codebook), rows)

"""Store float16: an embedding as it is, rounded to half precision."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..codebooks import AnyCodebook, CodebookContent
from ..file_names import EMBEDDINGS
from ..rounding import Float16Store, write_rows


class Float16:
    needs_int8 = False
    copies_rows = False
    staged: type[np.floating[Any]] = np.float16
    int8_file = "staged.int8.npy"
    codebook_files: tuple[str, ...] = ()

    def arrays(self, dim: int) -> Mapping[str, tuple[type[np.generic], tuple[int, ...]]]:
        return {EMBEDDINGS: (np.float16, (dim,))}

    def write(
        self,
        folder: Path,
        embeddings: NDArray[np.float16],
        int8_rows: NDArray[np.int8] | None,
        codebook: CodebookContent,
        progress: bool | None,
        stored: Mapping[str, NDArray[Any]] | None = None,
    ) -> tuple[NDArray[np.float16], CodebookContent]:
        return write_rows(folder / EMBEDDINGS, embeddings, Float16Store(), progress), codebook

    def rows(self, arrays: Mapping[str, NDArray[Any]], codebook: AnyCodebook) -> NDArray[np.float16]:
        return arrays[EMBEDDINGS]

    def store(self, codebook: AnyCodebook, reach: tuple[float, float] | None = None) -> Float16Store:
        return Float16Store()

    def reach(self, rows: Any, codebook: AnyCodebook) -> None:
        return None

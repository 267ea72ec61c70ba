"""Files of a segment that follow from its tokens and rows: frequencies, cells, checksums, and the FAISS index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..frequencies import Frequencies
from ..progress import progress_bar
from . import cell_lists, faiss_file
from .checksums import BLOCK_ROWS, TOKEN_BLOCK_ROWS, block_checksums
from .codebooks import AnyCodebook, CodebookContent
from .file_names import (
    BLOCKS,
    EMBEDDINGS,
    REFINEMENT_BLOCKS,
    REFINEMENTS,
    TOKEN_BLOCKS,
    TOKEN_IDS,
    TOKEN_KINDS,
)
from .files import open_array
from .recipe import Recipe
from .segments import write_frequencies
from .summaries import cells_of_summaries, write_summaries


def write_tokens(
    folder: Path, position_offsets: NDArray[np.int64], token_ids: NDArray[np.int32], token_kinds: NDArray[np.uint8]
) -> Frequencies:
    """Those of the positions, whether or not they share rows; give their frequencies."""
    fits = len(token_ids) == 0 or (token_ids.min() >= 0 and token_ids.max() < 1 << 16)
    stored = np.ascontiguousarray(token_ids, dtype=np.uint16 if fits else np.int32)
    np.save(folder / TOKEN_IDS, stored)
    np.save(folder / TOKEN_BLOCKS, block_checksums(stored, TOKEN_BLOCK_ROWS))
    np.save(folder / TOKEN_KINDS, token_kinds)
    counted = Frequencies.of(token_ids, position_offsets)
    write_frequencies(folder, counted)
    return counted


def write_cells(
    folder: Path,
    offsets: NDArray[np.int64],
    tokens: NDArray[np.int32],
    summaries: NDArray[np.int64] | None,
    int8_rows: NDArray[np.int8],
    codebook: CodebookContent,
    progress: bool | None,
) -> tuple[CodebookContent, float]:
    """Assign rows to the codebook's cells, or to new ones if it has none; give the codebook, and the rows' spread.

    tokens      (rows,): the token of each row, see position_rows.py
    summaries   (documents,): the row of each document's summary, see summaries.py; None if there are none
    """
    total, dim = int8_rows.shape
    if summaries is not None:
        write_summaries(folder, int8_rows, summaries)
    if total == 0:
        no_cells = np.zeros((0, -(-dim // 4) * 4), dtype=np.int8)
        return codebook if codebook.centroids is not None else codebook._replace(centroids=no_cells), 0.0
    with progress_bar("building cells", total, "embeddings", progress) as advance:
        if codebook.centroids is not None:
            cells = None if codebook.grouped is None else codebook.grouped()
            return codebook, cell_lists.assign_to_cells(folder, offsets, int8_rows, codebook.centroids, cells, advance)
        finer = {} if summaries is None else cells_of_summaries(tokens, summaries)
        centroids, spread = cell_lists.make_cells(folder, offsets, tokens, int8_rows, None, finer, advance)
        return codebook._replace(centroids=centroids, spread=spread), spread


def write_checksums_and_faiss(
    folder: Path,
    recipe: Recipe,
    offsets: NDArray[np.int64],
    rows: Any,
    codebook: AnyCodebook,
    unit: bool,
    progress: bool | None,
) -> None:
    """Of stored rows, `rows` as the codec reads them; the FAISS index only if the recipe has it."""
    np.save(folder / BLOCKS, block_checksums(open_array(folder / EMBEDDINGS), BLOCK_ROWS))
    if REFINEMENTS in recipe.codec.arrays(rows.shape[1]):
        np.save(folder / REFINEMENT_BLOCKS, block_checksums(open_array(folder / REFINEMENTS), BLOCK_ROWS))
    total = int(offsets[-1])
    if "faiss" in recipe.gather and total:
        store = recipe.codec.store(codebook)
        with progress_bar("building faiss", total, "embeddings", progress) as advance:
            faiss_file.build(folder, offsets, lambda numbers: store.decode(rows[numbers]), rows.shape[1], unit, advance)

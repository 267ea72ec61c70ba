"""Embeddings that were made elsewhere to an index, and exported indexes to an index again. No encoder runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

from .corpus import read_places
from .errors import SecateursError, UsageError
from .index import Index, calibrate_if_due
from .records import Document
from .settings import DEFAULT_STORE, GatherName, Merge, StoreName, check_choice
from .storage.codebooks import CodebookContent
from .storage.merging import choose_merge
from .storage.new_index import check_target, make_index
from .storage.origin import Origin
from .storage.recipe import Recipe
from .transfer.arrays import EXPECTED, read_arrays
from .transfer.plaid import is_plaid, read_plaid
from .transfer.tables import read_table

FORMATS = ("table", "arrays", "plaid")
_TABLES = (".parquet", ".arrow", ".feather", ".lance")
_ARRAYS = (".npy", ".npz")


def import_embeddings(
    source: str | Path,
    path: str | Path,
    *,
    format: str | None = None,
    corpus: str | Path | None = None,
    store: StoreName | None = None,
    gather: Sequence[GatherName] | None = None,
    merge: Merge = "auto",
    pool: int = 1,
    overwrite: bool = False,
    progress: bool | None = None,
) -> Index:
    """Make an index at `path` from embeddings, streaming, and open it.

    format   "table" (see tables.py), "arrays" (see arrays.py) or "plaid" (see plaid.py); by default what the source
             looks like
    corpus   gives docnos, texts and metadata to the others: one document for each matrix, in their order
    store, gather, merge, pool   as in Index.build; of an exported index, by default those that it had, and int8 for
                                 residual4
    """
    check_target(Path(path), overwrite)
    source = Path(source)
    origin: Origin | None = None
    kind = _format(source, format)
    if kind == "table":
        documents, total, origin = read_table(source)
    else:
        documents, total = read_plaid(source) if kind == "plaid" else read_arrays(source)
    if corpus is not None:
        documents = _with_corpus(documents, corpus, source)
    if origin is None:
        recipe = Recipe(store or DEFAULT_STORE, tuple(gather or ("cells",)), choose_merge(merge, None), pool)
    else:
        if merge != "auto" or pool != 1:
            raise UsageError(f"{source} is an exported index: its embeddings were merged and pooled when it was built")
        recipe = origin.recipe
        # Codes are of int8 rows: as such rows they give the same scores, and coded anew they would not.
        kept: StoreName = "int8" if recipe.store == "residual4" else recipe.store
        recipe = recipe._replace(store=store or kept, gather=tuple(gather or recipe.gather))
    make_index(
        Path(path),
        ((f"{source}, document {number}", document) for number, document in enumerate(documents)),
        None,
        recipe,
        spec=origin and origin.encoder,
        overwrite=overwrite,
        total=total,
        progress=progress,
        # On the scale of the exported index, rows get the bytes that they had.
        codebook=CodebookContent(0, int8=origin.int8) if origin and origin.int8 and recipe.has_int8 else None,
        unit=origin.unit if origin else None,
        dim=origin.dim or None if origin else None,
        background=origin.background if origin else None,
        merged=origin is not None,
    )
    built = Index(path)
    calibrate_if_due(built, progress)
    return built


def _format(source: Path, given: str | None) -> str:
    if not source.exists():
        raise SecateursError(f"there is no file or folder {source}")
    if given is not None:
        check_choice("format", given, FORMATS)
        return given
    if is_plaid(source):
        return "plaid"
    if source.suffix in _TABLES or (source.is_dir() and any(source.glob("*.parquet"))):
        return "table"
    if source.suffix in _ARRAYS or (source.is_dir() and any(source.glob("*.npy"))):
        return "arrays"
    raise UsageError(
        f"{source}: what is imported ends in {', '.join((*_TABLES, *_ARRAYS))}, or is a folder of .parquet or .npy "
        f"files ({EXPECTED}), or a PLAID index"
    )


def _with_corpus(documents: Iterator[Document], corpus: str | Path, source: Path) -> Iterator[Document]:
    for number, (embedded, placed) in enumerate(zip_longest(documents, read_places(corpus))):
        if embedded is None or placed is None:
            fewer, more = (corpus, source) if placed is None else (source, corpus)
            raise SecateursError(f"{fewer} has {number:,} documents, and {more} has more")
        _, document = placed
        yield replace(document, encoded=embedded.encoded)

"""LanceDB: pruned search of a table with a multivector column.

LanceDB looks each query embedding up in the index of the column, and its time grows with their number. Here only the
kept embeddings are looked up. Their documents come back with their embeddings, and are scored with all of the query's.
LanceDB itself would score by cosine, which leaves the weights of a query out.
"""

from __future__ import annotations

from typing import Any, Literal

from ..errors import UsageError, require
from ..frequencies import Frequencies
from ..records import EncodedText
from ..settings import Order
from .databases import ScoredDocument, best_documents, gathering_positions

require("lancedb", "lancedb")  # says which pip line is missing, where the imports below would only fail

import pyarrow  # noqa: E402
import pyarrow.compute  # noqa: E402
from lancedb.table import Table  # noqa: E402


class PrunedSearch:
    """Searches a table. `vector` is its multivector column, `docno` the column that names a document."""

    def __init__(self, table: Table, frequencies: Frequencies, *, vector: str = "vector", docno: str = "docno") -> None:
        self._table, self._frequencies, self._vector, self._docno = table, frequencies, vector, docno
        for column in (vector, docno):
            if column not in table.schema.names:
                raise UsageError(f"the table has no column {column!r}: it has {', '.join(table.schema.names)}")
        embeddings = table.schema.field(vector).type
        if not pyarrow.types.is_list(embeddings) or not pyarrow.types.is_fixed_size_list(embeddings.value_type):
            raise UsageError(f"the column {vector!r} is no multivector column (a list of vectors), but {embeddings}")
        self._dim = int(embeddings.value_type.list_size)

    def search(
        self,
        query: EncodedText,
        k: int = 10,
        p: int | Literal["all"] | None = 3,
        order: Order = "focus",
        *,
        candidates: int = 200,
        nprobes: int | None = None,
        where: str | None = None,
    ) -> list[ScoredDocument]:
        """The k best of the `candidates` that the p kept embeddings find.

        `nprobes` is how many partitions of the index each of them looks into, None: LanceDB's default. `where` is a
        filter of LanceDB, such as "year >= 2020".
        """
        kept = gathering_positions(query, self._frequencies, p, order, self._dim, k=k, candidates=candidates)
        asked: Any = self._table.search(query.embeddings[kept], vector_column_name=self._vector, query_type="vector")
        asked = asked.distance_type("cosine").limit(max(candidates, k)).select([self._docno, self._vector, "_distance"])
        if nprobes is not None:
            asked = asked.nprobes(nprobes)
        if where is not None:
            asked = asked.where(where)
        found = asked.to_arrow()
        documents = found[self._vector].combine_chunks()
        lengths = pyarrow.compute.list_value_length(documents).to_numpy(zero_copy_only=False)  # (documents,)
        rows = documents.flatten().flatten().to_numpy(zero_copy_only=False).reshape(-1, self._dim)
        docnos = [str(docno) for docno in found[self._docno].to_pylist()]
        return best_documents(query, docnos, rows, lengths, k)

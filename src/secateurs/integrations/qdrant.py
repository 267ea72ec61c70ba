"""Qdrant: pruned search of a collection with a multivector, on a server or in the local mode of the client.

One request does both stages: a prefetch with the kept embeddings, whose points Qdrant scores again with all of them.
If the distance is cosine, Qdrant divides query embeddings by their length, and so by their weights: the points that the
kept embeddings found are then scored here, if the query has weights.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from ..errors import UsageError, require
from ..frequencies import Frequencies
from ..records import EncodedText
from ..settings import Order
from .databases import ScoredDocument, best_documents, gathering_positions

require("qdrant_client", "qdrant")  # says which pip line is missing, where the imports below would only fail

from qdrant_client import QdrantClient, models  # noqa: E402


class PrunedSearch:
    """Searches a collection. `vector` is the name of its multivector, `docno` the key of the payload with the docno.

    Without `docno` the id of a point is its docno. `vector` is "" if the collection has one vector without a name.
    """

    def __init__(
        self,
        client: QdrantClient,
        collection: str,
        frequencies: Frequencies,
        *,
        vector: str = "",
        docno: str | None = None,
    ) -> None:
        if not client.collection_exists(collection):
            raise UsageError(f"there is no collection {collection!r}")
        vectors = client.get_collection(collection).config.params.vectors
        named = vectors if isinstance(vectors, dict) else {"": vectors}
        if vector not in named:
            raise UsageError(f"the collection has no vector {vector!r}: give vector=, one of {', '.join(named)}")
        if named[vector].multivector_config is None:
            raise UsageError(f"the vector {vector!r} is no multivector: one vector per document has nothing to prune")
        if named[vector].distance not in (models.Distance.DOT, models.Distance.COSINE):
            raise UsageError(f"MaxSim adds up dot products or cosines, not distances ({named[vector].distance})")
        self._client, self._collection, self._frequencies = client, collection, frequencies
        self._vector, self._docno = vector, docno
        self._dim, self._cosine = int(named[vector].size), named[vector].distance == models.Distance.COSINE

    def search(
        self,
        query: EncodedText,
        k: int = 10,
        p: int | Literal["all"] | None = 3,
        order: Order = "focus",
        *,
        candidates: int = 500,
        where: models.Filter | None = None,
        search_params: models.SearchParams | None = None,
    ) -> list[ScoredDocument]:
        """The k best of the `candidates` that the p kept embeddings find.

        With p=None, Qdrant searches with all embeddings and there is no second stage. `where` and `search_params` are
        those of Qdrant, for the first stage.
        """
        kept = gathering_positions(query, self._frequencies, p, order, self._dim, k=k, candidates=candidates)
        request: dict[str, Any] = {
            "query": query.weighted[kept].tolist(),
            "using": self._vector or None,
            "limit": max(candidates, k),
        }
        if self._cosine and query.weights is not None:
            found = self._ask(request, where, search_params, with_vectors=[self._vector] if self._vector else True)
            documents = [np.asarray(self._embeddings(point), dtype=np.float32) for point in found]
            rows = np.concatenate([np.empty((0, self._dim), dtype=np.float32), *documents])
            lengths = np.array([len(document) for document in documents], dtype=np.int64)
            return best_documents(query, [self._name(point) for point in found], rows, lengths, k)
        if len(kept) == len(query):
            found = self._ask({**request, "limit": k}, where, search_params)
        else:
            first_stage = models.Prefetch(**request, filter=where, params=search_params)
            second_stage = {**request, "query": query.weighted.tolist(), "limit": k}
            found = self._ask({**second_stage, "prefetch": first_stage})
        scored = [ScoredDocument(self._name(point), point.score) for point in found]
        return sorted(scored, key=lambda hit: (-hit.score, hit.docno))

    def _ask(
        self,
        request: dict[str, Any],
        where: models.Filter | None = None,
        search_params: models.SearchParams | None = None,
        with_vectors: bool | list[str] = False,
    ) -> list[models.ScoredPoint]:
        found: list[models.ScoredPoint] = self._client.query_points(
            self._collection,
            **request,
            query_filter=where,
            search_params=search_params,
            with_payload=False if self._docno is None else [self._docno],
            with_vectors=with_vectors,
        ).points
        return found

    def _embeddings(self, point: models.ScoredPoint) -> Any:
        return point.vector[self._vector] if isinstance(point.vector, dict) else point.vector

    def _name(self, point: models.ScoredPoint) -> str:
        if self._docno is None:
            return str(point.id)
        if self._docno not in (point.payload or {}):
            raise UsageError(f"the payload of point {point.id} has no {self._docno!r}, the key that docno= names")
        return str(point.payload[self._docno])

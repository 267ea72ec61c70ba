"""Milvus: pruned search of a collection with one entity per document embedding, on a server or in Milvus Lite.

The kept embeddings are searched in one request. A second request fetches all embeddings of the documents of the
entities that were found, which are scored with all of the query's. The docno field should have an index for that.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np

from ..errors import UsageError, require
from ..frequencies import Frequencies
from ..records import EncodedText
from ..settings import Order
from .databases import ScoredDocument, best_documents, gathering_positions

require("pymilvus", "milvus")  # says which pip line is missing, where the imports below would only fail

from pymilvus import MilvusClient  # noqa: E402


class PrunedSearch:
    """Searches a collection. `vector` is the field of an embedding, `docno` the field that names its document."""

    def __init__(
        self,
        client: MilvusClient,
        collection: str,
        frequencies: Frequencies,
        *,
        vector: str = "vector",
        docno: str = "docno",
    ) -> None:
        if not client.has_collection(collection):
            raise UsageError(f"there is no collection {collection!r}")
        fields = {field["name"]: field for field in client.describe_collection(collection)["fields"]}
        for name in (vector, docno):
            if name not in fields:
                raise UsageError(f"the collection has no field {name!r}: it has {', '.join(fields)}")
        if "dim" not in fields[vector]["params"]:
            raise UsageError(f"the field {vector!r} is no vector")
        self._client, self._collection, self._frequencies = client, collection, frequencies
        self._vector, self._docno, self._dim = vector, docno, int(fields[vector]["params"]["dim"])

    def search(
        self,
        query: EncodedText,
        k: int = 10,
        p: int | Literal["all"] | None = 3,
        order: Order = "focus",
        *,
        k_prime: int = 200,
        where: str = "",
        search_params: dict[str, Any] | None = None,
    ) -> list[ScoredDocument]:
        """The k best of the documents that have one of the `k_prime` embeddings nearest to a kept embedding.

        `where` and `search_params` are those of Milvus.
        """
        kept = gathering_positions(query, self._frequencies, p, order, self._dim, k=k, k_prime=k_prime)
        found = self._client.search(
            self._collection,
            data=query.embeddings[kept].tolist(),
            anns_field=self._vector,
            limit=k_prime,
            filter=where,
            search_params=search_params,
            output_fields=[self._docno],
        )
        docnos = {hit["entity"][self._docno] for hits in found for hit in hits}
        if not docnos:
            return []
        entities = self._client.query(
            self._collection,
            filter=f"{self._docno} in {json.dumps(sorted(docnos), ensure_ascii=False)}",
            output_fields=[self._docno, self._vector],
        )
        # In a new list: those of pymilvus read their vectors late and by place, so that sorting one would mix them up.
        entities = sorted(entities, key=lambda entity: entity[self._docno])
        names, lengths = np.unique([entity[self._docno] for entity in entities], return_counts=True)
        rows = np.array([entity[self._vector] for entity in entities], dtype=np.float32)
        return best_documents(query, [str(name) for name in names], rows, lengths, k)

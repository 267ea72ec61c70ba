"""Haystack: an index as a document store, and a retriever for it. Pipelines with them can be saved and loaded.

A document's `id` is its docno, `content` its text, `meta` its metadata. An embedding that a document brings is not
stored: it is a single vector, and the index makes one for each token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from ..cluster.layout import Layout, is_sharded
from ..cluster.search.sharded_index import ShardedIndex
from ..contract import AnyIndex
from ..encoders import DEFAULT_MODEL, Encoder
from ..errors import DuplicateDocumentError as InIndexAlreadyError
from ..errors import UsageError, require
from ..index import Index
from ..records import Document as IndexedDocument
from ..settings import SearchSettings
from ..storage.snapshot import Snapshot
from .details import search_with_details
from .haystack_filters import to_where

require("haystack", "haystack")  # says which pip line is missing, where the imports below would only fail

from haystack import Document, component, default_from_dict, default_to_dict  # noqa: E402
from haystack.document_stores.errors import DuplicateDocumentError  # noqa: E402
from haystack.document_stores.types import DuplicatePolicy, FilterPolicy, apply_filter_policy  # noqa: E402
from haystack.errors import FilterError  # noqa: E402


class SecateursDocumentStore:
    """The index, or the collection in shards, at `path`. If there is none, the first documents that are written make an
    index.

    `model` is the encoder of a new index: a name or folder, or an Encoder. An index knows its encoder, so that a store
    that is saved and loaded needs the path alone.
    """

    def __init__(self, path: str, model: str | Encoder = DEFAULT_MODEL) -> None:
        self.path, self._model = Path(path), model
        self._index: AnyIndex | None = None
        self._lock = Lock()

    def to_dict(self) -> dict[str, Any]:
        given = self._model if isinstance(self._model, str) else self._model.spec["model"]
        written: dict[str, Any] = default_to_dict(self, path=str(self.path), model=given)
        return written

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SecateursDocumentStore:
        store: SecateursDocumentStore = default_from_dict(cls, data)
        return store

    @property
    def index(self) -> AnyIndex | None:
        """The open index, with what other processes have written; None if nothing has been written yet."""
        with self._lock:
            if self._index is not None:
                self._index.refresh()
            elif self.path.exists():
                kind = ShardedIndex if is_sharded(self.path) else Index
                self._index = kind(self.path, None if isinstance(self._model, str) else self._model)
            return self._index

    def count_documents(self) -> int:
        index = self.index
        return 0 if index is None else len(index)

    def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Document]:
        """The documents that match, in the order of the index; without filters all of them."""
        where, index = where_of(filters), self.index
        if index is None:
            return []
        try:
            index.searched().filter(SearchSettings(where=where))  # a key that no document of any shard has is an error
        except UsageError as error:
            raise FilterError(str(error)) from error
        return [document for snapshot in _snapshots(index) for document in _matching(snapshot, where)]

    def write_documents(self, documents: list[Document], policy: DuplicatePolicy = DuplicatePolicy.NONE) -> int:
        """All documents, or none if there is an error. Without a policy, an id that is there already is an error."""
        if not isinstance(documents, list) or not all(isinstance(document, Document) for document in documents):
            raise ValueError("documents are a list of Haystack's Document")
        policy = DuplicatePolicy(policy)  # also of its name: a text would be equal to no policy
        index = self.index
        if policy == DuplicatePolicy.OVERWRITE:
            written = list({document.id: document for document in documents}.values())  # the last of an id
        elif policy == DuplicatePolicy.SKIP:
            first = {document.id: document for document in reversed(documents)}
            written = [document for docno, document in first.items() if index is None or docno not in index][::-1]
        else:
            written = documents
        try:
            if written:
                self._write([_indexed(document) for document in written], policy == DuplicatePolicy.OVERWRITE)
        except InIndexAlreadyError as error:
            raise DuplicateDocumentError(str(error)) from error
        return len(documents) if policy == DuplicatePolicy.OVERWRITE else len(written)

    def delete_documents(self, document_ids: list[str]) -> None:
        """Ids that are not there are no error."""
        index = self.index
        if index is not None and document_ids:
            index.delete(document_ids)

    def _write(self, documents: Iterable[IndexedDocument], replacing: bool) -> None:
        index = self.index
        if index is None:
            with self._lock:
                if self._index is None:
                    self._index = Index.build(self.path, documents, encoder=self._model, progress=False)
                    return
                index = self._index
        (index.update if replacing else index.add)(documents, progress=False)


@component
class SecateursRetriever:
    """The `top_k` best documents of a store for a query, each with its score, and its relevance in `meta`.

    `settings` are other settings of `Index.search`, such as {"effort": "exact", "min_relevance": 0.5}. With
    `explanations` and `highlights`, `meta` also has what `search_with_details` says.
    """

    def __init__(
        self,
        document_store: SecateursDocumentStore,
        filters: dict[str, Any] | None = None,
        top_k: int = SearchSettings.k,
        filter_policy: FilterPolicy | str = FilterPolicy.REPLACE,
        settings: dict[str, Any] | None = None,
        explanations: bool = False,
        highlights: bool = False,
    ) -> None:
        if not isinstance(document_store, SecateursDocumentStore):
            raise TypeError(f"document_store is a SecateursDocumentStore, not {type(document_store).__name__}")
        if taken := {"k", "where"} & set(settings or ()):
            raise UsageError(f"{' and '.join(sorted(taken))} in settings: give top_k and filters")
        where_of(filters)
        SearchSettings.of({**(settings or {}), "k": top_k})
        self.document_store, self.filters, self.top_k = document_store, filters, top_k
        self.filter_policy = FilterPolicy.from_str(filter_policy) if isinstance(filter_policy, str) else filter_policy
        self.settings = settings
        self.explanations, self.highlights = explanations, highlights

    def to_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = default_to_dict(
            self,
            document_store=self.document_store,
            filters=self.filters,
            top_k=self.top_k,
            filter_policy=self.filter_policy.value,
            settings=self.settings,
            explanations=self.explanations,
            highlights=self.highlights,
        )
        return written

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> SecateursRetriever:
        given = dict(data["init_parameters"])
        if isinstance(given.get("document_store"), Mapping):
            given["document_store"] = SecateursDocumentStore.from_dict(given["document_store"])
        retriever: SecateursRetriever = default_from_dict(cls, {**data, "init_parameters": given})
        return retriever

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        where = where_of(apply_filter_policy(self.filter_policy, self.filters, filters))
        index = self.document_store.index
        if index is None:
            return {"documents": []}
        settings = {**(self.settings or {}), "k": self.top_k if top_k is None else top_k, "where": where}
        found = search_with_details(index, query, settings, self.explanations, self.highlights)
        try:
            documents = [
                Document(id=hit.docno, content=hit.text, meta={**hit.metadata, **_in_meta(details)}, score=hit.score)
                for hit, details in found
            ]
        except UsageError as error:
            if str(error).startswith("where:"):
                raise FilterError(str(error)) from error
            raise
        return {"documents": documents}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, list[Document]]:
        return await asyncio.to_thread(self.run, query, filters, top_k)


def where_of(filters: dict[str, Any] | None) -> str | None:
    """Haystack's filters as `where`; None if there are none."""
    return to_where(filters, FilterError) if filters else None


def _snapshots(index: AnyIndex) -> list[Snapshot]:
    """That of an index, or of each shard."""
    if isinstance(index, Index):
        return [index.snapshot]
    return [Snapshot.open(index.path / shard.name) for shard in Layout.read(index.path).shards]


def _matching(snapshot: Snapshot, where: str | None) -> list[Document]:
    if where is not None:
        allowed = snapshot.filtered(where, strict=False).allowed  # (documents,)
    elif snapshot.live is not None:
        allowed = snapshot.live
    else:
        allowed = np.ones(sum(map(len, snapshot.segments)), dtype=bool)
    return [
        Document(id=stored.docno, content=stored.text, meta=dict(stored.metadata))
        for segment, _, numbers in snapshot.by_segment(np.flatnonzero(allowed))
        for stored in segment.documents.get(numbers.tolist())
    ]


def _indexed(document: Document) -> IndexedDocument:
    return IndexedDocument(document.id, document.content or "", document.meta)


def _in_meta(details: dict[str, Any]) -> dict[str, Any]:
    """Without what a document of Haystack has outside of `meta`."""
    return {name: value for name, value in details.items() if name not in ("docno", "score")}

"""PyLate: an index for `pylate.retrieve.ColBERT`, which gathers with the few query embeddings that matter.

PyLate gives embeddings without token ids, so that the query embedding that is least like the mean of all document
embeddings counts as the most important: docs/importance.md, "Embeddings without token ids".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError, require
from ..index import Index
from ..records import Document, EncodedText, to_docnos
from ..settings import DEFAULT_STORE, SearchSettings, StoreName

require("pylate", "pylate")  # says which pip line is missing, where the imports below would only fail

import torch  # noqa: E402
from pylate.indexes.base import Base  # noqa: E402
from pylate.rank import RerankResult  # noqa: E402

Embeddings: TypeAlias = torch.Tensor | NDArray[Any] | Sequence[Any]  # of several texts, or the matrix of a single text


class SecateursIndex(Base):
    """The index `index_folder`/`index_name`.sec, which the first documents that are added make.

    `settings` are those of `Index.search`, such as p=3. With `override` the first documents replace an index that is
    there already. `index` is the `Index` itself, None before documents are added.
    """

    is_end_to_end_index = True  # the scores are exact, so that PyLate does not compute them again

    def __init__(
        self,
        index_folder: str | Path = "indexes",
        index_name: str = "secateurs",
        override: bool = False,
        store: StoreName = DEFAULT_STORE,
        **settings: Any,
    ) -> None:
        """The names are those of PyLate's indexes."""
        for name, instead in (("k", "k to the retriever"), ("where", "subset to the retriever")):
            if name in settings:
                raise UsageError(f"{name} is no setting of this index: give {instead}")
        self.settings = vars(SearchSettings.of(settings))
        self.path, self._override, self._store = Path(index_folder) / f"{index_name}.sec", override, store
        self.index: Index | None = Index(self.path) if self.path.exists() and not override else None

    def add_documents(
        self, documents_ids: str | Sequence[str], documents_embeddings: Embeddings, **options: Any
    ) -> SecateursIndex:
        """All documents, or none if an id is there already.

        `options` are those of PyLate's other indexes, such as batch_size; they have no effect.
        """
        documents = _documents(documents_ids, documents_embeddings)
        if self.index is not None:
            self.index.add(documents)
        elif to_docnos(documents_ids):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.index = Index.build(self.path, documents, encoder=None, store=self._store, overwrite=self._override)
        return self

    def update_documents(self, documents_ids: str | Sequence[str], documents_embeddings: Embeddings) -> SecateursIndex:
        """Like `add_documents`, but a document replaces the document that has its id."""
        if self.index is None:
            return self.add_documents(documents_ids, documents_embeddings)
        self.index.update(_documents(documents_ids, documents_embeddings))
        return self

    def remove_documents(self, documents_ids: str | Sequence[str]) -> SecateursIndex:
        """Ids that are not there are no error, as in PyLate's other indexes."""
        self._opened().delete(documents_ids)
        return self

    def __call__(
        self,
        queries_embeddings: Embeddings,
        k: int = SearchSettings.k,
        subset: Sequence[str] | Sequence[Sequence[str]] | None = None,
    ) -> list[list[RerankResult]]:
        """The k best documents of each query, on all cores.

        `subset` are ids, for all queries or for each: these documents are all scored. Ids that are not there are no
        error.
        """
        index, queries = self._opened(), [_encoded(matrix) for matrix in _matrices(queries_embeddings)]
        if subset is None:
            rankings = index.search_many(queries, **{**self.settings, "k": k})
            return [[RerankResult(id=hit.docno, score=hit.score) for hit in ranking] for ranking in rankings]
        SearchSettings(k=k)
        for_each = bool(subset) and not isinstance(subset, str) and not isinstance(subset[0], str)
        subsets: Sequence[Any] = subset if for_each else [subset] * len(queries)
        if len(subsets) != len(queries):
            raise UsageError(f"subset has {len(subsets)} lists of ids, and there are {len(queries)} queries")
        return [_best(index, query, to_docnos(ids), k) for query, ids in zip(queries, subsets, strict=True)]

    def get_documents_embeddings(self, documents_ids: Sequence[Sequence[str]]) -> list[list[NDArray[np.float32]]]:
        """As they are stored, each (tokens, dim): rounded, unless the store is "float16" and they were of that type."""
        snapshot = self._opened().snapshot
        return [[snapshot.encoded(snapshot.number(docno)).embeddings for docno in ids] for ids in documents_ids]

    def _opened(self) -> Index:
        if self.index is None:
            raise UsageError(f"there is no index at {self.path} yet: add documents first")
        return self.index


def _best(index: Index, query: EncodedText, docnos: list[str], k: int) -> list[RerankResult]:
    there = sorted(index.snapshot.find_all(docnos))  # of equal scores the first docno, as in a search
    scores = np.array(index.score(query, there))  # (documents,)
    best = np.argsort(-scores, kind="stable")[:k].tolist()
    return [RerankResult(id=there[number], score=float(scores[number])) for number in best]


def _documents(documents_ids: str | Sequence[str], documents_embeddings: Embeddings) -> Iterator[Document]:
    docnos, matrices = to_docnos(documents_ids), _matrices(documents_embeddings)
    if len(docnos) != len(matrices):
        raise UsageError(f"there are {len(docnos)} ids, and embeddings of {len(matrices)} documents")
    return (Document(docno, encoded=_encoded(matrix)) for docno, matrix in zip(docnos, matrices, strict=True))


def _matrices(given: Embeddings) -> list[Any]:
    if isinstance(given, torch.Tensor | np.ndarray) and given.ndim == 2:
        return [given]
    return list(given)


def _encoded(matrix: Any) -> EncodedText:
    """Embeddings (tokens, dim) with the same token id for all of them: it is not known."""
    if isinstance(matrix, dict):
        raise UsageError("embeddings are matrices: let PyLate encode with its default output_value")
    if isinstance(matrix, torch.Tensor):
        matrix = matrix.detach().to("cpu", torch.float32).numpy()  # NumPy has no bfloat16
    tokens = len(matrix)
    return EncodedText(matrix, np.zeros(tokens, dtype=np.int32), np.zeros(tokens, dtype=np.uint8))

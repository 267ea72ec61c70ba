"""`AnyIndex`: the verbs that an index on disk and a collection in shards have in common.

The service, the lab and the integrations take an AnyIndex. Signatures, defaults and the handling of the encoder are
here; `Index` and `ShardedIndex` implement the verbs.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from . import explain as explaining
from . import search as searching
from .corpus import OnBad
from .encoders import LOADED_BY_NAME, Encoder
from .errors import SecateursError, require
from .frequencies import Frequencies
from .html_views import index_html
from .index_encoder import WithEncoder, check_several
from .rankings import (
    Ranking,
)
from .records import (
    Changes,
    Document,
    EncodedText,
    Field,
)
from .settings import (
    EffortName,
    FrequenciesName,
    FuseName,
    GatherName,
    GatherSetting,
    Order,
    SearchSettings,
    WeightsName,
)
from .storage.origin import Origin
from .transfer.export import export
from .transfer.hub import Repository
from .transfer.pushing import IndexFiles, push
from .viewer import IndexViewer

NOT_SEVERAL = "search_many takes several queries, such as a list of texts: for one query, use search"
Documents = str | Path | Iterable[Document | Mapping[str, Any]]


class AnyIndex(WithEncoder):
    """Open for searching, until `close` or the end of a `with`. Safe to use from several threads."""

    def __init__(self, path: Path, encoder: Encoder | None, **options: Any) -> None:
        """`options` are those of the subclass's constructor, beside path and encoder: a copy is opened with them."""
        super().__init__(path, encoder)
        self._options = options

    # Searching

    def search(
        self,
        query: str | EncodedText,
        k: int = SearchSettings.k,
        p: int | Literal["auto", "all"] | None = SearchSettings.p,
        order: Order = SearchSettings.order,
        gather: GatherSetting = SearchSettings.gather,
        k_prime: int = SearchSettings.k_prime,
        nprobe: int | None = SearchSettings.nprobe,
        candidates: int | None = SearchSettings.candidates,
        effort: EffortName = SearchSettings.effort,
        budget_ms: float | None = SearchSettings.budget_ms,
        where: str | None = SearchSettings.where,
        frequencies: FrequenciesName = SearchSettings.frequencies,
        weights: WeightsName | None = SearchSettings.weights,
        fuse: FuseName | None = SearchSettings.fuse,
        min_score: float | None = SearchSettings.min_score,
        min_relevance: float | None = SearchSettings.min_relevance,
        partial: bool = SearchSettings.partial,
        offset: int = SearchSettings.offset,
        facets: Sequence[str] = SearchSettings.facets,
    ) -> Ranking:
        """The k best documents: gathered with the p most important query embeddings, scored with all of them.

        `offset` leaves out as many of the best, for the next page: the ranking is the slice [offset : offset + k] of
        the one with k + offset hits.

        `effort` ("fast", "balanced", "thorough" or "exact") decides what is left open, or `budget_ms`, the milliseconds
        that the search may take after encoding: docs/effort.md. `where` is a filter on the metadata, such as "year >=
        2020 and lang = 'en'", and `ranking.facets` counts the values of the keys `facets` in the documents that match:
        docs/living-index.md. With weights="idf" rare words count for more in the score: docs/importance.md. With
        fuse="rrf" hits are ordered by BM25 too: docs/hybrid.md. `min_score` and `min_relevance` leave out hits that
        have less, so that there may be fewer than k: docs/relevance.md. `partial` is for shards: a shard that cannot be
        reached is left out, and `ranking.stats.shards_missing` counts it; without `partial`, it raises
        ShardsMissingError (docs/cluster.md). One index is searched on one thread.
        """
        settings = SearchSettings(
            k=k,
            p=p,
            order=order,
            gather=gather,
            k_prime=k_prime,
            nprobe=nprobe,
            candidates=candidates,
            effort=effort,
            budget_ms=budget_ms,
            where=where,
            frequencies=frequencies,
            weights=weights,
            fuse=fuse,
            min_score=min_score,
            min_relevance=min_relevance,
            partial=partial,
            offset=offset,
            facets=facets,
        )
        return self._viewed(searching.search(self, query, settings))

    def search_many(
        self, queries: Iterable[str | EncodedText], threads: int | None = None, **settings: Any
    ) -> Iterator[Ranking]:
        """A ranking for each query, in their order, on all cores or `threads` of them. Settings as in `search`."""
        check_several(queries, NOT_SEVERAL)
        found = searching.search_many(self, queries, SearchSettings.of(settings), threads)
        return (self._viewed(ranking) for ranking in found)

    def decide(self, query: str | EncodedText, **settings: Any) -> searching.Decision:
        """What `search` would do with these settings: the weights, the plan, the importance order, what it keeps."""
        return searching.decide(self.searched(), self.encode_query(query), SearchSettings.of(settings))

    def explain(self, query: str | EncodedText, docno: str, **settings: Any) -> explaining.Explanation:
        """Token by token: why a document has its score, which query embeddings gather it. Settings as in `search`."""
        encoded = self.encode_query(query)
        explained = explaining.explain(self, encoded, docno, SearchSettings.of(settings))
        weights = {token.position: token.weight for token in explained.tokens}
        weighted = replace(encoded, weights=np.array([weights[i] for i in range(len(encoded))]))
        return explained.viewed_by(IndexViewer(self, weighted))

    @abstractmethod
    def candidates(self, query: str | EncodedText, **settings: Any) -> list[str]:
        """The first stage alone: docnos of the documents that `search` with these settings would score.

        With gather="cells" on one index, the highest approximate score comes first, with gather="text" the highest
        BM25.
        """

    @abstractmethod
    def score(self, query: str | EncodedText, docnos: Sequence[str]) -> list[float]:
        """The second stage alone: the exact MaxSim score of each of the documents, in their order.

        An EncodedText may have weights, such as that of `decide(query, weights="idf").query`: they count.
        """

    @abstractmethod
    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """The similarities that MaxSim takes the maxima of, (document tokens, query embeddings); and the token ids.

        They are without the query's weights.
        """

    @abstractmethod
    def searched(self) -> explaining.Explained:
        """The newest open state of the index, which one search uses from beginning to end."""

    # Documents

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __contains__(self, docno: object) -> bool: ...

    @abstractmethod
    def get(self, docno: str) -> Document:
        """The stored document of that docno."""

    @abstractmethod
    def documents(self, *, embeddings: bool = True) -> Iterator[Document]:
        """Every document, with its stored embeddings or without: to build another index from, with encoder=None."""

    def export(
        self, file: str | Path, *, format: str | None = None, overwrite: bool = False, progress: bool | None = None
    ) -> int:
        """Write every document to a file (.jsonl, .trec or .parquet; "-" is standard output): docs/transfer.md.

        Gives how many there are.
        """
        return export(self.documents, len(self), self._origin, file, format, overwrite, progress)

    @abstractmethod
    def _origin(self) -> Origin: ...

    def push(
        self, repo: str, *, public: bool = False, revision: str | None = None, progress: bool | None = None
    ) -> str:
        """Write the index to a dataset repository of the Hugging Face Hub, `user/name` (extra `[hub]`).

        public     for a repository that is not there yet: whether everyone may read it, the documents' texts included
        revision   a branch, which is made if it is not there; None is main
        progress   False hides the bars of the Hub's client

        The state that searches see now is pushed with one commit, which replaces an index that is there. Gives the
        address of the commit. `pull` of the class makes an index of it again: docs/transfer.md.
        """
        return push(self._files(), self.info(), repo, public, revision, progress)

    @abstractmethod
    def _files(self) -> IndexFiles: ...

    @classmethod
    def pull(
        cls,
        repo: str,
        path: str | Path,
        *,
        revision: str | None = None,
        overwrite: bool = False,
        progress: bool | None = None,
    ) -> Self:
        """Make an index at `path` of one that was pushed to the Hugging Face Hub, `user/name`, and open it.

        revision    a branch, a tag or a commit; None is main
        overwrite   replace an index, which stays as it is until the new one is complete; shards replace nothing
        progress    False hides the bars of the Hub's client

        Every byte is checked before the index gets its name.
        """
        cls._fetch(Repository(repo, revision).open(), Path(path), overwrite, progress)
        return cls(Path(path), None)

    @staticmethod
    @abstractmethod
    def _fetch(repository: Repository, path: Path, overwrite: bool, progress: bool | None) -> None: ...

    @abstractmethod
    def fields(self) -> dict[str, Field]:
        """The keys that the documents' metadata has, as `where` names them, with the types of their values."""

    @abstractmethod
    def add(self, documents: Documents, *, progress: bool | None = None, on_bad: OnBad | None = None) -> Changes:
        """Add documents, as `Index.build` takes them. They are searchable, and safe on disk, when this returns.

        A docno that the index has already is an error, and nothing is added; with `on_bad` that document is skipped.
        """

    @abstractmethod
    def update(self, documents: Documents, *, progress: bool | None = None, on_bad: OnBad | None = None) -> Changes:
        """Add documents. A document replaces the document that has its docno: one commit, over shards one per shard."""

    @abstractmethod
    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> Changes:
        """Change the metadata of documents, by docno, without encoding them again: one commit, over shards one each.

        The keys that are given are set, a key with None is removed, others stay. Docnos not there are in `missing`.
        """

    @abstractmethod
    def delete(self, docnos: str | Iterable[str] | None = None, *, where: str | None = None) -> Changes:
        """Delete documents by docno, or all that match a filter. Docnos that are not there are in `missing`."""

    @abstractmethod
    def compact(self, *, progress: bool | None = None) -> None:
        """Rewrite everything that is not deleted, with new cells. Recall may improve a little.

        Calling this is never necessary: changes rewrite what needs it, see docs/living-index.md.
        """

    @abstractmethod
    def calibrate(self, queries: Iterable[str | EncodedText] | None = None, *, progress: bool | None = None) -> None:
        """Measure how thorough each effort must be to find what it promises: see docs/effort.md.

        queries   such as users ask; without them, parts of the documents are used

        An index does this by itself when it is built, and again when it has changed much.
        """

    # State

    @abstractmethod
    def refresh(self) -> bool:
        """Open the newest state if another process has changed the index; True if it had."""

    @abstractmethod
    def info(self) -> dict[str, Any]:
        """Facts about the index (documents, embeddings, bytes, store, encoder, ...) as plain values."""

    @abstractmethod
    def check(self) -> None:
        """Read every byte, and raise if a checksum differs or two parts of the index disagree."""

    @abstractmethod
    def close(self) -> None:
        """Close files, threads and actors. A closed index cannot be searched; closing it again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        try:
            facts = f"{len(self):,} documents, {self.dim} dimensions"
        except SecateursError:
            facts = "closed"
        return f"{type(self).__name__}({str(self.path)!r}: {facts})"

    def _repr_html_(self) -> str | None:
        try:
            return index_html(f"{type(self).__name__}({str(self.path)!r})", self.info())
        except SecateursError:
            return None  # closed: a notebook shows the repr then

    def _viewed(self, ranking: Ranking) -> Ranking:
        viewer = IndexViewer(self, ranking.query)
        for hit in ranking.hits:
            hit.viewed_by(viewer)
        return ranking.viewed_by(viewer)

    def __reduce__(self) -> tuple[Any, ...]:
        """By path and options: no file, thread or actor is copied. An encoder that has no name goes along."""
        encoder = None if self.encoder_spec["kind"] in LOADED_BY_NAME else self._encoder
        return functools.partial(type(self), **self._options), (self.path, encoder)

    def __copy__(self) -> Self:
        reopen, (path, _) = self.__reduce__()
        copied: Self = reopen(path, self._encoder)
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()

    @property
    @abstractmethod
    def gatherers(self) -> tuple[GatherName, ...]:
        """The ways of gathering that the index was built for, the default first."""

    @property
    @abstractmethod
    def frequencies(self) -> Frequencies:
        """Token frequencies of the whole collection."""

    # PyTerrier

    def retriever(self, **settings: Any) -> Any:
        """This search as a PyTerrier transformer, with settings as in `search`: docs/pyterrier.md."""
        return _pyterrier().Retriever(self, **settings)

    def text_loader(self, fields: str | Sequence[str] = "*", *, verbose: bool = False) -> Any:
        """Texts and metadata as a PyTerrier transformer. `pt.text.get_text(index)` calls this; `verbose` is its own."""
        return _pyterrier().TextLoader(self, fields)


def _pyterrier() -> Any:
    """Imported by name: integrations import the index, and the index must not import them."""
    return require(f"{__package__}.integrations.pyterrier", "pyterrier")

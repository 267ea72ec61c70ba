"""`Index`: the one class most people hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import explain as explaining
from . import search as searching
from .contract import EncodesQueries
from .corpus import OnBad, count_documents, read_places
from .encoders import DEFAULT_MODEL, Encoder, load_encoder
from .errors import EncoderMismatchError, UsageError
from .frequencies import Frequencies
from .importance import Order, Positions
from .records import Document, EncodedText, Ranking, SearchSettings
from .storage.changes import Changes, Writer, writing
from .storage.check import check_snapshot
from .storage.codecs.stores import DEFAULT_STORE
from .storage.compaction import live_documents
from .storage.manifest import Manifest
from .storage.new_index import make_index
from .storage.segment_writer import Recipe
from .storage.segments import Segment
from .storage.snapshot import Snapshot
from .storage.target import check_target

if TYPE_CHECKING:
    from .integrations.pyterrier import Retriever, TextLoader

_T = TypeVar("_T")


class Index(EncodesQueries):
    """An index on disk, open for searching. Safe to use from several threads.

    >>> index = Index("demo.sec")
    >>> ranking = index.search("do goldfish grow", k=10, p=3)
    """

    def __init__(self, path: str | Path, encoder: Encoder | None = None) -> None:
        """Open an index. Its own encoder is loaded by the first search with text, unless one is given here."""
        self.snapshot = Snapshot.open(Path(path))
        super().__init__(Path(path), encoder)

    @classmethod
    def build(
        cls,
        path: str | Path,
        documents: str | Path | Iterable[Document | Mapping[str, Any]],
        *,
        encoder: Encoder | str | None = DEFAULT_MODEL,
        store: str = DEFAULT_STORE,
        gather: Sequence[str] = ("cells",),
        overwrite: bool = False,
        progress: bool | None = None,
        on_bad: OnBad | None = None,
    ) -> Index:
        """Make an index at `path` from documents, streaming, and open it.

        documents   mappings with "docno", "text" and any metadata; or Document records; or the path of a corpus
                    (see secateurs.corpus)
        encoder     a model's name or folder, an Encoder, or None if every Document brings its embeddings
        store       "int8", "float16" or "residual4": docs/index-format.md compares them
        gather      what to prepare for gathering: "cells", "faiss" or both; "exhaustive" needs no preparation
        progress    None shows bars on a terminal, True always, False never
        on_bad      called with a message for each document that cannot be used; without it the first one raises

        Until the build is finished there is no index at `path`, and what was there before stays.
        """
        if isinstance(gather, str):
            gather = (gather,)
        check_target(Path(path), overwrite)
        loaded = load_encoder(encoder) if isinstance(encoder, str) else encoder
        items, total = with_places(documents, on_bad)

        recipe = Recipe(store, tuple(dict.fromkeys(gather)))
        make_index(
            Path(path), items, loaded, recipe, overwrite=overwrite, total=total, progress=progress, on_bad=on_bad
        )
        return cls(path, loaded)

    def add(
        self,
        documents: str | Path | Iterable[Document | Mapping[str, Any]],
        *,
        progress: bool | None = None,
        on_bad: OnBad | None = None,
    ) -> Changes:
        """Add documents, as `build` takes them. They are searchable, and safe on disk, when this returns.

        A docno that is there already is an error, and then nothing is added; with `on_bad` that document is skipped.
        """
        return self._add(documents, progress, on_bad, replacing=False, encoder=self._own_encoder())

    def update(
        self,
        documents: str | Path | Iterable[Document | Mapping[str, Any]],
        *,
        progress: bool | None = None,
        on_bad: OnBad | None = None,
    ) -> Changes:
        """Add documents, each in place of the one that has its docno, if there is one. All in one step."""
        return self._add(documents, progress, on_bad, replacing=True, encoder=self._own_encoder())

    def update_encoded(self, documents: Sequence[Document]) -> Changes:
        """As `update`, of documents that this index's encoder has encoded elsewhere."""
        return self._add(documents, False, None, replacing=True, encoder=None)

    def delete(self, docnos: str | Iterable[str]) -> Changes:
        """Delete documents. Docnos that are not there come back as `missing`."""
        wanted = [docnos] if isinstance(docnos, str) else list(docnos)
        for docno in wanted:
            if not isinstance(docno, str):
                raise UsageError(f"a docno is a text, not {docno!r}")
        return self._write(lambda writer: writer.delete(wanted))

    def compact(self, *, progress: bool | None = None) -> None:
        """Rewrite everything that is not deleted as one segment, with cells learnt anew. Rankings may improve a little.

        Nobody has to call this: changes rewrite what needs it, see docs/living-index.md.
        """
        self._write(lambda writer: writer.compact(), progress)

    def refresh(self) -> bool:
        """Go on to the newest state, if another process or Index has changed it; say whether it had."""
        earlier = self.snapshot
        newest = Snapshot.open(self.path, earlier)
        return newest.manifest != earlier.manifest and self._move_to(newest)

    def _move_to(self, newest: Snapshot) -> bool:
        """Forwards only: another thread may have opened something newer meanwhile."""
        if newest.manifest.encoder != self.manifest.encoder:
            raise EncoderMismatchError(f"{self.path} was replaced by an index of another encoder: open it again")
        with self._lock:
            behind = newest.manifest.commit < self.manifest.commit
            if behind and Manifest.read(self.path) != newest.manifest:
                return False
            self.snapshot = newest
            return True

    def _add(
        self,
        documents: str | Path | Iterable[Document | Mapping[str, Any]],
        progress: bool | None,
        on_bad: OnBad | None,
        replacing: bool,
        encoder: Encoder | None,
    ) -> Changes:
        items, _ = with_places(documents, on_bad)
        return self._write(lambda writer: writer.add(items, encoder, on_bad, replacing), progress)

    def _own_encoder(self) -> Encoder | None:
        return self.encoder if self.has_encoder else None

    def _write(self, change: Callable[[Writer], _T], progress: bool | None = False) -> _T:
        with writing(self.path, self.snapshot, progress) as writer:
            self._move_to(writer.snapshot)
            try:
                return change(writer)
            finally:
                self._move_to(writer.snapshot)

    def search(
        self,
        query: str | EncodedText,
        k: int = SearchSettings.k,
        p: int | Literal["auto"] | None = SearchSettings.p,
        order: str | Order = SearchSettings.order,
        gather: str = SearchSettings.gather,
        k_prime: int = SearchSettings.k_prime,
        nprobe: int | None = SearchSettings.nprobe,
        candidates: int | None = SearchSettings.candidates,
        effort: str = SearchSettings.effort,
        where: str | None = SearchSettings.where,
        frequencies: str = SearchSettings.frequencies,
        partial: bool = SearchSettings.partial,
    ) -> Ranking:
        """The k best documents: gathered with the p most important query embeddings, scored with all of them.

        `effort` ("fast", "balanced" or "exact") decides what is left open; docs/effort.md says how. `where` is a filter
        on the metadata, such as "year >= 2020 and lang = 'en'"; docs/living-index.md has its language. `partial` is
        about shards (docs/cluster.md): one index is never partial. One thread.
        """
        settings = SearchSettings(k, p, order, gather, k_prime, nprobe, candidates, effort, where, frequencies, partial)
        return searching.search(self, query, settings)

    def search_many(
        self, queries: Iterable[str | EncodedText], threads: int | None = None, **settings: Any
    ) -> Iterator[Ranking]:
        """A ranking for each query, in their order, on all cores or so many threads. Settings as in `search`."""
        return searching.search_many(self, queries, SearchSettings.of(settings), threads)

    def candidates(self, query: str | EncodedText, **settings: Any) -> list[str]:
        """The first stage alone: docnos of what `search` with these settings would score (from cells: best first)."""
        return searching.candidates(self, query, SearchSettings.of(settings))

    def score(self, query: str | EncodedText, docnos: Sequence[str]) -> list[float]:
        """The second stage alone: exact MaxSim of documents that came from anywhere, in their order."""
        return searching.score(self, query, docnos)

    def importance(self, query: EncodedText, **settings: Any) -> tuple[Positions, Frequencies]:
        """All positions of a query, most important first, and the frequencies that decided it."""
        prepared = searching.prepare(self.snapshot, query, SearchSettings.of(settings))
        return prepared.ordered, prepared.frequencies

    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """What MaxSim takes the maxima of, (document tokens, query embeddings); and those tokens' ids."""
        return self.snapshot.similarities(query, docno)

    def retriever(self, **settings: Any) -> Retriever:
        """This search as a PyTerrier transformer, with settings as in `search`: docs/pyterrier.md."""
        from .integrations.pyterrier import Retriever

        return Retriever(self, **settings)

    def text_loader(self, fields: str | Sequence[str] = "*", *, verbose: bool = False) -> TextLoader:
        """Texts and metadata as a PyTerrier transformer. `pt.text.get_text(index)` calls this; `verbose` is its own."""
        from .integrations.pyterrier import TextLoader

        return TextLoader(self, fields)

    def explain(self, query: str | EncodedText, docno: str, **settings: Any) -> explaining.Explanation:
        """Token by token, why a document has its score, and which query embeddings gather it: as `search` would."""
        return explaining.explain(self, query, docno, SearchSettings.of(settings))

    @property
    def manifest(self) -> Manifest:
        return self.snapshot.manifest

    @property
    def encoder_spec(self) -> Mapping[str, Any]:
        return self.manifest.encoder

    @property
    def dim(self) -> int:
        return self.manifest.dim

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.snapshot.segments

    @property
    def frequencies(self) -> Frequencies:
        """Token frequencies of the whole collection."""
        return self.snapshot.frequencies

    @property
    def prepared(self) -> tuple[str, ...]:
        """The ways of gathering that this index can do, the default first."""
        return self.snapshot.prepared

    def __len__(self) -> int:
        return len(self.snapshot)

    def __contains__(self, docno: object) -> bool:
        return isinstance(docno, str) and self.snapshot.find(docno) is not None

    def get(self, docno: str) -> Document:
        """The stored document of that docno."""
        snapshot = self.snapshot
        segment, number = snapshot.place(snapshot.number(docno))
        return Document(*segment.documents.get([number])[0])

    def documents(self) -> Iterator[Document]:
        """Every document with its stored embeddings: to export, or to build another index from with encoder=None."""
        return live_documents(self.snapshot)

    def info(self) -> dict[str, Any]:
        """What the index is and holds, in plain values."""
        snapshot = self.snapshot
        manifest = snapshot.manifest
        gone = [record.deletions for record in manifest.segments if record.deletions is not None]
        files = [manifest.codebook.files] if manifest.codebook.name is not None else []
        files += [record.files for record in manifest.segments] + [record.files for record in gone]
        return {
            "path": str(self.path),
            "documents": len(snapshot),
            "embeddings": sum(record.live_embeddings for record in manifest.segments),
            "cut_documents": sum(r.cut_documents for r in manifest.segments) - sum(r.cut_documents for r in gone),
            "token_types": len(snapshot.frequencies.token_ids),
            "dim": manifest.dim,
            "store": manifest.store,
            "gather": list(snapshot.prepared),
            "encoder": dict(manifest.encoder),
            "bytes": sum(size["bytes"] for some in files for size in some.values()),
            "segments": len(manifest.segments),
            "deleted_documents": sum(record.documents for record in gone),
            "commit": manifest.commit,
            "format_version": manifest.format_version,
            "written_by": manifest.written_by,
        }

    def check(self) -> None:
        """Read every byte of the index and raise if one differs from what was written, or two parts disagree."""
        check_snapshot(self.snapshot)


def with_places(
    documents: str | Path | Iterable[Document | Mapping[str, Any]], on_bad: OnBad | None
) -> tuple[Iterator[tuple[str, Document | Mapping[str, Any]]], int | None]:
    """(place, document) pairs, and how many to expect."""
    if isinstance(documents, str | Path):
        return read_places(documents, on_bad), count_documents(documents)
    total = len(documents) if isinstance(documents, Sequence) else None
    return ((f"document {i}", document) for i, document in enumerate(documents, start=1)), total

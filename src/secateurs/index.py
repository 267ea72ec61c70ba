"""`Index`: the class that most people hold."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import calibration
from . import search as searching
from .background import AUTO, Background, choose_background
from .compiling import compile_kernels
from .contract import AnyIndex, Documents
from .corpus import OnBad, with_places
from .encoders import DEFAULT_MODEL, Encoder, load_encoder
from .errors import EncoderMismatchError, SecateursError
from .explain import Evidence, Standing, find_evidence, find_standing
from .frequencies import Frequencies
from .metadata import to_metadata
from .records import (
    Changes,
    Document,
    EncodedText,
    Field,
    check_either,
    to_docnos,
)
from .search import Decision, OneIndex
from .settings import (
    DEFAULT_STORE,
    GATHERERS,
    GatherName,
    Merge,
    SearchSettings,
    StoreName,
)
from .storage.changes import Writer, writing
from .storage.check import check_snapshot
from .storage.compaction import live_documents
from .storage.fields import fields_of
from .storage.manifest import Manifest
from .storage.merging import choose_merge
from .storage.new_index import check_target, make_index
from .storage.origin import Origin
from .storage.recipe import Recipe
from .storage.snapshot import Snapshot
from .transfer.arrays import with_docnos
from .transfer.pulling import pull_index
from .transfer.pushing import IndexFiles, index_files

_T = TypeVar("_T")


class Index(AnyIndex):
    """An index on disk, open for searching. Safe to use from several threads.

    >>> index = Index("demo.sec")
    >>> ranking = index.search("do goldfish grow", k=10, p=3)

    A copy, or a pickled index in another process, opens the same folder again.
    """

    def __init__(self, path: str | Path, encoder: Encoder | None = None) -> None:
        """Open an index. Its encoder is loaded by the first search for a text, unless it is given here."""
        self._snapshot: Snapshot | None = Snapshot.open(Path(path))
        super().__init__(Path(path), encoder)

    @classmethod
    def build(
        cls,
        path: str | Path,
        documents: Documents | Iterable[NDArray[Any]],
        *,
        encoder: Encoder | str | None = DEFAULT_MODEL,
        store: StoreName = DEFAULT_STORE,
        gather: GatherName | Sequence[GatherName] = ("cells",),
        background: Background | str | Path | None = AUTO,
        merge: Merge = "auto",
        pool: int = 1,
        overwrite: bool = False,
        progress: bool | None = None,
        on_bad: OnBad | None = None,
    ) -> Self:
        """Make an index at `path` from documents, streaming, and open it.

        documents   mappings with "docno", "text" and any metadata; or Document records; or the path of a corpus
                    (see secateurs.corpus); or matrices of embeddings alone, whose docnos are "0", "1", ...
        encoder     a model's name or folder, an Encoder, or None if every document brings its embeddings
        store       "int8", "int16", "float16" or "residual4": docs/index-format.md compares them
        gather      ways of gathering to build for: "cells", "faiss", "text"; "exhaustive" needs nothing
        background  what `rarity` takes as general text: a Background, its name or its file; "auto" is a table of the
                    package if there is one for the encoder's vocabulary; None is no background. The index keeps a copy.
                    Without an encoder, or with one that does not know its vocabulary, "auto" is none, and whether a
                    background that is given has the same vocabulary cannot be checked
        merge       the cosine above which embeddings of the same token in a document become one, their mean; "auto" is
                    what was measured for the encoder, and no merging if nothing was; None merges nothing
        pool        stores at most one embedding for so many of a document, by joining the nearest: docs/merging.md
        progress    None shows bars on a terminal, True always, False never
        on_bad      called with a message for each document that cannot be used; without it the first one raises

        An index that is at `path` already stays as it is until the new one is finished. After an interruption, the same
        call takes over what was encoded: docs/living-index.md.
        """
        gather = (gather,) if isinstance(gather, str) else tuple(dict.fromkeys(gather))
        check_target(Path(path), overwrite)
        given, are_matrices = with_docnos(documents)
        encoder = None if are_matrices and encoder == DEFAULT_MODEL else encoder
        loaded = load_encoder(encoder) if isinstance(encoder, str) else encoder
        chosen = choose_background(background, loaded)
        items, total = with_places(given, on_bad)
        make_index(
            Path(path),
            items,
            loaded,
            Recipe(store, gather, choose_merge(merge, loaded), pool),
            overwrite=overwrite,
            total=total,
            progress=progress,
            on_bad=on_bad,
            background=chosen,
        )
        built = cls(path, loaded)
        calibrate_if_due(built, progress)
        return built

    @property
    def snapshot(self) -> Snapshot:
        """The state that searches see now."""
        if self._snapshot is None:
            raise SecateursError(f"{self.path} is closed: open it again")
        return self._snapshot

    def searched(self) -> _ExplainedIndex:
        return _ExplainedIndex(self.snapshot)

    def candidates(self, query: str | EncodedText, **settings: Any) -> list[str]:
        snapshot, encoded = self.snapshot, self.encode_query(query)
        decision = searching.decide(OneIndex(snapshot), encoded, SearchSettings.of(settings))
        return snapshot.docnos(searching.scored(snapshot, decision))

    def score(self, query: str | EncodedText, docnos: Sequence[str]) -> list[float]:
        snapshot, encoded = self.snapshot, self.encode_query(query)
        scores: list[float] = searching.score(snapshot, encoded, snapshot.numbers(to_docnos(docnos))).tolist()
        return scores

    def similarities(self, query: EncodedText, docno: str) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        return self.snapshot.similarities(self.encode_query(query), docno)

    def __len__(self) -> int:
        return len(self.snapshot)

    def __contains__(self, docno: object) -> bool:
        return isinstance(docno, str) and self.snapshot.find(docno) is not None

    def get(self, docno: str) -> Document:
        snapshot = self.snapshot
        segment, number = snapshot.place(snapshot.number(docno))
        return Document(*segment.documents.get([number])[0])

    def documents(self, *, embeddings: bool = True) -> Iterator[Document]:
        return live_documents(self.snapshot, embeddings=embeddings)

    def _origin(self) -> Origin:
        return Origin.of(self.snapshot)

    _fetch = staticmethod(pull_index)

    def _files(self) -> IndexFiles:
        return index_files(self.snapshot)

    def fields(self) -> dict[str, Field]:
        return fields_of(self.snapshot)

    def add(self, documents: Documents, *, progress: bool | None = None, on_bad: OnBad | None = None) -> Changes:
        return self._add(documents, progress, on_bad, replacing=False, encoder=self._documents_encoder())

    def update(self, documents: Documents, *, progress: bool | None = None, on_bad: OnBad | None = None) -> Changes:
        return self._add(documents, progress, on_bad, replacing=True, encoder=self._documents_encoder())

    def change(self, make_change: Callable[[Writer], _T]) -> _T:
        """A change by the index's one writer: for documents that were encoded elsewhere, and for writes with an id."""
        return self._write(make_change)

    def update_metadata(self, metadata: Mapping[str, Mapping[str, Any]]) -> Changes:
        checked = to_metadata(metadata)
        return self._write(lambda writer: writer.update_metadata(checked))

    def delete(self, docnos: str | Iterable[str] | None = None, *, where: str | None = None) -> Changes:
        check_either(docnos, where)
        if where is not None:
            return self._write(lambda writer: writer.delete_where(where))
        wanted = to_docnos(docnos)
        return self._write(lambda writer: writer.delete(wanted))

    def compact(self, *, progress: bool | None = None) -> None:
        self._write(lambda writer: writer.compact(), progress)

    def calibrate(self, queries: Iterable[str | EncodedText] | None = None, *, progress: bool | None = None) -> None:
        encoded = self._encode_queries(queries)
        with writing(self.path, self.snapshot, progress) as writer:
            self._move_to(writer.snapshot)  # raises if it was replaced by an index of another encoder
            writer.set_calibration(calibration.calibrate(writer.snapshot, encoded, progress))
            self._move_to(writer.snapshot)

    def refresh(self) -> bool:
        earlier = self.snapshot
        if Manifest.read(self.path) == earlier.manifest:
            return False
        newest = Snapshot.open(self.path, earlier)
        return newest.manifest != earlier.manifest and self._move_to(newest)

    def info(self) -> dict[str, Any]:
        snapshot = self.snapshot
        manifest = snapshot.manifest
        gone = [record.deletions for record in manifest.segments if record.deletions is not None]
        embeddings = sum(record.live_embeddings for record in manifest.segments)
        return {
            "path": str(self.path),
            "documents": len(snapshot),
            "embeddings": embeddings,
            "merged_embeddings": snapshot.frequencies.embeddings - embeddings,
            "cut_documents": sum(r.cut_documents for r in manifest.segments) - sum(r.cut_documents for r in gone),
            "token_types": len(snapshot.frequencies.token_ids),
            "dim": manifest.dim,
            "store": manifest.store,
            "merge": manifest.merge,
            "pool": manifest.pool,
            "gather": [name for name in GATHERERS if name == "exhaustive" or name in manifest.gather],
            "encoder": dict(manifest.encoder),
            "background": manifest.codebook.background and dict(manifest.codebook.background),
            "bytes": sum(file["bytes"] for _, _, files in manifest.folders() for file in files.values()),
            "segments": len(manifest.segments),
            "calibration": calibration.describe(filter(None, [manifest.calibration])),
            "deleted_documents": sum(deletions.documents for deletions in gone),
            "commit": manifest.commit,
            "format_version": manifest.format_version,
            "written_by": manifest.written_by,
        }

    def check(self) -> None:
        check_snapshot(self.snapshot)

    def close(self) -> None:
        with self._encoder_lock:  # a change that ends at this moment does not open it again
            self._snapshot = None  # its files are closed when the last running search ends

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
    def gatherers(self) -> tuple[GatherName, ...]:
        return self.snapshot.gatherers

    @property
    def frequencies(self) -> Frequencies:
        return self.snapshot.frequencies

    def _compile(self) -> None:
        compile_kernels(self.snapshot)

    def _documents_encoder(self) -> Encoder | None:
        return self.encoder if self.has_encoder else None

    def _add(
        self,
        documents: Documents,
        progress: bool | None,
        on_bad: OnBad | None,
        replacing: bool,
        encoder: Encoder | None,
    ) -> Changes:
        items, _ = with_places(documents, on_bad)
        return self._write(lambda writer: writer.add(items, encoder, on_bad, replacing), progress)

    def _write(self, change: Callable[[Writer], _T], progress: bool | None = False) -> _T:
        with writing(self.path, self.snapshot, progress) as writer:
            self._move_to(writer.snapshot)
            try:
                changed = change(writer)
                self._move_to(writer.snapshot)  # searches need not wait for what follows
                self._measure(writer, progress)
                return changed
            finally:
                self._move_to(writer.snapshot)

    def _measure(self, writer: Writer, progress: bool | None) -> None:
        """The change is committed already, so a failure here is a warning and not an error."""
        try:
            if calibration.is_due(writer.snapshot):
                writer.set_calibration(calibration.calibrate(writer.snapshot, progress=progress))
        except (SecateursError, OSError, MemoryError) as error:
            warnings.warn(
                f"{self.path} was changed, but its recall could not be measured ({error}): the next change tries again",
                stacklevel=2,
            )

    def _move_to(self, newest: Snapshot) -> bool:
        """Replace the snapshot, unless another thread has opened a newer one meanwhile, or has closed the index."""
        with self._encoder_lock:
            if self._snapshot is None:
                return False
            manifest = self._snapshot.manifest
            if newest.manifest.encoder != manifest.encoder:
                raise EncoderMismatchError(f"{self.path} was replaced by an index of another encoder: open it again")
            behind = newest.manifest.commit < manifest.commit
            if behind and Manifest.read(self.path) != newest.manifest:
                return False
            self._snapshot = newest
            return True


def calibrate_if_due(index: Index, progress: bool | None = False) -> None:
    """What a change does at its end, for an index that was just made. A failure is a warning: the index is complete."""
    if calibration.is_due(index.snapshot):
        try:
            index._write(lambda writer: None, progress)
        except (SecateursError, OSError) as error:
            warnings.warn(
                f"{index.path} was built, but its recall could not be measured ({error}): the next change tries again",
                stacklevel=3,
            )


class _ExplainedIndex(OneIndex):
    def evidence(self, decision: Decision, docno: str) -> Evidence:
        return find_evidence(self.snapshot, decision, docno)

    def standings(
        self, decision: Decision, settings: SearchSettings, score: float, text_score: float | None, docno: str
    ) -> list[Standing]:
        return [find_standing(self.snapshot, decision, score, text_score, docno)]

"""`Index`: the one class most people hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cached_property, reduce
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from .. import explain as explaining
from .. import search as searching
from ..corpus import OnBad, count_documents, read_places
from ..encoders import DEFAULT_MODEL, Encoder, load_encoder
from ..errors import EncoderMismatchError, SecateursError, UsageError
from ..frequencies import Frequencies
from ..gather import GATHERERS
from ..gather.files import FILES_OF
from ..importance import Order
from ..records import Document, EncodedText, Ranking, SearchSettings
from ..version import __version__
from .building import build_folder, check_target, write_segment
from .segments import Segment
from .storage import Manifest, SegmentRecord, check_files, segment_folder
from .stores import DEFAULT_STORE

if TYPE_CHECKING:
    from ..integrations.pyterrier import Retriever, TextLoader


class Index:
    """An index on disk, open for searching. Safe to use from several threads.

    >>> index = Index("demo.sec")
    >>> ranking = index.search("do goldfish grow", k=10, p=3)
    """

    def __init__(self, path: str | Path, encoder: Encoder | None = None) -> None:
        """Open an index. Its own encoder is loaded by the first search with text, unless one is given here."""
        self.path = Path(path)
        self.manifest, self.segments = _open_snapshot(self.path)
        if encoder is not None:
            self._check_encoder(encoder)
        self._encoder = encoder
        self._lock = Lock()

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
        items, total = _with_places(documents, on_bad)

        def fill(folder: Path) -> Manifest:
            segment = segment_folder(folder, uuid.uuid4().hex[:12])  # a name no open reader can mistake for its own
            record, dim = write_segment(segment, items, loaded, store, gather, total, progress, on_bad)
            spec = loaded.spec if loaded is not None else {"kind": "precomputed"}
            return Manifest(dim, store, dict(spec), (record,), f"secateurs {__version__}")

        build_folder(Path(path), fill)
        return cls(path, loaded)

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
    ) -> Ranking:
        """The k best documents: gathered with the p most important query embeddings, scored with all of them.

        `effort` ("fast", "balanced" or "exact") decides what is left open; docs/effort.md says how. One thread.
        """
        settings = SearchSettings(k, p, order, gather, k_prime, nprobe, candidates, effort)
        return searching.search(self, query, settings)

    def search_many(
        self, queries: Iterable[str | EncodedText], threads: int | None = None, **settings: Any
    ) -> Iterator[Ranking]:
        """A ranking for each query, in their order, on all cores or so many threads. Settings as in `search`."""
        return searching.search_many(self, queries, _settings(settings), threads)

    def candidates(self, query: str | EncodedText, **settings: Any) -> list[str]:
        """The first stage alone: docnos of what `search` with these settings would score (from cells: best first)."""
        return searching.candidates(self, query, _settings(settings))

    def score(self, query: str | EncodedText, docnos: Sequence[str]) -> list[float]:
        """The second stage alone: exact MaxSim of documents that came from anywhere, in their order."""
        return searching.score(self, query, docnos)

    def retriever(self, **settings: Any) -> Retriever:
        """This search as a PyTerrier transformer, with settings as in `search`: docs/pyterrier.md."""
        from ..integrations.pyterrier import Retriever

        return Retriever(self, **settings)

    def text_loader(self, fields: str | Sequence[str] = "*", *, verbose: bool = False) -> TextLoader:
        """Texts and metadata as a PyTerrier transformer. `pt.text.get_text(index)` calls this; `verbose` is its own."""
        from ..integrations.pyterrier import TextLoader

        return TextLoader(self, fields)

    def explain(self, query: str | EncodedText, docno: str, **settings: Any) -> explaining.Explanation:
        """Token by token, why a document has its score, and which query embeddings gather it: as `search` would."""
        return explaining.explain(self, query, docno, _settings(settings))

    def __len__(self) -> int:
        return sum(len(segment) for segment in self.segments)

    def __contains__(self, docno: str) -> bool:
        return any(segment.documents.number(docno) is not None for segment in self.segments)

    def get(self, docno: str) -> Document:
        """The stored document of that docno."""
        segment, number = self.locate(docno)
        return Document(*segment.documents.get([number])[0])

    def locate(self, docno: str) -> tuple[Segment, int]:
        """The segment a document is in, and its number there."""
        for segment in self.segments:
            number = segment.documents.number(docno)
            if number is not None:
                return segment, number
        raise SecateursError(f"no document {docno!r} in {self.path}")

    @cached_property
    def frequencies(self) -> Frequencies:
        """Token frequencies of the whole collection."""
        return reduce(Frequencies.__add__, (segment.frequencies for segment in self.segments))

    @cached_property
    def prepared(self) -> tuple[str, ...]:
        """The ways of gathering that this index can do, the default first."""
        return tuple(
            name
            for name in GATHERERS
            if all(_has_files(record, FILES_OF.get(name, ())) for record in self.manifest.segments)
        )

    @property
    def encoder(self) -> Encoder:
        with self._lock:  # loaded once, however many threads come for it
            if self._encoder is None:
                spec = self.manifest.encoder
                if spec["kind"] not in ("onnx", "st"):
                    raise SecateursError(
                        f"{self.path} was built with {_origin(spec)}, which cannot be loaded by name: "
                        "open it with Index(path, encoder=...), or search with an EncodedText"
                    )
                encoder = load_encoder(spec["model"], spec["kind"])
                self._check_encoder(encoder)
                self._encoder = encoder
            return self._encoder

    def encode_query(self, query: str | EncodedText) -> EncodedText:
        if isinstance(query, EncodedText):
            encoded = query
        else:
            try:
                query.encode("utf-8")
            except UnicodeEncodeError as error:
                raise UsageError(f"the query is not valid Unicode ({error.reason})") from error
            encoded = self.encoder.encode_query(query)
        if encoded.embeddings.shape[1] != self.manifest.dim and len(self):
            raise UsageError(
                f"the query's embeddings have {encoded.embeddings.shape[1]} dimensions, "
                f"those of the index {self.manifest.dim}"
            )
        return encoded

    def token_text(self, token_id: int) -> str:
        """The wordpiece of a token id, or its number where the index has no encoder."""
        if self._encoder is None and self.manifest.encoder["kind"] == "precomputed":
            return f"#{token_id}"
        return self.encoder.token_text(token_id)

    def info(self) -> dict[str, Any]:
        """What the index is and holds, in plain values."""
        records = self.manifest.segments
        sizes = [size["bytes"] for record in records for size in record.files.values()]
        return {
            "path": str(self.path),
            "documents": sum(record.documents for record in records),
            "embeddings": sum(record.embeddings for record in records),
            "cut_documents": sum(record.cut_documents for record in records),
            "token_types": len(self.frequencies.token_ids),
            "dim": self.manifest.dim,
            "store": self.manifest.store,
            "gather": list(self.prepared),
            "encoder": dict(self.manifest.encoder),
            "bytes": sum(sizes),
            "segments": len(records),
            "format_version": self.manifest.format_version,
            "written_by": self.manifest.written_by,
        }

    def check(self) -> None:
        """Read every byte of the index and raise if one differs from what was written."""
        for segment in self.segments:
            check_files(segment.folder, segment.record, every_byte=True)

    def _check_encoder(self, encoder: Encoder) -> None:
        stored = self.manifest.encoder
        if stored["kind"] == "precomputed":
            if encoder.dim != self.manifest.dim:
                raise EncoderMismatchError(
                    f"{self.path} holds {self.manifest.dim}-dimensional embeddings, this encoder makes {encoder.dim}"
                )
        elif encoder.spec["fingerprint"] != stored["fingerprint"]:
            raise EncoderMismatchError(
                f"{self.path} was built with {stored['model']!r} ({stored['fingerprint']}), and this encoder is "
                f"{encoder.spec['model']!r} ({encoder.spec['fingerprint']}): their embeddings do not compare. "
                "Open the index with the encoder that built it, or index the documents again"
            )


def _open_snapshot(path: Path) -> tuple[Manifest, tuple[Segment, ...]]:
    """The manifest and the segments it names. A writer may replace them in between: then the new ones are opened."""
    manifest = Manifest.read(path)
    while True:
        try:
            return manifest, tuple(
                Segment(segment_folder(path, record.name), record, manifest.store) for record in manifest.segments
            )
        except (SecateursError, OSError):
            newer = Manifest.read(path)
            if newer == manifest:
                raise
            manifest = newer


def _origin(spec: Mapping[str, Any]) -> str:
    return "embeddings and no encoder" if spec["kind"] == "precomputed" else f"an encoder of kind {spec['kind']!r}"


def _settings(given: Mapping[str, Any]) -> SearchSettings:
    known = [field.name for field in fields(SearchSettings)]
    for name in given:
        if name not in known:
            raise UsageError(f"there is no search setting {name!r}: there are {', '.join(known)}")
    return SearchSettings(**given)


def _has_files(record: SegmentRecord, names: Iterable[str]) -> bool:
    return record.embeddings == 0 or all(name in record.files for name in names)


def _with_places(
    documents: str | Path | Iterable[Document | Mapping[str, Any]], on_bad: OnBad | None
) -> tuple[Iterator[tuple[str, Document | Mapping[str, Any]]], int | None]:
    """(place, document) pairs, and how many to expect."""
    if isinstance(documents, str | Path):
        return read_places(documents, on_bad), count_documents(documents)
    total = len(documents) if isinstance(documents, Sequence) else None
    return ((f"document {i}", document) for i, document in enumerate(documents, start=1)), total

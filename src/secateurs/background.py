"""`Background`: how often each token of a vocabulary occurs in general text, for the order `rarity` (importance.py).

A table belongs to the vocabulary that it was counted with: under another one, its ids stand for other tokens. The
package has a table for the built-in model, `english`; training/background.py says what it was counted in.

A table is a compressed .npz file:

    name         text
    vocabulary   text: the fingerprint, see encoders/vocabulary.py
    token_ids    (types,) int32: the first id, then from each id to the next; most are 1, and take no space
    counts       (types,) uint8 to uint64, whichever holds the largest
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .encoders.protocol import Encoder
from .encoders.vocabulary import KnowsVocabulary
from .errors import SecateursError, UsageError
from .frequencies import Frequencies
from .progress import progress_bar

AUTO = "auto"
PACKAGED = {"english": Path(__file__).parent / "encoders" / "english.background.npz"}
_TEXTS_AT_ONCE = 500
_CHARACTERS_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Background:
    """A named table of token counts for one vocabulary."""

    name: str
    vocabulary: str  # the fingerprint of the tokenizer's vocabulary
    counts: Frequencies  # its document frequencies are not counted: collection frequencies stand in for them

    @classmethod
    def count(
        cls,
        texts: Iterable[str],
        encoder: Encoder,
        name: str,
        *,
        total: int | None = None,
        progress: bool | None = None,
    ) -> Background:
        """Count the wordpieces of texts, streaming, with the encoder's tokenizer alone.

        Counted is what documents store: no skipped punctuation, but no limit either. `total` is how many texts to
        expect, for the progress bar.
        """
        if not isinstance(encoder, KnowsVocabulary):
            raise UsageError(
                f"{type(encoder).__name__} cannot count tokens without encoding: it needs `vocabulary` and `word_ids`, "
                "see docs/encoders.md"
            )
        if isinstance(texts, str):
            raise UsageError(f"give a list of texts, not a single text: {texts!r:.100}")
        counts = np.zeros(0, dtype=np.int64)  # (largest token id so far + 1,)
        with progress_bar("counting tokens", total, "texts", progress) as advance:
            for batch in _batches(texts):
                counted = np.bincount(encoder.word_ids(batch), minlength=len(counts))
                counted[: len(counts)] += counts
                counts = counted
                advance(len(batch))
        return cls.of_counts(name, encoder.vocabulary, np.arange(len(counts)), counts)

    @classmethod
    def of_counts(
        cls, name: str, vocabulary: str, token_ids: NDArray[np.integer], counts: NDArray[np.integer]
    ) -> Background:
        """From ascending token ids and the count of each; a count of 0 is left out."""
        if len(token_ids) and int(token_ids[-1]) > np.iinfo(np.int32).max:
            raise UsageError(f"token ids must be at most {np.iinfo(np.int32).max:,}, not {int(token_ids[-1]):,}")
        present = counts > 0
        collection = counts[present].astype(np.int64)
        return cls(name, vocabulary, Frequencies(token_ids[present].astype(np.int32), collection, collection))

    @property
    def tokens(self) -> int:
        return int(self.counts.collection.sum())

    @property
    def description(self) -> dict[str, str]:
        """What an index records of it."""
        return {"name": self.name, "vocabulary": self.vocabulary}

    @property
    def digest(self) -> str:
        """Of the counts, to know the table again."""
        arrays = (self.counts.token_ids.astype("<i4"), self.counts.collection.astype("<i8"))
        return sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]

    def save(self, path: str | Path) -> None:
        """Write the table to a file."""
        token_ids, counts = self.counts.token_ids, self.counts.collection
        with Path(path).open("wb") as file:  # np.savez would add .npz to a name without it
            np.savez_compressed(
                file,
                name=np.array(self.name),
                vocabulary=np.array(self.vocabulary),
                token_ids=np.diff(token_ids, prepend=np.int32(0)),
                counts=counts.astype(np.min_scalar_type(counts.max(initial=0))),
            )

    @classmethod
    def load(cls, path_or_name: str | Path) -> Background:
        """A table of the package by its name, or a file that `save` or  secateurs background  wrote."""
        path = PACKAGED.get(str(path_or_name), Path(path_or_name))
        if not path.is_file():
            raise UsageError(
                f"there is no background {str(path_or_name)!r}: the package has {', '.join(PACKAGED)}; or give a file "
                "that  secateurs background  has written"
            )
        try:
            if not zipfile.is_zipfile(path):  # np.load would take it for something else
                raise ValueError("it is no .npz file")
            with np.load(path, allow_pickle=False) as arrays:
                steps, counts = arrays["token_ids"], arrays["counts"]
                if steps.ndim != 1 or steps.shape != counts.shape or {steps.dtype.kind, counts.dtype.kind} - set("iu"):
                    raise ValueError("its ids and counts do not fit together")
                if (steps[1:] < 1).any():
                    raise ValueError("its ids do not ascend")
                token_ids = steps.cumsum(dtype=np.int64)
                return cls.of_counts(str(arrays["name"]), str(arrays["vocabulary"]), token_ids, counts)
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile, zlib.error) as error:
            raise SecateursError(
                f"{path} is not a background ({error}): make one with  secateurs background CORPUS... FILE"
            ) from error


def choose_background(wanted: Background | str | Path | None, encoder: Encoder | None) -> Background | None:
    """The table that a new index keeps, as Index.build describes it; UsageError if it is for another vocabulary."""
    if wanted is None:
        return None
    vocabulary = encoder.vocabulary if isinstance(encoder, KnowsVocabulary) else None
    if wanted == AUTO:
        tables = [Background.load(name) for name in PACKAGED if vocabulary is not None]
        return next((table for table in tables if table.vocabulary == vocabulary), None)
    if not isinstance(wanted, Background | str | Path):
        raise UsageError(f"background is {AUTO!r}, a name, a file, a Background or None, not {type(wanted).__name__}")
    table = wanted if isinstance(wanted, Background) else Background.load(wanted)
    if encoder is not None and vocabulary is not None and vocabulary != table.vocabulary:
        model = encoder.spec["model"]
        raise UsageError(
            f"the background {table.name!r} was counted with another vocabulary ({table.vocabulary}) than that of "
            f"{model!r} ({vocabulary}): count one with  secateurs background CORPUS FILE --model {model}"
        )
    return table


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) == _TEXTS_AT_ONCE or characters >= _CHARACTERS_AT_ONCE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch

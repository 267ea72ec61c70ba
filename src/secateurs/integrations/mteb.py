"""MTEB: an encoder with an index as a search model, for retrieval and re-ranking tasks, pruned and unpruned."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..encoders import DEFAULT_MODEL, Encoder, load_encoder
from ..errors import UsageError, require
from ..index import Index
from ..records import Document, EncodedText, is_blank
from ..settings import DEFAULT_STORE, SearchSettings, StoreName

require("mteb", "mteb")  # says which pip line is missing, where the imports below would only fail

from mteb._create_dataloaders import create_dataloader  # noqa: E402
from mteb.models.model_meta import ModelMeta, ScoringFunction  # noqa: E402
from mteb.types import PromptType  # noqa: E402

_LOG = logging.getLogger("secateurs.mteb")


class SecateursSearch:
    """A search model of MTEB: `mteb.evaluate(SecateursSearch(p=3), tasks)`.

    encoder    what `load_encoder` takes, or an Encoder
    folder     where indexes are kept: a corpus that was indexed before, with this encoder and store, is opened again.
               Without it an index lasts until the next corpus
    store      of the indexes, as in `Index.build`
    settings   those of `Index.search`, but for k, which MTEB gives
    """

    def __init__(
        self,
        encoder: str | Encoder = DEFAULT_MODEL,
        folder: str | Path | None = None,
        store: StoreName = DEFAULT_STORE,
        **settings: Any,
    ) -> None:
        if "k" in settings:
            raise UsageError("k is no setting of this model: MTEB says how many documents it wants")
        self.encoder = load_encoder(encoder) if isinstance(encoder, str) else encoder
        self.settings = vars(SearchSettings.of(settings))
        self._given = {name: _name(value) for name, value in settings.items()}
        self._folder, self._store = None if folder is None else Path(folder), store
        self._temporary: TemporaryDirectory[str] | None = None
        self._index: Index | None = None

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The settings that were given are those of the experiment: MTEB keeps the results of each apart."""
        model = str(self.encoder.spec["model"])
        of_hub = model.count("/") == 1 and not Path(model).exists()
        experiment = self._given if self._store == DEFAULT_STORE else {**self._given, "store": self._store}
        facts = {
            "name": model if of_hub else f"secateurs/{Path(model).name}",
            "revision": self.encoder.spec["fingerprint"],
            "embed_dim": self.encoder.dim,
            "similarity_fn_name": ScoringFunction.MAX_SIM,
            "model_type": ["late-interaction"],
            "experiment_kwargs": experiment or None,
        }
        return ModelMeta.create_empty(overwrites=facts)

    def index(
        self,
        corpus: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        encode_kwargs: Any = None,
        num_proc: int | None = None,
        **others: Any,
    ) -> None:
        """Index the corpus of a task, or open the index of it. A document with a blank text is left out."""

        def documents() -> Iterator[Document]:
            for docno, text in _texts(corpus, task_metadata, PromptType.document):
                yield Document(docno, text)

        self.close()
        if self._folder is None:
            self._temporary = TemporaryDirectory(prefix="secateurs-mteb-")
            folder, name = Path(self._temporary.name), "corpus"
        else:
            self._folder.mkdir(parents=True, exist_ok=True)
            folder, name = self._folder, f"{task_metadata.name}-{self._digest(documents())}"
        path = folder / f"{name}.sec"
        if path.exists():
            self._index = Index(path, self.encoder)
        else:
            self._index = Index.build(path, documents(), encoder=self.encoder, store=self._store, on_bad=_LOG.warning)

    def search(
        self,
        queries: Any,
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        top_k: int,
        encode_kwargs: Any = None,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        num_proc: int | None = None,
        **others: Any,
    ) -> dict[str, dict[str, float]]:
        """For each query id the scores of its best documents. With `top_ranked`, of these documents only.

        A query with a blank text finds nothing.
        """
        if self._index is None:
            raise UsageError("there is no corpus yet: call index first")
        texts = dict(_texts(queries, task_metadata, PromptType.query))
        found: dict[str, dict[str, float]] = {query_id: {} for query_id in texts}
        asked = {query_id: text for query_id, text in texts.items() if not is_blank(text)}
        if top_ranked is not None:
            for query_id, text in asked.items():
                query = self._index.decide(text, **self.settings).query  # with its weights, if there are any
                found[query_id] = self._scores(self._index, query, top_ranked.get(query_id, ()), top_k)
            return found
        rankings = self._index.search_many(asked.values(), **{**self.settings, "k": top_k})
        for query_id, ranking in zip(asked, rankings, strict=True):
            found[query_id] = {hit.docno: hit.score for hit in ranking}
        return found

    def close(self) -> None:
        """Close the index of the last task, and remove it if it is in no folder."""
        if self._index is not None:
            self._index.close()
            self._index = None
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _digest(self, documents: Iterator[Document]) -> str:
        """The name of an index by its content: a corpus with the name of another is not taken for it."""
        digest = hashlib.blake2b(f"{self.encoder.spec['fingerprint']} {self._store}".encode(), digest_size=8)
        for document in documents:
            for part in (document.docno, document.text):
                digest.update(f"{len(part)} {part}".encode("utf-8", "surrogatepass"))
        return digest.hexdigest()

    @staticmethod
    def _scores(index: Index, query: EncodedText, docnos: Sequence[str], top_k: int) -> dict[str, float]:
        there = sorted(index.snapshot.find_all(docnos))  # documents with a blank text are not
        scores = dict(zip(there, index.score(query, there), strict=True))
        return dict(sorted(scores.items(), key=lambda pair: -pair[1])[:top_k])


def _texts(dataset: Any, task_metadata: Any, prompt_type: PromptType) -> Iterator[tuple[str, str]]:
    """Ids and texts, as MTEB gives them to every model: a title before the text, an instruction after a query."""
    if "text" not in dataset.column_names:
        raise UsageError(f"{task_metadata.name} has no texts: Secateurs searches texts only")
    loader = create_dataloader(dataset, task_metadata=task_metadata, prompt_type=prompt_type, batch_size=256)
    ids = iter(dataset["id"])
    for batch in loader:
        for text in batch["text"]:
            yield next(ids), text


def _name(setting: Any) -> Any:
    """An order may be a function, which has no name in MTEB's results."""
    return getattr(setting, "__name__", repr(setting)) if callable(setting) else setting

"""What the linear layer is trained with: questions, passages, a teacher's scores, and the backbone's states.

Every slow step is cached in a folder, so an interrupted run goes on where it stopped.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import bm25s
import numpy as np
import tokenizers
from rich.progress import track

from secateurs.encoders.bert import Bert, Input
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_file import OnnxFile
from secateurs.threads import in_order

WIDTH = 384
CANDIDATES = 8  # passages of a question, the judged one first if there is one
RANKS = (0, 1, 2, 4, 7, 12, 20)  # of the candidates by the present layer
TOGETHER = 160  # positions that go through the network at once
PASSAGES = {"squad-dev": None, "nq-wiki-mini": None, "boolq-wiki": 55_000}
JUDGED = {"squad-dev": ("v1dev", 1500), "nq-wiki-mini": ("", 2000), "boolq-wiki": ("dev", 1000)}
UNJUDGED = {
    **{"msmarco-dev": 1600, "msmarco-test": 1400, "msmarco-v2-dev2": 900, "fever": 900, "climate-fever": 500},
    **{"hotpotqa": 800, "quora": 700, "fiqa": 450, "researchy": 350, "webquestions": 400, "curatedtrec": 250},
    **{"nq-test": 300},
}  # of collections/questions


@dataclass(frozen=True)
class States:
    """Unit backbone states of many texts, end to end; text i is rows offsets[i]:offsets[i + 1]."""

    rows: np.ndarray  # (positions, WIDTH) float16
    kinds: np.ndarray  # (positions,) uint8
    offsets: np.ndarray  # (texts + 1,) int64

    def __getitem__(self, i: int) -> np.ndarray:
        return np.asarray(self.rows[self.offsets[i] : self.offsets[i + 1]], dtype=np.float32)

    def kinds_of(self, i: int) -> np.ndarray:
        return self.kinds[self.offsets[i] : self.offsets[i + 1]]


@dataclass(frozen=True)
class Examples:
    questions: States  # with all their MASKs
    passages: States
    lists: np.ndarray  # (questions, CANDIDATES): passages
    teacher: np.ndarray  # (questions, CANDIDATES): the cross-encoder's logits
    has_answer: np.ndarray  # (questions,): whether the first passage is judged relevant


def read_corpus(folder: Path) -> dict[str, str]:
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        return {row["docno"]: row["text"] for row in map(json.loads, lines) if row["text"].strip()}


def read_queries(folder: Path, split: str) -> tuple[dict[str, str], dict[str, dict[str, int]]]:
    """Queries, and the grades of their relevant documents."""
    suffix = f".{split}" if split else ""
    lines = (folder / f"queries{suffix}.tsv").read_text("utf-8").splitlines()
    grades: dict[str, dict[str, int]] = {}
    for line in (folder / f"qrels{suffix}").read_text("utf-8").splitlines():
        qid, _, docno, grade = line.split()
        if int(grade) > 0:
            grades.setdefault(qid, {})[docno] = int(grade)
    return dict(line.split("\t", 1) for line in lines), grades


def collect(collections: Path) -> tuple[list[tuple[str, str]], list[str], list[tuple[str, list[int]]]]:
    """Passages as (collection, docno), their texts, and questions with their relevant passages."""
    rng = random.Random(0)
    passages: list[tuple[str, str]] = []
    texts: list[str] = []
    questions: list[tuple[str, list[int]]] = []
    for name, most in PASSAGES.items():
        corpus = read_corpus(collections / name)
        queries, grades = read_queries(collections / name, JUDGED[name][0])
        kept = list(corpus)
        if most is not None:
            relevant = {docno for found in grades.values() for docno in found if docno in corpus}
            others = [docno for docno in corpus if docno not in relevant]
            kept = [*sorted(relevant), *rng.sample(others, most - len(relevant))]
        number = {docno: len(passages) + i for i, docno in enumerate(kept)}
        passages += [(name, docno) for docno in kept]
        texts += [corpus[docno] for docno in kept]
        answered = sorted(qid for qid in queries if any(docno in number for docno in grades.get(qid, {})))
        questions += [
            (queries[qid], [number[docno] for docno in grades[qid] if docno in number])
            for qid in rng.sample(answered, min(JUDGED[name][1], len(answered)))
        ]
    by_source: dict[str, list[str]] = {}
    with gzip.open(collections / "questions" / "questions.tsv.gz", "rt", encoding="utf-8") as lines:
        for line in lines:
            source, _, text = line.rstrip("\n").partition("\t")
            by_source.setdefault(source, []).append(text)
    for source, most in UNJUDGED.items():
        questions += [(text, []) for text in rng.sample(by_source[source], min(most, len(by_source[source])))]
    rng.shuffle(questions)
    return passages, texts, questions


def states(
    path: Path, inputs: Iterator[tuple[Input, np.ndarray, np.ndarray]], total: int, network: Bert | None = None
) -> States:
    """The states of a network, the backbone if not given.

    An input comes with the kinds of its positions, and whether each is kept.
    """
    if not path.with_suffix(".npz").exists():
        bert = network or Bert(wheel_folder() / "model.onnx")

        def run(group: list[tuple[Input, np.ndarray, np.ndarray]]) -> list[tuple[np.ndarray, np.ndarray]]:
            found = bert.states([text for text, _, _ in group])
            unit = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in found)
            return [
                (rows[kept].astype(np.float16), kinds[kept]) for rows, (_, kinds, kept) in zip(unit, group, strict=True)
            ]

        kinds, lengths = [], []
        with path.with_suffix(".f16").open("wb") as file:
            done = chain.from_iterable(in_order(run, ((group,) for group in _grouped(inputs))))
            for rows, of_rows in track(done, total=total, description=path.stem):
                file.write(rows.tobytes())
                kinds.append(of_rows)
                lengths.append(len(rows))
        np.savez(path.with_suffix(".npz"), kinds=np.concatenate(kinds), offsets=np.cumsum([0, *lengths]))
    saved = np.load(path.with_suffix(".npz"))
    rows = np.memmap(path.with_suffix(".f16"), dtype=np.float16, mode="r").reshape(-1, WIDTH)
    return States(rows, saved["kinds"], saved["offsets"])


def _grouped(inputs: Iterator[tuple[Input, np.ndarray, np.ndarray]]) -> Iterator[list]:
    group, positions = [], 0
    for text in inputs:
        group.append(text)
        positions += len(text[1])
        if positions >= TOGETHER:
            yield group
            group, positions = [], 0
    if group:
        yield group


def question_inputs(encoder: OnnxEncoder, texts: Sequence[str]) -> Iterator[tuple[Input, np.ndarray, np.ndarray]]:
    for text in texts:
        positions = encoder._query_positions(text)
        yield positions.input, positions.kinds, np.ones(len(positions.kinds), dtype=bool)


def passage_inputs(encoder: OnnxEncoder, texts: Sequence[str]) -> Iterator[tuple[Input, np.ndarray, np.ndarray]]:
    for text in texts:
        window = next(encoder._windows(encoder._wordpieces(text).ids))
        yield window.positions.input, window.positions.kinds, window.stored


def choose_candidates(
    questions: list[tuple[str, list[int]]],
    texts: list[str],
    found: Callable[[int], list[int]],
    ranked: Callable[[int, list[int]], list[int]],
) -> np.ndarray:
    """(questions, CANDIDATES). `found` gives candidates of a question, `ranked` puts them in the order of a layer."""
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(texts, stopwords="en", show_progress=False), show_progress=False)
    tokens = bm25s.tokenize([text for text, _ in questions], stopwords="en", show_progress=False)
    by_words, _ = retriever.retrieve(tokens, k=20, show_progress=False)
    rng = random.Random(1)
    lists = []
    for number, (_, relevant) in enumerate(track(questions, description="candidates")):
        pool = list(dict.fromkeys([*by_words[number].tolist(), *found(number)]))
        order = ranked(number, [passage for passage in pool if passage not in relevant])
        chosen = [order[rank] for rank in RANKS if rank < len(order)]
        rest = [passage for passage in order if passage not in chosen]
        rng.shuffle(rest)
        lists.append([*([rng.choice(relevant)] if relevant else []), *chosen, *rest][:CANDIDATES])
    return np.array(lists, dtype=np.int32)


class CrossEncoder:
    """ms-marco-MiniLM-L-12-v2 of the wheel: the logit of a question and a passage."""

    def __init__(self) -> None:
        folder = wheel_folder().parent / "reranker_en"
        file = OnnxFile(folder / "model.onnx")
        self._bert = Bert(folder / "model.onnx")
        self._pooler, self._classifier = (
            (file.unrounded(f"{name}.weight"), file.arrays[f"{name}.bias"])
            for name in ("bert.pooler.dense", "classifier")
        )
        self._tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(256, strategy="only_second")

    def score(self, question: str, passages: Sequence[str]) -> np.ndarray:
        encodings = [self._tokenizer.encode(question, passage) for passage in passages]
        inputs = [Input(np.array(encoding.ids), len(encoding.ids)) for encoding in encodings]
        found = self._bert.states(inputs, [np.array(encoding.type_ids) for encoding in encodings])
        first = np.stack([rows[0] for rows in found])  # the state of [CLS]
        pooled = np.tanh(first @ self._pooler[0] + self._pooler[1])
        return (pooled @ self._classifier[0] + self._classifier[1])[:, 0].astype(np.float32)


def teach(path: Path, questions: list[tuple[str, list[int]]], texts: list[str], lists: np.ndarray) -> np.ndarray:
    """The cross-encoder's logits, (questions, CANDIDATES), appended to a file as they come."""
    teacher, size = CrossEncoder(), 4 * CANDIDATES
    done = path.stat().st_size // size if path.exists() else 0
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(done * size)
        file.seek(done * size)
        work = ((questions[i][0], [texts[passage] for passage in lists[i]]) for i in range(done, len(lists)))
        for logits in track(in_order(teacher.score, work), total=len(lists) - done, description="teacher"):
            file.write(logits.tobytes())
    return np.fromfile(path, dtype=np.float32).reshape(-1, CANDIDATES)

"""Train the linear layer (384 -> d) of the built-in encoder to agree with a cross-encoder.

    python training/projection.py --collections DIR --cache DIR

DIR holds one folder per collection: corpus.jsonl.gz ({"docno", "text"} a line), queries[.split].tsv (qid, tab,
text), qrels[.split] (TREC). Training reads squad-dev, nq-wiki-mini and boolq-wiki; the report is on collections that
training never sees. Every slow step is cached, so an interrupted run goes on where it stopped.

    1 mine      BM25 finds hard negatives for each question
    2 teach     the cross-encoder scores each question with its passages
    3 states    the frozen backbone encodes questions (with their MASKs) and passages
    4 train     one linear layer, from an uncentred SVD, by listwise distillation with in-batch negatives
    5 report    exhaustive MaxSim on the held-out collections: SVD against trained, with and without MASKs
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import bm25s
import ir_measures
import numpy as np
import onnxruntime
import tokenizers
import torch
from rich.progress import track

from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_settings import OnnxSettings
from secateurs.records import EncodedText, TokenKind

WIDTH = 384
PASSAGES_PER_QUESTION = 8
TRAINING = {"squad-dev": ("v1dev", 2000), "nq-wiki-mini": ("", 2990), "boolq-wiki": ("dev", 1485)}
HELD_OUT = {"vaswani": ("", 93), "cranfield": ("", 225), "scifact": ("train", 300), "msmarco-dl19": ("dl19", 43)}
HELD_OUT_SLOW = {"debian-descriptions": ("dev", 300)}


@dataclass(frozen=True)
class Collection:
    passages: dict[str, str]
    questions: dict[str, str]
    qrels: list[ir_measures.Qrel]


def read_collection(folder: Path, split: str, most_questions: int) -> Collection:
    suffix = f".{split}" if split else ""
    with gzip.open(folder / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        passages = {row["docno"]: row["text"] for row in map(json.loads, lines)}
    pairs = (line.split("\t", 1) for line in (folder / f"queries{suffix}.tsv").read_text("utf-8").splitlines())
    questions = dict(pairs)
    kept = random.Random(0).sample(sorted(questions), min(most_questions, len(questions)))
    wanted = set(kept)
    qrels = [q for q in ir_measures.read_trec_qrels(str(folder / f"qrels{suffix}")) if q.query_id in wanted]
    return Collection(passages, {qid: questions[qid] for qid in kept}, qrels)


# ---------------------------------------------------------------- 1 mine


def mine(collection: Collection) -> list[tuple[str, list[str]]]:
    """Per question: its judged passage first, then hard negatives drawn from BM25's first fifty."""
    docnos = list(collection.passages)
    retriever = bm25s.BM25()
    retriever.index(bm25s.tokenize(list(collection.passages.values()), stopwords="en", show_progress=False))
    found, _ = retriever.retrieve(
        bm25s.tokenize(list(collection.questions.values()), stopwords="en", show_progress=False),
        k=50,
        show_progress=False,
    )
    relevant: dict[str, list[str]] = {}
    for qrel in collection.qrels:
        if qrel.relevance > 0:
            relevant.setdefault(qrel.query_id, []).append(qrel.doc_id)
    rng = random.Random(1)
    lists = []
    for qid, row in zip(collection.questions, found, strict=True):
        if qid not in relevant:
            continue
        pool = [docnos[i] for i in row if docnos[i] not in relevant[qid]]
        near, far = pool[:10], pool[10:]
        negatives = rng.sample(near, 4) + rng.sample(far, PASSAGES_PER_QUESTION - 5)
        lists.append((qid, [rng.choice(relevant[qid]), *negatives]))
    return lists


# ---------------------------------------------------------------- 2 teach


def teach(pairs: Sequence[tuple[str, str]]) -> np.ndarray:
    """The cross-encoder's logit for each (question, passage)."""
    folder = wheel_folder().parent / "reranker_en"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256, strategy="only_second")

    def score(pair: tuple[str, str]) -> float:
        encoding = tokenizer.encode(*pair)
        feed = {
            "input_ids": np.array([encoding.ids], dtype=np.int64),
            "attention_mask": np.array([encoding.attention_mask], dtype=np.int64),
            "token_type_ids": np.array([encoding.type_ids], dtype=np.int64),
        }
        return float(session.run(None, feed)[0][0, 0])

    with ThreadPoolExecutor() as pool:
        scores = track(pool.map(score, pairs), total=len(pairs), description="teacher")
        return np.array(list(scores), dtype=np.float32)


# ---------------------------------------------------------------- 3 states


@dataclass(frozen=True)
class States:
    """Unit backbone states of many texts, end to end; text i is rows offsets[i]:offsets[i + 1]."""

    rows: np.ndarray  # (tokens, WIDTH) float16
    kinds: np.ndarray  # (tokens,) uint8
    offsets: np.ndarray  # (texts + 1,) int64

    def __getitem__(self, i: int) -> np.ndarray:
        return self.rows[self.offsets[i] : self.offsets[i + 1]]


def states(path: Path, texts: Sequence[str], encode: Callable[[Sequence[str]], Iterable[EncodedText]]) -> States:
    if not path.with_suffix(".npz").exists():
        kinds, lengths = [], []
        with path.with_suffix(".f16").open("wb") as file:
            for encoded in track(encode(texts), total=len(texts), description=path.stem):
                file.write(encoded.embeddings.astype(np.float16).tobytes())
                kinds.append(encoded.token_kinds)
                lengths.append(len(encoded))
        np.savez(path.with_suffix(".npz"), kinds=np.concatenate(kinds), offsets=np.cumsum([0, *lengths]))
    saved = np.load(path.with_suffix(".npz"))
    rows = np.memmap(path.with_suffix(".f16"), dtype=np.float16, mode="r").reshape(-1, WIDTH)
    return States(rows, saved["kinds"], saved["offsets"])


# ---------------------------------------------------------------- 4 train


def svd_layer(passages: States, dim: int) -> np.ndarray:
    """Uncentred SVD: the `dim` directions that keep most of the states' length."""
    rows = passages.rows[:: max(1, len(passages.rows) // 200_000)].astype(np.float32)
    _, vectors = np.linalg.eigh(rows.T @ rows)
    return np.ascontiguousarray(vectors[:, ::-1][:, :dim])


def embed(batch: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(batch @ layer, dim=-1)


def pad(rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(map(len, rows))
    batch = np.zeros((len(rows), longest, WIDTH), dtype=np.float32)
    there = np.zeros((len(rows), longest), dtype=bool)
    for i, row in enumerate(rows):
        batch[i, : len(row)], there[i, : len(row)] = row, True
    return torch.from_numpy(batch), torch.from_numpy(there)


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults made the layer that ships."""

    dim: int = 96
    epochs: int = 2
    batch: int = 32
    rate: float = 5e-4
    temperature: float = 6.0  # softens the teacher, whose logits differ by ten between answer and non-answer
    contrast: float = 0.2  # weight of telling the own answer from the other questions' answers


def train(questions: States, passages: States, lists: np.ndarray, teacher: np.ndarray, recipe: Recipe) -> np.ndarray:
    """`lists` (questions, 8) rows of `passages`, the answer first; `teacher` (questions, 8) logits."""
    rng = np.random.default_rng(0)
    layer = torch.nn.Parameter(torch.from_numpy(svd_layer(passages, recipe.dim).copy()))
    scale = torch.nn.Parameter(torch.tensor(0.0))  # log of the student's inverse temperature: its scores span less
    steps = recipe.epochs * (len(lists) // recipe.batch)
    optimiser = torch.optim.Adam([{"params": [layer], "lr": recipe.rate}, {"params": [scale], "lr": 0.02}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, [recipe.rate, 0.02], total_steps=steps, pct_start=0.1)
    for epoch in range(recipe.epochs):
        losses = []
        order = rng.permutation(len(lists))
        for start in range(0, len(order) - recipe.batch + 1, recipe.batch):
            chosen = order[start : start + recipe.batch]
            q, q_there = pad([questions[i] for i in chosen])  # (B, positions, WIDTH)
            d, d_there = pad([passages[j] for j in lists[chosen].ravel()])  # (B * 8, tokens, WIDTH)
            q, d = embed(q, layer) * q_there[..., None], embed(d, layer)
            blank = torch.where(d_there, 0.0, -4.0)  # keeps padding from ever being the maximum
            d, blank = (x.view(recipe.batch, PASSAGES_PER_QUESTION, *x.shape[1:]) for x in (d, blank))
            own = torch.stack(
                [(q @ d[:, i].mT + blank[:, i, None]).amax(-1).sum(-1) for i in range(PASSAGES_PER_QUESTION)], dim=-1
            )  # (B, 8)
            answers = torch.stack(
                [(q @ d[i, 0].T + blank[i, 0]).amax(-1).sum(-1) for i in range(recipe.batch)], dim=-1
            )  # (B, B): every question with every question's answer
            target = torch.softmax(torch.from_numpy(teacher[chosen]) / recipe.temperature, dim=-1)
            distillation = torch.nn.functional.kl_div(
                (own * scale.exp()).log_softmax(-1), target, reduction="batchmean"
            )
            contrast = torch.nn.functional.cross_entropy(answers * scale.exp(), torch.arange(recipe.batch))
            loss = distillation + recipe.contrast * contrast
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append((distillation.item(), contrast.item()))
        kl, ce = np.mean(losses, axis=0)
        print(f"epoch {epoch + 1}: distillation {kl:.4f}, contrast {ce:.4f}, scale {scale.exp().item():.2f}")
    return layer.detach().numpy().astype(np.float32)


# ---------------------------------------------------------------- 5 report


def maxsim_run(questions: States, passages: States, layer: np.ndarray, masks: bool) -> np.ndarray:
    """Exhaustive MaxSim, (questions, passages) float32."""
    matrix = torch.from_numpy(layer)
    q = embed(torch.from_numpy(np.asarray(questions.rows, dtype=np.float32)), matrix)  # (all positions, dim)
    used = np.ones(len(questions.kinds), dtype=bool) if masks else questions.kinds != TokenKind.MASK
    owner = np.repeat(np.arange(len(questions.offsets) - 1), np.diff(questions.offsets))[used]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    q = q[torch.from_numpy(used)]
    columns = []
    for first in range(0, len(passages.offsets) - 1, 64):
        last = min(first + 64, len(passages.offsets) - 1)
        a, b = passages.offsets[first], passages.offsets[last]
        d = embed(torch.from_numpy(np.asarray(passages.rows[a:b], dtype=np.float32)), matrix)
        lengths = torch.from_numpy(np.diff(passages.offsets[first : last + 1]))
        best = torch.segment_reduce(d @ q.T, "max", lengths=lengths, axis=0).numpy()  # (64, positions)
        columns.append(np.add.reduceat(best, starts, axis=1))
    return np.concatenate(columns).T


def ndcg(collection: Collection, scores: np.ndarray) -> dict[str, float]:
    docnos = np.array(list(collection.passages))
    run = []
    for qid, row in zip(collection.questions, scores, strict=True):
        top = np.argpartition(-row, min(1000, len(row) - 1))[:1000]
        run.extend(ir_measures.ScoredDoc(qid, docnos[i], float(row[i])) for i in top)
    measures = [ir_measures.nDCG @ 10, ir_measures.AP(rel=2) if _graded(collection) else ir_measures.AP]
    return {str(m): v for m, v in ir_measures.calc_aggregate(measures, collection.qrels, run).items()}


def _graded(collection: Collection) -> bool:
    return max(q.relevance for q in collection.qrels) > 1


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--dims", type=int, nargs="+", default=[96])
    for field in ("epochs", "batch", "rate", "temperature", "contrast"):
        default = getattr(Recipe, field)
        arguments.add_argument(f"--{field}", type=type(default), default=default)
    arguments.add_argument("--slow", action="store_true", help="report on debian-descriptions too")
    arguments.add_argument("--states-only", action="store_true", help="stop once everything is cached")
    options = arguments.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    encoder = OnnxEncoder.load(projection=np.eye(WIDTH, dtype=np.float32))
    short = OnnxEncoder.load(settings=OnnxSettings(document_limit=192), projection=np.eye(WIDTH, dtype=np.float32))

    def encode_queries(texts: Sequence[str]) -> Iterable[EncodedText]:
        with ThreadPoolExecutor() as pool:
            yield from pool.map(encoder.encode_query, texts)

    question_texts: list[str] = []
    passage_texts: list[str] = []
    rows, logits = [], []
    for name, (split, most) in TRAINING.items():
        collection = read_collection(options.collections / name, split, most)
        mined = options.cache / f"mined-{name}.json"
        if not mined.exists():
            mined.write_text(json.dumps(mine(collection)))
        lists = json.loads(mined.read_text())
        scored = options.cache / f"teacher-{name}.npy"
        if not scored.exists():
            pairs = [(collection.questions[qid], collection.passages[d]) for qid, docnos in lists for d in docnos]
            np.save(scored, teach(pairs).reshape(len(lists), PASSAGES_PER_QUESTION))
        logits.append(np.load(scored))
        number = {docno: len(passage_texts) + i for i, docno in enumerate(sorted({d for _, ds in lists for d in ds}))}
        passage_texts.extend(collection.passages[docno] for docno in number)
        question_texts.extend(collection.questions[qid] for qid, _ in lists)
        rows.append(np.array([[number[d] for d in docnos] for _, docnos in lists]))
    questions = states(options.cache / "train-questions", question_texts, encode_queries)
    passages = states(options.cache / "train-passages", passage_texts, short.encode_documents)

    held_out = {}
    for name, (split, most) in (HELD_OUT | (HELD_OUT_SLOW if options.slow else {})).items():
        collection = read_collection(options.collections / name, split, most)
        held_out[name] = (
            collection,
            states(options.cache / f"{name}-questions", list(collection.questions.values()), encode_queries),
            states(options.cache / f"{name}-passages", list(collection.passages.values()), encoder.encode_documents),
        )
    if options.states_only:
        return

    lists_array, teacher = np.concatenate(rows), np.concatenate(logits)
    for dim in options.dims:
        recipe = Recipe(dim, options.epochs, options.batch, options.rate, options.temperature, options.contrast)
        layers = {
            "svd": svd_layer(passages, dim),
            "trained": train(questions, passages, lists_array, teacher, recipe),
        }
        np.save(options.cache / f"projection-{dim}.npy", layers["trained"])
        for layer_name, layer in layers.items():
            for name, (collection, q, d) in held_out.items():
                for masks in (True, False):
                    scores = ndcg(collection, maxsim_run(q, d, layer, masks))
                    line = {"dim": dim, "layer": layer_name, "collection": name, "masks": masks, **scores}
                    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

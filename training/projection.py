"""Train the linear layer (384 -> d) of the built-in encoder to agree with a cross-encoder.

    python training/projection.py --collections DIR --cache DIR

DIR holds one folder per collection: corpus.jsonl.gz ({"docno", "text"} a line), queries[.split].tsv (qid, tab,
text), qrels[.split] (TREC); and `questions`, with questions.tsv.gz (source, tab, text). Training reads squad-dev,
nq-wiki-mini, boolq-wiki and questions; the report is on these and on collections that training never sees.

    1 states    the frozen backbone encodes questions (with their MASKs) and passages
    2 mine      candidates of a question: BM25's best and those whose summary is nearest, ranked by the present layer
    3 teach     the cross-encoder scores each question with eight of them
    4 train     one linear layer, by listwise distillation with in-batch negatives, averaged over the last steps
    5 report    exhaustive MaxSim: nDCG@10 of the present layer and of the new one
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from examples import (
    CANDIDATES,
    Examples,
    States,
    choose_candidates,
    collect,
    passage_inputs,
    question_inputs,
    read_corpus,
    read_queries,
    states,
    teach,
)
from secateurs.encoders.bert import Bert
from secateurs.encoders.built_in import EXPANSION, LAYERS
from secateurs.encoders.onnx import OnnxEncoder, embedded_masks
from secateurs.encoders.protocol import DEFAULT_MODEL
from secateurs.records import TokenKind

NEAREST = 30  # passages by their summaries
REPORTED = {  # split, queries, documents besides the relevant ones
    "cranfield": ("", 225, None),
    "vaswani": ("", 93, None),
    "scifact": ("train", 200, None),
    "msmarco-dl19": ("dl19", 43, None),
    "debian-descriptions": ("dev", 200, 12_000),
    "squad-dev": ("v1dev", 120, None),
    "nq-wiki-mini": ("", 150, 6_000),
}


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults made the layer that ships."""

    dim: int = 96
    epochs: int = 2
    batch: int = 32
    rate: float = 5e-4
    temperature: float = 3.0  # softens the teacher, whose logits differ by ten between answer and non-answer
    contrast: float = 0.2  # weight of telling a question's best passage from the other questions' best
    averaged: float = 0.3  # the layer is the mean over this share of the steps, the last ones
    start: str = "svd"  # or "present": the layer that ships
    seed: int = 0


def embed(rows: torch.Tensor, layer: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(rows @ layer, dim=-1)


def svd_layer(passages: States, dim: int) -> np.ndarray:
    """Uncentred SVD: the `dim` directions that keep most of the states' length."""
    rows = passages.rows[:: max(1, len(passages.rows) // 200_000)].astype(np.float32)
    _, vectors = np.linalg.eigh(rows.T @ rows)
    return np.ascontiguousarray(vectors[:, ::-1][:, :dim])


def mask_weights(kinds: np.ndarray, expansion: int | str = EXPANSION) -> np.ndarray:
    """What each position of a question counts for: a few MASKs have the weight of all, as in OnnxEncoder."""
    weights = np.ones(len(kinds), dtype=np.float32)
    masks = np.flatnonzero(kinds == TokenKind.MASK)
    chosen = masks[embedded_masks(len(masks), expansion)]
    weights[masks] = 0
    weights[chosen] = len(masks) / max(len(chosen), 1)
    return weights


def make_examples(collections: Path, cache: Path) -> Examples:
    encoder = OnnxEncoder.load(settings={"expansion": "all"})
    short = OnnxEncoder.load(settings={"document_limit": 192})
    _, texts, asked = collect(collections)
    questions = states(cache / "train-questions", question_inputs(encoder, [text for text, _ in asked]), len(asked))
    passages = states(cache / "train-passages", passage_inputs(short, texts), len(texts))
    mined = cache / "candidates.npy"
    if not mined.exists():
        np.save(mined, mine(questions, passages, asked, texts))
    lists = np.load(mined)
    teacher = teach(cache / "teacher.f32", asked, texts, lists)
    return Examples(questions, passages, lists, teacher, np.array([bool(relevant) for _, relevant in asked]))


def mine(questions: States, passages: States, asked: list[tuple[str, list[int]]], texts: list[str]) -> np.ndarray:
    layer = torch.from_numpy(LAYERS[DEFAULT_MODEL].projection())

    def summaries(of: States) -> torch.Tensor:
        return embed(torch.from_numpy(of.rows[of.offsets[:-1] + 1].astype(np.float32)), layer)  # the second position

    of_passages = summaries(passages)
    nearest = torch.cat([(part @ of_passages.T).topk(NEAREST).indices for part in summaries(questions).split(1000)])

    def ranked(number: int, pool: list[int]) -> list[int]:
        question = embed(torch.from_numpy(questions[number]), layer)
        scores = [
            float((embed(torch.from_numpy(passages[passage]), layer) @ question.T).amax(0).sum()) for passage in pool
        ]
        return [pool[i] for i in np.argsort(-np.array(scores), kind="stable")]

    return choose_candidates(asked, texts, lambda number: nearest[number].tolist(), ranked)


def pad(rows: Sequence[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """(texts, longest, width), and whether a position is there."""
    batch = np.zeros((len(rows), max(map(len, rows)), rows[0].shape[1]), dtype=np.float32)
    there = np.zeros(batch.shape[:2], dtype=bool)
    for i, row in enumerate(rows):
        batch[i, : len(row)], there[i, : len(row)] = row, True
    return torch.from_numpy(batch), torch.from_numpy(there)


def train(examples: Examples, recipe: Recipe, chosen: np.ndarray | None = None) -> np.ndarray:
    """The layer, from all questions or the chosen ones."""
    rng = np.random.default_rng(recipe.seed)
    questions, passages, lists, teacher = examples.questions, examples.passages, examples.lists, examples.teacher
    start = svd_layer(passages, recipe.dim) if recipe.start == "svd" else LAYERS[DEFAULT_MODEL].projection()
    layer = torch.nn.Parameter(torch.from_numpy(start.copy()))
    scale = torch.nn.Parameter(torch.tensor(0.0))  # log of the student's inverse temperature: its scores span less
    chosen = np.arange(len(lists)) if chosen is None else chosen
    steps = recipe.epochs * (len(chosen) // recipe.batch)
    optimiser = torch.optim.Adam([{"params": [layer], "lr": recipe.rate}, {"params": [scale], "lr": 0.02}])
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, [recipe.rate, 0.02], total_steps=steps, pct_start=0.1)
    last = [torch.zeros_like(layer)]
    averaged = max(1, round(recipe.averaged * steps))
    batches = [
        order[first : first + recipe.batch]
        for order in (rng.permutation(chosen) for _ in range(recipe.epochs))
        for first in range(0, len(order) - recipe.batch + 1, recipe.batch)
    ]
    losses = []
    for step, batch in enumerate(track(batches, description=f"training, seed {recipe.seed}")):
        weights = [mask_weights(questions.kinds_of(i)) for i in batch]
        q, _ = pad([questions[i][w > 0] for i, w in zip(batch, weights, strict=True)])  # (B, positions, WIDTH)
        w, _ = pad([weight[weight > 0, None] for weight in weights])  # (B, positions, 1); 0 for padding
        d, there = pad([passages[j] for j in lists[batch].ravel()])  # (B * 8, tokens, WIDTH)
        q, d = embed(q, layer) * w, embed(d, layer)
        d, there = (x.view(len(batch), CANDIDATES, *x.shape[1:]) for x in (d, there))
        never = torch.where(there, 0.0, -4.0)  # keeps padding from ever being the maximum

        def maxsim(
            passage: torch.Tensor, blank: torch.Tensor, q: torch.Tensor = q, w: torch.Tensor = w
        ) -> torch.Tensor:
            return (q @ passage.mT + w * blank[..., None, :]).amax(-1).sum(-1)

        own = torch.stack([maxsim(d[:, i], never[:, i]) for i in range(CANDIDATES)], dim=-1)  # (B, 8)
        best = teacher[batch].argmax(axis=1)
        everyone = torch.stack([maxsim(d[i, j], never[i, j]) for i, j in enumerate(best)], dim=-1)  # (B, B)
        agreement, contrast = losses_of(own, everyone, teacher[batch], examples.has_answer[batch], scale, recipe)
        losses.append(agreement.item())
        loss = agreement + recipe.contrast * contrast
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step >= steps - averaged:
            last[0] += layer.detach()
    print(f"distillation {np.mean(losses[: steps // 5]):.4f} at first, {np.mean(losses[-steps // 5 :]):.4f} at last")
    return (last[0] / averaged).numpy().astype(np.float32)


def losses_of(
    own: torch.Tensor,  # (B, CANDIDATES): scores of each question's passages
    everyone: torch.Tensor,  # (B, B): of each question with the best passage of every question
    teacher: np.ndarray,  # (B, CANDIDATES)
    has_answer: np.ndarray,  # (B,)
    scale: torch.Tensor,  # log of the scores' inverse temperature
    recipe: Recipe,
) -> tuple[torch.Tensor, torch.Tensor]:
    """How far the scores are from the teacher's, and how badly they tell a question's best passage from the others'."""
    target = torch.softmax(torch.from_numpy(teacher) / recipe.temperature, dim=-1)
    agreement = torch.nn.functional.kl_div((own * scale.exp()).log_softmax(-1), target, reduction="batchmean")
    is_answer = torch.from_numpy((teacher.max(axis=1) > 0) | has_answer)
    told = torch.nn.functional.cross_entropy(everyone * scale.exp(), torch.arange(len(own)), reduction="none")
    return agreement, (told * is_answer).mean()


class Judged:
    """A collection's states by a network, the backbone if not given, and its judgements."""

    def __init__(
        self, collections: Path, cache: Path, name: str, network: Bert | None = None, prefix: str = ""
    ) -> None:
        split, most, others = REPORTED[name]
        corpus = read_corpus(collections / name)
        queries, grades = read_queries(collections / name, split)
        qids = sorted(qid for qid in queries if qid in grades)
        qids = random.Random(0).sample(qids, min(most, len(qids)))
        docnos = list(corpus)
        if others is not None:
            relevant = {docno for qid in qids for docno in grades[qid] if docno in corpus}
            rest = [docno for docno in corpus if docno not in relevant]
            docnos = [*sorted(relevant), *random.Random(1).sample(rest, others)]
        encoder = OnnxEncoder.load(settings={"expansion": "all"})
        texts = [queries[qid] for qid in qids]
        self.queries = states(cache / f"{prefix}{name}-queries", question_inputs(encoder, texts), len(texts), network)
        texts = [corpus[docno] for docno in docnos]
        inputs = passage_inputs(encoder, texts)
        self.documents = states(cache / f"{prefix}{name}-documents", inputs, len(texts), network)
        self._grades, self._docnos = [grades[qid] for qid in qids], np.array(docnos)

    def ndcg(self, layer: np.ndarray, expansion: int | str = EXPANSION) -> np.ndarray:
        """nDCG@10 of each query by exhaustive MaxSim."""
        matrix = torch.from_numpy(layer)
        count = len(self._grades)
        weights = [mask_weights(self.queries.kinds_of(i), expansion) for i in range(count)]
        rows = np.concatenate([self.queries[i][w > 0] for i, w in enumerate(weights)])
        used = np.concatenate([w[w > 0] for w in weights])
        owner = torch.from_numpy(np.repeat(np.arange(count), [int((w > 0).sum()) for w in weights]))
        q = embed(torch.from_numpy(rows), matrix) * torch.from_numpy(used)[:, None]
        scores = torch.zeros(len(self._docnos), count)
        for number in range(len(self._docnos)):
            best = (embed(torch.from_numpy(self.documents[number]), matrix) @ q.T).amax(0)  # (positions,)
            scores[number].index_add_(0, owner, best)
        return np.array([self._ndcg(row, grades) for row, grades in zip(scores.T.numpy(), self._grades, strict=True)])

    def _ndcg(self, scores: np.ndarray, grades: dict[str, int]) -> float:
        top = self._docnos[np.argsort(-scores, kind="stable")[:10]]
        discounts = 1 / np.log2(np.arange(2, 12))
        gains = np.array([grades.get(docno, 0) for docno in top])
        ideal = np.array(sorted(grades.values(), reverse=True)[:10])
        return float(gains @ discounts[: len(gains)] / (ideal @ discounts[: len(ideal)]))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--seeds", type=int, default=1, help="runs, whose layers are reported one by one")
    for field in fields(Recipe):
        if field.name != "seed":
            default = getattr(Recipe, field.name)
            arguments.add_argument(f"--{field.name}", type=type(default), default=default)
    options = arguments.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    chosen = {field.name: getattr(options, field.name) for field in fields(Recipe) if field.name != "seed"}
    examples = make_examples(options.collections, options.cache)
    judged = {name: Judged(options.collections, options.cache, name) for name in REPORTED}
    layers = {"present": LAYERS[DEFAULT_MODEL].projection(), "svd": svd_layer(examples.passages, options.dim)}
    for seed in range(options.seeds):
        layers[f"trained-{seed}"] = train(examples, Recipe(**chosen, seed=seed))
        np.save(options.cache / f"layer-{seed}.npy", layers[f"trained-{seed}"])
    for layer_name, layer in layers.items():
        found = {name: float(collection.ndcg(layer).mean()) for name, collection in judged.items()}
        print(json.dumps({"layer": layer_name, **found}), flush=True)


if __name__ == "__main__":
    main()

"""Train a smaller network to give the embeddings of the built-in encoder.

    python training/student.py --collections DIR --cache DIR

The student begins with some of the teacher's layers, and with some of the neurons inside each. It learns the states of
the teacher token by token, after each of its layers, then how the teacher ranks the passages of a batch. Words, places
and the linear layer are the teacher's. DIR is as in projection.py, and training reads the same collections.

    1 batches   questions, each with two of the passages that BM25 finds for it, among the passages of the collections
    2 train     distances of states and of embeddings, and of the rankings; a checkpoint every few minutes, from which
                the same command goes on
    3 report    exhaustive MaxSim with the student rounded to int8, on the kernels: nDCG@10 of the teacher and of it
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path

import bm25s
import numpy as np
import torch
from projection import REPORTED, Judged, embed
from rich.progress import track
from torch.nn import functional

from examples import WIDTH, collect, passage_inputs
from secateurs.encoders.bert import _FOLD, Bert, Input
from secateurs.encoders.built_in import LAYERS
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_file import OnnxFile
from secateurs.encoders.protocol import DEFAULT_MODEL
from secateurs.kernels.products import pack_weights
from secateurs.kernels.self_attention import HEAD
from secateurs.kernels.transformer import Product

FOUND = 10  # passages of a question by BM25
PASSAGES = 2  # of these in a batch
SAVED_EVERY = 300  # seconds
TEMPERATURE = 1.0  # of the scores that make a ranking


@dataclass(frozen=True)
class Batch:
    """Questions, then their passages, end to end."""

    token_ids: torch.Tensor  # (positions,)
    places: torch.Tensor
    spans: list[tuple[int, int, int]]  # of each text: first position, end of those attended to, end
    weights: torch.Tensor  # (positions of questions,)
    questions: int


class Layer(torch.nn.Module):
    def __init__(self, file: OnnxFile, number: int) -> None:
        super().__init__()
        prefix = f"encoder.layer.{number}."
        self.attention = linear(file, *(f"{prefix}attention.self.{name}" for name in ("query", "key", "value")))
        self.mixing = linear(file, f"{prefix}attention.output.dense")
        self.mixing_norm = norm(file, f"{prefix}attention.output.LayerNorm")
        self.inner = linear(file, f"{prefix}intermediate.dense")
        self.outer = linear(file, f"{prefix}output.dense")
        self.outer_norm = norm(file, f"{prefix}output.LayerNorm")

    def forward(self, states: torch.Tensor, spans: list[tuple[int, int, int]]) -> torch.Tensor:
        query, key, value = self.attention(states).view(len(states), 3, -1, HEAD).permute(1, 2, 0, 3)
        attended = [
            functional.scaled_dot_product_attention(query[:, first:end], key[:, first:last], value[:, first:last])
            for first, last, end in spans
        ]
        context = torch.cat(attended, dim=1).transpose(0, 1).reshape(states.shape)
        states = self.mixing_norm(states + self.mixing(context))
        result: torch.Tensor = self.outer_norm(states + self.outer(functional.gelu(self.inner(states))))
        return result

    def keep_neurons(self, kept: torch.Tensor) -> None:
        smaller = torch.nn.Linear(WIDTH, len(kept)), torch.nn.Linear(len(kept), WIDTH)
        with torch.no_grad():
            smaller[0].weight.copy_(self.inner.weight[kept])
            smaller[0].bias.copy_(self.inner.bias[kept])
            smaller[1].weight.copy_(self.outer.weight[:, kept])
            smaller[1].bias.copy_(self.outer.bias)
        self.inner, self.outer = smaller


class Network(torch.nn.Module):
    def __init__(self, file: OnnxFile, layers: list[int]) -> None:
        super().__init__()
        tables = [file.unrounded(f"embeddings.{name}_embeddings.weight") for name in ("word", "position", "token_type")]
        self.register_buffer("words", torch.from_numpy(tables[0]), persistent=False)
        self.register_buffer("places", torch.from_numpy(tables[1] + tables[2][0]), persistent=False)
        self.first_norm = norm(file, "embeddings.LayerNorm").requires_grad_(False)
        self.layers = torch.nn.ModuleList(Layer(file, number) for number in layers)

    def forward(self, batch: Batch) -> list[torch.Tensor]:
        """The states after each layer, (positions, WIDTH)."""
        states = self.first_norm(self.words[batch.token_ids] + self.places[batch.places])
        found = []
        for layer in self.layers:
            states = layer(states, batch.spans)
            found.append(states)
        return found


def linear(file: OnnxFile, *names: str) -> torch.nn.Linear:
    parts = [
        (whole.astype(np.float32) * scale, file.arrays[f"{name}.bias"])
        for name in names
        for whole, scale in [file.factor(name)]
    ]
    weight, bias = np.concatenate([part for part, _ in parts], axis=1), np.concatenate([part for _, part in parts])
    layer = torch.nn.Linear(*weight.shape)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight.T))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


def norm(file: OnnxFile, name: str) -> torch.nn.LayerNorm:
    layer = torch.nn.LayerNorm(WIDTH, eps=1e-12)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(file.arrays[f"{name}.weight"].copy()))
        layer.bias.copy_(torch.from_numpy(file.arrays[f"{name}.bias"].copy()))
    return layer


class Batches:
    """Batch i is the same in every run. The last questions are held out."""

    def __init__(self, collections: Path, cache: Path, size: int, held_out: int = 48) -> None:
        _, self._texts, asked = collect(collections)
        self._questions = [text for text, _ in asked]
        self._size, self._held_out = size, held_out
        path = cache / "student-passages.npy"
        if not path.exists():
            retriever = bm25s.BM25()
            retriever.index(bm25s.tokenize(self._texts, stopwords="en", show_progress=False), show_progress=False)
            found, _ = retriever.retrieve(bm25s.tokenize(self._questions, stopwords="en", show_progress=False), k=FOUND)
            np.save(path, found.astype(np.int32))
        self._found = np.load(path)
        self._encoder = OnnxEncoder.load()
        self._limited = {limit: OnnxEncoder.load(settings={"document_limit": limit}) for limit in (128, 300)}

    def __getitem__(self, number: int) -> Batch:
        rng = np.random.default_rng([0, number])
        chosen = rng.choice(len(self._questions) - self._held_out, self._size, replace=False)
        return self._batch(chosen, rng, 300 if number % 8 == 0 else 128)

    def held_out(self) -> list[Batch]:
        last = np.arange(len(self._questions) - self._held_out, len(self._questions))
        rng = np.random.default_rng(1)
        return [self._batch(part, rng, 300) for part in np.split(last, self._held_out // self._size)]

    def _batch(self, chosen: np.ndarray, rng: np.random.Generator, limit: int) -> Batch:
        asked = [self._encoder._query_positions(self._questions[i]) for i in chosen]
        inputs = [positions.input for positions in asked]
        weights = [
            np.ones(len(positions.kinds), dtype=np.float32) if positions.weights is None else positions.weights
            for positions in asked
        ]
        encoder = self._limited[limit]
        passages = np.concatenate([rng.choice(self._found[i], PASSAGES, replace=False) for i in chosen])
        inputs += [text for text, _, _ in passage_inputs(encoder, [self._texts[i] for i in passages])]
        return pack(inputs, np.concatenate(weights), len(chosen))


def pack(inputs: list[Input], weights: np.ndarray, questions: int) -> Batch:
    lengths = np.array([len(text.token_ids) for text in inputs])
    starts = np.cumsum(lengths) - lengths
    places = [np.arange(len(text.token_ids)) if text.places is None else text.places for text in inputs]
    return Batch(
        torch.from_numpy(np.concatenate([text.token_ids for text in inputs])),
        torch.from_numpy(np.concatenate(places)),
        [
            (int(at), int(at + text.attended), int(at + length))
            for at, length, text in zip(starts, lengths, inputs, strict=True)
        ],
        torch.from_numpy(weights),
        questions,
    )


def make_student(file: OnnxFile, teacher: Network, layers: list[int], neurons: int, batches: Batches) -> Network:
    """The teacher's layers with these numbers, each with those of its neurons that add most to its states."""
    student = Network(file, layers)
    if neurons == 4 * WIDTH:
        return student
    total: dict[int, torch.Tensor] = {number: torch.zeros(4 * WIDTH) for number in layers}
    with torch.no_grad():
        for i in range(16):
            batch = batches[i]
            states = teacher.first_norm(teacher.words[batch.token_ids] + teacher.places[batch.places])
            for number, layer in enumerate(teacher.layers):
                if number in total:
                    layer.inner.register_forward_hook(
                        lambda _, __, made, number=number: total[number].add_(functional.gelu(made).square().sum(0))
                    )
                states = layer(states, batch.spans)
                layer.inner._forward_hooks.clear()
        for number, layer in zip(layers, student.layers, strict=True):
            added = total[number].sqrt() * layer.outer.weight.norm(dim=0)
            layer.keep_neurons(added.topk(neurons).indices.sort().values)
    return student


def distances(batch: Batch, made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Squared distances of unit vectors: the mean over questions and the mean over passages, added."""
    away = (functional.normalize(made, dim=-1) - functional.normalize(wanted, dim=-1)).square().sum(-1)
    asked = len(batch.weights)
    return away[:asked].mean() + away[asked:].mean()


def scores(batch: Batch, embeddings: torch.Tensor) -> torch.Tensor:
    """(questions, passages) by MaxSim."""
    asked = len(batch.weights)
    similar = embeddings[:asked] @ embeddings[asked:].T
    best = torch.stack(
        [similar[:, first - asked : end - asked].amax(1) for first, _, end in batch.spans[batch.questions :]], dim=1
    )
    lengths = [end - first for first, _, end in batch.spans[: batch.questions]]
    return torch.stack([part.sum(0) for part in (best * batch.weights[:, None]).split(lengths)])


def losses(
    batch: Batch, made: list[torch.Tensor], wanted: list[torch.Tensor], layers: list[int], layer: torch.Tensor
) -> dict[str, torch.Tensor]:
    inside = [distances(batch, mine, wanted[number]) for mine, number in zip(made[:-1], layers[:-1], strict=True)]
    own, theirs = embed(made[-1], layer), embed(wanted[-1], layer)
    ranking = functional.kl_div(
        (scores(batch, own) / TEMPERATURE).log_softmax(-1),
        (scores(batch, theirs) / TEMPERATURE).log_softmax(-1),
        reduction="batchmean",
        log_target=True,
    )
    return {
        "inside": torch.stack(inside).mean(),
        "states": distances(batch, made[-1], wanted[-1]),
        "embeddings": distances(batch, own, theirs),
        "ranking": ranking,
    }


def rounded(bert: Bert, student: Network) -> Bert:
    """The student as the kernels read it: int8 weights with a scale per column."""

    def product(layers: list[torch.nn.Linear], fold: bool = False) -> Product:
        found = []
        for layer in layers:
            weight, bias = layer.weight.detach().numpy().T, layer.bias.detach().numpy()
            scale = np.abs(weight).max(axis=0) / 127
            whole = np.round(weight / scale).astype(np.int8)
            numbers = np.stack([scale, whole.sum(axis=0, dtype=np.int64) * scale, bias]).astype(np.float32)
            numbers[:, : WIDTH if fold else 0] *= _FOLD
            found.append((pack_weights(whole), numbers))
        packed, numbers_of_all = zip(*found, strict=True)
        return Product(np.stack(packed), *(np.ascontiguousarray(rows) for rows in np.stack(numbers_of_all, axis=1)))

    def norms(layers: list[torch.nn.LayerNorm]) -> np.ndarray:
        return np.stack([np.stack([layer.weight.detach().numpy(), layer.bias.detach().numpy()]) for layer in layers])

    layers = list(student.layers)
    bert._weights = bert._weights._replace(
        attention=product([layer.attention for layer in layers], fold=True),
        mixing=product([layer.mixing for layer in layers]),
        mixing_norm=norms([layer.mixing_norm for layer in layers]),
        inner=product([layer.inner for layer in layers]),
        outer=product([layer.outer for layer in layers]),
        outer_norm=norms([layer.outer_norm for layer in layers]),
    )
    return bert


def measure(
    teacher: Network, student: Network, batches: list[Batch], layers: list[int], layer: torch.Tensor
) -> dict[str, float]:
    with torch.no_grad():
        found = [losses(batch, student(batch), teacher(batch), layers, layer) for batch in batches]
    return {name: round(float(np.mean([loss[name] for loss in found])), 4) for name in found[0]}


def train(options: argparse.Namespace, teacher: Network, student: Network, batches: Batches) -> None:
    layer = torch.from_numpy(LAYERS[DEFAULT_MODEL].projection())
    weights = [weight for weight in student.parameters() if weight.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=options.rate, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser,
        options.rate,
        total_steps=options.steps,
        pct_start=0.05,
        anneal_strategy="linear",
        cycle_momentum=False,
        final_div_factor=100,
    )
    path = options.cache / f"student-{options.name}.pt"
    done = 0
    if path.exists():
        saved = torch.load(path)
        done = saved["done"]
        student.load_state_dict(saved["student"])
        optimiser.load_state_dict(saved["optimiser"])
        schedule.load_state_dict(saved["schedule"])
    held_out = batches.held_out()
    saved_at = time.monotonic()

    def report(step: int) -> None:
        found = measure(teacher, student, held_out, options.layers, layer)
        print(json.dumps({"student": options.name, "step": step, **found}), flush=True)

    if not done:
        report(0)
    for step in track(range(done, options.steps), description=options.name):
        batch = batches[step]
        with torch.no_grad():
            wanted = teacher(batch)
        found = losses(batch, student(batch), wanted, options.layers, layer)
        loss = options.inside * found["inside"] + found["states"] + found["embeddings"]
        loss = loss + options.ranking * found["ranking"]
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        schedule.step()
        is_last = step + 1 == options.steps
        if is_last or time.monotonic() > saved_at + SAVED_EVERY:
            state = {"student": student.state_dict(), "optimiser": optimiser.state_dict(), "done": step + 1}
            torch.save({**state, "schedule": schedule.state_dict()}, path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
            report(step + 1)
            saved_at = time.monotonic()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--name", default="student", help="of the checkpoint in the cache")
    arguments.add_argument("--layers", type=int, nargs="+", default=[1, 3, 5, 7, 9, 11], help="the teacher's, from 0")
    arguments.add_argument("--neurons", type=int, default=4 * WIDTH, help="inside each layer, a multiple of 64")
    arguments.add_argument("--steps", type=int, default=20_000)
    arguments.add_argument("--questions", type=int, default=8, help="in a batch, each with two passages")
    arguments.add_argument("--rate", type=float, default=4e-4)
    arguments.add_argument("--inside", type=float, default=1.0, help="weight of the states between the layers")
    arguments.add_argument("--ranking", type=float, default=0.1, help="weight of the rankings")
    arguments.add_argument("--report", nargs="*", choices=REPORTED, default=list(REPORTED), help="collections")
    options = arguments.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    file = OnnxFile(wheel_folder() / "model.onnx")
    batches = Batches(options.collections, options.cache, options.questions)
    teacher = Network(file, list(range(12))).requires_grad_(False)
    student = make_student(file, teacher, options.layers, options.neurons, batches)
    train(options, teacher, student, batches)
    layer = LAYERS[DEFAULT_MODEL].projection()
    networks = {"": None, f"student-{options.name}-": rounded(Bert(wheel_folder() / "model.onnx"), student)}
    for prefix, network in networks.items():
        found = {}
        for name in options.report:
            judged = Judged(options.collections, options.cache, name, network, prefix)
            found[name] = round(float(judged.ndcg(layer).mean()), 4)
        print(json.dumps({"network": prefix.strip("-") or "teacher", **found}), flush=True)


if __name__ == "__main__":
    main()

"""Train a smaller network to give the embeddings of the built-in encoder.

    python training/student.py --collections DIR --cache DIR

The student begins with some of the teacher's layers, and with some of the neurons inside each. It learns the states of
the teacher token by token, before each layer that it has, and how the teacher ranks the passages of a batch. Words,
places and the linear layer are the teacher's. DIR is as in projection.py, and training reads the same collections.
Products are of bfloat16 where the processor has it.

    1 batches   questions, each with two of the passages that BM25 finds for it, among the passages of the collections
    2 train     distances of states and of embeddings, and of the rankings; a checkpoint every few minutes, from which
                the same command goes on
    3 report    CACHE/NAME.npz, its layers in int8; on the kernels the speed of both; exhaustive MaxSim: nDCG@10 of
                both, and p of a paired t-test
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import torch
from projection import REPORTED, Judged, embed
from rich.progress import track
from scipy.stats import ttest_rel
from torch.nn import functional

from examples import WIDTH, collect, passage_inputs
from secateurs.encoders.bert import Bert, Input, read_layers
from secateurs.encoders.built_in import LAYERS
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_file import OnnxFile
from secateurs.encoders.protocol import DEFAULT_MODEL
from secateurs.kernels.self_attention import HEAD

FOUND = 10  # passages of a question by BM25
PASSAGES = 2  # of these in a batch
SAVED_EVERY = 300  # seconds
ROUNDS = 9
TEMPERATURE = 1.0  # of the scores that make a ranking
FITTED = 24  # batches that choose neurons
DAMPING = 1e-2  # of their least squares
PRODUCTS, NORMS = ("attention", "mixing", "inner", "outer"), ("mixing_norm", "outer_norm")  # of a layer


@dataclass(frozen=True)
class Batch:
    """Questions, then their passages, end to end."""

    token_ids: torch.Tensor  # (positions,)
    places: torch.Tensor
    groups: list[Group]
    spans: list[tuple[int, int]]  # of each text: its first position, and the end
    weights: torch.Tensor  # (positions of questions,)
    questions: int


@dataclass(frozen=True)
class Group:
    """Texts whose attention is computed together."""

    rows: torch.Tensor  # (texts, longest): positions; the first position of all where a text has ended
    there: torch.Tensor  # (texts, longest): whether the text has not ended
    hidden: torch.Tensor  # (texts, 1, 1, longest): added to the logits, so that nothing attends to MASKs


class Layer(torch.nn.Module):
    def __init__(self, arrays: dict[str, np.ndarray], number: int) -> None:
        super().__init__()
        self.attention = linear(arrays, "attention", number)
        self.mixing = linear(arrays, "mixing", number)
        self.mixing_norm = norm(arrays["mixing_norm"][number])
        self.inner = linear(arrays, "inner", number)
        self.outer = linear(arrays, "outer", number)
        self.outer_norm = norm(arrays["outer_norm"][number])

    def forward(self, states: torch.Tensor, groups: list[Group]) -> torch.Tensor:
        products = self.attention(states).float().view(len(states), 3, -1, HEAD)
        attended = []
        for group in groups:
            query, key, value = products[group.rows].permute(2, 0, 3, 1, 4)  # (texts, heads, longest, HEAD)
            found = functional.scaled_dot_product_attention(query, key, value, attn_mask=group.hidden)
            attended.append(found.transpose(1, 2)[group.there])  # (positions, heads, HEAD)
        context = torch.cat(attended).view(states.shape)
        states = self.mixing_norm(states + self.mixing(context))
        result: torch.Tensor = self.outer_norm(states + self.outer(functional.gelu(self.inner(states))))
        return result

    def keep_neurons(self, kept: torch.Tensor, outer: torch.Tensor) -> None:
        """The neurons that stay, and their new weights in what they add to the states, (kept, WIDTH)."""
        smaller = torch.nn.Linear(WIDTH, len(kept)), torch.nn.Linear(len(kept), WIDTH)
        with torch.no_grad():
            smaller[0].weight.copy_(self.inner.weight[kept])
            smaller[0].bias.copy_(self.inner.bias[kept])
            smaller[1].weight.copy_(outer.T)
            smaller[1].bias.copy_(self.outer.bias)
        self.inner, self.outer = smaller


class Network(torch.nn.Module):
    def __init__(self, file: OnnxFile, layers: list[int]) -> None:
        super().__init__()
        arrays = read_layers(file)
        tables = [file.unrounded(f"embeddings.{name}_embeddings.weight") for name in ("word", "position", "token_type")]
        self.register_buffer("words", torch.from_numpy(tables[0]), persistent=False)
        self.register_buffer("places", torch.from_numpy(tables[1] + tables[2][0]), persistent=False)
        first = [file.arrays[f"embeddings.LayerNorm.{name}"] for name in ("weight", "bias")]
        self.first_norm = norm(np.stack(first)).requires_grad_(False)
        self.layers = torch.nn.ModuleList(Layer(arrays, number) for number in layers)

    def forward(self, batch: Batch) -> list[torch.Tensor]:
        """The states after each layer, (positions, WIDTH)."""
        states = self.first_norm(self.words[batch.token_ids] + self.places[batch.places])
        found = []
        for layer in self.layers:
            states = layer(states, batch.groups)
            found.append(states)
        return found


def products_of(precision: str) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16")


def linear(arrays: dict[str, np.ndarray], name: str, number: int) -> torch.nn.Linear:
    weight = arrays[f"{name}.weight"][number] * arrays[f"{name}.scale"][number]  # (depth, columns) float32
    layer = torch.nn.Linear(*weight.shape)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight.T))
        layer.bias.copy_(torch.from_numpy(arrays[f"{name}.bias"][number]))
    return layer


def norm(rows: np.ndarray) -> torch.nn.LayerNorm:
    layer = torch.nn.LayerNorm(WIDTH, eps=1e-12)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(rows[0].copy()))
        layer.bias.copy_(torch.from_numpy(rows[1].copy()))
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
        weights = [weights_of(positions) for positions in asked]
        encoder = self._limited[limit]
        passages = np.concatenate([rng.choice(self._found[i], PASSAGES, replace=False) for i in chosen])
        inputs += [text for text, _, _ in passage_inputs(encoder, [self._texts[i] for i in passages])]
        return pack(inputs, np.concatenate(weights), len(chosen))


def weights_of(question: Any) -> np.ndarray:
    """What each position of a tokenised question counts for."""
    return np.ones(len(question.kinds), dtype=np.float32) if question.weights is None else question.weights


def pack(inputs: list[Input], weights: np.ndarray, questions: int) -> Batch:
    lengths = np.array([len(text.token_ids) for text in inputs])
    attended = np.array([text.attended for text in inputs])
    starts = np.cumsum(lengths) - lengths
    places = [np.arange(len(text.token_ids)) if text.places is None else text.places for text in inputs]
    groups = []
    for part in (slice(None, questions), slice(questions, None)):
        at = np.arange(lengths[part].max())
        there = at < lengths[part, None]
        hidden = np.where(at < attended[part, None], 0.0, -np.inf).astype(np.float32)
        rows = np.where(there, starts[part, None] + at, 0)
        groups.append(
            Group(torch.from_numpy(rows), torch.from_numpy(there), torch.from_numpy(hidden)[:, None, None, :])
        )
    return Batch(
        torch.from_numpy(np.concatenate([text.token_ids for text in inputs])),
        torch.from_numpy(np.concatenate(places)),
        groups,
        [(int(at), int(at + length)) for at, length in zip(starts, lengths, strict=True)],
        torch.from_numpy(weights),
        questions,
    )


def make_student(
    file: OnnxFile, teacher: Network, layers: list[int], neurons: int, batches: Batches, fitted: bool = True
) -> Network:
    """The teacher's layers with these numbers, each with those of its neurons that add most to its states.

    What these add is fitted, by least squares, to what all neurons of the layer add. If not fitted, the layers have the
    sizes of such a student, for weights that are read from a checkpoint.
    """
    student = Network(file, layers)
    if neurons == 4 * WIDTH:
        return student
    if not fitted:
        for own in student.layers:
            own.keep_neurons(torch.arange(neurons), own.outer.weight.T[:neurons])
        return student
    products = {number: torch.zeros(4 * WIDTH, 4 * WIDTH, dtype=torch.float64) for number in layers}  # of neurons

    def note(number: int) -> Callable[..., None]:
        def hook(_: torch.nn.Module, __: object, made: torch.Tensor) -> None:
            neurons = functional.gelu(made.float())
            products[number] += neurons.T @ neurons

        return hook

    with torch.no_grad():
        for i in track(range(FITTED), description="neurons"):
            batch = batches[i]
            states = teacher.first_norm(teacher.words[batch.token_ids] + teacher.places[batch.places])
            for number, layer in enumerate(teacher.layers):
                if number in products:
                    layer.inner.register_forward_hook(note(number))
                states = layer(states, batch.groups)
                layer.inner._forward_hooks.clear()
        for number, own in zip(layers, student.layers, strict=True):
            product, outer = products[number], own.outer.weight.T.double()  # (neurons, neurons), (neurons, WIDTH)
            product.diagonal().add_(DAMPING * product.diagonal().mean())
            # What the states lose without one neuron, if the others are fitted again.
            lost = outer.square().sum(1) / torch.linalg.inv(product).diagonal()
            kept = lost.topk(neurons).indices.sort().values
            own.keep_neurons(kept, torch.linalg.solve(product[kept][:, kept], product[kept] @ outer))
    return student


def distances(batch: Batch, made: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Squared distances of unit vectors: the mean over questions and the mean over passages, added."""
    away = (functional.normalize(made, dim=-1) - functional.normalize(wanted, dim=-1)).square().sum(-1)
    asked = len(batch.weights)
    return away[:asked].mean() + away[asked:].mean()


def scores(batch: Batch, embeddings: torch.Tensor, stored: torch.Tensor | None = None) -> torch.Tensor:
    """(questions, passages) by MaxSim, over the positions of the passages that are stored."""
    asked = len(batch.weights)
    similar = embeddings[:asked] @ embeddings[asked:].T
    if stored is not None:
        similar = similar.masked_fill(~stored, -2.0)
    best = torch.stack(
        [similar[:, first - asked : end - asked].amax(1) for first, end in batch.spans[batch.questions :]], dim=1
    )
    lengths = [end - first for first, end in batch.spans[: batch.questions]]
    return torch.stack([part.sum(0) for part in (best * batch.weights[:, None]).split(lengths)])


def losses(
    batch: Batch, made: list[torch.Tensor], wanted: list[torch.Tensor], layers: list[int], layer: torch.Tensor
) -> dict[str, torch.Tensor]:
    # What the next layer read in the teacher.
    inside = [distances(batch, mine, wanted[number - 1]) for mine, number in zip(made[:-1], layers[1:], strict=True)]
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


def rounded(network: Network) -> dict[str, np.ndarray]:
    """The layers as `read_layers` has them: int8 weights with a scale per column."""
    found: dict[str, list[np.ndarray]] = {}
    for layer in network.layers:
        for name in PRODUCTS:
            module = getattr(layer, name)
            weight = module.weight.detach().numpy().T
            scale = np.abs(weight).max(axis=0) / 127
            parts = {"weight": np.round(weight / scale).astype(np.int8), "scale": scale}
            for part, array in (parts | {"bias": module.bias.detach().numpy()}).items():
                found.setdefault(f"{name}.{part}", []).append(array)
        for name in NORMS:
            module = getattr(layer, name)
            found.setdefault(name, []).append(np.stack([module.weight.detach().numpy(), module.bias.detach().numpy()]))
    return {name: np.stack(arrays) for name, arrays in found.items()}


def measure(
    teacher: Network, student: Network, batches: list[Batch], layers: list[int], layer: torch.Tensor
) -> dict[str, float]:
    with torch.no_grad():
        found = [losses(batch, student(batch), teacher(batch), layers, layer) for batch in batches]
    return {name: round(float(np.mean([loss[name] for loss in found])), 4) for name in found[0]}


def checkpoint(options: argparse.Namespace) -> Path:
    path: Path = options.cache / f"student-{options.name}.pt"
    return path


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
    path = checkpoint(options)
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
        with products_of(options.precision):
            with torch.no_grad():
                wanted = teacher(batch)
            made = student(batch)
        found = losses(batch, made, wanted, options.layers, layer)
        loss = sum(getattr(options, name) * value for name, value in found.items())
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


def speed(batches: Batches, networks: dict[str, Bert]) -> None:
    """Tokens of passages per second, and milliseconds for a question, on one thread; medians of rounds in turn."""
    questions = [batches[i].questions for i in range(2)]
    texts = [texts_of(batches[i]) for i in range(2)]
    asked = [text for of_batch, count in zip(texts, questions, strict=True) for text in of_batch[:count]]
    passages = [text for of_batch, count in zip(texts, questions, strict=True) for text in of_batch[count:]]
    tokens = sum(len(text.token_ids) for text in passages)
    times: dict[str, list[list[float]]] = {name: [[], []] for name in networks}
    for round_number in range(ROUNDS + 1):
        for name, network in networks.items():
            for group, found in zip((passages, asked), times[name], strict=True):
                start = time.perf_counter()
                for text in group:
                    network.states([text])
                if round_number:  # the first one compiles
                    found.append(time.perf_counter() - start)
    for name, of_network in times.items():
        by_passages, by_questions = (float(np.median(found)) for found in of_network)
        speeds = {"tokens per second": tokens / by_passages, "ms a question": 1000 * by_questions / len(asked)}
        print(json.dumps({"network": name, **{key: round(value, 2) for key, value in speeds.items()}}))


def texts_of(batch: Batch) -> list[Input]:
    """As a network reads them; every position is attended to."""
    ids, places = batch.token_ids.numpy(), batch.places.numpy()
    return [Input(ids[first:end], end - first, places[first:end]) for first, end in batch.spans]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--name", default="student", help="of the checkpoint in the cache")
    arguments.add_argument(
        "--layers", type=int, nargs="+", default=[0, 1, 2, 4, 6, 8, 9, 10, 11], help="the teacher's, from 0"
    )
    arguments.add_argument("--neurons", type=int, default=512, help="inside each layer, a multiple of 64")
    arguments.add_argument("--steps", type=int, default=20_000)
    arguments.add_argument("--questions", type=int, default=8, help="in a batch, each with two passages")
    arguments.add_argument("--rate", type=float, default=4e-4)
    arguments.add_argument("--inside", type=float, default=0.25, help="weight of the states between the layers")
    arguments.add_argument("--states", type=float, default=0.25, help="weight of the last states")
    arguments.add_argument(
        "--embeddings", type=float, default=2.0, help="weight of what the linear layer makes of them"
    )
    arguments.add_argument("--ranking", type=float, default=0.5, help="weight of the rankings")
    arguments.add_argument(
        "--precision",
        choices=["bfloat16", "float32"],
        default="bfloat16" if torch.cpu._is_avx512_bf16_supported() else "float32",
    )
    arguments.add_argument("--report", nargs="*", choices=REPORTED, default=list(REPORTED), help="collections")
    options = arguments.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    file = OnnxFile(wheel_folder() / "model.onnx")
    batches = Batches(options.collections, options.cache, options.questions)
    teacher = Network(file, list(range(12))).requires_grad_(False)
    is_new = not checkpoint(options).exists()
    student = make_student(file, teacher, options.layers, options.neurons, batches, fitted=is_new)
    train(options, teacher, student, batches)
    layer = LAYERS[DEFAULT_MODEL].projection()
    np.savez_compressed(options.cache / f"{options.name}.npz", **rounded(student))
    small = Bert(wheel_folder() / "model.onnx", options.cache / f"{options.name}.npz")
    speed(batches, {"teacher": Bert(wheel_folder() / "model.onnx"), "student": small})
    for name in options.report:
        of_teacher = Judged(options.collections, options.cache, name).ndcg(layer)
        of_student = Judged(options.collections, options.cache, name, small, f"student-{options.name}-").ndcg(layer)
        p = ttest_rel(of_student, of_teacher).pvalue
        found = {"teacher": of_teacher.mean(), "student": of_student.mean(), "p": p}
        print(json.dumps({"collection": name, **{key: round(float(value), 4) for key, value in found.items()}}))


if __name__ == "__main__":
    main()

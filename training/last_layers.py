"""Train the last layers of the network together with the linear layer, beside the linear layer alone.

    python training/last_layers.py --collections DIR --cache DIR

DIR is as in projection.py. A part of its questions is used, each with eight passages: its judged passage if it has
one, and those that BM25 finds. All variants see the same batches in the same order, and begin with the network and the
linear layer that ship. The layers before the last two stay as they are.

    1 teach     the cross-encoder scores each question with its passages
    2 train     the losses of projection.py; a variant for each number of layers
    3 report    exhaustive MaxSim with the layers rounded to int8: nDCG@10 of what ships and of each variant,
                and p of a paired t-test between them
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import bm25s
import numpy as np
import torch
from projection import REPORTED, Judged, Recipe, embed, losses_of
from rich.progress import track
from scipy.stats import ttest_rel
from student import Batch, Network, pack, products_of, rounded, scores, weights_of
from torch.nn import functional

from examples import CANDIDATES, collect, passage_inputs, teach
from secateurs.encoders.bert import Bert, read_layers
from secateurs.encoders.built_in import LAYERS
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.encoders.onnx_file import OnnxFile
from secateurs.encoders.protocol import DEFAULT_MODEL
from secateurs.threads import in_order

LAST = 2  # layers that run in float
TOGETHER = 8  # texts that go through the other layers at once


class Variant:
    """The last layers, of which so many are trained, and the linear layer."""

    def __init__(self, file: OnnxFile, trained: int, steps: int, rates: tuple[float, float]) -> None:
        self.trained = trained
        self.network = Network(file, [12 - LAST + i for i in range(LAST)])
        for layer in list(self.network.layers)[: LAST - trained]:
            layer.requires_grad_(False)
        self.layer = torch.nn.Parameter(torch.from_numpy(LAYERS[DEFAULT_MODEL].projection()))
        self.scale = torch.nn.Parameter(torch.tensor(0.0))
        inner = [weight for weight in self.network.parameters() if weight.requires_grad]
        groups = [{"params": [self.layer]}, {"params": [self.scale]}, *([{"params": inner}] if inner else [])]
        most = [rates[0], 0.02, rates[1]][: len(groups)]
        self.optimiser = torch.optim.AdamW(groups, weight_decay=0.0)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimiser, most, total_steps=steps, pct_start=0.1)

    def embeddings(self, states: torch.Tensor, batch: Batch) -> torch.Tensor:
        for layer in self.network.layers:
            states = layer(states, batch.groups)
        return embed(states.float(), self.layer)


class Data:
    """Questions, each with CANDIDATES passages and the cross-encoder's logits."""

    def __init__(self, collections: Path, cache: Path, questions: int) -> None:
        _, self._texts, asked = collect(collections)
        asked = asked[:questions]
        self._questions = [text for text, _ in asked]
        self.has_answer = np.array([bool(relevant) for _, relevant in asked])
        mined = cache / f"last-layers-{questions}.npy"
        if not mined.exists():
            np.save(mined, self._mine([relevant for _, relevant in asked]))
        self._lists = np.load(mined)
        self.logits = teach(mined.with_suffix(".f32"), asked, self._texts, self._lists)
        self._encoder = OnnxEncoder.load(settings={"document_limit": 192})

    def _mine(self, relevant: list[list[int]]) -> np.ndarray:
        retriever = bm25s.BM25()
        retriever.index(bm25s.tokenize(self._texts, stopwords="en", show_progress=False), show_progress=False)
        tokens = bm25s.tokenize(self._questions, stopwords="en", show_progress=False)
        found, _ = retriever.retrieve(tokens, k=2 * CANDIDATES, show_progress=False)
        rng = np.random.default_rng(0)
        return np.array(
            [
                [*own[:1], *rng.permutation([passage for passage in row if passage not in own])][:CANDIDATES]
                for own, row in zip(relevant, found.tolist(), strict=True)
            ]
        )

    def batch(self, chosen: np.ndarray) -> tuple[Batch, torch.Tensor]:
        """And whether a document stores each position of the passages."""
        asked = [self._encoder._query_positions(self._questions[i]) for i in chosen]
        weights = [weights_of(positions) for positions in asked]
        passages = list(passage_inputs(self._encoder, [self._texts[i] for i in self._lists[chosen].ravel()]))
        inputs = [*(positions.input for positions in asked), *(text for text, _, _ in passages)]
        self.inputs = inputs
        stored = torch.from_numpy(np.concatenate([kept for _, _, kept in passages]))
        return pack(inputs, np.concatenate(weights), len(chosen)), stored


def first_layers(arrays: dict[str, np.ndarray], path: Path) -> Bert:
    """The network without the layers that run in float."""
    np.savez(path, **{name: array[:-LAST] for name, array in arrays.items()})
    return Bert(wheel_folder() / "model.onnx", path)


def best_scale(own: torch.Tensor, teacher: np.ndarray, recipe: Recipe) -> torch.Tensor:
    target = torch.softmax(torch.from_numpy(teacher) / recipe.temperature, dim=-1)
    choices = torch.linspace(-1, 3, 41)
    away = [
        functional.kl_div((own * choice.exp()).log_softmax(-1), target, reduction="batchmean") for choice in choices
    ]
    return choices[int(torch.stack(away).argmin())]


def train(options: argparse.Namespace, file: OnnxFile) -> list[Variant]:
    data = Data(options.collections, options.cache, options.questions)
    rng = np.random.default_rng(0)
    batches = [
        order[first : first + options.batch]
        for order in (rng.permutation(options.questions) for _ in range(options.epochs))
        for first in range(0, options.questions - options.batch + 1, options.batch)
    ]
    rates = options.linear_rate, options.rate
    variants = [Variant(file, trained, len(batches), rates) for trained in options.trained]
    recipe, bert = Recipe(), first_layers(read_layers(file), options.cache / "first-layers.npz")
    found: dict[int, list[float]] = {trained: [] for trained in options.trained}
    for number, chosen in enumerate(track(batches, description="training")):
        batch, stored = data.batch(chosen)
        parts = ((data.inputs[i : i + TOGETHER],) for i in range(0, len(data.inputs), TOGETHER))
        states = torch.from_numpy(np.concatenate([rows for part in in_order(bert.states, parts) for rows in part]))
        best = torch.from_numpy(data.logits[chosen].argmax(axis=1))
        each = torch.arange(len(chosen))
        for variant in variants:
            with products_of(options.precision):
                embeddings = variant.embeddings(states, batch)
            every = scores(batch, embeddings.float(), stored).view(len(chosen), len(chosen), CANDIDATES)
            if not number:  # begin with the temperature that fits best
                variant.scale.data = best_scale(every[each, each].detach(), data.logits[chosen], recipe)
            agreement, contrast = losses_of(
                every[each, each],
                every[:, each, best],
                data.logits[chosen],
                data.has_answer[chosen],
                variant.scale,
                recipe,
            )
            found[variant.trained].append(agreement.item())
            variant.optimiser.zero_grad()
            (agreement + recipe.contrast * contrast).backward()
            variant.optimiser.step()
            variant.schedule.step()
        if (number + 1) % 20 == 0:
            last = {trained: round(float(np.mean(values[-20:])), 4) for trained, values in found.items()}
            print(json.dumps({"batch": number + 1, "agreement by trained layers": last}), flush=True)
    return variants


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collections", type=Path, required=True)
    arguments.add_argument("--cache", type=Path, required=True)
    arguments.add_argument("--questions", type=int, default=3000)
    arguments.add_argument("--epochs", type=int, default=1)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--trained", type=int, nargs="+", default=[0, 1, 2], help="numbers of layers, at most 2")
    arguments.add_argument("--rate", type=float, default=3e-5, help="of the network's layers")
    arguments.add_argument("--linear-rate", type=float, default=2e-4)
    arguments.add_argument("--precision", choices=["bfloat16", "float32"], default="float32")
    arguments.add_argument("--report", nargs="*", choices=REPORTED, default=list(REPORTED), help="collections")
    options = arguments.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    file = OnnxFile(wheel_folder() / "model.onnx")
    variants = train(options, file)
    arrays = read_layers(file)
    present = LAYERS[DEFAULT_MODEL].projection()
    compared: list[tuple[str, Bert | None, str, np.ndarray]] = [("what ships", None, "", present)]
    for variant in variants:
        name = f"last-{variant.trained}"
        network = None
        if variant.trained:
            path, last = options.cache / f"{name}.npz", rounded(variant.network)
            np.savez(path, **{part: np.concatenate([array[:-LAST], last[part]]) for part, array in arrays.items()})
            network = Bert(wheel_folder() / "model.onnx", path)
        prefix = f"{name}-" if variant.trained else ""
        compared.append((name, network, prefix, variant.layer.detach().numpy()))
    for collection in options.report:
        found = {
            name: Judged(options.collections, options.cache, collection, network, prefix).ndcg(layer)
            for name, network, prefix, layer in compared
        }
        shipped = found.pop("what ships")
        line = {"collection": collection, "what ships": round(float(shipped.mean()), 4)}
        for name, values in found.items():
            p = ttest_rel(values, shipped).pvalue
            line |= {name: round(float(values.mean()), 4), f"p of {name}": round(float(p), 4)}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

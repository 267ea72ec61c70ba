"""Whether two threads encode a single query faster than one.

    python benchmarks/query_threads.py --collection DIR

Two threads compute the same query. Each multiplies with its half of the columns of every weight, then they meet,
because what follows needs all columns: four times in each of the twelve layers. They meet at a POSIX barrier, which
puts a thread that waits to sleep; a thread that spins instead would take a busy core from other work. Encoding is
measured without other work, and beside processes that use a core each. All ways give the same states, to the last bit.
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Semaphore, Thread
from time import perf_counter, sleep

import numpy as np
from judged import progress, read_queries
from numpy.typing import NDArray

from secateurs.encoders.bert import Bert, Input
from secateurs.encoders.model_folder import wheel_folder
from secateurs.encoders.onnx import OnnxEncoder
from secateurs.kernels.products import COLUMNS, ROWS, _multiply_vectors
from secateurs.kernels.self_attention import attend
from secateurs.kernels.simd import compiled
from secateurs.kernels.transformer import Room, Weights, add_and_normalise, embed_tokens, gelu, make_room, round_row

QUERIES = 10
ROUNDS = 20
POSITIONS = 64
BUSY = (0, 1, 2, 4)  # processes

_system = ctypes.CDLL(None)
_meet = _system.pthread_barrier_wait
_meet.argtypes, _meet.restype = [ctypes.c_void_p], ctypes.c_int


@compiled
def multiply_part(
    rows: NDArray[np.integer], packed: NDArray[np.int8], products: NDArray[np.int32], last: int, part: int, parts: int
) -> None:
    blocks = products.shape[1] // COLUMNS
    for block in range(blocks * part // parts, blocks * (part + 1) // parts):
        for i in range(0, last, ROWS):
            _multiply_vectors(rows, packed, products, i, last - 1, block * COLUMNS, rows.shape[1])


@compiled
def forward_part(
    token_ids: NDArray[np.int64],
    places: NDArray[np.int64],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    attended: NDArray[np.int64],
    weights: Weights,
    room: Room,  # of this thread
    products: tuple[NDArray[np.int32], ...],  # of all threads: of each product of a layer
    barrier: int,
    part: int,
    parts: int,
) -> None:
    """As transformer.forward. Every thread computes all that is not a product for itself."""
    wide, mixed, deep, outer = products
    count = len(token_ids)
    embed_tokens(token_ids, places, weights, room)
    for layer in range(len(weights.mixing_norm)):
        multiply_part(room.state.rows, weights.attention.packed[layer], wide, count, part, parts)
        _meet(barrier)
        attention = weights.attention
        scales = attention.scale[layer], attention.sums[layer], attention.bias[layer]
        attend(starts, lengths, attended, wide, scales, room.state, room.context, room.attention)
        for i in range(count):
            round_row(room.context[i], room.mixed, i)
        multiply_part(room.mixed.rows, weights.mixing.packed[layer], mixed, count, part, parts)
        _meet(barrier)
        add_and_normalise(
            0, count, mixed, weights.mixing, layer, room.mixed, weights.mixing_norm, room.states, room.state
        )
        multiply_part(room.state.rows, weights.inner.packed[layer], deep, count, part, parts)
        _meet(barrier)
        gelu(0, count, deep, weights.inner, layer, room.state, room.inner)
        multiply_part(room.inner.rows, weights.outer.packed[layer], outer, count, part, parts)
        _meet(barrier)
        add_and_normalise(
            0, count, outer, weights.outer, layer, room.inner, weights.outer_norm, room.states, room.state
        )


class Together:
    """A network that so many threads compute. The others sleep between two queries."""

    def __init__(self, weights: Weights, threads: int) -> None:
        self._weights, self._threads = weights, threads
        self._barrier = ctypes.create_string_buffer(64)
        _system.pthread_barrier_init(self._barrier, None, threads)
        width, inner = weights.places.shape[1], weights.inner.scale.shape[1]
        self._products = tuple(np.zeros((POSITIONS, columns), np.int32) for columns in (3 * width, width, inner, width))
        self._rooms = [make_room(weights, POSITIONS) for _ in range(threads)]
        self._text: tuple[NDArray[np.int64], ...] = ()
        self._given = [Semaphore(0) for _ in range(threads)]
        for part in range(1, threads):
            Thread(target=self._serve, args=(part,), daemon=True).start()

    def states(self, text: Input) -> NDArray[np.float32]:
        count = len(text.token_ids)
        places = np.arange(count) if text.places is None else text.places
        self._text = (text.token_ids, places, np.array([0]), np.array([count]), np.array([text.attended]))
        for given in self._given[1:]:
            given.release()
        self._compute(0)
        return self._rooms[0].states[:count].copy()

    def _serve(self, part: int) -> None:
        while True:
            self._given[part].acquire()
            self._compute(part)

    def _compute(self, part: int) -> None:
        address = ctypes.addressof(self._barrier)
        forward_part(*self._text, self._weights, self._rooms[part], self._products, address, part, self._threads)


def measure(ways: dict[str, Callable[[Input], NDArray[np.float32]]], inputs: list[Input]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for text in inputs:
            for name, states in ways.items():
                start = perf_counter()
                states(text)
                times[name].append(perf_counter() - start)
    return times


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--collection", type=Path, required=True)
    options = arguments.parse_args()
    texts, _ = read_queries(options.collection, QUERIES)
    encoder, bert = OnnxEncoder.load(), Bert(wheel_folder() / "model.onnx")
    inputs = [encoder._query_positions(text).input for text in texts.values()]
    one, two = Together(bert._weights, 1), Together(bert._weights, 2)
    ways = {
        "one thread": lambda text: bert.states([text])[0],
        "one, with the barrier": one.states,
        "two threads": two.states,
    }
    for text in inputs:
        first, *others = (states(text) for states in ways.values())
        if any(not np.array_equal(first, other) for other in others):
            raise SystemExit("the ways do not agree")
    print("| busy processes | encoded by | mean, times one thread | median | p95 |\n|---|---|---|---|---|")
    for count in progress(BUSY, "other work"):
        busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        try:
            sleep(0.5)
            times = measure(ways, inputs)
        finally:
            for process in busy:
                process.kill()
        base = times["one thread"]
        for name, seconds in times.items():
            numbers = [np.mean(seconds) / np.mean(base)]
            numbers += [np.quantile(seconds, share) / np.quantile(base, share) for share in (0.5, 0.95)]
            print(f"| {count} | {name} | {' | '.join(f'{number:.2f}' for number in numbers)} |")


if __name__ == "__main__":
    main()

"""The constant arrays in an ONNX file, without the onnx package.

An ONNX file is one protocol-buffers message: numbered fields, each a number, or bytes with their length in front. Of
its graph this reads the initializers (constant arrays) and the matrix products, which connect a weight to the place
where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError

_TYPES: dict[int, Any] = {
    1: np.float32,
    2: np.uint8,
    3: np.int8,
}  # the message's numbers for element types, those that are read
_GRAPH = 7  # fields of the model
_NODE, _INITIALIZER = 1, 5  # fields of the graph
_INPUT, _NAME, _OPERATOR = 1, 3, 4  # fields of a node
_DIMS, _TYPE, _FLOATS, _INTS, _TENSOR_NAME, _RAW = 1, 2, 4, 5, 8, 9  # fields of an initializer


class OnnxFile:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrays: dict[str, NDArray[Any]] = {}
        self._factors: dict[str, str] = {}  # node of a matrix product -> its weight
        data = memoryview(path.read_bytes())
        try:
            for field, value in _fields(data):
                if field == _GRAPH and isinstance(value, memoryview):
                    self._read_graph(value)
        except (IndexError, ValueError, UnicodeDecodeError) as error:
            raise SecateursError(f"{path} cannot be read as an ONNX file: {error}") from error

    def unrounded(self, name: str) -> NDArray[np.float32]:
        """An array that is stored in whole numbers, with a scale and a zero, as it was before."""
        whole, zero, scale = (self.arrays[f"{name}_{part}"] for part in ("quantized", "zero_point", "scale"))
        result: NDArray[np.float32] = (whole.astype(np.float32) - zero.astype(np.float32)) * scale
        return result

    def factor(self, name: str) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """The int8 weight (depth, columns) of a matrix product by the name of its module, and the columns' scales."""
        weight = self._factors[f"/{name.replace('.', '/').replace('layer/', 'layer.')}/MatMul_quant"]
        whole = self.arrays[weight]
        name = weight.removesuffix("_quantized")
        if whole.dtype != np.int8 or self.arrays[f"{name}_zero_point"].any():
            raise KeyError(f"int8 weight without a zero point for {name}")
        return whole, np.broadcast_to(self.arrays[f"{name}_scale"], whole.shape[1:])

    def _read_graph(self, graph: memoryview) -> None:
        for field, value in _fields(graph):
            if not isinstance(value, memoryview):
                continue
            if field == _INITIALIZER:
                self._read_initializer(value)
            elif field == _NODE:
                parts = [(number, bytes(part)) for number, part in _fields(value) if isinstance(part, memoryview)]
                named = {number: part.decode() for number, part in parts if number in (_NAME, _OPERATOR)}
                if named.get(_OPERATOR) == "MatMulInteger":
                    inputs = [part.decode() for number, part in parts if number == _INPUT]
                    self._factors[named[_NAME]] = inputs[1]

    def _read_initializer(self, tensor: memoryview) -> None:
        dims: list[int] = []
        kind, name = 0, ""
        array: NDArray[Any] | None = None
        for field, value in _fields(tensor):
            if field == _DIMS:
                dims.extend([value] if isinstance(value, int) else _numbers(value))
            elif field == _TYPE and isinstance(value, int):
                kind = value
            elif field == _TENSOR_NAME and isinstance(value, memoryview):
                name = bytes(value).decode()
            elif field == _RAW and kind in _TYPES and isinstance(value, memoryview):
                array = np.frombuffer(value, dtype=_TYPES[kind])
            elif field == _FLOATS and kind == 1 and isinstance(value, memoryview):
                array = np.frombuffer(value, dtype=np.float32)
            elif field == _INTS and kind in (2, 3) and isinstance(value, memoryview):
                array = np.array(_numbers(value), dtype=np.int64).astype(_TYPES[kind])
        if array is not None:
            self.arrays[name] = array.reshape(dims)


def _fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """The fields of a message: their numbers, and a number or bytes."""
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        field, wire = tag >> 3, tag & 7
        if wire == 0:
            value, at = _number(message, at)
            yield field, value
            continue
        if wire not in (1, 2, 5):
            raise ValueError(f"field {field} has wire type {wire}")
        length = {1: 8, 5: 4}.get(wire)
        if length is None:
            length, at = _number(message, at)
        if at + length > len(message):
            raise ValueError("it is cut short")
        yield field, message[at : at + length]
        at += length


def _number(message: memoryview, at: int) -> tuple[int, int]:
    """A number, seven bits a byte, lowest first; and where the next field begins."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _numbers(packed: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(packed):
        value, at = _number(packed, at)
        found.append(value - (1 << 64) if value >> 63 else value)
    return found

"""A network small enough for a test, written as an ONNX file without the package `onnx`.

Its state at a position is the token's row of a table, plus a tenth of the sum of all rows that are attended to, with
length 1. So it shows which tokens a position is, and which others it sees.
"""

from pathlib import Path

import numpy as np

FLOAT, INT64 = 1, 7  # data types of ONNX


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    value &= 2**64 - 1  # a negative number has all 64 bits
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def _node(operator: str, inputs: list[str], output: str, **attributes: int) -> bytes:
    content = b"".join(_bytes(1, name) for name in inputs) + _bytes(2, output) + _bytes(4, operator)
    for name, value in attributes.items():
        content += _bytes(5, _bytes(1, name) + _number(3, value) + _number(20, 2))  # 2: a whole number
    return _bytes(1, content)


def _tensor(name: str, array: np.ndarray, data_type: int, external: str | None = None) -> bytes:
    content = b"".join(_number(1, size) for size in array.shape) + _number(2, data_type) + _bytes(8, name)
    if external is None:
        return _bytes(5, content + _bytes(9, array.tobytes()))
    return _bytes(5, content + _bytes(13, _bytes(1, "location") + _bytes(2, external)) + _number(14, 1))


def _value(field: int, name: str, data_type: int, shape: list[str | int]) -> bytes:
    dims = b"".join(_bytes(1, _bytes(2, size) if isinstance(size, str) else _number(1, size)) for size in shape)
    return _bytes(field, _bytes(1, name) + _bytes(2, _bytes(1, _number(1, data_type) + _bytes(2, dims))))


def states(table: np.ndarray, token_ids: np.ndarray, attended: np.ndarray) -> np.ndarray:
    """What the network computes, in NumPy: (positions, dim)."""
    rows = table[token_ids]
    mixed = rows + (attended[:, None] * rows).sum(axis=0) * np.float32(0.1)
    return mixed / np.linalg.norm(mixed, axis=1, keepdims=True)


def write_model(path: Path, table: np.ndarray, token_types: bool = False, external: bool = False) -> None:
    """The network with this table, (tokens, dim) float32; if `external`, the table is in a file of its own."""
    table = np.ascontiguousarray(table, dtype="<f4")
    names = ["input_ids", "attention_mask"] + ["token_type_ids"] * token_types
    if external:
        path.with_name(path.name + ".data").write_bytes(table.tobytes())
    graph = b"".join(
        [
            _node("Gather", ["table", "input_ids"], "rows", axis=0),  # (batch, positions, dim)
            _node("Cast", ["attention_mask"], "attended", to=FLOAT),
            _node("Unsqueeze", ["attended", "second"], "selects"),  # (batch, 1, positions)
            _node("MatMul", ["selects", "rows"], "sum"),
            _node("Mul", ["sum", "tenth"], "context"),
            _node("Add", ["rows", "context"], "mixed"),
            _node("LpNormalization", ["mixed"], "output", axis=-1, p=2),
            _bytes(2, "tiny"),
            _tensor("table", table, FLOAT, path.name + ".data" if external else None),
            _tensor("second", np.array([1], dtype="<i8"), INT64),
            _tensor("tenth", np.array([0.1], dtype="<f4"), FLOAT),
            *(_value(11, name, INT64, ["batch", "positions"]) for name in names),
            _value(12, "output", FLOAT, ["batch", "positions", table.shape[1]]),
        ]
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(_number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13)))

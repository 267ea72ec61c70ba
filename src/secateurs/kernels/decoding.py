"""Rows in codes of four bits, and back: per dimension one of sixteen offsets from a centroid.

    row = centroid + offset[code], between -128 and 127          code = that of the nearest offset to row - centroid

A line of the table is a centroid and its offsets, which ascend: (width + 16,) int8, where width is dim rounded up to a
multiple of four. Rows are decoded with 128 added, as the lanes of `multiply_add` want them.

Two codes share a byte. Dimensions go to bytes in groups of 32, the last group may be smaller: the low halves of a
group's bytes are the first half of its dimensions, the high halves are the second.

Offsets are looked up 32 at a time with the CPU's byte shuffle if it has one, and otherwise one after the other. Both
are integer arithmetic, so the result is the same to the last bit.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from .simd import compiled, pointer_to, prefetch

OFFSETS = 16
_GROUP = 32  # dimensions, in half as many bytes
HAS_BYTE_SHUFFLE = "+avx2" in cpu_target.target_context.codegen().magic_tuple()[2]  # what numba compiles for

_I8, _I32 = ir.IntType(8), ir.IntType(32)
_HALF_GROUP, _WHOLE_GROUP = ir.VectorType(_I8, _GROUP // 2), ir.VectorType(_I8, _GROUP)


class CodedRows:
    """Rows in codes, which read like an array of int8 rows."""

    def __init__(
        self,
        codes: NDArray[np.uint8],  # (embeddings, width / 2)
        numbers: NDArray[np.uint16],  # (embeddings,): the line of the table
        table: NDArray[np.int8],  # (lines, width + 16)
        dim: int,  # without the zeros that make it a multiple of four
    ) -> None:
        self.parts = codes, numbers, table
        self.shape = (len(codes), dim)

    def __getitem__(self, rows: slice | NDArray[np.int64]) -> NDArray[np.int8]:
        codes, numbers, table = self.parts
        chosen, lines = np.ascontiguousarray(codes[rows]), np.ascontiguousarray(numbers[rows])
        decoded = np.empty((len(chosen), 2 * codes.shape[1]), dtype=np.uint8)
        decode_rows(chosen, lines, table, 0, len(chosen), decoded)
        signed: NDArray[np.int8] = (decoded ^ np.uint8(128)).view(np.int8)
        return signed[:, : self.shape[1]]


@compiled
def encode_rows(
    rows: NDArray[np.int8], table: NDArray[np.int8], numbers: NDArray[np.uint16], codes: NDArray[np.uint8]
) -> None:
    """The codes of rows, (rows, width), by line `numbers` of the table or the line after it, whichever is nearer.

    `numbers` get the line that was taken: of two that are as near the first, and so it is for offsets.
    """
    width = rows.shape[1]
    found = np.empty((2, width), dtype=np.uint8)
    between = np.empty(OFFSETS - 1, dtype=np.int16)  # twice the middle of two neighbours
    for i in range(len(rows)):
        nearest, least = 0, np.int64(2**62)
        for which in range(2):
            line = table[numbers[i] + which]
            for j in range(OFFSETS - 1):
                between[j] = np.int16(line[width + j]) + np.int16(line[width + j + 1])
            squared = np.int64(0)
            for d in range(width):
                wanted = np.int16(rows[i, d]) - np.int16(line[d])
                code = np.uint8(0)
                for j in range(OFFSETS - 1):
                    code += np.uint8(2 * wanted > between[j])
                found[which, d] = code
                squared += np.int64(wanted - np.int16(line[width + code])) ** 2
            if squared < least:
                nearest, least = which, squared
        numbers[i] += nearest
        for first in range(0, width, _GROUP):
            half = min(_GROUP, width - first) // 2
            for d in range(first, first + half):
                codes[i, d - first // 2] = found[nearest, d] | (found[nearest, half + d] << np.uint8(4))


@compiled
def decode_rows(
    codes: NDArray[np.uint8],
    numbers: NDArray[np.uint16],
    table: NDArray[np.int8],
    begin: int,
    end: int,
    decoded: NDArray[np.uint8],
) -> None:
    """Rows begin to end, each value with 128 added: (rows, width)."""
    size = table.shape[1]
    width = 2 * codes.shape[1]
    whole = width // _GROUP * _GROUP
    from_codes, to = begin * (width // 2), 0
    for i in range(begin, end):
        line = np.int64(numbers[i]) * size
        if whole == 3 * _GROUP:  # 96 and 128 dimensions are what models have: their loops are unrolled
            _decode_3(codes, from_codes, table, line, line + width, decoded, to)
        elif whole == 4 * _GROUP:
            _decode_4(codes, from_codes, table, line, line + width, decoded, to)
        else:
            for d in range(0, whole, _GROUP):
                _decode_1(codes, from_codes + (d >> 1), table, line + d, line + width, decoded, to + d)
        from_codes += width // 2
        to += width
    if whole < width:
        _decode_last_group(codes, numbers, table, begin, end, whole, decoded)


@compiled
def _decode_last_group(
    codes: NDArray[np.uint8],
    numbers: NDArray[np.uint16],
    table: NDArray[np.int8],
    begin: int,
    end: int,
    first: int,
    decoded: NDArray[np.uint8],
) -> None:
    """The dimensions from `first` on, fewer than a whole group."""
    width = 2 * codes.shape[1]
    half = (width - first) // 2
    for i in range(begin, end):
        line = table[numbers[i]]
        for d in range(half):
            code = codes[i, first // 2 + d]
            low = np.int16(line[first + d]) + line[width + (code & 15)]
            high = np.int16(line[first + half + d]) + line[width + (code >> 4)]
            decoded[i - begin, first + d] = min(max(low, -128), 127) + 128
            decoded[i - begin, first + half + d] = min(max(high, -128), 127) + 128


@compiled
def prefetch_rows(codes: NDArray[np.uint8], numbers: NDArray[np.uint16], begin: int, end: int) -> None:
    """Have the codes of these rows brought near. The table is in use all the time, and stays near by itself."""
    for at in range(begin * codes.shape[1], end * codes.shape[1], 64):
        prefetch(codes, at)
    for at in range(2 * begin, 2 * end, 64):
        prefetch(numbers, at)


def _generate(groups: int, context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    def load(argument: int, kind: Any, place: Any) -> Any:
        pointer = pointer_to(context, builder, kind, signature.args[argument], arguments[argument], place)
        return builder.load(pointer, align=1)

    def after(place: Any, count: int) -> Any:
        return builder.add(place, ir.Constant(place.type, count))

    codes_at, centroid_at, offsets_at, to = (arguments[i] for i in (1, 3, 4, 6))
    shifts = ir.Constant(ir.VectorType(_I32, 8), [0] * 4 + [4] * 4)  # the second half of a group: the high halves
    add = _function(builder, "llvm.sadd.sat.v32i8")
    offsets_twice = _twice(builder, load(2, _HALF_GROUP, offsets_at))
    values = []
    for group in range(groups):
        codes = _twice(builder, load(0, _HALF_GROUP, after(codes_at, group * _GROUP // 2)))
        shifted = builder.bitcast(builder.lshr(builder.bitcast(codes, shifts.type), shifts), _WHOLE_GROUP)
        places = builder.and_(shifted, ir.Constant(_WHOLE_GROUP, [15] * _GROUP))
        if HAS_BYTE_SHUFFLE:
            offsets = builder.call(_function(builder, "llvm.x86.avx2.pshuf.b"), [offsets_twice, places])
        else:
            offsets = ir.Constant(_WHOLE_GROUP, ir.Undefined)
            for lane in range(_GROUP):
                place = builder.zext(builder.extract_element(places, ir.Constant(_I32, lane)), offsets_at.type)
                offset = load(2, _I8, builder.add(offsets_at, place))
                offsets = builder.insert_element(offsets, offset, ir.Constant(_I32, lane))
        signed = builder.call(add, [load(2, _WHOLE_GROUP, after(centroid_at, group * _GROUP)), offsets])
        values.append(builder.xor(signed, ir.Constant(_WHOLE_GROUP, [-128] * _GROUP)))
    for group, decoded in enumerate(values):
        place = after(to, group * _GROUP)
        target = pointer_to(context, builder, _WHOLE_GROUP, signature.args[5], arguments[5], place)
        builder.store(decoded, target, align=1)
    return context.get_dummy_value()


def _decode_groups(groups: int) -> Any:
    """The codes of so many whole groups of one row to their values. All places are byte offsets into the arrays."""

    def decode(
        context: Any, codes: Any, codes_at: Any, table: Any, centroid_at: Any, offsets_at: Any, decoded: Any, to: Any
    ) -> Any:
        at = types.intp
        return types.void(codes, at, table, at, at, decoded, at), partial(_generate, groups)

    return intrinsic(decode)


def _twice(builder: Any, half: Any) -> Any:
    order = list(range(_GROUP // 2)) * 2
    return builder.shuffle_vector(half, half, ir.Constant(ir.VectorType(_I32, _GROUP), order))


def _function(builder: Any, name: str) -> Any:
    kind = ir.FunctionType(_WHOLE_GROUP, [_WHOLE_GROUP, _WHOLE_GROUP])
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


_decode_1, _decode_3, _decode_4 = (_decode_groups(groups) for groups in (1, 3, 4))

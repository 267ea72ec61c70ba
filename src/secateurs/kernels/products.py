"""Matrix products of rounded rows with int8 weights, as int32.

Rows hold numbers between 0 and 255. Weights are packed once, so that the innermost loop reads them in order. There are
three ways:

    tiles (AMX)               32 rows and 32 columns at once, 64 dimensions a step
    bytes (AVX-512 VNNI)      6 rows and 64 columns at once, 4 dimensions a step, by the dot product of bytes
    pairs (any other CPU)     6 rows and 16 columns at once, 2 dimensions a step, by the dot product of two int16 that
                              every x86 CPU has. Rows are int16 for that. Weights stay int8 and are widened as they are
                              read, once for six rows: a query reads every weight once, and waits for the memory

The sums are integers, so every way gives the same result.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.typing import NDArray

from .floats import fused, load_floats
from .simd import HAS_VNNI, LANES, compiled, multiply_bytes, multiply_pairs, pointer_to

ROWS = 6
# Sums of a block fill the registers: 24 of the 32 with sixteen lanes, or 12 of the 16 with eight.
_VECTORS, _DEPTH = (4, 4) if HAS_VNNI else (1, 2)
ROW_KIND = np.uint8 if HAS_VNNI else np.int16
COLUMNS = _VECTORS * LANES  # of a block
WIDTHS = 64  # the numbers of columns and of dimensions must be multiples of it, whatever the CPU
TILE = 16  # rows of a tile
_HAS_TILES = "+amx-int8" in cpu_target.target_context.codegen().magic_tuple()[2]  # what numba compiles for
_I8, _I32, _I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
_SUMS = ir.VectorType(_I32, LANES)


def pack_weights(weights: NDArray[np.int8]) -> NDArray[np.int8]:
    """(depth, columns) in the order in which `multiply` reads them."""
    depth, columns = weights.shape
    blocks = weights.reshape(depth // _DEPTH, _DEPTH, columns // COLUMNS, _VECTORS, LANES)
    return np.ascontiguousarray(blocks.transpose(2, 0, 3, 4, 1)).reshape(-1)


@cache
def tiles_allowed() -> bool:
    """Whether this process may use the tile registers. Linux gives leave on request, where the CPU has them."""
    if not _HAS_TILES or sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    try:
        return bool(ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0)
    except (OSError, AttributeError):
        return False


@compiled
def multiply(
    first: int,
    last: int,
    rows: NDArray[np.integer],  # of ROW_KIND
    packed: NDArray[np.int8],
    products: NDArray[np.int32],
    tiles: bool,
) -> None:
    """products[first:last] = rows[first:last] @ weights.

    With tiles, `open_tiles` comes before, both arrays have at least 31 rows after `last`, and what is in those of the
    products is lost.
    """
    depth = rows.shape[1]
    for column in range(0, products.shape[1], COLUMNS):
        i = first
        if tiles:
            while i < last:
                for half in range(0, COLUMNS, 2 * TILE):
                    _multiply_tiles(rows, packed, products, i, column, half, depth, last - i > TILE)
                i += 2 * TILE
        while i < last:
            _multiply_vectors(rows, packed, products, i, last - 1, column, depth)
            i += ROWS


@compiled
def product_values(product: NDArray[np.int32], j: int, step: Any, least: Any, scales: Any) -> Any:
    """Sixteen values of a row of products from column j on, as floats, plus the bias.

    `step` and `least` are those of the rounded row in all lanes, `scales` the scale, sums and bias of the columns: see
    transformer.py.
    """
    scale, sums, bias = scales
    value = fused(load_floats(product, j), step * load_floats(scale, j), load_floats(bias, j))
    return fused(least, load_floats(sums, j), value)


@intrinsic  # type: ignore[untyped-decorator]
def _multiply_vectors(
    context: Any, rows: Any, packed: Any, products: Any, first: Any, last: Any, column: Any, depth: Any
) -> Any:
    """Rows from `first` on, at most up to `last`, times the columns from `column` on.

    Where fewer rows are left than a block has, the last is computed again.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, packed, products, first, last, column, depth = arguments
        row_kind, weight_kind, product_kind = signature.args[:3]
        stride = builder.extract_value(context.make_array(product_kind)(context, builder, products).strides, 0)
        vector_bytes = 4 * LANES
        weight_bytes = _DEPTH * LANES  # of a vector
        size = ir.Constant(_I64, row_kind.dtype.bitwidth // 8)
        multiply_lanes = multiply_bytes if HAS_VNNI else multiply_pairs
        inputs, outputs = [], []
        for r in range(ROWS):
            row = builder.add(first, ir.Constant(_I64, r))
            row = builder.select(builder.icmp_signed("<", row, last), row, last)
            offset = builder.mul(builder.mul(row, depth), size)
            inputs.append(pointer_to(context, builder, _I8, row_kind, rows, offset))
            offset = builder.add(builder.mul(row, stride), builder.mul(column, ir.Constant(_I64, 4)))
            outputs.append(pointer_to(context, builder, _I8, product_kind, products, offset))
        weights = pointer_to(context, builder, _I8, weight_kind, packed, builder.mul(column, depth))
        steps = builder.udiv(depth, ir.Constant(_I64, _DEPTH))

        before = builder.block
        loop = builder.append_basic_block("step")
        after = builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        step = builder.phi(_I64)
        sums = [[builder.phi(_SUMS) for _ in range(_VECTORS)] for _ in range(ROWS)]
        start = builder.mul(step, ir.Constant(_I64, _VECTORS * weight_bytes))
        lanes = []
        for v in range(_VECTORS):
            place = builder.gep(weights, [builder.add(start, ir.Constant(_I64, v * weight_bytes))])
            kind = ir.VectorType(_I8, weight_bytes)
            loaded = builder.load(builder.bitcast(place, kind.as_pointer()), align=1)
            if not HAS_VNNI:
                loaded = builder.sext(loaded, ir.VectorType(ir.IntType(16), weight_bytes))
            lanes.append(builder.bitcast(loaded, _SUMS))
        grown = []
        nothing = ir.Constant(_SUMS, ir.Undefined)
        for r in range(ROWS):
            place = builder.gep(inputs[r], [builder.mul(step, ir.Constant(_I64, 4))])
            dword = builder.load(builder.bitcast(place, _I32.as_pointer()), align=1)
            splat = builder.insert_element(nothing, dword, ir.Constant(_I32, 0))
            splat = builder.shuffle_vector(splat, nothing, ir.Constant(_SUMS, [0] * LANES))
            grown.append([multiply_lanes(builder, sums[r][v], splat, lanes[v]) for v in range(_VECTORS)])
        following = builder.add(step, ir.Constant(_I64, 1))
        builder.cbranch(builder.icmp_unsigned("<", following, steps), loop, after)
        end = builder.block
        step.add_incoming(ir.Constant(_I64, 0), before)
        step.add_incoming(following, end)
        for r in range(ROWS):
            for v in range(_VECTORS):
                sums[r][v].add_incoming(ir.Constant(_SUMS, [0] * LANES), before)
                sums[r][v].add_incoming(grown[r][v], end)
        builder.position_at_end(after)
        for r in range(ROWS):
            for v in range(_VECTORS):
                place = builder.gep(outputs[r], [ir.Constant(_I64, v * vector_bytes)])
                builder.store(grown[r][v], builder.bitcast(place, _SUMS.as_pointer()), align=4)
        return context.get_dummy_value()

    numbers = (types.intp,) * 4
    return types.void(rows, packed, products, *numbers), generate


TILE_SETTINGS = np.zeros(64, dtype=np.uint8)  # as the CPU reads them
TILE_SETTINGS[0] = 1  # the only palette
TILE_SETTINGS[16:32:2] = 64  # bytes of a row, for eight tiles
TILE_SETTINGS[48:56] = TILE


@intrinsic  # type: ignore[untyped-decorator]
def _load_settings(context: Any, settings: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _HAS_TILES:
            place = pointer_to(context, builder, _I8, signature.args[0], arguments[0], ir.Constant(_I64, 0))
            kind = ir.FunctionType(ir.VoidType(), [place.type])
            builder.asm(kind, "ldtilecfg ($0)", "r,~{memory}", [place], True)
        return context.get_dummy_value()

    return types.void(settings), generate


@compiled
def open_tiles(settings: NDArray[np.uint8]) -> None:
    """Before products with tiles, in the same thread. `settings` are TILE_SETTINGS."""
    _load_settings(settings)


@intrinsic  # type: ignore[untyped-decorator]
def close_tiles(context: Any) -> Any:
    """After products with tiles: other work need not keep them."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if _HAS_TILES:
            builder.asm(ir.FunctionType(ir.VoidType(), []), "tilerelease", "~{memory}", [], True)
        return context.get_dummy_value()

    return types.void(), generate


# Sums are in tiles 0 to 3, rows in 4 and 5, weights in 6 and 7. A step takes 64 dimensions: 64 bytes of a row, and 16
# lines of packed weights, which are 256 bytes apart.
_TWO_ROWS_OF_TILES = """
    tilezero %tmm0
    tilezero %tmm1
    tilezero %tmm2
    tilezero %tmm3
1:
    tileloadd ($0,$4), %tmm4
    tileloadd ($2,$5), %tmm6
    tileloadd 64($2,$5), %tmm7
    tileloadd ($1,$4), %tmm5
    tdpbusd %tmm6, %tmm4, %tmm0
    tdpbusd %tmm7, %tmm4, %tmm1
    tdpbusd %tmm6, %tmm5, %tmm2
    tdpbusd %tmm7, %tmm5, %tmm3
    add $$64, $0
    add $$64, $1
    add $$4096, $2
    dec $3
    jnz 1b
    tilestored %tmm0, ($6,$8)
    tilestored %tmm1, 64($6,$8)
    tilestored %tmm2, ($7,$8)
    tilestored %tmm3, 64($7,$8)
"""
_ROW_OF_TILES = "\n".join(
    line for line in _TWO_ROWS_OF_TILES.splitlines() if not any(word in line for word in ("tmm2", "tmm3", "tmm5"))
)


@intrinsic  # type: ignore[untyped-decorator]
def _multiply_tiles(
    context: Any, rows: Any, packed: Any, products: Any, first: Any, column: Any, half: Any, depth: Any, both: Any
) -> Any:
    """Two tiles of rows from `first` on, or one unless `both`, times two tiles of columns from `column` + `half` on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, packed, products, first, column, half, depth, both = arguments
        if not _HAS_TILES:
            return context.get_dummy_value()
        row_kind, weight_kind, product_kind = signature.args[:3]
        stride = builder.extract_value(context.make_array(product_kind)(context, builder, products).strides, 0)
        tile = ir.Constant(_I64, TILE)
        bytes_of_product = ir.Constant(_I64, 4)
        start = builder.mul(first, depth)
        inputs = [
            pointer_to(context, builder, _I8, row_kind, rows, offset)
            for offset in (start, builder.add(start, builder.mul(tile, depth)))
        ]
        offset = builder.add(builder.mul(column, depth), builder.mul(half, bytes_of_product))
        weights = pointer_to(context, builder, _I8, weight_kind, packed, offset)
        start = builder.mul(builder.add(column, half), bytes_of_product)
        outputs = [
            pointer_to(context, builder, _I8, product_kind, products, builder.add(builder.mul(row, stride), start))
            for row in (first, builder.add(first, tile))
        ]
        steps = builder.udiv(depth, ir.Constant(_I64, 64))
        line = ir.Constant(_I64, 4 * COLUMNS)
        pointer = inputs[0].type
        result = ir.LiteralStructType([pointer, pointer, pointer, _I64])
        kind = ir.FunctionType(result, [_I64, _I64, pointer, pointer, _I64, pointer, pointer, pointer, _I64])
        constraints = "=&r,=&r,=&r,=&r,r,r,r,r,r,0,1,2,3,~{memory},~{flags}"
        operands = [depth, line, *outputs, stride, *inputs, weights, steps]
        with builder.if_else(both) as (two, one):
            with two:
                builder.asm(kind, _TWO_ROWS_OF_TILES, constraints, operands, True)
            with one:
                builder.asm(kind, _ROW_OF_TILES, constraints, operands, True)
        return context.get_dummy_value()

    numbers = (types.intp,) * 4
    return types.void(rows, packed, products, *numbers, types.boolean), generate

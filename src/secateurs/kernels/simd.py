"""Sixteen 32-bit lanes for numba: dot products of int8 vectors with the CPU's own instruction.

numba does not emit that instruction by itself. `multiply_add` is the CPU's instruction (AVX-512 VNNI) if there is one,
and otherwise the same arithmetic in vector operations that LLVM has for any CPU. Both are integer arithmetic, so the
result is the same to the last bit.

Vectors that are multiplied with many others are packed sixteen at a time, four dimensions to a lane, (count / 16,
dim / 4, 16, 4); the others are read in place, and a dword of them is copied to all lanes:

    lanes += splat of 4 dimensions of one vector  *  4 dimensions of sixteen packed vectors

The same with int16, two dimensions to a lane: `splat_pair` and `multiply_add_pairs`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.registry import cpu_target
from numba.extending import intrinsic, models, register_model
from numpy.typing import NDArray

LANES = 16
_FEATURES = cpu_target.target_context.codegen().magic_tuple()[2]  # of the CPU that numba compiles for
HAS_VNNI = "+avx512vnni" in _FEATURES
HAS_AVX2 = "+avx2" in _FEATURES and "+fma" in _FEATURES

_I8, _I16, _I32 = ir.IntType(8), ir.IntType(16), ir.IntType(32)
_VECTOR = ir.VectorType(_I32, LANES)

llvm.initialize_native_asmparser()  # for the two lines of assembly below


@cache
def _sources_digest(folder: Path) -> str:
    """Changes with any Python file of the folder."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.py")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


class KernelCache(FunctionCache):  # type: ignore[misc]
    """Compiled code on disk, valid as long as no file of this folder changes.

    numba's own cache looks at the file of the function only. A kernel also contains the code of the functions that it
    calls from other files, `multiply_add` for instance, so a change there would leave the old machine code in use.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self._cache_file = IndexDataCacheFile(
            cache_path=self._cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=(
                self._impl.locator.get_source_stamp(),
                _sources_digest(Path(function.__code__.co_filename).parent),
            ),
        )


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile once per machine if the result can be stored, else once per process."""
    dispatcher: Any = numba.njit(nogil=True)(function)
    with suppress(RuntimeError):  # no folder is writable
        dispatcher._cache = KernelCache(function)  # what numba.njit(cache=True) does, with its own cache
    kernel: Callable[..., Any] = dispatcher
    return kernel


def round_query(query: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Query embeddings as int8, each with a step of its own, and these steps."""
    reach = np.abs(query).max(axis=1, initial=1e-12).astype(np.float64)  # (query embeddings,)
    return np.rint(query * (127 / reach)[:, None]).astype(np.int8), reach / 127


def pack(vectors: NDArray[np.int8]) -> tuple[NDArray[np.int8], NDArray[np.int32]]:
    """int8 vectors in the order in which lanes are loaded, and where an accumulator for them starts.

    The instruction takes one side unsigned. `splat` adds 128 to that side, which adds 128 times the sum of the other
    side to the product; accumulators start below zero by just that. Zeros fill the last lanes and dimensions.
    """
    count, dim = vectors.shape
    padded = np.zeros((-(-count // LANES) * LANES, -(-dim // 4) * 4), dtype=np.int8)
    padded[:count, :dim] = vectors
    lanes = padded.reshape(len(padded) // LANES, LANES, padded.shape[1] // 4, 4).transpose(0, 2, 1, 3)
    return np.ascontiguousarray(lanes).reshape(-1), -128 * padded.sum(axis=1, dtype=np.int32)


class _Lanes(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="Lanes")


_lanes = _Lanes()


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def pointer_to(context: Any, builder: Any, target: Any, kind: Any, array: Any, offset: Any) -> Any:
    data = builder.bitcast(context.make_array(kind)(context, builder, array).data, _I8.as_pointer())
    return builder.bitcast(builder.gep(data, [offset]), target.as_pointer())


def _everywhere(builder: Any, value: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_VECTOR, [0] * LANES))


@intrinsic  # type: ignore[untyped-decorator]
def load(context: Any, array: Any, offset: Any) -> Any:
    """Sixteen int32, or 64 bytes, from a byte offset into an array."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(pointer_to(context, builder, _VECTOR, signature.args[0], *arguments), align=1)

    return _lanes(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def store(context: Any, array: Any, offset: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], pointer_to(context, builder, _VECTOR, signature.args[0], *arguments[:2]), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, _lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def fill(context: Any, value: Any) -> Any:
    """One int32 in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _everywhere(builder, arguments[0])

    return _lanes(types.int32), generate


@intrinsic  # type: ignore[untyped-decorator]
def splat(context: Any, array: Any, offset: Any) -> Any:
    """Four int8 from a byte offset, each with 128 added, in all lanes. uint8 have it added already."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if signature.args[0].dtype == types.uint8:
            four = builder.load(pointer_to(context, builder, _I32, signature.args[0], *arguments), align=1)
            return _everywhere(builder, four)
        # Copying to all lanes is part of the load here; LLVM would spend an instruction on it. LLVM does not know that
        # this line reads memory, so a kernel must not write the int8 that it splats.
        if HAS_VNNI:
            pointer = pointer_to(context, builder, _I8, signature.args[0], *arguments)
            flip = ir.Constant(_VECTOR, [0x80808080 - 2**32] * LANES)
            function = ir.FunctionType(_VECTOR, [pointer.type, _VECTOR])
            return builder.asm(function, "vpxord ($1){1to16}, $2, $0", "=v,r,v", [pointer, flip], False)
        four = builder.load(pointer_to(context, builder, _I32, signature.args[0], *arguments), align=1)
        return _everywhere(builder, builder.xor(four, ir.Constant(_I32, 0x80808080 - 2**32)))

    return _lanes(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def multiply_add(context: Any, lanes: Any, splatted: Any, packed: Any) -> Any:
    """In each lane, add the four products of unsigned splatted and signed packed bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return multiply_bytes(builder, *arguments)

    return _lanes(_lanes, _lanes, _lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def splat_pair(context: Any, array: Any, offset: Any) -> Any:
    """Two int16 from a byte offset, in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        two = builder.load(pointer_to(context, builder, _I32, signature.args[0], *arguments), align=1)
        return _everywhere(builder, two)

    return _lanes(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def multiply_add_pairs(context: Any, lanes: Any, splatted: Any, packed: Any) -> Any:
    """In each lane, add the two products of signed int16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return multiply_pairs(builder, *arguments)

    return _lanes(_lanes, _lanes, _lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def add_shifted(context: Any, lanes: Any, finer: Any, bits: Any) -> Any:
    """In each lane, add the finer one, shifted down by so many bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes, finer, bits = arguments
        return builder.add(lanes, builder.ashr(finer, _everywhere(builder, bits)))

    return _lanes(_lanes, _lanes, types.int32), generate


def multiply_bytes(builder: Any, lanes: Any, unsigned: Any, signed: Any) -> Any:
    """What `multiply_add` does, for code that writes instructions by itself."""
    if HAS_VNNI:
        function = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        return builder.asm(function, "vpdpbusd $3, $2, $0", "=v,0,v,v", [lanes, unsigned, signed], False)
    halves = ir.VectorType(_I16, 2 * LANES)
    byte = ir.Constant(halves, [8] * (2 * LANES))
    unsigned, signed = builder.bitcast(unsigned, halves), builder.bitcast(signed, halves)
    even = (
        builder.and_(unsigned, ir.Constant(halves, [255] * (2 * LANES))),
        builder.ashr(builder.shl(signed, byte), byte),
    )
    odd = builder.lshr(unsigned, byte), builder.ashr(signed, byte)
    for unsigned_halves, signed_halves in (even, odd):
        lanes = builder.add(lanes, _add_pairs(builder, unsigned_halves, signed_halves))
    return lanes


def multiply_pairs(builder: Any, lanes: Any, splatted: Any, packed: Any) -> Any:
    """What `multiply_add_pairs` does, for code that writes instructions by itself."""
    if HAS_VNNI:
        function = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
        return builder.asm(function, "vpdpwssd $3, $2, $0", "=v,0,v,v", [lanes, splatted, packed], False)
    halves = ir.VectorType(_I16, 2 * LANES)
    return builder.add(lanes, _add_pairs(builder, builder.bitcast(splatted, halves), builder.bitcast(packed, halves)))


def _add_pairs(builder: Any, unsigned: Any, signed: Any) -> Any:
    """Products of int16, neighbours added: LLVM emits x86's instruction for it (pmaddwd)."""
    wide = ir.VectorType(_I32, 2 * LANES)
    products = builder.mul(builder.sext(unsigned, wide), builder.sext(signed, wide))
    nothing = ir.Constant(wide, ir.Undefined)
    parts = [
        builder.shuffle_vector(products, nothing, ir.Constant(_VECTOR, list(range(first, 2 * LANES, 2))))
        for first in (0, 1)
    ]
    return builder.add(*parts)


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(context: Any, array: Any, offset: Any) -> Any:
    """Have the cache line at a byte offset brought near while other work is done."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = pointer_to(context, builder, _I8, signature.args[0], *arguments)
        name = "llvm.prefetch.p0" if "i8*" not in str(pointer.type) else "llvm.prefetch.p0i8"
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [pointer, ir.Constant(_I32, 0), ir.Constant(_I32, 3), ir.Constant(_I32, 1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def larger(context: Any, one: Any, other: Any) -> Any:
    """Lane by lane, the larger of two."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_signed(">", *arguments), *arguments)

    return _lanes(_lanes, _lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def where_larger(context: Any, one: Any, other: Any, yes: Any, no: Any) -> Any:
    """Lane by lane, `yes` where the first is larger than the second, else `no`."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.icmp_signed(">", *arguments[:2]), *arguments[2:])

    return _lanes(_lanes, _lanes, _lanes, _lanes), generate


@intrinsic  # type: ignore[untyped-decorator]
def any_larger(context: Any, one: Any, other: Any) -> Any:
    """Whether the first is larger than the second in any lane."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        mask = builder.bitcast(builder.icmp_signed(">", *arguments), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", mask, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(_lanes, _lanes), generate

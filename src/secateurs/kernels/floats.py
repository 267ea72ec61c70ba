"""Sixteen float32 lanes for numba, with `+`, `-`, `*`, and `fused` for a product that is added to something.

Loops over them do the same arithmetic in the same order on every CPU, whatever its vectors hold, so that the result is
the same to the last bit. `fused` rounds once. The compiler is not left to choose where to do so: it chooses differently
when it compiles a function again.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from .simd import LANES, pointer_to

_F32, _I8, _I32 = ir.FloatType(), ir.IntType(8), ir.IntType(32)
_VECTOR, _INTS = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)


class _Floats(types.Type):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(name="Floats")


_floats = _Floats()


@register_model(_Floats)
class _FloatsModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _define(operation: Any, instruction: str) -> None:
    @infer_global(operation)
    class _Template(ConcreteTemplate):  # type: ignore[misc]
        cases = [signature(_floats, _floats, _floats)]  # noqa: RUF012 (numba reads the attribute of the class)

    @lower_builtin(operation, _floats, _floats)  # type: ignore[untyped-decorator]
    def _lower(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return getattr(builder, instruction)(*arguments)


_define(operator.add, "fadd")
_define(operator.sub, "fsub")
_define(operator.mul, "fmul")


def _fma(builder: Any, a: Any, b: Any, c: Any) -> Any:
    name = f"llvm.fma.v{LANES}f32"
    kind = ir.FunctionType(_VECTOR, [_VECTOR] * 3)
    return builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), [a, b, c])


@intrinsic  # type: ignore[untyped-decorator]
def fused(context: Any, a: Any, b: Any, c: Any) -> Any:
    """a * b + c in each lane, rounded once."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _fma(builder, *arguments)

    return _floats(_floats, _floats, _floats), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_floats(context: Any, array: Any, first: Any) -> Any:
    """Sixteen float32 of an array from an element on, or sixteen int8, uint8 or int32 as float32."""
    element = {types.float32: _F32, types.int32: _I32, types.int8: _I8, types.uint8: _I8}[array.dtype]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = signature.args[0]
        size = kind.dtype.bitwidth // 8
        offset = builder.mul(arguments[1], ir.Constant(arguments[1].type, size))
        vector = ir.VectorType(element, LANES)
        lanes = builder.load(pointer_to(context, builder, vector, kind, arguments[0], offset), align=size)
        if kind.dtype == types.float32:
            return lanes
        return builder.uitofp(lanes, _VECTOR) if kind.dtype == types.uint8 else builder.sitofp(lanes, _VECTOR)

    return _floats(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_floats(context: Any, array: Any, first: Any, lanes: Any) -> Any:
    """Sixteen float32 to an array from an element on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        offset = builder.mul(arguments[1], ir.Constant(arguments[1].type, 4))
        pointer = pointer_to(context, builder, _VECTOR, signature.args[0], arguments[0], offset)
        builder.store(arguments[2], pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, _floats), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_bytes(context: Any, array: Any, first: Any, lanes: Any) -> Any:
    """Sixteen numbers between 0 and 255, rounded, to an array of uint8 or int16 from an element on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, first, lanes = arguments
        whole = builder.fptosi(builder.fadd(lanes, ir.Constant(_VECTOR, [0.5] * LANES)), _INTS)
        bits = signature.args[0].dtype.bitwidth
        vector = ir.VectorType(ir.IntType(bits), LANES)
        rounded = builder.trunc(whole, vector)
        offset = builder.mul(first, ir.Constant(first.type, bits // 8))
        builder.store(rounded, pointer_to(context, builder, vector, signature.args[0], array, offset), align=1)
        return context.get_dummy_value()

    return types.void(array, types.intp, _floats), generate


def _splat(builder: Any, value: Any) -> Any:
    nothing = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(nothing, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_INTS, [0] * LANES))


@intrinsic  # type: ignore[untyped-decorator]
def everywhere(context: Any, value: Any) -> Any:
    """A number in all lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _splat(builder, context.cast(builder, arguments[0], signature.args[0], types.float32))

    return _floats(value), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_everywhere(context: Any, array: Any, place: Any) -> Any:
    """An element of an array of float32 in all lanes. The place is not negative."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        offset = builder.mul(arguments[1], ir.Constant(arguments[1].type, 4))
        value = builder.load(pointer_to(context, builder, _F32, signature.args[0], arguments[0], offset), align=4)
        return _splat(builder, value)

    return _floats(array, types.intp), generate


@intrinsic  # type: ignore[untyped-decorator]
def smaller(context: Any, first: Any, second: Any) -> Any:
    """Lane by lane, the smaller of two."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _choose(builder, "<")(*arguments)

    return _floats(_floats, _floats), generate


@intrinsic  # type: ignore[untyped-decorator]
def larger(context: Any, first: Any, second: Any) -> Any:
    """Lane by lane, the larger of two."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _choose(builder, ">")(*arguments)

    return _floats(_floats, _floats), generate


def _over_halves(builder: Any, lanes: Any, combine: Any) -> Any:
    """A single number: the two halves of the lanes are combined, again and again."""
    width = LANES
    while width > 1:
        width //= 2
        halves = [
            builder.shuffle_vector(
                lanes, lanes, ir.Constant(ir.VectorType(_I32, width), list(range(start, start + width)))
            )
            for start in (0, width)
        ]
        lanes = combine(*halves)
    return builder.extract_element(lanes, ir.Constant(_I32, 0))


@intrinsic  # type: ignore[untyped-decorator]
def sum_of(context: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _over_halves(builder, arguments[0], builder.fadd)

    return types.float32(_floats), generate


def _choose(builder: Any, comparison: str) -> Any:
    """What `_over_halves` does with two halves: lane by lane, the first if it is so, else the second."""

    def choose(first: Any, second: Any) -> Any:
        return builder.select(builder.fcmp_ordered(comparison, first, second), first, second)

    return choose


@intrinsic  # type: ignore[untyped-decorator]
def smallest_of(context: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _over_halves(builder, arguments[0], _choose(builder, "<"))

    return types.float32(_floats), generate


@intrinsic  # type: ignore[untyped-decorator]
def largest_of(context: Any, lanes: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _over_halves(builder, arguments[0], _choose(builder, ">"))

    return types.float32(_floats), generate


@intrinsic  # type: ignore[untyped-decorator]
def two_to_the(context: Any, lanes: Any) -> Any:
    """2 ** x in each lane, for x between -126 and 127: exact for whole x, otherwise to 5e-6 of the result."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def constant(value: float) -> Any:
            return ir.Constant(_VECTOR, [value] * LANES)

        shifted = builder.fadd(arguments[0], constant(127.0))  # above zero, so the whole part is that below
        whole = builder.fptosi(shifted, _INTS)
        rest = builder.fsub(shifted, builder.sitofp(whole, _VECTOR))
        power = constant(_POWERS[0])
        for coefficient in _POWERS[1:]:
            power = _fma(builder, power, rest, constant(coefficient))
        exponent = builder.bitcast(builder.shl(whole, ir.Constant(_INTS, [23] * LANES)), _VECTOR)
        return builder.fmul(power, exponent)

    return _floats(_floats), generate


# A polynomial for 2 ** x between 0 and 1, highest power first, by least squares; it is 1 at 0 and 2 at 1.
_POWERS = (0.00187794125, 0.00899391646, 0.0558167208, 0.240159691, 0.69315173, 1.0)

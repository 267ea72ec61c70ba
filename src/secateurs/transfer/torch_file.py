"""The tensors of a .pt file as arrays, without torch.

torch.save has written zip archives since torch 1.6: `data.pkl`, a pickle that says what is saved, and the bytes of each
tensor in `data/0`, `data/1`, .... Unpickling can run code: this reader knows the few names that tensors need, and
refuses every other.
"""

from __future__ import annotations

import math
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import SecateursError

_PICKLE, _BYTE_ORDER = "data.pkl", "byteorder"
_TYPES = {
    "HalfStorage": "<f2",
    "FloatStorage": "<f4",
    "DoubleStorage": "<f8",
    "ByteStorage": "|u1",
    "ShortStorage": "<i2",
    "IntStorage": "<i4",
    "LongStorage": "<i8",
}


def read_torch_file(path: Path) -> Any:
    """A tensor, or a tuple or list of them; its tensors are arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            within = next((name[: -len(_PICKLE)] for name in archive.namelist() if name.endswith(f"/{_PICKLE}")), None)
            if within is None:
                raise ValueError(f"it has no {_PICKLE}")
            names = archive.namelist()
            if within + _BYTE_ORDER in names and archive.read(_stored(archive, within + _BYTE_ORDER)) != b"little":
                raise ValueError("its numbers have another byte order")
            with archive.open(_stored(archive, within + _PICKLE)) as file:
                return _Unpickler(file, archive, within).load()
    except SecateursError as error:
        raise SecateursError(f"{path}: {error}") from error
    # What a pickle that nobody wrote by torch.save can raise is no short list.
    except Exception as error:
        raise SecateursError(f"{path} is not a file of tensors as torch.save writes it ({error})") from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, archive: zipfile.ZipFile, within: str) -> None:
        super().__init__(file)
        self._archive, self._within = archive, within

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _Tensor()
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch" and name in _TYPES:
            return np.dtype(_TYPES[name])
        raise SecateursError(f"it holds {module}.{name}, and only tensors are read")

    def persistent_load(self, pid: Any) -> NDArray[Any]:
        """The bytes of a tensor."""
        kind, dtype, key, _, count = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or not str(key).isdigit():
            raise ValueError("a tensor is described in another way")
        member = _stored(self._archive, f"{self._within}data/{key}")
        array: NDArray[Any] = np.frombuffer(self._archive.read(member), dtype)
        if len(array) != count:
            raise ValueError("a tensor is cut short")
        return array


def _stored(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    """A member that is not compressed: torch compresses nothing, and what unfolds could be endless."""
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed")
    return member


class _Tensor:
    """Has no attributes that a pickle could set."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return _tensor(*arguments)


def _tensor(storage: NDArray[Any], offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any) -> Any:
    """Row after row. Other strides could point outside of the bytes, and PLAID's tensors have none."""
    expected = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    size = math.prod(shape)
    used = [(stride, other) for stride, other, length in zip(strides, expected, shape, strict=True) if length > 1]
    if any(stride != other for stride, other in used):
        raise ValueError("a tensor is not contiguous: save  tensor.contiguous()")
    if min((offset, *shape)) < 0 or offset + size > len(storage):
        raise ValueError("a tensor is cut short")
    return storage[offset : offset + size].reshape(shape)

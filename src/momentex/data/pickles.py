"""Arrays out of pickles from elsewhere, without running what is in them.

A pickle is a program: whatever it names is imported and called. The official CIFAR pickles name four things of numpy;
here these names stand for small values of our own, which keep shape and bytes, and every other name is refused. Nothing
that a pickle names is ever imported, numpy neither.
"""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Callable
from math import prod
from typing import Any

from momentex.errors import DataError


class StoredArray:
    """A uint8 array as a pickle holds it: its shape, and its bytes in row-major order."""

    __slots__ = ("raw", "shape")

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = (0,)
        self.raw: bytes = b""

    def __setstate__(self, state: object) -> None:
        match state:
            case (int(), tuple(shape), _Uint8(), fortran, bytes(raw)) if not fortran or len(shape) < 2:
                if all(type(n) is int and n >= 0 for n in shape) and prod(shape) == len(raw):
                    self.shape, self.raw = shape, raw
                    return
        raise DataError("an array in it is not one of bytes with as many as its shape says")


class _Uint8:
    """numpy's dtype of bytes. What it is told afterwards (byte order, fields) changes nothing about bytes."""

    __slots__ = ()

    def __setstate__(self, state: object) -> None:
        pass


class _Name:
    """What a name in a pickle stands for: it can be called, and nothing else."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., object]) -> None:
        self._call = call

    def __call__(self, *arguments: object) -> object:
        return self._call(*arguments)

    def __setstate__(self, state: object) -> None:
        raise DataError("it tries to change a function")


def _array(*_arguments: object) -> StoredArray:
    return StoredArray()  # empty, as numpy's own; its state follows


def _dtype(code: object = None, *_flags: object) -> _Uint8:
    if code not in ("u1", b"u1"):
        raise DataError(f"an array in it has the dtype {code!r:.40}; only 'u1', bytes, is known")
    return _Uint8()


def _ndarray(*_arguments: object) -> object:
    raise DataError("it calls numpy.ndarray")


def _encode(text: object = None, encoding: object = None, *_errors: object) -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise DataError("it encodes something else than text in latin1")
    return text.encode("latin1")


_NAMES: dict[tuple[str, str], Callable[..., object]] = {
    ("numpy.core.multiarray", "_reconstruct"): _array,
    ("numpy._core.multiarray", "_reconstruct"): _array,  # its address since numpy 2
    ("numpy", "ndarray"): _ndarray,
    ("numpy", "dtype"): _dtype,
    ("_codecs", "encode"): _encode,
}

_BROKEN = (
    pickle.UnpicklingError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
    struct.error,
)


class _Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) not in _NAMES:
            raise DataError(f"it names {module}.{name}, which no pickle of CIFAR needs, and was not run")
        return _Name(_NAMES[module, name])


def loads(raw: bytes, where: str) -> Any:
    """What the pickle `raw` holds. Arrays come as StoredArray, texts of Python 2 as bytes; `where` is for the errors.

    >>> loads(pickle.dumps({"labels": [3, 5]}, protocol=2), "data_batch_1")
    {'labels': [3, 5]}
    >>> loads(pickle.dumps(print), "data_batch_1")
    Traceback (most recent call last):
    momentex.errors.DataError: data_batch_1 is refused: it names builtins.print, which no pickle of CIFAR needs, ...
    """
    try:
        return _Restricted(io.BytesIO(raw), encoding="bytes").load()
    except DataError as refused:
        raise DataError(f"{where} is refused: {refused}. Take the official file.") from None
    except _BROKEN as broken:
        raise DataError(
            f"{where} is no whole pickle ({type(broken).__name__}: {broken}). Take the official file."
        ) from None

"""Copy bytes, and ask for them ahead, compiled; see `headrace.server.kernels.compiled`."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

PAST_BYTES = 4 << 20
"""What is written at once and is longer goes past the caches, where it would drive out what is
needed, and be read before it is written: 16 MiB of 64 KiB each take 1.8 ms for 3.0 (one thread)."""

LONG_BYTES = 4 << 10
"""Only pieces so long: their ends are copied as usual."""

_LINE = 64
_MOST_LINES = 16  # of one row that are asked for ahead; of longer ones the processor notices


def _address(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    """Return a pointer to an item of an array of a kind."""
    return builder.gep(context.make_array(kind)(context, builder, array).data, [index])


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def pointer(typing: Any, address: Any) -> Any:
    """Return an address as a pointer."""
    del typing

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return nb.types.voidptr(address), build


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def copy(typing: Any, target: Any, to: Any, source: Any, at: Any, size: Any) -> Any:  # noqa: PLR0917 - as Numba calls it
    """Copy ``size`` bytes: what C calls memcpy."""
    del typing

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out, begin, found, first, length = values
        place = _address(context, builder, signature.args[0], out, begin)
        of = _address(context, builder, signature.args[2], found, first)
        cgutils.raw_memcpy(builder, place, of, length, 1)
        return context.get_dummy_value()

    return nb.void(target, to, source, at, size), build


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def fetch(typing: Any, source: Any, at: Any) -> Any:
    """Ask for the cache line of one byte."""
    del typing

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        place = builder.bitcast(_address(context, builder, signature.args[0], *values), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # Into the second cache: of requests by the first there are few, and 160-byte rows came in
        # 65 us instead of 92 (4,096 of them).
        builder.call(function, [place, word(0), word(2), word(1)])
        return context.get_dummy_value()

    return nb.void(source, at), build


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # as above
def fetch_all(memory: NDArray[np.uint8], begin: int, size: int) -> None:
    """Ask for the first lines of some bytes."""
    for line in range(begin & -_LINE, begin + min(size, _MOST_LINES * _LINE), _LINE):
        fetch(memory, line)


@nb.njit  # type: ignore[untyped-decorator]  # as above
def fetch_spans(
    memory: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64]
) -> bool:
    """Ask for the first lines of several spans; return whether all lie in the memory."""
    for i in range(begins.size):
        # Nothing is added that could pass the greatest number.
        if lengths[i] < 0 or begins[i] < 0 or begins[i] > memory.size - lengths[i]:
            return False
        fetch_all(memory, begins[i], lengths[i])
    return True


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def _store_past(typing: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """Copy one line past the caches; it begins at a multiple of its size where it goes."""
    del typing

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        out, begin, found, first = values
        line = ir.VectorType(ir.IntType(64), _LINE // 8).as_pointer()
        place = builder.bitcast(_address(context, builder, signature.args[0], out, begin), line)
        of = builder.bitcast(_address(context, builder, signature.args[2], found, first), line)
        store = builder.store(builder.load(of, align=1), place, align=_LINE)
        one = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        store.set_metadata("nontemporal", one)
        return context.get_dummy_value()

    return nb.void(target, to, source, at), build


@intrinsic  # type: ignore[untyped-decorator]  # Numba has no types
def end_copies_past(typing: Any) -> Any:
    """Let nothing that is written later be seen before what was copied past the caches."""
    del typing

    def build(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature, values
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return nb.void(), build


@nb.njit(inline="always")  # type: ignore[untyped-decorator]  # Numba has no types
def copy_past(
    out: NDArray[np.uint8], to: int, source: NDArray[np.uint8], at: int, size: int
) -> None:
    """Copy ``size`` bytes past the caches; `end_copies_past` when all is copied."""
    head = min(size, -(out.ctypes.data + to) % _LINE)
    end = head + (size - head) // _LINE * _LINE
    copy(out, to, source, at, head)
    for done in range(head, end, _LINE):
        _store_past(out, to + done, source, at + done)
    copy(out, to + end, source, at + end, size - end)

"""A batch as the training loop sees it."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, MutableMapping, ValuesView
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import torch
from numpy.typing import NDArray
from torch.utils.data._utils.collate import default_collate_fn_map

from headrace.client.batch.adapters import Value, jax_arrays, numpy_arrays
from headrace.client.batch.columns import BytesColumn, RaggedColumn, StringColumn
from headrace.client.batch.handover import Origin, note_look
from headrace.client.batch.kinds import ColumnsOfKind, described
from headrace.client.device.device_ring import MovedEvent
from headrace.client.wire.assembler import BatchEvent, PartsEvent
from headrace.client.wire.column_spans import (
    ColumnSpan,
    array_tensor,
    span_of,
    tensor_of,
    view_of,
)
from headrace.client.wire.payload_layout import ColumnView
from headrace.errors import BadArgumentError, ConfigurationError
from headrace.payload import SAMPLE_ID_COLUMN
from headrace.v1 import shard_service_pb2 as pb

_TENSOR = pb.COLUMN_KIND_TENSOR
_LAZY: dict[int, type[BytesColumn | StringColumn | RaggedColumn]] = {
    pb.COLUMN_KIND_STRING: StringColumn,
    pb.COLUMN_KIND_BYTES: BytesColumn,
    pb.COLUMN_KIND_RAGGED: RaggedColumn,
}
_tensor = array_tensor
# The parts of a batch that are made on first access, apart from the header's fields.
_LATER = frozenset({"_made", "sample_ids", "_columns", "_payload"})


def damaged_ids_of(
    header: pb.BatchHeader,
) -> tuple[int, ...] | tuple[tuple[int, int], ...]:
    """Return the damaged samples of a batch, which others stand in for."""
    if header.damaged_dataset_indices:
        return tuple(zip(header.damaged_dataset_indices, header.damaged_sample_ids, strict=True))
    return tuple(header.damaged_sample_ids)


class Batch(MutableMapping[str, Any]):
    """The samples of one rank at one step: a mapping from column name to its values.

    Columns of numbers are tensors ``(samples, *shape)`` in the dtype they were stored in; strings,
    bytes and ragged columns are lazy sequences. ``batch["x"]`` is a column of any kind, which type
    checkers take for a tensor; `texts`, `blobs` and `ragged` have the other kinds with their types.
    A column that may hold nulls has a second entry ``name.valid``, ``(samples,) bool``. The memory
    is writable, belongs to the batch and its tensors, and no later batch changes it. With
    ``device=``, all tensors are on the device; strings and bytes stay on the CPU.

    Attributes:
        epoch: The epoch, from 0.
        step: Global batches since the start of the run before this one.
        position: Samples of the epoch before this global batch, over all ranks.
        sample_count: Samples of this rank, including pads.
        global_sample_count: Samples over all ranks, without pads; replicas count once.
        loss_scale: Factor that makes the mean over ranks of ``loss.mean() * loss_scale`` the mean
            over the global batch, also where ranks have unequal shares. Not for ranks without
            samples, whose mean is NaN, nor for means that count pads: see ``sum_scale``.
        sum_scale: Factor that makes the mean over ranks of ``losses.sum() * sum_scale`` the mean
            over the global batch; the same on every rank. The sum over no samples is 0, so this
            works for all batches.
        token: The resume token after this batch; the same on every rank.
        sample_ids: ``(samples,) int64``, or None without ``with_ids``. Pairs for a mixture,
            ``(samples, 2)``.
        substitute_count: Rows that stand in for skipped samples.
        damaged_ids: Samples whose image cannot be decoded and that other rows stand in for
            (``on_error="skip"``); for a mixture, pairs of a dataset's index and an id in it.
    """

    epoch: int
    step: int
    position: int
    sample_count: int
    global_sample_count: int
    loss_scale: float
    sum_scale: float
    token: bytes
    sample_ids: torch.Tensor | None
    substitute_count: int
    damaged_ids: tuple[int, ...] | tuple[tuple[int, int], ...]
    _event: BatchEvent
    _group_count: int
    _pad_count: int
    _device: torch.device | None = None
    _origin: Origin | None = None
    _values: dict[str, Value] | None = None
    _packed: _PickledBatch | None = None
    _is_rebuilt: bool = False

    def __init__(self, values: Mapping[str, Value]) -> None:
        """Make a batch of columns alone, as frameworks do that rebuild each mapping they are given.

        It has no place in the order, so ``step``, ``token`` and the like are missing.

        Args:
            values: The columns' values.
        """
        self._is_rebuilt = True
        self._values = self._made = dict(values)
        self.sample_ids = None

    @classmethod
    def received(cls, event: BatchEvent, *, group_count: int, origin: Origin | None = None) -> Self:
        """Return a batch that the assembler made.

        Args:
            event: The batch; its memory passes to this object.
            group_count: The number of ranks with samples of their own.
            origin: Where to report to in the main process, if this is a worker.
        """
        batch = cls.__new__(cls)
        there = batch.__dict__
        there["_event"], there["_group_count"] = event, group_count
        there["sample_count"] = event.sample_count
        if origin is not None:
            there["_origin"] = origin
        if isinstance(event, MovedEvent):
            there.update(_moved(event))
        return batch

    def _read_header(self) -> None:
        # Few loops use most of this, so it is read on first access.
        header = self._event.header
        self.epoch = header.epoch
        self.step = header.step
        self.position = header.position
        self.global_sample_count = header.global_sample_count
        self.token = header.resume_token
        self.substitute_count = header.substitute_count
        self.damaged_ids = damaged_ids_of(header)
        self._pad_count = header.pad_count
        own = header.sample_count - header.pad_count
        self.sum_scale = self._group_count / max(1, header.global_sample_count)
        self.loss_scale = own * self._group_count / max(1, header.global_sample_count)

    @property
    def is_pad(self) -> torch.Tensor:
        """``(samples,) bool``: true where a sample only pads the batch (``end="pad"``)."""
        places = torch.arange(self.sample_count, device=self._device)
        return places >= self.sample_count - self._pad_count

    def _take_columns(self, columns: dict[str, ColumnView]) -> None:
        self._columns = columns
        made: dict[str, Value] = {}
        self.sample_ids = None
        for name, view in columns.items():
            if name == SAMPLE_ID_COLUMN:
                self.sample_ids = torch.from_numpy(view.values)
                continue
            is_tensor = view.kind == _TENSOR
            made[name] = _tensor(view.values) if is_tensor else _LAZY[view.kind](view)
            if view.valid is not None:
                made[f"{name}.valid"] = torch.from_numpy(view.valid)
        self._made = self._values = made

    def _take_parts(self, event: PartsEvent) -> None:
        form = event.form
        made: dict[str, Any] = {}
        for part in form.entries:
            name, kind = part[0], part[1]
            if kind == _TENSOR:
                made[name] = _tensor(event.array(part))
            else:
                made[name] = _LAZY[kind].later(event, name, form.sample_count)
        self.sample_ids = made.pop(SAMPLE_ID_COLUMN) if form.has_ids else None
        self._made = self._values = made

    def __copy__(self) -> Self:
        """Return a batch with the same values; changes to it do not affect this one."""
        clone = self.__class__.__new__(self.__class__)
        self._open()
        clone.__dict__.update(self.__dict__)
        return clone

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[object]]:
        """Pickle as one tensor; the receiver makes the columns as views of it."""
        if self._is_rebuilt:
            return Batch, (dict(self),)
        return _unpack, (self._pack(),)

    def _pack(self) -> _PickledBatch:
        self._open()
        if self._device is not None:
            raise BadArgumentError(
                f"a batch on {self._device} cannot be pickled; expected a dataset without device= "
                "where batches are sent between processes",
                field="device",
            )
        apart = {"_columns", "_payload", "_made", "_values", "_event", "sample_ids"}
        values = self._look()
        return _PickledBatch(
            fields={k: v for k, v in self.__dict__.items() if k not in apart},
            payload=torch.from_numpy(self._payload),
            spans={k: span_of(view, self._payload) for k, view in self._columns.items()},
            names=tuple(values),
            changed={k: v for k, v in values.items() if self._made.get(k) is not v},
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Called only for missing attributes: the header's fields and the columns before their
            # first use, and all attributes of a batch from a worker.
            there = self.__dict__
            if "_packed" in there:
                self._open()
            elif self._is_rebuilt and not name.startswith("_"):
                raise AttributeError(
                    f"this batch has no {name!r}, since it was made of another batch's columns "
                    f"({', '.join(self)}), as Trainer does with mappings; use {name!r} before "
                    "that, in collate_fn= or transform=, and pass it on as a value of its own"
                )
            elif "_event" not in there or (name not in _LATER and "epoch" in there):
                raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
            elif name in ("_made", "sample_ids"):
                self._look()
            elif name == "_columns":
                self._columns = self._event.columns
            elif name == "_payload":
                self._payload = self._event.payload
            else:
                self._read_header()
            return getattr(self, name)

    def _look(self) -> dict[str, Value]:
        """Return the values, which are made on first access."""
        if self._values is None:
            if self._packed is not None:
                self._open()
            elif isinstance(self._event, PartsEvent):
                self._take_parts(self._event)
            else:
                self._take_columns(self._event.columns)
        assert self._values is not None
        return self._values

    def _open(self) -> None:
        packed = self._packed
        if packed is None:
            if "epoch" not in self.__dict__ and not self._is_rebuilt:
                self._read_header()
            if self._values is None:
                self._look()
            return
        self.__dict__.update(packed.fields)
        payload = self._payload = packed.payload.numpy()
        self._take_columns({name: view_of(span, payload) for name, span in packed.spans.items()})
        whole = {**self._made, **packed.changed}
        self._values = {name: whole[name] for name in packed.names}
        self.__dict__.pop("_packed", None)
        if self._origin is not None:
            note_look(self._origin, self.token)

    def to(self, device: str | torch.device, *, non_blocking: bool = False) -> Self:
        """Return the batch with its tensors on a device; strings and bytes stay on the CPU.

        ``RemoteDataset(device=...)`` is faster: it copies ahead of the loop, from pinned memory.

        Args:
            device: The device, such as ``"cuda"``. Tensors that are already there are not copied.
            non_blocking: Whether copies out of pinned memory may still run on return.

        Raises:
            BadArgumentError: There is no such kind of device.
        """
        try:
            device = torch.device(device)
        except RuntimeError as error:
            raise BadArgumentError(
                f"device is {str(device)!r}; expected one of torch's, such as 'cuda', 'cuda:0' or "
                "'cpu'",
                field="device",
            ) from error
        ids = self.sample_ids
        moved = copy(self)
        moved.__dict__.update(
            _values={
                name: value.to(device, non_blocking=non_blocking)
                if isinstance(value, torch.Tensor | RaggedColumn)
                else value
                for name, value in self._look().items()
            },
            sample_ids=None if ids is None else ids.to(device, non_blocking=non_blocking),
            _device=device,
        )
        return moved

    def pin_memory(self) -> Self:
        """Return the batch in pinned memory, for ``DataLoader(pin_memory=True)``.

        Raises:
            ConfigurationError: This process sees no device to copy to.
        """
        try:
            return self._pinned()
        except RuntimeError as error:
            raise ConfigurationError(
                f"the batch cannot be pinned ({error}); pinned memory is for copies to a device: "
                "leave pin_memory() out if there is no device"
            ) from error

    def _pinned(self) -> Self:
        if self._is_rebuilt:
            return self.__class__(_pinned_tensors(self))
        packed = self._packed or self._pack()
        pinned = self.__class__.__new__(self.__class__)
        pinned.__dict__["_packed"] = replace(
            packed, payload=packed.payload.pin_memory(), changed=_pinned_tensors(packed.changed)
        )
        return pinned

    def to_numpy(self) -> dict[str, NDArray[Any]]:
        """Return the columns as arrays, on the CPU.

        Tensors share their memory with the arrays; strings, bytes and ragged rows are decoded into
        object arrays, with None for null.
        """
        return numpy_arrays(self)

    def to_jax(self) -> dict[str, Any]:
        """Return the columns as JAX arrays where they are tensors, over dlpack.

        JAX copies tensors on the CPU that do not start at a multiple of 64 bytes.
        Strings, bytes and ragged columns stay as they are; ``values`` and ``offsets`` of a ragged
        column are tensors. With JAX's default of 32 bits, float64 becomes float32.

        Raises:
            ConfigurationError: JAX is not installed.
            BadArgumentError: An integer needs 64 bits, and JAX is set to 32.
        """
        return jax_arrays(self)

    @property
    def texts(self) -> ColumnsOfKind[StringColumn]:
        """The columns of strings: ``batch.texts["name"]`` is ``batch["name"]``, with its type."""
        return ColumnsOfKind(self._look(), StringColumn)

    @property
    def blobs(self) -> ColumnsOfKind[BytesColumn]:
        """The columns of bytes."""
        return ColumnsOfKind(self._look(), BytesColumn)

    @property
    def ragged(self) -> ColumnsOfKind[RaggedColumn]:
        """The columns of arrays of differing length."""
        return ColumnsOfKind(self._look(), RaggedColumn)

    def __getitem__(self, column: str) -> torch.Tensor:
        values = self._values or self._look()
        try:
            # Most columns are tensors, and a loop should not have to say so.
            return cast("torch.Tensor", values[column])
        except KeyError:
            known = ", ".join(map(str, values))
            raise KeyError(f"there is no column {column!r}; the batch has {known}") from None

    def __setitem__(self, column: str, value: Value) -> None:
        self._values = {**self._look(), column: value}

    def __delitem__(self, column: str) -> None:
        self._values = {name: value for name, value in self._look().items() if name != column}

    def __iter__(self) -> Iterator[str]:
        return iter(self._values or self._look())

    def values(self) -> ValuesView[Value]:
        """Return the columns' values."""
        return (self._values or self._look()).values()

    def items(self) -> ItemsView[str, Value]:
        """Return the columns' names and values."""
        return (self._values or self._look()).items()

    def __len__(self) -> int:
        return len(self._values or self._look())

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {described(value)}" for name, value in self.items())
        if self._is_rebuilt:
            return f"Batch({columns})"
        return (
            f"Batch(epoch={self.epoch}, step={self.step}, position={self.position}, "
            f"samples={self.sample_count}, {columns})"
        )


@dataclass(frozen=True, slots=True)
class _PickledBatch:
    """A batch on its way between processes."""

    fields: dict[str, object]
    payload: torch.Tensor
    spans: dict[str, ColumnSpan]
    names: tuple[str, ...]
    changed: dict[str, Value]


def _unpack(packed: _PickledBatch) -> Batch:
    batch = Batch.__new__(Batch)
    batch.__dict__["_packed"] = packed
    return batch


def _pinned_tensors(values: Mapping[str, Value]) -> dict[str, Value]:
    return {
        name: value.pin_memory() if isinstance(value, torch.Tensor) else value
        for name, value in values.items()
    }


def _moved(event: MovedEvent) -> dict[str, object]:
    """Hand over a batch on a device; return its attributes."""
    event.copy.hand_over()
    target = event.copy.target
    spans = dict(event.spans)
    ids = spans.pop(SAMPLE_ID_COLUMN, None)
    made: dict[str, Value] = {}
    for name, span in spans.items():
        made[name] = _moved_value(span, event.columns[name], target)
        if span.valid is not None:
            made[f"{name}.valid"] = tensor_of(span.valid, target)
    return {
        "_device": target.device,
        "sample_ids": None if ids is None else tensor_of(ids.values, target),
        "_made": made,
        "_values": made,
    }


def _moved_value(span: ColumnSpan, kept: ColumnView, target: torch.Tensor) -> Value:
    if span.kind == pb.COLUMN_KIND_RAGGED:
        assert span.offsets is not None
        return RaggedColumn(
            kept, moved=(tensor_of(span.values, target), tensor_of(span.offsets, target))
        )
    return tensor_of(span.values, target) if span.kind == _TENSOR else _LAZY[span.kind](kept)


def _refuse_collate(batch: object, *, collate_fn_map: object = None) -> NoReturn:
    del collate_fn_map
    wanted = len(batch) if isinstance(batch, list) else "n"
    raise BadArgumentError(
        f"a DataLoader with batch_size={wanted} would make batches of batches; the server already "
        "makes batches: use DataLoader(dataset, batch_size=None), or iterate the dataset itself",
        field="batch_size",
    )


# The documented way to extend torch's default_collate.
default_collate_fn_map[Batch] = _refuse_collate

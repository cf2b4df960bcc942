"""The stages that are installed, and what requests may say to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest
from google.protobuf import any_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from headrace.errors import BadArgumentError
from headrace.server import ServerConfig
from headrace.server.access.callers import ANYBODY
from headrace.server.datasets.member import Member
from headrace.server.stream.order_plugs import Asker
from headrace.server.stream.stage_plugs import open_stages
from headrace.server.telemetry.metrics import Metrics
from headrace.v1 import columns_pb2 as columns_pb
from headrace.v1 import shard_service_pb2 as pb
from headrace.v1.stages import packed
from support.asking import order_stages

_STAGES = open_stages(ServerConfig(datasets={"d": "/d"}), Metrics())
_KINDS: dict[type[Message], Mapping[str, int]] = {
    **{kind.options: kind.limits for kind in _STAGES.kinds.values()},
    **{plug.options: plug.limits for plug in _STAGES.order_kinds.values() if plug.options},
}
_LIMITS = {name: (kind, most) for kind, own in _KINDS.items() for name, most in own.items()}


def _lists(kind: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the lists of a message and of those in it, by message and field, and their paths."""
    nothing = GetMessageClass(kind)()
    for field in kind.fields:
        value = getattr(nothing, field.name)
        if hasattr(value, "__len__") and not isinstance(value, str | bytes):
            yield f"{kind.name}.{field.name}", (*path, field.name)
        if field.message_type is not None:
            yield from _lists(field.message_type, (*path, field.name))


def test_every_list_of_every_stage_has_a_limit() -> None:
    """A field that is added without one is found here; so is a limit of nothing."""
    for kind, limits in _KINDS.items():
        assert set(limits) == {name for name, _ in _lists(cast("Descriptor", kind.DESCRIPTOR))}


@pytest.mark.parametrize("name", _LIMITS)
def test_one_more_than_the_limit_is_refused(name: str) -> None:
    """As many as the limit are not; the error says what there may be."""
    kind, most = _LIMITS[name]
    path = next(path for each, path in _lists(cast("Descriptor", kind.DESCRIPTOR)) if each == name)
    _take(_with(kind, path, most))

    with pytest.raises(BadArgumentError, match=f"it must have at most {most}") as caught:
        _take(_with(kind, path, most + 1))
    assert path[-1] == caught.value.metadata["field"]


def _take(*stages: any_pb2.Any) -> None:
    request = pb.ReadBatchesRequest(stages=stages)
    _STAGES.of_batches(request)
    _STAGES.asked(request.stages)


def _with(kind: type[Message], path: tuple[str, ...], count: int) -> any_pb2.Any:
    """Return a stage with a given number of elements in the list at a path."""
    options: Any = kind()
    at = options
    for name in path[:-1]:
        inner = getattr(at, name)
        at = inner.add() if hasattr(inner, "add") else inner
    values = getattr(at, path[-1])
    for _ in range(count):
        if hasattr(values, "add"):
            values.add()
        else:
            is_text = at.DESCRIPTOR.fields_by_name[path[-1]].type == 9
            values.append("a" if is_text else 1)
    return packed(options)


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        (any_pb2.Any(), r"stages\[0\] is a message without a type"),
        (packed(pb.OrderSpec()), r"stages\[0\] is a headrace.v1.OrderSpec, which this server does"),
        (any_pb2.Any(type_url="a/headrace.v1.Cast", value=b"\xff"), "cast, cannot be parsed"),
        (any_pb2.Any(type_url="a/headrace.v1.Skip", value=b"\xff"), "skips, cannot be parsed"),
    ],
)
def test_what_is_no_stage_is_refused(stage: any_pb2.Any, message: str) -> None:
    """By its place and its type."""
    with pytest.raises(BadArgumentError, match=message):
        _take(stage)


def test_stages_of_the_order_move_no_stage_of_a_batch() -> None:
    """Random numbers of images depend on its place, and must not on what is filtered or dealt."""
    cast_ = packed(columns_pb.Cast(column="x", element_type=pb.ELEMENT_TYPE_INT8))
    stages = [*order_stages(where="x < 3"), cast_, *order_stages(buckets=4), cast_]

    assert [0, 1] == [each.place for each in _STAGES.asked(stages)]


def test_a_stage_of_the_order_comes_once() -> None:
    """Of two filters one would be left out in silence."""
    with pytest.raises(BadArgumentError, match=r"stages\[1\], filter, is there twice"):
        _take(*order_stages(where="x < 3"), *order_stages(where="x > 1"))


@pytest.mark.parametrize(
    "stages",
    [order_stages(buckets=4), [*order_stages(where="x < 3"), *order_stages(buckets=4)]],
)
def test_only_what_narrows_chooses_from_a_dataset(stages: list[any_pb2.Any]) -> None:
    """In a mixture, and where a dataset is described; nothing else is left out in silence."""
    with pytest.raises(BadArgumentError, match="not all of them choose"):
        _STAGES.narrowed(cast("Member", _Named()), stages, Asker(ANYBODY, 0))


class _Named:
    name = "d"

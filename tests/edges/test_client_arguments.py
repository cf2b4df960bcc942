"""Every argument is checked for type and range, by a message that says what to pass."""

from __future__ import annotations

import inspect
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.client import (
    Access,
    BatchLoader,
    Boxes,
    Cast,
    CenterCrop,
    ColorJitter,
    Deadlines,
    Deal,
    DecodeImage,
    Hedge,
    Mixture,
    MixtureEntry,
    MixUp,
    Normalize,
    NumpyDataset,
    OneHot,
    Order,
    Pad,
    PrivateServer,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RemoteDataset,
    Resize,
    Selection,
    Sharding,
    Stack,
    TlsConfig,
    Tokenize,
    Transform,
    Transport,
    read_mixture,
    tf_dataset,
)
from headrace.client.options.addresses import addresses_of
from headrace.client.state.subject import OneDataset
from headrace.errors import (
    BadArgumentError,
    CallerError,
    HeadraceError,
    TokenMalformedError,
)
from headrace.storage import open_store


class _Odd:
    """An object that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError


def _junk() -> list[Any]:
    return [
        *(None, True, False, -1, 0, 1, 2.5, 32.0, float("nan"), float("inf"), 1 << 62, 1 << 70),
        *("", "32", "no", "ftp://h/x", b"", b"x", _Odd(), _Odd, len, 1j),
        *([], [1], ["a", 3], ["a"], (), {}, {"a": 1}, {1: "a"}, {"a"}, range(3)),
        *(map(str, [1, 2]), np.arange(3), np.array(["a"]), np.float32(3), torch.zeros(2)),
    ]


def _remote(**given: Any) -> None:
    arguments = {"target": "h:1", "dataset": "d", "batch_size": 4, **given}
    dataset = RemoteDataset(**arguments)
    dataset._reading.known_global_batch_size()
    dataset._options(dataset._progress.place).to_request(epoch=0, position=0, token=None)


def _numpy(**given: Any) -> None:
    dataset = NumpyDataset(**{"target": "h:1", "dataset": "d", "batch_size": 4, **given})
    dataset._options.to_request(epoch=0, position=0, token=None)


def _selection(**given: Any) -> None:
    _remote(dataset=Selection(**{"name": "d", **given}))


def _sharding(**given: Any) -> None:
    size = {} if "global_batch_size" in given else {"batch_size": 4}
    _remote(**{"batch_size": None, **size}, sharding=Sharding(**given))


def _loader(**given: Any) -> None:
    BatchLoader(**{"dataset": RemoteDataset("h:1", "d"), "num_workers": 1, **given})


def _entry(**given: Any) -> None:
    Mixture((MixtureEntry(**{"name": "a", **given}),)).to_message()


def _mixture(**given: Any) -> None:
    Mixture(**{"datasets": [MixtureEntry("a")], **given}).to_message()


def _sent(kind: Any, **needed: Any) -> tuple[str, tuple[Callable[..., object], Any]]:
    return kind.__name__, (lambda **given: kind(**{**needed, **given}).to_message(), kind)


MAKERS: dict[str, tuple[Callable[..., object], Callable[..., object]]] = {
    "RemoteDataset": (_remote, RemoteDataset),
    "NumpyDataset": (_numpy, NumpyDataset),
    "BatchLoader": (_loader, BatchLoader),
    "MixtureEntry": (_entry, MixtureEntry),
    "Mixture": (_mixture, Mixture),
    "Deadlines": (Deadlines, Deadlines),
    "Hedge": (Hedge, Hedge),
    "TlsConfig": (TlsConfig, TlsConfig),
    "Access": (Access, Access),
    "Order": (Order, Order),
    "Selection": (_selection, Selection),
    "Sharding": (_sharding, Sharding),
    "PrivateServer": (PrivateServer, PrivateServer),
    "Transport": (Transport, Transport),
    **dict(
        (
            _sent(Boxes, column="x"),
            _sent(Cast, column="x", dtype="int8"),
            _sent(CenterCrop, size=2),
            _sent(ColorJitter),
            _sent(Deal),
            _sent(DecodeImage, column="x", height=2, width=2),
            _sent(MixUp, column="x", labels="y"),
            _sent(Normalize, mean=(1,), std=(1,)),
            _sent(OneHot, column="x"),
            _sent(Pad, column="x", length=2),
            _sent(RandomErasing),
            _sent(RandomHorizontalFlip),
            _sent(RandomResizedCrop, size=2),
            _sent(Resize, size=2),
            _sent(Stack, column="x", item_shape=(2,)),
            _sent(Tokenize, column="x", tokenizer="t"),
            _sent(Transform, name="x"),
        )
    ),
}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        pytest.param(make, field, id=f"{title}-{field}")
        for title, (make, public) in MAKERS.items()
        for field in inspect.signature(public).parameters
    ],
)
def test_whatever_is_given_no_other_error_comes(make: Callable[..., object], field: str) -> None:
    """Of 38 values for each argument there is, each is taken or refused by its name."""
    for value in _junk():
        try:
            make(**{field: value})
        except CallerError as error:
            named = f"{error.message} {error.metadata.get('field')}"
            # Nothing more is known of a damaged token; some are refused for what they mean.
            assert field in named or field in ("token", "token_skips", "batch_size", "unit")


WRONG = {
    "batch_size=32.0": (
        _remote,
        {"batch_size": 32.0},
        "batch_size is 32.0, of type float.*pass 32",
    ),
    "batch_size='32'": (_remote, {"batch_size": "32"}, "batch_size is '32', of type str.*pass 32"),
    "batch_size=True": (_remote, {"batch_size": True}, "batch_size is True, of type bool"),
    "columns='image'": (_remote, {"columns": "image"}, r"columns is 'image'.*pass \['image'\]"),
    "columns of NumPy": (_numpy, {"columns": "image"}, r"columns is 'image'.*pass \['image'\]"),
    "a column twice": (_remote, {"columns": ["a", "a"]}, "names 'a' twice"),
    "a set of columns": (_remote, {"columns": {"a"}}, "columns is {'a'}, of type set"),
    "shuffle='no'": (_remote, {"shuffle": "no"}, "shuffle is 'no'.*expected True or False"),
    "http": (_remote, {"target": "http://h:1/x"}, "target is 'http://h:1/x'.*pass 'h:1'"),
    "ftp": (_remote, {"target": "ftp://h/x"}, "without a server of your own, pass it as dataset"),
    "no port": (_remote, {"target": "feeder"}, "'feeder', without a port.*pass 'feeder:50051'"),
    "a URL without a port": (_remote, {"target": "https://h"}, "pass 'h:50051'"),
    "a port too high": (_remote, {"target": "h:99999"}, "ports go from 1 to 65535"),
    "IPv6 in the open": (_remote, {"target": "::1:50051"}, r"pass '\[::1\]:50051'"),
    "no port behind dns": (_remote, {"target": "dns:///feeder"}, "without a port"),
    "a folder": (_remote, {"target": "/data/flights"}, "a path.*pass it as dataset"),
    "words": (_remote, {"target": "my server"}, "not an address.*such as 'localhost:50051'"),
    "exchanged": (_remote, {"target": "flights", "dataset": "h:1"}, "swap the two"),
    "exchanged for NumPy": (_numpy, {"target": "flights", "dataset": "h:1"}, "swap the two"),
    "one stage": (_remote, {"stages": Cast("x", "int8")}, "expected a list of stages"),
    "a class of stages": (_remote, {"stages": [Cast]}, r"Pass an object, Cast\(…\), not the class"),
    "a transform": (
        *(_remote, {"stages": [CenterCrop(8)]}),
        r"Pass it as DecodeImage\(…, transforms=\[CenterCrop\(…\)\]\)",
    ),
    "deadlines=30": (Transport, {"deadlines": 30}, r"expected Deadlines\(connect_s="),
    "one name for pairs": (_remote, {"dataset": ["a", "b"]}, r"dataset\[0\] is 'a'.*pairs"),
    "a share as text": (_remote, {"dataset": [("a", "1")]}, "proportion is '1'.*pass 1.0"),
    "one bound": (
        _sent(RandomResizedCrop, size=2)[1][0],
        {"scale": 0.5},
        "RandomResizedCrop.scale is 0.5; expected two numbers",
    ),
    "a worker of half": (_loader, {"num_workers": 1.5}, "num_workers is 1.5"),
}


@pytest.mark.parametrize(("make", "given", "message"), WRONG.values(), ids=WRONG)
def test_a_mistake_is_told_what_to_pass(
    make: Callable[..., None], given: dict[str, Any], message: str
) -> None:
    """With what was found, of which type."""
    with pytest.raises(BadArgumentError, match=message):
        make(**given)


@pytest.mark.parametrize(
    "address",
    [
        "h:1",
        "10.0.0.9:50051",
        "[::1]:50051",
        "dns:///feed:50051",
        "dns://10.0.0.9:53/feed:50051",
        "dns:feed:50051",
        "ipv4:10.0.0.9:1,10.0.0.8:1",
        "ipv6:[::1]:1",
        "unix:/run/headrace/server.sock",
        "unix:///run/headrace/server.sock",
        "unix-abstract:headrace",
        "xds:///feed",
    ],
)
def test_what_grpc_takes_is_an_address(address: str) -> None:
    """Nothing that connects is refused."""
    assert (address,) == addresses_of(address)


def test_a_socket_is_told_how_it_is_called(tmp_path: Path) -> None:
    """A path of one lacks its scheme."""
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))

        with pytest.raises(BadArgumentError, match=f"pass 'unix:{path}'"):
            addresses_of(str(path))


def test_numbers_of_numpy_and_iterators_are_as_good() -> None:
    """They become plain, so that a state can be written as JSON."""
    dataset = RemoteDataset(
        "h:1",
        Selection("d", skips=np.array([3, 1])),  # type: ignore[arg-type]
        batch_size=np.int32(4),  # type: ignore[arg-type] # as careless users do
        seed=np.int64(7),  # type: ignore[arg-type]
        columns=map(str, "ab"),  # type: ignore[arg-type]
    )

    assert (4, ("a", "b")) == (dataset._reading.batch_size, dataset._reading.columns)
    assert [int, int] == [type(dataset._reading.batch_size), type(dataset._reading.order.seed)]
    subject = dataset._reading.subject
    assert isinstance(subject, OneDataset)
    skips = subject.skips
    assert skips is not None
    assert (1, 3) == skips.sample_ids


@pytest.mark.parametrize(
    "state", [None, "x", 3, [], {}, {"version": 1}, {"version": 1, "token": 3}, b"", _Odd]
)
def test_a_state_that_is_none_is_told_so(state: Any) -> None:
    """Also None, which `dict.get` gives for a checkpoint without one."""
    dataset = RemoteDataset("h:1", "d", batch_size=4)
    with pytest.raises(TokenMalformedError, match=r"expected .*what state_dict\(\) returned"):
        dataset.load_state_dict(state)


@pytest.mark.parametrize("place", [(1.5,), ("1",), (-1,), (0, -1), (None,), (1 << 63,)])
def test_a_place_that_is_none_is_refused(place: tuple[Any, ...]) -> None:
    """Epoch and position are whole numbers."""
    with pytest.raises(BadArgumentError, match="expected an int"):
        RemoteDataset("h:1", "d", batch_size=4).seek(*place)


@pytest.mark.parametrize("dataset", [RemoteDataset, NumpyDataset])
@pytest.mark.parametrize("name", ["map", "filter", "shuffle", "batch", "take"])
def test_a_method_of_other_libraries_is_advised_on(dataset: Any, name: str) -> None:
    """It is not there, and what to do instead is said."""
    made = dataset("h:1", "d", batch_size=4)

    assert not hasattr(made, name)
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'; "):
        getattr(made, name)
    with pytest.raises(AttributeError, match=r"has no attribute 'bathc'$"):
        made.bathc  # noqa: B018


def test_other_datasets_are_refused_by_what_wraps_ours() -> None:
    """With which one is meant."""
    with pytest.raises(BadArgumentError, match="expected a NumpyDataset"):
        tf_dataset(RemoteDataset("h:1", "d"))  # type: ignore[arg-type]
    with pytest.raises(BadArgumentError, match="expected a RemoteDataset"):
        BatchLoader([1, 2])  # type: ignore[arg-type]
    with pytest.raises(BadArgumentError, match="mixture is 3"):
        read_mixture(3)  # type: ignore[arg-type]


# fsspec's own class for FTP fails once more when it ends.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("url", ["ftp://", "sftp://", "http://", "ftp://127.0.0.1:1/x", "zip://"])
def test_a_url_that_no_store_opens_is_an_error_of_ours(url: str) -> None:
    """Whatever the package of its protocol raises."""
    with pytest.raises(HeadraceError):
        open_store(url)

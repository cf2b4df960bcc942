"""Check the addresses of servers before any call is made.

An impossible address fails here at once, and the message says what to type. Otherwise the client
would try to connect for as long as a server may take to start.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Sequence
from pathlib import Path

from headrace.arguments import text, texts
from headrace.client.options.environment import target_for
from headrace.client.options.mixture import Mixture
from headrace.client.options.selection import Selection
from headrace.errors import BadArgumentError

DEFAULT_PORT = 50051
"""The port that `headrace serve` listens on by default."""

_WANTED = (
    "'host:port', 'dns:///name:port', 'unix:/path', a list of such addresses, or None for a "
    "private server of the URL that is given as dataset"
)
# gRPC checks these names, except for ports.
_OTHER_NAMES = ("unix:", "unix-abstract:", "vsock:", "xds:", "ipv4:", "ipv6:")
_DNS = "dns:"
# Schemes of URLs that contain the address of a server.
_WEB_SCHEMES = ("http", "https", "grpc", "grpcs", "tcp", "h2", "h2c")
_HOST_PORT = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:/\s]+):(?P<port>\d+)")
_MOST_PORT = 65535


def addresses_of(
    target: str | Sequence[str] | None, *, dataset: object = None
) -> tuple[str, ...] | None:
    """Return the addresses of servers; None for a private one.

    Args:
        target: The user's argument; None for those of the environment, if it names some and the
            dataset is a name.
        dataset: The user's argument for the dataset, which may contain an address by mistake.

    Raises:
        BadArgumentError: An address is not one, such as the URL of a web page or of a dataset, or
            a host without a port.
    """
    if target is None:
        target = target_for(_names_of(dataset))
    if target is None:
        return None
    if isinstance(target, str):
        addresses: tuple[str, ...] = (text("target", target, wanted=_WANTED),)
    else:
        addresses = texts("target", target, wanted=_WANTED)
    if not addresses:
        raise BadArgumentError(f"target is an empty list; expected {_WANTED}", field="target")
    for address in addresses:
        fault = _fault_of(address)
        if fault is None:
            continue
        found, remedy = fault
        if isinstance(dataset, str) and _HOST_PORT.fullmatch(dataset):
            remedy = f"dataset is {dataset!r}, an address: swap the two arguments"
        raise BadArgumentError(
            f"target is {address!r}, {found}: {remedy}; addresses are 'host:port', "
            "'dns:///name:port' or 'unix:/path'",
            field="target",
        )
    return addresses


def _names_of(dataset: object) -> list[str]:
    """Return the names or URLs in an argument; none where it is no dataset."""
    if isinstance(dataset, str):
        return [dataset]
    if isinstance(dataset, Selection):
        return [dataset.name]
    if isinstance(dataset, Mixture):
        return [entry.name for entry in dataset.datasets]
    pairs = dataset if isinstance(dataset, list | tuple) else ()
    names = [pair[0] for pair in pairs if isinstance(pair, list | tuple) and pair]
    return [name for name in names if isinstance(name, str)] if len(names) == len(pairs) else []


def _fault_of(address: str) -> tuple[str, str] | None:
    """Return what a wrong address looks like, and what to pass instead; None if it is right."""
    if address.startswith(_OTHER_NAMES):
        return None
    scheme, separator, rest = address.partition("://")
    if separator and scheme != "dns":
        return _fault_of_url(address, scheme, rest)
    if address.startswith(("/", "./", "../", "~")):
        return _fault_of_path(address)
    name = address.rpartition("/")[2] if address.startswith(_DNS) else address
    return _fault_of_host_port(name.removeprefix(_DNS))


def _fault_of_url(address: str, scheme: str, rest: str) -> tuple[str, str]:
    host = rest.partition("/")[0]
    if scheme in _WEB_SCHEMES:
        if _HOST_PORT.fullmatch(host):
            return "a URL", f"pass {host!r}"
        return "a URL without a port", f"pass '{host or 'host'}:{DEFAULT_PORT}', or its own port"
    return "a URL", _without_server(address)


def _without_server(address: str) -> str:
    return (
        f"to read {address!r} without a server of your own, pass it as dataset; "
        "`headrace inspect` shows what it holds"
    )


def _fault_of_path(address: str) -> tuple[str, str]:
    try:
        is_socket = stat.S_ISSOCK(Path(address).stat().st_mode)
    except OSError:
        is_socket = False
    if is_socket:
        return "a path", f"pass 'unix:{address}'"
    return "a path", _without_server(address)


def _fault_of_host_port(name: str) -> tuple[str, str] | None:
    found = _HOST_PORT.fullmatch(name)
    if found is not None:
        if 1 <= int(found["port"]) <= _MOST_PORT:
            return None
        return f"with port {found['port']}", f"ports go from 1 to {_MOST_PORT}"
    if name.count(":") > 1 and "[" not in name:
        host, _, port = name.rpartition(":")
        return "an IPv6 address without brackets", f"pass '[{host}]:{port}' if {port} is the port"
    if ":" not in name and name and not re.search(r"[\s/]", name):
        return "without a port", f"pass '{name}:{DEFAULT_PORT}', or its own port"
    return "not an address", f"such as 'localhost:{DEFAULT_PORT}'"

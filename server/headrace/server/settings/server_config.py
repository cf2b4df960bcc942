"""The configuration of a server process: built once at startup, passed down, never changed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from headrace.errors import ConfigurationError
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.server.settings.numbers import check_numbers
from headrace.server.settings.plug_settings import PlugSettings

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]

_MIB = 1024 * 1024
# `item_nulls` is a default of datasets, so it changes with them.
_CHANGEABLE = frozenset({"datasets", "item_nulls", "plugs"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LEAST = {
    "cache_bytes": 1,
    "workers": 0,
    "cache_dir_bytes": 1,
    "prefetch_bytes": 0,
    "fetch_threads": 1,
    "max_streams": 1,
    "max_streams_per_peer": 0,
    "max_batch_bytes": 1,
    "payload_bytes": 1,
    "stage_threads": 0,
    "max_stream_s": 0,
    "drain_s": 0,
}
_POSITIVE = ("request_timeout_s", "heartbeat_s", "store_timeout_s", "stage_timeout_s")

_Plug = TypeVar("_Plug", bound=PlugSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Every setting of a server.

    Memory is limited to about ``cache_bytes`` + ``payload_bytes`` + ``fetch_threads`` reads in
    flight + a few MiB per open stream; docs/limits.md has the formula.

    Attributes:
        datasets: The datasets by the name under which each is served; at least one. A URL in place
            of a `DatasetConfig` means default settings.
        listen: Addresses to listen on, as several strings or as one string separated by commas:
            ``host:port`` (port 0 picks a free port) or ``unix:/path``.
        tls_cert: PEM file with the server's certificate chain; with ``tls_key``, TCP addresses use
            TLS. Unix sockets never do. Reread when it changes.
        tls_key: PEM file with its private key.
        tls_client_ca: PEM file with certificate authorities: clients must have a certificate from
            one of them.
        tokens: JSON file with the callers: bearer tokens or certificate subjects, and what each may
            read. Without it, anyone may read everything. Reread when it changes; docs/callers.md
            describes it.
        unix_mode: Permissions of unix sockets. By default only this user has access.
        health_listen: ``host:port`` or ``unix:/path`` for health checks, without TLS or tokens;
            empty for none. No call to another address delays them.
        metrics_listen: ``host:port`` of the Prometheus endpoint; empty for none.
        page: ``host:port`` of the page for browsers; empty for none. Needs the packages of the
            ``[page]`` extra.
        page_hosts: Host names of the page besides localhost and plain addresses, separated by
            commas.
        cache_bytes: Maximum total size of decoded blocks. The default, 3 GiB, holds the 2 GiB that
            one job with default options shuffles together, if its samples take up to 1.3 times as
            much in memory as in raw bytes; each lane needs as much.
        workers: Number of processes that serve, besides the one with the cache; 0 serves in one
            process.
        cache_dir: Folder on a local disk that keeps stored blocks across restarts; empty for none.
            Only one server at a time can use it.
        cache_dir_bytes: Maximum size of the files in that folder, rounded up to pages of 4 KiB. The
            default is arbitrary.
        prefetch_bytes: Maximum stored size of the blocks that one stream requests before it needs
            them. The default is an eighth of what is shuffled together by default.
        fetch_threads: Maximum number of simultaneous reads from each store, each of one block or a
            few neighbouring ones. The actual number depends on the store's measured throughput, and
            is lower if the process may open few files; the default is what a first batch of 16 MiB
            can use.
        max_streams: Maximum number of open streams. Each uses a thread.
        max_streams_per_peer: Maximum number of open streams from one address; 0 means no limit
            besides ``max_streams``. Behind a proxy all callers have the same address, so there is
            no limit by default.
        max_batch_bytes: Maximum payload of one batch. The default is arbitrary.
        payload_bytes: Maximum memory for all batches that are being made or wait to be sent, and
            for memory that is shared with clients, including the memory needed to make them.
            Callers have equal shares of it, and streams of one caller equal shares of that. The
            default is 10 MiB for each of 200 streams, the most that batches of 1 MiB take.
        item_nulls: Whether lists may contain null items, in datasets without a setting of their
            own. One byte per item then says which are null.
        max_stream_s: Time after which a stream is asked to reconnect, plus or minus 20 %; 0 means
            never. With the default, streams are evenly distributed within half an hour of a rolling
            restart.
        drain_s: How long a stopping server waits for its streams to end.
        request_timeout_s: How long a client may take to send its request after a call's headers, or
            to receive the answer of a finished call. The default is enough for 1 MiB at 1 Mbit/s.
        heartbeat_s: Time between two heartbeats on a stream that waits for its store. gRPC clients
            commonly give up after 20 s of silence.
        store_timeout_s: How long a stream waits for its store before it ends with
            ``STORE_UNAVAILABLE``.
        stage_timeout_s: How long a stage may work on one batch; transforms have a setting of their
            own. The default is arbitrary: no training loop waits that long for a batch.
        stage_threads: Maximum number of threads that decode images and make tokens, for all streams
            together; 0 means one per processor that the process may use.
        otlp_endpoint: ``http://host:port`` of the OpenTelemetry collector to send traces to; empty
            for none. Needs the packages of the ``[otel]`` extra.
        log_level: The lowest level of events to log; those of other packages are logged from
            ``warning`` on.
        log_format: ``console`` or ``json``; both write one line per event.
        plugs: The settings of plugs, which files, variables and options have among these; an
            object for each folder, or none for its defaults.
    """

    datasets: Mapping[str, str | DatasetConfig]
    listen: str | tuple[str, ...] = "127.0.0.1:50051"
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tokens: str = ""
    unix_mode: int = 0o600
    health_listen: str = ""
    metrics_listen: str = ""
    page: str = ""
    page_hosts: str = ""
    cache_bytes: int = 3072 * _MIB
    workers: int = 0
    cache_dir: str = ""
    cache_dir_bytes: int = 64 * 1024 * _MIB
    prefetch_bytes: int = 256 * _MIB
    fetch_threads: int = 64
    max_streams: int = 256
    max_streams_per_peer: int = 0
    max_batch_bytes: int = 1024 * _MIB
    payload_bytes: int = 2048 * _MIB
    item_nulls: bool = False
    max_stream_s: float = 900.0
    drain_s: float = 30.0
    request_timeout_s: float = 10.0
    heartbeat_s: float = 5.0
    store_timeout_s: float = 120.0
    stage_timeout_s: float = 60.0
    stage_threads: int = 0
    otlp_endpoint: str = ""
    log_level: LogLevel = "info"
    log_format: LogFormat = "console"
    plugs: tuple[PlugSettings, ...] = field(default=(), metadata={"is_stated": False})

    def __post_init__(self) -> None:
        object.__setattr__(self, "datasets", MappingProxyType(dict(self.datasets)))
        if isinstance(self.listen, str):
            listen = tuple(filter(None, map(str.strip, self.listen.split(","))))
            object.__setattr__(self, "listen", listen)
        self._check_datasets()
        self._check_addresses()
        check_numbers(self, least=_LEAST, positive=_POSITIVE)
        self._check_plugs()
        self._check_security()

    def __reduce__(self) -> tuple[Callable[..., ServerConfig], tuple[dict[str, Any]]]:
        # The view of the datasets cannot be pickled.
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return _made, ({**values, "datasets": dict(self.datasets)},)

    @property
    def dataset_configs(self) -> Mapping[str, DatasetConfig]:
        """Return the settings of each dataset by name, with defaults applied."""
        return {name: self._settled(given) for name, given in self.datasets.items()}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses to listen on, as configured."""
        assert isinstance(self.listen, tuple)
        return self.listen

    def of_plug(self, kind: type[_Plug]) -> _Plug:
        """Return the settings of a folder."""
        return next((each for each in self.plugs if isinstance(each, kind)), None) or kind()

    def _settled(self, given: str | DatasetConfig) -> DatasetConfig:
        config = DatasetConfig(url=given) if isinstance(given, str) else given
        return replace(config, item_nulls=self.item_nulls) if config.item_nulls is None else config

    def _check_datasets(self) -> None:
        if not self.datasets:
            raise ConfigurationError("no dataset to serve; give at least one as NAME=URL")
        for name in self.datasets:
            if not _NAME.fullmatch(name):
                raise ConfigurationError(
                    f"{name!r} is not a valid dataset name; use 1 to 128 letters, digits, '.', '_' "
                    "and '-', starting with a letter or a digit"
                )

    def _check_addresses(self) -> None:
        if not self.addresses:
            raise ConfigurationError("no address to listen on; give HOST:PORT or unix:/path")
        for address in (*self.addresses, *filter(None, self._others)):
            if not address.startswith("unix:"):
                split_address(address)
        if self.page.startswith("unix:"):
            raise ConfigurationError(f"browsers cannot open {self.page!r}; give page=HOST:PORT")
        if self.metrics_listen.startswith("unix:"):
            raise ConfigurationError(
                f"metrics cannot be served on {self.metrics_listen!r}; give HOST:PORT"
            )

    @property
    def _others(self) -> tuple[str, ...]:
        return self.health_listen, self.metrics_listen, self.page

    def _check_security(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigurationError("tls_cert and tls_key belong together; give both or neither")
        if self.page and not self.tokens and is_reached(self.page):
            raise ConfigurationError(
                f"the page would listen on {self.page} and let anyone in who can reach it; give a "
                "file of tokens, or listen on 127.0.0.1 and use a tunnel"
            )
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigurationError("tls_client_ca needs tls_cert and tls_key; give them too")
        if not 0 <= self.unix_mode <= 0o777:  # noqa: PLR2004 - all permissions
            raise ConfigurationError(
                f"unix_mode is {self.unix_mode:#o}; it must be in [0, 0o777], such as 0o660"
            )

    def _check_plugs(self) -> None:
        kinds = [type(each) for each in self.plugs]
        twice = [kind.__name__ for kind in kinds if kinds.count(kind) > 1]
        if twice:
            raise ConfigurationError(f"plugs has two {twice[0]}; give one")


def _made(values: dict[str, Any]) -> ServerConfig:
    return ServerConfig(**values)


def is_reached(address: str) -> bool:
    """Return whether other machines may reach an address.

    Names are not resolved: a host that is neither an address nor ``localhost`` counts as reachable.
    """
    if address.startswith("unix:"):
        return False
    host, _ = split_address(address)
    if host.lower() == "localhost":
        return False
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return True
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return not (mapped or found).is_loopback


def unchangeable(config: ServerConfig, running: ServerConfig) -> list[str]:
    """Return the names of the settings in which a running server cannot follow another config."""
    pairs: list[tuple[Any, Any]] = [
        (config, running),
        *((each, running.of_plug(type(each))) for each in config.plugs),
    ]
    return [
        one.name
        for new, old in pairs
        for one in fields(new)
        if one.name not in _CHANGEABLE and getattr(new, one.name) != getattr(old, one.name)
    ]


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of ``host:port``; an IPv6 host is in brackets.

    Raises:
        ConfigurationError: The text is not such a pair, or the port is outside [0, 65535].
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the largest port
        raise ConfigurationError(
            f"{address!r} is not an address to listen on; give HOST:PORT (port 0 picks a free one) "
            "or unix:/path"
        )
    return host.strip("[]"), int(port)

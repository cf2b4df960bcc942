"""The configuration of one server process: built once at the edge, passed down, never changed."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Literal

from headrace.errors import ConfigurationError
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.server.settings.tokenizer_config import tokenizer_paths
from headrace.server.settings.transform_config import transform_configs

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["console", "json"]

_MIB = 1024 * 1024
# `item_nulls` is a default of datasets, so it changes with them.
_CHANGEABLE = frozenset({"datasets", "item_nulls"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Every setting of a server.

    Memory is bounded by about ``cache_bytes`` + ``payload_bytes`` + ``fetch_threads`` reads in
    flight + some MiB for each open stream; docs/operations.md has the formula.

    Attributes:
        datasets: Each dataset by the name under which it is served; at least one. A URL alone
            means default settings.
        listen: Addresses to listen on, as several texts or as one with commas between:
            ``host:port`` (port 0 takes a free one) or ``unix:/path``.
        tls_cert: PEM file of the server's certificate chain; with ``tls_key``, addresses of TCP
            speak TLS. Unix sockets never do. Read again when it changes.
        tls_key: PEM file of its private key.
        tls_client_ca: PEM file of authorities: clients must have a certificate of one of them.
        tokens: JSON file of the callers: bearer tokens or subjects of certificates, and what each
            may read; without it, everybody may read everything. Read again when it changes;
            docs/security.md describes it.
        unix_mode: Permissions of unix sockets. By default they are this user's alone.
        ring_bytes: Greatest size of one ring, the shared memory that a client on this host reads
            its batches from; 0 for none. The default is twice what clients ask for by themselves.
        ring_uids: Users, by number, that may have rings beside the server's own, with commas
            between. Only over unix sockets, which ``unix_mode`` guards too.
        metrics_listen: ``host:port`` of the Prometheus endpoint; empty for none.
        page: ``host:port`` of the page for browsers; empty for none. Needs the packages of the
            ``[page]`` extra.
        page_hosts: Names by which browsers may address it, beside localhost and plain addresses,
            with commas between.
        cache_bytes: Greatest size of all decoded blocks together. The default is
            what one job shuffles together by default, 2 GiB; each lane takes as much.
        workers: Processes that serve, beside the one that has the cache; 0 serves in one process.
        cache_dir: Folder on a local disk that keeps stored blocks over restarts; empty for none.
            One server has it at a time.
        cache_dir_bytes: Greatest size of the files in it, in whole pages of 4 KiB. The default is
            arbitrary.
        prefetch_bytes: Greatest size of the blocks that one stream asks for before it needs them,
            as they are stored. The default is an eighth of what is shuffled together by default.
        fetch_threads: Reads of each store at once, at most, each of a block or some neighbouring
            ones. How many there really are follows from what the store gives; the default is what a
            first batch of 16 MiB can use.
        max_streams: Streams open at once. Each holds a thread.
        max_streams_per_peer: Streams open at once from one address; 0 means as many as the server.
            Behind a proxy all callers have one address, so there is no limit by default.
        max_batch_bytes: Greatest payload of one batch. The default is arbitrary.
        payload_bytes: Greatest size of all batches together that are being made or wait to be sent,
            with all that their making takes, and of all rings. Callers have equal shares of it,
            and streams of one caller equal shares of that. The default is 10 MiB for each of 200
            streams, which batches of 1 MiB take at most.
        item_nulls: Whether lists may hold null items, in datasets that do not say so themselves;
            says which with a byte an item.
        max_stream_s: A stream is asked to reconnect after this time, give or take 20 %; 0 means
            never. The default is of design.md: rolling restarts even out within half an hour.
        drain_s: How long a stopping server waits for its streams to end.
        request_timeout_s: How long a client may take to send its request after a call's headers, or
            to take the answer of a call that is over. The default lets 1 MiB through at 1 Mbit/s.
        heartbeat_s: Time between two signs of life on a stream that waits for its store. gRPC
            clients commonly give up after 20 s of silence.
        store_timeout_s: How long a stream waits for its store before it ends with
            ``STORE_UNAVAILABLE``.
        step_timeout_s: How long a step that is no transform may work on one batch. The default is
            arbitrary: no loop waits so long for a batch.
        step_threads: Most threads that decode images and make tokens, of all streams together; 0 is
            as many as the process may use processors.
        decoded_cache_bytes: Most memory for decoded images, kept for other ranks, jobs and epochs;
            0 keeps none.
        otlp_endpoint: ``http://host:port`` of an OpenTelemetry collector that traces are sent to;
            empty for none. Needs the packages of the ``[otel]`` extra.
        transforms: Functions that requests may name, each as ``NAME=module:function@version``;
            docs/operations.md describes them.
        tokenizers: Tokenizers that requests may name and lengths may be counted with, each as
            ``NAME=FILE`` with a tokenizer.json of Hugging Face. Needs the package of the
            ``[tokenize]`` extra.
        transform_workers: Most processes of each transform. The default is arbitrary.
        transform_timeout_s: How long a transform may work on one batch. The default is as long as
            clients commonly bear silence.
        log_level: The least grave events that are logged; those of other packages from
            ``warning`` on.
        log_format: ``console`` or ``json``; both have one line an event.
    """

    datasets: Mapping[str, str | DatasetConfig]
    listen: str | tuple[str, ...] = "127.0.0.1:50051"
    tls_cert: str = ""
    tls_key: str = ""
    tls_client_ca: str = ""
    tokens: str = ""
    unix_mode: int = 0o600
    ring_bytes: int = 256 * _MIB
    ring_uids: str = ""
    metrics_listen: str = ""
    page: str = ""
    page_hosts: str = ""
    cache_bytes: int = 2048 * _MIB
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
    step_timeout_s: float = 60.0
    step_threads: int = 0
    decoded_cache_bytes: int = 0
    otlp_endpoint: str = ""
    transforms: tuple[str, ...] = ()
    tokenizers: tuple[str, ...] = ()
    transform_workers: int = 2
    transform_timeout_s: float = 30.0
    log_level: LogLevel = "info"
    log_format: LogFormat = "console"

    def __post_init__(self) -> None:
        object.__setattr__(self, "datasets", MappingProxyType(dict(self.datasets)))
        if isinstance(self.listen, str):
            listen = tuple(filter(None, map(str.strip, self.listen.split(","))))
            object.__setattr__(self, "listen", listen)
        self._check_datasets()
        self._check_addresses()
        self._check_numbers()
        self._check_security()
        transform_configs(self.transforms)
        tokenizer_paths(self.tokenizers)

    @property
    def dataset_configs(self) -> Mapping[str, DatasetConfig]:
        """Return the settings of each dataset by its name, all of them settled."""
        return {name: self._settled(given) for name, given in self.datasets.items()}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Return the addresses to listen on, as configured."""
        assert isinstance(self.listen, tuple)
        return self.listen

    @property
    def ring_users(self) -> frozenset[int]:
        """Return the users that may have rings beside the server's own."""
        return frozenset(map(int, _parts(self.ring_uids)))

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
        for address in (*self.addresses, *filter(None, [self.metrics_listen, self.page])):
            if not address.startswith("unix:"):
                split_address(address)
        if self.page.startswith("unix:"):
            raise ConfigurationError(f"no browser reaches {self.page!r}; give page=HOST:PORT")
        if self.metrics_listen.startswith("unix:"):
            raise ConfigurationError(
                f"metrics cannot be served on {self.metrics_listen!r}; give HOST:PORT"
            )

    def _check_security(self) -> None:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigurationError("tls_cert and tls_key belong together; give both or neither")
        if self.page and not self.tokens and is_reached(self.page):
            raise ConfigurationError(
                f"the page would listen on {self.page} and let everybody in who reaches it; give "
                "a file of tokens, or listen on 127.0.0.1 and come through a tunnel"
            )
        if self.tls_client_ca and not self.tls_cert:
            raise ConfigurationError("tls_client_ca needs tls_cert and tls_key; give them too")
        for uid in _parts(self.ring_uids):
            if not (uid.isascii() and uid.isdigit()):
                raise ConfigurationError(
                    f"ring_uids has {uid!r}; expected user ids, such as 1000,1001"
                )
        if not 0 <= self.unix_mode <= 0o777:  # noqa: PLR2004 - all permissions
            raise ConfigurationError(
                f"unix_mode is {self.unix_mode:#o}; it must be in [0, 0o777], such as 0o660"
            )

    def _check_numbers(self) -> None:
        for name, least in (
            ("cache_bytes", 1),
            ("workers", 0),
            ("cache_dir_bytes", 1),
            ("ring_bytes", 0),
            ("prefetch_bytes", 0),
            ("fetch_threads", 1),
            ("max_streams", 1),
            ("max_streams_per_peer", 0),
            ("max_batch_bytes", 1),
            ("payload_bytes", 1),
            ("step_threads", 0),
            ("decoded_cache_bytes", 0),
            ("transform_workers", 1),
            ("max_stream_s", 0),
            ("drain_s", 0),
        ):
            if not getattr(self, name) >= least:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}; it must be {least} or more"
                )
        for name in (
            "request_timeout_s",
            "heartbeat_s",
            "store_timeout_s",
            "step_timeout_s",
            "transform_timeout_s",
        ):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it must be above 0")


def _parts(text: str) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part]


def is_reached(address: str) -> bool:
    """Return whether other machines may reach an address.

    No name is looked up: a host that is neither an address nor ``localhost`` counts as one that
    they do.
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


def fixed_settings(config: ServerConfig) -> list[str]:
    """Return the names of the settings that a running server cannot change."""
    return [one.name for one in fields(config) if one.name not in _CHANGEABLE]


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; an IPv6 host stands in brackets.

    Raises:
        ConfigurationError: The text is no such pair, or the port is outside [0, 65535].
    """
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:  # noqa: PLR2004 - the greatest port
        raise ConfigurationError(
            f"{address!r} is not an address to listen on; give HOST:PORT (port 0 picks a free one) "
            "or unix:/path"
        )
    return host.strip("[]"), int(port)

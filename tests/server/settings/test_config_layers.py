"""Tests of where settings come from: file, environment and flags, each stronger than the last."""

from __future__ import annotations

import re
import time
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError
from headrace.server import ConfigSource, DatasetConfig, ServerConfig, config_text
from headrace.server import ignored_variables as ignored
from headrace.storage import RetryPolicy, SourceOptions, StoreOptions

_HIDDEN = "wJalrXUtnFEMI-of-the-test"

_WHOLE = """
listen: [0.0.0.0:50051, unix:/run/headrace.sock]
cache_bytes: 8GiB
max_stream_s: 60
unix_mode: "660"
item_nulls: yes
log_format: json
datasets:
  flights: s3://bucket/flights
  trips:
    url: s3://lake/trips
    item_nulls: false
    source: {source: parquet, table_version: 12, missing_as_null: true}
    store:
      endpoint: https://s3.example
      access_key: key
      secret_key: ${SECRET}
      retry: {attempts: 3, budget_s: 10}
      fsspec: {anon: true, token: x, size: 3}
"""


def _load(tmp_path: Path, text: str, **given: object) -> ServerConfig:
    path = tmp_path / "headrace.yaml"
    path.write_text(text)
    return ConfigSource(file=path, **given).load()  # type: ignore[arg-type]  # tests name what they mean


def test_a_file_says_everything(tmp_path: Path) -> None:
    """Every kind of value is read: sizes, lists, permissions, datasets with their own options."""
    config = _load(tmp_path, _WHOLE, environment={"SECRET": _HIDDEN})

    trips = DatasetConfig(
        url="s3://lake/trips",
        item_nulls=False,
        source=SourceOptions(source="parquet", table_version=12, missing_as_null=True),
        store=StoreOptions(
            endpoint="https://s3.example",
            access_key="key",
            secret_key=_HIDDEN,
            retry=RetryPolicy(attempts=3, budget_s=10.0),
            fsspec={"anon": True, "token": "x", "size": 3},
        ),
    )
    expected = ServerConfig(
        datasets={"flights": "s3://bucket/flights", "trips": trips},
        listen=("0.0.0.0:50051", "unix:/run/headrace.sock"),
        cache_bytes=8 << 30,
        max_stream_s=60.0,
        unix_mode=0o660,
        item_nulls=True,
        log_format="json",
    )
    assert expected == replace(config, plugs=())


def test_the_later_layer_wins(tmp_path: Path) -> None:
    """Flags win over the environment, that over the file, each setting by itself."""
    text = "{max_streams: 1, drain_s: 1, heartbeat_s: 1, datasets: {a: /file, b: /file}}"
    environment = {
        "HEADRACE_DRAIN_S": "2",
        "HEADRACE_HEARTBEAT_S": "2",
        "HEADRACE_DATASETS": "b=/environment c=/environment",
        "HEADRACE_LISTEN": "h:1,h:2",
        "HEADRACE_CACHE_BYTES": "3MiB",
        "HEADRACE_ITEM_NULLS": "true",
    }
    flags = {"heartbeat_s": 3.0, "datasets": {"c": "/flag"}}

    config = _load(tmp_path, text, environment=environment, flags=flags)

    assert (1, 2.0, 3.0) == (config.max_streams, config.drain_s, config.heartbeat_s)
    assert {"a": "/file", "b": "/environment", "c": "/flag"} == dict(config.datasets)
    assert (("h:1", "h:2"), 3 << 20, True) == (
        config.addresses,
        config.cache_bytes,
        config.item_nulls,
    )


def test_variables_that_are_no_settings_are_told() -> None:
    """What Kubernetes sets for a service, and what is misspelt, is named and does not matter."""
    environment = {
        "HEADRACE_PORT": "tcp://10.0.0.1:50051",
        "HEADRACE_CACHE_BYTE": "1",
        "HEADRACE_CACHE_BYTES": "1",
        "HEADRACE_CONFIG": "x",
        "PATH": "/bin",
    }

    assert ["HEADRACE_CACHE_BYTE", "HEADRACE_PORT"] == ignored(environment)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cache_byte: 1", "no setting 'cache_byte'; did you mean cache_bytes?"),
        ("cache_bytes: 8 apples", "cache_bytes is '8 apples'; expected a number of bytes"),
        ("cache_bytes: true", "cache_bytes is True; expected a number of bytes"),
        ("max_streams: 1.5", "max_streams is 1.5; expected a whole number"),
        ("drain_s: soon", "drain_s is 'soon'; expected a number"),
        ("item_nulls: perhaps", "item_nulls is 'perhaps'; expected true or false"),
        ("log_level: loud", "log_level is 'loud'; expected one of debug, info"),
        ("tls_cert: 1", "tls_cert is 1; expected text"),
        ("unix_mode: rw-", "unix_mode is 'rw-'; expected a whole number"),
        ("datasets: []", "datasets is a value of type list"),
        ("datasets: {a: 1}", "datasets.a is 1; expected text"),
        ("datasets: {a: {}}", "datasets.a lacks url"),
        ("datasets: {a: {url: /x, uri: /y}}", "datasets.a has no setting 'uri'; did you mean url?"),
        ("datasets: {a: {url: ''}}", "datasets.a: a dataset has no url"),
        ("datasets: {a: {url: x, store: 1}}", "datasets.a.store is a value of type int"),
        ("datasets: {a: {url: x, store: {secret_key: 7}}}", "store.secret_key is a value of type"),
        ("datasets: {a: {url: x, store: {addressing: up}}}", "addressing is 'up'"),
        ("datasets: {a: x}\ndatasets: {b: y}", "the key 'datasets' occurs twice"),
        ("a: [", "is not YAML at line"),
        ("a: \x00", "is not YAML"),
        ("- 1", "must contain names of settings"),
        ("tokens: ${NOT_SET}", "refers to ${NOT_SET} in tokens, which is not set"),
        ("tokens: ${file:/nowhere/x}", "refers to /nowhere/x in tokens: No such file"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    """A mistake in the file is refused with its place, what was found and what was wanted."""
    with pytest.raises(ConfigurationError) as caught:
        _load(
            tmp_path, text if "datasets" in text else f"{text}\n", flags={"datasets": {"z": "/z"}}
        )

    assert message in str(caught.value)


def _doubling(levels: int) -> str:
    """Return a file in which each line is ten of the line before."""
    lines = [f"a{level}: &a{level} [{_ten(level - 1)}]" for level in range(1, levels)]
    return "\n".join(["a0: &a0 [x, x]", *lines])


def _merging(levels: int) -> str:
    """Return a file in which each line merges ten times the line before."""
    lines = [f"a{level}: &a{level} {{<<: [{_ten(level - 1)}]}}" for level in range(1, levels)]
    return "\n".join(["a0: &a0 {k: x}", *lines])


def _ten(level: int) -> str:
    return ", ".join([f"*a{level}"] * 10)


def _chained(levels: int) -> str:
    """Return a file in which each line holds the line before."""
    lines = [f"a{level}: &a{level} [*a{level - 1}]" for level in range(1, levels)]
    return "\n".join(["a0: &a0 x", *lines])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "datasets: &a {x: *a}",
            "line 1, column 18: an alias is inside the value that it refers to",
        ),
        ("a: &a [[*a]]", "line 1, column 9: an alias is inside the value that it refers to"),
        ("a: &a {<<: *a}", "inside the value that it refers to"),
        ("a: &a {? *a : b}", "inside the value that it refers to"),
        (_doubling(12), "with its aliases written out it has more than"),
        (_merging(12), "with its aliases written out it has more than"),
        (f"a: &a {'x' * 100_000}\nb: [{', '.join(['*a'] * 200)}]", "more than 16777216"),
        (_chained(500), "it has more than 32 levels"),
        ("a: " + "[" * 40 + "]" * 40, "it has more than 32 levels"),
        ("a: " + "{b: " * 40 + "}" * 40, "it has more than 32 levels"),
        ("a: " + "[" * 10_000, "it has more than 32 levels"),
    ],
)
def test_a_file_that_refers_to_itself_or_multiplies_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    """Cycles, aliases and merges that multiply, and depth: with the place, at once."""
    began = time.process_time()
    with pytest.raises(ConfigurationError) as caught:
        _load(tmp_path, text)

    assert message in str(caught.value)
    # Written out some of them have 10^11 values; a second is ten thousand times what it takes.
    assert time.process_time() - began < 1


def test_datasets_may_share_what_one_of_them_says(tmp_path: Path) -> None:
    """Aliases and merges that only spare writing a thing twice mean what they say."""
    text = """
datasets:
  a: {url: /a, store: &store {region: r, endpoint: https://s3.example}}
  b: {url: /b, store: *store}
  c: {url: /c, store: {<<: *store, region: other}}
"""
    config = _load(tmp_path, text)

    stores = [config.dataset_configs[name].store for name in "abc"]
    endpoint = "https://s3.example"
    expected = [StoreOptions(region=region, endpoint=endpoint) for region in ("r", "r", "other")]
    assert expected == stores


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The error holds the path and what the system says."""
    with pytest.raises(ConfigurationError, match=r"gone\.yaml cannot be read \(No such file"):
        ConfigSource(file=tmp_path / "gone.yaml").load()


@pytest.mark.parametrize(
    "text",
    [
        "store: {secret_key: %s",
        "a: 1\n%s: [",
        "tokens: *%s",
        "tokens: !%s x",
        "tokens: !x!%s x",
        "a: &%s [*a]",
        "datasets: {a: {url: x, store: {secret_key: [%s]}}}",
        "datasets: {a: {url: x, store: {fsspec: {token: [%s]}}}}",
    ],
)
def test_no_mistake_shows_a_secret(tmp_path: Path, text: str) -> None:
    """A damaged file is refused without a word of its content."""
    with pytest.raises(ConfigurationError) as caught:
        _load(tmp_path, text % _HIDDEN)

    assert _HIDDEN not in "".join(traceback.format_exception(caught.value))


def test_secrets_may_stand_in_files(tmp_path: Path) -> None:
    """`${file:…}` is what a mounted secret holds, without the line end that editors add."""
    (tmp_path / "secret").write_text(f"{_HIDDEN}\n")
    store = f"{{access_key: k, secret_key: '${{file:{tmp_path}/secret}}'}}"

    config = _load(tmp_path, f"datasets: {{a: {{url: x, store: {store}}}}}")

    assert _HIDDEN == config.dataset_configs["a"].store.secret_key


def test_a_configuration_is_shown_without_secrets(tmp_path: Path) -> None:
    """What is shown is YAML that is read again to the same settings, but for what is secret."""
    config = _load(tmp_path, _WHOLE, environment={"SECRET": _HIDDEN})

    text = config_text(config)
    again = _load(tmp_path, text)

    assert _HIDDEN not in text + repr(config)
    assert "https://s3.example" in text
    assert again.dataset_configs["flights"] == config.dataset_configs["flights"]
    assert "(hidden)" == again.dataset_configs["trips"].store.secret_key
    assert (config.addresses, config.unix_mode) == (again.addresses, again.unix_mode)


def test_urls_are_shown_without_credentials() -> None:
    """User, password and query of a URL may be secrets, wherever the URL stands."""
    url = f"https://me:{_HIDDEN}@host/path?token={_HIDDEN}"
    config = ServerConfig(datasets={"a": url, "b": DatasetConfig(url=url)})

    text = config_text(config)

    assert _HIDDEN not in text
    assert 2 == text.count("https://(hidden)@host/path?(hidden)")


def test_the_file_of_the_page_is_read(tmp_path: Path) -> None:
    """The example of docs/operations.md is a configuration, once its secrets are there."""
    page = (Path(__file__).parents[3] / "docs" / "operations.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (tmp_path / "trips").write_text(_HIDDEN)
    text = text.replace("/run/secrets", str(tmp_path))

    config = _load(tmp_path, text, environment={"TRIPS_KEY": "key"})

    trips = config.dataset_configs["trips"]
    assert {"flights", "flights-2025", "trips"} == set(config.datasets)
    assert (_HIDDEN, 12, True) == (
        trips.store.secret_key,
        trips.source.table_version,
        trips.item_nulls,
    )

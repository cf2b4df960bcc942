"""Tests of the settings of single datasets: each has its own store and its own permissions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headrace.errors import ConfigurationError, StoreRefusedError
from headrace.server import DatasetConfig, ServerConfig, start_server
from headrace.storage import StoreOptions
from support.datasets import small_table, write_dataset
from support.running import server_of
from support.s3 import S3

_SAMPLES = 20
_WRONG = "of-nobody-at-all"


def _as_reader(s3: S3) -> StoreOptions:
    return StoreOptions(
        endpoint=s3.weed.endpoint,
        region="us-east-1",
        access_key=s3.weed.reader_access_key,
        secret_key=s3.weed.reader_secret_key,
    )


@pytest.fixture
def s3_url(s3: S3, monkeypatch: pytest.MonkeyPatch) -> str:
    """A dataset in S3, which the environment alone no longer reaches."""
    url = s3.url("far")
    write_dataset(url, small_table(_SAMPLES), shard_samples=[_SAMPLES])
    for variable in s3.weed.environment():
        monkeypatch.delenv(variable)
    return url


def test_each_dataset_has_its_own_store(s3: S3, s3_url: str, tmp_path: Path) -> None:
    """One server reads one dataset with credentials of its own and another from a folder."""
    write_dataset(str(tmp_path), small_table(_SAMPLES), shard_samples=[_SAMPLES])

    with server_of(
        {"far": DatasetConfig(url=s3_url, store=_as_reader(s3)), "near": str(tmp_path)}
    ) as server:
        served = [server._catalog.get(name).dataset for name in server._catalog.names]
        counts = [dataset.sample_count for dataset in served]
        rows = [dataset.read_block(0).num_rows > 0 for dataset in served]

    assert [_SAMPLES, _SAMPLES] == counts
    assert [True, True] == rows


def test_credentials_of_one_dataset_do_not_help_another(s3: S3, s3_url: str) -> None:
    """A dataset with a wrong secret is refused, though the one before it had the right one."""
    wrong = replace(_as_reader(s3), secret_key=_WRONG)
    config = ServerConfig(
        datasets={
            "a": DatasetConfig(url=s3_url, store=_as_reader(s3)),
            "b": DatasetConfig(url=s3_url, store=wrong),
        },
        listen="127.0.0.1:0",
    )

    with pytest.raises(StoreRefusedError) as caught:
        start_server(config)

    assert _WRONG not in str(caught.value) + repr(config)


def test_a_url_alone_means_default_settings() -> None:
    """Both ways to write a dataset give the same settings."""
    config = ServerConfig(datasets={"a": "/x", "b": DatasetConfig(url="/x")})

    assert config.dataset_configs["a"] == config.dataset_configs["b"]


def test_a_fingerprint_behind_the_url_is_no_part_of_it() -> None:
    """`URL#FINGERPRINT` names a version; any other text behind a # belongs to the URL."""
    fingerprint = "0123456789abcdef" * 2

    assert ("/x", fingerprint) == DatasetConfig(url=f"/x#{fingerprint}").place
    assert ("/x#1", None) == DatasetConfig(url="/x#1").place


def test_a_dataset_needs_a_url() -> None:
    """An empty URL is refused when the settings are made, not when the dataset is opened."""
    with pytest.raises(ConfigurationError, match="a dataset has no url"):
        DatasetConfig(url="")

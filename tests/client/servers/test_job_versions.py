"""Ranks agree on versions through the store of their launcher."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stubs forget it

from headrace.client.servers.job_versions import agreed_versions


@pytest.fixture
def launched() -> Iterator[dict[str, str]]:
    """The variables of a job of two machines, whose store answers."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    yield {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
    }
    del store


def test_the_first_rank_decides(launched: dict[str, str]) -> None:
    """For each run, and anew when the launcher starts the job again."""
    assert {"d": "one"} == agreed_versions("run", {"d": "one"}, launched)

    assert {"d": "one"} == agreed_versions("run", {"d": "two"}, launched)
    assert {"d": "two"} == agreed_versions("next run", {"d": "two"}, launched)
    restarted = {**launched, "TORCHELASTIC_RESTART_COUNT": "1"}
    assert {"d": "two"} == agreed_versions("run", {"d": "two"}, restarted)


@pytest.mark.parametrize(
    "change",
    [{"WORLD_SIZE": "1"}, {"LOCAL_WORLD_SIZE": "4"}, {"MASTER_ADDR": ""}, {"MASTER_PORT": "x"}],
)
def test_one_machine_needs_no_store(launched: dict[str, str], change: dict[str, str]) -> None:
    """Nor is there one without an address."""
    agreed_versions("run", {"d": "one"}, launched)

    assert {"d": "two"} == agreed_versions("run", {"d": "two"}, {**launched, **change})


def test_a_store_that_does_not_answer_is_told(
    launched: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on with what this machine's server found."""
    del launched
    nobody = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1", "WORLD_SIZE": "2"}

    assert {"d": "one"} == agreed_versions("run", {"d": "one"}, nobody)
    assert "append to a dataset only between jobs" in caplog.text

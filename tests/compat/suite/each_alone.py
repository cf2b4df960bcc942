"""Run each of MosaicML's tests in a process of its own, as a user's program is.

DataLoader forks its workers, and gRPC may hang in processes that are forked from one that has used
it; so a test must not follow another in one process.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol


@pytest.fixture
def local_remote_dir() -> Iterator[tuple[str, str]]:
    """Return two folders that are not there yet."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "local"), str(Path(folder) / "remote")


def pytest_configure(config: pytest.Config) -> None:
    """Know their marker."""
    config.addinivalue_line("markers", "world_size(count): ranks of theirs; here always one")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Run a test in a child, and report what it reports."""
    del nextitem
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reading, writing = os.pipe()
    pid = os.fork()
    hook = item.config.hook
    if pid == 0:
        os.close(reading)
        reports = runtestprotocol(item, log=False, nextitem=None)
        kept = [hook.pytest_report_to_serializable(config=item.config, report=r) for r in reports]
        with os.fdopen(writing, "w") as pipe:
            json.dump(kept, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    for kept in json.loads(said):
        report = hook.pytest_report_from_serializable(config=item.config, data=kept)
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True

"""`headrace health`, as a probe runs it."""

from __future__ import annotations

from pathlib import Path

from support.command import run, serving
from support.datasets import small_table, write_dataset


def test_a_server_is_healthy_over_its_socket(tmp_path: Path) -> None:
    """A unix socket, the whole server and one dataset: SERVING, and exit code 0."""
    url = str(tmp_path / "ds")
    write_dataset(url, small_table(10), shard_samples=[10])
    socket = f"unix:{tmp_path}/s"
    with serving({"ds": url}, listen=socket):
        whole = run("health", socket)
        one = run("health", socket, "--service", "ds")
        unknown = run("health", socket, "--service", "nothing")

    assert (0, "SERVING\n") == (whole.returncode, whole.stdout)
    assert (0, "SERVING\n") == (one.returncode, one.stdout)
    assert 1 == unknown.returncode
    assert "NOT_FOUND" in unknown.stderr


def test_no_server_is_unhealthy(tmp_path: Path) -> None:
    """Exit code 1 and one line that says where nobody answered, as `headrace list` says it."""
    found = run("health", f"unix:{tmp_path}/nobody", "--timeout-s", "1")

    assert 1 == found.returncode
    assert "no headrace server answers at" in found.stderr
    assert found.stderr == run("list", f"unix:{tmp_path}/nobody", "--timeout-s", "1").stderr

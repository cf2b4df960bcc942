"""The adapters for JAX and TensorFlow, with these packages in an environment of their own.

Neither is a development dependency, so elsewhere the tests that need them are skipped.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.environments import environment, put_below

TESTS = Path(__file__).parents[2]


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.parametrize(
    ("package", "module", "needing", "count"),
    [
        ("jax", "batch/test_batch.py", "jax and not without", 4),
        ("tensorflow-cpu", "api/test_tensorflow.py", "not without", 2),
    ],
)
def test_the_adapter_with_the_package_itself(
    package: str, module: str, needing: str, count: int
) -> None:
    """What is skipped here runs there, and holds."""
    folder = environment(f"adapter-{package}", [package])
    put_below(folder)
    command = [str(folder / "bin" / "python"), "-m", "pytest", f"{TESTS}/client/{module}", "-q"]
    # Their own imports warn of this and that.
    quiet = ["-o", "filterwarnings=", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, *quiet, "-k", needing],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=TESTS.parent,
    )

    assert 0 == done.returncode, done.stdout[-4000:] + done.stderr[-4000:]
    assert f"{count} passed" in done.stdout, done.stdout[-4000:]
    assert "skipped" not in done.stdout

"""What TensorFlow and JAX get, in an environment of their own: they are too large for ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.environments import on_top, run_tests

TESTS = Path(__file__).parents[1]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_tests_that_need_them_pass(tmp_path: Path) -> None:
    """And none is skipped, but those that say what to install."""
    python = on_top(tmp_path / "env", ["tensorflow-cpu==2.21.0", "jax==0.10.2"])
    batches, arrays = "client/batch/test_batch.py", "client/api/test_tensorflow.py"

    run_tests(python, TESTS / "compat" / "test_petastorm_tensorflow.py", tmp_path / "p")
    run_tests(python, TESTS / arrays, tmp_path / "a", "-k", "not without_tensorflow")
    run_tests(python, TESTS / batches, tmp_path / "b", "-k", "not without_jax")

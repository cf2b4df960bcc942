"""One bounded storm in every run of the tests; `make chaos` runs long ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.storm import run_storm
from support.s3 import S3


@pytest.mark.alone
@pytest.mark.timeout(600)
def test_nothing_is_lost_in_a_storm(tmp_path: Path, s3: S3) -> None:
    """Servers and trainers killed, a store that throttles, two rescales: digests are equal."""
    storm = run_storm(tmp_path, s3.weed, seed=2026, epochs=4, kill_s=2.0)

    assert storm.survived, storm
    assert storm.proof.digest == storm.proof.wanted_digest
    assert 4 * 4000 == storm.proof.samples
    assert (4, 4) == (storm.proof.epochs_whole, storm.proof.epochs_complete)
    assert storm.kills >= 1
    assert storm.crashes == 2
    assert storm.refused >= 1

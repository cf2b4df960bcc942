"""What a commit that may have happened leaves for the caller to keep."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.converter.tasks.commit import Commits, commit_splits
from headrace.errors import StoreRefusedError, StoreUnavailableError
from headrace.storage import RetryPolicy
from headrace.storage.store.local.local_store import LocalStore
from headrace.storage.store.retry import call_with_retries
from support.shards import numbered_batch, write_shard

_SCHEMA = numbered_batch(0, 1).schema


class _Last(LocalStore):
    """A store whose user gets an error after, or instead of, the last write."""

    def __init__(self, url: str, error: Callable[[], BaseException], *, writes: bool) -> None:
        super().__init__(url)
        self._error = error
        self._writes = writes

    def write_if_absent(self, name: str, content: bytes) -> None:
        if self._writes:
            super().write_if_absent(name, content)
        raise self._error()


def _commits(store: LocalStore, error: type[BaseException], schema: pa.Schema) -> Commits:
    entry = write_shard(store, "a.arrow", [numbered_batch(0, 5)])
    commits = Commits()
    with pytest.raises(error):
        commit_splits(
            commits, {"": store}, {"": [entry]}, schema=schema, mode="error", file_format="arrow"
        )
    return commits


@pytest.mark.parametrize("error", [KeyboardInterrupt, StoreUnavailableError])
def test_an_interrupted_commit_may_have_happened(
    tmp_path: Path, error: type[KeyboardInterrupt | StoreUnavailableError]
) -> None:
    """An interrupt after the last write leaves a dataset, whose shards are to be kept."""
    store = _Last(str(tmp_path), lambda: error(""), writes=True)

    assert {""} == _commits(store, error, _SCHEMA).maybe


def test_a_refused_commit_has_not_happened(tmp_path: Path) -> None:
    """Of a commit that the store refuses nothing is kept."""
    store = _Last(str(tmp_path), lambda: StoreRefusedError("no"), writes=False)

    assert set() == _commits(store, StoreRefusedError, _SCHEMA).maybe


def test_a_commit_that_is_refused_after_a_lost_answer_may_have_happened(tmp_path: Path) -> None:
    """Credentials may expire between the attempt that succeeded and the next one."""

    class Expiring(LocalStore):
        """A store whose first answer is lost, and that refuses the next request."""

        def write_if_absent(self, name: str, content: bytes) -> None:
            answers = iter([StoreUnavailableError("reset"), StoreRefusedError("expired")])

            def attempt() -> None:
                if (error := next(answers)).retryable:
                    LocalStore.write_if_absent(self, name, content)
                raise error

            call_with_retries(attempt, RetryPolicy(base_s=0))

    assert {""} == _commits(Expiring(str(tmp_path)), StoreRefusedError, _SCHEMA).maybe

"""A value that a type cannot represent is named with its own reason."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.converter.columns.checked_cast import checked_cast
from headrace.errors import BadArgumentError


def test_the_reason_is_that_of_the_value() -> None:
    """Arrow's reason for a column may be about another value than the first."""
    labels = pa.array(["7", "cat", "dog"])

    with pytest.raises(BadArgumentError, match="sample 11 of its task is 'cat'") as caught:
        checked_cast(labels, pa.int64(), name="label", first_sample=10)

    assert "'cat' as a scalar of type int64" in caught.value.message
    assert "dog" not in caught.value.message

"""Batches for TensorFlow. The last two tests need it installed; all else about them is NumPy's."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from headrace.client import NumpyDataset, tf_dataset
from headrace.errors import BadArgumentError, ConfigurationError
from support.mixed import SAMPLES, mixed_server, write_mixed

HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None
needs_tensorflow = pytest.mark.skipif(not HAS_TENSORFLOW, reason="TensorFlow is not installed")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of 100 samples with columns of each kind."""
    url = str(tmp_path_factory.mktemp("mixed") / "mixed")
    write_mixed(url)
    with mixed_server(url) as running:
        yield running


@pytest.mark.skipif(HAS_TENSORFLOW, reason="TensorFlow is installed")
def test_without_tensorflow_it_says_what_to_install() -> None:
    """The adapter is there, and asks for nothing but the package."""
    with pytest.raises(ConfigurationError, match="pip install tensorflow"):
        tf_dataset(NumpyDataset("127.0.0.1:1", "mixed", batch_size=1))


@needs_tensorflow
def test_tensorflow_gets_every_kind_of_column(address: str) -> None:
    """Tensors, strings and ragged tensors, epoch after epoch, in the order of NumPy's batches."""
    wanted = NumpyDataset(address, "mixed", batch_size=10, epochs=2)
    found = tf_dataset(NumpyDataset(address, "mixed", batch_size=10, epochs=2))

    for _ in range(2):
        pairs = list(zip(wanted, found, strict=True))
        assert SAMPLES // 10 == len(pairs)
        for arrays, tensors in pairs:
            assert arrays["number"].tolist() == tensors["number"].numpy().tolist()
            assert arrays["grid"].tolist() == tensors["grid"].numpy().tolist()
            assert [item.tolist() for item in arrays["ragged"]] == tensors["ragged"].to_list()
            assert arrays["blob"].tolist() == tensors["blob"].numpy().tolist()
            assert arrays["maybe.valid"].tolist() == tensors["maybe.valid"].numpy().tolist()
            names = [(name or "").encode() for name in arrays["name"]]
            assert names == tensors["name"].numpy().tolist()


@needs_tensorflow
def test_nothing_to_read_is_refused(address: str) -> None:
    """A batch larger than the dataset: what was found and what to change."""
    with pytest.raises(BadArgumentError, match="smaller batch_size"):
        tf_dataset(NumpyDataset(address, "mixed", batch_size=SAMPLES + 1, epochs=1))

"""Batches as a ``tf.data.Dataset``. TensorFlow is imported when this is called."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.client.api.numpy_dataset import NumpyDataset
from headrace.client.wire.payload_layout import ColumnView
from headrace.errors import BadArgumentError, ConfigurationError
from headrace.payload import BFLOAT16, SAMPLE_ID_COLUMN
from headrace.v1 import shard_service_pb2 as pb

if TYPE_CHECKING:
    import tensorflow as tf


def tf_dataset(dataset: NumpyDataset) -> tf.data.Dataset:
    """Return a dataset of dictionaries of tensors, already batched and shuffled.

    Each iteration is one epoch. Strings and bytes are ``tf.string``, empty for null; ragged
    columns are ragged tensors. The first batch is requested at once, to learn the types.

    Args:
        dataset: What to read.

    Raises:
        ConfigurationError: TensorFlow is not installed.
        BadArgumentError: ``dataset`` is something else, or there is no batch to read.
        HeadraceError: A batch cannot be read.
    """
    if not isinstance(dataset, NumpyDataset):
        raise BadArgumentError(
            f"dataset is of type {type(dataset).__name__}; expected a NumpyDataset, which reads "
            "the same batches: tf_dataset(NumpyDataset(target, name, batch_size=…))",
            field="dataset",
        )
    if dataset.transform is not None:
        raise BadArgumentError(
            "dataset has a transform, and TensorFlow must know its result types beforehand; "
            "expected a NumpyDataset without one, and tf_dataset(…).map(function)",
            field="transform",
        )
    try:
        import tensorflow as tf  # noqa: PLC0415 - not every trainer has it
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            "tf_dataset needs TensorFlow, which is not installed here: pip install tensorflow"
        ) from error
    views = {name: view for name, view in dataset.peek().items() if name != SAMPLE_ID_COLUMN}
    if not views:
        raise BadArgumentError(
            "there is no batch to read: the run has no epoch left, or an epoch has less than one "
            "batch; expected another epoch, a smaller batch_size, or end='uneven'",
            field="batch_size",
        )
    signature = {name: _spec(tf, view) for name, view in views.items()}
    for name, view in views.items():
        if view.valid is not None:
            signature[f"{name}.valid"] = tf.TensorSpec((None,), tf.bool)

    def batches() -> Iterator[dict[str, Any]]:
        # An iteration that was left early has read ahead of its loop, so no other can continue it.
        dataset.leave_epoch()
        for columns in dataset.views():
            yield _tensors(tf, columns)

    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def _spec(tf: Any, view: ColumnView) -> Any:
    if view.kind == pb.COLUMN_KIND_TENSOR:
        dtype = tf.bfloat16 if view.values.dtype == BFLOAT16 else view.values.dtype
        return tf.TensorSpec((None, *view.values.shape[1:]), dtype)
    if view.kind == pb.COLUMN_KIND_RAGGED:
        return tf.RaggedTensorSpec((None, None), view.values.dtype, row_splits_dtype=tf.int64)
    return tf.TensorSpec((None,), tf.string)


def _tensors(tf: Any, columns: dict[str, ColumnView]) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for name, view in columns.items():
        if name == SAMPLE_ID_COLUMN:
            continue
        if view.kind == pb.COLUMN_KIND_TENSOR:
            is_bits = view.values.dtype == BFLOAT16
            tensors[name] = (
                tf.bitcast(view.values.view(np.uint16), tf.bfloat16) if is_bits else view.values
            )
        elif view.kind == pb.COLUMN_KIND_RAGGED:
            tensors[name] = tf.RaggedTensor.from_row_splits(view.values, view.offsets)
        else:
            tensors[name] = _byte_strings(view)
        if view.valid is not None:
            tensors[f"{name}.valid"] = view.valid
    return tensors


def _byte_strings(view: ColumnView) -> Any:
    assert view.offsets is not None
    ends, values = view.offsets.tolist(), view.values
    strings = [values[start:end].tobytes() for start, end in pairwise(ends)]
    return np.array(strings, np.object_)

"""Refuse loaders prepared by Hugging Face Accelerate, which would give wrong samples.

By default, such a loader reads in the first process only and splits its batches among all. It also
reads one batch ahead of the loop, so a state would be one batch too late.
"""

from __future__ import annotations

import inspect
import sys

from headrace.errors import BadArgumentError

_MODULE = "accelerate.data_loader"


def refuse_prepared() -> None:
    """Refuse to be read by a prepared loader.

    Raises:
        BadArgumentError: The caller is a prepared loader.
    """
    if _MODULE not in sys.modules:
        return
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "__iter__" and frame.f_globals.get("__name__") == _MODULE:
            raise BadArgumentError(
                "a RemoteDataset is read through a DataLoader that accelerate prepared, which "
                "would split one rank's batches among all ranks and read one batch ahead of the "
                "loop; expected accelerator.prepare(model, optimizer), and a loop over the "
                "dataset itself or a headrace.client.BatchLoader, which prepare() keeps as it "
                "is, with rank=accelerator.process_index and "
                "world_size=accelerator.num_processes. In a Trainer override "
                "get_train_dataloader, as examples/recipes/with_hf_trainer.py does",
                field="dataset",
            )
        frame = frame.f_back

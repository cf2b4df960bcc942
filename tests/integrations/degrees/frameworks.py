"""The frameworks that are asked, and their own loaders, resumed as their documentation says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework.

    Attributes:
        title: For the page.
        distribution: What its version is asked of.
        loaders: Titles for the page, by the function of the framework's module.
    """

    title: str
    distribution: str
    loaders: Mapping[str, str]


FRAMEWORKS = {
    "lightning": Framework(
        "Lightning",
        "lightning",
        {
            "headrace": "headrace",
            "plain": "`DataLoader`",
            "shuffled": "`StatefulDataLoader` of torchdata",
            "stateful": "that with `StatefulDistributedSampler`",
        },
    ),
    "transformers": Framework(
        "Hugging Face Trainer",
        "transformers",
        {"headrace": "headrace", "plain": "its own over a map-style dataset"},
    ),
    "accelerate": Framework(
        "Accelerate",
        "accelerate",
        {
            "headrace": "headrace",
            "skipping": "`DataLoader`, `skip_first_batches`",
            "seeded": "that with `use_seedable_sampler=True`",
            "stateful": "that with `use_stateful_dataloader=True` instead",
        },
    ),
    "ray": Framework(
        "Ray Train",
        "ray",
        {"headrace": "headrace", "own": "`prepare_data_loader`, saved at epochs' ends"},
    ),
    "torchtitan": Framework(
        "torchtitan",
        "torchtitan",
        {"headrace": "headrace", "own": "`ParallelAwareDataloader`"},
    ),
    "databricks": Framework(
        "Databricks AI Runtime",
        "databricks-sdk-air",
        {"headrace": "headrace", "own": "its `DataLoader` over a `Checkpointable`"},
    ),
}

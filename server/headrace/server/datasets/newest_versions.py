"""Find the newest version of each dataset, for the runs that begin on a server that lives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from headrace.server.datasets.open_served import open_one
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.storage import list_versions


@dataclass(slots=True)
class NewestVersions:
    """The fingerprints of the newest versions, by the names of datasets.

    A layout without versions is opened to see what it holds now, which may mean to read the
    headers of all files. The first run of a server is spared this.

    Attributes:
        configs: The datasets.
        opened: What the server has just opened, which the first call returns.
    """

    configs: Mapping[str, DatasetConfig]
    opened: Mapping[str, str]

    def __call__(self) -> Mapping[str, str]:
        """Return the fingerprint of each.

        Raises:
            HeadraceError: A store cannot be reached, or a dataset is damaged.
        """
        found, self.opened = self.opened, {}
        return found or {name: _newest(config) for name, config in self.configs.items()}


def _newest(config: DatasetConfig) -> str:
    url, pinned = config.place
    versions = () if pinned else list_versions(url, options=config.store)
    if versions:
        return versions[-1].fingerprint
    with open_one(config) as dataset:
        return dataset.fingerprint

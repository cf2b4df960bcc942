"""Check whether a server would start with its settings, without starting it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import HeadraceError
from headrace.server.access.callers import read_tokens
from headrace.server.access.tls import tls_credentials
from headrace.server.datasets.open_served import open_one
from headrace.server.process.start_warnings import start_warnings
from headrace.server.settings.dataset_config import DatasetConfig
from headrace.server.settings.server_config import ServerConfig
from headrace.server.stream.stage_plugs import check_stages


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for one part of the settings.

    Attributes:
        is_good: Whether a server can start with it.
        text: The result as text, without secrets.
    """

    is_good: bool
    text: str


def check_config(config: ServerConfig) -> list[Finding]:
    """Open every dataset and read every file that a server would, then close them.

    Warnings do not prevent a start. No address is bound, so the check works beside a running
    server.
    """
    found = [_dataset(name, one) for name, one in config.dataset_configs.items()]
    try:
        tls_credentials(config.tls_cert, config.tls_key, config.tls_client_ca)
        if config.cache_dir:
            found.append(_folder(Path(config.cache_dir)))
        if config.tokens:
            count = len(read_tokens(Path(config.tokens)))
            found.append(Finding(True, f"good: {count} callers in {config.tokens}"))
        found += [Finding(True, f"good: {text}") for text in check_stages(config)]
    except HeadraceError as error:
        found.append(Finding(False, f"bad: {error.message}"))
    return found + [Finding(True, f"warning: {text}") for text in start_warnings(config)]


def _folder(folder: Path) -> Finding:
    """Check a folder that a start would create, without creating it."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return Finding(True, f"good: cache_dir {folder}")
    return Finding(
        False, f"bad: cannot use cache_dir {folder}; give a folder that this user may write to"
    )


def _dataset(name: str, config: DatasetConfig) -> Finding:
    try:
        with open_one(config) as dataset:
            text = f"{dataset.sample_count} samples, fingerprint {dataset.fingerprint}"
    except HeadraceError as error:
        return Finding(False, f"bad: dataset {name}: {error.message}")
    return Finding(True, f"good: dataset {name}: {text}")

"""Where a package is missing, the message names the extra that brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CASES = [
    ("torch", "from headrace.client import RemoteDataset", "headrace[torch]"),
    ("torch", "import headrace.client as c; c.BatchLoader", "NumpyDataset works without torch"),
    ("pyarrow", "import headrace.storage", "headrace[storage]"),
    ("pyarrow", "import headrace.server", "headrace[server]"),
    ("pyarrow", "import headrace.converter", "headrace[converter]"),
    ("click", "from headrace.cli.main import main; main()", "headrace[cli]"),
]


@pytest.mark.parametrize(("package", "line", "wanted"), CASES)
def test_a_missing_package_is_named_with_its_extra(package: str, line: str, wanted: str) -> None:
    """In the last line of what is seen, with what to type."""
    program = f"import sys; sys.modules[{package!r}] = None; {line}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )

    assert 1 == done.returncode
    last = done.stderr.splitlines()[-1]
    assert package in last
    assert wanted in last


def test_help_lists_the_commands_whose_packages_are_missing() -> None:
    """With what installs them, beside those that work."""
    program = (
        "import sys; sys.modules['pyarrow'] = None; from headrace.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )

    assert 0 == done.returncode
    assert "cat       (pip install 'headrace[storage]')" in done.stdout
    assert "list      List the datasets" in done.stdout

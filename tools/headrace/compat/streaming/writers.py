"""Writers of MosaicML Streaming's files: their arguments, their bytes, without their package."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from headrace.compat.streaming.encodings import encoded_size, encoder_of
from headrace.compat.streaming.units import bytes_of
from headrace.storage import Store, open_store
from headrace.storage.mds.compression import compressed, parse_compression
from headrace.storage.mds.hashes import HASHES, digest_of

_INDEX = "index.json"
_WORD = np.dtype("<u4")
_MOST_BYTES = 1 << 32
"""A shard is smaller, as its offsets have 32 bits."""
_KNOWN = {"progress_bar", "max_workers", "retry", "exist_ok"}
_LINE_TYPES: Mapping[str, type] = {"str": str, "int": int, "float": float}


class _Writer:
    """Cut samples into shards by size, and write ``index.json`` last.

    If the ``with`` block raises, there is no index, and so no dataset. Files go straight to a
    remote ``out``; of a pair of local and remote, ``keep_local`` keeps a copy in the first.
    """

    format = ""
    _shard_bytes = 0
    _sample_bytes = 0

    def __init__(
        self,
        *,
        out: str | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        **kwargs: Any,
    ) -> None:
        """Start to write; the arguments are MosaicML's.

        Args:
            out: A folder or URL, or a pair of both.
            keep_local: With a pair, whether to write to the folder as well.
            compression: Such as ``zstd`` or ``zstd:7``; None for none.
            hashes: Hashes of each file, sorted.
            size_limit: Most bytes of a shard, such as ``"64mb"``; None for one shard.
            **kwargs: ``exist_ok`` empties a local folder; ``progress_bar``, ``max_workers`` and
                ``retry`` have no effect, as there is no queue of uploads.

        Raises:
            ValueError: An argument is out of range, or unknown.
            FileExistsError: There are files already.
        """
        unknown = sorted(set(kwargs) - _KNOWN)
        if unknown:
            raise ValueError(f"Invalid Writer argument(s): {unknown}; expected some of {_KNOWN}")
        hashes = list(hashes or [])
        if hashes != sorted(set(hashes)) or not HASHES.issuperset(hashes):
            raise ValueError(
                f"hashes are {hashes}; expected some of {sorted(HASHES)}, each once and sorted"
            )
        limit = None if not size_limit else bytes_of(size_limit)
        if limit is not None and not 0 < limit < _MOST_BYTES:
            bound = "less than 2**32" if limit > 0 else "greater than zero"
            raise ValueError(f"`size_limit` must be {bound}, found {limit}")
        self.compression, self.hashes, self.size_limit = compression or None, hashes, limit
        self._form = None if self.compression is None else parse_compression(self.compression)
        self._stores = _stores(out, keep_local=keep_local, empties=bool(kwargs.get("exist_ok")))
        self.shards: list[dict[str, Any]] = []
        self._samples: list[bytes] = []
        self._bytes = 0

    def get_config(self) -> dict[str, Any]:
        """Return what each shard says of itself."""
        return {
            "version": 2,
            "format": self.format,
            "compression": self.compression,
            "hashes": self.hashes,
            "size_limit": self.size_limit,
        }

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        """Return the bytes of a sample."""
        raise NotImplementedError

    def _parts(self) -> dict[str, bytes]:
        """Return the files of a shard, by what the index calls them."""
        raise NotImplementedError

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample, a mapping from column to value."""
        content = self.encode_sample(sample)
        size = len(content) + self._sample_bytes
        if size >= _MOST_BYTES - self._shard_bytes:
            raise ValueError(f"a sample of {size} bytes found; a shard holds less than 4 GiB")
        if self._samples and (self.size_limit or _MOST_BYTES - 1) < self._bytes + size:
            self.flush_shard()
        self._bytes = (self._bytes or self._shard_bytes) + size
        self._samples.append(content)

    def flush_shard(self) -> None:
        """Write the samples so far as a shard."""
        entry: dict[str, Any] = {"samples": len(self._samples)}
        for part, content in self._parts().items():
            name = f"shard.{len(self.shards):05d}.{self.format}"
            name += "" if part == "data" else f".{part}"
            entry[f"raw_{part}"] = self._facts(name, content)
            entry[f"zip_{part}"] = None
            if self._form is not None:
                name, content = name + self._form.suffix, compressed(content, self._form)  # noqa: PLW2901
                entry[f"zip_{part}"] = self._facts(name, content)
            self._store(name, content)
        self.shards.append({**entry, **self.get_config()})
        self._samples, self._bytes = [], 0

    def finish(self) -> None:
        """Write the last shard and the index."""
        if self._samples:
            self.flush_shard()
        index = {"version": 2, "shards": self.shards}
        self._store(_INDEX, json.dumps(index, sort_keys=True).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        if kind is None:
            self.finish()

    def _facts(self, name: str, content: bytes) -> dict[str, Any]:
        digests = {each: digest_of(each, content) for each in self.hashes}
        return {"basename": name, "bytes": len(content), "hashes": digests}

    def _store(self, name: str, content: bytes) -> None:
        for store in self._stores:
            store.write(name, content)


class MDSWriter(_Writer):
    """Write samples as shards of MosaicML's format ``mds``, which it and headrace read.

    Examples:
        >>> from headrace.compat.streaming import LocalDataset
        >>> with MDSWriter(out=folder, columns={"x": "int", "name": "str"}) as writer:
        ...     writer.write({"x": 7, "name": "seven"})
        >>> LocalDataset(folder)[0]
        {'name': 'seven', 'x': 7}
    """

    format = "mds"
    _sample_bytes = _WORD.itemsize

    def __init__(self, *, columns: Mapping[str, str], **options: Any) -> None:
        """Start to write.

        Args:
            columns: The encoding of each column.
            **options: The other arguments of every writer: ``out``, ``keep_local``,
                ``compression``, ``hashes``, ``size_limit``, ``exist_ok``.

        Raises:
            ValueError: There is no such encoding, or another argument is out of range.
        """
        self.column_names = sorted(columns)
        self.column_encodings = [columns[name] for name in self.column_names]
        self.column_sizes = [encoded_size(each) for each in self.column_encodings]
        self._encoders = [encoder_of(each) for each in self.column_encodings]
        super().__init__(**options)
        self._config = json.dumps(self.get_config(), sort_keys=True).encode()
        self._shard_bytes = 2 * _WORD.itemsize + len(self._config)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "column_names": self.column_names,
            "column_encodings": self.column_encodings,
            "column_sizes": self.column_sizes,
        }

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        values = [
            encode(sample[name])
            for name, encode in zip(self.column_names, self._encoders, strict=True)
        ]
        pairs = zip(values, self.column_sizes, strict=True)
        sizes = [len(value) for value, size in pairs if size is None]
        return b"".join([np.array(sizes, _WORD).tobytes(), *values])

    def _parts(self) -> dict[str, bytes]:
        count = len(self._samples)
        start = _WORD.itemsize * (count + 2) + len(self._config)
        offsets = start + np.cumsum([0, *map(len, self._samples)])
        head = np.array([count, *offsets.tolist()], _WORD).tobytes()
        return {"data": b"".join([head, self._config, *self._samples])}


class _LineWriter(_Writer):
    """Write a line for each sample, and a file that says where lines start."""

    def __init__(self, *, columns: Mapping[str, str], newline: str = "\n", **options: Any) -> None:
        """Start to write.

        Args:
            columns: The type of each column: ``str``, ``int`` or ``float``.
            newline: What ends a line.
            **options: The other arguments, as for `MDSWriter`.

        Raises:
            ValueError: There is no such type, or another argument is out of range.
        """
        unknown = sorted(set(columns.values()) - set(_LINE_TYPES))
        if unknown:
            raise ValueError(f"columns have {unknown}; expected some of {', '.join(_LINE_TYPES)}")
        self.columns, self.newline = dict(columns), newline
        super().__init__(**options)

    def _checked(self, name: str, value: Any) -> Any:
        kind = _LINE_TYPES[self.columns[name]]
        if not isinstance(value, kind):
            raise AttributeError(  # noqa: TRY004 - as MosaicML's
                f"{name} is of type {type(value).__name__}; expected {kind.__name__}"
            )
        return value

    def _parts(self) -> dict[str, bytes]:
        head = self._head()
        offsets = len(head) + np.cumsum([0, *map(len, self._samples)])
        words = np.array([len(self._samples), *offsets.tolist()], _WORD).tobytes()
        config = json.dumps(self.get_config(), sort_keys=True).encode()
        return {"data": b"".join([head, *self._samples]), "meta": words + config}

    def _head(self) -> bytes:
        return b""


class JSONWriter(_LineWriter):
    """Write samples as lines of JSON."""

    format = "json"

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "columns": self.columns, "newline": self.newline}

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        values = {name: self._checked(name, sample[name]) for name in self.columns}
        return (json.dumps(values, sort_keys=True) + self.newline).encode()


class XSVWriter(_LineWriter):
    """Write samples as lines of values between separators, which no value may contain."""

    format = "xsv"

    def __init__(self, *, columns: Mapping[str, str], separator: str, **options: Any) -> None:
        """Start to write; see `JSONWriter`.

        Args:
            columns: The type of each column.
            separator: What stands between the values of a line.
            **options: The other arguments.
        """
        self.separator = separator
        self.column_names = sorted(columns)
        super().__init__(columns=columns, **options)

    def get_config(self) -> dict[str, Any]:
        config = {
            **super().get_config(),
            "column_names": self.column_names,
            "column_encodings": [self.columns[name] for name in self.column_names],
            "newline": self.newline,
        }
        return {**config, "separator": self.separator} if self.format == "xsv" else config

    def encode_sample(self, sample: Mapping[str, Any]) -> bytes:
        return self._line([str(self._checked(name, sample[name])) for name in self.column_names])

    def _line(self, values: Sequence[str]) -> bytes:
        for value in values:
            if self.newline in value or self.separator in value:
                raise ValueError(
                    f"{value[:100]!r} contains the separator or the end of a line; expected a "
                    "value without them, or MDSWriter"
                )
        return (self.separator.join(values) + self.newline).encode()

    def _head(self) -> bytes:
        return self._line(self.column_names)


class CSVWriter(XSVWriter):
    """Write samples as lines of values between commas."""

    format = "csv"

    def __init__(self, *, columns: Mapping[str, str], **options: Any) -> None:
        """Start to write; see `XSVWriter`."""
        super().__init__(columns=columns, separator=",", **options)


class TSVWriter(XSVWriter):
    """Write samples as lines of values between tabs."""

    format = "tsv"

    def __init__(self, *, columns: Mapping[str, str], **options: Any) -> None:
        """Start to write; see `XSVWriter`."""
        super().__init__(columns=columns, separator="\t", **options)


def _stores(out: str | tuple[str, str], *, keep_local: bool, empties: bool) -> list[Store]:
    local, remote = (out, "") if isinstance(out, str) else out
    urls = [local] if not remote else [remote, local] if keep_local else [remote]
    for url in urls:
        if "://" in url:
            continue
        folder = Path(url).expanduser()
        if empties and folder.is_dir():
            shutil.rmtree(folder)
        if folder.exists() and any(folder.iterdir()):
            raise FileExistsError(
                f"Directory is not empty: {folder}; expected a new one, or exist_ok=True, which "
                "empties it"
            )
        folder.mkdir(parents=True, exist_ok=True)
    stores = [open_store(url if "://" in url else str(Path(url).expanduser())) for url in urls]
    for store in stores:
        if next(iter(store.list(_INDEX)), None) is not None:
            raise FileExistsError(f"Directory is not empty: {store.url} holds an {_INDEX}")
    return stores

"""What ends the process inside a foreign decoder is refused before the decoder sees it."""

from __future__ import annotations

import base64
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from headrace.errors import ConfigurationError
from headrace.storage import open_dataset
from storage.parquet.hostile_files import honest_but


class _Keys(pe.KmsClient):
    """Keys that are no secret."""

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> str:
        del master_key_identifier
        return base64.b64encode(key_bytes).decode()

    def unwrap_key(self, wrapped_key: str, master_key_identifier: str) -> bytes:  # type: ignore[override] # the stubs say str, pyarrow wants bytes
        del master_key_identifier
        return base64.b64decode(wrapped_key)


def write_encrypted(path: Path, *, plaintext_footer: bool = True) -> None:
    """Write a Parquet file with one encrypted column of two, as pyarrow encrypts them."""
    factory = pe.CryptoFactory(lambda _: _Keys())
    wanted = pe.EncryptionConfiguration(
        footer_key="footer", column_keys={"column": ["a"]}, plaintext_footer=plaintext_footer
    )
    table = pa.table({"a": range(100), "b": [str(value) for value in range(100)]})
    keys = factory.file_encryption_properties(pe.KmsConnectionConfig(), wanted)
    with pq.ParquetWriter(path, table.schema, encryption_properties=keys) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_encrypted_parquet_is_refused(tmp_path: Path, *, plaintext_footer: bool) -> None:
    """With a footer that anybody can read, too, where Arrow ends the process."""
    write_encrypted(tmp_path / "a.parquet", plaintext_footer=plaintext_footer)

    with pytest.raises(ConfigurationError, match=r"a\.parquet is encrypted") as caught:
        open_dataset(str(tmp_path))

    assert {"shard": "a.parquet"} == caught.value.metadata


@pytest.mark.parametrize("where", ["file_encryption", "chunk_encryption"])
@pytest.mark.parametrize("fields", [[8], [9], [8, 9]])
def test_any_word_of_encryption_is_enough(tmp_path: Path, where: str, fields: list[int]) -> None:
    """Footers that state an algorithm, a key or encrypted metadata alone are refused as well."""
    (tmp_path / "a.parquet").write_bytes(honest_but(**{where: fields}))

    with pytest.raises(ConfigurationError, match=r"a\.parquet is encrypted"):
        open_dataset(str(tmp_path))

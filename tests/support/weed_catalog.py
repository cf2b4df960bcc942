"""A real Iceberg REST catalog, SeaweedFS's, which gives keys of S3 for its tables."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import RESTError
from requests import RequestException

from demo.object_store import Weed, start_weed
from support.envoy import free_port
from support.waiting import until

_ROLE = "arn:aws:iam::role/tables"
_IAM = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "weed",
        "signingKey": "dGVzdC1zaWduaW5nLWtleS0zMi1jaGFyYWN0ZXJzLWxvbmc=",
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "roleStore": {"storeType": "memory"},
    "policies": [
        {
            "name": "all",
            "document": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}],
            },
        }
    ],
    "roles": [
        {
            "roleName": "tables",
            "roleArn": _ROLE,
            "attachedPolicies": ["all"],
            "trustPolicy": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"Federated": "iceberg-catalog"},
                        "Action": ["sts:AssumeRoleWithCredentials"],
                    }
                ],
            },
        }
    ],
}


@dataclass(frozen=True, slots=True)
class WeedCatalog:
    """A running catalog with the table ``n.t`` of the numbers 0 to 9.

    Attributes:
        weed: The server.
        catalog: The catalog.
    """

    weed: Weed
    catalog: Catalog


@contextmanager
def weed_catalog(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, life_s: int
) -> Iterator[WeedCatalog]:
    """Run a catalog, and name it ``weed`` in pyiceberg's configuration.

    Args:
        folder: A folder for its files, and the configuration.
        monkeypatch: Of the test.
        life_s: The life of its keys; at less than 900 it gives none.
    """
    port = free_port()
    (folder / "iam.json").write_text(json.dumps(_IAM))
    flags = [
        f"-s3.port.iceberg={port}",
        "-tableBucket=warehouse",
        f"-s3.iceberg.credentialRole={_ROLE}",
        f"-s3.iceberg.credentialDurationSeconds={life_s}",
        f"-s3.iam.config={folder}/iam.json",
    ]
    with start_weed(folder / "weed", flags=flags) as weed:
        properties = {
            "type": "rest",
            "uri": f"http://127.0.0.1:{port}",
            "warehouse": "s3://warehouse",
            "rest.sigv4-enabled": "true",
            "rest.signing-region": weed.region,
            "rest.signing-name": "s3tables",
            "client.access-key-id": weed.access_key,
            "client.secret-access-key": weed.secret_key,
            "client.region": weed.region,
            "s3.endpoint": weed.endpoint,
        }
        (folder / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {"weed": properties}}))
        monkeypatch.setenv("PYICEBERG_HOME", str(folder))
        catalog = _made(properties)
        table = catalog.create_table("n.t", schema=pa.schema([("x", pa.int64())]))
        table.append(pa.table({"x": list(range(10))}))
        yield WeedCatalog(weed, catalog)
        catalog.close()


def _made(properties: dict[str, str]) -> Catalog:
    def ask() -> Catalog | None:
        try:
            catalog = load_catalog("weed", **properties)
            catalog.create_namespace("n")
        except (RESTError, RequestException):
            return None
        return catalog

    made = until(ask)
    assert made is not None
    return made

"""Run a notebook of docs/migrating.md: ours in a test, theirs where their packages are.

    python notebook_job.py BLOCK FOLDER

runs the Python in the file BLOCK over ``FOLDER/flowers.parquet``, and prints as JSON what it saw.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from pyspark.sql import SparkSession
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


def preprocess(content: bytes) -> Any:
    """Make an array of three colours and 32 by 32 of a file."""
    image = Image.open(io.BytesIO(content)).convert("RGB").resize((32, 32))
    return np.ascontiguousarray(np.asarray(image, np.float32).transpose(2, 0, 1)) / 255


def names_of(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Return what a notebook takes for granted."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 3))
    return {
        "__name__": "__main__",
        "spark": spark,
        "flowers": spark.read.parquet(f"{folder}/flowers.parquet"),
        "out": f"{folder}/out",
        "cache": f"{folder}/cache",
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.02),
        "cross_entropy": cross_entropy,
        "preprocess": preprocess,
        "seen": [],
        "DataLoader": DataLoader,
        "Image": Image,
        "io": io,
        "np": np,
        "torch": torch,
    }


def seen_by(names: dict[str, Any]) -> dict[str, Any]:
    """Return what a notebook saw: the labels it learned from, and what it found of others."""
    seen = names["seen"]
    return {
        "labels": torch.cat(seen).tolist() if seen else [],
        "count": names.get("count"),
        "accuracy": names.get("accuracy"),
    }


def main(block: str, folder: str) -> None:
    """Run it in a session of its own."""
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.local.dir", f"{folder}/local")
        .getOrCreate()
    )
    names = names_of(spark, Path(folder))
    exec(compile(Path(block).read_text(), block, "exec"), names)  # noqa: S102 - a page of ours
    sys.stdout.write(json.dumps(seen_by(names)) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The blocks of README and docs/ run as they are printed, or are listed here with the reason."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import trustme
import yaml
from deltalake import write_deltalake

import headrace.client
from headrace.server import ConfigSource
from headrace.server.access.callers import read_tokens
from headrace.storage import OpenDataset, SourceOptions, open_dataset, open_store
from headrace.storage.mds import MdsWriter, commit_mds
from headrace.v1 import shard_service_pb2 as pb
from storage.mds.mds_make import texts
from support.hub import hub
from support.page_world import World, flights, parsed, torch_parts, world
from support.pages import Block, Command, blocks, commands, pages
from support.private import end_servers
from support.running import server_of
from support.s3 import S3
from support.served import epoch_request, read
from support.tokenizer_files import bpe_file, random_texts
from support.unity_catalog import unity_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_GOLDEN = Path(__file__).parents[1] / "converter" / "golden"

_FORMULA = "a formula"
_THEIRS = "theirs, quoted from their documentation"
_DRAWING = "a drawing"
_MAKE = "run by those who develop headrace, and by .ci/run"
_INSTALL = "tests/end_to_end/test_install.py does so in environments of their own"
_BENCHMARK = "a measurement that takes minutes"
_LAYOUT = "names of files and what they are"
_WIRE = "messages on a wire"
_VARLEN = (
    "needs attention kernels of a GPU; tests/client/batch/test_varlen.py makes their arguments"
)
_OURS = "tests/end_to_end/test_migrating.py runs them one after another"
_PROGRAM = "tests/integrations/test_pages.py runs it as it is printed"

NOT_RUN = {
    ("docs/augmentation.md", "K = draw(key(0, seed, epoch, SAMPLE), position)"): _FORMULA,
    ("docs/augmentation.md", "T = key(K, AUGMENT, s, t)        AUGMENT = 19"): _FORMULA,
    (
        "docs/augmentation.md",
        "exp(x):  0 if x < -700;  n = 6, or the least n with |x| <= 2",
    ): _FORMULA,
    (
        "docs/compat.md",
        "from headrace.compat.streaming import MDSWriter, StreamingDa",
    ): "tests/compat/test_streaming_order.py does so, in a process that may be forked",
    (
        "docs/compat.md",
        "from headrace.compat.petastorm import TransformSpec",
    ): "tests/compat/test_petastorm.py and tests/end_to_end/test_migrating.py do so",
    (
        "docs/converter.md",
        "PYTHONPATH=tests python tests/benchmarks/bench_small_partiti",
    ): _BENCHMARK,
    (
        "docs/kubernetes.md",
        "helm install headrace deploy/helm/headrace \\",
    ): "needs a cluster; tests/deploy/test_helm.py renders the chart by Helm's own library",
    (
        "docs/kubernetes.md",
        "- seriesQuery: headrace:demand:share",
    ): "a rule of prometheus-adapter, which needs a cluster",
    (
        "docs/datasets.md",
        "PYTHONPATH=tests python tests/benchmarks/bench_compact.py",
    ): _BENCHMARK,
    (
        "docs/decisions/order-version-3.md",
        "PYTHONPATH=tests python tests/benchmarks/bench_order_quality",
    ): _BENCHMARK,
    (
        "docs/shuffle-quality.md",
        "PYTHONPATH=tests python tests/benchmarks/bench_order_quality",
    ): _BENCHMARK,
    (
        "docs/format.md",
        "headrace.json                       version 3; written last",
    ): _LAYOUT,
    (
        "docs/stores.md",
        "the store refuses s3://lake/trips/_delta_log/ (403 AccessDen",
    ): "an error, which tests/field/test_roles.py raises",
    (
        "docs/format.md",
        "packing/<fingerprint>/packing.json      written last, on con",
    ): _LAYOUT,
    ("docs/iceberg.md", "catalog:"): "pyiceberg's; tests/support/weed_catalog.py writes one",
    (
        "docs/iceberg.md",
        "ALTER TABLE travel.trips CREATE TAG run AS OF VERSION 472091",
    ): "of Iceberg's extension for Spark, whose jars the tests do not have",
    (
        "docs/unity-catalog.md",
        "ALTER TABLE main.travel.trips SET TBLPROPERTIES (",
    ): "of Databricks",
    ("docs/integrations/accelerate.md", "from pathlib import Path"): _PROGRAM,
    (
        "docs/integrations/accelerate.md",
        "torchrun --nproc-per-node 2 train.py",
    ): _PROGRAM,
    ("docs/integrations/databricks.md", "from collections.abc import Iterator"): _PROGRAM,
    ("docs/integrations/databricks.md", "from pathlib import Path"): _PROGRAM,
    ("docs/integrations/databricks.md", "torchrun --nproc-per-node 2 train.py"): _PROGRAM,
    ("docs/integrations/lightning.md", "import lightning"): _PROGRAM,
    ("docs/integrations/lightning.md", "python train.py"): _PROGRAM,
    ("docs/integrations/ray.md", "import tempfile"): _PROGRAM,
    ("docs/integrations/ray.md", "python train.py"): _PROGRAM,
    ("docs/integrations/torchtitan.md", "import torch"): _PROGRAM,
    ("docs/integrations/torchtitan.md", "torchrun --nproc-per-node 2 train.py"): _PROGRAM,
    ("docs/integrations/transformers.md", "import torch"): _PROGRAM,
    (
        "docs/integrations/transformers.md",
        "mkdir -p output; torchrun --nproc-per-node 2 train.py",
    ): _PROGRAM,
    ("docs/llm.md", "import torch"): _VARLEN,
    ("docs/llm.md", "from torch import Tensor"): _VARLEN,
    (
        "docs/order.md",
        "f(n) = 2^16 (l - 1) + (2^16 n >> l)      with 2^l <= n < 2^(",
    ): _FORMULA,
    ("docs/order.md", "12[0:8191] 10[0:1]"): "printed by tests/order/packing/test_packing.py",
    ("README.md", "DataFrame or files ──convert──▶ shards in S3 ──▶ servers ──g"): _DRAWING,
    ("README.md", "make demo"): _MAKE,
    (
        "README.md",
        "from headrace.client import DecodeImage, RandomHorizontalFli",
    ): "docs/augmentation.md and docs/llm.md say the same, and are run",
    (
        "README.md",
        "pip install .                   # the client; it does not to",
    ): _INSTALL,
    (
        "docs/cache-size.md",
        "PYTHONPATH=tests python tests/benchmarks/bench_cold_epoch.py",
    ): _BENCHMARK,
    (
        "docs/numpy.md",
        "from headrace.client import NumpyDataset, tf_dataset",
    ): "TensorFlow is no dependency; tests/client/api runs it where there is one",
    (
        "docs/convert-text.md",
        "dep_time stays text: 'NA' in flights.csv:840; pass --null-va",
    ): "printed by a command: tests/edges/test_almost_typed.py",
    (
        "docs/decisions/order-version-2.md",
        "python tests/benchmarks/bench_order_absence.py",
    ): _BENCHMARK,
    (
        "docs/format.md",
        "headrace.json                                      which ver",
    ): _LAYOUT,
    ("docs/index.md", "DataFrame or files ──convert──▶ shards in S3 ──▶ servers ──g"): _DRAWING,
    ("docs/install.md", "git clone https://github.com/headrace/headrace"): _INSTALL,
    ("docs/install.md", "pip install 'headrace[server,cli]' --find-links dist"): _INSTALL,
    ("docs/page.md", "pip install 'headrace[page]'"): _INSTALL,
    (
        "docs/page.md",
        "headrace serve photos=s3://bucket/photos --page 127.0.0.1:80",
    ): "tests/page/test_live.py serves with a page",
    (
        "docs/limits.md",
        "idle + cache_bytes + fetch_threads × R + payload_bytes + str",  # noqa: RUF001
    ): _FORMULA,
    ("docs/sizing.md", "D = N × s × B        bytes a second"): _FORMULA,  # noqa: RUF001
    ("docs/order.md", "mix(z):  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9"): _FORMULA,
    (
        "docs/order.md",
        "absorb(key, word)      = mix(key ^ mix(word + 0x9E3779B97F4A",
    ): _FORMULA,
    ("docs/order.md", "BATCHING EPOCH_SIZE"): _FORMULA,
    ("docs/order.md", "network(key, n, p):"): _FORMULA,
    ("docs/order.md", "size = max(1, (run_bytes + s u // 2) // (s u)) u     if u > "): _FORMULA,
    ("docs/order.md", "low, size, level = f, m, 0"): _FORMULA,
    ("docs/order.md", "above, below = 0, 1"): _FORMULA,
    (
        "docs/order.md",
        "t step + ((i A + (draw(key(E, PHASES), m) >> 32)) % 2^32) (s",
    ): _FORMULA,
    (
        "docs/order.md",
        "i + low + draw(key(key(R, DATASET, d), CHOICE, shard), k) % ",
    ): _FORMULA,
    ("docs/lane.md", "AttachTransport(read, Lane(version))   over gRPC"): _WIRE,
    ("docs/lz4.md", "AttachTransport(read, Lz4(version))    over gRPC"): _WIRE,
    ("docs/protocol.md", "ReadBatches(request)"): _WIRE,
    (
        "docs/ring.md",
        "AttachTransport(read, Ring(ring_bytes, check_payload))   ove",
    ): _WIRE,
    ("docs/shuffle-quality.md", "python tests/benchmarks/bench_order_absence.py"): _BENCHMARK,
    (
        "docs/mds.md",
        "<schema>\\t<samples>\\t<raw bytes>\\t<raw basename>\\t<raw hashe",
    ): "a line of a file",
}
"""Blocks that nothing here runs, by page and first line, and why."""


LONG_PAGES = {
    "docs/converter.md",
    "docs/datasets.md",
    "docs/doctor.md",
    "docs/lengths.md",
    "docs/llm.md",
    "docs/loadtest.md",
    "docs/make-converter.md",
    "docs/sizing.md",
    "docs/stored-index.md",
    "docs/verify.md",
}
LONG = {
    ("README.md", "headrace doctor localhost:50051 flights --need 5000/s       "),
    *(
        (page, block.first)
        for page in LONG_PAGES
        for block in blocks(page)
        if (page, block.first) not in NOT_RUN
    ),
}
"""Commands that take longer than `make test` has; there their options alone are looked at."""


def _why_not(block: Block) -> str | None:
    """Return why a block is not run here."""
    if block.page == "docs/migrating.md":
        return _THEIRS if block.language == "text" else _OURS
    return NOT_RUN.get((block.page, block.first))


# What pages take for granted.


def _readme(here: World, spark: SparkSession | None) -> None:
    assert spark is not None
    pq.write_table(flights(20_000), "flights.parquet")
    here.names |= {"df": spark.read.parquet(str(here.folder / "flights.parquet")), **torch_parts()}
    labels = np.repeat(np.arange(10), 40)
    here.dataset("imagenet", pa.table({"label": labels, "image": [b"x" * 500] * len(labels)}))
    Path("domains.jsonl").write_text("".join(f'{{"text": "{at}"}}\n' for at in range(100)))


def _client(here: World, _: SparkSession | None) -> None:
    here.images("photos", count=256)
    here.command(Command(("convert", "photos", f"{here.bucket}/photos")))
    words = pa.table({"text": [f"word {at}" for at in range(600)]})
    tokens = pa.table({"tokens": [list(range(at % 700)) for at in range(400)]})
    line = pa.table({"x": [[float(at)] * 8 for at in range(512)], "y": np.arange(512.0)})
    types = pa.schema([pa.field("x", pa.list_(pa.float32(), 8)), pa.field("y", pa.float32())])
    here.serve(
        flights=here.dataset("flights", flights()),
        photos=f"{here.bucket}/photos",
        texts=here.dataset("texts", tokens),
        line=here.dataset("line", line.cast(types)),
        **{name: here.dataset(name, words) for name in ("web", "books", "code")},
    )
    here.names |= torch_parts()


def _convert(here: World, _: SparkSession | None) -> None:
    Path("flights.csv").write_text("carrier,dep_time\nA,1\nB,NA\n")
    here.images("photos")
    table = pa.table({"tokens": ["a b", "c"] * 20, "label": list(range(40))})
    store = open_store(f"{here.bucket}/mosaic")
    with MdsWriter(store, table.schema, hashes=()) as writer:
        writer.append(table.to_batches()[0])
        commit_mds(store, writer.close())
    store.close()
    shutil.copytree(_GOLDEN / "hugging_face", "hugging-face-folder")
    Path("domains.jsonl").write_text("".join(f'{{"text": "{at}"}}\n' for at in range(100)))


def _converter(here: World, spark: SparkSession | None) -> None:
    assert spark is not None
    rows = {
        "content": [b"\xff\xd8\xff\xe0"] * 600,
        "mask": [[1] * 784] * 600,
        "label": [at % 2 for at in range(600)],
        "text": ["some words"] * 600,
        "fold": ["first", "second"] * 300,
        "distance": list(range(600)),
        "arr_delay": list(range(600)),
    }
    pq.write_table(pa.table(rows), "rows.parquet")
    here.names |= {
        "df": spark.read.parquet(str(here.folder / "rows.parquet")),
        "make_tokenizer": lambda: lambda text: [len(word) for word in text.split()],
        **torch_parts(),
    }


def _questions(here: World, spark: SparkSession | None) -> None:
    assert spark is not None
    animals = pa.table({"label": ["dog", "cat", None] * 100, "x": list(range(300))})
    pq.write_table(animals, "animals.parquet")
    here.names["df"] = spark.read.parquet(str(here.folder / "animals.parquet"))
    here.serve(animals=here.dataset("served", animals))


def _parquet(url: str) -> None:
    sink = io.BytesIO()
    pq.write_table(flights(), sink)
    store = open_store(url)
    store.write("trips.parquet", sink.getvalue())
    store.close()


def _llm(here: World, spark: SparkSession | None) -> None:
    assert spark is not None
    tokens = pa.table({"tokens": [list(range(at % 700)) for at in range(400)]})
    pq.write_table(tokens, "tokens.parquet")
    stories = [f"{at}: " + "on and on " * (at * 37 % 61) for at in range(400)]
    pq.write_table(pa.table({"text": stories}), "stories.parquet")
    here.names |= {
        "tokens_df": spark.read.parquet(str(here.folder / "tokens.parquet")),
        "stories_df": spark.read.parquet(str(here.folder / "stories.parquet")),
        "model": lambda tokens, labels=0: (tokens + labels).sum(),
    }
    texts = here.dataset("texts", pa.table({"text": random_texts(3000, seed=1, words=99)}))
    tokenizer = bpe_file(here.folder / "tokenizer.json")
    here.tokenizers = (f"bpe={tokenizer}",)
    mixed = {name: here.dataset(name, tokens) for name in ("web", "books")}
    for url in mixed.values():
        here.command(Command(("index", url, "--pack-length", "8192", "--eos", "2")))
    here.serve(corpus=here.dataset("corpus", tokens), texts=texts, **mixed)


def _lengths(here: World, _: SparkSession | None) -> None:
    here.names["model"] = lambda tokens: tokens.sum()
    _meshes(here, _)


def _elastic(here: World, spark: SparkSession | None) -> None:
    """With a replica of torchft that is alone: tests/integrations/test_torchft.py has others."""
    _client(here, spark)
    committed: list[bool] = []
    weight = torch.ones(1, requires_grad=True)
    here.names |= {
        "steps": 3,
        "model": lambda batch: weight * batch["delay"],
        "optimizer": SimpleNamespace(zero_grad=list, step=lambda: committed.append(True)),
        "manager": SimpleNamespace(
            current_step=lambda: len(committed),
            participating_rank=lambda: 0,
            num_participants=lambda: 1,
            is_participating=lambda: True,
        ),
    }


def _meshes(here: World, _: SparkSession | None) -> None:
    tokens = pa.table({"tokens": [list(range(at % 700)) for at in range(400)]})
    corpus = here.dataset("corpus", tokens)
    here.command(Command(("index", corpus, "--pack-length", "8192", "--eos", "2")))
    here.serve(flights=here.dataset("flights", flights()), corpus=corpus)


def _datasets(here: World, _: SparkSession | None) -> None:
    for name in ("flights.csv", "more.csv"):
        Path(name).write_text("origin,delay\n" + f"{name},1\n" * 120)
    here.command(Command(("convert", "flights.csv", f"{here.bucket}/flights")))
    with open_dataset(f"{here.bucket}/flights") as dataset:
        here.fingerprint = dataset.fingerprint
    here.images("photos")
    here.command(Command(("convert", "photos", f"{here.bucket}/photos")))
    _parquet(f"{here.bucket}/warehouse/trips")


def _appended(here: World, _: SparkSession | None) -> None:
    _datasets(here, _)
    here.command(Command(("convert", "more.csv", f"{here.bucket}/flights", "--mode", "append")))


def _loadtest(here: World, _: SparkSession | None) -> None:
    names = ("web", "books")
    urls = {name: here.dataset(name, pa.table({"x": np.arange(10_000)})) for name in names}
    here.images("photos", count=600)
    here.command(Command(("convert", "photos", f"{here.bucket}/photos")))
    urls["photos"] = f"{here.bucket}/photos"
    here.serve(flights=here.dataset("flights", flights(40_000)), **urls)
    mixture = {"datasets": [{"name": name} for name in names]}
    Path("mixture.json").write_text(json.dumps(mixture))


def _transforms(here: World, _: SparkSession | None) -> None:
    here.names |= {"pyarrow": pa}


def _protocol(here: World, _: SparkSession | None) -> None:
    here.serve(flights=here.dataset("flights", flights()))


def _sources(here: World, spark: SparkSession | None) -> None:
    table = texts(100)
    here.names |= {
        "MdsWriter": MdsWriter,
        "commit_mds": commit_mds,
        "store": open_store(str(here.folder / "mds")),
        "schema": table.schema,
        "batches": table.to_batches(),
        "table": table,
        "pq": pq,
        "df": spark and spark.range(10),
        "OpenDataset": OpenDataset,
        "SourceOptions": SourceOptions,
        "Place": Any,
    }


def _iceberg(here: World, _: SparkSession | None) -> None:
    from storage.iceberg.iceberg_tables import new_catalog  # noqa: PLC0415 - needs an extra

    patch = here.stack.enter_context(pytest.MonkeyPatch.context())
    catalog = new_catalog(here.folder, patch)
    catalog.create_namespace("travel")
    trips = flights()
    catalog.create_table("travel.trips", schema=trips.schema).append(trips)


def _unity(here: World, _: SparkSession | None) -> None:
    catalog = here.stack.enter_context(unity_catalog())
    patch = here.stack.enter_context(pytest.MonkeyPatch.context())
    patch.setenv("DATABRICKS_HOST", catalog.address)
    patch.setenv("DATABRICKS_TOKEN", "any")
    write_deltalake(here.folder / "lake", flights())
    catalog.add("main.travel.trips", str(here.folder / "lake"))


def _hub(here: World, _: SparkSession | None) -> None:
    served = here.stack.enter_context(hub())
    served.repo = "acme/trips"
    sink = io.BytesIO()
    pq.write_table(flights(), sink)
    card = b"---\nconfigs:\n- {config_name: en, data_files: data/*}\n---\n"
    served.push({"README.md": card, "data/train.parquet": sink.getvalue()})
    served.push({"data/train.parquet": sink.getvalue()}, ref="v1.0")
    converted = {"default/train/0000.parquet": sink.getvalue()}
    served.push(converted, ref="refs/convert/parquet")
    patch = here.stack.enter_context(pytest.MonkeyPatch.context())
    # What HF_ENDPOINT sets, which is read when the package is imported.
    patch.setattr("huggingface_hub.constants.ENDPOINT", served.address)
    template = f"{served.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    patch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)


_PREPARED: dict[str, Callable[[World, SparkSession | None], None]] = {
    "README.md": _readme,
    "docs/augmentation.md": _client,
    "docs/access.md": _client,
    "docs/batches.md": _client,
    "docs/client.md": _client,
    "docs/elastic.md": _elastic,
    "docs/failover.md": _client,
    "docs/meshes.md": _meshes,
    "docs/mixtures.md": _client,
    "docs/numpy.md": _client,
    "docs/private-servers.md": _client,
    "docs/selection.md": _client,
    "docs/stages.md": _client,
    "docs/statistics.md": _client,
    "docs/validation.md": _client,
    "docs/workers.md": _client,
    "docs/convert.md": _convert,
    "docs/convert-text.md": _convert,
    "docs/converter.md": _converter,
    "docs/make-converter.md": _converter,
    "docs/datasets.md": _datasets,
    "docs/stored-index.md": _datasets,
    "docs/unity-catalog.md": _unity,
    "docs/verify.md": _appended,
    "docs/hugging-face-hub.md": _hub,
    "docs/iceberg.md": _iceberg,
    "docs/sizing.md": _appended,
    "docs/lengths.md": _lengths,
    "docs/llm.md": _llm,
    "docs/doctor.md": _loadtest,
    "docs/loadtest.md": _loadtest,
    "docs/server-stages.md": _transforms,
    "docs/protocol.md": _protocol,
    "docs/questions.md": _questions,
    "docs/lane.md": _protocol,
    "docs/lz4.md": _protocol,
    "docs/ring.md": _protocol,
    "docs/mds-writing.md": _sources,
    "docs/parquet.md": _sources,
    "docs/sources.md": _sources,
}
_BY_SPARK = {
    "README.md",
    "docs/converter.md",
    "docs/llm.md",
    "docs/make-converter.md",
    "docs/parquet.md",
    "docs/questions.md",
}


# What single blocks take for granted, or mean.


def _at_a_tls_server(here: World, block: Block) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path("ca.pem")
    for name, place in (("trainer", "trainer"), ("localhost", "server")):
        issued = authority.issue_cert(name)
        issued.cert_chain_pems[0].write_to_path(f"{place}.pem")
        issued.private_key_pem.write_to_path(f"{place}.key")
    token = "a-secret-of-16-characters-or-more"  # noqa: S105 - of this test
    Path("tokens.json").write_text(
        json.dumps({"tokens": [{"name": "team-a", "token": token, "datasets": ["flights"]}]})
    )
    Path("tokens.json").chmod(0o600)
    server = here.stack.enter_context(
        server_of(
            {"flights": f"{here.bucket}/flights"},
            listen="localhost:0",
            tls_cert="server.pem",
            tls_key="server.key",
            tls_client_ca="ca.pem",
            tokens="tokens.json",
        )
    )
    before = dict(here.places)
    here.serve_at(f"localhost:{server.address.rpartition(':')[2]}")
    here.names["read_token"] = lambda: token
    here.python(block)
    here.places = before


def _loggers(here: World, block: Block) -> None:
    """Put in a logger that keeps what it is given: the package is none of ours."""
    kept: list[dict[str, float]] = []
    with pytest.MonkeyPatch.context() as patch:
        keep = SimpleNamespace(log_metrics=lambda found, **_: kept.append(found))
        patch.setitem(sys.modules, "mlflow", keep)
        here.python(block)


def _gradients(here: World, block: Block) -> None:
    made = headrace.client.RemoteDataset(here.names["server"], "line", batch_size=64, epochs=1)
    here.names["dataset"] = made
    here.python(block)
    assert 8 == here.read[made]


def _instead(here: World, block: Block) -> None:
    """Convert files to a place of their own: the page shows two ways to make one dataset."""
    Path("flights.csv").write_text("origin,delay\n" + "EWR,1\n" * 120)
    here.shell(replace(block, text=block.text.replace("/flights", "/flights-of-files")))


def _of_spark(here: World, block: Block) -> None:
    """Write to a place of its own: the page begins with a corpus that is there."""
    here.python(replace(block, text=block.text.replace("/corpus", "/corpus-of-spark")))


def _bad_lines(here: World, block: Block) -> None:
    good = "a,1\n"
    lines = ["name,number\n", *[good] * 15, "a,1,2\n", *[good] * 22, '"x"y,1\n']
    Path("flights.csv").write_text("".join(lines))
    here.shell(block)


def _elsewhere(here: World, block: Block) -> None:
    """Give each of these blocks a place of its own: they do not continue one another."""
    here.names["url"] = f"{here.bucket}/line-{block.line}"
    here.python(block)


def _lost_manifest(here: World, block: Block) -> None:
    """Leave nothing but the shards of two conversions, whose tags take the places of the page's."""
    store = open_store(f"{here.bucket}/flights")
    for entry in list(store.list_entries()):
        if not entry.name.startswith("shards/"):
            store.delete(entry.name)
    tags = sorted({name.rpartition("-")[2].removesuffix(".arrow") for name in store.list()})
    store.close()
    assert 2 == len(tags)
    here.places |= dict(zip(("9f3c2a7b", "b1e4407d"), tags, strict=True))
    here.shell(block)


def _settings(here: World, block: Block) -> None:
    secret = here.folder / "run" / "secrets" / "trips"
    secret.parent.mkdir(parents=True)
    secret.write_text("secret-of-trips")
    path = Path("headrace.yaml")
    path.write_text(here.put_in(block.text))
    config = ConfigSource(file=path, environment={"TRIPS_KEY": "key-of-trips"}).load()

    assert set(yaml.safe_load(block.text)["datasets"]) == set(config.datasets)
    trips = config.datasets["trips"]
    assert not isinstance(trips, str)
    assert trips.store is not None
    assert ("key-of-trips", "secret-of-trips") == (trips.store.access_key, trips.store.secret_key)
    assert (32 << 30, 12) == (config.cache_bytes, trips.source.table_version)


def _callers(_: World, block: Block) -> None:
    path = Path("tokens.json")
    path.write_text(block.text.replace("d74f…64 hexadecimal digits", "d7" * 32))

    assert ["team-a", "team-b", "operator"] == [one.name for one in read_tokens(path).values()]


def _as_written(here: World, block: Block) -> None:
    """Compare the names in a printed file with those in one that is written now."""
    if '"headrace-packing"' in block.text:
        assert _names(json.loads(block.text)) == _names(_stored_packing(here))
        return
    url = here.dataset(f"line-{block.line}", flights(200))
    if '"parquet"' in block.text:
        source, url = f"{here.bucket}/warehouse/trips", f"{here.bucket}/indexed"
        _parquet(source)
        here.command(Command(("index", source, "--to", url)))
    store = open_store(url)
    written = json.loads(store.read("headrace.json"))
    store.close()

    assert _names(written) == _names(json.loads(block.text))


def _stored_packing(here: World) -> object:
    tokens = pa.table({"tokens": [list(range(at)) for at in range(100)]})
    url = here.dataset("packed", tokens)
    here.command(Command(("index", url, "--pack-length", "8192", "--eos", "2")))
    store = open_store(url)
    (name,) = (name for name in store.list() if name.endswith("packing.json"))
    stored: object = json.loads(store.read(name))
    store.close()
    return stored


def _names(value: object) -> object:
    if isinstance(value, dict):
        return {name: _names(part) for name, part in value.items()}
    return [_names(part) for part in value] if isinstance(value, list) else type(value)


def _decoder(here: World, block: Block) -> None:
    """Decode the page's example, and a batch of a server, by what the page says."""
    here.python(block)
    columns = here.names["columns"]
    kinds = (
        (pb.COLUMN_KIND_STRING, pb.ELEMENT_TYPE_UINT8),
        (pb.COLUMN_KIND_TENSOR, pb.ELEMENT_TYPE_INT16),
    )
    (string, uint8), (tensor, int16) = kinds
    start = pb.StreamStart(
        columns=[
            pb.Column(name="a", kind=string, element_type=uint8, nullable=True),
            pb.Column(name="b", kind=tensor, element_type=int16, item_shape=[2]),
        ]
    )
    header = pb.BatchHeader(sample_count=3, buffer_bytes=[3, 32, 5, 12])
    payload = bytearray(204)
    payload[:3] = bytes([1, 0, 1])
    payload[64:96] = np.array([0, 2, 2, 5], "<i8").tobytes()
    payload[128:133] = b"abcde"
    payload[192:] = np.array([1, 2, 3, 4, 5, 6], "<i2").tobytes()
    found = columns(start, header, bytes(payload))
    assert ([0, 2, 2, 5], [True, False, True]) == tuple(part.tolist() for part in found["a"][1:])
    assert [[1, 2], [3, 4], [5, 6]] == found["b"][0].tolist()

    request = epoch_request(
        dataset="flights", order=pb.OrderSpec(shuffle=False), global_batch_size=64
    )
    with grpc.insecure_channel(here.names["server"]) as channel:
        seen = read(channel, request)
    served = columns(seen.start, seen.batches[0].header, seen.batches[0].payload)
    assert flights()["distance"][:64].to_pylist() == served["distance"][0].tolist()


def _ring(here: World, block: Block) -> None:
    here.python(block)
    assert "ring" == here.names["dataset"].stats().transport


def _lane(here: World, block: Block) -> None:
    here.python(block)
    assert "lane" == here.names["dataset"].stats().transport


def _one_or_the_other(here: World, block: Block) -> None:
    """Run each line of a block alone: they are two ways to do one thing."""
    for number, line in enumerate(block.text.splitlines()):
        here.names["path"] = str(here.folder / f"{number}.parquet")
        here.python(Block(block.page, block.line + number, block.language, line))


def _two_ranks_then_three(here: World, block: Block) -> None:
    """Run the page's script as one rank, as two that are killed, and as three that go on."""
    here.serve_at(
        here.stack.enter_context(server_of({"stories": f"{here.bucket}/stories"})).address
    )
    saved = Path("state.json")

    def rows_of(rank: int, world_size: int, *, kill_at: int = 0) -> list[list[Any]]:
        steps: list[list[Any]] = []

        def train_step(tokens: torch.Tensor, _: torch.Tensor) -> None:
            if kill_at and len(steps) == kill_at:
                raise _KilledError
            steps.append(tokens.tolist())

        here.names["train_step"] = train_step
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(_KilledError):
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(world_size))
            here.python(block)
        return steps

    whole = rows_of(0, 1)
    assert len(whole) > 8
    ranks = []
    for rank in range(2):
        saved.unlink()
        ranks.append(rows_of(rank, 2, kill_at=3))
    joined = [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]
    state, ranks = saved.read_text(), []
    for rank in range(3):
        saved.write_text(state)
        ranks.append(rows_of(rank, 3))
    joined += [list(itertools.chain(*parts)) for parts in zip(*ranks, strict=True)]
    assert joined == whole


class _KilledError(Exception):
    """Stands for the end of a process."""


def _served(here: World, block: Block) -> None:
    here.serve_really(block)


_OWN: dict[tuple[str, str], Callable[[World, Block], None]] = {
    ("README.md", "headrace convert flights.csv s3://bucket/flights"): _instead,
    ("README.md", "headrace serve flights=s3://bucket/flights --listen 0.0.0.0:"): _served,
    ("docs/quickstart.md", "headrace serve flights=./flights --listen 127.0.0.1:50051"): _served,
    (
        "docs/access.md",
        "from headrace.client import Access, RemoteDataset, TlsConfig",
    ): _at_a_tls_server,
    ("docs/validation.md", "for batch in dataset:"): _gradients,
    ("docs/statistics.md", "import mlflow"): _loggers,
    ("docs/convert-text.md", "$ headrace convert flights.csv /data/flights"): _bad_lines,
    ("docs/converter.md", "from headrace.converter import WriteOptions"): _elsewhere,
    (
        "docs/converter.md",
        'df.write.format("headrace").mode("append").option("compressi',
    ): _elsewhere,
    ("docs/converter.md", "from collections.abc import Iterator"): _elsewhere,
    (
        "docs/verify.md",
        "headrace verify s3://bucket/flights --repair-manifest --shar",
    ): _lost_manifest,
    ("docs/format.md", "{"): _as_written,
    ("docs/llm.md", "from headrace.converter import write_shards"): _of_spark,
    ("docs/llm.md", "import json"): _two_ranks_then_three,
    ("docs/operations.md", "listen: [0.0.0.0:50051]"): _settings,
    ("docs/protocol.md", "import numpy as np"): _decoder,
    ("docs/lane.md", "from headrace.client import Lane, RemoteDataset, Transport"): _lane,
    ("docs/ring.md", "from headrace.client import RemoteDataset"): _ring,
    (
        "docs/parquet.md",
        "pq.write_table(table, path, row_group_size=2_000, write_page",
    ): _one_or_the_other,
    ("docs/callers.md", '{"tokens": ['): _callers,
}


def _run_page(here: World, page: str, *, long: bool) -> None:
    for block in blocks(page):
        key = (page, block.first)
        if _why_not(block) is not None:
            continue
        if key in LONG and not long:
            for command in commands(here.put_in(block.text)):
                parsed(command.words)
        elif key in _OWN:
            _OWN[key](here, block)
        elif block.language == "python":
            here.python(block)
        else:
            here.shell(block)


def _has_more(page: str) -> bool:
    return any(_why_not(block) is None for block in blocks(page))


_PAGES = [page for page in pages() if _has_more(page)]


@pytest.fixture
def here(s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world of its own for a page; private servers are ended afterwards."""
    runtime, folder = tmp_path / "run", tmp_path / "here"
    runtime.mkdir(mode=0o700)
    (folder / "data").mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    with world(folder, s3.url("bucket"), monkeypatch) as made:
        yield made
    end_servers(runtime)


def _start(here: World, page: str, request: pytest.FixtureRequest) -> None:
    spark = request.getfixturevalue("spark") if page in _BY_SPARK else None
    if page in _PREPARED:
        _PREPARED[page](here, spark)


@pytest.mark.parametrize("page", [page for page in _PAGES if page not in LONG_PAGES])
def test_a_page_runs_as_printed(here: World, page: str, request: pytest.FixtureRequest) -> None:
    """One block after another, in one Python and one folder, against real servers and a store."""
    _start(here, page, request)
    _run_page(here, page, long=False)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", sorted({page for page, _ in LONG}))
def test_a_page_runs_whole(here: World, page: str, request: pytest.FixtureRequest) -> None:
    """The same of pages that take long, and of commands that do."""
    _start(here, page, request)
    _run_page(here, page, long=True)


@pytest.mark.parametrize("page", sorted(LONG_PAGES))
def test_a_long_page_can_be_typed(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Python compiles, and its commands and their options are those of the command line."""
    monkeypatch.chdir(tmp_path)
    for name in ("mixture.json", "tokenizer.json"):
        Path(name).write_text("{}")
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, page, "exec")
        else:
            for command in commands(block.text):
                parsed(command.words[: [*command.words, "|"].index("|")])


def test_every_block_is_run_or_has_a_reason() -> None:
    """A block that goes, or changes its first line, takes its entries along."""
    printed = {(block.page, block.first): block for page in pages() for block in blocks(page)}
    unknown = [
        (block.page, block.line)
        for block in printed.values()
        if _why_not(block) is None
        and (block.page, block.first) not in _OWN
        and block.language != "python"
        and not commands(block.text)
    ]

    assert [] == unknown, "run them here, or list them in NOT_RUN with the reason"
    assert [] == sorted({*NOT_RUN, *LONG, *_OWN} - set(printed)), "these are printed no more"
    assert set() == {*NOT_RUN} & {*LONG, *_OWN}
    assert set() == set(_PREPARED) - set(_PAGES)

"""Eighty mistakes of a first hour, and what the answer to each must say.

An answer says what was found, what was wanted, and the next thing to type.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from headrace.client import Batch, BatchLoader, Cast, NumpyDataset, RemoteDataset, tf_dataset
from headrace.client.state.state import State

_CALLED = (BatchLoader, Cast, NumpyDataset, RemoteDataset, tf_dataset)


@dataclass(frozen=True)
class Stage:
    """What there is to make mistakes with.

    Attributes:
        places: What stands for a word in braces: ``{ADDR}`` a server of the dataset ``small``,
            ``{FREE}`` an address where nobody listens, ``{URL}`` the dataset, ``{DIR}`` a folder
            with some files.
        batch: A batch of it.
        state: The state after that batch.
    """

    places: dict[str, str]
    batch: Batch
    state: State
    made: list[RemoteDataset] = field(default_factory=list)

    def dataset(self, target: Any = None, name: Any = "small", **options: Any) -> RemoteDataset:
        """A dataset of the server, in batches of 8 unless something else is said."""
        given = options if options.keys() & {"batch_size", "global_batch_size"} else None
        sizes: dict[str, Any] = {} if given is not None else {"batch_size": 8}
        self.made.append(RemoteDataset(target or self.places["ADDR"], name, **sizes, **options))
        return self.made[-1]

    def first(self, name: Any = "small", **options: Any) -> object:
        """The first batch of such a dataset."""
        return next(iter(self.dataset(name=name, **options)))

    def dataset_in(self, **variables: str) -> RemoteDataset:
        """Such a dataset where some variables of the environment are set."""
        with patch.dict(os.environ, variables):
            return self.dataset()

    def call(self, typed: str) -> object:
        """Evaluate a call: of this package, of the methods above, or of the batch or the state."""
        names: dict[str, object] = {each.__name__: each for each in _CALLED}
        names |= {name: getattr(self, name) for name in ("batch", "state", "dataset", "first")}
        names |= {"dataset_in": self.dataset_in, **self.places}
        return eval(typed, names)  # noqa: S307 - what this file types


@dataclass(frozen=True)
class Mistake:
    """What somebody types, and fragments of the answer.

    Attributes:
        typed: A command line behind ``headrace``, or a call, which `Stage.call` evaluates.
        found: What the answer says of what was typed.
        wanted: What it says should have been.
        following: The next thing to type.
        code: The exit code of a command.
    """

    typed: str
    found: str
    wanted: str
    following: str
    code: int = 2

    def __str__(self) -> str:
        return self.typed


_ADDRESS = "'host:port'"
_HELP = "--help`"
_NO_DATASET = "holds no dataset"
_EVIDENCE = "it contains no headrace.json"

COMMANDS = [
    Mistake("lits", "'lits'", "Did you mean 'list'", f"headrace {_HELP}"),
    Mistake("--vresion", "'--vresion'", "'--version'", f"headrace {_HELP}"),
    Mistake("read", "Missing argument", "'TARGET'", f"headrace read {_HELP}"),
    Mistake("read {ADDR}", "dataset is ''", "expected a name", "`headrace list`"),
    Mistake("read {ADDR} smal", "'smal'", "did you mean 'small'", "`headrace list", code=1),
    Mistake(
        "read {ADDR} {URL}", "{URL}", "a URL is not a name", "`headrace serve NAME=URL`", code=1
    ),
    Mistake("read small {ADDR}", "'small'", _ADDRESS, "pass 'small:50051'"),
    Mistake("read h small", "'h', without a port", _ADDRESS, "pass 'h:50051'"),
    Mistake("read http://h:50051 small", "'http://h:50051'", _ADDRESS, "pass 'h:50051'"),
    Mistake("read grpc://h:50051 small", "'grpc://h:50051'", _ADDRESS, "pass 'h:50051'"),
    Mistake("read h:99999 small", "port 99999", "1 to 65535", _ADDRESS),
    Mistake("read ::1:50051 small", "without brackets", _ADDRESS, "pass '[::1]:50051'"),
    Mistake("read {ADDR} small --colums number", "'--colums'", "'--columns'", _HELP),
    Mistake("read {ADDR} small --columns nmber", "'nmber'", "the dataset has", "number"),
    Mistake("read {ADDR} small --rank 2 --world-size 2", "rank is 2", "[0, 2)", "world size"),
    Mistake("read {ADDR} small --batch-size 0", "0", "x>=1", _HELP),
    Mistake("read {ADDR} small --batch-size many", "'many'", "whole number", _HELP),
    Mistake(
        "read {ADDR} small --batch-size 1000", "600 samples", "smaller --batch-size", "--end uneven"
    ),
    Mistake("read {ADDR} small --end drop", "'drop'", "'drop_last'", _HELP),
    Mistake("read {ADDR} small --token AAAA", "'000000'", "expected", "`headrace read` printed"),
    Mistake("read {ADDR} small --token !!!", "not base64", "expected", "`headrace read` printed"),
    Mistake("read {ADDR} --mixture {DIR}/broken.json", "not JSON", "expected", '"datasets"'),
    Mistake("read {ADDR} --mixture {DIR}/absent.json", "absent.json", "No such file", _HELP),
    Mistake(
        "read {ADDR} small --token-file {DIR}/absent",
        "absent",
        "No such file",
        "give a file",
        code=1,
    ),
    Mistake(
        "read {ADDR} small --tls-ca {DIR}/absent", "absent", "No such file", "a PEM file", code=1
    ),
    Mistake("list {FREE}", "{FREE}", "no headrace server answers", "`headrace serve", code=1),
    Mistake("list {ADDR} --tls", "{ADDR}", "does not speak TLS", "leave out --tls", code=1),
    Mistake("list {URL}", "a path", _ADDRESS, "pass it as dataset"),
    Mistake("health {FREE}", "{FREE}", "no headrace server answers", "`headrace serve", code=1),
    Mistake(
        "health {ADDR} --service smal", "'smal'", "serves no dataset", "`headrace list", code=1
    ),
    Mistake("serve", "no dataset", "at least one", "NAME=URL"),
    Mistake("serve d", "'d'", "NAME=URL", "flowers=s3://bucket/flowers"),
    Mistake("serve {URL}", "{URL}", "NAME=URL", "pass small={URL}"),
    Mistake("serve d={URL} d={URL}", "'d'", "two datasets", _HELP),
    Mistake("serve d={DIR}/empty", "empty", _NO_DATASET, "`headrace convert`", code=1),
    Mistake(
        "serve d={DIR}/a.csv", "it is a file", _NO_DATASET, "`headrace convert {DIR}/a.csv", code=1
    ),
    Mistake("serve d={URL}#123", "{URL}#123", "32 hexadecimal", "`headrace inspect URL`", code=1),
    Mistake("serve d={URL} --listen {ADDR}", "{ADDR}", "in use", "choose another address", code=1),
    Mistake("serve d={URL} --listen nowhere", "'nowhere'", "HOST:PORT", _HELP),
    Mistake("serve d={URL} --cache-bytes lots", "'lots'", "MiB or GiB", _HELP),
    Mistake("serve d={URL} --cahce-bytes 1", "'--cahce-bytes'", "'--cache-bytes'", _HELP),
    Mistake("serve --config {DIR}/absent.yaml", "absent.yaml", "No such file", "operations.md"),
    Mistake("serve --config {DIR}/typo.yaml", "'datsets'", "did you mean datasets", _HELP),
    Mistake("serve --config {DIR}/broken.yaml", "not YAML at line 2", "expected", "operations.md"),
    Mistake("convert {DIR}/absent.csv {DIR}/x", "absent.csv", "does not exist", "a file or folder"),
    Mistake("convert {DIR}/a.csv", "Missing argument", "'DST'", f"headrace convert {_HELP}"),
    Mistake(
        "convert {DIR}/a.csv {URL}", "already contains a dataset", "elsewhere", "--mode", code=1
    ),
    Mistake("convert {DIR}/a.csv {DIR}/a.csv", "is a file", "expected a folder", "s3://bucket"),
    Mistake(
        "convert {DIR}/a.csv {DIR}/a.csv/b/c", "a.csv is a file", "expected a folder", "s3://bucket"
    ),
    Mistake(
        "convert {DIR}/empty.csv {DIR}/x", "the file is empty", "expected a line", "--no-header"
    ),
    Mistake("convert {DIR}/ragged.csv {DIR}/x", "1 field", "expected 2", "--on-error skip"),
    Mistake("convert {DIR}/a.xyz {DIR}/x", "a.xyz", "one of csv", "pass --format"),
    Mistake("convert {DIR}/a.csv {DIR}/x --format parket", "'parket'", "'parquet'", _HELP),
    Mistake("convert {DIR}/a.csv {DIR}/x --columns nope", "'nope'", "there are", "x, y"),
    Mistake("convert {DIR}/a.csv {DIR}/x --type x=int46", "'int46'", "expected a name", "int32"),
    Mistake(
        "convert {DIR}/a.csv {DIR}/x --type x=date32", "a.csv:2: column 'x'", "date32", "or --type"
    ),
    Mistake("convert {DIR}/a.csv {DIR}/x --split train=0.5", "0.5", "fractions", "with the sum 1"),
    Mistake("inspect {DIR}/empty", _EVIDENCE, _NO_DATASET, "`headrace convert`", code=1),
    Mistake(
        "inspect {ADDR}", "{ADDR}", "the address of a server", "`headrace list {ADDR}`", code=1
    ),
    Mistake("inspect {URL} --fingerprint 123", "no version 123", "latest versions", "are ", code=1),
    Mistake("cat {URL} --ids 99999", "99999", "is not in", "[0, 600)"),
    Mistake("cat {URL} --ids abc", "'abc'", "neither an id nor a range", "100-110"),
    Mistake("cat {URL} --ids 5-3", "'5-3'", "runs backwards", "pass 3-5"),
    Mistake("cat {URL} --columns nope", "'nope'", "there are", "number"),
    Mistake(
        "cat {URL} --png {DIR}/x.png", "contain no images", "choose other --columns", "--html FILE"
    ),
    Mistake("inspect s3:/bucket/small", "'s3:/bucket/small'", "one slash", "expected s3://"),
    Mistake("view {DIR}/empty", "empty", _NO_DATASET, "`headrace convert`", code=1),
    Mistake("list {ADDR} --tls-ca {DIR}/a.csv", "a.csv", "not PEM", "a PEM file", code=1),
    Mistake("list {ADDR} --token-file {DIR}/empty.csv", "it is empty", "a file", "token", code=1),
    Mistake("serve d={URL} --listen unix:/no/s", "unix:/no/s", "folder", "create the", code=1),
    Mistake("verify {DIR}/empty", _EVIDENCE, _NO_DATASET, "`headrace convert`", code=1),
    Mistake("order {URL}", "Missing option", "'--global-batch-size'", f"headrace order {_HELP}"),
    Mistake("shuffle {URL} --label nope", "'nope'", "there are", "number"),
    Mistake("gc {URL} --older-than 7", "'7'", "a number with s, m, h or d", "such as 7d"),
    Mistake("gc {DIR}/empty", "no headrace.json", "which files are needed", "--repair", code=1),
    Mistake("loadtest {ADDR} small --rescale 8", "'8'", "OLD:NEW@P%", "8:6@50%"),
    Mistake(
        "loadtest {ADDR} small --picture {DIR}/no/x.png", "does not exist", "in which x.png", _HELP
    ),
    Mistake("doctor {ADDR} small --need fast", "'fast'", "samples per second", "5000/s"),
]

CALLS = [
    Mistake(
        "next(iter(RemoteDataset(ADDR, 'small')))",
        "neither batch_size",
        "the samples per batch",
        "pass batch_size=",
    ),
    Mistake("dataset(batch_size='32')", "'32', of type str", "an int", "pass 32"),
    Mistake("dataset('small', ADDR)", "target is 'small'", _ADDRESS, "swap the two"),
    Mistake(
        "dataset(columns='number')",
        "'number', of type str",
        "a list of column names",
        "pass ['number']",
    ),
    Mistake("dataset(rank=1)", "rank=1 and world_size=None", "both", "or neither"),
    Mistake("dataset_in(RANK='1')", "RANK='1'", "no WORLD_SIZE", "torchrun"),
    Mistake("dataset(end='drop')", "'drop'", "one of", "'drop_last'"),
    Mistake("dataset(stages=[len])", "of type builtin_function", "a list of stages", "transform="),
    Mistake("first(stages=[Cast('numbr', 'int64')])", "'numbr'", "there are", "number"),
    Mistake(
        "dataset(transform='flip')", "'flip', of type str", "a function of a batch", "stages=["
    ),
    Mistake("dataset(order='random')", "'random', of type str", "expected", "Order(shuffle_bytes="),
    Mistake("dataset(transport='ring')", "'ring', of type str", "expected", "Transport('ring')"),
    Mistake("dataset(device='gpu')", "'gpu'", "expected", "'cuda'"),
    Mistake(
        "dataset().resume(b'abc')", "start with '616263'", "not a headrace token", "Batch.token"
    ),
    Mistake("dataset().map(len)", "no attribute 'map'", "called with each batch", "transform="),
    Mistake("dataset().shuffle()", "no attribute 'shuffle'", "already shuffled", "seed="),
    Mistake("dataset()[0]", "no item 0", "for batch in dataset", "`headrace cat"),
    Mistake("batch['nmber']", "'nmber'", "the batch has", "number"),
    Mistake("batch['blob'].float()", "no attribute 'float'", "not a tensor", "DecodeImage("),
    Mistake("batch['name'].to('cpu')", "no attribute 'to'", "not a tensor", "transform="),
    Mistake("batch.to('gpu')", "'gpu'", "expected one of torch's", "'cuda'"),
    Mistake("dataset().load_state_dict({})", "keys []", "expected", "state_dict()"),
    Mistake(
        "dataset(seed=5).load_state_dict(state)",
        "seed: 5 requested",
        "the token has 0",
        "the options of the run",
    ),
    Mistake(
        "dataset(batch_size=9).load_state_dict(state)",
        "batch_size=9",
        "the state has 8",
        "give batch_size=8",
    ),
    Mistake(
        "dataset(name=['web', 'books'])",
        "'web'",
        "pairs of name and weight",
        '[("web", 0.7), ("books", 0.3)]',
    ),
    Mistake(
        "dataset(name=[('web', 1), ('web', 2)])", "'web'", "share the name", "each dataset once"
    ),
    Mistake(
        "tf_dataset(dataset())", "type RemoteDataset", "a NumpyDataset", "tf_dataset(NumpyDataset("
    ),
    Mistake(
        "BatchLoader(dataset(), num_workers=0, prefetch_factor=2)",
        "prefetch_factor=2",
        "expected workers",
        "prefetch_bytes",
    ),
    Mistake("dataset().log_stats('wand')", "'wand', of type str", "'wandb'", "a function"),
    Mistake(
        "NumpyDataset(ADDR, 'small', batch_size=0)", "batch_size is 0", "expected an int", "[1, "
    ),
]

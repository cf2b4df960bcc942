"""Find problems before a long job, with one task and one small object.

Contract of `prepare`:

1. The driver writes and deletes an object, so refused credentials and missing permissions are
   reported at once. If executors are other machines, one of them does the same, and the driver
   checks whether it sees that object, since a path must be shared by all.
2. One task imports the packages of tasks, and unpickles what will be sent to them. A session is
   tested once for each set of packages if executors are on this machine, and each time otherwise.
3. Executors without this code, or with another version of it, receive it and are tested again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import pyarrow as pa
from pyspark import cloudpickle

from headrace.converter.spark.job import context_of, run_job
from headrace.converter.spark.ship_code import code_digest, ship
from headrace.converter.tasks.failure import packed_for_driver
from headrace.converter.tasks.shard_task import ShardTask
from headrace.errors import ConfigurationError, HeadraceError, ObjectNotFoundError
from headrace.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CORE = ("numpy", "pyarrow", "xxhash")
_INSTALL = "install what is missing on all executors (pip install 'headrace[converter]')"

_asked: WeakKeyDictionary[Any, set[tuple[str, ...]]] = WeakKeyDictionary()
"""The tests already done with sessions on this machine."""


def prepare(session: SparkSession, task: ShardTask) -> None:
    """Prepare executors for a task, or report what prevents it.

    Args:
        session: The session that will run the task.
        task: The task.

    Raises:
        ConfigurationError: An executor lacks a package, cannot unpickle the function, or writes
            to a path that the driver does not see.
        StoreRefusedError: The store does not let an executor write.
        StoreUnavailableError: An executor cannot reach the store.
    """
    silent = replace(task, count=None, tell=None)
    store = open_store(task.url, options=task.options)
    try:
        if _is_local(session):
            _ask_once(session, silent)
        else:
            _ask(session, silent, store)
    finally:
        store.close()


def _is_local(session: SparkSession) -> bool:
    """Return whether executors are threads of a driver on this machine."""
    context = context_of(session.range(0))
    return context is not None and (context.master or "").split("[")[0] == "local"


def _ask_once(session: SparkSession, task: ShardTask) -> None:
    asked = _asked.setdefault(session, set())
    packages = _packages(task)
    if task.plan.function is None and packages in asked:
        return
    _ask(session, task, None)
    asked.add(packages)


def _ask(session: SparkSession, task: ShardTask, store: Store | None) -> None:
    report = _report(session, task, writes=store is not None)
    if report["code"] != code_digest() and not report["missing"]:
        ship(session)
        report = _report(session, task, writes=store is not None)
    where = f"the executor on {report['host']} (Python {report['python']}, {report['path']})"
    if report["missing"]:
        raise ConfigurationError(
            f"{where} cannot import {', '.join(report['missing'])}; {_INSTALL}; no task was started"
        )
    if report["code"] != code_digest():
        raise ConfigurationError(
            f"{where} imports another headrace ({report['code'] or 'none'}) even after this one "
            f"({code_digest()}) was sent; {report['problem'] or 'start a new session'}"
        )
    if report["problem"]:
        raise ConfigurationError(
            f"{where} cannot load what is sent to it: {report['problem']}; install it there, or "
            "send it (SparkContext.addPyFile, SparkSession.addArtifacts); no task was started"
        )
    if store is not None:
        _refuse_unseen(store, report["object"], where)


def _refuse_unseen(store: Store, name: str, where: str) -> None:
    try:
        store.read(name)
    except ObjectNotFoundError as error:
        raise ConfigurationError(
            f"{where} wrote {name} to {store.url}, but the driver does not find it there: the path "
            "is not shared; write to an object store, or to a folder that all machines mount"
        ) from error
    with contextlib.suppress(HeadraceError):
        store.delete(name)


def _report(session: SparkSession, task: ShardTask, *, writes: bool) -> dict[str, Any]:
    pickled = cloudpickle.dumps(task)  # type: ignore[no-untyped-call] # it has no stubs
    ask = _question(_packages(task), pickled, writes=writes)
    rows = run_job(session.range(0, 1, 1, 1).mapInArrow(ask, "report string"))
    answer: dict[str, Any] = json.loads(rows[0]["report"])
    return answer


def _packages(task: ShardTask) -> tuple[str, ...]:
    scheme = urlsplit(task.url).scheme if "://" in task.url else "file"
    store = {"file": (), "s3": ("boto3",)}.get(scheme, ("fsspec",))
    function = task.plan.function
    pandas = ("pandas",) if function is not None and function.over == "pandas" else ()
    return (*_CORE, *store, *pandas)


def _question(
    packages: tuple[str, ...], pickled: bytes, *, writes: bool
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of the probing task.

    It is defined here so that its code is pickled: a function of a module would be looked up in the
    very package that may be missing.
    """

    def ask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib  # noqa: PLC0415 - on the executor
        import json  # noqa: PLC0415
        import pickle  # noqa: PLC0415
        import platform  # noqa: PLC0415
        import socket  # noqa: PLC0415
        import sys  # noqa: PLC0415

        list(batches)
        missing, problem, code, name = [], "", "", ""
        for package in packages:
            try:
                importlib.import_module(package)
            except ImportError as error:
                missing.append(f"{package} ({error})")
        importlib.invalidate_caches()
        if not missing:
            try:
                code = importlib.import_module("headrace.converter.spark.ship_code").code_digest()
                task = pickle.loads(pickled)  # noqa: S301 - as Spark does with all it sends
            except Exception as error:  # noqa: BLE001 - whatever it is, it is reported
                problem = f"{type(error).__name__}: {error}"
            else:
                if writes:
                    name = importlib.import_module("headrace.converter.spark.probe").left_object(
                        task
                    )
        report = {
            "host": socket.gethostname(),
            "python": platform.python_version(),
            "path": sys.executable,
            "missing": missing,
            "problem": problem,
            "code": code,
            "object": name,
        }
        yield pa.record_batch({"report": pa.array([json.dumps(report)])})

    return ask


def left_object(task: ShardTask) -> str:
    """Write a small object as the task would, and return its name for the driver to check."""
    name = f"headrace-probe-{task.job}-executor"
    with packed_for_driver():
        store = open_store(task.url, options=task.options)
        try:
            store.write(name, b"")
        finally:
            store.close()
    return name

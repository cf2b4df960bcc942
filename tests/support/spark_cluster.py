"""A standalone cluster of Spark on this machine: a master and two workers, each a host of its own.

Two hosts, since Spark starts no copy of a slow task on the host where that runs: so a cluster
inside one JVM (``local-cluster``), of which all workers have one host, never copies any.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyspark

_HOSTS = ("127.0.0.1", "127.0.0.2")  # the loopback device of Linux answers to all of 127.0.0.0/8
_START_S = 240.0  # three JVMs, on a machine that is busy with others
_END_S = 20.0
_POLL_S = 0.1
QUICK_START = {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""Variables for JVMs that live for seconds: half the processor time until they are there."""
_STARTED = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Registering worker ")


@contextlib.contextmanager
def spark_cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Run a master and two workers of one core each.

    Args:
        folder: For their logs and files; made.
        environment: Of all their processes, executors too.

    Yields:
        The master's URL.
    """
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        log = folder / "master.log"
        master = ["deploy.master.Master", "--host", _HOSTS[0], "--port", "0", "--webui-port", "0"]
        stack.enter_context(_process(master, log, environment))
        (url,) = _waited(log, _STARTED, count=1)
        for host in _HOSTS:
            worker = ["deploy.worker.Worker", "--host", host, "--webui-port", "0"]
            limits = ["--cores", "1", "--memory", "600m", "--work-dir", str(folder / host), url]
            own = {**environment, "SPARK_LOCAL_IP": host}
            stack.enter_context(_process(worker + limits, folder / f"{host}.log", own))
        _waited(log, _REGISTERED, count=len(_HOSTS))
        yield url


@contextlib.contextmanager
def _process(arguments: list[str], log: Path, environment: Mapping[str, str]) -> Iterator[None]:
    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-class"), f"org.apache.spark.{arguments[0]}"]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, *arguments[1:]],
            stdout=out,
            stderr=out,
            env={**os.environ, **environment, "SPARK_DAEMON_MEMORY": "256m"},
        )
    try:
        yield
    finally:
        process.terminate()  # a worker ends its executors with it
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _waited(log: Path, pattern: re.Pattern[str], *, count: int) -> list[str]:
    deadline = time.monotonic() + _START_S
    while True:
        found = pattern.findall(log.read_text())
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(_POLL_S)

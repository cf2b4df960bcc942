"""`headrace shuffle`: compare the cost and evenness of shuffle settings."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options.shared import seed_option
from headrace.cli.options.types import NOT_NEGATIVE, PICTURE, SIZE
from headrace.cli.show.texts import size

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.cli.stored.evenness import Evenness
    from headrace.order import Order
    from headrace.storage import OpenDataset

_GIB = 1 << 30
# Longer epochs are not measured label by label; this many samples take 3 s.
_MOST_MEASURED = 1 << 25
_MOST_POINTS = 20_000


@click.command(name="shuffle")
@click.argument("url", metavar="URL")
@click.option(
    "--label",
    metavar="COLUMN",
    help="Measure how evenly the values of this column are distributed.",
)
@click.option(
    "--run-bytes",
    "runs",
    type=SIZE,
    multiple=True,
    help="Bytes to read together; can be given several times.  [default: 1MiB, 2MiB, 4MiB]",
)
@click.option(
    "--shuffle-bytes",
    "memories",
    type=SIZE,
    multiple=True,
    help="Bytes to shuffle together, 0 for the whole epoch; can be given several times. "
    "[default: 2GiB]",
)
@click.option(
    "--lanes",
    type=click.IntRange(min=1, max=64),
    default=1,
    show_default=True,
    help="How many parts of the data to shuffle separately.",
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=256,
    show_default=True,
    help="Samples per batch over all ranks.",
)
@seed_option
@click.option(
    "--read",
    "max_bytes",
    type=SIZE,
    default="1GiB",
    show_default=True,
    help="Maximum number of stored bytes to read for the labels, evenly spaced.",
)
@click.option(
    "--get-price",
    type=NOT_NEGATIVE,
    default=0.4,
    show_default=True,
    help="Price of a million reads.",
)
@click.option(
    "--picture",
    type=PICTURE,
    help="Plot the place in storage against the position in the epoch, as PNG or SVG.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per setting.")
def command(
    *,
    url: str,
    label: str | None,
    runs: tuple[int, ...],
    memories: tuple[int, ...],
    lanes: int,
    batch_size: int,
    seed: int,
    max_bytes: int,
    get_price: float,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Compare shuffle settings for the dataset at URL, without a server.

    For each setting it prints the memory that a server needs, the number of reads per GiB, their
    price per TiB, and how much is read before the first batch. With --label it also prints how
    evenly the column's values are distributed: the variance of their counts in batches of 256,
    1,024 and 4,096, relative to a uniform order; the number of different values in 1,024 samples;
    and the longest absence of a value, in percent of the epoch.

    \b
    headrace shuffle s3://bucket/imagenet --label label
    headrace shuffle s3://bucket/imagenet --run-bytes 4MiB --shuffle-bytes 8GiB --picture o.png
    """
    from headrace.cli.stored.labels import read_labels  # noqa: PLC0415 - needs the [storage] extra
    from headrace.storage import open_dataset  # noqa: PLC0415

    with open_dataset(url) as dataset:
        if not dataset.sample_count:
            raise click.UsageError(f"{url} has no samples.")
        labels = None
        if label is not None and dataset.sample_count <= _MOST_MEASURED:
            found = read_labels(dataset, label, max_bytes=max_bytes)
            labels = found.labels
            if found.read < found.blocks:
                click.echo(
                    f"{found.read} of {found.blocks} blocks were read; samples between them are "
                    "assumed to have the previous label (--read reads more)",
                    err=True,
                )
        elif label is not None:
            click.echo(
                f"an epoch of {dataset.sample_count} samples is too long to measure label by "
                f"label; expected at most {_MOST_MEASURED}",
                err=True,
            )
        choices = [
            _choice(dataset, run, memory, lanes=lanes, batch_size=batch_size, seed=seed)
            for run, memory in itertools.product(
                runs or (1 << 20, 2 << 20, 4 << 20), memories or (2 << 30,)
            )
        ]
        rows = [
            _row(dataset, order, labels, batch_size=batch_size, get_price=get_price)
            for order in choices
        ]
        if picture is not None:
            _draw(choices, picture)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row.facts()))
        return
    click.echo(
        f"{url}: {dataset.sample_count} samples, {size(dataset.raw_bytes)}, "
        f"{size(dataset.stored_bytes)} stored"
    )
    _show(rows)
    click.echo(
        f"A server whose disk cache (cache_dir) has room for all {size(dataset.stored_bytes)} "
        "reads each block only once in any order, so --shuffle-bytes 0 costs nothing there."
    )


@dataclass(frozen=True, slots=True)
class _Row:
    run_bytes: int
    shuffle_bytes: int
    memory_bytes: int
    uniform: bool
    reads_per_gib: float
    price_per_tib: float
    first_batch_bytes: int
    evenness: Evenness | None

    def facts(self) -> dict[str, object]:
        """Return what a line of JSON says."""
        facts = asdict(self)
        facts.pop("evenness")
        return facts | (asdict(self.evenness) if self.evenness else {})


def _choice(
    dataset: OpenDataset, run: int, memory: int, *, lanes: int, batch_size: int, seed: int
) -> Order:
    from headrace.order import Order, OrderSpec, table_of  # noqa: PLC0415

    spec = OrderSpec(
        seed=seed,
        run_bytes=run,
        shuffle_bytes=memory,
        lanes=lanes,
        unit=max(batch_size, lanes),
    )
    return Order(spec, table_of(dataset.stretches()))


def _row(
    dataset: OpenDataset,
    order: Order,
    labels: NDArray[np.int64] | None,
    *,
    batch_size: int,
    get_price: float,
) -> _Row:
    import numpy as np  # noqa: PLC0415

    from headrace.cli.stored.evenness import measure  # noqa: PLC0415

    count, spec = order.sample_count, order.spec
    first, _ = dataset.locate(order.sample_ids(0, 0, min(batch_size, count)))
    is_uniform = order.memory_samples >= count
    memory = min(order.memory_samples * spec.lanes, count) * dataset.raw_bytes // count
    # Without enough memory, a uniform order needs one read per sample.
    has_memory = spec.shuffle_bytes > 0
    reads = order.run_count if has_memory else count
    per_gib = reads / max(dataset.stored_bytes / _GIB, 1e-9)
    evenness = None
    if labels is not None:
        evenness = measure(labels[order.sample_ids(0, 0, count)])
    return _Row(
        run_bytes=spec.run_bytes,
        shuffle_bytes=spec.shuffle_bytes,
        memory_bytes=memory,
        uniform=is_uniform,
        reads_per_gib=per_gib,
        price_per_tib=per_gib * 1024 * get_price / 1e6,
        first_batch_bytes=int(dataset.block_stored_bytes(np.unique(first)).sum()),
        evenness=evenness,
    )


def _show(rows: Sequence[_Row]) -> None:
    heads = ["run", "memory", "reads/GiB", "price/TiB", "first batch"]
    measured = rows[0].evenness is not None
    if measured:
        heads += ["variance", "labels", "away, mean", "away, most"]
    lines = [heads]
    for row in rows:
        line = [
            size(row.run_bytes),
            size(row.memory_bytes) + (" (uniform)" if row.uniform else ""),
            f"{row.reads_per_gib:,.0f}",
            f"{row.price_per_tib:.2f}",
            size(row.first_batch_bytes),
        ]
        if row.evenness is not None:
            found = row.evenness
            line += [
                " / ".join(f"{each:.2f}" for each in found.variances),
                f"{found.labels:.0f}",
                f"{found.absence:.1f} %",
                f"{found.longest:.1f} %",
            ]
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(cells))


def _draw(orders: Sequence[Order], path: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only where a picture is wanted

    mpl.use("Agg")
    import numpy as np  # noqa: PLC0415
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(
        1, len(orders), figsize=(5 * len(orders), 5), layout="constrained", squeeze=False
    )
    for order, axis in zip(orders, axes[0], strict=True):
        count = order.sample_count
        positions = np.unique(np.linspace(0, count - 1, min(_MOST_POINTS, count)).astype(np.int64))
        axis.plot(positions, order.at(0, positions), ",", color="tab:blue")
        spec = order.spec
        axis.set(title=f"runs of {size(spec.run_bytes)}, {size(spec.shuffle_bytes)} of memory")
        axis.set(xlabel="position in the epoch", ylabel="place in storage")
    figure.savefig(path, dpi=120)
    plt.close(figure)

"""Write samples as a page or as one picture: images in a grid, with their other columns."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from headrace.cli.show.pictures import (
    Sample,
    data_uri,
    media_type,
    picture,
    picture_columns,
    png_of,
    texts,
)
from headrace.cli.show.texts import printable, value_text
from headrace.errors import BadArgumentError, ConfigurationError

_SIDE = 192
_CAPTION = 14
_MARGIN = 8
_GREY, _DARK, _PAPER = (221, 221, 221), (85, 85, 85), (255, 255, 255)

_MOST_TILES = 1024
"""Pixels of a picture: 6,000 x 6,000, which viewers still open."""

_MOST_IMAGE_BYTES, _MOST_PAGE_BYTES = 4 << 20, 64 << 20
"""Bytes of a file that a page contains unchanged, and of a page (arbitrary: what browsers open
quickly).
"""

_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'">
<title>{title}</title>
<style>
body {{ font: 14px sans-serif; margin: 1em }}
main {{ display: flex; flex-wrap: wrap; gap: 12px; align-items: flex-start }}
figure {{ margin: 0; padding: 8px; border: 1px solid #ddd; max-width: 320px }}
img {{ display: block; max-width: 304px; max-height: 304px; min-width: 64px; \
image-rendering: pixelated }}
.none {{ width: 192px; padding: 24px 8px; box-sizing: border-box; text-align: center; \
color: #555; background: repeating-linear-gradient(45deg, #eee, #eee 8px, #ddd 8px, #ddd 16px) }}
.null {{ color: #999; font-style: italic }}
dl {{ margin: 4px 0 0 0; overflow-wrap: anywhere }}
dt {{ float: left; clear: left; margin-right: 6px; font-weight: bold }}
dd {{ margin: 0 }}
</style>
</head>
<body>
<h1>{title}</h1>
<main>
"""
_FOOT = "</main>\n</body>\n</html>\n"


def write_page(
    path: Path, samples: Sequence[Sample], *, schema: object, forms: Mapping[str, str], title: str
) -> None:
    """Write samples as one self-contained HTML file, without scripts or links.

    Args:
        path: The file to write.
        samples: The samples to show.
        schema: The schema of the dataset, an Arrow schema.
        forms: The dataset's notes on the formats of columns.
        title: The title of the page.
    """
    shown = picture_columns(schema, samples)  # type: ignore[arg-type] # Arrow is loaded when it is needed
    head = _HEAD.format(title=escape(printable(title)))
    pieces, left = [head], _MOST_PAGE_BYTES
    for sample in samples:
        card = "".join(_card(sample, shown, forms, left))
        left -= len(card)
        if left < 0:
            raise BadArgumentError(
                f"a page of these samples would exceed {_MOST_PAGE_BYTES >> 20} MiB at sample "
                f"{sample.sample_id}; choose fewer samples with --limit or --ids, or fewer "
                "--columns",
                field="ids",
            )
        pieces.append(card)
    _write(path, "".join([*pieces, _FOOT]).encode())


def _card(
    sample: Sample, shown: Sequence[str], forms: Mapping[str, str], left: int
) -> Iterator[str]:
    yield f"<figure><figcaption>sample {sample.sample_id}</figcaption>\n"
    for name in shown:
        yield _image(sample.values[name], printable(name), left)
    yield "<dl>\n"
    rest = [name for name in sample.values if name not in shown]
    for (name, text), value in zip(
        texts(sample.values, rest, forms), (sample.values[each] for each in rest), strict=True
    ):
        kind = " class='null'" if value is None else ""
        yield f"<dt>{escape(printable(name))}</dt><dd{kind}>{escape(text)}</dd>\n"
    yield "</dl></figure>\n"


def _image(value: object, name: str, left: int) -> str:
    media = media_type(value)
    title = escape(f"{name}: {value_text(value)}", quote=True)
    if media is not None and isinstance(value, bytes):
        if len(value) > min(_MOST_IMAGE_BYTES, left):
            return f"<div class='none' title='{title}'>{title}, too large for a page</div>\n"
        return f"<img alt='{title}' title='{title}' src='{data_uri(value, media)}'>\n"
    drawn = value_text(value) if isinstance(value, bytes) else picture(value, _SIDE)
    if isinstance(drawn, str):
        return f"<div class='none'>{escape(name)}: {escape(drawn)}</div>\n"
    return f"<img alt='{title}' title='{title}' src='{data_uri(png_of(drawn), 'image/png')}'>\n"


def write_grid(path: Path, samples: Sequence[Sample], *, schema: object) -> None:
    """Write the images of samples as one PNG, in a grid, each with its id below.

    Args:
        path: The file to write.
        samples: The samples to show; nulls and undecodable images are hatched tiles with a note.
        schema: The schema of the dataset, an Arrow schema.

    Raises:
        BadArgumentError: There are no images among them, or too many.
    """
    shown = picture_columns(schema, samples)  # type: ignore[arg-type] # Arrow is loaded when it is needed
    if not shown:
        raise BadArgumentError(
            "these samples contain no images, which are PNG, JPEG, GIF or WebP files or uint8 "
            "arrays of two or three dimensions; expected a column of images, or --html FILE",
            field="columns",
        )
    tiles = [
        (
            f"{sample.sample_id} {printable(name)}" if len(shown) > 1 else str(sample.sample_id),
            sample.values[name],
        )
        for sample in samples
        for name in shown
    ]
    if len(tiles) > _MOST_TILES:
        raise BadArgumentError(
            f"{len(tiles):,} images; expected at most {_MOST_TILES:,} in one picture: choose fewer "
            "with --limit, --ids or --columns",
            field="ids",
        )
    _write(path, _drawn(tiles))


def _drawn(tiles: Sequence[tuple[str, object]]) -> bytes:
    first = picture([[0]], 1)  # for its error if Pillow is not installed
    assert not isinstance(first, str)
    from PIL import Image, ImageDraw  # noqa: PLC0415 - of the [images] extra

    wide = math.ceil(math.sqrt(len(tiles)))
    high = math.ceil(len(tiles) / wide)
    across, down = _SIDE + _MARGIN, _SIDE + _MARGIN + _CAPTION
    canvas = Image.new("RGB", (wide * across + _MARGIN, high * down + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(canvas)
    for number, (caption, value) in enumerate(tiles):
        left = _MARGIN + number % wide * across
        top = _MARGIN + number // wide * down
        drawn = picture(value, _SIDE)
        if isinstance(drawn, str):
            for offset in range(0, 2 * _SIDE, 16):
                start, end = max(0, offset - _SIDE), min(offset, _SIDE)
                pen.line(
                    (left + start, top + offset - start, left + end, top + offset - end), _GREY
                )
            pen.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), outline=_GREY)
            pen.text((left + 4, top + 4), _fitting(drawn), _DARK)
        else:
            at = (left + (_SIDE - drawn.width) // 2, top + (_SIDE - drawn.height) // 2)
            canvas.paste(drawn, at, drawn if drawn.mode == "RGBA" else None)
        pen.text((left, top + _SIDE + 1), _fitting(caption), _DARK)
    return png_of(canvas)


def _fitting(text: str) -> str:
    # Pillow's own font has only Latin-1 characters if it was built without FreeType.
    return text.encode("ascii", "replace").decode("ascii")[:30]


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written ({error.strerror}); give a path in an existing folder to "
            "which you can write"
        ) from error

"""Write samples as an HTML page or as one picture, with images in a grid."""

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
)
from headrace.cli.show.texts import printable, value_text
from headrace.errors import BadArgumentError, ConfigurationError

_SIDE = 192
_CAPTION_HEIGHT = 14
_MARGIN = 8
_GREY, _DARK, _PAPER = (221, 221, 221), (85, 85, 85), (255, 255, 255)

_MAX_TILES = 1024
"""For a picture of about 6,000 x 6,000 pixels, which viewers still open."""

_MAX_IMAGE_BYTES, _MAX_PAGE_BYTES = 4 << 20, 64 << 20
"""Of a file that a page contains unchanged, and of a page (arbitrary: browsers open it quickly)."""

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
        forms: The formats of columns that their types do not tell, such as ``bfloat16``.
        title: The title of the page.
    """
    shown = picture_columns(schema, samples)  # type: ignore[arg-type] # Arrow is loaded when it is needed
    head = _HEAD.format(title=escape(printable(title)))
    pieces, left = [head], _MAX_PAGE_BYTES
    for sample in samples:
        card = "".join(_card(sample, shown, forms, left))
        left -= len(card)
        if left < 0:
            raise BadArgumentError(
                f"a page of these samples would exceed {_MAX_PAGE_BYTES >> 20} MiB at sample "
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
    for name in rest:
        value = sample.values[name]
        kind = " class='null'" if value is None else ""
        text = escape(value_text(value, forms.get(name, "")))
        yield f"<dt>{escape(printable(name))}</dt><dd{kind}>{text}</dd>\n"
    yield "</dl></figure>\n"


def _image(value: object, name: str, left: int) -> str:
    media = media_type(value)
    title = escape(f"{name}: {value_text(value)}", quote=True)
    if media is not None and isinstance(value, bytes):
        if len(value) > min(_MAX_IMAGE_BYTES, left):
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
        samples: The samples to show. Nulls and undecodable images are hatched, with a note.
        schema: The schema of the dataset, an Arrow schema.

    Raises:
        BadArgumentError: The samples contain no images, or too many.
    """
    shown = picture_columns(schema, samples)  # type: ignore[arg-type] # Arrow is loaded when it is needed
    if not shown:
        raise BadArgumentError(
            "these samples contain no images, which are PNG, JPEG, GIF or WebP files, or uint8 "
            "arrays of two or three dimensions; choose other --columns, or use --html FILE",
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
    if len(tiles) > _MAX_TILES:
        raise BadArgumentError(
            f"{len(tiles):,} images; expected at most {_MAX_TILES:,} in one picture: choose fewer "
            "with --limit, --ids or --columns",
            field="ids",
        )
    _write(path, _grid_png(tiles))


def _grid_png(tiles: Sequence[tuple[str, object]]) -> bytes:
    picture([[0]], 1)  # raises if Pillow is not installed
    from PIL import Image, ImageDraw  # noqa: PLC0415 - of the [images] extra

    columns = math.ceil(math.sqrt(len(tiles)))
    rows = math.ceil(len(tiles) / columns)
    step_x, step_y = _SIDE + _MARGIN, _SIDE + _MARGIN + _CAPTION_HEIGHT
    canvas = Image.new("RGB", (columns * step_x + _MARGIN, rows * step_y + _MARGIN), _PAPER)
    pen = ImageDraw.Draw(canvas)
    for number, (caption, value) in enumerate(tiles):
        left = _MARGIN + number % columns * step_x
        top = _MARGIN + number // columns * step_y
        drawn = picture(value, _SIDE)
        if isinstance(drawn, str):
            for offset in range(0, 2 * _SIDE, 16):
                start, end = max(0, offset - _SIDE), min(offset, _SIDE)
                pen.line(
                    (left + start, top + offset - start, left + end, top + offset - end), _GREY
                )
            pen.rectangle((left, top, left + _SIDE - 1, top + _SIDE - 1), outline=_GREY)
            pen.text((left + 4, top + 4), _caption(drawn), _DARK)
        else:
            at = (left + (_SIDE - drawn.width) // 2, top + (_SIDE - drawn.height) // 2)
            canvas.paste(drawn, at, drawn if drawn.mode == "RGBA" else None)
        pen.text((left, top + _SIDE + 1), _caption(caption), _DARK)
    return png_of(canvas)


def _caption(text: str) -> str:
    # Without FreeType, Pillow's own font has only Latin-1 characters.
    return text.encode("ascii", "replace").decode("ascii")[:30]


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be written ({error.strerror}); give a path in a folder that exists "
            "and is writable"
        ) from error

"""How values of samples read in `headrace cat`."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from headrace.cli.show.image_sides import image_sides
from headrace.cli.show.texts import size, value_text


def _encoded(form: str, **options: object) -> bytes:
    sink = io.BytesIO()
    Image.new("RGB", (48, 32), "teal").save(sink, form, **options)
    return sink.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF"])
def test_images_are_shown_by_format_and_size(form: str) -> None:
    """Width, height and bytes; no pixel is decoded."""
    content = _encoded(form)

    assert f"{form} 48 x 32, {len(content)} B" == value_text(content)


def test_sides_of_other_jpegs() -> None:
    """A progressive JPEG with a comment before its frame has its sides too."""
    content = _encoded("JPEG", progressive=True, comment=b"x" * 300)

    assert (48, 32) == image_sides(content)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "GIF"])
def test_images_that_break_off_have_no_sides(form: str) -> None:
    """Wherever a file ends, the answer is its sides or none, and never an error."""
    content = _encoded(form)

    assert {image_sides(content[:stop]) for stop in range(len(content))} == {None, (48, 32)}


def test_a_sound_is_not_an_image() -> None:
    """WAV files are RIFF files too, like WebP."""
    sound = b"RIFF\x24\0\0\0WAVEfmt "

    assert "52 49 46 46 24 00 00 00… (16 bytes)" == value_text(sound)
    assert f"WebP image, {len(_encoded('WEBP'))} B" == value_text(_encoded("WEBP"))


def test_bfloat16_is_shown_as_the_numbers_it_is() -> None:
    """Alone and in lists, nulls as nulls."""
    assert ["1", "-2.5", "null"] == [
        value_text(bits, "bfloat16") for bits in (0x3F80, 0xC020, None)
    ]
    assert value_text([0x3F80, 0x4000], "bfloat16") == "[1, …] 2"


def test_sizes_have_no_exponent() -> None:
    """Three digits, or all digits before the point."""
    sizes = {7: "7 B", 1536: "1.5 KiB", 1020 << 10: "1020 KiB", 5000 << 40: "5000 TiB"}
    assert list(sizes.values()) == [size(count) for count in sizes]

"""Cut photographs into pieces, a class a photograph: something real to train on.

    python examples/photos/cut.py /usr/share/backgrounds photos --pieces 120

writes ``photos/train`` and ``photos/val``, each with a folder a photograph. Pieces for validation
come from the right quarter of each, which no piece for training touches.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from PIL import Image

_SIZE = (250, 188)  # of what is stored, about 4 to 3
_SCALES = (1.0, 1.6)  # pixels of the photograph for each


def main() -> None:
    """Cut all photographs of a folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("photographs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pieces", type=int, default=120, help="for training, of each")
    given = parser.parse_args()
    found = sorted(given.photographs.glob("*.jpg"))
    for path in found:
        cut(path, given.out, pieces=given.pieces)
    print(f"cut {len(found)} photographs into {given.out}")


def cut(path: Path, out: Path, *, pieces: int, size: tuple[int, int] = _SIZE) -> None:
    """Cut one photograph.

    Args:
        path: The photograph, whose name is the name of its class.
        out: The folder of ``train`` and ``val``.
        pieces: How many pieces are for training.
        size: Width and height of each, in pixels.
    """
    rng = random.Random(path.stem)
    with Image.open(path) as opened:
        photo = opened.convert("RGB")
    border = photo.width * 3 // 4
    for split, left, right, count in (
        ("train", 0, border, pieces),
        ("val", border, photo.width, max(1, pieces // 6)),
    ):
        folder = out / split / path.stem
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(count):
            scale = min(rng.uniform(*_SCALES), (right - left) / size[0], photo.height / size[1])
            width, height = int(size[0] * scale), int(size[1] * scale)
            x = rng.randint(left, right - width)
            y = rng.randint(0, photo.height - height)
            piece = photo.crop((x, y, x + width, y + height)).resize(size)
            piece.save(folder / f"{number:04}.jpg", quality=90)


if __name__ == "__main__":
    main()

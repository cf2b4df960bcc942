"""The packing in JavaScript, which follows docs/order.md, gives the same rows."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.order.packing import (
    Packing,
    group_row_count,
    pack_group,
    packing_key,
    pass_packing_key,
)

_SECOND = Path(__file__).parents[1] / "second" / "packing.mjs"
_NODE = shutil.which("node")
_DATASET = 7


def _question(rng: np.random.Generator) -> dict[str, Any]:
    """Draw the documents of a group, and how they are packed."""
    length = int(rng.choice([2, 16, 64, 65, 512]))
    kinds = [
        rng.integers(0, 40, 60),
        rng.lognormal(3, 1.2, 200).astype(np.int64),
        rng.choice([0, 1, 7, 63, 64, 65, 128, 1000], 50),
        rng.integers(0, 3 * length, 9),
    ]
    in_mixture = rng.random() < 0.5
    words = [_DATASET, *rng.integers(0, 99, 2)] if in_mixture else [rng.integers(0, 2**62)]
    return {
        "lengths": kinds[int(rng.integers(0, 4))].tolist(),
        "length": length,
        "cut": int(rng.choice([0, 0, 1, length // 2])),
        "marks": int(rng.integers(0, 3)),
        "first_id": int(rng.integers(0, 2**40)),
        "seed": str(rng.integers(0, 2**63)),
        "words": list(map(str, words)),
    }


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return what ours gives."""
    lengths = np.array(question["lengths"], np.int64)
    packing = Packing(question["length"], question["cut"], question["marks"])
    seed, words = int(question["seed"]), [int(word) for word in question["words"]]
    key = packing_key(seed, words[0]) if len(words) == 1 else pass_packing_key(seed, *words[1:])
    count = group_row_count(lengths, packing)
    found = pack_group(lengths, packing, first_id=question["first_id"], key=key, row_count=count)
    edges = found.starts.tolist()
    rows = [found.pieces[start:end, :3].tolist() for start, end in itertools.pairwise(edges)]
    return {"row_count": count, "rows": rows}


@pytest.mark.skipif(_NODE is None, reason="there is no Node.js here")
def test_the_packing_is_that_of_the_second_implementation() -> None:
    """With cuts, marks, reserves that are filled, and packings that only fit in plain order."""
    rng = np.random.default_rng(24)
    questions = [_question(rng) for _ in range(400)]
    asked = "".join(json.dumps(each) + "\n" for each in questions)

    said = subprocess.run(
        [str(_NODE), str(_SECOND)], input=asked, capture_output=True, text=True, check=True
    )

    answers = list(map(json.loads, said.stdout.splitlines()))
    assert [_answer(question) for question in questions] == answers

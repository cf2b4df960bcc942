"""Small tokenizers, as files, and texts for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

_WORDS = ("alpha", "beta", "gamma", "delta", "epsilon", "größe", "naïve", "日本", "🙂", "x", "of")


def random_texts(count: int, *, seed: int, words: int = 30) -> list[str]:
    """Return texts of up to ``words`` words, some of them empty."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(_WORDS, rng.integers(0, words)).tolist()) for _ in range(count)]


def bpe_file(path: Path, *, vocabulary: int = 300, **changes: Any) -> Path:
    """Train a byte-pair tokenizer with special tokens, and write its file with some changes."""
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        show_progress=False,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    library.train_from_iterator(random_texts(200, seed=1), trainer)
    library.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    library.save(str(path))
    content = json.loads(path.read_text())
    content["model"].update(changes.pop("model", {}))
    path.write_text(json.dumps({**content, **changes}))
    return path


def word_file(path: Path, words: list[str]) -> Path:
    """Write a tokenizer that knows some words, and fails at others."""
    library = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save(str(path))
    return path

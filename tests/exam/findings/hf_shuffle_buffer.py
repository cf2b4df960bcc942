"""Hugging Face datasets: samples that were in the shuffle buffer are lost at a resume.

Its documentation says so. ``.build/exam/bin/python tests/exam/findings/hf_shuffle_buffer.py``
"""

from typing import Any

from datasets import Dataset


def _samples() -> Any:
    dataset = Dataset.from_dict({"id": range(1000)}).to_iterable_dataset(num_shards=10)
    return dataset.shuffle(seed=7, buffer_size=100)


dataset = _samples()
before: list[int] = []
for sample in dataset:
    before.append(sample["id"])
    if len(before) == 500:
        break
state = dataset.state_dict()

resumed = _samples()
resumed.load_state_dict(state)
after = [sample["id"] for sample in resumed]
print(f"{1000 - len({*before, *after})} of 1,000 samples are lost")

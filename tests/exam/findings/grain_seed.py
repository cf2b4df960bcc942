"""Grain: a resume with another seed goes on in another order, and says nothing.

``.build/exam/bin/python tests/exam/findings/grain_seed.py``
"""

from typing import Any

import grain
from grain import experimental


def _iterator(seed: int) -> Any:
    dataset = grain.MapDataset.range(1000).seed(seed).shuffle()
    return iter(experimental.ElasticIterator(dataset, 10, grain.sharding.ShardOptions(0, 1)))


iterator = _iterator(seed=7)
before = [int(sample) for _ in range(50) for sample in next(iterator)]
state = iterator.get_state()

resumed = _iterator(seed=8)
resumed.set_state(state)
after = [int(sample) for batch in resumed for sample in batch]
print(f"{1000 - len({*before, *after})} of 1,000 samples are lost, and as many come twice")

"""torchdata: a resume with another seed goes on in another order, and says nothing.

``python tests/exam/findings/torchdata_seed.py``
"""

from typing import Any

from torchdata.stateful_dataloader import (  # type: ignore[import-untyped] # no py.typed
    StatefulDataLoader,
)
from torchdata.stateful_dataloader.sampler import (  # type: ignore[import-untyped] # the same
    StatefulDistributedSampler,
)


def _loader(seed: int) -> Any:
    samples = range(1000)
    sampler = StatefulDistributedSampler(samples, num_replicas=1, rank=0, shuffle=True, seed=seed)
    return StatefulDataLoader(samples, batch_size=10, sampler=sampler)


loader = _loader(seed=7)
before: list[int] = []
for batch in loader:
    before += batch.tolist()
    if len(before) == 500:
        break
state = loader.state_dict()

resumed = _loader(seed=8)
resumed.load_state_dict(state)
after = [sample for batch in resumed for sample in batch.tolist()]
print(f"{1000 - len({*before, *after})} of 1,000 samples are lost, and as many come twice")

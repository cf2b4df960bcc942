"""Read batches from a headrace server; the whole client in ten lines.

headrace serve flowers=s3://bucket/flowers        # in one terminal
python examples/minimal.py 127.0.0.1:50051 flowers    # in another
"""

import json
import sys

from headrace.client import RemoteDataset

dataset = RemoteDataset(sys.argv[1], sys.argv[2], batch_size=32, seed=7, epochs=1)
for batch in dataset:
    print(batch.epoch, batch.step, {name: len(column) for name, column in batch.items()})

print(json.dumps(dataset.state_dict()))  # for a checkpoint: load_state_dict() continues from here
dataset.close()

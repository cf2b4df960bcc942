"""Megatron Energon: a byte of a sample that has changed in a tar file is read as it is.

Tar files have checksums of their headers alone.
``.build/exam-energon/bin/python tests/exam/findings/energon_damage.py``
"""

import tempfile
from pathlib import Path

import webdataset as wds
from megatron.energon import (  # type: ignore[import-not-found]
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from megatron.energon.flavors.webdataset.prepare import (  # type: ignore[import-not-found]
    WebdatasetPreparator,
)

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "samples.tar"
        with wds.TarWriter(str(path)) as writer:
            for sample in range(100):
                writer.write({"__key__": f"{sample:08d}", "txt": f"{sample:08d}" * 100})
        WebdatasetPreparator.prepare_dataset(
            folder, [path.name], split_parts_ratio=[("train", 1.0)], workers=1
        )
        (folder / ".nv-meta" / "dataset.yaml").write_text(
            "__module__: megatron.energon\n__class__: TextWebdataset\nfield_map:\n  text: txt\n"
        )
        stored = bytearray(path.read_bytes())
        stored[stored.index(b"00000050" * 100) + 400] = ord("x")
        path.write_bytes(stored)

        dataset = get_train_dataset(
            folder,
            batch_size=10,
            shuffle_buffer_size=None,
            max_samples_per_sequence=None,
            worker_config=WorkerConfig(rank=0, world_size=1, num_workers=0),
            repeat=False,
        )
        texts = [text for batch in get_loader(dataset) for text in batch.text]
        altered = sum("x" in text for text in texts)
        print(f"{len(texts)} samples are read, {altered} of them with another byte")

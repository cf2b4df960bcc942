"""tf.data service: where a coordinated read goes on after dispatcher and worker were killed.

Both are started again at the same ports, the dispatcher in its fault-tolerant mode.
``.build/peers-tensorflow/bin/python tests/exam/findings/tfdata_restart.py``
"""

import itertools
import socket
import subprocess
import sys
import tempfile
import threading
import time

import tensorflow as tf

service = tf.data.experimental.service
WAIT_S = 120.0


def _serve(port: int, worker_port: int, folder: str) -> None:
    dispatcher = service.DispatchServer(
        service.DispatcherConfig(port=port, work_dir=folder, fault_tolerant_mode=True)
    )
    worker = service.WorkerServer(
        service.WorkerConfig(
            dispatcher_address=f"127.0.0.1:{port}",
            worker_address=f"127.0.0.1:{worker_port}",
            port=worker_port,
        )
    )
    threading.Event().wait()
    del dispatcher, worker


def _started(*arguments: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, __file__, *arguments])
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(arguments[0]))).close()
        except OSError:
            time.sleep(0.1)
        else:
            return process


def _free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


def _read(numbers: list[int], batches: object) -> None:
    for batch in batches:  # type: ignore[attr-defined]
        numbers.append(int(batch))
        time.sleep(0.01)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    with tempfile.TemporaryDirectory() as folder:
        port, worker_port = _free_port(), _free_port()
        process = _started(port, worker_port, folder)
        distribute = service.distribute(
            processing_mode=service.ShardingPolicy.OFF,
            service=f"grpc://127.0.0.1:{port}",
            job_name="job",
            consumer_index=0,
            num_consumers=1,
        )
        dataset = tf.data.Dataset.range(1000).repeat().apply(distribute)
        numbers: list[int] = []
        reader = threading.Thread(
            target=_read, args=(numbers, dataset.as_numpy_iterator()), daemon=True
        )
        reader.start()
        while len(numbers) < 200:
            time.sleep(0.01)
        process.kill()
        process.wait()
        process = _started(port, worker_port, folder)
        end = time.monotonic() + WAIT_S
        while len(numbers) < 500 and time.monotonic() < end:
            time.sleep(0.1)
        jumps = [pair for pair in itertools.pairwise(numbers) if pair[1] != (pair[0] + 1) % 1000]
        print(f"of {len(numbers)} samples, these do not follow each other: {jumps}", flush=True)
        process.kill()

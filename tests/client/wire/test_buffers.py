"""Memory comes back when nobody looks at it any more, and not before."""

import gc
import os
import signal
import threading
import warnings

import numpy as np
import torch

from headrace.client.wire.buffers import BufferPool


def test_memory_is_reused_once_all_views_are_gone() -> None:
    """The next buffer has the address of the last one."""
    pool = BufferPool(idle_bytes=1 << 20)
    array = pool.take(1000)
    address = array.ctypes.data
    del array
    gc.collect()

    assert address == pool.take(1000).ctypes.data


def test_a_tensor_of_a_slice_keeps_its_memory() -> None:
    """Nothing writes into memory that a tensor still views."""
    pool = BufferPool(idle_bytes=1 << 20)
    array = pool.take(64)
    array[:] = 7
    tensor = torch.from_numpy(array[8:24].view(np.int32).reshape(2, 2))
    del array
    gc.collect()

    pool.take(64)[:] = 9

    assert [[0x07070707] * 2] * 2 == tensor.tolist()


def test_buffers_are_aligned_and_of_the_size_asked_for() -> None:
    """Views of any dtype at multiples of 64 bytes are aligned."""
    pool = BufferPool(idle_bytes=0)

    for size in (0, 1, 63, 64, 100_001):
        array = pool.take(size)
        assert (size, 0) == (array.size, array.ctypes.data % 64)


def test_idle_memory_is_bounded() -> None:
    """What comes back beyond the limit is freed."""
    pool = BufferPool(idle_bytes=2500)
    arrays = [pool.take(1000), pool.take(1000), pool.take(1000)]
    del arrays
    gc.collect()

    assert 2000 == pool._idle_bytes


def test_two_large_buffers_are_kept() -> None:
    """A loop whose batches are large finds the memory of both when it goes on."""
    pool = BufferPool(idle_bytes=0)
    arrays = [pool.take(1000), pool.take(1000), pool.take(1000)]
    addresses = {array.ctypes.data for array in arrays}
    del arrays
    gc.collect()

    assert 2000 == pool._idle_bytes
    assert {pool.take(1000).ctypes.data for _ in range(2)} <= addresses


def test_a_process_forked_while_a_thread_takes_memory_can_take_some_too() -> None:
    """The child has only the thread that forked, and waits for no other."""
    compared = threading.Event()

    class Slow(int):
        def __le__(self, other: int) -> bool:
            compared.set()
            threading.Event().wait(0.2)  # the time in which the fork would come
            return super().__le__(other)

    pool = BufferPool(idle_bytes=1 << 20)
    pool.take(1000)
    gc.collect()
    taking = threading.Thread(target=pool.take, args=(Slow(1000),))
    taking.start()
    assert compared.wait(60)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads that a fork loses: that is the question
        child = os.fork()
    if not child:
        signal.alarm(20)
        pool.take(1000)
        os._exit(0)
    taking.join()

    assert 0 == os.waitpid(child, 0)[1]

"""Prepare memory for transfers to a device, and start transfers."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from headrace.arguments import instance
from headrace.client.wire.buffers import aligned
from headrace.errors import BadArgumentError

_log = logging.getLogger(__name__)


class Copy(Protocol):
    """One payload on its way to a device."""

    @property
    def target(self) -> torch.Tensor:
        """``(payload_bytes,) uint8`` on the device; valid after `hand_over`."""

    def has_ended(self) -> bool:
        """Return whether the source may be written again; does not wait."""

    def hand_over(self) -> None:
        """Order work that the calling thread starts from now on behind the copy."""

    def wait(self) -> None:
        """Return when the source may be written again."""


class Copies(Protocol):
    """A way to a device."""

    def make_buffer(self, size: int) -> NDArray[np.uint8]:
        """Return at least ``size`` bytes to transfer from, 64-byte aligned."""

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Prepare memory that was allocated elsewhere to be transferred from."""

    def start(self, payload: NDArray[np.uint8]) -> Copy:
        """Start to copy; ``payload`` must not change until the copy has ended."""


def checked_device(name: str | torch.device) -> torch.device:
    """Return the device with this name.

    Raises:
        BadArgumentError: The device is neither the CPU nor a CUDA device.
    """
    instance("device", name, (str, torch.device), wanted="'cuda', 'cuda:N', 'cpu' or None")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise BadArgumentError(
            f"device is {str(name)!r}; expected 'cuda', 'cuda:N' or 'cpu', or None to leave "
            "batches where they are received",
            field="device",
        )
    return device


def copies_to(device: torch.device) -> Copies:
    """Return the way to a device.

    Raises:
        BadArgumentError: This process has no CUDA.
    """
    if device.type == "cpu":
        return HostCopies()
    if not torch.cuda.is_available():
        raise BadArgumentError(
            f"device is {str(device)!r}, but this process sees no CUDA device; expected a CUDA "
            "build of torch and a visible device, or device='cpu'",
            field="device",
        )
    return CudaCopies(device)


class HostCopies:
    """The same path without CUDA: copies end at once."""

    def make_buffer(self, size: int) -> NDArray[np.uint8]:
        """Return touched memory."""
        buffer = aligned(size)
        buffer[:] = 0
        return buffer

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Do nothing: it can be copied from as it is."""

    def start(self, payload: NDArray[np.uint8]) -> Copy:
        """Copy at once."""
        return _EndedCopy(torch.from_numpy(payload).clone())


@dataclass(frozen=True, slots=True, eq=False)
class _EndedCopy:
    target: torch.Tensor

    def has_ended(self) -> bool:
        return True

    def hand_over(self) -> None:
        pass

    def wait(self) -> None:
        pass


class CudaCopies:
    """Transfers on a separate CUDA stream."""

    def __init__(self, device: torch.device) -> None:
        """Make the stream.

        Args:
            device: A CUDA device; without an index, the current one.
        """
        index = torch.cuda.current_device() if device.index is None else device.index
        self._device = torch.device("cuda", index)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call] # torch leaves it so

    def make_buffer(self, size: int) -> NDArray[np.uint8]:
        """Return pinned, touched memory."""
        # Pinning synchronises the device, so this takes a little more than the batch needs, to
        # fit later batches too: 1/8, arbitrary.
        pinned = torch.empty(size + size // 8, dtype=torch.uint8, pin_memory=True)
        pinned.zero_()
        return pinned.numpy()

    def adopt(self, memory: NDArray[np.uint8]) -> None:
        """Pin the memory as long as it is mapped, so that transfers read it directly."""
        address, cudart = memory.ctypes.data, torch.cuda.cudart()  # type: ignore[no-untyped-call] # likewise
        with torch.cuda.device(self._device):
            failed = int(cudart.cudaHostRegister(address, memory.nbytes, 0))
        if failed:
            _log.warning(
                "%d bytes of a ring could not be pinned (CUDA error %d): transfers are slower; "
                "raise the limit on locked memory, or ask for a smaller ring with ring_bytes",
                memory.nbytes,
                failed,
            )
            return
        weakref.finalize(memory, _unpin, address, self._device).atexit = False

    def start(self, payload: NDArray[np.uint8]) -> Copy:
        """Start the transfer; the calling thread continues at once."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            target = torch.empty(payload.size, dtype=torch.uint8, device=self._device)
            target.copy_(torch.from_numpy(payload), non_blocking=True)
            done = torch.cuda.Event()  # type: ignore[no-untyped-call] # likewise
            done.record(self._stream)
        return _CudaCopy(target, done)


def _unpin(address: int, device: torch.device) -> None:
    # This runs in the thread that drops the last view, whose current device may be another.
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call] # torch leaves it so


@dataclass(frozen=True, slots=True, eq=False)
class _CudaCopy:
    target: torch.Tensor
    done: torch.cuda.Event

    def has_ended(self) -> bool:
        return bool(self.done.query())  # type: ignore[no-untyped-call] # likewise

    def hand_over(self) -> None:
        stream = torch.cuda.current_stream(self.target.device)
        stream.wait_event(self.done)
        # The memory came from the side stream: without this the allocator would give it to the
        # next transfer while the loop's stream still reads it.
        self.target.record_stream(stream)

    def wait(self) -> None:
        self.done.synchronize()

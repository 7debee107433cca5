"""Copies from a CUDA device into a snapshot file, in the order of the script's stream and without waiting.

The host neither waits nor synchronises: copies are queued on the current stream, so a later update in
place comes after them, and so does the commit word, which a tensor on the device carries (a copy from
host to host would not wait for the stream). Whether all is there is read from that word.
"""

from rankmend.hook.notice import warn
from rankmend.hook.snapshots.layout import COMMIT_AT
from rankmend.hook.snapshots.tensors import CUDA, TorchTensors

_REGISTERED = 0  # cudaSuccess
_DEFAULT_FLAGS = 0  # cudaHostRegisterDefault


class Accelerator(TorchTensors):
    """Keeps tensors of one CUDA device."""

    name = CUDA

    def __init__(self, torch):
        super().__init__(torch)
        self._is_warned = False

    def find_device(self, leaves, numbers):
        """Return the device of all these leaves. Raises ValueError where there are several."""
        devices = {leaves.keys[number][4] for number in numbers}
        if len(devices) != 1:
            raise ValueError("tensors on the devices %s" % ", ".join(sorted(map(str, devices))))
        return devices.pop()

    def is_recording(self):
        """Return whether a CUDA graph is being recorded: what is queued now would run again and again."""
        return bool(self._torch.cuda.is_current_stream_capturing())

    def pin(self, memory, size):
        """Let the device copy into the memory by itself, and return how to end that. Without it, copies wait."""
        try:
            address = self._torch.frombuffer(memory, dtype=self._torch.uint8).data_ptr()
            result = self._torch.cuda.cudart().cudaHostRegister(address, size, _DEFAULT_FLAGS)
            if int(result) == _REGISTERED:
                return lambda: self._unpin(address)
            reason = "cudaHostRegister returned %s" % (result,)
        except Exception as error:
            reason = str(error)
        if not self._is_warned:
            self._is_warned = True
            warn(
                "snapshots of the device wait for each copy: their memory isn't pinned: %s", reason
            )
        return _nothing

    def _unpin(self, address):
        try:
            self._torch.cuda.cudart().cudaHostUnregister(address)
        except Exception:  # the device lets go of the memory with the process
            pass

    def copy(self, destinations, sources):
        with self._torch.no_grad():
            for destination, source in zip(destinations, sources):  # noqa: B905 (Python 3.8)
                destination.copy_(source, non_blocking=True)

    def commit(self, memory, sequence, device):
        """Queue the commit behind the copies."""
        torch = self._torch
        word = torch.frombuffer(memory, dtype=torch.int64, count=1, offset=COMMIT_AT)
        with torch.no_grad():
            # Filled on the device: a tensor made of a host's value would wait for the device.
            number = torch.full((1,), sequence, dtype=torch.int64, device=device)
            word.copy_(number, non_blocking=True)


def _nothing():
    return None

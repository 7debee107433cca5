"""One set of operations over PyTorch's tensors and NumPy's arrays: PyTorch where a device needs it, else NumPy.

``open_arrays("cpu")`` takes NumPy if it is there, since it starts in a tenth of the time; ``"torch:cpu"`` asks for PyTorch.
"""

from typing import Any, List, Tuple


class NoArraysError(Exception):
    """Neither PyTorch nor NumPy can be imported, or PyTorch has no such device."""


def open_arrays(device: str) -> Any:
    if device == "cpu":
        try:
            return HostArrays()
        except ImportError:
            device = "torch:cpu"
    try:
        return DeviceArrays(device[len("torch:") :] if device.startswith("torch:") else device)
    except ImportError as error:
        raise NoArraysError("neither PyTorch nor NumPy: %s" % error) from error


class HostArrays:
    """Arrays in the memory of the host."""

    kinds: Tuple[str, ...] = ("float32", "float64")

    def __init__(self) -> None:
        import numpy

        self.np = numpy
        self.model = "numpy %s" % numpy.__version__

    def words(self, count: int) -> Any:
        return self.np.empty(count, dtype=self.np.uint32)

    def fill(self, words: Any, pattern: int) -> None:
        words.fill(pattern)

    def fill_places(self, words: Any, first: int) -> None:
        """Write into each word a number that only its place gives."""
        words[:] = self._places(words, first)

    def count_unlike(self, words: Any, pattern: int) -> int:
        return int(self.np.count_nonzero(words != self.np.uint32(pattern)))

    def count_misplaced(self, words: Any, first: int) -> int:
        return int(self.np.count_nonzero(words != self._places(words, first)))

    def _places(self, words: Any, first: int) -> Any:
        return self.np.arange(first, first + len(words), dtype=self.np.uint32)

    def copy(self, target: Any, source: Any) -> None:
        self.np.copyto(target, source)

    def wait(self) -> None:
        """Everything here is done when it returns."""

    def signs(self, rows: List[List[int]], kind: str) -> Any:
        return self.np.array(rows, dtype=kind)

    def multiply(self, left: Any, right: Any) -> Any:
        return self.np.matmul(left, right)

    def whole(self, matrix: Any) -> Any:
        return matrix.astype(self.np.int64)

    def count_different(self, item: Any, other: Any) -> int:
        return int(self.np.count_nonzero(item != other))

    def bytes_of(self, matrix: Any) -> bytes:
        return bytes(matrix.astype("<i2").tobytes())


class DeviceArrays:
    """Tensors on one device."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch = torch
        self.device = torch.device(device)
        self.is_cuda = self.device.type == "cuda"
        # Whole numbers stay exact only if no part of a sum is rounded on its way.
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        name = torch.cuda.get_device_name(self.device) if self.is_cuda else str(self.device)
        self.model = "%s, torch %s" % (name, torch.__version__)
        self.kinds = HostArrays.kinds
        if self.is_cuda:
            torch.cuda.set_device(self.device)
            self.kinds = ("float16", "bfloat16", "tf32", "float32", "float64")

    def _kind(self, kind: str) -> Any:
        self.torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        return getattr(self.torch, "float32" if kind == "tf32" else kind)

    def words(self, count: int) -> Any:
        return self.torch.empty(count, dtype=self.torch.int32, device=self.device)

    def fill(self, words: Any, pattern: int) -> None:
        words.fill_(_signed(pattern))

    def fill_places(self, words: Any, first: int) -> None:
        words.copy_(self._places(words, first))

    def count_unlike(self, words: Any, pattern: int) -> int:
        return int((words != _signed(pattern)).sum().item())

    def count_misplaced(self, words: Any, first: int) -> int:
        return int((words != self._places(words, first)).sum().item())

    def _places(self, words: Any, first: int) -> Any:
        count = words.numel()
        return self.torch.arange(first, first + count, dtype=self.torch.int32, device=self.device)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def wait(self) -> None:
        if self.is_cuda:
            self.torch.cuda.synchronize(self.device)

    def signs(self, rows: List[List[int]], kind: str) -> Any:
        return self.torch.tensor(rows, dtype=self._kind(kind)).to(self.device)

    def noise(self, size: int, kind: str, seed: int) -> Any:
        """Return a matrix of random numbers, which draws more power than one of small whole numbers."""
        generator = self.torch.Generator().manual_seed(seed)
        made = self.torch.randn(size, size, generator=generator)
        return made.to(self.device).to(self._kind(kind))

    def multiply(self, left: Any, right: Any) -> Any:
        return left @ right

    def whole(self, matrix: Any) -> Any:
        return matrix.cpu().to(self.torch.int64)

    def count_different(self, item: Any, other: Any) -> int:
        return int((item != other).sum().item())

    def bytes_of(self, matrix: Any) -> bytes:
        whole = matrix.cpu().to(self.torch.int16)
        return b"".join(
            value.to_bytes(2, "little", signed=True) for value in whole.flatten().tolist()
        )


def _signed(pattern: int) -> int:
    return pattern - (1 << 32) if pattern >= 1 << 31 else pattern

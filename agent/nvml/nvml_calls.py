"""Calls NVML about GPUs, and records each call on the shared page while it runs.

The driver gives three kinds of answers, which stay apart: a value; not supported by this card or
driver (the call is skipped from then on, and its value is absent); an error (it is counted, and the
value is absent this time). A lost GPU is not read any further.
"""

import mmap
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from agent.nvml import fields
from agent.nvml.fields import CALL_ON_PAGE, NO_GPU, NUMBER_ON_PAGE
from agent.nvml.sampled_gpu import Batch, Key, SampledGpu, Value

_ALL_ONES: Final = frozenset({0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF})
UNSUPPORTED_S: Final = 3600.0  # then ask again: a driver can learn


class GpuLostError(Exception):
    """The GPU no longer answers."""


class NvmlGoneError(Exception):
    """NVML as a whole no longer answers: start over."""


class CallPage:
    """The child's side of the shared page: records the call in progress."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, CALL_ON_PAGE.size)
        self._number = 0
        self._names: dict[str, bytes] = {}

    def begin(self, name: str, gpu: int, now_s: float) -> None:
        if (written := self._names.get(name)) is None:
            written = self._names[name] = name.encode()
        self._number += 1
        CALL_ON_PAGE.pack_into(self._memory, 0, self._number, now_s, gpu, written)

    def end(self) -> None:
        """Make the number even: the rest of the page counts for nothing then."""
        self._number += 1
        NUMBER_ON_PAGE.pack_into(self._memory, 0, self._number)


class NvmlCalls:
    """Calls NVML through ``nvml``: the module pynvml, or what a test puts in its place."""

    def __init__(self, nvml: Any, page: CallPage, now_s: Callable[[], float]) -> None:
        self.nvml = nvml
        self.now_s = now_s
        self.driver_major = 0  # the driver's release; set once NVML is open
        self._page = page
        self._unsupported_codes = {
            nvml.NVML_ERROR_INVALID_ARGUMENT,  # a field or a link that this driver doesn't know
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
            nvml.NVML_ERROR_DEPRECATED,
        }
        self._passing_codes = {  # no value now, but nothing is wrong
            nvml.NVML_ERROR_NO_PERMISSION,
            nvml.NVML_ERROR_NOT_FOUND,
            nvml.NVML_ERROR_NO_DATA,
            nvml.NVML_ERROR_NOT_READY,
        }
        self._lost_codes = {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_GPU_NOT_FOUND}
        self.gone_codes = {
            nvml.NVML_ERROR_UNINITIALIZED,
            nvml.NVML_ERROR_DRIVER_NOT_LOADED,
            nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        }

    def read(self, gpu: SampledGpu, name: str, *arguments: Any) -> Any:
        """Return the answer of a call about a GPU, or None if there is none.

        All ones are none: NVML_VALUE_NOT_AVAILABLE, and what a register of a GPU that is gone reads as.
        """
        known_as = (name, *arguments)
        if self.is_unsupported(gpu, known_as):
            return None
        page = self._page
        page.begin(name, gpu.index, self.now_s())
        try:
            answer = getattr(self.nvml, name)(gpu.handle, *arguments)
        except self.nvml.NVMLError as error:
            self._refuse(gpu, known_as, error.value)
            return None
        finally:
            page.end()
        return None if is_all_ones(answer) else answer

    def read_instance(self, gpu: SampledGpu, handle: Any, name: str, known_as: Any) -> Any:
        """Return the answer of a call about an instance of a GPU, or None if there is none."""
        call = partial(self.in_call, name, gpu.index, handle)
        return self.attempt(gpu, (name, "instance", known_as), call)

    def attempt(self, gpu: SampledGpu, known_as: Key, call: Callable[[], Any]) -> Any:
        """Return a call's answer; None if it is not supported or fails."""
        if self.is_unsupported(gpu, known_as):
            return None
        try:
            return call()
        except self.nvml.NVMLError as error:
            self._refuse(gpu, known_as, error.value)
            return None

    def _refuse(self, gpu: SampledGpu, known_as: Key, code: int) -> None:
        """Take an error for what it is: not supported from now on, or counted."""
        if code in self._unsupported_codes:
            gpu.unsupported_since_s[known_as] = self.now_s()
        else:
            self._note(gpu, str(known_as[0]), code)

    def is_unsupported(self, gpu: SampledGpu, key: Key) -> bool:
        """Return whether the driver has answered that it does not know this call."""
        since_s = gpu.unsupported_since_s.get(key)
        if since_s is None:
            return False
        if self.now_s() - since_s < UNSUPPORTED_S:
            return True
        del gpu.unsupported_since_s[key]
        gpu.batches.clear()  # rebuilt to ask again
        return False

    def read_fields(
        self,
        gpu: SampledGpu,
        key: str,
        wanted: list[tuple[fields.Field, int]],
        is_scoped: bool = False,
    ) -> Iterator[Value]:
        """Read fields in one call; fields that this GPU lacks are skipped from then on."""
        if key not in gpu.batches:
            usable = [
                (field, scope)
                for field, scope in wanted
                if self.driver_major >= field.driver_min
                and not self.is_unsupported(gpu, (field.id, scope))
            ]
            gpu.batches[key] = Batch(self.nvml, usable) if usable else None
        batch = gpu.batches[key]
        if batch is None:
            return
        known_as = ("nvmlDeviceGetFieldValues", key)
        if self.attempt(gpu, known_as, partial(self._read_batch, gpu, batch)) is None:
            if self.is_unsupported(gpu, known_as):  # then none of its fields is
                for field, scope in batch.wanted:
                    gpu.unsupported_since_s[field.id, scope] = self.now_s()
            return
        is_as_before, made = batch.is_as_before(), batch.made
        if is_as_before and made is not None:
            yield from made  # as of nearly all that count errors
            return
        batch.made = None
        has_refused = has_learned = False
        made = []
        for field, scope, code, value_type, raw in batch.values():
            if code != self.nvml.NVML_SUCCESS:
                has_refused = True  # counted each time
                has_learned |= self._refuse_field(gpu, field, scope, code)
                continue
            value = fields.decode_value(value_type, raw, field.is_signed)
            if value is None or (field.is_never_zero and value == 0):
                continue
            labels = (str(scope), *field.labels) if is_scoped else field.labels
            made.append((field.name, labels, value * field.scale))
        if not has_refused:
            batch.made = made
        if has_learned:
            del gpu.batches[key]
        yield from made

    def _refuse_field(self, gpu: SampledGpu, field: fields.Field, scope: int, code: int) -> bool:
        """Take the error of a field; return whether it is not supported, and is left out from now on."""
        if code not in self._unsupported_codes:
            self._note(gpu, f"field {field.id}", code)
            return False
        gpu.unsupported_since_s[field.id, scope] = self.now_s()
        return True

    def read_field(self, gpu: SampledGpu, field: fields.Field) -> float | None:
        """Return one field that is not a metric itself."""
        for _name, _labels, value in self.read_fields(gpu, field.name, [(field, 0)]):
            return value
        return None

    def _read_batch(self, gpu: SampledGpu, batch: Batch) -> bool:
        get = self.nvml._nvmlGetFunctionPointer("nvmlDeviceGetFieldValues")
        self._page.begin("nvmlDeviceGetFieldValues", gpu.index, self.now_s())
        try:
            code = batch.read(get, gpu.handle)
        finally:
            self._page.end()
        if code != self.nvml.NVML_SUCCESS:
            raise self.nvml.NVMLError(code)
        return True

    def _note(self, gpu: SampledGpu, what: str, code: int) -> None:
        """Count an error, or raise if the GPU or NVML is gone."""
        if code in self._lost_codes:
            raise GpuLostError(f"{what}: {code}")
        if code in self.gone_codes:
            raise NvmlGoneError(f"{what}: {code}")
        if code == self.nvml.NVML_ERROR_RESET_REQUIRED:
            gpu.needs_reset = True
        elif code not in self._passing_codes:
            gpu.error_count += 1
            gpu.last_error = f"{what}: NVML error {code}"

    def plain(self, name: str, *arguments: Any) -> Any:
        """Call NVML about no GPU. Raises pynvml's NVMLError."""
        return self.in_call(name, NO_GPU, *arguments)

    def quiet(self, name: str, *arguments: Any) -> Any:
        """Call NVML about no GPU; return None if it fails."""
        try:
            return self.plain(name, *arguments)
        except self.nvml.NVMLError:
            return None

    def about(self, gpu: SampledGpu, name: str, *arguments: Any) -> Any:
        """Call NVML about a GPU, without its handle. Raises pynvml's NVMLError."""
        return self.in_call(name, gpu.index, *arguments)

    def in_call(self, name: str, gpu: int, *arguments: Any) -> Any:
        """Call pynvml, and record the call on the page while it runs."""
        self._page.begin(name, gpu, self.now_s())
        try:
            return getattr(self.nvml, name)(*arguments)
        finally:
            self._page.end()


def is_all_ones(answer: Any) -> bool:
    """Return whether a number has each bit of 32 or 64 set: no clock, power or count has."""
    return type(answer) is int and answer in _ALL_ONES


def one(name: str, value: float | None, scale: float = 1.0, *labels: str) -> Iterator[Value]:
    """Yield a value if there is one."""
    if value is not None:
        yield name, labels, value * scale

"""A Python object in the place of `pynvml.nvmlLib`: the answers of a `StubNode`, no compiler.

pynvml asks it for a function by name and calls that with ctypes arguments. What `byref` wraps is
found at its attribute `_obj`, which is a detail of CPython.
"""

import ctypes
from collections.abc import Callable
from struct import pack_into
from typing import Any

from tests.support.nvml_stub.node import StubNode

NOT_SUPPORTED, TOO_SMALL, TIMEOUT, LOST = 3, 7, 10, 15
MIG_AT, MIG_MAX = 1000, 16  # handles of MIG instances, as in nvml_stub.c
NEWER = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMarginTemperature",
    "nvmlDeviceGetRepairStatus",
    "nvmlDeviceGetGpuFabricInfoV",
)


class FakeNvml:
    def __init__(self, node: StubNode, is_old: bool = False) -> None:
        self.node = node
        self.is_old = is_old
        self.calls: list[str] = []
        self.samples: dict[int, tuple[str, int | None]] = {}  # of GPM: GPU and instance, by address
        self._sample_count = 0
        self._special: dict[str, Callable[..., int]] = {
            "nvmlShutdown": lambda: 0,
            "nvmlEventSetFree": lambda _set: 0,
            "nvmlDeviceRegisterEvents": lambda _gpu, _types, _set: 0,
            "nvmlEventSetWait_v2": lambda _set, _data, _timeout: TIMEOUT,
            "nvmlDeviceGetHandleByIndex_v2": self._handle,
            "nvmlDeviceGetFieldValues": self._fields,
            "nvmlDeviceGetComputeRunningProcesses_v3": self._processes,
            "nvmlDeviceGetMemoryInfo": self._memory,
            "nvmlDeviceGetMemoryInfo_v2": self._memory_v2,
            "nvmlDeviceGetGpuFabricInfoV": self._fabric,
            "nvmlDeviceGetPlatformInfo": self._platform,
            "nvmlDeviceGetSramEccErrorStatus": self._sram,
            "nvmlDeviceGetPciInfo_v3": self._pci,
            "nvmlDeviceGetNvLinkRemotePciInfo_v2": self._far_pci,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._mig_handle,
            "nvmlGpmSampleAlloc": self._sample_alloc,
            "nvmlGpmSampleFree": self._sample_free,
            "nvmlGpmSampleGet": lambda handle, sample: self._sample_get(handle, None, sample),
            "nvmlGpmMigSampleGet": self._sample_get,
            "nvmlGpmMetricsGet": self._gpm_metrics,
        }

    def __getattr__(self, name: str) -> Any:
        if self.is_old and name in NEWER:
            raise AttributeError(name)
        if name == "nvmlErrorString":
            return _ErrorString()

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            return self._special.get(name, lambda *given: self._plain(name, *given))(*arguments)

        return call

    def _answer(self, key: str) -> tuple[int, str]:
        """Return NVML's code and the values."""
        if key[0].isdigit() and self.node.answers.get(f"{key.partition('/')[0]}/lost") == "1":
            return LOST, ""
        values = self.node.answers.get(key)
        if values is None:
            return NOT_SUPPORTED, ""
        return (int(values[1:]), "") if values[:1] == "E" else (0, values)

    def _plain(self, name: str, *arguments: Any) -> int:
        """Answer a function: handle, numbers that are asked for, places for the answers."""
        handle, *rest = arguments or (None,)
        key = name.removesuffix("_v2")
        if isinstance(handle, ctypes._Pointer | ctypes.c_void_p):
            key = f"{_name(handle)}/{key}"
        else:
            rest = [*arguments] if name != "nvmlInitWithFlags" else []
        places = []
        for argument in rest:
            if hasattr(argument, "_obj"):
                places.append(argument._obj)
            elif isinstance(argument, ctypes.Array):
                places.append(argument)
                break  # the rest is its size
            else:
                number = getattr(argument, "value", argument)
                key = f"{key}/{number}"
        code, text = self._answer(key)
        if code:
            return code
        _fill(places, text)
        return 0

    def _handle(self, index: Any, place: Any) -> int:
        code, _text = self._answer(f"{index.value}/nvmlDeviceGetHandleByIndex")
        if not code:
            ctypes.cast(place, ctypes.POINTER(ctypes.c_void_p))[0] = index.value + 1
        return code

    def _mig_handle(self, handle: Any, number: Any, place: Any) -> int:
        gpu = _index(handle)
        code, _text = self._answer(f"{gpu}/nvmlDeviceGetMigDeviceHandleByIndex/{number.value}")
        if not code:
            address = MIG_AT + MIG_MAX * gpu + number.value
            ctypes.cast(place, ctypes.POINTER(ctypes.c_void_p))[0] = address
        return code

    def _sample_alloc(self, place: Any) -> int:
        self._sample_count += 1
        address = 0x1000 + self._sample_count
        ctypes.cast(place, ctypes.POINTER(ctypes.c_void_p))[0] = address
        self.samples[address] = ("", None)
        return 0

    def _sample_free(self, sample: Any) -> int:
        del self.samples[_address(sample)]
        return 0

    def _sample_get(self, handle: Any, instance: Any, sample: Any) -> int:
        self.samples[_address(sample)] = (str(_index(handle)), instance)
        return 0

    def _gpm_metrics(self, place: Any) -> int:
        wanted = place._obj
        first, second = (self.samples[_address(one)] for one in (wanted.sample1, wanted.sample2))
        assert first == second != ("", None), "two samples of one GPU"
        gpu, instance = second
        for metric in wanted.metrics[: wanted.numMetrics]:
            of = "" if instance is None else f"/{instance}"
            metric.nvmlReturn, text = self._answer(f"{gpu}/gpm/{metric.metricId}{of}")
            metric.value = float(text or 0)
        return 0

    def _fields(self, handle: Any, _count: Any, place: Any) -> int:
        code, _text = self._answer(f"{_index(handle)}/nvmlDeviceGetFieldValues")
        if code not in (0, NOT_SUPPORTED):
            return code
        for value in place._obj:
            key = f"{_index(handle)}/field/{value.fieldId}/{value.scopeId}"
            value.nvmlReturn, text = self._answer(key)
            value.valueType = 3
            value.value.sllVal = 0 if value.nvmlReturn else int(text)
        return 0

    def _processes(self, handle: Any, count: Any, place: Any) -> int:
        code, text = self._answer(f"{_index(handle)}/nvmlDeviceGetComputeRunningProcesses")
        if code:
            return code
        numbers = [int(number) for number in text.split()]
        pairs = list(zip(numbers[::2], numbers[1::2], strict=True))
        room = count._obj.value if place is not None else 0
        count._obj.value = len(pairs)
        if len(pairs) > room:
            return TOO_SMALL
        for number, (pid, memory) in enumerate(pairs):
            place[number].pid, place[number].usedGpuMemory = pid, memory
        return 0

    def _sram(self, handle: Any, place: Any) -> int:
        code, text = self._answer(f"{_index(handle)}/nvmlDeviceGetSramEccErrorStatus")
        if not code:
            place._obj.bThresholdExceeded = int(text)
        return code

    def _pci(self, handle: Any, place: Any) -> int:
        code, text = self._answer(f"{_index(handle)}/nvmlDeviceGetPciInfo")
        if not code:
            info = place._obj
            info.domain, info.bus, info.device = (int(number) for number in text.split())
        return code

    def _far_pci(self, handle: Any, link: Any, place: Any) -> int:
        number = getattr(link, "value", link)
        key = f"{_index(handle)}/nvmlDeviceGetNvLinkRemotePciInfo/{number}"
        code, text = self._answer(key)
        if not code:
            info = place._obj
            info.domain, info.bus, info.device = (int(word) for word in text.split())
        return code

    def _memory(self, handle: Any, place: Any) -> int:
        code, text = self._answer(f"{_name(handle)}/nvmlDeviceGetMemoryInfo")
        if not code:
            place._obj.total, place._obj.used, _reserved = (int(word) for word in text.split())
        return code

    def _memory_v2(self, handle: Any, place: Any) -> int:
        code, text = self._answer(f"{_index(handle)}/nvmlDeviceGetMemoryInfo")
        if not code:
            info = place._obj
            info.total, info.used, info.reserved = (int(word) for word in text.split())
        return code

    def _fabric(self, handle: Any, place: Any) -> int:
        info = place._obj
        version = info.version >> 24
        code, text = self._answer(f"{_index(handle)}/nvmlDeviceGetGpuFabricInfoV/{version}")
        if not code:
            *numbers, cluster = text.split() if len(text.split()) > 4 else [*text.split(), ""]
            info.state, info.status, info.cliqueId, info.healthMask = map(int, numbers)
            for at, byte in enumerate(bytes.fromhex(cluster)):
                info.clusterUuid[at] = byte
        return code

    def _platform(self, handle: Any, place: Any) -> int:
        info = place._obj
        code, text = self._answer(f"{_index(handle)}/nvmlDeviceGetPlatformInfo")
        if not code:
            chassis, *numbers = text.split()
            info.chassisSerialNumber = chassis.encode()
            info.slotNumber, info.trayIndex, info.hostId, info.moduleId = map(int, numbers)
        return code


class _ErrorString:
    def __call__(self, code: int) -> bytes:
        return f"fake error {code}".encode()


def _address(handle: Any) -> int:
    value = ctypes.cast(handle, ctypes.c_void_p).value
    assert value is not None
    return value


def _index(handle: Any) -> int:
    address = _address(handle)
    return (address - MIG_AT) // MIG_MAX if address >= MIG_AT else address - 1


def _name(handle: Any) -> str:
    """Return how the answers name a GPU, or a MIG instance of it: 0, 0.2."""
    address = _address(handle)
    number = f".{(address - MIG_AT) % MIG_MAX}" if address >= MIG_AT else ""
    return f"{_index(handle)}{number}"


def _fill(places: list[Any], text: str) -> None:
    """Write the values into out-parameters: strings, numbers, or the words of one structure."""
    if not places:
        return
    place = places[0]
    if isinstance(place, ctypes.Array):
        place.value = text.encode()
        return
    numbers = [int(word) for word in text.split()]
    if isinstance(place, ctypes.Structure):  # 4-byte words, behind the version where there is one
        start = 4 if place._fields_[0][0] == "version" else 0
        for number, value in enumerate(numbers):
            pack_into("<I", place, start + 4 * number, value)
        return
    for target, value in zip(places, numbers, strict=True):
        target.value = value

"""The GPUs that the stand-ins of NVML show: answers by key, as nvml_stub.c reads them, and a node that has them."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

LINKS = 4
GIB = 1 << 30
GPM_PERCENT = {1: 99.0, 2: 87.5, 3: 41.0, 4: 12.0, 5: 63.5, 10: 55.0, 11: 0.0, 12: 8.0, 13: 2.0}
XID = 8  # nvmlEventTypeXidCriticalError


class StubNode:
    """Answers of every function. `save` shows them to a library that is in use."""

    def __init__(self, gpus: int = 2) -> None:
        self.answers: dict[str, str] = {
            "nvmlInitWithFlags": "0",
            "nvmlSystemGetDriverVersion": "580.95.05",
            "nvmlSystemGetNVMLVersion": "13.580.95.05",
            "nvmlSystemGetCudaDriverVersion": "13000",
            "libcuda-mib": "32",
            "nvmlDeviceGetCount": str(gpus),
            "nvmlEventSetCreate": "0",
        }
        self._events = 0
        for gpu in range(gpus):
            self.add_gpu(gpu)

    def set(self, gpu: int, function: str, *values: object) -> None:
        """Set what a function answers: `set(0, "nvmlDeviceGetTemperature/0", 45)`."""
        self.answers[f"{gpu}/{function}"] = " ".join(str(value) for value in values)

    def remove(self, gpu: int, function: str) -> None:
        """Make a function unsupported."""
        del self.answers[f"{gpu}/{function}"]

    def field(self, gpu: int, field: int, value: object, scope: int = 0) -> None:
        self.set(gpu, f"field/{field}/{scope}", value)

    def lose(self, gpu: int, is_lost: bool = True) -> None:
        self.set(gpu, "lost", int(is_lost))

    def report(self, gpu: int, code: int, event_type: int = XID) -> None:
        """Report an event."""
        self._events += 1
        self.answers[f"event/{self._events}"] = f"{gpu} {event_type} {code}"

    def save(self, path: Path) -> None:
        """Replace the state file at once: a reader sees the old answers or the new ones."""
        text = "".join(f"{key} {values}\n" for key, values in self.answers.items())
        new = path.with_suffix(".new")
        new.write_text(text, encoding="ascii")
        new.replace(path)

    def add_gpu(self, gpu: int) -> None:
        """An H100 in good health."""
        put = self.set
        put(gpu, "nvmlDeviceGetHandleByIndex", 0)
        put(gpu, "nvmlDeviceGetPciInfo", 0, 0x1B + gpu, 0)
        put(gpu, "nvmlDeviceGetUUID", f"GPU-00000000-0000-0000-0000-{gpu:012d}")
        put(gpu, "nvmlDeviceGetName", "NVIDIA H100 80GB HBM3")
        put(gpu, "nvmlDeviceGetSerial", f"165392400{gpu:04d}")
        put(gpu, "nvmlDeviceGetVbiosVersion", "96.00.A5.00.01")
        put(gpu, "nvmlDeviceGetInforomImageVersion", "G520.0200.00.05")
        put(gpu, "nvmlDeviceGetBoardPartNumber", "692-2G520-0200-000")
        put(gpu, "nvmlDeviceGetMinorNumber", gpu)
        put(gpu, "nvmlDeviceGetPersistenceMode", 1)
        put(gpu, "nvmlDeviceGetMigMode", 0, 0)
        put(gpu, "nvmlDeviceGetTemperature/0", 45)
        put(gpu, "nvmlDeviceGetMarginTemperature", 42)
        for threshold, celsius in enumerate((95, 92, 95, 87)):
            put(gpu, f"nvmlDeviceGetTemperatureThreshold/{threshold}", celsius)
        put(gpu, "nvmlDeviceGetEnforcedPowerLimit", 700_000)
        put(gpu, "nvmlDeviceGetPowerUsage", 300_000)
        for clock, mhz in enumerate((1980, 1980, 2619, 1545)):
            put(gpu, f"nvmlDeviceGetClockInfo/{clock}", mhz)
            put(gpu, f"nvmlDeviceGetMaxClockInfo/{clock}", mhz)
            if clock < 3:  # there is none for video
                put(gpu, f"nvmlDeviceGetApplicationsClock/{clock}", mhz)
        put(gpu, "nvmlDeviceGetCurrentClocksEventReasons", 0)
        put(gpu, "nvmlDeviceGetPerformanceState", 0)
        put(gpu, "nvmlDeviceGetUtilizationRates", 98, 61)
        put(gpu, "nvmlDeviceGetMemoryInfo", 80 * GIB, 60 * GIB, GIB)
        for unit in ("Encoder", "Decoder", "Jpg", "Ofa"):
            put(gpu, f"nvmlDeviceGet{unit}Utilization", 0, 166_666)
        put(gpu, "nvmlGpmQueryDeviceSupport", 1)
        for metric, percent in GPM_PERCENT.items():
            put(gpu, f"gpm/{metric}", percent)
        put(gpu, "nvmlDeviceGetComputeRunningProcesses", "")
        for kind in range(2):
            for counter in range(2):
                for location in (
                    2,
                    7,
                ):  # DRAM and SRAM; an H200 answers for no other, nor by fields
                    put(gpu, f"nvmlDeviceGetMemoryErrorCounter/{kind}/{counter}/{location}", 0)
        put(gpu, "nvmlDeviceGetRowRemapperHistogram", 2560, 0, 0, 0, 0)
        put(gpu, "nvmlDeviceGetCurrPcieLinkGeneration", 5)
        put(gpu, "nvmlDeviceGetMaxPcieLinkGeneration", 5)
        put(gpu, "nvmlDeviceGetCurrPcieLinkWidth", 16)
        put(gpu, "nvmlDeviceGetMaxPcieLinkWidth", 16)
        put(gpu, "nvmlDeviceGetPcieThroughput/0", 1000)
        put(gpu, "nvmlDeviceGetPcieThroughput/1", 2000)
        put(gpu, "nvmlDeviceGetRepairStatus", 0, 0)
        put(gpu, "nvmlDeviceGetGpuFabricInfoV/3", 3, 0, 7, 0b101010)
        put(gpu, "nvmlDeviceGetSupportedEventTypes", 0xFE0A)
        self._add_fields(gpu)

    def join_fabric(self, gpu: int, cluster: str, clique: int, state: int = 3) -> None:
        """Put a GPU into a clique of a cluster, named by 32 hexadecimal digits, as in an NVL72."""
        self.set(gpu, "nvmlDeviceGetGpuFabricInfoV/3", state, 0, clique, 0b101010, cluster)

    def seat(self, gpu: int, chassis: str, slot: int, tray: int) -> None:
        """Put a GPU into a slot of a chassis, as the compute trays of an NVL72 have theirs."""
        self.set(gpu, "nvmlDeviceGetPlatformInfo", chassis, slot, tray, 1, gpu + 1)

    def bridge(self, gpu: int, peer: int) -> None:
        """Join a GPU to one other by all its links, without a switch: cards with a bridge."""
        self.field(gpu, 147, 0)
        for link in range(LINKS):
            self.set(gpu, f"nvmlDeviceGetNvLinkRemoteDeviceType/{link}", 0)
            self.set(gpu, f"nvmlDeviceGetNvLinkRemotePciInfo/{link}", 0, 0x1B + peer, 0)

    def pass_through(self, gpu: int) -> None:
        """Make it a card that a virtual machine has alone: without NVLinks and a fabric, as an H200 was seen."""
        self.field(gpu, 91, 0)
        self.field(gpu, 147, 0)
        self.remove(gpu, "nvmlDeviceGetGpuFabricInfoV/3")
        for link in range(LINKS):
            self.remove(gpu, f"nvmlDeviceGetNvLinkState/{link}")

    def add_mig(self, gpu: int, number: int, gpu_instance: int, profile: str = "1g.10gb") -> None:
        """Switch MIG on and add an instance."""
        put = self.set
        put(gpu, "nvmlDeviceGetMigMode", 1, 1)
        put(gpu, "nvmlDeviceGetMaxMigDeviceCount", 7)
        put(gpu, f"nvmlDeviceGetMigDeviceHandleByIndex/{number}", 0)
        for other in range(7):  # where there is none: NOT_FOUND
            self.answers.setdefault(f"{gpu}/nvmlDeviceGetMigDeviceHandleByIndex/{other}", "E6")
        of = f"{gpu}.{number}"
        self.answers |= {
            f"{of}/nvmlDeviceGetGpuInstanceId": str(gpu_instance),
            f"{of}/nvmlDeviceGetComputeInstanceId": "0",
            f"{of}/nvmlDeviceGetUUID": f"MIG-00000000-{gpu}-{number}",
            f"{of}/nvmlDeviceGetName": f"NVIDIA H100 80GB HBM3 MIG {profile}",
            f"{of}/nvmlDeviceGetMemoryInfo": f"{10 * GIB} {number * GIB} 0",
        }
        for metric, percent in GPM_PERCENT.items():
            put(gpu, f"gpm/{metric}/{gpu_instance}", percent / 2)

    def _add_fields(self, gpu: int) -> None:
        values = {82: 58, 186: 310_500, 83: 10**9, 230: 0, 1: 1, 2: 1}
        values |= dict.fromkeys((74, 75, 76, 77, 78, 79, 80, 81, 269, 270, 271), 0)
        values |= dict.fromkeys((3, 4, 5, 6), 0)
        values |= dict.fromkeys((142, 143, 144, 145, 94, 95, 169, *range(173, 184)), 0)
        values |= {197: 10**12, 198: 2 * 10**12, 187: 200_000, 188: 700_000, 189: 700_000}
        values |= {91: LINKS, 147: LINKS, 194: -2}
        for field, value in values.items():
            self.field(gpu, field, value)
        for link in range(LINKS):
            self.set(gpu, f"nvmlDeviceGetNvLinkState/{link}", 1)
            for field, value in {164: 26562, 138: 1000, 139: 2000, 161: 0, 162: 0, 163: 0}.items():
                self.field(gpu, field, value, scope=link)


SOURCE = Path(__file__).with_name("nvml_stub.c")


def build(folder: Path, *options: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler to build the stub of NVML with")
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run(
        [*command, "-Wl,-soname,libnvidia-ml.so.1", *options, "-o", str(library), str(SOURCE)],
        check=True,
    )
    return library


@pytest.fixture(scope="session")
def library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml")).parent


class Node:
    """GPUs that change while they are watched."""

    def __init__(self, folder: Path) -> None:
        self.stub = StubNode()
        self.state = folder / "gpus"
        self.save()

    def save(self) -> None:
        self.stub.save(self.state)


@pytest.fixture
def node(tmp_path: Path, library_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node whose environment leads every child to the stub."""
    node = Node(tmp_path)
    monkeypatch.setenv("NVML_STUB_STATE", str(node.state))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library_folder))
    yield node
    node.stub = StubNode()
    node.save()  # no call hangs any more, so that every child can end

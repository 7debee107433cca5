"""`rankmend doctor` on hosts with one gap each: files in a tree, programs that are scripts, NVML in small."""

import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.collectors.clock import KernelClock
from agent.config import SERVICE_STATE_DIR
from agent.doctor import node_agent
from agent.doctor.gpu import read_gpu
from agent.doctor.host import read_host
from agent.doctor.node_agent import AgentSetup, load_setup, read_agent_facts
from agent.doctor.places import Places
from agent.doctor.rdma import read_rdma
from agent.doctor.slurm import read_slurm
from agent.root_helper.questions import SOCKET_PATH
from detectors.doctor.agent import AGENT_CHECKS, FolderFacts
from detectors.doctor.check import CheckResult, HostOutcome, judge
from detectors.doctor.gpu import GPU_CHECKS
from detectors.doctor.host import HOST_CHECKS
from detectors.doctor.rdma import RDMA_CHECKS
from detectors.doctor.slurm import SLURM_CHECKS
from rankmend.child_call import call_in_child
from tests.support.nics import add_pci, add_rdma, link, write
from tests.support.pcie import ALL_REDIRECTS, bridge_config, set_config

pytestmark = pytest.mark.process

OK, LACKING, BROKEN = HostOutcome.OK, HostOutcome.LACKING, HostOutcome.BROKEN
UNKNOWN, NOT_APPLICABLE = HostOutcome.UNKNOWN, HostOutcome.NOT_APPLICABLE
UNLIMITED = -1
NVRM = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
FABRIC = (
    "Id=nvidia-fabricmanager.service\nLoadState={load}\nActiveState={active}\nSubState=x\n"
    "UnitFileState=enabled\nNRestarts=0\nResult=success\n"
)
PORT = "sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0/0000:42:00.0"
PROGRAMS = ("usr/bin/ipmitool", "usr/sbin/smartctl", "usr/sbin/nvme")


class NvmlError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class SmallNvml:
    """The part of pynvml that is asked; codes of nvml.h."""

    NVMLError = NvmlError
    NVML_ERROR_NO_PERMISSION, NVML_ERROR_DRIVER_NOT_LOADED = 4, 9
    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_LIB_RM_VERSION_MISMATCH = 12, 18
    NVML_FEATURE_DISABLED = 0

    def __init__(self, count: int = 2, code: int = 0, persistence: int = 1) -> None:
        self.count, self.code, self.persistence = count, code, persistence

    def nvmlInit(self) -> None:  # noqa: N802
        if self.code:
            raise NvmlError(self.code)

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetPersistenceMode(self, handle: int) -> int:  # noqa: N802
        return self.persistence


class Units:
    def __init__(self, load: str = "loaded", active: str = "active") -> None:
        self.text = FABRIC.format(load=load, active=active)

    def show(self, units: list[str]) -> str:
        return self.text


class Host:
    """A host of two GPUs, an NVSwitch and an InfiniBand card that lacks nothing, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.root, self.procfs, self.sysfs = folder / "root", folder / "proc", folder / "sys"
        for number, place in enumerate(("10", "20")):
            add_pci(self.sysfs, f"{place}/{place}:00.{number}", "0x030200", "0x10de", 0, "nvidia")
        add_pci(self.sysfs, "30/30:00.0", "0x068000", "0x10de", 0, "nvidia-nvswitch")
        chain = "40/40:01.0/41:00.0/42:00.0/43:00.0"  # below a switch
        card = add_pci(self.sysfs, chain, "0x020700", "0x15b3", 0, "mlx5_core")
        for port in ("41:00.0", "42:00.0"):
            set_config(self.sysfs, f"0000:{port}", bridge_config(0))
        self.port = add_rdma(self.sysfs, "mlx5_0", card, "InfiniBand", "400 Gb/sec (4X NDR)")
        (self.sysfs / "module" / "nvidia_peermem").mkdir(parents=True)
        chip = self.sysfs / "class" / "hwmon" / "hwmon0"
        write(chip / "name", "k10temp")
        write(chip / "temp1_input", "45000")
        memory = self.sysfs / "devices" / "system" / "edac" / "mc" / "mc0"
        for name in ("ce_count", "ue_count", "ce_noinfo_count", "ue_noinfo_count"):
            write(memory / name, "0")
        write(self.sysfs / "fs/cgroup/cgroup.controllers", "cpu io memory pids")
        clocks = self.sysfs / "devices" / "system" / "clocksource" / "clocksource0"
        write(clocks / "current_clocksource", "tsc")
        write(self.procfs / "driver/nvidia/version", NVRM)
        write(self.procfs / "sys/kernel/osrelease", "6.8.0-45-generic")
        write(self.procfs / "sys/kernel/yama/ptrace_scope", "1")
        write(self.procfs / "cpuinfo", "flags\t\t: fpu vme tsc")
        for name in ("cpu", "io", "memory"):
            line = "avg10=0.00 avg60=0.00 avg300=0.00 total=0"
            write(self.procfs / "pressure" / name, f"some {line}\nfull {line}")
        link(self.procfs / "self/ns/pid", Path("/x"))
        (self.procfs / "self/ns/pid").unlink()
        (self.procfs / "self/ns/pid").symlink_to("pid:[4026531836]")
        for name in ("dev/nvidiactl", "dev/kmsg", "dev/ipmi0", "dev/infiniband/uverbs0", *PROGRAMS):
            write(self.root / name, "")
        write(self.root / str(SOCKET_PATH).lstrip("/"), "")
        write(self.root / "run/munge/munge.socket.2", "")
        self.bin = folder / "bin"
        self.program("scontrol", "echo 'NodeName=gpu-1 State=IDLE Partitions=main'")
        self.environment = {"PATH": str(self.bin), "SLURMD_NODENAME": "gpu-1"}
        self.nvml: Any = SmallNvml()
        self.units = Units()
        self.memlock = (UNLIMITED, UNLIMITED)
        self.expected: int | None = None
        self.is_clock_kept = True
        self.programs = {"docker", "nvidia-ctk"}
        self.config = self.root / "etc/rankmend/agent.toml"
        self.socket = self.root / "run/rankmend/agent.sock"
        write(self.config, 'listen = "127.0.0.1:1"')
        self.folder: FolderFacts | None = None

    def program(self, name: str, script: str) -> None:
        write(self.bin / name, f"#!/bin/sh\n{script}")
        (self.bin / name).chmod(0o755)

    def places(self) -> Places:
        return Places(self.procfs, self.sysfs, self.root, self.environment)

    def results(self) -> dict[str, CheckResult]:
        places = self.places()
        clock = KernelClock(self.is_clock_kept, 0.0, 0.0, 0.0, 0.0)
        found = judge(GPU_CHECKS, read_gpu(places, self.expected, self.units, self.load))
        found += judge(RDMA_CHECKS, read_rdma(places, limit=self.memlock))
        named = {name: name for name in self.programs}
        found += judge(HOST_CHECKS, read_host(places, lambda: clock, named.get))
        found += judge(SLURM_CHECKS, read_slurm(places, answer_s=60))
        found += judge(AGENT_CHECKS, read_agent_facts(places, self.config, self.look))
        return {result.check: result for result in found}

    def load(self) -> Any:
        if self.nvml is None:
            raise ImportError("No module named 'pynvml'")
        return self.nvml

    def look(self, folder: Path) -> FolderFacts:
        return self.folder or FolderFacts(str(folder), file_system="ext4", free_bytes=1 << 40)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path)
    made.socket.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        here = Path.cwd()
        os.chdir(made.socket.parent)  # a path of a socket has 107 bytes at most
        listener.bind(made.socket.name)
        os.chdir(here)
        listener.listen()
        yield made


def without(*names: str) -> Callable[[Host], None]:
    """Return a gap: these files and folders are gone."""

    def make(host: Host) -> None:
        for name in names:
            part, _slash, rest = name.partition("/")
            remove({"root": host.root, "sys": host.sysfs, "proc": host.procfs}[part] / rest)

    return make


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        for child in path.iterdir():
            remove(child)
        path.rmdir()
    else:
        path.unlink()


def with_nvml(**changes: int) -> Callable[[Host], None]:
    return lambda host: setattr(host, "nvml", SmallNvml(**changes))


def with_(**changes: Any) -> Callable[[Host], None]:
    def make(host: Host) -> None:
        for name, value in changes.items():
            setattr(host, name, value)

    return make


def with_file(name: str, text: str) -> Callable[[Host], None]:
    def make(host: Host) -> None:
        part, _slash, rest = name.partition("/")
        write({"root": host.root, "sys": host.sysfs, "proc": host.procfs}[part] / rest, text)

    return make


def with_variable(name: str, value: str) -> Callable[[Host], None]:
    return lambda host: host.environment.__setitem__(name, value)


def with_scontrol(script: str) -> Callable[[Host], None]:
    return lambda host: host.program("scontrol", script)


def with_port(state: str) -> Callable[[Host], None]:
    return lambda host: write(host.port / "state", state)


def in_own_pid_namespace(host: Host) -> None:
    write(host.root / ".dockerenv", "")
    (host.procfs / "self/ns/pid").unlink()
    (host.procfs / "self/ns/pid").symlink_to("pid:[4026532567]")


def no_gpu(host: Host) -> None:
    remove(host.sysfs / "bus/pci/devices")
    remove(host.procfs / "driver")
    host.expected = 8


def mixed_cgroups(host: Host) -> None:
    remove(host.sysfs / "fs/cgroup/cgroup.controllers")
    (host.sysfs / "fs/cgroup/memory").mkdir()
    write(host.sysfs / "fs/cgroup/unified/cgroup.controllers", "")


def acs_on(host: Host) -> None:
    set_config(host.sysfs, "0000:42:00.0", bridge_config(ALL_REDIRECTS))


def no_rdma_driver(host: Host) -> None:
    remove(host.sysfs / "class/infiniband")


GAPS: dict[str, tuple[Callable[[Host], None], str, HostOutcome, str]] = {
    "driver not loaded": (without("proc/driver"), "gpu_driver", LACKING, "modprobe nvidia"),
    "no GPU, some configured": (no_gpu, "gpu_driver", BROKEN, "agent.toml"),
    "no bindings": (with_(nvml=None), "gpu_library", LACKING, "pip install nvidia-ml-py"),
    "no NVML library": (with_nvml(code=12), "gpu_library", LACKING, "--gpus all"),
    "driver upgraded under us": (with_nvml(code=18), "gpu_match", BROKEN, "reboot"),
    "NVML fails": (with_nvml(code=999), "gpu_match", BROKEN, "nvidia-smi"),
    "no device files": (without("root/dev/nvidiactl"), "gpu_devices", LACKING, "--gpus all"),
    "no permission": (with_nvml(code=4), "gpu_devices", BROKEN, "--gres"),
    "a GPU fell off the bus": (with_nvml(count=1), "gpu_count", BROKEN, "Xid"),
    "fewer than configured": (with_(expected=3), "gpu_count", BROKEN, "nvidia-smi -L"),
    "persistence mode off": (with_nvml(persistence=0), "gpu_persistence", LACKING, "persistenced"),
    "no fabric manager": (
        with_(units=Units("not-found", "inactive")),
        "gpu_fabric_manager",
        BROKEN,
        "nvidia-fabricmanager-550",
    ),
    "fabric manager stopped": (
        with_(units=Units("loaded", "failed")),
        "gpu_fabric_manager",
        BROKEN,
        "systemctl enable --now nvidia-fabricmanager",
    ),
    "no peermem": (without("sys/module"), "gpu_direct_rdma", LACKING, "modprobe nvidia_peermem"),
    "ACS redirects": (acs_on, "gpu_acs", LACKING, "setpci -s $port ECAP_ACS+0x6.w=0000"),
    "ACS not readable": (with_file(f"{PORT}/config", "64"), "gpu_acs", UNKNOWN, ""),
    "ACS for root only": (
        with_file(f"{PORT}/config", "0" * 63),  # and the end of the line
        "gpu_acs",
        HostOutcome.HIDDEN,
        "",
    ),
    "no RDMA driver": (no_rdma_driver, "rdma_driver", LACKING, "modprobe -a mlx5_ib"),
    "no subnet manager": (with_port("2: INIT"), "rdma_ports", BROKEN, "opensm"),
    "link down": (with_port("1: DOWN"), "rdma_ports", BROKEN, "ibstat"),
    "no verbs files": (
        without("root/dev/infiniband"),
        "rdma_files",
        LACKING,
        "--device=/dev/infiniband",
    ),
    "locked memory limited": (
        with_(memlock=(8 << 20, 8 << 20)),
        "rdma_memlock",
        LACKING,
        "memlock unlimited",
    ),
    "locked memory soft": (
        with_(memlock=(8 << 20, UNLIMITED)),
        "rdma_memlock",
        LACKING,
        "ulimit -l unlimited",
    ),
    "no kernel log": (without("root/dev/kmsg"), "kernel_log", LACKING, "--device=/dev/kmsg"),
    "no cgroups": (without("sys/fs"), "kernel_cgroups", LACKING, "mount -t cgroup2"),
    "cgroups mixed": (mixed_cgroups, "kernel_cgroups", LACKING, "unified_cgroup_hierarchy=1"),
    "no PSI": (without("proc/pressure"), "kernel_pressure", LACKING, "psi=1"),
    "no tracing": (
        with_file("proc/sys/kernel/yama/ptrace_scope", "2"),
        "kernel_ptrace",
        LACKING,
        "sysctl -w kernel.yama.ptrace_scope=1",
    ),
    "no tracing until the boot": (
        with_file("proc/sys/kernel/yama/ptrace_scope", "3"),
        "kernel_ptrace",
        LACKING,
        "reboot",
    ),
    "no sensors": (without("sys/class/hwmon"), "sensors_hwmon", LACKING, "modprobe coretemp"),
    "no EDAC": (without("sys/devices/system/edac"), "sensors_memory", LACKING, "EDAC"),
    "no IPMI": (without("root/dev/ipmi0"), "sensors_ipmi", LACKING, "modprobe -a ipmi_si"),
    "no root helper": (
        without(f"root{SOCKET_PATH}"),
        "sensors_helper",
        LACKING,
        "rankmend-agent-helper.socket",
    ),
    "no smartctl": (without(f"root/{PROGRAMS[1]}"), "sensors_programs", LACKING, "smartmontools"),
    "clock runs free": (with_(is_clock_kept=False), "clock_kept", LACKING, "chronyd"),
    "TSC given up": (
        with_file("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet"),
        "clock_source",
        LACKING,
        "tsc",
    ),
    "container with own PIDs": (in_own_pid_namespace, "container_pids", LACKING, "--pid=host"),
    "no container toolkit": (with_(programs={"docker"}), "container_gpus", LACKING, "nvidia-ctk"),
    "SLURM_CONF wrong": (
        with_variable("SLURM_CONF", "/x/slurm.conf"),
        "slurm_conf",
        BROKEN,
        "SLURM_CONF",
    ),
    "no scontrol": (with_variable("PATH", "/nonexistent"), "slurm_commands", LACKING, "PATH"),
    "slurmctld silent": (
        with_scontrol("echo 'Unable to contact slurm controller' >&2; exit 1"),
        "slurm_answer",
        BROKEN,
        "scontrol ping",
    ),
    "drained": (
        with_scontrol("echo 'NodeName=gpu-1 State=IDLE+DRAIN Reason=fan [root@2026-11-01]'"),
        "slurm_node",
        LACKING,
        "nodename=gpu-1 state=resume",
    ),
    "no agent.toml": (without("root/etc/rankmend"), "agent_config", LACKING, "rankmend agent init"),
    "agent.toml not TOML": (
        with_file("root/etc/rankmend/agent.toml", "listen = :9476"),
        "agent_config",
        BROKEN,
        "systemctl reload",
    ),
    "agent.toml misspelled": (
        with_file("root/etc/rankmend/agent.toml", 'lisen = ":9476"'),
        "agent_config",
        BROKEN,
        "systemctl reload",
    ),
    "no agent": (without("root/run/rankmend"), "agent_socket", LACKING, "rankmend-agent"),
    "page not served": (with_(), "agent_page", BROKEN, "listen"),
    "state on NFS": (
        with_(folder=FolderFacts("/x", file_system="nfs4", is_network=True)),
        "agent_state",
        BROKEN,
        "local disk",
    ),
    "state on tmpfs": (
        with_(folder=FolderFacts("/x", file_system="tmpfs")),
        "agent_state",
        LACKING,
        "local disk",
    ),
    "no state folder": (
        with_(folder=FolderFacts("/x", is_there=False)),
        "agent_state",
        LACKING,
        "state_dir",
    ),
    "state's disk full": (
        with_(folder=FolderFacts("/x", file_system="xfs", free_bytes=1 << 20)),
        "agent_state",
        BROKEN,
        "df /x",
    ),
}


@pytest.mark.parametrize("gap", GAPS)
def test_gap_is_found_with_what_is_lost_and_the_line_that_mends_it(host: Host, gap: str) -> None:
    make, check, outcome, mend = GAPS[gap]
    make(host)

    result = host.results()[check]

    assert result.outcome is outcome, result
    assert result.lost
    assert mend in result.mend


def test_host_that_lacks_nothing_is_told_so(host: Host) -> None:
    results = host.results()

    gaps = {name for name, result in results.items() if result.outcome not in (OK, NOT_APPLICABLE)}
    assert gaps == {"agent_page"}  # nobody serves it in a folder
    assert {name for name, result in results.items() if result.outcome is NOT_APPLICABLE} == {
        "container_pids"
    }
    assert not any(
        result.mend or result.lost for result in results.values() if result.outcome is OK
    )


def test_host_without_any_of_it_needs_none(tmp_path: Path) -> None:
    for name in ("proc", "sys", "root"):
        (tmp_path / name).mkdir()
    places = Places(tmp_path / "proc", tmp_path / "sys", tmp_path / "root", {"PATH": ""})

    results = judge(GPU_CHECKS, read_gpu(places))
    results += judge(RDMA_CHECKS, read_rdma(places))
    results += judge(SLURM_CHECKS, read_slurm(places))

    assert {result.outcome for result in results} == {NOT_APPLICABLE}


def test_recorded_tree_is_not_judged_by_this_machines_devices_and_clock(host: Host) -> None:
    places = replace(host.places(), is_live=False)

    facts = read_host(places, lambda: KernelClock(False, 0.0, 0.0, 0.0, 0.0))

    assert (facts.kernel_log, facts.ipmi_device, facts.is_clock_kept) == (None, None, None)
    assert read_gpu(places, load=host.load).nvml is None


def test_sensors_of_a_virtual_machine_are_its_hosts(host: Host) -> None:
    write(host.procfs / "cpuinfo", "flags\t\t: fpu hypervisor")
    remove(host.sysfs / "class/hwmon")
    remove(host.root / "dev/ipmi0")

    results = host.results()

    assert results["sensors_hwmon"].outcome is NOT_APPLICABLE
    assert results["sensors_ipmi"].outcome is NOT_APPLICABLE


def test_open_driver_on_a_new_kernel_needs_no_peermem(host: Host) -> None:
    remove(host.sysfs / "module")
    write(
        host.procfs / "driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release Build",
    )

    assert host.results()["gpu_direct_rdma"].outcome is OK


def test_programs_of_slurm_alone_make_no_cluster(host: Host) -> None:
    host.program("scontrol", "exit 1")
    del host.environment["SLURMD_NODENAME"]

    assert host.results()["slurm_answer"].outcome is NOT_APPLICABLE


def test_socket_that_an_agent_has_left_behind_is_broken(host: Host) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as gone:
        here = Path.cwd()
        os.chdir(host.socket.parent)
        host.socket.unlink()
        gone.bind(host.socket.name)
        os.chdir(here)

    result = host.results()["agent_socket"]

    assert (result.outcome, "restart" in result.mend) == (BROKEN, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_kernel_log_that_only_root_may_read_says_what_root_would_see() -> None:
    def ask() -> list[str]:
        os.setgid(65534)
        os.setuid(65534)
        os.chdir("/")
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            device = Path(folder) / "dev" / "kmsg"
            write(device, "")
            device.chmod(0)
            places = Places(Path("/proc"), Path("/sys"), Path(folder))
            results = judge(HOST_CHECKS, read_host(places, find_program=lambda _name: None))
        found = next(result for result in results if result.check == "kernel_log")
        return [found.outcome.value, found.mend, found.as_root]

    outcome, mend, as_root = call_in_child(ask, 60)

    assert (outcome, as_root) == ("lacking", "root reads it")
    assert "CAP_SYSLOG" in mend


def test_codes_of_the_small_nvml_are_those_of_the_real_binding() -> None:
    real = pytest.importorskip("pynvml")
    names = [name for name in vars(SmallNvml) if name.startswith("NVML_")]

    assert {name: getattr(SmallNvml, name) for name in names} == {
        name: getattr(real, name) for name in names
    }


def test_agent_without_a_configuration_is_set_up_as_one_with_an_empty_file(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text("")

    assert load_setup(config)[0] == AgentSetup()
    assert load_setup(tmp_path / "none.toml")[0] is None
    assert Path(node_agent.SERVICE_STATE_DIR) == SERVICE_STATE_DIR


def test_setup_has_what_the_configuration_says(tmp_path: Path) -> None:
    config = tmp_path / "agent.toml"
    config.write_text(
        'listen = ":9999"\nnode = "n7"\n[tls]\ncert_file = "/t.crt"\nkey_file = "/t.key"\n'
        '[alerts]\nca_file = "/a.ca"\n[expect]\ngpus = 8\n[nic]\nexclude = ["mlx5_9"]\n'
        '[watch]\ncontroller = "https://c:9477"\n'
    )

    assert load_setup(config)[0] == AgentSetup(
        listen=":9999",
        node="n7",
        has_tls=True,
        certificates=("/a.ca", "/t.crt"),
        keys=("/t.key",),
        alerts_ca_file="/a.ca",
        controller="https://c:9477",
        gpus=8,
        nics_left_out=("mlx5_9",),
    )

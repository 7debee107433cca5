"""The host's figures: /proc, processes, clock, services, versions, on a tree written by hand."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.host import COLLECTORS, HostSettings, check, make_collectors
from agent.collectors.clock import ClockCollector, KernelClock, decode_timex, make_adjtimex
from agent.collectors.host import HostCollector, decode_taint, parse_number, parse_table
from agent.collectors.network import NetworkCollector
from agent.collectors.pressure import PressureCollector
from agent.collectors.processes import STUCK_S_MIN, ProcessesCollector, parse_stat, read_state
from agent.collectors.services import ServicesCollector, Systemctl, parse_units
from agent.collectors.versions import VersionsCollector, load_baseline, parse_nvidia_version
from agent.sampling.demand import Demand
from agent.sources.kept_files import KeptFiles
from rankmend.errors import ConfigError, NoSourceError, SourceError
from tests.support.agent import FIXTURE, PATIENT, FakeClock, values_of
from tests.support.collectors import PROC, SYS, TREE


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return Path(shutil.copytree(PROC, tmp_path / "proc"))


def test_host_tells_of_memory_that_is_lost_killed_for_and_set_aside() -> None:
    values = values_of(list(HostCollector(PROC).collect()))

    assert values["host_memory_available_bytes"] == 1_900_000_000 * 1024
    assert values["host_memory_corrupted_bytes"] == 4096
    assert values["host_oom_kills_total"] == 2
    assert values["host_huge_pages_size_bytes"] == 1024 * 2048 * 1024
    assert values["host_huge_pages_available_bytes"] == 1000 * 2048 * 1024
    assert values["host_swap_used_bytes"] == 4096


def test_host_tells_of_descriptors_threads_and_blocked_tasks() -> None:
    values = values_of(list(HostCollector(PROC).collect()))

    assert values["host_descriptors"] == 34720
    assert values["host_threads"] == 2048
    assert values["host_tasks_running"] == 6
    assert values["host_tasks_blocked"] == 2
    assert values["host_cpus"] == 2
    assert values["host_cpu_seconds_total{idle}"] == 10_000


def test_taint_is_decoded_bit_by_bit() -> None:
    values = values_of(list(HostCollector(PROC).collect()))

    assert values["host_kernel_taint"] == 4609
    reasons = {name for name in values if name.startswith("host_kernel_taint_info")}
    assert reasons == {
        "host_kernel_taint_info{proprietary_module}",
        "host_kernel_taint_info{warning}",
        "host_kernel_taint_info{out_of_tree_module}",
    }


def test_taint_bit_of_a_newer_kernel_keeps_its_number() -> None:
    assert decode_taint(1 << 4 | 1 << 19 | 1 << 27) == ["machine_check", "fwctl", "bit_27"]


@pytest.mark.parametrize(
    ("name", "content", "lost"),
    [
        ("stat", b"cpu  garbage\n", "host_cpus"),
        ("loadavg", b"", "host_threads"),
        ("uptime", b"\xff\xfe", "host_uptime_seconds"),
        ("meminfo", b"", "host_memory_size_bytes"),
        ("vmstat", b"pswpin -1\n", "host_oom_kills_total"),
        ("sys/fs/file-nr", b"1 2\n", "host_descriptors"),
        ("sys/kernel/tainted", b"0x1\n", "host_kernel_taint"),
    ],
)
def test_one_bad_file_costs_its_own_values_only(
    name: str, content: bytes, lost: str, proc: Path
) -> None:
    whole = values_of(list(HostCollector(proc).collect()))
    (proc / name).write_bytes(content)

    values = values_of(list(HostCollector(proc).collect()))

    assert values[f"host_file_success{{{name}}}"] == 0
    assert lost in whole
    assert lost not in values
    others = {key for key in whole if key.startswith("host_file_success")}
    assert [values[key] for key in sorted(others)].count(1) == len(others) - 1


def test_field_that_a_kernel_lacks_is_absent_and_not_zero(proc: Path) -> None:
    (proc / "meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 500 kB\n")
    (proc / "vmstat").write_text("pswpin 0\npswpout 0\n")

    values = values_of(list(HostCollector(proc).collect()))

    assert values["host_memory_size_bytes"] == 1000 * 1024
    for name in ("host_oom_kills_total", "host_memory_corrupted_bytes", "host_swap_size_bytes"):
        assert name not in values


def test_host_is_read_anew_from_kept_descriptors(proc: Path) -> None:
    collector = HostCollector(proc)
    list(collector.collect())
    (proc / "vmstat").write_text("pswpin 3\npswpout 4\noom_kill 5\n")

    values = values_of(list(collector.collect()))

    assert values["host_oom_kills_total"] == 5


def test_what_no_check_reads_of_the_host_waits_for_a_reader(proc: Path) -> None:
    clock = FakeClock()
    demand = Demand(clock.now_s)
    collector = HostCollector(proc, clock, demand)
    first = values_of(list(collector.collect()))["host_uptime_seconds"]
    (proc / "uptime").write_text("77.5 1.0\n")
    (proc / "vmstat").write_text("pswpin 3\npswpout 4\noom_kill 5\n")

    clock.time_s += 1.0
    unread = values_of(list(collector.collect()))
    demand.note("10.0.0.1")
    clock.time_s += 2.0
    demand.note("10.0.0.1")  # it comes each 2 s
    clock.time_s += 1.0
    expected = values_of(list(collector.collect()))

    assert (unread["host_uptime_seconds"], unread["host_oom_kills_total"]) == (first, 2)
    assert (expected["host_uptime_seconds"], expected["host_oom_kills_total"]) == (77.5, 5)


def test_what_checks_read_over_minutes_is_at_most_5_seconds_old(proc: Path) -> None:
    clock = FakeClock()
    collector = HostCollector(proc, clock, Demand(clock.now_s))
    first = values_of(list(collector.collect()))["host_uptime_seconds"]
    (proc / "uptime").write_text("77.5 1.0\n")
    (proc / "vmstat").write_text("pswpin 3\npswpout 4\noom_kill 5\n")

    clock.time_s += 5.0
    values = values_of(list(collector.collect()))

    assert (values["host_uptime_seconds"], values["host_oom_kills_total"]) == (first, 5)


def test_what_no_check_reads_of_the_host_is_at_most_15_seconds_old(proc: Path) -> None:
    clock = FakeClock()
    collector = HostCollector(proc, clock, Demand(clock.now_s))
    list(collector.collect())
    (proc / "uptime").write_text("77.5 1.0\n")

    clock.time_s += 15.0
    values = values_of(list(collector.collect()))

    assert values["host_uptime_seconds"] == 77.5


def test_file_that_procfs_gives_a_page_at_a_time_is_read_to_the_bound() -> None:
    files = KeptFiles(bytes_max=60_000)

    for _time in ("opened", "kept"):
        assert len(files.read("/proc/kallsyms")) > 59_000
    files.close()


def test_host_reads_the_real_procfs() -> None:
    collector = HostCollector(Path("/proc"))

    values = values_of(list(collector.collect()))

    names = [line.split()[0] for line in Path("/proc/vmstat").read_text().splitlines()]
    assert ("host_oom_kills_total" in values) == ("oom_kill" in names)
    assert values["host_file_success{vmstat}"] == 1
    assert values["host_cpus"] == os.cpu_count()


@pytest.mark.parametrize(
    ("name", "content"),
    [("io", b"some avg10=0.00 total=-1\n"), ("cpu", b"\xff"), ("memory", b"")],
)
def test_pressure_file_that_makes_no_sense_takes_no_other_with_it(
    name: str, content: bytes, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(FIXTURE / "proc", tmp_path / "proc"))
    (root / "pressure" / name).write_bytes(content)

    values = values_of(list(PressureCollector(root).collect()))

    success = {key: value for key, value in values.items() if key.startswith("pressure_success")}
    assert success.pop(f"pressure_success{{{name}}}") == 0
    assert set(success.values()) == {1}
    assert len([key for key in values if key.startswith("pressure_some")]) == 2


# --- processes


def test_processes_are_counted_by_state() -> None:
    values = values_of(list(ProcessesCollector(PROC, FakeClock()).collect()))

    assert values["host_processes{disk_sleep}"] == 1
    assert values["host_processes{zombie}"] == 1
    assert values["host_processes{stopped}"] == 0
    assert values["host_processes{idle}"] == 1
    assert values["host_pid_max"] == 4194304
    assert values["host_processes_stuck"] == 0


def test_process_that_every_look_finds_in_state_d_is_stuck() -> None:
    clock = FakeClock()
    collector = ProcessesCollector(PROC, clock)
    list(collector.collect())
    clock.time_s += STUCK_S_MIN - 1
    before = values_of(list(collector.collect()))
    clock.time_s += 1

    values = values_of(list(collector.collect()))

    assert before["host_processes_stuck"] == 0
    assert values["host_processes_stuck"] == 1
    assert values["host_process_stuck_seconds{4242,python3 (rank 0)}"] == STUCK_S_MIN


def test_process_that_once_left_state_d_begins_anew(proc: Path) -> None:
    clock = FakeClock()
    collector = ProcessesCollector(proc, clock)
    stat = proc / "4242" / "stat"
    waiting = stat.read_text()
    list(collector.collect())
    stat.write_text(waiting.replace(") D ", ") S "))
    clock.time_s += 30
    list(collector.collect())
    stat.write_text(waiting)
    clock.time_s += 30
    list(collector.collect())
    clock.time_s += 30

    values = values_of(list(collector.collect()))

    assert values["host_processes_stuck"] == 0


def test_new_process_with_the_number_of_an_old_one_is_not_taken_for_it(proc: Path) -> None:
    clock = FakeClock()
    collector = ProcessesCollector(proc, clock)
    list(collector.collect())
    stat = proc / "4242" / "stat"
    stat.write_text(stat.read_text().replace(" 5000 ", " 7777 "))
    clock.time_s += 2 * STUCK_S_MIN

    values = values_of(list(collector.collect()))

    assert values["host_processes_stuck"] == 0


# --- clock


class FakeKernel:
    def __init__(self) -> None:
        self.gap_s = 1.7e9

    def ask(self) -> KernelClock:
        raise PermissionError(1, "Operation not permitted")


def test_step_of_the_clock_is_counted_and_measured() -> None:
    kernel = FakeKernel()
    collector = ClockCollector(SYS, lambda: kernel.gap_s, kernel.ask)
    for step_s in (0.001, 2.0, 0.0, -3.5):
        kernel.gap_s += step_s
        values = values_of(list(collector.collect()))

    assert values["clock_steps_total"] == 2
    assert values["clock_step_seconds_total{forward}"] == pytest.approx(2.0)
    assert values["clock_step_seconds_total{backward}"] == pytest.approx(3.5)


def test_kernel_that_may_not_be_asked_for_its_clock_is_never_synchronised_nor_not() -> None:
    kernel = FakeKernel()

    values = values_of(list(ClockCollector(SYS, lambda: 0.0, kernel.ask).collect()))

    assert values["clock_kernel_success"] == 0
    assert "clock_synchronised" not in values
    assert values["clock_source_info{tsc}"] == 1


def test_timex_is_in_base_units() -> None:
    nano = decode_timex(
        state=0, status=0x2001, offset=-1500, freq=655360, maxerror_us=250, esterror_us=5
    )
    micro = decode_timex(
        state=5, status=0x0041, offset=-1500, freq=0, maxerror_us=16_000_000, esterror_us=0
    )

    assert nano == KernelClock(True, -1.5e-6, 0.00025, 5e-6, pytest.approx(1e-5))
    assert (micro.is_synchronised, micro.offset_s, micro.error_max_s) == (False, -1.5e-3, 16.0)


def test_real_kernel_answers_how_its_clock_is_kept() -> None:
    kernel = make_adjtimex()()

    assert 0 <= kernel.error_estimated_s <= 60
    assert abs(kernel.frequency_ratio) <= 0.0005  # the kernel's own bound, 500 ppm


def test_clock_of_this_machine_is_not_shown_beside_a_recorded_tree() -> None:
    values = values_of(list(ClockCollector(SYS, is_live=False).collect()))

    assert values == {"clock_source_info{tsc}": 1}


# --- services


class FakeSystemctl(Systemctl):
    def __init__(self, text: str | None) -> None:
        super().__init__()
        self.text = text
        self.asked: Sequence[str] = ()

    def show(self, units: Sequence[str]) -> str:
        self.asked = units
        if self.text is None:
            raise NoSourceError("systemd does not run here")
        return self.text


SHOWN = (TREE / "systemctl-show.txt").read_text()


def test_enabled_unit_that_failed_is_down_and_says_why() -> None:
    values = values_of(list(ServicesCollector(SYS, FakeSystemctl(SHOWN)).collect()))

    unit = "nvidia-fabricmanager.service"
    assert values[f"service_active{{{unit}}}"] == 0
    assert values[f"service_restarts_total{{{unit}}}"] == 3
    assert values[f"service_info{{{unit},loaded,failed,failed,exit-code}}"] == 1
    assert values["service_active{munge.service}"] == 1


def test_unit_that_is_disabled_or_not_installed_is_nobodys_fault_unless_required() -> None:
    usual = values_of(list(ServicesCollector(SYS, FakeSystemctl(SHOWN)).collect()))
    required = values_of(
        list(ServicesCollector(SYS, FakeSystemctl(SHOWN), ["docker", "opensm"]).collect())
    )

    assert not [name for name in usual if "docker" in name or "opensm" in name]
    assert required["service_active{docker.service}"] == 0
    assert required["service_active{opensm.service}"] == 0


def test_required_units_are_down_where_no_systemd_runs() -> None:
    values = values_of(list(ServicesCollector(SYS, FakeSystemctl(None), ["munge"]).collect()))

    assert values == {"service_active{munge.service}": 0}
    with pytest.raises(NoSourceError):
        list(ServicesCollector(SYS, FakeSystemctl(None)).collect())


def test_required_module_is_found_by_either_spelling() -> None:
    modules = ["nvidia-peermem", "gdrdrv"]

    values = values_of(list(ServicesCollector(SYS, None, modules=modules).collect()))

    assert values == {"module_loaded{nvidia-peermem}": 1, "module_loaded{gdrdrv}": 0}


# --- versions


def test_versions_name_component_and_device() -> None:
    values = values_of(list(VersionsCollector(PROC, SYS).collect()))

    assert set(values) == {
        "version_info{kernel,,6.8.0-45-generic}",
        "version_info{nvidia_kernel_module,,550.90.07}",
        "version_info{bios,,2.12.4}",
        "version_info{microcode,,0xd0003d1}",
        "version_info{driver:nvidia,,550.90.07}",
        "version_info{driver:mlx5_core,,24.04-0.6.6}",
        "version_info{nic_firmware:MT4129,mlx5_0,28.39.1002}",
        "version_info{nic_firmware:MT4129,mlx5_1,28.36.1010}",
        "version_info{nvme_firmware:SAMSUNG MZQL27T6HBLA-00A07,nvme0,GDC7302Q}",
    }


def test_version_of_an_excluded_card_is_not_asked_for() -> None:
    collector = VersionsCollector(PROC, SYS, excluded_nics=["mlx5_1", "nvme*"])

    values = values_of(list(collector.collect()))

    devices = {name.split(",")[1] for name in values}
    assert devices == {"", "mlx5_0", "nvme0"}  # the patterns are those of network cards


def test_nccl_of_the_system_is_told_by_its_folder(tmp_path: Path) -> None:
    debian, local = tmp_path / "usr/lib/x86_64-linux-gnu", tmp_path / "usr/local/lib"
    for folder, name in (
        (debian, "libnccl.so.2.21.5"),
        (debian, "libnccl.so.2"),
        (local, "libnccl.so.2.19.3"),
        (local, "libnccl.so.2.19.3.bak"),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()

    values = values_of(list(VersionsCollector(PROC, SYS, system_root=tmp_path).collect()))

    assert {name for name in values if "nccl" in name} == {
        "version_info{nccl,/usr/lib/x86_64-linux-gnu,2.21.5}",
        "version_info{nccl,/usr/local/lib,2.19.3}",
    }


def test_drift_is_told_for_each_device_and_for_what_is_missing(tmp_path: Path) -> None:
    file = tmp_path / "baseline.toml"
    file.write_text(
        'kernel = "6.8.0-*"\n"nic_firmware:MT4129" = ["28.39.1002", "28.41.1000"]\n'
        '"driver:gdrdrv" = "2.4"\n'
    )

    collector = VersionsCollector(PROC, SYS, load_baseline(file))
    values = values_of(list(collector.collect()))

    assert {name: value for name, value in values.items() if "baseline" in name} == {
        "version_matches_baseline{kernel,}": 1,
        "version_matches_baseline{nic_firmware:MT4129,mlx5_0}": 1,
        "version_matches_baseline{nic_firmware:MT4129,mlx5_1}": 0,
        "version_matches_baseline{driver:gdrdrv,}": 0,
    }


@pytest.mark.parametrize(
    "text", ["kernel = 6", "kernel = []", 'kernel = ""', "kernel", "[a]\nb = 1", "\xff"]
)
def test_wrong_baseline_is_refused_by_the_name_of_its_file(text: str, tmp_path: Path) -> None:
    file = tmp_path / "baseline.toml"
    file.write_text(text, encoding="latin-1")

    with pytest.raises(ConfigError, match=r"baseline\.toml"):
        load_baseline(file)


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.161.08  Sat Feb 24", "535.161.08"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15 Rel", "570.86.15"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57  Tue", "470.57"),
        ("GCC version:  gcc version 12.3.0", None),
        ("", None),
    ],
)
def test_driver_version_is_found_in_either_flavour(line: str, version: str | None) -> None:
    assert parse_nvidia_version(line) == version


# --- configuration


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (HostSettings(mounts=("scratch",)), "'scratch' is not an absolute path"),
        (HostSettings(services=("-all",)), "host.services: '-all' is not a name"),
        (HostSettings(modules=("../kernel",)), "host.modules"),
        (HostSettings(modules=("m",) * 65), "65 names, at most 64"),
        (HostSettings(baseline="/nowhere/baseline.toml"), "cannot read the baseline"),
    ],
)
def test_wrong_configuration_of_the_host_is_refused(config: HostSettings, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check(config)


def test_each_collector_of_the_host_can_be_configured_by_its_name() -> None:
    collectors = make_collectors(HostSettings(), PROC, SYS, FakeClock(), list)

    assert tuple(collector.name for collector in collectors) == COLLECTORS


# --- parsers


@PATIENT
@given(st.text())
def test_any_text_is_a_number_or_refused(text: str) -> None:
    try:
        number = parse_number(text)
    except SourceError:
        return
    assert 0 <= number < 10**20


@PATIENT
@given(st.text(), st.text())
def test_any_table_is_understood_or_refused(name: str, text: str) -> None:
    try:
        table = parse_table(f"{name} {text}\n{text}", {name, "MemTotal"})
    except SourceError:
        return
    assert set(table) <= {name, "MemTotal"}


@PATIENT
@given(st.text())
def test_name_of_a_process_may_be_anything(name: str) -> None:
    line = f"7 ({name}) D " + " ".join(str(number) for number in range(4, 53))

    process = parse_stat(line)

    assert (process.pid, process.name, process.state) == (7, name, "disk_sleep")
    assert process.started_ticks == 22  # its place in the line, proc_pid_stat(5)


@PATIENT
@given(st.text())
def test_any_stat_of_a_process_is_understood_or_refused(text: str) -> None:
    try:
        process = parse_stat(text)
    except SourceError:
        return
    assert process.pid >= 0


@PATIENT
@given(st.text())
def test_any_answer_of_systemctl_is_understood_or_refused(text: str) -> None:
    try:
        units = parse_units(text)
    except SourceError:
        return
    assert all(unit.name and unit.active for unit in units)


@PATIENT
@given(st.text())
def test_any_version_file_is_understood_or_passed_over(text: str) -> None:
    version = parse_nvidia_version(text)

    assert version is None or version in text


@pytest.mark.parametrize(
    ("stat", "state"),
    [
        (b"7 (bash) S 1 7 7 0", "sleeping"),
        (b"7 (a) R) D 1 7 7 0", "disk_sleep"),  # the name is "a) R"
        (b"7 (bash) Q 1 7 7 0", None),
        (b"7 bash S 1", None),
        (b"", None),
    ],
)
def test_state_of_a_process_stands_behind_its_name(stat: bytes, state: str | None) -> None:
    assert read_state(stat) == state


def test_device_with_fewer_counters_than_the_kernel_documents_breaks_the_network(
    proc: Path,
) -> None:
    (proc / "net").mkdir(exist_ok=True)
    (proc / "net" / "dev").write_text("Inter-|\n face |\n  eth0: 1 2 3\n")

    with pytest.raises(SourceError, match="3 counters of eth0"):
        list(NetworkCollector(proc).collect())

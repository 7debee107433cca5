"""The GPU collector end to end: a real agent, its real child, unchanged pynvml, a stub library."""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.nvml.child import reap
from agent.nvml.child_rules import ProcessWork
from agent.nvml.children import read_work
from agent.nvml.known_gpus import MonitorState, MonitorView
from agent.nvml.monitor import GpuMonitor
from rankmend.clock import SystemClock
from tests.support.agent import ROOT, AgentProcess, Page, running_agent
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.nvml_stub.node import Node, StubNode, build

pytestmark = pytest.mark.process
# The stub answers in microseconds, but the whole machine may stand still for seconds.
CALL_S_MAX = 5.0  # where a call hangs
PATIENT_S = 100.0  # where none does
CONFIG = """
disabled = ["kernel_log", "findings"]
[gpu]
expected_count = 2
call_s_max = {call_s_max}
"""


@pytest.fixture(scope="session")
def old_library_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml-old"), "-DOLD_DRIVER").parent


@contextmanager
def watched(
    folder: Path, *arguments: str, call_s_max: float = PATIENT_S
) -> Iterator[tuple[AgentProcess, Page]]:
    config = folder / "agent.toml"
    config.write_text(CONFIG.format(call_s_max=call_s_max))
    given = ("--config", str(config), "--socket", str(folder / "agent.sock"), *arguments)
    with running_agent(*given) as (agent, port):
        yield agent, Page(agent, port)


def children_of(pid: int) -> list[int]:
    """Return the collector children that live."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in read_bytes(task).split()]  # threads come and go
    return [pid for pid in found if b"agent.nvml.child" in read_bytes(Path(f"/proc/{pid}/cmdline"))]


def wait_children(agent: AgentProcess, count: int) -> None:
    eventually(
        lambda: len(children_of(agent.process.pid)) == count,
        lambda: f"{count} children, not {children_of(agent.process.pid)}",
    )


@contextmanager
def monitored(
    call_s_max: float = PATIENT_S, silent_s_max: float = PATIENT_S
) -> Iterator[GpuMonitor]:
    monitor = GpuMonitor(SystemClock(), 0.1, call_s_max, silent_s_max=silent_s_max)
    try:
        yield monitor
    finally:
        monitor.stop()


def test_stand_in_answers_nothing_about_gpus_while_it_is_closed(
    node: Node, library_folder: Path
) -> None:
    library = ctypes.CDLL(str(library_folder / "libnvidia-ml.so.1"))
    count = ctypes.c_uint()
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 1, "NVML_ERROR_UNINITIALIZED"

    assert library.nvmlInitWithFlags(0) == library.nvmlInitWithFlags(0) == 0
    assert library.nvmlShutdown() == 0
    assert library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0, "opened twice, closed once"
    assert count.value == 2

    assert library.nvmlShutdown() == 0
    assert library.nvmlShutdown() == 1


def wait_view(
    monitor: GpuMonitor, condition: Callable[[MonitorView], bool], what: str
) -> MonitorView:
    def look() -> MonitorView | None:
        view = monitor.view()
        return view if condition(view) else None

    return eventually(look, what)


# ---- what a GPU can do while an agent watches


def test_agent_shows_what_changes_on_a_gpu(tmp_path: Path, node: Node) -> None:
    with watched(tmp_path, "--interval", "0.2") as (_agent, page):
        page.wait(45, "gpu_temperature_celsius", gpu="1")
        page.wait(2, "gpu_answering")
        page.wait(2, "gpu_expected")
        page.wait(1, "gpu_info", gpu="1", model="NVIDIA H100 80GB HBM3")
        page.wait(0, "gpu_clocks_event_seconds_total", gpu="1", reason="hw_thermal_slowdown")

        node.stub.set(1, "nvmlDeviceGetTemperature/0", 88)
        node.stub.field(1, 82, 96)
        node.stub.field(1, 230, 2)
        node.stub.set(1, "nvmlDeviceGetCurrentClocksEventReasons", 0x40)
        node.stub.field(1, 270, 5 * 10**9)
        node.stub.report(1, code=79)
        node.stub.report(1, code=79)
        node.save()

        page.wait(88, "gpu_temperature_celsius", gpu="1")
        page.wait(96, "gpu_memory_temperature_celsius", gpu="1")
        page.wait(2, "gpu_recovery_action_id", gpu="1")
        page.wait_above(0, "gpu_clocks_event_seconds_total", gpu="1", reason="hw_thermal_slowdown")
        page.wait(5, "gpu_clocks_limited_seconds_total", gpu="1", reason="hw_thermal_slowdown")
        page.wait(2, "gpu_xid_events_total", gpu="1", xid="79")
        page.wait(2, "gpu_events_total", gpu="1", event="xid")
        page.wait(0, "gpu_events_total", gpu="0", event="xid")
        page.wait(45, "gpu_temperature_celsius", gpu="0")


def test_memory_that_the_version_of_cuda_takes_is_given_back(tmp_path: Path, node: Node) -> None:
    with watched(tmp_path, "--interval", "0.2") as (agent, page):
        page.wait(1, "gpu_info", gpu="0", cuda="13.0")
        page.wait(2, "gpu_answering")

        (child,) = children_of(agent.process.pid)
        assert own_mib(child) < 32, "the stand-in takes so much when it is asked for the version"


def test_gpus_are_read_where_the_version_of_cuda_never_comes(tmp_path: Path, node: Node) -> None:
    node.stub.answers["nvmlSystemGetCudaDriverVersion"] = "hang"
    node.save()
    with watched(tmp_path, "--interval", "0.2") as (agent, page):
        page.wait(2, "gpu_answering")

        page.wait(1, "gpu_info", gpu="0", cuda="")
        (child,) = children_of(agent.process.pid)
        eventually(lambda: not children_of(child), "the process that asked to be gone")


def test_process_that_does_not_end_is_not_waited_for() -> None:
    lives = subprocess.Popen(["sleep", "600"])
    try:
        reap(lives.pid)  # as of one that hangs in the driver after its answer

        assert lives.poll() is None
    finally:
        lives.kill()
        lives.wait()


def own_mib(pid: int) -> float:
    """Return a process's private memory in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kb = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
    return kb / 1024


def test_errors_of_memory_and_links_are_read_from_a_page_of_once(
    tmp_path: Path, node: Node
) -> None:
    node.stub.field(0, 4, 3)
    node.stub.set(0, "nvmlDeviceGetMemoryErrorCounter/1/0/2", 3)
    node.stub.field(0, 144, 1)
    node.stub.field(0, 163, 9, scope=2)
    node.stub.set(0, "nvmlDeviceGetNvLinkState/1", 0)
    node.stub.set(0, "nvmlDeviceGetCurrPcieLinkWidth", 8)
    node.save()

    page = run_once(tmp_path)

    assert 'kind="uncorrected",pci_bus_id="0000:1b:00.0",uuid' in page
    for name, labels, value in (
        ("gpu_ecc_errors_total", {"kind": "uncorrected", "counter": "volatile"}, 3),
        ("gpu_ecc_place_errors_total", {"kind": "uncorrected", "place": "dram"}, 3),
        ("gpu_remapped_rows_pending", {}, 1),
        ("gpu_nvlink_errors_total", {"link": "2", "kind": "crc"}, 9),
        ("gpu_nvlink_up", {"link": "1"}, 0),
        ("gpu_pcie_width_lanes", {}, 8),
        ("gpu_pcie_width_max_lanes", {}, 16),
    ):
        assert value_on(page, name, {"gpu": "0", **labels}) == value, name


def run_once(folder: Path) -> str:
    config = folder / "agent.toml"
    config.write_text('disabled = ["kernel_log", "findings"]\n')
    command = [sys.executable, "-m", "rankmend.cli", "agent", "--once", "--config", str(config)]
    return subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=DEADLINE_S
    ).stdout


def value_on(page: str, name: str, labels: dict[str, str]) -> float | None:
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == f"rankmend_{name}" and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


@pytest.mark.component("NVML in its child")
def test_lost_gpu_is_reported_and_the_other_is_still_read(tmp_path: Path, node: Node) -> None:
    with watched(tmp_path, "--interval", "0.2") as (_agent, page):
        page.wait(2, "gpu_answering")

        node.stub.lose(0)
        node.save()

        page.wait(1, "gpu_lost", gpu="0", uuid="GPU-00000000-0000-0000-0000-000000000000")
        page.wait(1, "gpu_answering")
        page.wait(None, "gpu_temperature_celsius", gpu="0")
        page.wait(45, "gpu_temperature_celsius", gpu="1")


# ---- calls that hang


def test_hanging_call_is_abandoned_and_the_other_gpus_are_still_read(
    tmp_path: Path, node: Node
) -> None:
    with watched(tmp_path, "--interval", "0.2", call_s_max=CALL_S_MAX) as (agent, page):
        page.wait(2, "gpu_answering")
        node.stub.set(0, "nvmlDeviceGetTemperature/0", "hang")
        node.stub.set(1, "nvmlDeviceGetTemperature/0", 71)
        node.save()

        page.wait(1, "gpu_collector_stuck")

        page.wait(71, "gpu_temperature_celsius", gpu="1")
        page.wait(0, "gpu_success", gpu="0")
        page.wait_above(1, "gpu_call_stuck_seconds", call="nvmlDeviceGetTemperature", gpu="0")
        page.wait_above(1, "gpu_sample_age_seconds", gpu="0")
        page.wait(1, "gpu_answering")
        page.wait(1, "gpu_collector_restarts_total")
        wait_children(agent, 2)  # one abandoned, one other


def test_gpus_that_hang_at_different_times_leave_the_others_read(
    tmp_path: Path, node: Node
) -> None:
    node.stub = StubNode(8)
    node.save()
    with watched(tmp_path, "--interval", "0.2", call_s_max=CALL_S_MAX) as (agent, page):
        page.wait(8, "gpu_answering")
        for gpu, left in (1, 7), (2, 6), (6, 5):
            node.stub.set(gpu, "nvmlDeviceGetUtilizationRates", "hang")
            node.save()
            page.wait(left, "gpu_answering")
            page.wait_above(0.5, "gpu_call_stuck_seconds", gpu=str(gpu))

        node.stub.set(3, "nvmlDeviceGetTemperature/0", 71)
        node.save()
        page.wait(71, "gpu_temperature_celsius", gpu="3")  # the third replacement reads
        node.stub.report(3, code=79)
        node.save()

        page.wait(1, "gpu_xid_events_total", gpu="3", xid="79")
        page.wait(5, "gpu_answering")
        for gpu, success in enumerate((1, 0, 0, 1, 1, 1, 0, 1)):
            page.wait(success, "gpu_success", gpu=str(gpu))
        page.wait_above(1, "gpu_sample_age_seconds", gpu="1")
        wait_children(agent, 4)  # one for each that hangs, one other


def test_call_that_comes_back_ends_the_abandoned_child(node: Node) -> None:
    with monitored(CALL_S_MAX) as monitor:
        wait_view(monitor, lambda view: view.state is MonitorState.RUNNING, "a first sample")
        node.stub.set(1, "nvmlDeviceGetTemperature/0", "hang")
        node.save()
        stuck = wait_view(monitor, lambda view: bool(view.stuck), "a stuck call")

        node.stub.set(1, "nvmlDeviceGetTemperature/0", 50)
        node.save()

        view = wait_view(monitor, lambda view: not view.stuck, "the stuck child to end")
        assert (stuck.stuck[0].name, stuck.stuck[0].gpu) == ("nvmlDeviceGetTemperature", 1)
        assert view.gpus[1].is_skipped  # until it is tried again, minutes later


def test_library_that_hangs_at_once_leaves_the_page_alone(tmp_path: Path, node: Node) -> None:
    node.stub.answers["nvmlDeviceGetCount"] = "hang"
    node.save()
    with watched(tmp_path, "--interval", "0.2", call_s_max=CALL_S_MAX) as (agent, page):
        page.wait(1, "gpu_collector_stuck")

        status, _text = agent.get(page._port, "/metrics")
        page.wait(0, "collector_success", collector="gpu")

        assert status == 200
        page.wait(1, "collector_success", collector="gpu_state")
        wait_children(agent, 2)  # the only replacement


def test_agent_ends_in_time_while_a_call_hangs(tmp_path: Path, node: Node) -> None:
    with watched(tmp_path, "--interval", "0.2", call_s_max=CALL_S_MAX) as (agent, page):
        node.stub.set(0, "nvmlDeviceGetUtilizationRates", "hang")
        node.save()
        page.wait(1, "gpu_collector_stuck")
        children = children_of(agent.process.pid)

        code = agent.stop()

        node.stub.set(0, "nvmlDeviceGetUtilizationRates", 1, 1)
        node.save()
        eventually(lambda: not any(map(is_alive, children)), "the children to end")
        assert code == 0


def is_alive(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


# ---- children that die, agents that die


def test_killed_child_is_replaced_and_counters_go_on(node: Node) -> None:
    node.stub.set(0, "nvmlDeviceGetCurrentClocksEventReasons", 0x40)
    node.save()

    def seconds(view: MonitorView) -> float:  # a reason that is read for checks, thus at once
        return view.gpus[0].seconds.get("hw_thermal_slowdown", 0.0) if view.gpus else 0.0

    with monitored() as monitor:
        before = wait_view(monitor, lambda view: seconds(view) > 0.2, "some seconds")
        assert before.pid is not None
        os.kill(before.pid, signal.SIGKILL)

        after = wait_view(
            monitor,
            lambda view: (
                view.pid not in (None, before.pid)
                and view.state is MonitorState.RUNNING
                and seconds(view) > seconds(before)
            ),
            "another child that counts on",
        )

        assert after.restarts == 1


def test_process_that_is_busy_is_ready_and_runs_on_and_one_that_waits_is_not() -> None:
    def work_of(pid: int) -> ProcessWork:
        work = read_work(pid)
        assert work is not None
        return work

    busy = subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"])
    waits = subprocess.Popen(["sleep", "600"])
    try:
        eventually(lambda: work_of(busy.pid).ran_s > 0.1, "the loop")
        eventually(lambda: work_of(busy.pid).is_ready, "a look while it isn't frozen")
        eventually(lambda: not work_of(waits.pid).is_ready, "the sleep")
    finally:
        for process in (busy, waits):
            process.kill()
            process.wait()
    assert read_work(busy.pid) is None


def test_child_that_is_stopped_is_taken_for_stuck(node: Node) -> None:
    # Stopped in a call or between two; its start may take a busy machine 5 s.
    with monitored(CALL_S_MAX, silent_s_max=10.0) as monitor:
        view = wait_view(monitor, lambda view: view.state is MonitorState.RUNNING, "a sample")
        pid = view.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

        wait_view(
            monitor,
            lambda view: view.pid not in (None, pid) and view.state is MonitorState.RUNNING,
            "another child",
        )

        with suppress(ProcessLookupError):  # on a slow machine it has been killed by now
            os.kill(pid, signal.SIGCONT)


def test_child_ends_when_its_agent_is_killed(tmp_path: Path, node: Node) -> None:
    with watched(tmp_path, "--interval", "0.2") as (agent, page):
        page.wait(2, "gpu_answering")
        children = children_of(agent.process.pid)

        agent.process.kill()

        assert len(children) == 1
        eventually(lambda: not is_alive(children[0]), "the child to end")


def test_child_of_once_does_not_stay(tmp_path: Path, node: Node) -> None:
    page = run_once(tmp_path)

    def holding() -> list[int]:
        paths = [
            one
            for one in Path("/proc").glob("[0-9]*/environ")
            if str(node.state).encode() in read_bytes(one)
        ]
        pids = [int(path.parent.name) for path in paths]
        return [pid for pid in pids if pid != os.getpid() and is_alive(pid)]

    assert value_on(page, "gpu_answering", {}) == 2
    eventually(lambda: holding() == [], "the child to be gone")


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


# ---- drivers that are absent, wrong or old


@pytest.mark.parametrize("code", [9, 12])  # driver not loaded; library not found
def test_node_without_a_driver_is_absent(node: Node, code: int) -> None:
    node.stub.answers["nvmlInitWithFlags"] = f"E{code}"
    node.save()
    with monitored() as monitor:
        view = wait_view(monitor, lambda view: view.state is MonitorState.ABSENT, "no driver")

    assert view.gpus == ()
    assert not view.stuck


def test_node_without_the_library_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    if shutil.which("nvidia-smi"):
        pytest.skip("this node has a driver")
    with monitored() as monitor:
        view = wait_view(monitor, lambda view: view.state is MonitorState.ABSENT, "no library")

    assert "Not Found" in view.problem


def test_driver_and_library_of_two_versions_are_broken_until_they_fit(node: Node) -> None:
    node.stub.answers["nvmlInitWithFlags"] = "E18"
    node.save()
    with monitored() as monitor:
        broken = wait_view(monitor, lambda view: view.state is MonitorState.BROKEN, "a failure")

        node.stub.answers["nvmlInitWithFlags"] = "0"
        node.save()

        view = wait_view(monitor, lambda view: view.state is MonitorState.RUNNING, "a sample")

    assert "NVML" in broken.problem
    assert view.count == 2


def test_old_driver_with_missing_symbols_is_read_as_far_as_it_goes(
    node: Node, old_library_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(old_library_folder))
    node.stub.answers["nvmlSystemGetDriverVersion"] = "470.256.02"
    node.save()
    with monitored() as monitor:
        view = wait_view(monitor, lambda view: view.state is MonitorState.RUNNING, "a sample")

    groups = view.gpus[0].groups
    values = (*groups["checked"].values, *groups["shown"].values)
    fast = {name: value for name, _labels, value in values}
    assert fast["memory_used_bytes"] == 60 << 30
    assert fast["slowdown_margin_celsius"] == 92 - 45
    assert "temperature_margin_celsius" not in fast


# ---- release and resume


def command(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    socket = ("--socket", str(folder / "agent.sock"))
    return subprocess.run(
        [sys.executable, "-m", "rankmend.cli", "agent", *arguments, *socket],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.mark.safety
def test_release_lets_go_of_the_gpus_and_resume_takes_them_up(tmp_path: Path, node: Node) -> None:
    with watched(tmp_path, "--interval", "0.2") as (agent, page):
        page.wait(2, "gpu_answering")

        released = command(tmp_path, "release")
        holding = children_of(agent.process.pid)
        page.wait(1, "gpu_collector_released")
        page.wait(0, "collector_success", collector="gpu")
        resumed = command(tmp_path, "resume")

        assert (released.returncode, holding) == (0, [])
        assert resumed.returncode == 0
        page.wait(2, "gpu_answering")
        page.wait(0, "gpu_collector_released")


def test_command_without_an_agent_says_where_it_looked(tmp_path: Path) -> None:
    answer = command(tmp_path, "release")

    assert answer.returncode == 1
    assert str(tmp_path / "agent-control.sock") in answer.stderr


def test_unknown_command_is_refused(tmp_path: Path, node: Node) -> None:
    from agent.control_socket import ControlSocket, ask
    from rankmend.errors import SourceError

    path = tmp_path / "control.sock"
    control = ControlSocket(path, {"good": lambda request: f"done {request['n']}"})
    control.start()
    try:
        answer = ask(path, {"command": "good", "n": 1})
        with pytest.raises(SourceError, match="no command 'bad'"):
            ask(path, {"command": "bad"})
        mode = path.stat().st_mode & 0o777
    finally:
        control.stop()

    assert answer == "done 1"
    assert mode == 0o600
    assert not path.exists()


def ask_as_doctor(**changes: str) -> str:
    """Return what `rankmend doctor` gets from the real binding: answer, count, without persistence mode."""
    script = (
        "from agent.doctor.gpu import ask_nvml, load_nvml\n"
        "answer, error, count, off = ask_nvml(load_nvml)\n"
        "print(answer.value, count, off)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
        env={**os.environ, "PYTHONPATH": str(ROOT), **changes},
    )
    return done.stdout.strip()


def test_doctor_tells_a_missing_a_wrong_and_a_forbidden_library_apart(
    node: Node, tmp_path: Path
) -> None:
    answers = [ask_as_doctor()]
    node.stub.set(1, "nvmlDeviceGetPersistenceMode", 0)
    node.save()
    answers.append(ask_as_doctor())
    for code in (9, 18, 4, 999):  # not loaded, another release, no permission, unknown
        node.stub.answers["nvmlInitWithFlags"] = f"E{code}"
        node.save()
        answers.append(ask_as_doctor())

    assert answers == [
        "answers 2 0",
        "answers 2 1",
        "no_driver None 0",
        "mismatch None 0",
        "no_permission None 0",
        "error None 0",
    ]
    if not any(Path("/usr/lib").glob("**/libnvidia-ml.so.1")):
        assert ask_as_doctor(LD_LIBRARY_PATH=str(tmp_path)) == "no_library None 0"

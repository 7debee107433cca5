"""A real agent beside a real job of two ranks that hold memory on one GPU."""

import contextlib
import statistics
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.gpu.agent_beside import (
    RANKMEND,
    ROOT,
    AgentBeside,
    cpu_s,
    environment,
    family_of,
    has_mapped,
    largest_mib,
    memory_mib,
    samples_of,
)
from bench.gpu.machine import tried_uuid
from bench.gpu.nvml_memory import ask_memory
from bench.gpu.rows import NotTriedError, Trial

RANKS: Final = 2
HELD_BYTES: Final = 512 << 20
SCRIPT: Final = Path(__file__).with_name("rank_holding.py")
RANKS_S_MAX: Final = 35.0  # two imports of torch and two contexts
NAMED_S_MAX: Final = 12.0  # processes are read each 3 s
END_S_MAX: Final = 15.0
MEASURE_S: Final = 20.0
PSS_MIB_MAX: Final = 48.0  # docs/operate/agent.md
PAGE: Final = ROOT / "bench" / "gpu" / "latest-metrics.txt"


class AgentWithRanks:
    """Started at once, so that what imports PyTorch does so while something else is looked at."""

    def __init__(self, script: Path = SCRIPT) -> None:
        self.agent = AgentBeside()
        self.job: subprocess.Popen[bytes] | None = None
        self.folder = self.agent.folder / "job"
        try:
            _port = self.agent.port  # a launcher finds the socket when it starts
            self.began_s = time.monotonic()
            self.cpu_began_s = cpu_s(self.agent.process.pid)
            self.folder.mkdir()
            self._log = self.folder / "job.log"
            with self._log.open("wb") as log:
                self.job = subprocess.Popen(
                    [
                        *(*RANKMEND, "run", "--nproc-per-node", str(RANKS), "--standalone"),
                        *("--agent-socket", str(self.agent.socket), "--max-restarts", "0"),
                        *("--state-dir", str(self.folder / "state")),
                        *(str(script), str(self.folder), str(HELD_BYTES)),
                    ],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    env=environment(),
                    start_new_session=True,
                )
        except BaseException:
            self.end()
            raise

    def said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[-300:]

    def pids(self) -> dict[int, int]:
        """Return the pid of each rank that holds its memory."""
        found = {}
        for rank in range(RANKS):
            with contextlib.suppress(OSError, ValueError):
                found[rank] = int((self.folder / f"rank-{rank}").read_text(encoding="ascii"))
        return found

    def stop_job(self) -> int | None:
        """Have the ranks end; return the launcher's exit code, None where it does not end."""
        assert self.job is not None
        (self.folder / "stop").touch()
        try:
            return self.job.wait(END_S_MAX)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        if self.job is not None and self.job.poll() is None:
            (self.folder / "stop").touch()
            self.job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.job.wait(END_S_MAX)
            if self.job.poll() is None:
                self.job.kill()
        self.agent.end()


def try_ranks(trial: Trial, session: AgentWithRanks, nvml: Any) -> None:
    """Look for both ranks on the agent's page, and for their absence after the end."""
    agent, job = session.agent, session.job
    assert job is not None
    agent.wait_for(lambda: len(session.pids()) == RANKS or job.poll() is not None, RANKS_S_MAX)
    pids = session.pids()
    if len(pids) < RANKS:
        raise RuntimeError(f"{len(pids)} of {RANKS} ranks came up: {session.said()}")
    driver = _driver_pids(nvml)
    trial.figure("driver_lists", len(driver))
    if not set(pids.values()) <= set(driver):
        session.stop_job()
        raise NotTriedError(f"the driver lists pids {sorted(driver)}, the ranks are {pids}")

    def named() -> dict[int, int]:
        found = agent.samples("rankmend_rank_gpu_info")
        return {int(labels["rank"]): int(labels["pid"]) for labels, _one in found}

    began_s = time.monotonic()
    is_named = agent.wait_for(lambda: named() == pids, NAMED_S_MAX, every_s=1.0)
    trial.figure("named_after_s", time.monotonic() - began_s)
    page = agent.page()
    trial.check(is_named, f"ranks are {pids}, the agent names {named()}")
    memory = samples_of(page, "rankmend_rank_gpu_memory_bytes")
    for labels, used in memory:
        trial.figure(f"rank_{labels['rank']}_mib", used / (1 << 20))
        trial.check(used >= HELD_BYTES, f"rank {labels['rank']} has {used:.0f} bytes")
    if not memory:
        trial.check(not any(driver.values()), "no memory of the ranks, though the driver gives it")
    foreign = samples_of(page, "rankmend_gpu_foreign_processes")
    trial.figure("foreign_processes", sum(count for _labels, count in foreign))
    code = session.stop_job()
    trial.check(code == 0, f"the job ended with {code}: {session.said()}")
    began_s = time.monotonic()
    is_gone = agent.wait_for(lambda: not named(), NAMED_S_MAX, every_s=1.0)
    trial.figure("gone_after_s", time.monotonic() - began_s)
    trial.check(is_gone, f"the ranks have ended, and the agent still names {named()}")
    left = agent.samples("rankmend_rank_gpu_memory_bytes")
    trial.check(not left, f"{len(left)} series of the ranks' memory are left")


def try_agent(trial: Trial, session: AgentWithRanks) -> None:
    """Measure the agent since it started, and read its page."""
    agent, pid = session.agent, session.agent.process.pid
    scrapes_s: list[float] = []
    while len(scrapes_s) < 5 or time.monotonic() < session.began_s + MEASURE_S:
        began_s = time.perf_counter()
        page = agent.page()
        scrapes_s.append(time.perf_counter() - began_s)
        time.sleep(max(0.0, 1.0 - scrapes_s[-1]))
    lasted_s = time.monotonic() - session.began_s
    used_s = cpu_s(pid) - session.cpu_began_s
    child = [one for one in family_of(pid) if one != pid]
    trial.figure("seconds", lasted_s)
    trial.figure("cpu_percent_of_a_core", 100 * used_s / lasted_s)
    trial.figure("child_cpu_percent_of_a_core", 100 * sum(map(cpu_s, child)) / lasted_s)
    judge_memory(trial, pid, ask_memory())
    trial.figure("scrape_median_ms", 1e3 * statistics.median(scrapes_s))
    trial.figure("scrape_max_ms", 1e3 * max(scrapes_s))
    PAGE.write_text(page, encoding="utf-8")
    _read_page(trial, page)


def judge_memory(trial: Trial, pid: int, library: Mapping[str, float]) -> None:
    """Hold the memory of the agent and its children against the budget.

    ``library``: what the driver's library allocates by itself in any process that reads the GPUs; nothing of rankmend's
    can make it less, and the budget doesn't have it.
    """
    family = family_of(pid)
    memory = {one: memory_mib(one) for one in family}
    child = [one for one in family if one != pid]
    total_mib = sum(pss for pss, _rss in memory.values())
    own_mib = total_mib - library["nvml"]
    trial.figure("processes", len(family))
    trial.figure("pss_mib", total_mib)
    trial.figure("nvml_itself_mib", library["nvml"])
    trial.figure("own_pss_mib", own_mib)
    trial.figure("child_own_mib", sum(memory[one][0] for one in child) - library["nvml"])
    trial.figure("libcuda_given_back_mib", library["libcuda"])
    trial.figure("agent_pss_mib", memory[pid][0])
    trial.figure("agent_rss_mib", memory[pid][1])
    trial.figure("children_pss_mib", sum(memory[one][0] for one in child))
    trial.figure("children_rss_mib", sum(memory[one][1] for one in child))
    for one, whose in [(pid, "agent"), *((one, "child") for one in child)]:
        trial.figure(f"{whose}_largest_pss_mib", largest_mib(one, 6))
    trial.check(0 < own_mib <= PSS_MIB_MAX, f"{own_mib:.1f} MiB PSS, {PSS_MIB_MAX:.0f} allowed")
    keeping = [one for one in family if has_mapped(one, "libcuda.so")]
    trial.check(not keeping, f"processes {keeping} of {pid} keep libcuda loaded")


def _read_page(trial: Trial, page: str) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    names = [
        sample.name for family in text_string_to_metric_families(page) for sample in family.samples
    ]
    about_gpu = [name for name in names if name.startswith("rankmend_gpu_")]
    trial.figure("series", len(names))
    trial.figure("gpu_series", len(about_gpu))
    trial.figure("page_kb", len(page.encode()) / 1000)
    trial.check(about_gpu, "the page has no series of a GPU")
    for name in ("rankmend_gpu_success", "rankmend_gpu_answering"):
        values = [value for _labels, value in samples_of(page, name)]
        trial.check(values and min(values) >= 1, f"{name} is {values}")
    for name in ("rankmend_gpu_lost", "rankmend_gpu_collector_stuck"):
        values = [value for _labels, value in samples_of(page, name)]
        trial.check(values and max(values) == 0, f"{name} is {values}")
    errors = sum(value for _labels, value in samples_of(page, "rankmend_gpu_read_errors_total"))
    trial.figure("read_errors", errors)
    sweeps = samples_of(page, "rankmend_gpu_sweep_seconds")
    if sweeps:
        trial.figure("sweep_ms", 1e3 * sweeps[0][1])


def _driver_pids(nvml: Any) -> dict[int, int | None]:
    """Return the processes on the GPU that is tried as NVML lists them."""
    nvml.nvmlInitWithFlags(0)
    try:
        uuid = tried_uuid()
        by_uuid, by_index = nvml.nvmlDeviceGetHandleByUUID, nvml.nvmlDeviceGetHandleByIndex
        handle = by_uuid(uuid) if uuid else by_index(0)
        listed = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        return {one.pid: one.usedGpuMemory for one in listed}
    finally:
        nvml.nvmlShutdown()

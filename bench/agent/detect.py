"""How long the node agent takes to find an injected fault, beside a former tree, in one run.

    python bench/agent/detect.py [--before TREE] [--times 5]

Each agent has 8 GPUs (a stub of NVML in C), 10 NICs and a kernel log of its own. Each kind of fault is injected so many
times, each time into another device and at another part of a second, into both at once. The time ends when the finding
is in the agent's answer, which is asked for 20 times a second.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from compare import GPUS, NICS, build_stub, free_port, running  # noqa: E402 - beside this file
from node import make_sysfs  # noqa: E402 - beside this file

from tests.support.nvml_stub.node import StubNode  # noqa: E402

TIMES_MAX = 7  # GPU 0 stays well
WARM_S = 25.0  # imports, the first answers, and all groups of values twice
SPREAD_S = 1.37  # between two injections: their parts of a second are spread evenly
WAIT_S_MAX = 60.0
LOOK_S = 0.05


@dataclass
class Site:
    """One agent with the node that it watches."""

    name: str
    folder: Path
    port: int
    node: StubNode = field(default_factory=lambda: StubNode(GPUS))
    found_s: dict[str, float] = field(default_factory=dict)  # by finding

    def save(self) -> None:
        self.node.save(self.folder / "gpus")

    def port_file(self, nic: int, name: str) -> Path:
        return self.folder / f"sys/class/infiniband/mlx5_{nic}/ports/1" / name

    def print_line(self, text: str) -> None:
        with (self.folder / "kmsg").open("w") as log:
            log.write(f"4,{time.monotonic_ns()},{time.monotonic_ns() // 1000},-;{text}\n")

    def look(self) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/findings") as answer:
            found = json.load(answer)["findings"]
        now_s = time.monotonic()
        for finding in found:
            self.found_s.setdefault(finding["id"], now_s)


@dataclass(frozen=True)
class Fault:
    name: str
    check: str
    inject: Callable[[Site, int], None]


def _lose(site: Site, gpu: int) -> None:
    site.node.lose(gpu)
    site.save()


def _set(what: str, *values: object) -> Callable[[Site, int], None]:
    def inject(site: Site, gpu: int) -> None:
        site.node.set(gpu, what, *values)
        site.save()

    return inject


def _print_xid(site: Site, gpu: int) -> None:
    site.print_line(f"NVRM: Xid (PCI:0000:{0x1B + gpu:02x}:00): 79, GPU has fallen off the bus.")


def _drop_link(site: Site, nic: int) -> None:
    site.port_file(nic, "state").write_text("1: DOWN\n")


def _count_loss(site: Site, nic: int) -> None:
    site.port_file(nic, "counters/link_downed").write_text("3\n")


FAULTS = (
    Fault("link down (5 looks)", "nic_port_down", _drop_link),
    Fault("link that fell and came back", "nic_link_downed", _count_loss),
    Fault("XID 79 in the kernel log", "xid_79", _print_xid),
    Fault("recovery action of the driver", "gpu_verdict_reset", _set("field/230/0", 1)),
    Fault("uncorrected ECC error", "gpu_ecc_uncorrected", _set("field/4/0", 1)),
    Fault("GPU too hot (30 looks)", "gpu_hot", _set("nvmlDeviceGetTemperature/0", 96)),
    Fault("GPU lost", "gpu_lost", _lose),
)


def start(stack: ExitStack, name: str, tree: Path, folder: Path) -> Site:
    own = Path(tempfile.mkdtemp(dir=folder))
    site = Site(name, own, free_port())
    make_sysfs(own / "sys", NICS, 0)
    os.mkfifo(own / "kmsg")
    stack.callback(os.close, os.open(own / "kmsg", os.O_RDWR))  # it never ends
    site.save()
    config = own / "agent.toml"
    config.write_text(f'kmsg = "{own}/kmsg"\n')
    command = [sys.executable, "-m", "rankmend.cli", "agent", "--config", str(config)]
    command += ["--listen", f"127.0.0.1:{site.port}", "--socket", str(own / "agent.sock")]
    command += ["--sysfs", str(own / "sys")]
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment |= {"LD_LIBRARY_PATH": str(folder), "NVML_STUB_STATE": str(own / "gpus")}
    log = (own / "log").open("wb")
    stack.enter_context(running(subprocess.Popen(command, cwd=tree, env=environment, stderr=log)))
    return site


def watch(sites: Sequence[Site], until_s: float, is_over: Callable[[], bool]) -> None:
    order = [*sites]
    while not is_over() and time.monotonic() < until_s:
        order.reverse()  # who is asked first is found first
        for site in order:
            site.look()
        time.sleep(LOOK_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, help="another tree, measured beside this one")
    parser.add_argument("--times", type=int, default=5, choices=range(1, TIMES_MAX + 1))
    parser.add_argument(
        "--rounds", type=int, default=1, help="how often to begin anew with other agents"
    )
    options = parser.parse_args()
    trees = [("now", ROOT)] + ([("before", options.before)] if options.before else [])
    took: dict[str, dict[str, list[float]]] = {
        fault.name: {name: [] for name, _tree in trees} for fault in FAULTS
    }
    for _round in range(options.rounds):
        for fault, rows in measure_all(trees, options.times):
            for name, of_agent in rows:
                took[fault.name][name] += of_agent
            show(fault, *took[fault.name].items())


def measure_all(
    trees: Sequence[tuple[str, Path]], times: int
) -> Iterator[tuple[Fault, list[tuple[str, list[float]]]]]:
    """Start an agent of each tree and inject each fault so many times."""
    folder = Path(tempfile.mkdtemp(prefix="rankmend-bench-", dir="/dev/shm"))
    try:
        assert build_stub(folder), "no compiler for the stand-in of NVML"
        with ExitStack() as stack:
            sites = [start(stack, name, tree, folder) for name, tree in trees]
            time.sleep(WARM_S)
            for fault in FAULTS:
                yield fault, measure(sites, fault, times)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(sites: Sequence[Site], fault: Fault, times: int) -> list[tuple[str, list[float]]]:
    """Inject a fault into so many devices; return for each agent how long it took."""
    known = {site.name: set(site.found_s) for site in sites}
    injected_s: list[float] = []

    def found(site: Site) -> list[float]:
        return sorted(
            at
            for key, at in site.found_s.items()
            if key not in known[site.name] and key.startswith(f"{fault.check}/")
        )

    for device in range(1, times + 1):
        injected_s.append(time.monotonic())
        for site in sites if device % 2 else reversed(sites):
            fault.inject(site, device)
        watch(sites, time.monotonic() + SPREAD_S, lambda: False)
    watch(
        sites,
        time.monotonic() + WAIT_S_MAX,
        lambda: all(len(found(site)) >= times for site in sites),
    )
    return [
        (site.name, [at - began for at, began in zip(found(site), injected_s, strict=False)])
        for site in sites
    ]


def show(fault: Fault, *rows: tuple[str, list[float]]) -> None:
    texts = [
        f"{name}: median {statistics.median(took):.2f} s, longest {max(took):.2f} s, {len(took)} found"
        if took
        else f"{name}: none found"
        for name, took in rows
    ]
    print(f"{fault.name:32} {'; '.join(texts)}", flush=True)


if __name__ == "__main__":
    main()

"""A node for the dashboards: real agent, controller, Prometheus and Alertmanager, and a job that meets trouble.

GPUs are the stand-in of NVML, network cards and sensors a tree of files. The job has a rank killed, a loss that is
not a number, checkpoints and snapshots; another job gives up. Configurations are those of deploy/.
"""

import json
import shutil
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import urllib3

from detectors.formats.site.plant_files import COOLING_FILE, POWER_FILE
from detectors.parts.cooling import CoolingReading
from detectors.parts.power_feeds import PowerReading
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.nics import make_node
from tests.support.nvml_stub.node import StubNode
from tests.system.chain.bed import ROOT, Bed, free_port

NODE: Final = "gpu-1"
SILENT: Final = "gpu-2"  # Prometheus knows it, and it does not answer
CLUSTER: Final = "pool-a"
RANKS: Final = 4
GPUS: Final = 6  # one of them idle, one lost
AGENT = """
node = "{node}"
state_dir = "{folder}/agent"
sysfs = "{sys}"
kmsg = "{folder}/no-kmsg"
[intervals_s]
topology = 1.0
versions = 600.0
[nic.planes]
compute = ["mlx5_*"]
[gpu]
call_s_max = 30.0
"""
DISCOVERY = """
[discovery]
cooling_file = "{folder}/cooling.json"
power_file = "{folder}/power.json"
cluster = "{cluster}"
nodes = ["{node}", "{silent}"]
[discovery.racks]
"gpu-*" = "r1"
[discovery.addresses]
"{node}" = "127.0.0.1:{port}"
"{silent}" = "127.0.0.1:1"
"""


class PanelBed(Bed):
    def __init__(self, folder: Path, library_folder: Path) -> None:
        super().__init__(folder)
        self._library_folder = library_folder
        self.agent_port = free_port()
        self.socket = folder / "agent.sock"
        self.gpus = StubNode(GPUS)
        self.sys = make_node(folder / "tree")
        self._ticks = 0
        self._is_broken = False
        for number in range(GPUS):
            self.gpus.set(number, "nvmlDeviceGetTemperature/0", 45 + number)
        self.gpus.set(4, "nvmlDeviceGetUtilizationRates", 0, 0)

    def start(self) -> None:
        hwmon = ROOT / "tests" / "fixtures" / "sys-hwmon" / "sys"
        shutil.copytree(hwmon, self.sys, symlinks=True, dirs_exist_ok=True)
        self._configure()
        self._shorten()
        self.start_controller()
        self._start_agent()
        self.spawn(
            "alertmanager",
            "prometheus-alertmanager",
            f"--config.file={self.folder}/alertmanager.yml",
            f"--storage.path={self.folder}/alertmanager",
            f"--web.listen-address=127.0.0.1:{self.alertmanager_port}",
            "--cluster.listen-address=",
        )
        self.start_prometheus()
        self.start_job()
        self._give_a_job_up()

    def _shorten(self) -> None:
        toml = self.files / "controller.toml"
        self._write_units()
        given = DISCOVERY.format(
            cluster=CLUSTER, node=NODE, silent=SILENT, port=self.agent_port, folder=self.folder
        )
        before, _section, after = toml.read_text().partition("[discovery]\n")
        toml.write_text(before + given + after.partition("[discovery.addresses]\n")[2])
        rules = self.folder / "rankmend-recording-rules.yml"
        text = rules.read_text()
        for interval in ("interval: 30s", "interval: 1m"):
            assert interval in text
            text = text.replace(interval, "interval: 1s")
        rules.write_text(text)
        prometheus = self.folder / "prometheus.yml"
        text = prometheus.read_text()
        for old, new in (
            ("scrape_interval: 500ms", "scrape_interval: 1s"),
            ("scrape_timeout: 400ms", "scrape_timeout: 1s"),
            (
                '    static_configs:\n      - targets: ["127.0.0.1',
                "    static_configs:\n      - labels: {cluster: "
                + CLUSTER
                + '}\n        targets: ["127.0.0.1',
            ),
        ):
            assert old in text, old
            text = text.replace(old, new)
        prometheus.write_text(text)

    def _write_units(self) -> None:
        """Write the site's files; one unit and one feed are not in order."""
        now_s = time.time()
        cooling = [
            CoolingReading("cdu-1", now_s, 6.0, 32.0, 44.0, 2.1e5, False, "ok"),
            CoolingReading("cdu-2", now_s, 2.0, 32.0, 51.0, 1.9e5, flow_liters_per_s_min=5.0),
        ]
        power = [
            PowerReading("pdu-1", now_s, 38e3, 0.8),
            PowerReading("pdu-2", now_s, 47e3, 0.95, power_watts_max=45e3),
        ]
        (self.folder / "cooling.json").write_bytes(COOLING_FILE.encode(cooling))
        (self.folder / "power.json").write_bytes(POWER_FILE.encode(power))

    def _start_agent(self) -> None:
        path = self.folder / "agent.toml"
        (self.folder / "agent").mkdir()
        path.write_text(AGENT.format(node=NODE, folder=self.folder, sys=self.sys))
        self._state = self.folder / "gpus"
        self.gpus.save(self._state)
        stub = {
            "LD_LIBRARY_PATH": str(self._library_folder),
            "NVML_STUB_STATE": str(self._state),
        }
        self.spawn(
            "agent",
            *("env", *(f"{key}={value}" for key, value in stub.items())),
            *(sys.executable, "-m", "rankmend.cli", "agent", f"--config={path}"),
            *("--listen", f"127.0.0.1:{self.agent_port}", f"--socket={self.socket}"),
        )
        eventually(self.socket.exists, lambda: f"the agent:\n{self.log('agent')}")

    def _scrapes(self) -> bool:
        """Return whether the agent and the controller are read; the silent node is known as well."""
        try:
            found = self.ask_prometheus('up{job=~"rankmend-.+"}')
        except (urllib3.exceptions.HTTPError, ValueError):
            return False
        up = {one["metric"].get("node", "controller"): one["value"][1] for one in found}
        return up == {NODE: "1", SILENT: "0", "controller": "1"}

    def start_job(self) -> None:
        for name in ("checkpoints", "state"):
            (self.folder / name).mkdir()
        self._run(
            *("job", "panels", RANKS, f"--checkpoint-dir={self.folder}/checkpoints"),
            "--step-work=flops=1e12,tokens=4096,device=NVIDIA H100 80GB HBM3",
            f"{ROOT}/tests/system/faults/jobs/lockstep.py",
            *(f"--checkpoint-dir={self.folder}/checkpoints", f"--result={self.folder}/result"),
            *("--steps=1000000", "--every=40", "--keep=4", "--step-s=0.05"),
            *("--until", f"{self.folder}/finish", "--timeout-s=300"),
            *(
                "--beside",
                "--snapshot-every=5",
                "--fail-rank=1",
                "--fail-step=60",
                "--fail-with=kill",
            ),
            *("--nan-rank=2", "--nan-step=90", "--nan-attempts=2"),
            *("--slow-rank=3", "--slow-step=150"),
        )

    def _give_a_job_up(self) -> None:
        (self.folder / "given-up").mkdir()
        (self.folder / "given-up" / "give-up").touch()
        script = f"{ROOT}/tests/system/chain/job.py"
        self._run("given-up", "given-up", 1, script, f"{self.folder}/given-up")

    def _run(self, process: str, job: str, ranks: int, *argv: str) -> None:
        self.spawn(
            process,
            *(sys.executable, "-m", "rankmend.cli", "run", f"--controller={self.url}"),
            *(f"--ca-file={self.files}/ca.crt", f"--token-file={self.files}/launch.token"),
            *("--nnodes=1", f"--nproc-per-node={ranks}", f"--job={job}", f"--node-name={NODE}"),
            *(f"--state-dir={self.folder}/state/{process}", f"--agent-socket={self.socket}"),
            *("--local-addr=127.0.0.1", "--no-fork-server", *argv),
        )

    @property
    def job_id(self) -> str:
        assert self.client is not None
        client = self.client
        found = eventually(
            lambda: [one for one in client.jobs() if one.name == "panels"], lambda: self.logs
        )
        return str(found[0].job_id)

    def tick(self) -> None:
        """Let a moment pass on the node: traffic on the ports, and the ranks' processes on the GPUs."""
        self._ticks += 1
        for number, path in enumerate(sorted(self.sys.glob("class/infiniband/mlx5_*"))):
            counters = path / "ports" / "1" / "counters"
            words = 10**9 + self._ticks * 50_000_000 // (4 if number == 1 else 1)  # of 4 bytes
            for counter in ("port_xmit_data", "port_rcv_data"):
                (counters / counter).write_text(f"{words}\n")
        pids = {rank["rank"]: rank["pid"] for rank in self._ranks() if rank["pid"]}
        for rank, pid in pids.items():
            if rank < RANKS:
                self.gpus.set(rank, "nvmlDeviceGetComputeRunningProcesses", pid, 1 << 30)
        if not self._is_broken and self.is_recovered():
            self._is_broken = True
            self.gpus.field(1, 144, 1)  # a row waits to be remapped
            self.gpus.lose(5)
            self.gpus.report(2, 63)
        self.gpus.save(self._state)

    def is_recovered(self) -> bool:
        assert self.client is not None
        return any(one.outcome == "recovered" for one in self.client.incidents())

    def _ranks(self) -> list[dict[str, Any]]:
        url = f"http://127.0.0.1:{self.agent_port}/api/v1/ranks"
        with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
            ranks: list[dict[str, Any]] = json.load(answer)["ranks"]
        return ranks

    def ask_prometheus(self, query: str) -> list[dict[str, Any]]:
        """Return the series of an instant query; raise ValueError with Prometheus' words if it refuses."""
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/query"
        answer = self.http.request(
            "POST", url, fields={"query": query}, encode_multipart=False, timeout=DEADLINE_S
        )
        told = json.loads(answer.data)
        if told["status"] != "success":
            raise ValueError(f"{told['error']}: {query}")
        series: list[dict[str, Any]] = told["data"]["result"]
        return series

    def close(self) -> None:
        (self.folder / "finish").touch()
        super().close()

"""A controller with something to look at: jobs whose launchers only speak, a slow rank, a plan that waits, held nodes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import msgspec

from recovery.messages.exchange import RankExit, RankReport, StepTiming
from recovery.service.controller_config import Config
from recovery.service.roles import Role
from recovery.service.tokens import add_token, make_token
from tests.support.eventually import DEADLINE_S, eventually
from tests.support.service import FullClient, Running, Speaker, join_of, make_folder, running

POLICY = """
[policy]
evidence_wait_s = 0
[[jobs]]
match = "asked-*"
approval = "all"
"""
HOSTILE = "<script>document.title='owned'</script>\"'><img src=x onerror=alert(1)> &amp; {{7*7}} %s"
STEP_S = 0.2
BEAT_S = 1.0  # a beat costs the tests a quarter of a core's second


def make_files(folder: Path) -> Path:
    """Make a controller's folder with tokens for `reader`, `narrow` and `admin`, and a policy that asks."""
    config = make_folder(folder)
    (folder / "policy.toml").write_text(POLICY)
    text = config.read_text().replace("#policy_file = ", f'policy_file = "{folder}/policy.toml" # ')
    config.write_text(text)
    for name, options in (("reader", {}), ("narrow", {"jobs": ["small-*"]})):
        token, entry = make_token(name, [Role.FLEET_READ], **options)
        add_token(folder / "tokens.toml", entry)
        (folder / f"{name}.token").write_text(token)
    return config


def with_racks(config: Config) -> Config:
    nodes = tuple(f"r{rack}-n{node:02}" for rack in (1, 2, 3, 4) for node in range(1, 17))
    discovery = msgspec.structs.replace(config.discovery, nodes=nodes, rack_pattern="^(r[0-9]+)-")
    return msgspec.structs.replace(config, discovery=discovery)


@dataclass
class StagedJob:
    """A job of simulated launchers that train until the stage ends."""

    speakers: list[Speaker]
    slow: dict[int, float] = field(default_factory=dict)  # rank -> own work over its peers'
    standing: set[int] = field(default_factory=set)
    number: int = 0
    is_on: bool = True
    begins_at: int = 1000

    @property
    def job_id(self) -> str:
        return self.speakers[0].job_id

    def beat(self) -> None:
        """Report some more steps of every rank."""
        if not self.is_on:
            return
        count = round(BEAT_S / STEP_S)
        slowest = max(self.slow.values(), default=1.0)
        for speaker in self.speakers:
            order = speaker.order
            if order is None or not order.ranks:
                continue
            ranks = tuple(
                self._report(rank, place, count, slowest) for place, rank in enumerate(order.ranks)
            )
            speaker.say(revision=order.revision, attempt=order.attempt, ranks=ranks)
        self.number += count

    def _report(self, rank: int, place: int, count: int, slowest: float) -> RankReport:
        own = 0.6 * self.slow.get(rank, 1.0 + 0.02 * ((rank * 7919) % 10) / 10)
        duration = STEP_S * slowest
        is_standing = rank in self.standing
        number = 5 if is_standing else self.number + count
        timings = (
            ()
            if is_standing
            else tuple(
                StepTiming(
                    number=n,
                    step=self.begins_at + n,
                    age_s=(self.number + count - n) * STEP_S,
                    compute_s=STEP_S * own * (n + 0.01 * ((n * 31 + rank * 17) % 7)),
                    communication_s=n * (duration - own * STEP_S),
                    io_s=0.0,
                    checkpoint_s=0.0,
                    waited_s=n * max(0.0, duration - own * STEP_S - 0.01),
                    duration_s=duration,
                )
                for n in range(self.number + 1, number + 1)
            )
        )
        return RankReport(
            rank,
            place,
            1000 + rank,
            "S" if is_standing else "R",
            attached_age_s=60.0,
            first_section_age_s=50.0,
            step=self.begins_at + number,
            step_age_s=45.0 if is_standing else 0.05,
            steps_done=number,
            section="compute",
            section_age_s=45.0 if is_standing else 0.05,
            sections_entered=number,
            timings=timings,
        )

    def fail(self, rank_of: int = 0) -> None:
        """Say that the first rank of one of its nodes was killed, and report nothing more."""
        self.is_on = False
        speaker = self.speakers[rank_of]
        assert speaker.report is not None
        killed = RankExit(0.1, None, 9, False, False, None, ())
        first, *others = speaker.report.ranks
        dead = replace(first, process_state="", exit=killed, timings=())
        speaker.say(ranks=(dead, *(replace(one, timings=()) for one in others)))


@dataclass
class Stage:
    up: Running
    jobs: list[StagedJob] = field(default_factory=list)
    beat_s: float = BEAT_S  # how long its jobs pause between reports
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    @property
    def admin(self) -> FullClient:
        return self.up.client("admin")

    def token(self, name: str) -> str:
        return (self.up.folder / f"{name}.token").read_text().strip()

    def start(self, name: str, nodes: list[str], slots: int = 8, spares: int = 0) -> StagedJob:
        """Have a job train on the nodes; the last ``spares`` of them wait."""
        client, run = self.up.client(), len(nodes) - spares
        speakers = []
        for node in nodes:
            join = join_of(
                node, name=name, key=f"job:{name}", nodes_min=run, nodes_max=len(nodes), slots=slots
            )
            speaker = Speaker(client, node, client.join(join).job_id)
            assert speaker.report is not None
            speaker.report = replace(speaker.report, slots=slots)
            speaker.say()
            speakers.append(speaker)
        for speaker in speakers[:run]:
            speaker.wait_order("an order for the first attempt")
            speaker.obey()
        job = StagedJob(speakers)
        self.jobs.append(job)
        eventually(lambda: self.admin.job(job.job_id).job.state == "running", "the job runs")
        return job

    def recover(self, job: StagedJob) -> str:
        """Have a GPU of the job's first node fail, and the job recovered from that on a spare; return the incident's id."""
        lost = job.speakers[0]
        labels = {
            "alertname": "RankmendGpuLost",
            "node": lost.node,
            "uuid": "GPU-5f3c1c9a-7b1e-4a55-9f10-0c1d7e0a2b64",
            "severity": "critical",
            "action": "reset_gpu",
        }
        lines = (
            "kernel log: NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus",
            "NVML: nvmlDeviceGetHandleByUUID: GPU is lost",
            "PCIe: link of 0000:4b:00.0 down, 2 uncorrected errors",
        )
        annotations = {"summary": "GPU 3 has fallen off the bus", "description": "\n".join(lines)}
        self.admin.post_alerts([{"labels": labels, "annotations": annotations}])
        job.fail()

        def follow() -> bool:
            for speaker in job.speakers:
                if speaker.ask(wait_s=0.05) is not None:
                    speaker.obey()
            now = self.admin.job(job.job_id).job
            return now.attempt == 2 and now.state == "running"

        eventually(follow, "the job runs again")
        job.number, job.is_on = 0, True
        return self.admin.incidents(job.job_id)[0].incident_id

    def _run(self) -> None:
        while not self._stop.wait(self.beat_s):
            for job in list(self.jobs):
                job.beat()
                self._keep_spares(job)

    def _keep_spares(self, job: StagedJob) -> None:
        for speaker in job.speakers:
            if speaker.order is None:
                speaker.say()

    def __enter__(self) -> "Stage":
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(DEADLINE_S)


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Run a controller with one big job, one that waits for a person, one that has ended, and held nodes."""
    make_files(folder)
    with running(folder, with_racks) as up, Stage(up) as stage:
        big = stage.start(
            "llama-70b-pretrain",
            [f"r{rack}-n{node:02}" for rack in (1, 2) for node in range(1, 15)],
            spares=2,
        )
        big.slow = {77: 1.9, 78: 1.35, 140: 1.15}
        big.standing = {200}
        waits = stage.start("asked-mixtral-sft", ["r3-n01", "r3-n02", "r3-n03"], spares=1)
        stage.start("small-eval", ["r4-n01"], slots=2)
        waits.fail(1)
        admin = stage.admin
        admin.drain("r4-n09", "fan 3 is loud; ticket 4711")
        admin.drain("r2-n16", "GPU 5 replaced, burn-in until Friday")
        eventually(lambda: bool(admin.plans()), "a plan that waits", pause_s=0.1)
        yield stage

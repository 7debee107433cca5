"""Simulated launchers: many in one process, each with the real client, link and rules of orders, and ranks that are numbers.

Real are the requests, redirects, pauses and new joins (`recovery.api.launcher_client`, `recovery.launcher.membership.remote`) and
which order counts (`recovery.launcher.decision.launcher_state`). Simulated are the ranks: they start, make steps while all ranks of
their attempt run, fail where the run says so, and are killed within half a second of an order that no longer names them.
"""

import random
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.jepsen.history import RankLife, SeenOrder
from rankmend.clock import SystemClock
from recovery.api import wire
from recovery.api.controller_errors import ControllerError
from recovery.api.launcher_client import LauncherClient
from recovery.journal.job_records import JobOutcome
from recovery.launcher.decision.launcher_state import FollowedOrders
from recovery.launcher.membership.node_membership import boot_time_s
from recovery.launcher.membership.remote import Remote
from recovery.messages.exchange import (
    BadNumber,
    Endpoint,
    FoundCheckpoint,
    LauncherLine,
    NotFinite,
    Order,
    RankExit,
    RankReport,
    Report,
    StepNumbers,
    StepTiming,
)

REPORT_S = 1.0
STEPS_PER_S = 4.0
KILL_S_MAX = 0.5
PLACE_S = 5.0  # for which an idle launcher proposes the same place to meet
VICTIM_S = 0.5  # after which the other ranks of an attempt lose the one that died


@dataclass(slots=True)
class Running:
    """The ranks of an attempt on one node."""

    order: Order
    began_unix_s: float
    kill_at_s: float | None = None  # monotonic
    exits: dict[int, tuple[float, RankExit]] = field(default_factory=dict)
    bad_step: int | None = None  # whose loss was no number

    @property
    def is_alive(self) -> bool:
        return len(self.exits) < len(self.order.ranks)


class Job:
    """One job with its launchers; a new run of it begins when one has ended."""

    def __init__(
        self, number: int, spares: int, urls: list[str], authority: Path | None, seen: "Seen"
    ) -> None:
        self.number, self.urls, self.authority, self.seen = number, urls, authority, seen
        self.lock = threading.RLock()
        self.place_on([f"j{number}n{place}" for place in range(2 + spares)])
        self.run = 0
        self.outcomes: list[JobOutcome] = []
        self.launchers: list[Launcher] = []
        self.fail_at: tuple[float, str] | None = None

    def place_on(self, nodes: Sequence[str]) -> None:
        """Have the next run be on these nodes, each with an address of its own; it needs two of them."""
        self.nodes = list(nodes)
        self.addresses = {
            node: f"127.1.{self.number}.{place + 1}" for place, node in enumerate(nodes)
        }

    @property
    def job_id(self) -> str:
        return next((one.job_id for one in self.launchers if one.job_id), "")

    def begin(self) -> None:
        self.run += 1
        self.launchers = [Launcher(self, node) for node in self.nodes]
        for one in self.launchers:
            one.start()

    def note_end(self, outcome: JobOutcome) -> None:
        with self.lock:
            self.outcomes.append(outcome)

    @property
    def has_ended(self) -> bool:
        return all(one.is_over for one in self.launchers)

    def close(self) -> None:
        for one in self.launchers:
            one.close()
        for one in self.launchers:
            one.join()

    # Training: all launchers of a job share it.

    def attempt_of(self, order: Order) -> list["Running"]:
        """Return what runs of an order's attempt, on all nodes."""
        return [
            one.running
            for one in self.launchers
            if one.running is not None and one.running.order.attempt == order.attempt
        ]

    def steps(self, order: Order, now_unix_s: float) -> tuple[int, float]:
        """Return the steps that an attempt has made, and how long ago the last one ended."""
        parts = self.attempt_of(order)
        if sum(len(one.order.ranks) for one in parts) < order.world_size:
            return 0, 0.0
        began_s = max(one.began_unix_s for one in parts) + 0.5
        ends = [at_s for one in parts for at_s, _exit in one.exits.values()]
        until_s = min([now_unix_s, *ends])
        made = int(max(0.0, until_s - began_s) * STEPS_PER_S)
        return made, now_unix_s - (began_s + made / STEPS_PER_S)

    def spoil_loss(self, draw: random.Random) -> bool:
        """Have a rank of the job report a loss that is no number; return whether there is one that trains."""
        with self.lock:
            training = [
                one.running
                for one in self.launchers
                if one.running is not None and one.running.is_alive and one.running.bad_step is None
            ]
            made = [(one, self.steps(one.order, time.time())[0]) for one in training]
            stepping = [(one, steps) for one, steps in made if steps > 0]
            if not stepping:
                return False
            one, steps = draw.choice(stepping)
            one.bad_step = steps
        return True

    @property
    def has_unheard_deaths(self) -> bool:
        """Return whether a rank has died of whose attempt the controller has not made an end."""
        return any(
            one.running is not None
            and bool(one.running.exits)
            and one.running.order.attempt > one.empty_through
            for one in self.launchers
        )

    def fail_rank(self, kind: str, draw: random.Random) -> bool:
        """Have a rank of the job die; return whether there is one that trains."""
        with self.lock:
            alive = [
                one
                for one in self.launchers
                if one.running is not None
                and one.running.is_alive
                and one.running.kill_at_s is None
            ]
            if not alive:
                return False
            one = draw.choice(alive)
            assert one.running is not None
            rank = draw.choice([r for r in one.running.order.ranks if r not in one.running.exits])
            code, signal = (None, 9) if kind == "kill" else (1, None)
            one.running.exits[rank] = (
                time.time(),
                RankExit(0.0, code, signal, False, False, None, ()),
            )
        one.wake.set()
        return True


class Seen:
    """What all launchers saw. Bounded by the run's length."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.orders: list[SeenOrder] = []
        self.lives: list[RankLife] = []
        self.accepted = 0
        self.failures = 0
        self.joins = 0


class NodeClient(LauncherClient):
    """The client of a launcher on a node with an address of its own, which can be cut off."""

    def __init__(self, urls: list[str], authority: Path | None, address: str) -> None:
        super().__init__(urls, ca_file=authority)
        self._pool.connection_pool_kw["source_address"] = (address, 0)


class Launcher:
    """One node's launcher: a thread that reconciles and reports, and the two of its link."""

    def __init__(self, job: Job, node: str) -> None:
        self.job, self.node, self.seen = job, node, job.seen
        self.launcher_id = str(uuid.uuid4())
        self.client = NodeClient(job.urls, job.authority, job.addresses[node])
        self.job_id = ""
        self.orders: FollowedOrders | None = None
        self.running: Running | None = None
        self.carried = (0, 0)
        self.empty_through = 0
        self.number = 0
        self.port = random.randrange(20_000, 60_000)
        self._port_s = 0.0
        self._contact_s = 0.0  # when the controller or most peers last answered
        self.is_over = False
        self.wake = threading.Event()
        self._remote: Remote | None = None
        self._started_s = time.monotonic()
        self._told_steps = 0
        self._thread = threading.Thread(target=self._run, name=f"launcher {node}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self.is_over = True
        self.wake.set()
        if self._remote is not None:
            self._remote.close()

    def join(self) -> None:
        self._thread.join(60)

    def _request(self) -> wire.Join:
        name = f"jepsen-{self.job.number}"
        return wire.Join(
            key=f"{name}/{self.job.run}", name=name, node=self.node, launcher_id=self.launcher_id,
            nodes_min=2, nodes_max=2, slots=1,
            epoch=0 if self.orders is None else self.orders.epoch,
        )  # fmt: skip

    def _join(self) -> None:
        while not self.is_over:
            try:
                answer = self.client.join(self._request())
            except ControllerError:
                with self.seen.lock:
                    self.seen.failures += 1
                time.sleep(random.uniform(0.3, 1.5))
                continue
            self.job_id = answer.job_id
            return

    def _run(self) -> None:
        self._join()
        if self.is_over:
            return
        now_s = time.monotonic()
        self.orders = FollowedOrders(self.job_id, self.node, self.launcher_id, 1, now_s)
        self._remote = Remote(
            self.client, self.job_id, self.node, self.launcher_id, self, SystemClock()
        )
        self._remote.start()
        told_s = 0.0
        while not self.is_over:
            with self.job.lock:
                has_changed = self._reconcile()
                if has_changed or self.wake.is_set() or time.monotonic() - told_s >= REPORT_S:
                    self.wake.clear()
                    told_s = time.monotonic()
                    self._remote.put(self._report())
            self.wake.wait(0.1 if self._is_busy else 0.4)
        with self.job.lock:
            self._end_ranks()
        self._remote.close()
        self.client.close()

    @property
    def _is_busy(self) -> bool:
        return self.running is not None and self.running.kill_at_s is not None

    # What the controller says (`recovery.launcher.membership.remote.Heard`).

    def order(self, order: Order) -> None:
        with self.job.lock:
            assert self.orders is not None, "joined"
            is_followed = self.orders.refusal(order) is None and not self.is_over
            with self.seen.lock:
                self.seen.orders.append(
                    SeenOrder(
                        time.time(), self.job_id, self.node, self.launcher_id, order.epoch,
                        order.controller_id, order.revision, order.attempt, order.ranks, is_followed,
                    )
                )  # fmt: skip
            if is_followed:
                self.orders = self.orders.follow(order, time.monotonic())
        self.wake.set()

    def taken(self, asked_at_s: float, accepted: wire.Accepted) -> None:
        since_s = boot_time_s() - asked_at_s
        with self.job.lock:
            self._contact_s = max(self._contact_s, time.monotonic() - since_s)
            assert self.orders is not None, "joined"
            self.orders = self.orders.hear(accepted.epoch, accepted.controller_id, time.monotonic())
        with self.seen.lock:
            self.seen.accepted += 1

    def ended(self, outcome: JobOutcome, lines: Sequence[LauncherLine]) -> None:  # noqa: ARG002 - a protocol
        self.job.note_end(outcome)
        self.close()

    def replaced(self, reason: str) -> None:
        raise AssertionError(f"{self.node} was replaced: {reason}")  # no node has two launchers

    def unknown(self) -> None:
        with self.seen.lock:
            self.seen.joins += 1
        joined = self.client.join(self._request())
        if joined.job_id != self.job_id:
            raise ControllerError(f"the controller knows this job as {joined.job_id}")

    # Ranks.

    def _reconcile(self) -> bool:
        """Do what `recovery.launcher.decision.decide` does with real ranks; return whether something changed."""
        now_s, running = time.monotonic(), self.running
        self._lose_peers()
        self._check_lease(now_s)
        if running is not None and running.kill_at_s is not None:
            if now_s < running.kill_at_s:
                return False
            self._end_ranks()
            return True
        order = None if self.orders is None else self.orders.newest
        if order is None or self.carried == (order.epoch, order.revision):
            return False
        if running is None or running.order.attempt != order.attempt or not order.ranks:
            may_start = bool(order.ranks) and order.attempt > self.empty_through
            through = order.attempt - 1 if may_start else order.attempt
            if running is not None and running.order.attempt > self.empty_through:
                running.kill_at_s = now_s + random.uniform(0.0, KILL_S_MAX)
                return False
            self.empty_through = max(self.empty_through, through)
            self.running = None
            self._choose_port()
            if may_start:
                self._contact_s = now_s
                self.running = Running(order, time.time())
                self._told_steps = 0
        self.carried = (order.epoch, order.revision)
        return True

    def _check_lease(self, now_s: float) -> None:
        """End the ranks once this launcher has been alone for too long: neither the controller nor most peers answer.

        A real guardian ends them when the lease is over, however late its launcher is.
        """
        running = self.running
        if running is None or running.order.attempt <= self.empty_through:
            return
        peers = {peer.node for peer in running.order.peers}
        reached = sum(
            one.node in peers and one.runs(running.order.attempt) for one in self.job.launchers
        )
        if 2 * reached > len(peers):
            self._contact_s = now_s
        alone_s = now_s - self._contact_s
        if running.order.lease_s and alone_s >= running.order.lease_s:
            self._end_ranks(time.time() - (alone_s - running.order.lease_s))

    def runs(self, attempt: int) -> bool:
        """Answer a peer: whether the attempt runs here."""
        running = self.running
        return running is not None and running.order.attempt == attempt > self.empty_through

    def _choose_port(self) -> None:
        """Propose another place to meet from now on, as a real launcher does while it is idle, too."""
        self.port = 20_000 + (self.port - 19_999) % 40_000
        self._port_s = time.monotonic()

    def _end_ranks(self, at_unix_s: float | None = None) -> None:
        running = self.running
        if running is None or running.order.attempt <= self.empty_through:
            return
        now_unix_s = at_unix_s or time.time()
        for rank in running.order.ranks:
            end = RankExit(0.0, None, 9, True, False, None, ())
            running.exits.setdefault(rank, (now_unix_s, end))
        running.kill_at_s = None
        self.empty_through = running.order.attempt
        self._note_life(running, now_unix_s)

    def _note_life(self, running: Running, ended_unix_s: float | None) -> None:
        order = running.order
        with self.seen.lock:
            self.seen.lives.append(
                RankLife(
                    self.job_id, self.node, order.attempt, order.ranks, running.began_unix_s, ended_unix_s
                )
            )  # fmt: skip

    def _lose_peers(self) -> None:
        """A rank whose peer has died ends by itself a moment later, half of the time."""
        running = self.running
        if running is None or not running.is_alive or running.order.attempt % 2:
            return
        ends = [
            at_s for one in self.job.attempt_of(running.order) for at_s, _ in one.exits.values()
        ]
        if ends and time.time() - min(ends) > VICTIM_S:
            for rank in running.order.ranks:
                end = RankExit(0.0, 1, None, False, False, None, ())
                running.exits.setdefault(rank, (time.time(), end))

    # Reports.

    def _report(self) -> Report:
        orders, running, now_s = self.orders, self.running, time.monotonic()
        assert orders is not None, "joined"
        self.number += 1
        if running is None and now_s - self._port_s > PLACE_S:
            self._choose_port()
        return Report(
            version=1, node=self.node, boot_id=f"boot-{self.node}", job_id=self.job_id,
            revision=self.carried[1], attempt=0 if running is None else running.order.attempt,
            ranks=() if running is None else self._tell_ranks(running),
            empty_through=self.empty_through, launcher_id=self.launcher_id, number=self.number, slots=1,
            rendezvous=Endpoint(f"{self.node}.example", self.port),
            peer_endpoint=Endpoint("127.0.0.1", 7000), launcher_started_s=self._started_s,
            epoch=orders.epoch, controller_id=orders.controller_id, claim=orders.claim(now_s),
            known=(self._known(),),
        )  # fmt: skip

    def _known(self) -> FoundCheckpoint:
        """Return what a job whose loss is no number goes back to; the ranks begin at step 0 all the same."""
        modified_unix_s = time.time() - 600.0
        return FoundCheckpoint(
            "/checkpoints/step-0.npz", 0, "npz", 1000, modified_unix_s, True, "", is_step_exact=True
        )

    def _tell_ranks(self, running: Running) -> tuple[RankReport, ...]:
        now_unix_s = time.time()
        made, age_s = self.job.steps(running.order, now_unix_s)
        told: list[RankReport] = []
        for place, rank in enumerate(running.order.ranks):
            ended = running.exits.get(rank)
            attached_s = max(0.0, now_unix_s - running.began_unix_s)
            timings = (
                (StepTiming(made, made, age_s, 0.2 * made, 0.05 * made, 0.0, 0.0, 0.0, 1 / STEPS_PER_S),)
                if made > self._told_steps
                else ()
            )  # fmt: skip
            one = RankReport(
                rank, place, 1000 + rank, "S" if ended is None else "", attached_age_s=attached_s,
                section="communication" if made else "idle", section_age_s=age_s if made else None,
                sections_entered=3 * made, collectives_entered=9 * made, collectives_completed=9 * made,
            )  # fmt: skip
            if made:
                one = replace(
                    one, step=made, step_age_s=age_s, steps_done=made, timings=timings,
                    first_section_age_s=max(0.0, attached_s - 0.5),
                )  # fmt: skip
            if running.bad_step is not None:
                bad = running.bad_step
                one = replace(
                    one, first_bad_loss=BadNumber(bad, NotFinite.NAN),
                    numbers=(StepNumbers(1, bad, NotFinite.NAN),),
                )  # fmt: skip
            if ended is not None:
                one = replace(one, exit=replace(ended[1], age_s=max(0.0, now_unix_s - ended[0])))
            told.append(one)
        self._told_steps = max(made, self._told_steps)
        return tuple(told)

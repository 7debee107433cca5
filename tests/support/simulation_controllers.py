"""A job under several controllers on one simulated database: the real leases, journals, registry and controller of the service.

Simulated are the database (`tests.support.simulation_database`), the hosts of the job (`tests.support.simulation_nodes`), the
network and time. A controller is killed at any boundary, stopped in mid-decision, cut off from the database or the
launchers, its wall clock jumps, and answers to its commits are lost or come late. The hosts state the rules where they could
be broken, and `bench.jepsen.checker` reads everything at the end.
"""

import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from bench.jepsen.checker import Violation, check
from bench.jepsen.history import History, Limits, RankLife, SeenOrder, WrittenEntry, WrittenJournal
from rankmend.errors import RankmendError
from recovery.api.wire import Join
from recovery.controller.cluster.cluster import ClusterController
from recovery.controller.cluster.cluster_limits import Budgets, ClusterPolicy, Quarantine
from recovery.journal.fold.entry_fold import fold_all
from recovery.journal.journal_rows import verify_rows
from recovery.journal.ledger import Ledger
from recovery.journal.postgres.leases import Leases
from recovery.journal.records import Entry
from recovery.messages.codec import decode_order, decode_report, encode_message
from recovery.messages.exchange import Order, Report
from recovery.service.controller_config import Config, PostgresSection
from recovery.service.jobs.job_registry import JobRegistry
from recovery.service.jobs.listening_clock import Hearing
from recovery.service.jobs.postgres_jobs import PostgresJobs
from recovery.service.jobs.served_job import Job, Parts, make_core
from recovery.service.jobs.stored_jobs import StateFolder
from tests.support.simulation import CrashError
from tests.support.simulation_database import SimLink, SimServer
from tests.support.simulation_nodes import (
    CONTROLLER,
    JOB_ID,
    POLICY,
    SLOTS,
    Cluster,
    Host,
    Rank,
    Setting,
    Trouble,
)

LEASE_S = 4.0
TURN_S = 0.25
CONTROLLERS = 3
END_S = 3000.0  # of the simulation after the last trouble
CLUSTER_POLICY = ClusterPolicy(
    budgets=Budgets(stops_per_hour_max=1, moves_per_job_day_max=3), quarantine=Quarantine(blames=99)
)
LIMITS = Limits(
    POLICY.restarts_max, POLICY.no_progress_max, POLICY.no_progress_any_max,
    CLUSTER_POLICY.budgets.stops_per_hour_max, CLUSTER_POLICY.budgets.moves_per_job_day_max,
)  # fmt: skip

KINDS = (
    "kill", "kill", "stop", "stop", "stop_mid_write", "stop_mid_write", "lose_statements", "lose_answers",
    "cut_launchers", "cut_orders", "jump_clock", "doubt", "doubt_appends", "doubt_appends", "disk_full", "database_down",
)  # fmt: skip


@dataclass(frozen=True)
class ControllerTrouble:
    kind: str
    at_s: float
    target: int
    lasts_s: float
    amount: float = 0.0


def draw_controller_troubles(seed: int) -> tuple[ControllerTrouble, ...]:
    random = Random(-10 - seed)
    return tuple(
        ControllerTrouble(
            random.choice(KINDS),
            random.uniform(0.5, 150.0),
            random.randrange(CONTROLLERS),
            random.choice([0.5, 3.0, 6.0, 6.0, 12.0, 40.0]),
            random.choice([-90_000.0, -5000.0, 5000.0, 90_000.0]),
        )
        for _ in range(random.randrange(1, 9))
    )


class WallClock:
    """A host's clocks: its wall clock may jump."""

    def __init__(self, world: "LeasedCluster") -> None:
        self._world = world
        self.jumped_s = 0.0

    def now_s(self) -> float:
        return self._world.clock.now_s()

    def unix_s(self) -> float:
        return self._world.clock.unix_s() + self.jumped_s


class SeenHost(Host):
    """A host that writes down the orders that reach it."""

    def take(self, order: Order) -> None:
        super().take(order)
        if self.launcher_id and order.launcher_id == self.launcher_id:
            world = self._world
            assert isinstance(world, LeasedCluster)
            world.seen.append(
                SeenOrder(
                    world.clock.unix_s(), JOB_ID, self.name, self.launcher_id, order.epoch, order.controller_id,
                    order.revision, order.attempt, order.ranks, self._wanted is order,
                )
            )  # fmt: skip


class LeasedControl:
    """One controller's host: its folder, and the process that may die at every boundary."""

    def __init__(self, world: "LeasedCluster", number: int, folder: Path) -> None:
        self.world, self.number, self._folder = world, number, folder
        self.clock = WallClock(world)
        self.link = self._make_link()
        self.registry: JobRegistry | None = None
        self.store: PostgresJobs | None = None
        self.desk: ClusterController | None = None
        self.generation = 0
        self.still_until_s = self.cut_until_s = self.silent_until_s = 0.0
        self.stop_at_write_s = 0.0  # it stops for so long before it sends its next write
        self._is_busy = self._is_renewing = self._is_looking = False
        self._queue: list[tuple[Report, Callable[[], None]]] = []
        self._hearing = Hearing(self.clock)

    def _make_link(self) -> SimLink:
        world = self.world
        return SimLink(
            world.server, world.doubts, world.clock.now_s, world.clock.call_after, self._block, self._cross
        )  # fmt: skip

    # Boundaries and waits.

    def _cross(self) -> None:
        self.world.crossings += 1
        if self.world.crossings in self.world.setting.crashes:
            raise CrashError
        if self.stop_at_write_s:
            lasts_s, self.stop_at_write_s = self.stop_at_write_s, 0.0
            self.still_until_s = self.world.clock.now_s() + lasts_s
            self._block(lasts_s)

    def _block(self, lasts_s: float) -> None:
        """Wait, while the world goes on; this controller may be killed meanwhile."""
        generation, clock = self.generation, self.world.clock
        until_s = clock.now_s() + lasts_s
        clock.run(lambda: False, until_s)
        clock.time_s = max(clock.time_s, until_s)
        if self.generation != generation:
            raise CrashError

    @property
    def stands_still(self) -> bool:
        return self.world.clock.now_s() < self.still_until_s

    # Life.

    def boot(self) -> None:
        generation = self.generation = self.generation + 1
        trouble, self.link = self.link.trouble, self._make_link()
        self.link.trouble = trouble
        self._queue.clear()
        self._hearing = Hearing(self.clock)
        folder = StateFolder(self._folder, keeps_jobs=False)
        url = f"http://controller-{self.number}"
        config = Config(
            state_dir=str(self._folder), postgres=PostgresSection(lease_s=LEASE_S, url=url)
        )
        store: PostgresJobs | None = None
        self._is_busy = True
        try:
            leases = Leases(
                self.link, self.clock, lease_s=LEASE_S, url=url, host="host", has_thread=False,  # type: ignore[arg-type]
                controller_id=uuid.UUID(int=self.world.troubles.getrandbits(128)),
            )  # fmt: skip
            store = PostgresJobs(folder, config, self.clock, leases)
            self.store = store
            desk = ClusterController(
                store.open_cluster(store.leases.clock), CLUSTER_POLICY, store.leases.clock, lambda job_id: job_id
            )  # fmt: skip
            registry = JobRegistry(
                store, self, self, store.leases.clock, self._hearing,  # type: ignore[arg-type]
                lambda _name: POLICY, lambda _join: Parts(desk, desk, hears_evidence=True),
                make_core=self._make_core,
            )  # fmt: skip
            registry.take_up_all()
        except (CrashError, RankmendError):
            self._die(folder)
            return
        finally:
            self._is_busy = False
        assert self.generation == generation, "a boot that is killed raises"
        self.registry, self.desk = registry, desk
        self._turn(generation)
        self._renew(generation)
        self._look(generation)

    def _make_core(self, journal: Any, orders: Any, settings: Any, *rest: Any) -> Any:
        named = replace(settings, controller_id=f"controller-{self.number}-{self.generation}")
        return make_core(journal, orders, named, *rest)

    def _die(self, folder: StateFolder | None = None) -> None:
        """The process is gone; the next one starts after a while."""
        self.generation += 1
        self.registry = self.desk = None
        self.world.crashed += 1
        store, self.store = self.store, None
        (folder or store._folder).close() if folder or store else None
        self._is_busy = self._is_renewing = self._is_looking = False
        self.world.clock.call_after(self.world.troubles.uniform(0.2, 10.0), self._boot_if_dead)

    def _boot_if_dead(self) -> None:
        if self.store is None and not self._is_busy:
            self.boot()

    def kill(self) -> None:
        if self.store is not None:
            self._die()

    def _guarded(self, act: Callable[[], None]) -> None:
        generation = self.generation
        try:
            act()
        except CrashError:
            if self.generation == generation:
                self._die()

    def _turn(self, generation: int) -> None:
        """What the deciding thread does once."""
        if self.generation != generation:
            return
        self.world.clock.call_after(TURN_S, lambda: self._turn(generation))
        if self.stands_still or self._is_busy or self.registry is None:
            return
        self._is_busy = True
        self._guarded(self._decide)
        if self.generation == generation:
            self._is_busy = False

    def _decide(self) -> None:
        registry, desk = self.registry, self.desk
        assert registry is not None
        assert desk is not None
        queue, self._queue = self._queue, []
        for report, answer in queue:
            job = registry.running.get(JOB_ID)
            if job is not None:
                job.take_report(report)
                answer()
        now_s = self.world.clock.now_s()
        for job in list(registry.running.values()):
            if job.is_due(now_s):
                job.tick(now_s)
            if job.outcome is not None:
                registry.end(job, job.outcome)
        registry.follow_leases()
        try:
            desk.catch_up()
        except RankmendError:
            return

    def _renew(self, generation: int) -> None:
        """What the thread of the leases does once."""
        if self.generation != generation or self.store is None:
            return
        wait_s = 0.2
        if not self.stands_still and not self._is_renewing:
            self._is_renewing = True
            leases = self.store.leases

            def turn() -> None:
                nonlocal wait_s
                wait_s = leases.turn()

            self._guarded(turn)
            if self.generation != generation:
                return
            self._is_renewing = False
        self.world.clock.call_after(wait_s, lambda: self._renew(generation))

    def _look(self, generation: int) -> None:
        """What the thread that reads of other controllers does once."""
        if self.generation != generation or self.store is None:
            return
        wait_s = 0.2
        if not self.stands_still and not self._is_looking:
            self._is_looking = True
            fleet = self.store._fleet

            def turn() -> None:
                nonlocal wait_s
                wait_s = fleet.turn()

            self._guarded(turn)
            if self.generation != generation:
                return
            self._is_looking = False
        self.world.clock.call_after(wait_s, lambda: self._look(generation))

    # What launchers and people ask.

    def join(self, epoch: int) -> None:
        registry = self.registry
        if registry is None or self._is_busy or self.stands_still:
            return
        self._is_busy, generation = True, self.generation

        def act() -> None:
            try:
                registry.join("alice", self.world.join(epoch))
            except RankmendError:
                return  # they ask again

        self._guarded(act)
        if self.generation == generation:
            self._is_busy = False

    @property
    def job(self) -> Job | None:
        return None if self.registry is None else self.registry.running.get(JOB_ID)

    @property
    def decided_by(self) -> tuple[int, str]:
        return (0, "") if self.job is None else self.job.decided_by[:2]

    def hear(self, body: bytes, answer: Callable[[], None]) -> None:
        if self.job is None or self.stands_still or self.world.clock.now_s() < self.cut_until_s:
            return
        self._queue.append((decode_report(body), answer))

    def guarded(self, act: Callable[[Any], None]) -> None:
        """Have the job's controller do something that people or alerts ask for."""
        job = self.job
        if job is None or job.controller is None or self._is_busy or self.stands_still:
            return
        self._is_busy, generation, control = True, self.generation, job.controller

        def ask() -> None:
            try:
                act(control)
            except RankmendError:
                return

        self._guarded(ask)
        if self.generation == generation:
            self._is_busy = False

    # The board of orders, and the listener of the registry.

    def send(self, order: Order) -> None:
        self._cross()
        self.world.ordered.append(order)
        body = encode_message(order)
        host = self.world.hosts.get(order.node)
        if host is not None and self.world.clock.now_s() >= self.silent_until_s:
            self.world.deliver(CONTROLLER, order.node, lambda: host.take(decode_order(body)))

    def end(self, _job_id: str) -> None:
        return

    def entry(self, _job: Job, entry: Entry) -> None:
        self.world.read(entry)

    def journal_opened(self, _job: Job, _opened: Sequence[Any], _through: int) -> None:
        return

    def failed(self, _job: Job, error: Exception) -> None:
        if not isinstance(error, RankmendError):
            self.world.failures.append(error)

    def taken_up(self, _job: Job) -> None:
        return

    def ended(self, _job: Job) -> None:
        return


class JournalView:
    """The job as its journal in the database has it, where `Cluster` asks its only controller."""

    def __init__(self, world: "LeasedCluster") -> None:
        self._world = world
        self.outcome = None
        self._known = (0, Ledger())

    @property
    def journaled(self) -> Ledger:
        rows = self._world.rows()
        if len(rows) != self._known[0]:
            self._known = (len(rows), fold_all(verify_rows(rows, "the job")[0]))
        return self._known[1]

    @property
    def control(self) -> Any:
        job = next((one.job for one in self._world.leased if one.job is not None), None)
        return None if job is None else job.controller

    def guarded(self, act: Callable[[Any], None]) -> None:
        for one in self._world.leased:
            one.guarded(act)

    def crash(self) -> None:
        self._world.losses.choice(self._world.leased).kill()

    still_until_s = starved_until_s = 0.0  # set by troubles of `Cluster`, and of no effect here


class LeasedCluster(Cluster):
    def __init__(
        self,
        setting: Setting,
        troubles: tuple[ControllerTrouble, ...],
        folder: Path,
        *,
        is_fenced: bool = True,
    ) -> None:
        super().__init__(setting)
        self.server = SimServer(self.clock.unix_s, is_fenced=is_fenced)
        self.doubts, self.troubles = Random(-7 - setting.seed), Random(-8 - setting.seed)
        self.controller_troubles = troubles
        self.crossings = 0
        self.failures: list[Exception] = []
        self.seen: list[SeenOrder] = []
        self._began: dict[tuple[int, str], tuple[float, dict[int, Rank]]] = {}
        self._lives: list[tuple[int, str, float, dict[int, Rank]]] = []
        self.hosts = {name: SeenHost(self, name) for name in self.hosts}
        self.control = JournalView(self)  # type: ignore[assignment]
        self._folder = folder
        self.leased = [LeasedControl(self, n, folder / str(n)) for n in range(CONTROLLERS)]

    @property
    def controls(self) -> list[Any]:
        return list(self.leased)

    def rows(self) -> list[Any]:
        kept = self.server.journals.get(f"job:{JOB_ID}")
        return [] if kept is None else [row for row, *_rest in kept.rows]

    @property
    def has_ended(self) -> bool:
        return any(one.ended is not None for one in self.server.jobs.values())

    def join(self, epoch: int) -> Join:
        setting = self.setting
        return Join(
            key="job:sim", name="sim", node="n0", launcher_id="l0", nodes_min=setting.nodes_min,
            nodes_max=setting.nodes_max, slots=SLOTS, shrink_multiple=setting.shrink_multiple, grace_s=20.0,
            job_id=JOB_ID, has_checkpoints=setting.has_checkpoints, epoch=epoch,
        )  # fmt: skip

    # Life.

    def run(self) -> "LeasedCluster":
        """Run the job to its end, or until all has been calm for long, and check everything."""
        try:
            self._run()
        finally:
            for one in self.leased:
                if one.store is not None:
                    one.store._folder.close()
            shutil.rmtree(self._folder, ignore_errors=True)
        if self.failures:
            raise self.failures[0]
        assert not self.server.unknown, f"no answers to {self.server.unknown[:3]}"
        return self

    def _run(self) -> None:
        for host in self.hosts.values():
            self.clock.call_after(self.random.uniform(0.0, 8.0), host.boot)
        for one in self.leased:
            one.boot()
        for trouble in self.setting.troubles:
            self.clock.call_after(trouble.at_s, lambda it=trouble: self._cause(it))
        for fault in self.controller_troubles:
            self.clock.call_after(fault.at_s, lambda it=fault: self._break(it))
        self.clock.call_after(1.0, self._join)
        self.clock.run(lambda: self.has_ended or bool(self.failures), self.began_s + END_S)

    def _join(self) -> None:
        """Launchers whose controller does not know the job join again, wherever they get through."""
        if self.has_ended:
            return
        if all(one.job is None for one in self.leased):
            epoch = max((host._epoch[0] for host in self.hosts.values() if host.launcher_id), default=0)  # fmt: skip
            self.troubles.choice(self.leased).join(epoch)
        self.clock.call_after(2.0, self._join)

    def _break(self, fault: ControllerTrouble) -> None:
        one, until_s = self.leased[fault.target], self.clock.now_s() + fault.lasts_s
        if fault.kind == "kill":
            one.kill()
        elif fault.kind == "stop":
            one.still_until_s = until_s
        elif fault.kind == "stop_mid_write":
            one.stop_at_write_s = fault.lasts_s
        elif fault.kind == "lose_statements":
            one.link.trouble.lost_s = until_s
        elif fault.kind == "lose_answers":
            one.link.trouble.mute_s = until_s
        elif fault.kind == "cut_launchers":
            one.cut_until_s = until_s
        elif fault.kind == "cut_orders":
            one.silent_until_s = until_s
        elif fault.kind == "jump_clock":
            one.clock.jumped_s = fault.amount
        elif fault.kind == "doubt":
            one.link.trouble.doubt_ratio = 0.3
            trouble = one.link.trouble
            self.clock.call_after(fault.lasts_s, lambda: setattr(trouble, "doubt_ratio", 0.0))
        elif fault.kind == "doubt_appends":
            one.link.trouble.doubtful_appends = 3
        elif fault.kind == "disk_full":
            self.server.is_full = True
            self.clock.call_after(fault.lasts_s, lambda: setattr(self.server, "is_full", False))
        else:
            self.server.is_down = True
            self.clock.call_after(fault.lasts_s, lambda: setattr(self.server, "is_down", False))

    def _cause(self, trouble: Trouble) -> None:
        try:
            super()._cause(trouble)
        except AssertionError as error:
            self.failures.append(error)

    def launch(self, host: Host, order: Order) -> None:
        super().launch(host, order)
        assert order.rendezvous is not None
        ranks = self.runs[order.attempt, order.rendezvous].nodes[host.name]
        self._lives.append((order.attempt, host.name, self.clock.unix_s(), ranks))

    # What is left.

    def violations(self) -> tuple[Violation, ...]:
        return check(self.history())

    def history(self) -> History:
        journals = [self._written(name) for name in self.server.journals if name.startswith("job:")]
        lives = tuple(self._life(*one) for one in self._lives)
        return History(LIMITS, tuple(journals), self._written("cluster"), tuple(self.seen), lives)

    def _written(self, name: str) -> WrittenJournal:
        kept = self.server.journals[name].rows
        try:
            entries, torn = verify_rows([row for row, *_rest in kept], name)
        except RankmendError as error:
            return WrittenJournal(name, (), str(error))
        written = tuple(
            WrittenEntry(entry, str(by), epoch, at_s)
            for entry, (_row, by, epoch, at_s) in zip(entries, kept, strict=False)
        )
        return WrittenJournal(name, written, f"{torn} records don't have their checksums" if torn else "")  # fmt: skip

    def _life(self, attempt: int, node: str, began_s: float, ranks: dict[int, Rank]) -> RankLife:
        offset_s = self.clock.unix_s() - self.clock.now_s()
        ended_s = (
            max(rank.exited_at_s for rank in ranks.values()) + offset_s
            if all(rank.exit is not None for rank in ranks.values())
            else None
        )
        return RankLife(JOB_ID, node, attempt, tuple(ranks), began_s, ended_s)

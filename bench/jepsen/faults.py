"""Which faults a run has, drawn from its seed, and what makes and ends each of them."""

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from bench.jepsen.stage import Stage
from tests.support.faults.fault import Fault


class Kind(Enum):
    KILL = "controller killed, and started again"
    STOP = "controller stopped for longer than its lease"
    TO_DATABASE = "packets of a controller to the database lost"
    FROM_DATABASE = "packets of the database to a controller lost"
    TO_CONTROLLER = "packets of launchers to a controller lost"
    FROM_CONTROLLER = "packets of a controller to launchers lost"
    FROM_NODE = "packets of a launcher's node to all controllers lost"
    TO_NODE = "packets of all controllers to a launcher's node lost"
    CLOCK = "wall clock of a controller jumps"
    CUT_COMMITS = "answers to commits, or the statements, lost with their connections"
    CUT_ALL = "all connections of a controller to the database cut"
    END_SESSIONS = "the server ends sessions of controllers"
    DISK_FULL = "disk of the database full"
    DATABASE_KILLED = "all processes of the database killed"
    FAILOVER = "the database killed for good, and its synchronous standby promoted"


@dataclass(frozen=True, slots=True)
class PlannedFault:
    kind: Kind
    at_s: float  # after the start
    lasts_s: float
    target: int  # number of a controller
    amount: float  # seconds that a clock jumps
    node: float  # where in the list of nodes the one is that is cut off, from 0 to 1


def draw_faults(seed: int, seconds: float, controllers: int, lease_s: float) -> list[PlannedFault]:
    """Return the faults of a run: each kind at least once where there is time, often two at once."""
    draw = random.Random(seed)
    planned: list[PlannedFault] = []
    kinds: list[Kind] = []
    at_s = 3.0
    while at_s < seconds:
        if not kinds:
            kinds = list(Kind)
            draw.shuffle(kinds)
        kind = kinds.pop()
        lasts_s = draw.uniform(0.3, 3.0) * lease_s
        if kind is Kind.STOP:
            lasts_s = draw.uniform(1.1, 3.0) * lease_s
        if kind in (Kind.KILL, Kind.DATABASE_KILLED, Kind.FAILOVER):
            lasts_s = draw.choice([0.0, 0.5 * lease_s, 2.0 * lease_s])
        jump_s = draw.choice([-1, 1]) * draw.choice([5.0, 600.0, 5000.0, 90_000.0])
        lasts_s = min(lasts_s, max(1.0, seconds - at_s))
        planned.append(
            PlannedFault(kind, at_s, lasts_s, draw.randrange(controllers), jump_s, draw.random())
        )
        at_s += draw.choice([0.3, 1.0, 1.0, 1.5]) * lease_s
    return planned


class Breaker:
    """Makes the planned faults, each in a thread of its own, and ends them."""

    def __init__(
        self,
        stage: Stage,
        planned: list[PlannedFault],
        say: Callable[[str], None],
        addresses: list[str],
    ) -> None:
        """``addresses``: of the launchers' nodes."""
        self._stage, self._planned, self._say = stage, planned, say
        self._addresses = addresses
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []
        self.made: dict[str, int] = {}
        self.errors: list[str] = []
        # One disk, one database. A fault that finds another one there is left out, unless it is the first of its kind: on a busy
        # machine they would queue up, and the database never be there.
        self._disk = threading.Lock()

    def start(self) -> None:
        began_s = time.monotonic()
        for fault in self._planned:
            thread = threading.Thread(target=self._make, args=(fault, began_s), daemon=True)
            self._threads.append(thread)
            thread.start()

    def finish(self) -> None:
        """End all faults, and make no more."""
        self._over.set()
        for thread in self._threads:
            thread.join(60)

    def _make(self, fault: PlannedFault, began_s: float) -> None:
        if self._over.wait(max(0.0, began_s + fault.at_s - time.monotonic())):
            return
        with contextlib.ExitStack() as stack:
            if fault.kind in _OF_DATABASE:
                if not self._disk.acquire(blocking=fault.kind.name not in self.made):
                    return
                stack.callback(self._disk.release)
            self._say(f"{fault.kind.value}: controller {fault.target}, {fault.lasts_s:.1f} s")
            try:
                with self._broken(fault):
                    self._over.wait(fault.lasts_s)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run proves nothing
                self.errors.append(f"{fault}: {error!r}")
            self.made[fault.kind.name] = self.made.get(fault.kind.name, 0) + 1

    @contextlib.contextmanager
    def _broken(self, fault: PlannedFault) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for one in reversed(_MAKERS[fault.kind](self, fault)):
                stack.callback(one.end)
            yield

    # Each returns what is to be ended.

    def _kill(self, fault: PlannedFault) -> list[Fault]:
        one = self._stage.controllers[fault.target]
        one.should_run = False
        one.kill()
        return [Fault("controller away", lambda: setattr(one, "should_run", True))]

    def _stop(self, fault: PlannedFault) -> list[Fault]:
        stopped = self._stage.controllers[fault.target].stop()
        return [] if stopped is None else [stopped]

    def _lose(self, fault: PlannedFault) -> list[Fault]:
        one = self._stage.controllers[fault.target]
        is_database = fault.kind in (Kind.TO_DATABASE, Kind.FROM_DATABASE)
        ports = [wire.port for wire in one.wires.each] if is_database else [one.port]
        is_to = fault.kind in (Kind.TO_DATABASE, Kind.TO_CONTROLLER)
        return [self._stage.lose(port, to_port=is_to) for port in ports]

    def _cut_node(self, fault: PlannedFault) -> list[Fault]:
        address = self._addresses[int(fault.node * len(self._addresses))]
        return [self._stage.cut_node(address, from_node=fault.kind is Kind.FROM_NODE)]

    def _clock(self, fault: PlannedFault) -> list[Fault]:
        return [self._stage.controllers[fault.target].clock.jump(fault.amount)]

    def _cut_commits(self, fault: PlannedFault) -> list[Fault]:
        wires = self._stage.controllers[fault.target].wires
        until_s = time.monotonic() + fault.lasts_s
        draw = random.Random(fault.at_s)
        while time.monotonic() < until_s and not self._over.wait(0.4):
            text = draw.choice(
                [b"rankmend.append", b"rankmend.append", b"rankmend.take", b"rankmend."]
            )
            wires.lose(text, only_answer=draw.choice([True, False]))
        return []

    def _cut_all(self, fault: PlannedFault) -> list[Fault]:
        wires = self._stage.controllers[fault.target].wires
        wires.close_all()
        return [Fault("wires closed", wires.allow)]

    def _end_sessions(self, fault: PlannedFault) -> list[Fault]:
        until_s = time.monotonic() + fault.lasts_s
        while time.monotonic() < until_s and not self._over.wait(0.3):
            self._stage.servers.end_backend()
        return []

    def _fill_disk(self, _fault: PlannedFault) -> list[Fault]:
        return [self._stage.servers.fill_disk()]

    def _kill_database(self, fault: PlannedFault) -> list[Fault]:
        servers = self._stage.servers
        servers.kill()
        is_for_good = fault.kind is Kind.FAILOVER
        return [Fault("database away", servers.fail_over if is_for_good else servers.allow)]


_OF_DATABASE = frozenset({Kind.DISK_FULL, Kind.DATABASE_KILLED, Kind.FAILOVER})
_MAKERS: dict[Kind, Callable[[Breaker, PlannedFault], list[Fault]]] = {
    Kind.KILL: Breaker._kill,
    Kind.STOP: Breaker._stop,
    Kind.TO_DATABASE: Breaker._lose,
    Kind.FROM_DATABASE: Breaker._lose,
    Kind.TO_CONTROLLER: Breaker._lose,
    Kind.FROM_CONTROLLER: Breaker._lose,
    Kind.FROM_NODE: Breaker._cut_node,
    Kind.TO_NODE: Breaker._cut_node,
    Kind.CLOCK: Breaker._clock,
    Kind.CUT_COMMITS: Breaker._cut_commits,
    Kind.CUT_ALL: Breaker._cut_all,
    Kind.END_SESSIONS: Breaker._end_sessions,
    Kind.DISK_FULL: Breaker._fill_disk,
    Kind.DATABASE_KILLED: Breaker._kill_database,
    Kind.FAILOVER: Breaker._kill_database,
}

"""A launcher's part in a probe of the network, with real processes: it ends by itself, and at once where ranks come."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rankmend.clock import SystemClock
from recovery.launcher.host.node_probe import SILENT_S, NodeProbe
from recovery.messages.probing import ProbeRequest, ProbeState, ProbeTold
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process
SECRET = "5" * 64


class SetClock(SystemClock):
    """Runs on, and ahead as a test says."""

    ahead_s = 0.0

    def now_s(self) -> float:
        return super().now_s() + self.ahead_s


def request(place: int, port: int = 0, **changes: object) -> ProbeRequest:
    told = {
        "probe_id": "p", "place": place, "count": 2, "secret": SECRET, "address": "127.0.0.1",
        "port": port, "seconds": 0.3, "limit_s": 100.0, "bytes_per_s": 2e7, "bytes_max": 10**8,
        "rails": ("lo",),
    }  # fmt: skip
    return ProbeRequest(**{**told, **changes})  # type: ignore[arg-type]


class Pair:
    """Two nodes and the controller between them, which passes on where the first one listens."""

    def __init__(self) -> None:
        self.clock = SetClock()
        self.nodes = [NodeProbe(name, self.clock) for name in ("s0", "s1")]
        self.has_ranks = [False, False]
        self.changes: dict[str, object] = {}

    def beat(self) -> list[ProbeTold | None]:
        first = self.nodes[0].told
        for place, node in enumerate(self.nodes):
            port = 0 if first is None or place == 0 else first.port
            node.take_request(request(place, port, **self.changes))
            node.tick(has_ranks=self.has_ranks[place])
        return self.told

    @property
    def told(self) -> list[ProbeTold | None]:
        return [node.told for node in self.nodes]

    @property
    def states(self) -> list[ProbeState | None]:
        return [None if told is None else told.state for told in self.told]

    def wait(self, until: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            if until():
                return True
            self.beat()
            return False

        eventually(look, lambda: f"{what}: {self.told}")


@pytest.fixture
def pair() -> "Pair":
    made = Pair()
    yield made  # type: ignore[misc]
    for node in made.nodes:
        node.close()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_two_nodes_measure_and_the_first_one_tells_the_verdict(pair: Pair) -> None:
    pair.wait(lambda: pair.states[0] is ProbeState.DONE, "a verdict")
    told = pair.told[0]

    assert told is not None
    assert told.verdict is not None
    assert told.verdict.rounds == 1
    assert 0 < told.verdict.usual_bytes_per_s < 1e8, (
        "some 2e7 are allowed, and loopback carries GB/s"
    )
    assert pair.nodes[0].pid is None


def test_ranks_end_a_probe_at_once_and_it_is_not_begun_again(pair: Pair) -> None:
    pair.changes = {"seconds": 20.0}
    pair.wait(lambda: pair.nodes[1].pid is not None, "both run")
    pid = pair.nodes[1].pid
    assert pid is not None
    assert is_alive(pid)

    pair.has_ranks[1] = True
    pair.beat()
    gone = not is_alive(pid)
    pair.has_ranks[1] = False
    pair.beat()

    assert gone
    assert (pair.nodes[1].pid, pair.states[1]) == (None, ProbeState.YIELDED)


def test_a_node_with_ranks_takes_part_only_if_it_was_said_to_be_let(pair: Pair) -> None:
    pair.has_ranks = [True, True]
    pair.beat()
    refused = pair.states
    pair.changes = {"is_beside_ranks": True, "probe_id": "q"}
    pair.beat()

    assert refused == [ProbeState.YIELDED, ProbeState.YIELDED]
    assert pair.states[0] is ProbeState.RUNNING


def test_a_controller_that_asks_no_more_or_falls_silent_leaves_nothing_running(
    pair: Pair,
) -> None:
    first, second = pair.nodes
    pair.wait(lambda: first.pid is not None and second.pid is not None, "both run")
    pids = [first.pid, second.pid]

    first.take_request(None)
    first.tick(has_ranks=False)
    pair.clock.ahead_s = SILENT_S + 1.0
    second.tick(has_ranks=False)

    assert not any(is_alive(pid) for pid in pids if pid is not None)
    assert (first.told, pair.states[1]) == (None, ProbeState.FAILED)


def test_its_time_limit_holds_whatever_the_process_does(pair: Pair) -> None:
    first = pair.nodes[0]
    first.take_request(request(0))
    first.tick(has_ranks=False)
    pid = first.pid
    pair.clock.ahead_s = 101.0
    first.take_request(request(0))
    first.tick(has_ranks=False)

    assert pid is not None
    assert not is_alive(pid)
    assert pair.states[0] is ProbeState.FAILED


def test_a_launcher_that_dies_takes_its_process_with_it(pair: Pair) -> None:
    first = pair.nodes[0]
    first.take_request(request(0))
    first.tick(has_ranks=False)
    process = first._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()

    assert process.wait(DEADLINE_S) == 1

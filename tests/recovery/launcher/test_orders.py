"""Orders that no controller of ours sends: the launcher refuses them or says what failed, and carries out the next good one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rankmend.errors import MessageError
from recovery.launcher.decision.launcher_state import ATTEMPT_MAX
from recovery.messages.codec import decode_order, encode_message
from recovery.messages.exchange import Endpoint, Peer, Restore, Stop
from tests.support.launcher_bench import STEPS, Node, both, make_node
from tests.support.messages import ORDER

__all__ = ["make_node"]  # a fixture

pytestmark = pytest.mark.process

IMPOSSIBLE: dict[str, dict[str, Any]] = {
    "epoch": {"epoch": -1},
    "restarts": {"restarts": -1},
    "rendezvous.port": {"rendezvous": Endpoint("127.0.0.1", 65_536)},
    "grace_s": {"grace_s": -1.0},
    "world_size": {"world_size": 10**7},
}
HOSTILE: dict[str, dict[str, Any]] = {
    "more ranks than places": {"ranks": tuple(range(300)), "world_size": 300},
    "an address that is none": {"rendezvous": Endpoint("a\x00b", 1, True), "group_rank": 1, "group_count": 2},
    "a path that is none": {"restore": Restore("/x\x00y", 3)},
    "a path of 200 kB": {"restore": Restore("/x" * 100_000, 2**62)},
    "an attempt beyond all": {"attempt": ATTEMPT_MAX + 1},
    "times without end": {"grace_s": 1e308, "lease_s": 1e308, "stop": Stop.GRACE, "peers": (Peer("b", "l", Endpoint("x", 99_999)),)},
    "evidence elsewhere": {"collect": "../../../evil", "collect_s": 1e308},
}  # fmt: skip


@pytest.mark.parametrize("field", IMPOSSIBLE)
def test_order_that_can_not_be_is_refused_by_its_field(field: str) -> None:
    with pytest.raises(MessageError, match=field):
        decode_order(encode_message(replace(ORDER, **IMPOSSIBLE[field])))


@pytest.mark.parametrize("what", HOSTILE)
def test_launcher_outlives_a_hostile_order_and_carries_out_the_next(
    make_node: Callable[[str], Node],
    what: str,
) -> None:
    node = make_node(STEPS)
    good = node.order

    hostile = replace(good, **HOSTILE[what])
    node.launcher.send(decode_order(encode_message(hostile)))
    node.send(revision=2, attempt=2)

    done = node.wait(lambda report: both(report, lambda rank: rank.steps_done > 0))
    assert (done.attempt, done.revision) == (2, 2)


def test_order_for_more_ranks_than_the_node_has_places_starts_none(
    make_node: Callable[[str], Node],
) -> None:
    node = make_node(STEPS)

    node.send(ranks=(0, 1, 2), world_size=3)
    node.send(ranks=(), revision=2)

    told = node.wait(lambda report: report.revision == 2)
    assert told.attempt == 0
    assert all(report.ranks == () for report in node.reports)

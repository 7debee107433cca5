"""A controller whose journal lacks what its launchers run."""

from dataclasses import replace

import pytest

from recovery.controller.job.adoption import EPOCH_STRIDE, Voice, Waits, judge
from recovery.controller.job.membership import witness_groups
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import Adopted, AttemptStarted
from recovery.journal.incident_records import IncidentOpened, PlanWaits
from recovery.journal.job_records import JobEnded, PersonActed
from recovery.journal.ledger import Ledger
from recovery.journal.limits import PlanStep
from recovery.journal.node_records import NodesJoined
from recovery.journal.records import decode_record, encode_record, kind_of
from recovery.messages.exchange import Claim, Endpoint, Order, Peer, RankReport, Report
from recovery.messages.outside import PersonAct
from tests.support.controller_bench import POLICY
from tests.support.nodes_bench import SETTINGS, Bench, FakeNode, command

pytestmark = pytest.mark.safety

FOUR = replace(SETTINGS, nodes_min=4, nodes_max=6)


class Follower(FakeNode):
    """A launcher that obeys the controller of the highest epoch, and claims what it was ordered."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.epoch, self.controller_id = 0, ""
        self.standing: Order | None = None
        self.contact_age_s = 100.0  # with the controller that it follows
        self.answered_by = ""

    def take(self, order: Order) -> None:
        if (order.epoch, order.controller_id) < (self.epoch, self.controller_id):
            return
        self.epoch, self.controller_id = order.epoch, order.controller_id
        standing = self.standing
        if order.ranks or standing is None or standing.attempt != order.attempt:
            self.standing = order
        super().take(order)

    def report(self) -> Report:
        report, order = super().report(), self.standing
        report = replace(report, epoch=self.epoch, controller_id=self.controller_id)
        if order is None or self.answered_by == self.controller_id:
            return report
        claim = Claim(self.contact_age_s, order.attempt, order.ranks,
            order.world_size, order.group_rank, order.group_count, order.restarts, order.restore,
            order.rendezvous, order.peers,
        )  # fmt: skip
        return replace(report, claim=claim)


class Cluster(Bench):
    """A job's nodes, of which a controller may lose its journal."""

    def __init__(self, settings: JobSettings = FOUR, names: str = "abcde") -> None:
        super().__init__(settings, names=names)
        self.nodes = {name: Follower(name) for name in names}
        self.answers("c-1")

    def answers(self, controller_id: str) -> None:
        for node in self.nodes.values():
            node.answered_by = controller_id

    def succeed(self, controller_id: str = "c-2", *, keeps: int = 0) -> "Cluster":
        """Return the same nodes under another controller, which has the journal's first records."""
        settings = replace(self.control._settings, controller_id=controller_id)
        after = Cluster.__new__(Cluster)
        Bench.__init__(after, settings, self.journal.entries[:keeps])
        after.nodes = self.nodes
        after.answers(controller_id)
        return after

    def attempts(self) -> dict[str, int]:
        return {name: node.attempt for name, node in self.nodes.items() if node.attempt}


def make_cluster(settings: JobSettings = FOUR, names: str = "abcde") -> Cluster:
    cluster = Cluster(settings, names)
    cluster.beat(POLICY.join_wait_s + 1.0)
    for step in range(1, 5):
        cluster.beat(1.0, step)
    assert len(cluster.placed) == settings.nodes_min
    return cluster


def forged(name: str, **changes: object) -> Follower:
    """A launcher of the same owner that lies about what it was ordered."""
    node = Follower(name)
    node.epoch, node.controller_id = 7, "forged"
    node.standing = Order(
        1, SETTINGS.job_id, 50, 99, (0,), 4, 0, 4, None, 0.0, None, 0, 3, node=name,
        launcher_id=node.launcher_id, epoch=7, rendezvous=Endpoint(name, 1), controller_id="forged",
    )  # fmt: skip
    node.standing = replace(node.standing, **changes)
    node.attempt, node.ranks = node.standing.attempt, {0: RankReport(0, 0, 5, "S")}
    return node


def test_a_running_attempt_is_adopted_by_a_controller_that_has_lost_its_journal() -> None:
    before = make_cluster()
    orders = {name: len(node.orders) for name, node in before.nodes.items()}

    after = before.succeed()
    after.beat(2.0, 9)

    (adopted,) = after.records(Adopted)
    assert [place.node for place in adopted.placement] == before.placed
    assert (adopted.attempt, adopted.followed_epoch) == (1, 1)
    assert after.control.ledger.epoch == 1 + EPOCH_STRIDE
    assert after.attempts() == dict.fromkeys(before.placed, 1)
    # The order that adopts names the same ranks, and a higher epoch.
    assert len(after.nodes["a"].orders) == orders["a"] + 1
    assert after.nodes["a"].orders[-1].ranks == after.nodes["a"].orders[-2].ranks
    assert decode_record(kind_of(adopted), 1, 1, encode_record(adopted)) == adopted


def test_nothing_is_ordered_while_half_of_the_nodes_alone_are_heard() -> None:
    before = make_cluster()
    for name in "cde":
        before.nodes[name].is_silent = True
    orders = len(before.nodes["a"].orders)

    after = before.succeed()
    for step in range(5, 300):
        after.beat(1.0, step)

    assert after.records(Adopted) == []
    assert after.records(NodesJoined) == []
    assert len(after.nodes["a"].orders) == orders
    assert "2 of its 4 nodes report (a, b)" in after.control.waits
    assert after.control.outcome is None


def test_three_of_four_nodes_are_enough_once_the_fourth_had_time_to_come() -> None:
    before = make_cluster()
    before.nodes["d"].is_silent = True

    after = before.succeed()
    after.beat(5.0, 9)
    assert after.records(Adopted) == []
    after.beat(POLICY.lease_s + POLICY.node_silent_s, 10)

    (adopted,) = after.records(Adopted)
    assert [place.node for place in adopted.placement] == ["a", "b", "c", "d"]
    assert "d" not in adopted.heard
    # The others know where the fourth is asked for the lease: so it can be proved gone.
    assert [peer.node for peer in after.nodes["a"].orders[-1].peers] == ["a", "b", "c", "d"]


def test_the_fourth_that_comes_later_runs_on() -> None:
    before = make_cluster()
    before.nodes["d"].is_silent = True
    after = before.succeed()
    for step in range(9, 40):
        after.beat(1.0, step)

    before.nodes["d"].is_silent = False
    for step in range(40, 60):
        after.beat(1.0, step)

    assert after.attempts() == dict.fromkeys("abcd", 1)
    assert after.nodes["d"].orders[-1].ranks == (3,)
    assert after.records(IncidentOpened) == []


@pytest.mark.parametrize("epoch", [7, 10**9])
def test_a_forged_join_is_outvoted_by_those_that_train(epoch: int) -> None:
    before = make_cluster()
    before.nodes["f"] = forged("f")
    before.nodes["f"].epoch = epoch

    after = before.succeed()
    after.beat(2.0, 9)

    (adopted,) = after.records(Adopted)
    assert [place.node for place in adopted.placement] == ["a", "b", "c", "d"]
    assert adopted.epoch == 1 + EPOCH_STRIDE
    assert after.attempts() | {"f": 99} == {**dict.fromkeys("abcd", 1), "f": 99}


def test_a_forged_join_adopts_nothing_by_itself() -> None:
    cluster = Cluster()
    cluster.nodes = {"f": forged("f", group_count=1, world_size=1), **cluster.nodes}
    cluster.answers("c-1")

    cluster.beat(POLICY.join_wait_s + 30.0)

    assert cluster.records(Adopted) == []
    assert cluster.control.ledger.epoch == 1


def test_a_forged_join_changes_nothing_for_a_job_that_is_known() -> None:
    cluster = make_cluster()
    cluster.nodes["f"] = forged("f")
    cluster.nodes["f"].answered_by = "c-1"
    cluster.beat(3.0, 9)

    cluster.kill("b")
    cluster.beat(5.0)

    assert cluster.records(Adopted) == []
    assert cluster.control.ledger.epoch == 1
    # Above what anybody has spoken of, and never on a node that follows somebody else.
    assert cluster.records(AttemptStarted)[-1].attempt == 100
    assert "f" not in cluster.placed


def test_a_node_that_claims_the_place_of_another_does_not_count() -> None:
    before = make_cluster()
    for name in "cd":
        before.nodes[name].is_silent = True
    liar = before.nodes["f"] = Follower("f")
    mine = before.nodes["c"].standing
    liar.epoch, liar.controller_id, liar.standing = 1, "c-1", mine
    liar.attempt, liar.ranks = 1, {2: RankReport(2, 0, 5, "S")}

    after = before.succeed()
    after.beat(60.0, 9)

    assert after.records(Adopted) == []


def test_a_rank_that_dies_after_the_adoption_waits_for_a_person_and_is_recovered_then() -> None:
    after = make_cluster().succeed()
    after.beat(2.0, 9)

    after.kill("b")
    after.beat(5.0)
    (waits,) = after.records(PlanWaits)
    assert waits.plan.step is PlanStep.RESTART_IN_PLACE
    assert "reset-budgets" in waits.reason
    assert after.records(JobEnded) == []

    after.control.take_command(command(PersonAct.RESET_BUDGETS))
    after.beat(5.0)
    for step in (1, 2, 3):
        after.beat(1.0, step)

    (started,) = after.records(AttemptStarted)
    assert started.attempt == 2
    assert set(after.attempts().values()) == {2}
    assert after.control.ledger.incident is None


def test_a_plan_of_an_adopted_job_is_carried_out_once_it_is_approved() -> None:
    after = make_cluster().succeed()
    after.beat(2.0, 9)
    after.kill("b")
    after.beat(2.0)

    after.control.take_command(command(PersonAct.APPROVE))
    after.beat(5.0)

    assert after.records(AttemptStarted)[-1].attempt == 2
    assert after.control.ledger.unconfirmed is not None


def test_an_incident_after_the_adoption_has_a_number_of_its_own() -> None:
    before = make_cluster()
    before.kill("b")
    before.beat(3.0)
    (first,) = before.records(IncidentOpened)
    after = before.succeed()
    after.beat(2.0, 9)

    after.kill("b")
    after.beat(2.0)

    (second,) = after.records(IncidentOpened)
    assert second.incident_id != first.incident_id


def test_a_node_that_was_not_heard_at_the_adoption_is_no_spare_until_a_person_confirms() -> None:
    after = make_cluster(names="abcd").succeed()
    after.beat(2.0, 9)
    late = after.nodes["e"] = Follower("e")
    late.answered_by = "c-2"
    after.beat(3.0, 10)

    after.held["b"] = "drained"
    after.kill("b")
    after.beat(2.0)
    after.control.take_command(command(PersonAct.APPROVE))
    after.beat(5.0)
    assert after.records(AttemptStarted) == []

    after.control.take_command(command(PersonAct.RESET_BUDGETS))
    after.beat(5.0)
    assert "e" in after.placed


def test_the_old_controller_on_the_old_journal_stands_back_while_the_new_one_is_there() -> None:
    before = make_cluster()
    old = before.journal.entries
    after = before.succeed()
    after.beat(2.0, 9)
    for node in after.nodes.values():
        node.contact_age_s = 0.1
    orders = len(after.nodes["a"].orders)

    back = after.succeed("c-1b")
    back.journal.entries[:] = []
    back = Cluster.__new__(Cluster)
    Bench.__init__(back, replace(FOUR, controller_id="c-1b"), old)
    back.nodes = after.nodes
    back.answers("c-1b")
    for step in range(10, 60):
        back.beat(1.0, step)

    assert "another controller (c-2, epoch 1001)" in back.control.waits
    assert back.records(Adopted) == []
    assert len(after.nodes["a"].orders) == orders

    # The new one ends: now the old one goes on, with all of its history.
    for node in after.nodes.values():
        node.contact_age_s = POLICY.lease_s
    back.beat(2.0, 61)
    (adopted,) = back.records(Adopted)
    assert not adopted.is_history_lost
    assert back.control.ledger.epoch == 1001 + EPOCH_STRIDE
    assert back.attempts() == dict.fromkeys("abcd", 1)


def test_a_controller_whose_launchers_have_gone_to_another_orders_nothing_more() -> None:
    before = make_cluster()
    after = before.succeed()
    after.beat(2.0, 9)
    for node in after.nodes.values():
        node.contact_age_s = 0.1
    number = before.control.ledger.number

    before.answers("c-1")
    for step in range(10, 40):
        before.beat(1.0, step)
    before.kill("b")
    before.beat(5.0)

    assert before.control.ledger.number == number
    assert "if the other still runs, stop one of the two" in before.control.waits


def test_a_restored_copy_of_the_journal_adopts_what_runs_and_counts_its_restarts() -> None:
    before = make_cluster()
    copied = len(before.journal.entries)
    before.kill("b")
    before.beat(3.0)
    for step in (1, 2, 3):
        before.beat(1.0, step)
    assert before.records(AttemptStarted)[-1].attempt == 2

    after = before.succeed(keeps=copied)
    after.beat(2.0, 9)

    (adopted,) = after.records(Adopted)
    assert (adopted.attempt, adopted.restarts, adopted.is_history_lost) == (2, 1, False)
    assert after.control.ledger.restarts == 1
    after.kill("b")
    after.beat(5.0)
    assert after.records(AttemptStarted)[-1].attempt == 3  # nobody has to confirm what is known


def test_what_a_person_asks_before_the_adoption_is_refused_with_the_reason() -> None:
    before = make_cluster()
    for name in "bcde":
        before.nodes[name].is_silent = True
    after = before.succeed()
    after.beat(2.0, 9)

    acted = after.control.take_command(command(PersonAct.RESTART))

    assert isinstance(acted, PersonActed)
    assert acted.is_refused
    assert "has not taken over the job yet" in acted.result
    assert "SIGTERM to a launcher" in acted.result


def test_nodes_that_a_person_says_are_gone_are_not_asked_to_agree() -> None:
    before = make_cluster()
    for name in "cde":
        before.nodes[name].is_silent = True
    after = before.succeed()
    after.beat(30.0, 9)
    assert after.records(Adopted) == []

    after.control.take_command(command(PersonAct.CONFIRM_GONE, "c"))
    after.beat(2.0, 9)

    (adopted,) = after.records(Adopted)
    assert adopted.heard == ("a", "b")


def test_a_refused_word_about_a_node_counts_for_nothing() -> None:
    before = make_cluster()
    for name in "cde":
        before.nodes[name].is_silent = True
    after = before.succeed()

    acted = after.control.take_command(command(PersonAct.CONFIRM_GONE, "c"))  # before any claim
    after.beat(30.0, 9)

    assert acted.is_refused
    assert after.records(Adopted) == []


def test_budgets_are_not_reset_before_the_adoption_that_spends_them() -> None:
    before = make_cluster()
    for name in "cde":
        before.nodes[name].is_silent = True
    after = before.succeed()
    after.beat(5.0, 9)

    acted = after.control.take_command(command(PersonAct.RESET_BUDGETS))

    assert acted.is_refused


def test_a_job_of_more_nodes_than_claims_name_takes_late_ones_by_their_place() -> None:
    names = [f"n{number:02}" for number in range(36)]
    settings = replace(SETTINGS, nodes_min=36, nodes_max=36)
    cluster = Cluster(settings, "")
    cluster.nodes = {name: Follower(name) for name in names}
    cluster.answers("c-1")
    cluster.beat(2.0)
    for step in range(1, 4):
        cluster.beat(1.0, step)
    assert len(cluster.placed) == 36
    late = [
        name
        for name in names
        if name not in {peer.node for peer in cluster.nodes["n00"].orders[-1].peers}
    ][:2]
    for name in late:
        cluster.nodes[name].is_silent = True

    after = cluster.succeed()
    for step in range(4, 40):
        after.beat(1.0, step)
    assert sum(place.node.startswith("?") for place in after.control.ledger.placement) == 2
    for name in late:
        after.nodes[name].is_silent = False
    for step in range(40, 45):
        after.beat(1.0, step)

    assert [place.node for place in after.control.ledger.placement] == names
    assert len(after.attempts()) == 36


TWO = replace(SETTINGS, nodes_min=2, nodes_max=2)


def make_attempt_with_a_silent_node() -> Cluster:
    """Return the successor of a controller whose attempt runs on a, unheard; b is empty of it."""
    before = make_cluster(TWO, "ab")
    b = before.nodes["b"]
    b.attempt, b.ranks, b.empty_through = 0, {}, 1
    before.nodes["a"].is_silent = True
    after = before.succeed()
    replacement = after.nodes["c"] = Follower("c")
    replacement.answered_by = "c-2"
    return after


def test_a_replacement_in_the_place_of_a_silent_node_does_not_prove_that_nothing_runs() -> None:
    after = make_attempt_with_a_silent_node()

    after.beat(5.0)

    assert after.records(Adopted) == []
    assert "a may still run attempt 1" in after.control.waits
    after.beat(POLICY.lease_s + POLICY.kill_bound_s + POLICY.lease_margin_s)
    (adopted,) = after.records(Adopted)
    assert adopted.placement == ()


def test_the_lease_of_a_silent_node_counts_from_when_its_peer_was_empty() -> None:
    after = make_attempt_with_a_silent_node()
    b = after.nodes["b"]
    b.attempt, b.empty_through = 1, 0
    after.beat(20.0)

    b.attempt, b.empty_through = 0, 1
    after.beat(POLICY.lease_s + POLICY.kill_bound_s)

    assert after.records(Adopted) == []
    after.beat(POLICY.lease_margin_s + 1.0)
    assert len(after.records(Adopted)) == 1


def test_a_person_who_calls_the_silent_node_gone_is_waited_for_no_longer() -> None:
    after = make_attempt_with_a_silent_node()
    after.beat(2.0)

    after.control.take_command(command(PersonAct.CONFIRM_GONE, "a"))
    after.beat(1.0)

    assert len(after.records(Adopted)) == 1


def test_silent_nodes_that_are_a_majority_are_never_called_gone_by_the_lease() -> None:
    before = make_cluster(replace(SETTINGS, nodes_min=3, nodes_max=3), "abc")
    c = before.nodes["c"]
    c.attempt, c.ranks, c.empty_through = 0, {}, 1
    for name in "ab":
        before.nodes[name].is_silent = True
    after = before.succeed()
    for name in "de":
        after.nodes[name] = Follower(name)
        after.nodes[name].answered_by = "c-2"

    after.beat(120.0)

    assert after.records(Adopted) == []
    assert "confirm-gone" in after.control.waits


def judge_uneven(settings: JobSettings, sizes: tuple[int, ...]) -> Adopted | Waits | None:
    """Judge an attempt of three nodes with 1, 2 and 3 ranks, of which two report ``sizes``."""
    spans = {"a": (0, (0,)), "b": (1, (1, 2))}
    peers = tuple(Peer(name, f"{name}-1", Endpoint(name, 7000)) for name in "abc")
    voices = {}
    for name, (group, ranks) in spans.items():
        launcher = Follower(name)
        launcher.epoch, launcher.controller_id, launcher.attempt = 7, "c-1", 5
        claim = Claim(
            100.0, 5, ranks, 6, group, 3, 0, None, Endpoint("a", 1), peers, group_sizes=sizes
        )
        voices[name] = Voice(replace(launcher.report(), claim=claim), 99.0)
    return judge(Ledger(), settings, voices, 100.0, 0.0)


def test_an_attempt_of_unequal_nodes_is_adopted_as_its_launchers_claim_it() -> None:
    settings = replace(SETTINGS, nodes_min=3, nodes_max=3)

    judged = judge_uneven(settings, (1, 2, 3))

    assert isinstance(judged, Adopted)
    assert [(place.node, place.ranks) for place in judged.placement] == [
        ("a", (0,)),
        ("b", (1, 2)),
        ("c", (3, 4, 5)),
    ]
    assert [(one.node, one.slots) for one in judged.nodes if one.node == "c"] == [("c", 3)]


@pytest.mark.parametrize("sizes", [(), (2, 2, 2), (1, 2), (1, 2, 4), (1, 2, 3, 0)])
def test_an_attempt_whose_claims_contradict_themselves_is_not_adopted(
    sizes: tuple[int, ...],
) -> None:
    settings = replace(SETTINGS, nodes_min=3, nodes_max=3)

    assert isinstance(judge_uneven(settings, sizes), Waits)


def judge_large(
    *, count: int, heard: int, gone: int, spares: int = 0, has_peers: bool = True
) -> Adopted | Waits | None:
    """Judge an attempt on ``count`` nodes, the last ``gone`` of which a person calls gone."""
    names = [f"n{number:02}" for number in range(count)]
    peers = tuple(
        Peer(names[group], f"{names[group]}-1", Endpoint(names[group], 7000))
        for group in witness_groups(count)
    )
    settings = replace(SETTINGS, nodes_min=count, nodes_max=count + spares)

    def voice(group: int, ranks: tuple[int, ...], name: str) -> Voice:
        launcher = Follower(name)
        launcher.epoch, launcher.controller_id, launcher.attempt = 7, "c-1", 5 if ranks else 0
        claim = Claim(
            100.0, 5, ranks, count, group, count, 0, None, Endpoint("n00", 1),
            peers if ranks and has_peers else (),
        )  # fmt: skip
        return Voice(replace(launcher.report(), claim=claim), 99.0)

    voices = {name: voice(group, (group,), name) for group, name in enumerate(names[:heard])}
    idle = [f"s{number}" for number in range(spares)]
    voices |= {name: voice(0, (), name) for name in idle}
    confirmed = [*names[count - gone :], *idle] if gone else idle
    return judge(Ledger(), settings, voices, 100.0, 0.0, confirmed)


@pytest.mark.parametrize(
    ("count", "heard", "gone", "has_peers"),
    [(30, 14, 16, True), (40, 18, 22, True), (40, 18, 5, True), (40, 18, 22, False)],
)
def test_nodes_that_a_person_calls_gone_are_taken_out_of_the_count_of_any_number_of_nodes(
    count: int, heard: int, gone: int, has_peers: bool
) -> None:
    judged = judge_large(count=count, heard=heard, gone=gone, has_peers=has_peers)

    assert isinstance(judged, Adopted)
    assert len(judged.placement) == count


def test_a_spare_that_a_person_calls_gone_leaves_the_count_of_many_nodes_as_it_is() -> None:
    assert isinstance(judge_large(count=40, heard=18, gone=3, spares=4), Waits)
    assert isinstance(judge_large(count=40, heard=18, gone=3, spares=4, has_peers=False), Waits)


def test_the_lease_of_many_nodes_survives_an_adoption_without_some_that_are_asked_for_it() -> None:
    judged = judge_large(count=40, heard=30, gone=0)

    assert isinstance(judged, Adopted)
    placed = [place.node for place in judged.placement]
    asked = {placed[group] for group in witness_groups(40)}
    assert asked == {f"n{group:02}" for group in witness_groups(40)}
    assert asked <= {one.node for one in judged.nodes}


def recover_in_s(cluster: Cluster, dead: str) -> float:
    """Return after how long an incident about the dead node is open; its peers stand still."""
    for second in range(1, 240):
        cluster.age(1.0)
        if cluster.records(IncidentOpened):
            (opened,) = cluster.records(IncidentOpened)
            assert opened.failure.finding.node == dead
            return float(second)
    raise AssertionError("no incident was opened")


def test_a_node_that_died_with_the_state_is_found_by_the_rules_for_a_silent_node() -> None:
    before = make_cluster()
    before.nodes["d"].is_silent = True
    before.age(5.0)
    after = before.succeed()

    waited_s = recover_in_s(after, "d")

    assert after.control.ledger.attempt == 1
    assert waited_s <= POLICY.lease_s + 2 * POLICY.node_silent_s < POLICY.start_timeout_s


def test_a_node_that_died_with_the_controller_is_found_by_the_rules_for_a_silent_node() -> None:
    before = make_cluster()
    assert before.control.ledger.is_verified
    before.nodes["d"].is_silent = True
    before.age(5.0)
    after = before.succeed(keeps=len(before.journal.entries))

    waited_s = recover_in_s(after, "d")

    assert after.records(Adopted) == []
    assert waited_s <= POLICY.lease_s + 2 * POLICY.node_silent_s < POLICY.start_timeout_s


def test_an_adopted_attempt_that_makes_steps_is_left_alone_though_a_node_is_not_heard() -> None:
    before = make_cluster()
    before.nodes["d"].is_silent = True
    after = before.succeed()

    for step in range(9, 160):
        after.beat(1.0, step)

    assert len(after.records(Adopted)) == 1
    assert after.records(IncidentOpened) == []


def test_refused_commands_restart_no_clock_of_an_attempt() -> None:
    cluster = make_starting()
    for act, node in ((PersonAct.APPROVE, None), (PersonAct.CONFIRM_GONE, "a")) * 15:
        assert cluster.control.take_command(command(act, node)).is_refused
        cluster.beat(5.0)

    assert len(cluster.records(IncidentOpened)) == 1


def test_a_confirmed_node_restarts_no_clock_of_an_attempt() -> None:
    cluster = make_starting()
    for _time in range(30):
        asked = command(PersonAct.CONFIRM_GONE, "d")
        assert not cluster.control.take_command(asked).is_refused
        cluster.beat(5.0)
        if cluster.records(IncidentOpened):
            return
    raise AssertionError("no incident was opened")


def make_starting() -> Bench:
    """Return a job whose last node falls silent before its rank has a process."""
    cluster = Bench(replace(SETTINGS, nodes_min=4, nodes_max=4), names="abcd")
    while not cluster.records(AttemptStarted):
        cluster.beat(0.25)
    cluster.nodes["d"].is_silent = True
    cluster.beat(POLICY.node_silent_s + 1.0)
    return cluster


def test_the_wait_for_a_controller_that_has_ended_says_when_it_answered_last(
    caplog: pytest.LogCaptureFixture,
) -> None:
    after = make_cluster().succeed()
    told = []
    for age_s in range(2, 12):
        for node in after.nodes.values():
            node.contact_age_s = float(age_s)
        after.beat(1.0, 9)
        told.append(after.control.waits)

    assert "answered the launchers of this job until 2 s ago" in told[0]
    assert "until 11 s ago" in told[-1]
    assert f"waits until that was {POLICY.lease_s:g} s ago" in told[-1]
    said = [one for one in caplog.records if one.message == "job not adopted"]
    assert len(said) == 1


def test_launchers_that_know_a_newer_controller_alone_are_said_to_know_no_attempt() -> None:
    cluster = Cluster()
    cluster.nodes = {"e": Follower("e")}
    cluster.nodes["e"].epoch, cluster.nodes["e"].controller_id = 7, "c-0"
    cluster.beat(2.0)

    assert "launchers (e) follow controller c-0 (epoch 7)" in cluster.control.waits
    assert "attempt 0" not in cluster.control.waits

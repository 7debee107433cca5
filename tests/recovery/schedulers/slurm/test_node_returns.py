"""A node that we drained comes back only after its check, only as ours, and not for ever."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from recovery.journal.slurm_records import ReturnStep, SlurmOutcome
from recovery.schedulers.slurm.ledger import NodeEventKind
from recovery.schedulers.slurm.limits import SlurmLimits
from recovery.schedulers.slurm.return_rules import Stay
from tests.recovery.schedulers.slurm.fakes import FakeSite

pytestmark = pytest.mark.process

LIMITS = SlurmLimits(
    enabled=True, act=True, nodes_drained_percent=100.0, return_check=("check", "{node}"),
    return_check_timeout_s=7.0, return_after_s=60.0, return_pause_s=100.0, offences_max=3,
    drains_per_hour_max=100,
)  # fmt: skip
Make = Callable[..., FakeSite]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[FakeSite] = []

    def site(*nodes: str, **changes: object) -> FakeSite:
        limits = msgspec.structs.replace(LIMITS, **changes)
        made.append(FakeSite(tmp_path, limits, nodes or ("n1",)))
        return made[-1]

    yield site
    for one in made:
        one.journal.close()


def stay(site: FakeSite, node: str = "n1") -> Stay:
    return site.desk.returns.standings[node].stay


def test_a_node_returns_once_its_check_has_passed(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")

    site.turns(59.0)
    assert (site.checks.started, stay(site)) == ([], Stay.WAITING)
    site.turns(1.0)
    (check,) = site.checks.started
    assert (check.words, check.timeout_s, stay(site)) == (["check", "n1"], 7.0, Stay.CHECKING)
    site.end_check(0, "healthy")

    assert site.slurm.state["n1"] == "IDLE"
    past = site.desk.ledger.history("n1")
    assert not past.is_ours
    assert [one.kind for one in past.events] == [
        NodeEventKind.DRAINED,
        NodeEventKind.CHECKED,
        NodeEventKind.OVER,
    ]
    assert [one.text for one in past.events] == [
        "GPU 3 is bad",
        "return_check passed: healthy",
        "its check has passed",
    ]


def test_a_node_whose_check_fails_stays_and_is_checked_less_and_less_often(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")
    site.turns(60.0)

    for number, pause_s in enumerate((100.0, 200.0, 400.0), 1):
        site.end_check(3, "GPU 3 has 2 row remaps")
        assert site.slurm.state["n1"] == "IDLE+DRAIN"
        site.turns(pause_s - 1.0)
        assert len(site.checks.started) == number
        assert "exit code 3" in site.desk.returns.standings["n1"].text
        site.turns(1.0)
        assert len(site.checks.started) == number + 1
    site.end_check(None, "no end after 7 s")
    checked = site.desk.ledger.history("n1").checked
    assert checked is not None
    assert (checked.is_passed, checked.exit_code, checked.step) == (False, None, ReturnStep.CHECK)


def test_a_burn_in_follows_the_check_and_decides_too(make: Make) -> None:
    site = make(burn_in=("burn", "--host={node}"), burn_in_timeout_s=900.0)
    site.drain("n1", "inc-1")
    site.turns(60.0)
    site.end_check(0)
    burn_in = site.checks.started[-1]
    assert (burn_in.words, burn_in.timeout_s) == (["burn", "--host=n1"], 900.0)
    site.end_check(1, "slow")
    assert site.slurm.state["n1"] == "IDLE+DRAIN"

    site.turns(100.0)
    site.end_check(0)
    site.end_check(0)

    assert len(site.checks.started) == 4
    assert site.slurm.state["n1"] == "IDLE"


def test_a_node_is_not_checked_while_its_jobs_run_or_slurm_does_not_hear_it(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")

    for state, why in (
        ("MIXED+DRAIN", Stay.BUSY),
        ("IDLE+COMPLETING+DRAIN", Stay.BUSY),
        ("DOWN+DRAIN+NOT_RESPONDING", Stay.SILENT),
        ("IDLE+DRAIN+REBOOT_ISSUED", Stay.SILENT),
    ):
        site.slurm.state["n1"] = state
        site.turns(1000.0)
        assert (site.checks.started, stay(site)) == ([], why)
    site.slurm.state["n1"] = "IDLE+DRAIN"
    site.turns()
    site.turns(59.0)
    assert site.checks.started == []
    site.turns(1.0)
    assert len(site.checks.started) == 1


def test_a_node_of_which_slurm_hears_nothing_is_known_until_slurm_hears_it_or_time_has_passed(
    make: Make,
) -> None:
    site = make()
    site.drain("n1", "inc-1")

    heard = site.desk.is_silent("n1")
    site.slurm.state["n1"] = "IDLE+DRAIN+NOT_RESPONDING"
    site.turns(1.0)
    silent = site.desk.is_silent("n1"), site.desk.is_silent("n2")
    site.clock.unix += 100.0
    stale = site.desk.is_silent("n1")
    site.desk.turn()
    again = site.desk.is_silent("n1")
    site.desk.leave()

    assert (heard, silent, stale, again) == (False, (True, False), False, True)
    assert not site.desk.is_silent("n1"), "another controller works on the desk"


def test_a_person_who_changes_the_reason_keeps_the_node(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")
    site.turns(60.0)
    site.slurm.reason["n1"] = "fan is loud"

    site.end_check(0)

    assert (site.slurm.state["n1"], site.slurm.reason["n1"]) == ("IDLE+DRAIN", "fan is loud")
    site.turns(100_000.0)
    assert len(site.checks.started) == 1
    assert site.desk.ledger.ours == []


def test_a_check_is_stopped_once_the_drain_is_over(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")
    site.turns(60.0)

    site.slurm.state["n1"] = "IDLE"
    site.turns()

    assert site.checks.started[0].is_stopped
    assert site.desk.ledger.history("n1").over == "somebody has taken the drain back"


def test_a_repeat_offender_stays_out_until_a_person_returns_it(make: Make) -> None:
    site = make()
    for number in range(2):
        site.drain("n1", f"inc-{number}")
        site.turns(60.0)
        site.end_check(0)
    site.drain("n1", "inc-2")
    site.turns(100_000.0)
    site.restart()
    site.turns(100_000.0)

    assert len(site.checks.started) == 2
    assert stay(site) is Stay.OFFENDER
    assert "drained 3 times within 30 days" in site.desk.returns.standings["n1"].text
    assert site.desk.take_back("n1", "ada", "board replaced")
    site.turns()
    assert site.slurm.state["n1"] == "IDLE"
    site.drain("n1", "inc-3")  # the repair has its own count
    site.turns(60.0)
    assert len(site.checks.started) == 3


def test_drains_of_long_ago_do_not_count(make: Make) -> None:
    site = make(offences_max=2)
    site.drain("n1", "inc-1")
    site.turns(60.0)
    site.end_check(0)
    site.turns(31 * 86_400.0)
    site.drain("n1", "inc-2")
    site.turns(60.0)

    assert len(site.checks.started) == 2


def test_few_nodes_are_checked_at_once(make: Make) -> None:
    nodes = ("n1", "n2", "n3")
    site = make(*nodes, return_checks_max=2)
    for node in nodes:
        site.drain(node, f"inc-{node}")
    site.turns(60.0)
    assert [check.words[1] for check in site.checks.started] == ["n1", "n2"]

    site.end_check(1)

    assert [check.words[1] for check in site.checks.started] == ["n1", "n2", "n3"]


def test_the_return_is_dry_while_act_is_off_and_made_after_it_is_on(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")
    site.restart(msgspec.structs.replace(LIMITS, act=False))
    site.turns()
    site.turns(60.0)
    site.end_check(0)

    work = list(site.desk.ledger.works.values())[-1]
    assert work.ended is not None
    assert (work.ended.outcome, work.ended.text) == (SlurmOutcome.DRY, "would undrain n1")
    assert site.slurm.state["n1"] == "IDLE+DRAIN"
    site.restart(LIMITS)
    site.turns()
    site.turns(100.0)
    site.end_check(0)
    assert site.slurm.state["n1"] == "IDLE"


def test_a_pause_holds_the_check_back(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")
    site.pause = "cluster is paused"
    site.turns(1000.0)
    assert (site.checks.started, stay(site)) == ([], Stay.PAUSED)

    site.pause = ""
    site.turns()

    assert len(site.checks.started) == 1


def test_without_a_check_a_person_returns_the_node(make: Make) -> None:
    site = make(return_check=())
    site.drain("n1", "inc-1")
    site.turns(100_000.0)

    assert (site.checks.started, stay(site)) == ([], Stay.PERSON)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"return_check": ["ssh", "gpu-1", "true"]}, "no argument has {node}"),
        ({"return_check": ["{node}"]}, "no argument has {node}"),
        ({"burn_in": ["burn", "{node}"]}, "without return_check"),
        ({"return_check": "ssh {node}"}, "Expected `array`"),
    ],
)
def test_a_command_that_makes_no_sense_is_refused(keys: dict[str, object], said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(keys, SlurmLimits)
    assert said in str(caught.value)


def test_a_restart_of_the_controller_does_not_begin_the_wait_anew(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")
    site.turns(40.0)

    site.restart()
    site.turns(19.0)
    assert (site.checks.started, stay(site)) == ([], Stay.WAITING)
    site.turns(1.0)

    assert len(site.checks.started) == 1


def test_the_wait_begins_anew_once_the_node_was_not_heard(make: Make) -> None:
    site = make()
    site.drain("n1", "inc-1")
    site.turns(40.0)
    site.slurm.state["n1"] = "DOWN+DRAIN"
    site.turns()
    site.slurm.state["n1"] = "IDLE+DRAIN"
    site.turns()

    site.restart()
    site.turns(59.0)
    assert site.checks.started == []
    site.turns(1.0)

    assert len(site.checks.started) == 1


def test_a_person_can_ask_again_for_a_return_that_was_dry(make: Make) -> None:
    site = make(return_check=())
    site.drain("n1", "inc-1")
    site.restart(msgspec.structs.replace(site.limits, act=False))
    assert site.desk.take_back("n1", "ada", "board replaced")
    site.turns()
    assert site.slurm.state["n1"] == "IDLE+DRAIN"

    site.restart(msgspec.structs.replace(site.limits, act=True))
    assert site.desk.take_back("n1", "ada", "board replaced")
    assert site.desk.take_back("n1", "ada", "twice, by mistake")
    assert len(site.desk.ledger.open) == 1
    site.turns()

    assert site.slurm.state["n1"] == "IDLE"

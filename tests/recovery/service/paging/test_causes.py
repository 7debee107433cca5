"""Which troubles make one message, and when it is closed."""

from collections import Counter
from dataclasses import replace

from detectors.finding import Severity
from detectors.formats.site.site_parts import parse_site_parts
from detectors.formats.site.slurm_topology import parse_network
from detectors.network_topology import EdgeOrigin, NetworkTopology, edge, merge
from detectors.parts.cooling import CoolingReading, judge_cooling
from detectors.parts.fleet_parts import find_parts
from detectors.parts.power_feeds import PowerReading, judge_power
from detectors.parts.site_units import COOLANT_UNIT, UnitFault, UnitQuantity, UnitVerdict
from recovery.controller.cluster.cluster_limits import PeopleRules
from recovery.journal.cluster_records import CauseTold
from recovery.service.controller_config import Config, ConsoleSection, console_base
from recovery.service.paging.alerts import Links, alerts_of, ended_alerts_of, marks_of
from recovery.service.paging.causes import (
    FINDING_WAIT_S,
    LATE_S,
    RELISTEN_S,
    TOGETHER_S,
    CauseChanges,
    SharedBy,
)
from recovery.service.paging.daily_record import daily_record
from recovery.service.paging.site_troubles import unit_troubles
from recovery.service.paging.trouble import (
    ESCALATED,
    FINDING,
    QUARANTINED,
    PresentTrouble,
    Stage,
)
from recovery.service.paging.wording import SUMMARY_MAX, annotations_of
from tests.support.troubles import JOB, NOW, RULES, Site

LINKS = Links("https://wiki/runbooks", "https://console")
INCIDENT = PresentTrouble(
    key="6f1c1b52-1",
    kind="RankmendIncident",
    severity=Severity.INFO,
    what="rank 3 on n1 was killed by SIGKILL",
    since_unix_s=NOW,
    job_id=JOB,
    job="llama",
    nodes=("n1",),
    need="restarting",
    command="rankmend why 6f1c1b52-1",
    done=("decided: restart in place",),
    gpus_idle=64,
    is_incident=True,
)
GPU_LOST = PresentTrouble(
    key="node-n1",
    kind=FINDING,
    severity=Severity.WARNING,
    what="GPU lost",
    since_unix_s=NOW,
    nodes=("n1",),
    is_lasting=False,
)


def test_an_incident_that_recovers_alone_is_for_the_record_and_never_a_page() -> None:
    site = Site()

    assert site.only(INCIDENT).severity == "info"
    (over,) = site.look(ends={JOB: "trains again"}).closed

    assert (over.severity, over.end) == ("info", "trains again")
    assert site.look().records == (), "closed once"


def test_a_policy_may_page_every_incident() -> None:
    assert (
        Site().only(INCIDENT, rules=replace(RULES, page_every_incident=True)).severity == "warning"
    )


def test_an_incident_that_lasts_is_a_page_though_it_needs_nobody() -> None:
    site = Site()

    assert site.only(INCIDENT, after_s=RULES.page_after_s - 1).severity == "info"
    assert site.only(INCIDENT, after_s=1).severity == "critical"


def test_the_same_labels_from_waiting_over_approval_to_the_end() -> None:
    site = Site()
    waiting = replace(INCIDENT, severity=Severity.CRITICAL, need="approve the plan")

    first = alerts_of(site.look(waiting).open, LINKS)[0]
    later = alerts_of(site.look(INCIDENT).open, LINKS)[0]
    (end,) = ended_alerts_of(site.look(ends={JOB: "trains again"}).closed, LINKS)

    assert first.key == later.key == end.key
    assert first.labels == {
        "alertname": "RankmendIncident",
        "severity": "critical",
        "to": "people",
        "incident": "6f1c1b52-1",
        "job_id": JOB,
        "job_name": "llama",
        "node": "n1",
    }
    assert end.annotations["summary"].startswith("llama: over: trains again")


def test_a_message_changes_its_labels_when_a_person_has_to_do_more_and_never_back() -> None:
    site, urgent = Site(), replace(INCIDENT, severity=Severity.CRITICAL)
    looks = [
        urgent,
        replace(urgent, stage=Stage.WAITS),
        urgent,
        replace(urgent, kind=ESCALATED, gpus_idle=None, stage=Stage.GIVEN_UP),
        replace(urgent, stage=Stage.WAITS),
    ]

    told = [alerts_of(site.look(one).open, LINKS)[0].labels.get("stage") for one in looks]

    assert told == [None, "waits", "waits", "given_up", "given_up"]
    (end,) = ended_alerts_of(site.look().closed, LINKS)
    assert end.labels["stage"] == "given_up", "what was told last is what is closed"


def test_a_finding_of_the_node_joins_its_incident_and_outlasts_it_in_silence() -> None:
    site = Site()

    critical = replace(GPU_LOST, severity=Severity.CRITICAL)  # its ranks are still there
    (one,) = site.look(INCIDENT, critical).open
    assert one.told.members == ("6f1c1b52-1", "node-n1")
    assert one.told.severity == "info", "the incident is being recovered"
    assert annotations_of(one)["state"] == "restarting"
    (over,) = site.look(GPU_LOST).closed
    assert over.cause_id == "6f1c1b52-1"

    late = replace(GPU_LOST, key="node-n1", since_unix_s=site.now_s + LATE_S - 1)
    assert site.look(GPU_LOST, after_s=86_400).open == ()
    assert site.look(late).open == ()
    other = replace(GPU_LOST, since_unix_s=late.since_unix_s + 2 * LATE_S)
    assert site.only(other, after_s=2 * LATE_S + FINDING_WAIT_S).cause_id == "node-n1"


def test_a_finding_waits_for_its_incident_and_the_incident_joins_one_that_did_not_come() -> None:
    site = Site()

    assert site.look(GPU_LOST, after_s=FINDING_WAIT_S - 1).open == ()
    assert site.only(GPU_LOST, after_s=2).cause_id == "node-n1"
    joined = site.only(GPU_LOST, INCIDENT)

    assert (joined.cause_id, joined.incident_ids) == ("node-n1", ("6f1c1b52-1",))


def losses(count: int) -> list[PresentTrouble]:
    return [
        replace(
            INCIDENT,
            key=f"job{number}-1",
            job_id=f"job{number}",
            job=f"train-{number}",
            nodes=(f"n{2 * number}", f"n{2 * number + 1}"),
            since_unix_s=NOW + number,
            gpus_idle=16,
            is_loss=True,
            severity=Severity.CRITICAL,
            need="waits for a node",
        )
        for number in range(count)
    ]


def test_a_switch_that_takes_twenty_nodes_and_ten_jobs_is_one_message_that_lists_them() -> None:
    site = Site()
    down = [
        replace(GPU_LOST, key=f"node-n{n}", nodes=(f"n{n}",), is_loss=True, since_unix_s=NOW + 60)
        for n in range(20)
    ]

    told = site.only(*losses(10), *down, after_s=120)

    assert (len(told.job_ids), len(told.nodes), told.gpus_idle) == (10, 20, 160)
    (one,) = site.look(*losses(10), *down).open
    texts = annotations_of(one)
    assert texts["summary"] == (
        "10 jobs: waits for a node; 160 ranks idle; lost n0, n1, n2 and 17 more"
    )
    assert all(f"train-{number}" in texts["jobs"] for number in range(10))
    assert texts["next"] == "rankmend status"
    marks = marks_of([told])
    assert {mark.labels["to"] for mark in marks} == {"nobody"}
    assert len(marks) == 30


def lost_node(number: int, *, at_s: float = NOW + 60.0) -> PresentTrouble:
    """Say that nothing answers on a node, which Prometheus has found."""
    return replace(
        GPU_LOST,
        key=f"node-n{number}",
        nodes=(f"n{number}",),
        is_loss=True,
        since_unix_s=at_s,
        about="RankmendAgentDown",
    )


MALLORYS = {"job0": "mallory", "job1": "mallory", "job2": "alice", "job3": "bob"}


def ids_of(changes: CauseChanges) -> dict[str, tuple[str, ...]]:
    return {one.told.cause_id: one.told.nodes for one in changes.open}


def test_a_lost_node_of_one_subject_silences_no_loss_that_is_found_of_others_nodes() -> None:
    site, forged = Site(), losses(1)

    site.look(*forged, owners=MALLORYS)
    now = site.look(*forged, lost_node(7), lost_node(8), after_s=100.0, owners=MALLORYS)

    assert ids_of(now) == {"job0-1": ("n0", "n1"), "node-n7": ("n7", "n8")}
    assert now.open[1].told.severity == "warning", "people receive it"


def test_a_lost_node_of_one_subject_that_is_over_silences_no_loss_of_others_either() -> None:
    site, forged = Site(), losses(1)
    site.look(*forged, owners=MALLORYS)
    assert site.look(owners=MALLORYS).closed

    now = site.look(lost_node(0), lost_node(7), after_s=100.0, owners=MALLORYS)

    assert ids_of(now) == {"node-n7": ("n7",)}, "n0 is his own node: the incident was about it"


def test_losses_of_other_subjects_join_no_message_of_one_by_time_alone_and_his_own_do() -> None:
    own, his, alices, bobs = losses(4)

    now = Site().look(own, his, alices, bobs, owners=MALLORYS)

    assert sorted(one.told.job_ids for one in now.open) == [("job0", "job1"), ("job2",), ("job3",)]


def test_an_incident_takes_over_no_finding_that_other_nodes_have_too() -> None:
    """It would be over with his incident, while the other nodes are still lost."""
    site, nodes = Site(), [lost_node(number, at_s=NOW - 40.0) for number in range(6)]
    (before,) = site.look(*nodes, owners=MALLORYS).open
    (forged,) = losses(1)

    now = site.look(*nodes, forged, owners=MALLORYS)
    after = site.look(*nodes, owners=MALLORYS)

    assert sorted(ids_of(now)) == ["job0-1", "node-n0"]
    assert [one.cause_id for one in after.closed] == ["job0-1"]
    assert ids_of(after) == {"node-n0": before.told.nodes}


def test_an_incident_joins_the_finding_of_its_own_node_alone() -> None:
    site, found = Site(), lost_node(0, at_s=NOW - 40.0)
    site.look(found, owners=MALLORYS)
    (forged,) = losses(1)

    assert ids_of(site.look(found, forged, owners=MALLORYS)) == {"node-n0": ("n0", "n1")}


def test_marks_of_one_subjects_losses_leave_room_for_those_of_others() -> None:
    def told(number: int, job: str, nodes: int) -> CauseTold:
        names = tuple(f"{job}-{number}-{node}" for node in range(nodes))
        return CauseTold(
            cause_id=f"{job}-{number}", since_unix_s=NOW, job_id=job, job=job, node="", severity="info",
            what="", nodes=names, job_ids=(job,) if job else (),
        )  # fmt: skip

    flood = [told(number, "job0", 200) for number in range(30)]
    others = [told(0, "job2", 200), told(0, "", 100), told(0, "job3", 1)]

    marks = marks_of([*flood, *others], lambda job_id: MALLORYS.get(job_id, ""))

    of_cause = Counter(mark.labels["incident"] for mark in marks)
    assert len(marks) == 2_000
    assert (of_cause["job2-0"], of_cause["-0"], of_cause["job3-0"]) == (201, 100, 2)


def test_losses_far_apart_and_failures_of_other_kinds_are_messages_of_their_own() -> None:
    first, second = losses(2)
    apart = replace(second, since_unix_s=first.since_unix_s + TOGETHER_S + 1)
    killed = replace(second, is_loss=False)

    assert len(Site().look(first, second, after_s=300).open) == 1
    assert len(Site().look(first, apart, after_s=300).open) == 2
    assert len(Site().look(first, killed, after_s=300).open) == 2


def test_the_same_finding_on_two_thousand_nodes_is_one_message_and_another_finding_another() -> (
    None
):
    hot = [
        replace(
            GPU_LOST, key=f"node-n{n}", nodes=(f"n{n}",), what="GPU hot", about="RankmendGpuHot"
        )
        for n in range(2_000)
    ]
    other = replace(GPU_LOST, key="node-x", nodes=("x",), about="RankmendGpuLost")
    site = Site()

    causes = site.look(*hot, other, after_s=FINDING_WAIT_S).open

    assert [one.told.cause_id for one in causes] == ["node-n0", "node-x"]
    assert annotations_of(causes[0])["summary"].startswith("200 nodes: ")
    assert site.look(*hot, other).records == (), "nothing is journaled again and again"


def test_two_programs_that_fail_on_one_node_are_two_messages_and_a_bad_node_is_one() -> None:
    other = replace(INCIDENT, key="other-1", job_id="other", job="other")

    def count(*, blames: bool) -> int:
        both = [replace(one, blames_node=blames) for one in (INCIDENT, other)]
        return len(Site().look(*both).open)

    assert (count(blames=False), count(blames=True)) == (2, 1)
    fails_alone = replace(INCIDENT, blames_node=False)
    assert len(Site().look(fails_alone, GPU_LOST).open) == 1, "what its agent finds is of it"


def test_a_message_that_many_jobs_share_is_open_until_the_last_of_them_is_well() -> None:
    site = Site()
    first, second = losses(2)
    site.look(first, second)

    assert len(site.look(second).open) == 1
    assert len(site.look().closed) == 1


def test_a_job_whose_journal_cannot_be_read_keeps_its_message_open() -> None:
    site = Site()
    site.look(INCIDENT)

    assert len(site.look(unmanaged=frozenset({JOB})).open) == 1
    assert len(site.look().closed) == 1


def test_what_only_senders_tell_is_not_over_before_the_controller_has_listened() -> None:
    site = Site()
    site.look(GPU_LOST, after_s=FINDING_WAIT_S)

    assert len(site.look(listened_s=RELISTEN_S - 1).open) == 1
    assert len(site.look(listened_s=RELISTEN_S).closed) == 1


def test_gpu_hours_are_counted_from_the_fault_and_stop_when_the_job_has_ended() -> None:
    site = Site()

    assert site.only(INCIDENT, after_s=60).gpu_s_lost == 64 * 60
    escalated = replace(
        INCIDENT, kind=ESCALATED, severity=Severity.CRITICAL, gpus_idle=None, need="given up"
    )
    site.look(escalated, after_s=60)
    told = site.only(escalated, after_s=3600)

    assert (told.gpu_s_lost, told.gpus_idle) == (64 * 120, 64)


def test_a_message_stands_for_a_minute_so_that_no_second_alertmanager_sends_it_after_its_end() -> (
    None
):
    site, rules = Site(), PeopleRules(stands_s=60.0)
    site.look(replace(INCIDENT, severity=Severity.CRITICAL), rules=rules)

    assert len(site.look(after_s=59.0, rules=rules).open) == 1
    assert len(site.look(after_s=1.0, rules=rules).closed) == 1


def test_the_severity_of_a_message_never_falls() -> None:
    site = Site()
    site.look(replace(INCIDENT, severity=Severity.CRITICAL))

    assert site.only(INCIDENT).severity == "critical"


def test_texts_fit_a_lock_screen_and_hold_no_escape_whatever_a_job_is_named() -> None:
    hostile = replace(
        INCIDENT, job="x\x1b[2J\n" * 100, what="said \u202e" + "y" * 5000, need="approve the plan"
    )
    (one,) = Site().look(hostile).open

    texts = annotations_of(one)

    assert len(texts["summary"]) <= SUMMARY_MAX
    assert all("\x1b" not in text and "\u202e" not in text for text in texts.values())
    assert "\n" not in texts["summary"]


def test_of_a_job_that_was_given_up_a_message_does_not_say_that_nothing_was_done() -> None:
    """What was done before is in the journal, and no longer in the trouble."""
    given_up = replace(INCIDENT, kind=ESCALATED, done=(), gpus_idle=None, stage=Stage.GIVEN_UP)
    site = Site()
    (before,) = site.look(INCIDENT).open
    (after,) = site.look(given_up).open

    assert annotations_of(before)["done"] == "decided: restart in place"
    assert "done" not in annotations_of(after)


def test_the_daily_record_names_what_was_over_alone_and_what_waits_for_repair() -> None:
    site = Site()
    site.now_s = NOW - 3600
    site.look(replace(INCIDENT, since_unix_s=NOW - 3600))
    site.look(ends={JOB: "trains again"})
    held = PresentTrouble("held-n1", QUARANTINED, Severity.INFO, "n1 gets no ranks", NOW)

    record = daily_record(site.ledger.causes, [held], 8, NOW + 1)

    assert record is not None
    labels, texts, started = record
    assert (labels["day"], labels["severity"], started) == ("2027-01-15", "info", NOW)
    assert texts["summary"].startswith(
        "24 h until 08:00 UTC: 1 over without a message, 0 with one; "
    )
    assert "6f1c1b52-1" in texts["what"]
    assert "waits for repair: n1 gets no ranks" in texts["what"]
    assert daily_record(site.ledger.causes, [], 8, NOW - 1) is None, "not before its hour"
    assert daily_record(site.ledger.causes, [], 8, NOW + 43_201) is None, "not for ever"
    assert daily_record({}, [], 8, NOW + 1) is None, "nothing to tell"
    assert site.look(held).open == (), "a repair that can wait is no message"


def test_incidents_of_one_subject_hide_no_line_of_others_and_no_repair_in_the_daily_record() -> (
    None
):
    site = Site()
    site.now_s = NOW - 3600
    forged = [
        replace(INCIDENT, key=f"m{number}-1", job_id="job0", job=f"m{number}", nodes=())
        for number in range(120)
    ]
    alices = replace(INCIDENT, key="alice-1", job_id="job2", job="llama", nodes=())
    for trouble in (*forged, alices):
        site.look(trouble, owners=MALLORYS)
        site.look(owners=MALLORYS)
    held = PresentTrouble("held-n1", QUARANTINED, Severity.INFO, "n1 gets no ranks", NOW)

    record = daily_record(site.ledger.causes, [held], 8, NOW + 1)

    assert record is not None
    lines = record[1]["what"].splitlines()
    assert any("(alice-1)" in line for line in lines)
    assert "waits for repair: n1 gets no ranks" in lines
    assert lines[-1] == "and 72 more"
    assert len(lines) == 51


def test_a_message_links_to_no_console_that_is_not_served() -> None:
    off = Config(state_dir="/s", console=ConsoleSection(enabled=False))
    links = Links("https://wiki/runbooks", console_base(off, "host"))
    (alert,) = alerts_of(Site().look(INCIDENT).open, links)

    assert "console_url" not in alert.annotations
    assert alert.annotations["runbook_url"].startswith("https://wiki/runbooks/")
    assert console_base(Config(state_dir="/s"), "host").startswith("http://")


PARTS = find_parts(
    merge(
        [
            parse_network("SwitchName=leaf1 Nodes=n[0-3]\nSwitchName=leaf2 Nodes=n[4-7]\n").edges,
            parse_site_parts("[[rack]]\nname='r1'\nnodes=['n[2-5]']\n"),
        ]
    )
)
FLEET = SharedBy([f"n{number}" for number in range(8)], PARTS)


def hot(number: int, about: str = "RankmendGpuSlowedByHeat") -> PresentTrouble:
    return replace(
        GPU_LOST, key=f"node-n{number}", nodes=(f"n{number}",), what="slowed by heat", about=about
    )


def test_nodes_with_one_finding_name_the_part_that_explains_them() -> None:
    site = Site()
    site.shared = FLEET

    told = site.only(*(hot(number) for number in (2, 3, 4, 5)), after_s=FINDING_WAIT_S)
    (one,) = site.look(*(hot(number) for number in (2, 3, 4, 5))).open
    texts = annotations_of(one)

    assert told.part == "rack r1"
    assert texts["part"] == "rack r1"
    assert texts["summary"] == "4 nodes: rack r1: slowed by heat"


def test_a_leaf_switch_is_no_reason_for_heat_and_is_for_what_it_can_cause() -> None:
    def part(about: str) -> str:
        site = Site()
        site.shared = FLEET
        return site.only(*(hot(n, about) for n in range(4)), after_s=FINDING_WAIT_S).part

    assert part("RankmendGpuSlowedByHeat") == ""
    assert part("RankmendNicSymbolErrors") == "leaf switch leaf1"
    assert part("SomethingElse") == "leaf switch leaf1"


def test_nodes_whose_storage_ports_are_bad_are_one_message_about_the_storage_switch() -> None:
    """Each node hangs on a leaf of the compute network and on one of storage: both have the same nodes below them."""
    cables = [
        edge(f"n{at}", leaf, EdgeOrigin.LLDP, port=port)
        for at in range(8)
        for leaf, port in ((f"c{at // 4}", "mlx5_0/1"), (f"s{at // 4}", "mlx5_8/1"))
    ]
    shared = SharedBy(FLEET.nodes, find_parts(NetworkTopology(tuple(cables))))

    def part(about: str, ports: tuple[str, ...]) -> str:
        site = Site()
        site.shared = shared
        bad = [replace(hot(at, about), ports=ports) for at in range(4)]
        return site.only(*bad, after_s=FINDING_WAIT_S).part

    assert part("RankmendNicPortDown", ("mlx5_8/1",)) == "leaf switch s0"
    assert part("RankmendNicPortDown", ("mlx5_0/1",)) == "leaf switch c0"
    assert part("RankmendPlaneDegraded", ()) == "leaf switch c0 or leaf switch s0", (
        "nobody told of ports"
    )


def test_lost_nodes_are_explained_anew_when_more_are_lost_and_one_node_never() -> None:
    site = Site()
    site.shared = FLEET

    def lost(*numbers: int) -> str:
        found = (replace(hot(number, "RankmendAgentDown"), is_loss=True) for number in numbers)
        return site.only(*found, after_s=FINDING_WAIT_S).part

    assert [lost(4), lost(4, 5, 6), lost(4, 5, 6, 7)] == [
        "",
        "leaf switch leaf2",
        "leaf switch leaf2",
    ]


def test_ten_nodes_that_throttle_together_are_one_message_about_one_coolant_unit() -> None:
    text = "[[coolant_loop]]\nname='cdu-3'\nnodes=['n[0-9]']\n[[coolant_loop]]\nname='cdu-4'\nnodes=['n[10-19]']"
    parts = find_parts(NetworkTopology(parse_site_parts(text)))
    site = Site()
    site.shared = SharedBy([f"n{number}" for number in range(20)], parts)
    reading = CoolingReading("cdu-3", NOW, flow_liters_per_s=2.0, flow_liters_per_s_min=5.0)
    verdicts = judge_cooling(
        [reading], {f"n{at}" for at in range(10)}, site.shared.nodes, parts, NOW
    )
    (unit,) = unit_troubles(verdicts, NOW + 9, {"cooling-cdu-3": NOW})

    (one,) = site.look(*(hot(number) for number in range(10)), unit, after_s=FINDING_WAIT_S).open
    texts = annotations_of(one)

    assert one.told.part == "coolant loop cdu-3"
    assert one.told.severity == "critical"
    assert "flow 120 l/min, below 300 l/min; 10 nodes of 10 on it slowed by heat" in texts["what"]
    assert texts["summary"].startswith("10 nodes: inspect the coolant unit; coolant loop cdu-3:")


def test_ten_nodes_that_are_short_of_power_are_one_message_about_one_feed() -> None:
    text = "[[power_feed]]\nname='pdu-3'\nnodes=['n[0-9]']\n[[power_feed]]\nname='pdu-4'\nnodes=['n[10-19]']"
    parts = find_parts(NetworkTopology(parse_site_parts(text)))
    site = Site()
    site.shared = SharedBy([f"n{number}" for number in range(20)], parts)
    reading = PowerReading("pdu-3", NOW, power_watts=47e3, power_watts_max=45e3)
    short = {f"n{at}" for at in range(10)}
    verdicts = judge_power([reading], short, site.shared.nodes, parts, NOW)
    (feed,) = unit_troubles(verdicts, NOW + 9, {"power-pdu-3": NOW})
    braked = [hot(number, "RankmendGpuPowerBrake") for number in range(10)]

    (one,) = site.look(*braked, feed, after_s=FINDING_WAIT_S).open

    assert (one.told.part, one.told.severity) == ("power feed pdu-3", "critical")
    assert "47 kW, above 45 kW; 10 nodes of 10 on it short of power" in annotations_of(one)["what"]


def test_two_bad_units_are_two_messages() -> None:
    def bad(unit: str) -> UnitVerdict:
        return UnitVerdict(COOLANT_UNIT, unit, (UnitFault(UnitQuantity.LEAK),))

    troubles = unit_troubles([bad("a"), bad("b"), UnitVerdict(COOLANT_UNIT, "c")], NOW, {})

    found = Site().look(*troubles, after_s=FINDING_WAIT_S + 1).open

    assert sorted(one.told.cause_id for one in found) == ["cooling-a", "cooling-b"]


def test_without_a_topology_nothing_is_explained() -> None:
    told = Site().only(*(hot(number) for number in range(4)), after_s=FINDING_WAIT_S)

    assert told.part == ""

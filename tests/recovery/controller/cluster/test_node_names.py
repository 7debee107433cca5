"""Which node an alert means that calls it otherwise than its launcher: one that is certain, or none."""

from collections.abc import Iterable

import pytest

from recovery.controller.cluster.active_alerts import ActiveAlerts, JobNode
from recovery.controller.cluster.alert_shares import NOBODY, Sender, node_sender
from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.controller.cluster.incoming_alerts import IncomingAlert
from recovery.controller.cluster.node_names import HeardNames, NodeNames, NoMatch
from recovery.controller.cluster.unmatched_names import read_names
from recovery.messages.outside import NameMatch, NodeEvidence

NOW = 1_800_000_000.0
JOB = "job-a"
ADDRESSES = {
    "gpu-1": ["10.0.0.1", "fd00::1"],
    "gpu-2": ["10.0.0.2"],
    "gpu-3": ["10.0.0.2"],
    "gpu-4": ["127.0.0.1"],
}
SHORT, FULL = ("gpu-1", "gpu-2", "gpu-3"), ("gpu-1.a.org", "gpu-2.a.org")


def find(told: str, nodes: Iterable[str], *heard: str, domains: Iterable[str] = ()) -> object:
    """Return the node that is meant with how it was matched, else why none is."""
    names = HeardNames()
    for one in (told, *heard):
        names.note(one, NOW)
    found = NodeNames(nodes, ADDRESSES, domains).find(told, names)
    return found.why_not or (found.node, found.match)


@pytest.mark.parametrize(
    ("told", "nodes", "expected"),
    [
        ("gpu-1", SHORT, ("gpu-1", NameMatch.EXACT)),
        ("gpu-1:9400", SHORT, ("gpu-1", NameMatch.EXACT)),
        ("GPU-1", SHORT, ("gpu-1", NameMatch.CASE)),
        ("gpu-1.a.org", SHORT, ("gpu-1", NameMatch.SHORT)),
        ("gpu-1.a.org.", SHORT, ("gpu-1", NameMatch.SHORT)),
        ("Gpu-1.A.org:9100", SHORT, ("gpu-1", NameMatch.SHORT)),
        ("gpu-1", FULL, ("gpu-1.a.org", NameMatch.SHORT)),
        ("GPU-1.A.ORG", FULL, ("gpu-1.a.org", NameMatch.CASE)),
        ("gpu-1.a", FULL, ("gpu-1.a.org", NameMatch.SHORT)),
        ("10.0.0.1:9400", SHORT, ("gpu-1", NameMatch.ADDRESS)),
        ("[fd00:0::1]:9400", SHORT, ("gpu-1", NameMatch.ADDRESS)),
        ("10.0.0.9", ("10.0.0.9",), ("10.0.0.9", NameMatch.EXACT)),
    ],
)
def test_name_that_can_mean_one_node_alone_means_that_node(
    told: str, nodes: tuple[str, ...], expected: object
) -> None:
    assert find(told, nodes) == expected


@pytest.mark.parametrize(
    ("told", "nodes", "why"),
    [
        ("gpu-9", SHORT, NoMatch.UNKNOWN),
        ("gpu-11", SHORT, NoMatch.UNKNOWN),
        ("gpu-1x.a.org", SHORT, NoMatch.UNKNOWN),
        ("gpu-1", ("gpu-1.a.org", "gpu-1.b.org"), NoMatch.AMBIGUOUS),
        ("gpu-1.b.org", ("gpu-1", "gpu-1.a.org"), NoMatch.AMBIGUOUS),
        ("Gpu-1", ("gpu-1", "GPU-1"), NoMatch.AMBIGUOUS),
        ("gpu-1.b.org", FULL, NoMatch.DOMAIN),
        ("gpu-1.a.or", FULL, NoMatch.DOMAIN),
        ("10.0.0.2:9400", SHORT, NoMatch.AMBIGUOUS),
        ("10.0.0.9", SHORT, NoMatch.UNKNOWN),
        ("127.0.0.1:9400", ("gpu-4",), NoMatch.UNKNOWN),
        ("localhost:9400", ("localhost.a.org",), NoMatch.UNKNOWN),
        ("0.0.0.0:9400", ("gpu-4",), NoMatch.UNKNOWN),
    ],
)
def test_name_that_can_mean_two_nodes_or_another_means_none(
    told: str, nodes: tuple[str, ...], why: NoMatch
) -> None:
    assert find(told, nodes) is why


def test_two_domains_that_alerts_give_one_short_name_are_two_hosts() -> None:
    assert find("gpu-1.a.org", SHORT, "gpu-1.b.org") is NoMatch.AMBIGUOUS
    assert find("gpu-1.a.org", SHORT, "gpu-1.a", "gpu-2.b.org") == ("gpu-1", NameMatch.SHORT)


def test_domains_of_the_policy_decide_which_full_names_are_ours() -> None:
    ours = ("a.org", "mgmt.a.org")

    assert find("gpu-1.mgmt.a.org", SHORT, "gpu-1.a.org", domains=ours) == (
        "gpu-1",
        NameMatch.SHORT,
    )
    assert find("gpu-1.mgmt.a.org", FULL, domains=ours) == ("gpu-1.a.org", NameMatch.SHORT)
    assert find("gpu-1.b.org", SHORT, domains=ours) is NoMatch.DOMAIN


def test_full_names_are_forgotten_once_no_alert_has_them() -> None:
    heard = HeardNames()
    heard.note("gpu-1.b.org", NOW)
    heard.note("gpu-1.a.org", NOW + 60)
    names = NodeNames(SHORT)

    assert names.find("gpu-1.a.org", heard).why_not is NoMatch.AMBIGUOUS
    heard.forget(NOW + 30)
    assert names.find("gpu-1.a.org", heard).node == "gpu-1"


def test_nothing_is_matched_while_other_controllers_may_have_a_node_of_that_name() -> None:
    names = NodeNames(SHORT, ADDRESSES, is_whole=False)

    for told in ("gpu-1.a.org", "GPU-1", "10.0.0.1", "gpu-9"):
        assert names.find(told, HeardNames()).why_not is NoMatch.UNHEARD
    assert names.find("gpu-1", HeardNames()).node == "gpu-1"


# In the book of alerts.

JOBS_ON = {"gpu-1": (JobNode(JOB, (0, 1)),), "gpu-2": (JobNode(JOB, (2, 3)),)}


def alert(told: str, label: str = "node", **labels: str) -> IncomingAlert:
    named = {"alertname": "RankmendGpuLost", label: told, "severity": "critical", **labels}
    return IncomingAlert(named, {"action": "drain"}, NOW - 60, is_firing=True)


def hear(book: ActiveAlerts, *alerts: IncomingAlert, sender: Sender = NOBODY) -> list[NodeEvidence]:
    return [one for _job, one in book.receive(alerts, JOBS_ON, NOW, sender=sender)[1]]


@pytest.mark.parametrize("label", ["node", "Hostname", "instance"])
def test_evidence_names_the_launchers_node_and_what_the_alert_called_it(label: str) -> None:
    (one,) = hear(ActiveAlerts(AlertRules()), alert("gpu-1.a.org:9400", label))

    assert (one.node, one.told_node, one.match) == ("gpu-1", "gpu-1.a.org:9400", NameMatch.SHORT)
    assert one.ranks == (0, 1)


def test_evidence_of_a_node_by_its_own_name_tells_of_no_other() -> None:
    (one,) = hear(ActiveAlerts(AlertRules()), alert("gpu-1:9400", "instance"))

    assert (one.node, one.told_node, one.match) == ("gpu-1", "", NameMatch.EXACT)


def test_a_second_domain_stops_what_the_first_alert_could_still_do() -> None:
    book = ActiveAlerts(AlertRules())
    assert len(hear(book, alert("gpu-1.a.org"))) == 1

    assert hear(book, alert("gpu-1.b.org")) == []
    book.locate(JOBS_ON)

    told = read_names(book.active)
    assert {one.told: one.why for one in told.unmatched} == {
        "gpu-1.a.org": NoMatch.AMBIGUOUS,
        "gpu-1.b.org": NoMatch.AMBIGUOUS,
    }
    assert "gpu-1.a.org (not certain to be gpu-1)" in told.in_words()
    other_job = {"gpu-1": (JobNode("job-b", (0,)),)}
    assert book.retell("gpu-1", other_job["gpu-1"], NOW) == []


def test_an_alert_is_matched_once_the_launcher_has_come() -> None:
    book = ActiveAlerts(AlertRules())
    book.receive([alert("gpu-1.a.org")], {}, NOW)
    assert book.retell("gpu-1", JOBS_ON["gpu-1"], NOW) == []

    book.locate(JOBS_ON)

    ((job, one),) = book.retell("gpu-1", JOBS_ON["gpu-1"], NOW)
    assert (job, one.node, one.told_node) == (JOB, "gpu-1", "gpu-1.a.org")


def test_a_node_that_is_hushed_is_so_under_each_of_its_names() -> None:
    book = ActiveAlerts(AlertRules())

    _taken, heard = book.receive([alert("GPU-1")], JOBS_ON, NOW, lambda node: node == "gpu-1")

    assert heard == []


def test_a_certificate_accuses_no_node_but_those_it_names() -> None:
    book = ActiveAlerts(AlertRules())

    assert hear(book, alert("gpu-1.a.org"), sender=node_sender("g", ("gpu-1.a.org",))) == []
    (active,) = book.active
    assert active.found.why_not is NoMatch.LIMITS
    both = node_sender("g", ("gpu-1.a.org", "gpu-1"))  # as a certificate for a full name has it
    assert [one.node for one in hear(book, alert("gpu-1.a.org"), sender=both)] == ["gpu-1"]


def test_a_certificate_gains_nothing_by_a_domain_behind_its_own_name() -> None:
    jobs_on = {"gpu-1": (JobNode(JOB, (0,)),), "gpu-1.b.org": (JobNode(JOB, (1,)),)}
    told = alert("gpu-1.b.org", "Hostname")  # its limits are compared with gpu-1

    book = ActiveAlerts(AlertRules())
    _taken, heard = book.receive([told], jobs_on, NOW, sender=node_sender("g", ("gpu-1",)))

    assert [one.node for _job, one in heard] == ["gpu-1"]
    (_, again) = ActiveAlerts(AlertRules()).receive([told], jobs_on, NOW)
    assert [one.node for _job, one in again] == ["gpu-1.b.org"], "Alertmanager may"


def test_an_alert_under_the_name_of_before_a_renaming_is_told_of() -> None:
    book = ActiveAlerts(AlertRules())
    names = NodeNames(["gpu-1", "gpu-1.a.org"])  # the second was blamed last week

    _taken, heard = book.receive([alert("gpu-1.a.org")], JOBS_ON, NOW, names=lambda: names)

    assert heard == []
    assert [one.why for one in read_names(book.active).unmatched] == [NoMatch.AMBIGUOUS]


def test_people_hear_of_names_that_a_job_may_lack_and_not_of_idle_nodes() -> None:
    book = ActiveAlerts(AlertRules())
    hear(
        book,
        alert("idle-1", severity="warning"),
        alert("other-2"),
        alert("10.0.0.9:9400", "instance", severity="warning"),
        alert("GPU-2"),
    )

    told = read_names(book.active)

    assert told.alerts_unmatched == {NoMatch.UNKNOWN: 3}
    assert told.alerts_matched == {NameMatch.CASE: 1}
    assert told.in_words() == (
        "2 node names in alerts match no launcher's, so that these alerts count for no job: other-2, 10.0.0.9:9400"
    )


def test_what_is_no_name_is_not_shown() -> None:
    book = ActiveAlerts(AlertRules())
    hear(book, alert("gpu-7.\x1b[31m:9400", "instance"))

    assert "\x1b" not in read_names(book.active).in_words()

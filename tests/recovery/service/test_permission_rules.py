"""What the limits of a token cover, and what the console and the documents say of it."""

import re
from pathlib import Path

import pytest

from recovery.api import wire
from recovery.console.acts import MayAct
from recovery.controller.cluster.cluster_limits import AlertRules
from recovery.controller.cluster.incoming_alerts import IncomingAlert, target_of
from recovery.messages.outside import PersonAct
from recovery.service.http.handlers.alerts import sender_of
from recovery.service.http.handlers.jobs import command_of
from recovery.service.http.permission import covers, may_act_on
from recovery.service.http.routes import ROUTES
from recovery.service.roles import Role, Subject

ROOT = Path(__file__).resolve().parents[3]


def test_node_of_an_alert_is_that_of_the_first_label_that_the_rules_name() -> None:
    alert = IncomingAlert({"node": "n1", "Hostname": "n2.example"}, {}, None, is_firing=True)

    rules = AlertRules(node_labels=("Hostname", "node"))
    assert target_of(alert, rules).node == "n2"


@pytest.mark.parametrize(
    ("patterns", "wanted", "is_covered"),
    [
        (["n*"], "n1", True),
        (["n*"], "n1*", True),
        (["n*"], "n[12]", True),
        (["n*"], "*", False),
        (["n*"], "?1", False),
        (["n?"], "n*", False),
        (["n?"], "n?", True),
        (["*-a"], "n*-a", False),
        (["*"], "[ab]*", True),
        (["n[1]*"], "n[1]*", True),
        ([], "n1", False),
    ],
)
def test_pattern_lies_within_another_only_where_that_is_certain(
    patterns: list[str], wanted: str, *, is_covered: bool
) -> None:
    assert covers(patterns, wanted) is is_covered


@pytest.mark.parametrize(
    ("nodes", "jobs", "reach"),
    [
        ((), (), MayAct(cluster=True, job=True, node=True)),
        ((), ("train-*",), MayAct(job=True)),
        (("n[1-4]",), (), MayAct(node=True)),
        (("n1", "n2"), ("train-*",), MayAct(job=True)),
    ],
)
def test_the_console_offers_what_the_api_takes(
    nodes: tuple[str, ...], jobs: tuple[str, ...], reach: MayAct
) -> None:
    subject = Subject("ann", frozenset({Role.ACT}), nodes=nodes, jobs=jobs)

    assert may_act_on(subject) == reach


@pytest.mark.parametrize(("jobs", "is_of_jobs"), [((), False), (("train-*",), True)])
def test_word_with_a_token_limited_to_jobs_is_marked_so_that_it_reaches_no_node(
    jobs: tuple[str, ...], *, is_of_jobs: bool
) -> None:
    """`recovery.controller.cluster.cluster` decides by it what may follow outside the job."""
    subject = Subject("ann", frozenset({Role.ACT, Role.ALERT}), nodes=("n*",), jobs=jobs)

    approval = command_of(subject, wire.JobCommand(act=PersonAct.APPROVE))
    sender = sender_of(subject)

    assert (approval.who, approval.is_of_jobs) == ("ann", is_of_jobs)
    assert (sender.name, sender.nodes, sender.is_of_jobs) == ("ann", ("n*",), is_of_jobs)


def test_documents_name_what_each_route_touches() -> None:
    text = (ROOT / "docs/operate/security.md").read_text()
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in text.splitlines()
        if re.match(r"\| `(GET|POST) /", line)
    ]
    told = {
        request.strip(" `"): (roles, touches)
        for requests, roles, touches in rows
        for request in requests.split(",")
    }

    assert told == {
        f"{one.method} {one.path}": (
            ", ".join(f"`{role.value}`" for role in one.roles) or "-",
            one.touches.value,
        )
        for one in ROUTES
    }

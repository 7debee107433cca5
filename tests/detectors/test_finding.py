"""A finding and its form on the wire; the names, and the list of them in docs/operate/alerts.md."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from detectors.failed.said_error import FailureCause
from detectors.finding import (
    HOST_SILENT,
    IDENTITY_EXCLUDES,
    LABELS,
    Blame,
    Evidence,
    Finding,
    Kind,
    Severity,
    SymptomKind,
    alert_annotations,
    alert_labels,
    blamed_in_words,
    identity,
)
from recovery.messages.codec import symptom_of

DOCUMENT = (Path(__file__).parents[2] / "docs/operate/alerts.md").read_text(encoding="utf-8")

FAILED = Finding(
    kind=Kind.RANK_FAILED,
    severity=Severity.CRITICAL,
    blame=Blame.RANK,
    summary="rank 3 was killed by SIGKILL",
    job_id="6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10",
    attempt=2,
    node="n07",
    ranks=(3,),
    victims=(0, 1, 2),
    since_age_s=0.4,
    symptom=symptom_of("signal 9"),
    evidence=(Evidence("wait status", "signal 9"), Evidence("stderr", "nothing")),
)


def _documented(heading: str) -> dict[str, str]:
    """Return first and second cell of each row of the table under this heading."""
    _before, _heading, rest = DOCUMENT.partition(f"\n## {heading}\n")
    assert rest, f"docs/operate/alerts.md has no section {heading!r}"
    section = rest.partition("\n## ")[0]
    return dict(re.findall(r"^\| `([^`]+)` \| (.*?) \|", section, flags=re.MULTILINE))


def test_labels_of_the_code_are_those_of_the_document_with_their_meanings() -> None:
    assert _documented("Labels") == LABELS


def test_alert_names_of_the_code_are_those_of_the_document() -> None:
    assert list(_documented("Names")) == [
        alert_labels(_finding(kind=kind))["alertname"] for kind in Kind
    ]


@pytest.mark.parametrize(("heading", "values"), [("Blame", Blame), ("Severity", Severity)])
def test_values_of_the_code_are_those_of_the_document(
    heading: str, values: type[Blame] | type[Severity]
) -> None:
    assert list(_documented(heading)) == [value.value for value in values]


def _finding(**changes: object) -> Finding:
    return replace(FAILED, **changes)  # type: ignore[arg-type]


def test_alert_carries_the_routing_labels_as_text() -> None:
    assert alert_labels(FAILED) == {
        "alertname": "RankmendRankFailed",
        "job_id": "6f1c1b52-6a5a-4e43-9a76-1f0b6f2f7a10",
        "node": "n07",
        "attempt": "2",
        "severity": "critical",
        "rank": "3",
    }


def test_alert_carries_what_a_person_reads_as_annotations() -> None:
    assert alert_annotations(FAILED) == {
        "summary": "rank 3 was killed by SIGKILL",
        "blame": "rank",
        "description": "wait status: signal 9\nstderr: nothing",
    }


@pytest.mark.parametrize("kind", Kind)
def test_every_label_of_every_kind_is_a_listed_one(kind: Kind) -> None:
    assert set(alert_labels(_finding(kind=kind))) <= set(LABELS)


def test_several_culprits_share_one_label_in_ascending_order() -> None:
    assert alert_labels(_finding(ranks=(10, 2)))["rank"] == "2,10"


def test_abstention_carries_no_rank() -> None:
    assert "rank" not in alert_labels(_finding(ranks=(), blame=Blame.NOBODY))


@pytest.mark.parametrize("name", sorted(IDENTITY_EXCLUDES))
def test_alerts_that_differ_in_what_is_excluded_are_the_same(name: str) -> None:
    labels = alert_labels(FAILED)

    assert identity({**labels, name: "other"}) == identity(labels)


@pytest.mark.parametrize("name", sorted(set(LABELS) - IDENTITY_EXCLUDES))
def test_alerts_that_differ_in_any_other_label_are_two(name: str) -> None:
    labels = alert_labels(FAILED)

    assert identity({**labels, name: "other"}) != identity(labels)


def test_identity_ignores_order_empty_labels_and_what_others_add() -> None:
    labels = alert_labels(FAILED)
    turned = dict(reversed(labels.items()))

    assert identity({**turned, "device": "", "prometheus": "a", "severity": "info"}) == identity(
        labels
    )


def test_each_way_a_rank_can_end_is_a_kind_of_symptom() -> None:
    assert {cause.value for cause in FailureCause} <= {kind.value for kind in SymptomKind}


def test_the_line_for_people_follows_the_symptom_and_never_the_other_way_round() -> None:
    finding = replace(FAILED, symptom=HOST_SILENT, signature="person:restart")

    assert finding.signature == "host:silent"
    assert not finding.is_persons


@pytest.mark.parametrize(
    ("blame", "kind", "ranks", "word", "legend"),
    [
        (Blame.RANK, Kind.RANK_FAILED, (3,), "rank", "this rank, and the node and device that it runs on"),
        (Blame.RANK, Kind.RANK_FAILED, (2, 3), "rank", "these ranks, and what they run on"),
        (Blame.RANK, Kind.HOST, (3,), "node", "this node, and all on it"),
        (Blame.RANK, Kind.DEVICE, (), "node", "this node, and all on it"),
        (Blame.COMMUNICATION, Kind.HOST, (3,), "communication", "the network between ranks, no single machine"),
        (Blame.PROGRAM, Kind.RANK_FAILED, (3,), "program", "the training program or its settings, no machine"),
    ],
)  # fmt: skip
def test_a_finding_about_a_node_as_a_whole_blames_no_rank_in_words(
    blame: Blame, kind: Kind, ranks: tuple[int, ...], word: str, legend: str
) -> None:
    assert blamed_in_words(blame, kind.value, ranks) == (word, legend)

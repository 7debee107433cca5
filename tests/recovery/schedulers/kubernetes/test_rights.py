"""The role that is shipped is the least that works: each verb that is taken away is missed, by name."""

from typing import Any

import pytest

from rankmend.kubernetes_api import KubernetesError
from recovery.journal.slurm_records import SlurmOutcome
from recovery.schedulers.slurm.requests import SchedulerAction
from tests.recovery.schedulers.kubernetes.conftest import EVICTS, Make, Site, shipped_rules

pytestmark = pytest.mark.site
EVICT, DRAIN, RESUME = SchedulerAction.EVICT, SchedulerAction.DRAIN, SchedulerAction.RESUME
RULES = [*shipped_rules(), *shipped_rules(EVICTS)]
VERBS = [
    (rule["resources"][0], verb) for rule in RULES for verb in rule["verbs"]
]  # each rule is of one resource


def without(rules: list[dict[str, Any]], resource: str, verb: str) -> list[dict[str, Any]]:
    kept = [
        {**rule, "verbs": [one for one in rule["verbs"] if (rule["resources"][0], one) != (resource, verb)]}
        for rule in rules
    ]  # fmt: skip
    return [rule for rule in kept if rule["verbs"]]


def run_story(site: Site) -> list[str]:
    """Cordon, evict, delete and uncordon for a job of ann, whose namespace it is; return what went wrong."""
    path = f"/api/v1/namespaces/{site.namespace}"
    labels = {"metadata": {"labels": {"rankmend.io/subject": "ann"}}}
    site.cluster.call("PATCH", path, labels, "application/merge-patch+json")
    site.cluster.add_pod(site.namespace, "train-0", site.node, {"rankmend.io/job": "train"})
    site.cluster.set_ready(site.node, "Unknown")
    works = [
        site.finish(DRAIN, "inc-1", subject="ann"),
        site.finish(EVICT, "evict-1", pods_of="train", subject="ann"),
        site.finish(RESUME, "back-1"),
    ]
    ended = [one.ended for one in works if one.ended is not None]
    wrong = [one.text for one in ended if one.outcome is SlurmOutcome.FAILED]
    try:
        site.client.review_token("none")
    except KubernetesError as error:
        wrong.append(str(error))
    return wrong


def test_the_shipped_rules_are_enough(make: Make) -> None:
    assert run_story(make()) == []


def test_every_rule_is_of_one_resource() -> None:
    assert all(len(rule["resources"]) == 1 for rule in RULES)


@pytest.mark.parametrize(("resource", "verb"), VERBS)
def test_a_verb_that_is_taken_away_is_named(make: Make, resource: str, verb: str) -> None:
    rules, own = (
        without(shipped_rules(name), resource, verb) for name in ("rankmend-controller", EVICTS)
    )

    wrong = run_story(make(rules, own))

    asked = resource.partition("/")[0]
    assert any(f"cannot {verb} resource" in text and asked in text for text in wrong), wrong


def test_pods_of_another_namespace_are_never_evicted(make: Make) -> None:
    """A stolen token of the controller must not end kube-system, nor a tenant who has not consented."""
    site = make()
    other = f"{site.namespace}-other"
    site.cluster.add_namespace(other)
    site.cluster.add_pod(other, "foreign-0", site.node, {"rankmend.io/job": "train"})

    site.finish(DRAIN, "inc-1")
    work = site.finish(EVICT, "evict-1", pods_of="train")

    assert work.ended is not None
    assert work.ended.outcome is SlurmOutcome.FAILED
    assert f'in the namespace "{other}"' in work.ended.text
    assert site.cluster.is_there(other, "foreign-0")

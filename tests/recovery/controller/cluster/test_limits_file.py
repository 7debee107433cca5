"""The controller's policy as TOML: typed, over defaults, and nothing unknown."""

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from detectors.finding import Kind
from detectors.hang.live import HungLimits
from rankmend.errors import ConfigError
from recovery.controller.cluster.cluster_limits import (
    AlertRules,
    Approval,
    Budgets,
    ClusterPolicy,
    PeopleRules,
    Quarantine,
)
from recovery.controller.cluster.cluster_limits_file import (
    PolicyFile,
    parse_policy,
    read_policy_file,
)
from recovery.controller.cluster.probe_rules import ProbeRules
from recovery.journal.limits import PlanStep, Policy


def parse(text: str) -> PolicyFile:
    return parse_policy(msgspec.toml.decode(text))


def test_without_a_file_the_defaults_hold() -> None:
    assert read_policy_file(None) == PolicyFile(ClusterPolicy(), Policy(), ())


def test_what_is_set_stands_over_the_defaults_and_the_rest_stays() -> None:
    read = parse(
        """
        [cluster]
        approval = "moves"
        [budgets]
        nodes_held_max = 3
        [quarantine]
        blames = 2
        [policy]
        evidence_wait_s = 5
        [hang]
        floor_s = 20
        """
    )

    assert read.cluster.approval is Approval.MOVES
    assert read.cluster.budgets.nodes_held_max == 3
    assert read.cluster.budgets.nodes_held_percent == ClusterPolicy().budgets.nodes_held_percent
    assert read.policy.evidence_wait_s == 5.0
    assert read.policy.hung.floor_s == 20.0
    assert read.policy.restarts_max == Policy().restarts_max


def test_jobs_are_matched_by_name_the_later_over_the_earlier() -> None:
    read = parse(
        """
        [[jobs]]
        match = "llama*"
        dry_run = true
        policy = { restarts_max = 5, no_progress_max = 1 }
        [[jobs]]
        match = "llama-prod"
        dry_run = false
        approval = "all"
        policy = { restarts_max = 9 }
        hang = { floor_s = 33 }
        """
    )

    prod, test = read.policy_for("llama-prod"), read.policy_for("llama-test")
    assert (prod.restarts_max, prod.no_progress_max, prod.hung.floor_s) == (9, 1, 33.0)
    assert (test.restarts_max, test.hung) == (5, Policy().hung)
    assert read.policy_for("mistral") == Policy()
    assert not read.cluster.is_dry_for("llama-prod")
    assert read.cluster.is_dry_for("llama-test")
    assert read.cluster.approval_for("llama-prod") is Approval.ALL
    assert read.cluster.approval_for("llama-test") is Approval.OFF


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("nonsense = 1", "nonsense"),
        ("[cluster]\naproval = 'off'", "aproval"),
        ("[cluster]\napproval = 'sometimes'", "sometimes"),
        ("[cluster]\ndry_run = 1", "dry_run is 1"),
        ("[budgets]\nnodes_held_percent = 120", "nodes_held_percent"),
        ("[budgets]\nnodes_held_max = 'many'", "budgets"),
        ("[budgets]\nstops_per_hour_max = -1", "stops_per_hour_max"),
        ("[quarantine]\nblames = 0", "blames is 0"),
        ("[quarantine]\nhold_s = 10\nhold_s_max = 5", "hold_s"),
        ("[alerts]\nnode_labels = 'node'", "alerts"),
        ("[policy]\nhung = 1", "hung"),
        ("[policy]\nrestarts_max = -1", "restarts_max"),
        ("[hang]\nnever = 1", "never"),
        ("jobs = 3", "jobs"),
        ("[fabric_probe]\nseconds_max = 5", "seconds_max is 5"),
        ("[fabric_probe]\nbytes_per_s_max = 1", "bytes_per_s_max is 1"),
        ("[fabric_probe]\nper_hour_max = 61", "per_hour_max is 61"),
        ("[[jobs]]\ndry_run = true", "match is None"),
        ("[[jobs]]\nmatch = 'x'\npolicy = { resterts = 1 }", "resterts"),
        ("[[jobs]]\nmatch = 'x'\nbudgets = {}", "budgets"),
    ],
)
def test_a_mistake_is_refused_and_named(text: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse(text)


def test_a_file_that_is_no_toml_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    with pytest.raises(ConfigError, match=r"policy\.toml"):
        read_policy_file(path)
    path.write_bytes(b"\xff = 1")
    with pytest.raises(ConfigError, match=r"policy\.toml is not valid TOML"):
        read_policy_file(path)


# The shipped policy.

SHIPPED = Path(__file__).resolve().parents[4] / "deploy" / "policy.toml"


def switched_on() -> dict[str, Any]:
    """Return the tables of the shipped policy with every setting in force."""
    return msgspec.toml.decode(re.sub(r"(?m)^#(?! )", "", SHIPPED.read_text()))


def test_shipped_policy_is_the_defaults() -> None:
    assert read_policy_file(SHIPPED) == PolicyFile()


def test_shipped_policy_shows_every_key_with_its_default() -> None:
    shown = switched_on()
    jobs, nodes = shown.pop("jobs"), shown.pop("nodes")

    read = parse_policy(shown)

    everything = (PlanStep.RESTART_IN_PLACE, PlanStep.MOVE, PlanStep.SHRINK)
    assert read.cluster == ClusterPolicy()
    assert read.policy == replace(Policy(), allow=dict.fromkeys(Kind, everything))
    for table, kind in (
        ("budgets", Budgets),
        ("quarantine", Quarantine),
        ("alerts", AlertRules),
        ("fabric_probe", ProbeRules),
    ):
        assert list(shown[table]) == [one.name for one in fields(kind)], table
    names = [one.name for one in fields(Policy) if one.name != "hung"]
    assert list(shown["policy"]) == names
    assert list(shown["hang"]) == [one.name for one in fields(HungLimits)]
    assert list(shown["cluster"]) == ["approval", "dry_run", "observe", "single_tenant"]
    assert list(jobs[0]) == ["match", "approval", "dry_run", "observe", "policy", "hang"]
    assert nodes == [{"match": "gpu-new-*", "observe": False}]
    assert list(shown["people"]) == [one.name for one in fields(PeopleRules)]


def test_example_of_jobs_in_the_shipped_policy_says_what_it_seems_to() -> None:
    read = parse_policy(switched_on())

    policy = read.policy_for("production-7")
    assert (policy.restarts_max, policy.hung.floor_s) == (20, 600.0)
    assert policy.allow[Kind.RANK_SLOW] == ()
    assert read.cluster.approval_for("production-7") is Approval.MOVES


def test_observe_mode_is_for_the_cluster_for_jobs_and_for_nodes_and_the_last_that_names_a_job_counts() -> (
    None
):
    read = parse_policy(
        {
            "cluster": {"observe": True},
            "jobs": [
                {"match": "trusted-*", "observe": False},
                {"match": "trusted-new", "observe": True},
            ],
            "nodes": [
                {"match": "gpu-new-*", "observe": True},
                {"match": "gpu-new-7", "observe": False},
            ],
        }
    ).cluster

    assert read.why_observed("llama") == "[cluster] observe"
    assert read.why_observed("trusted-1") is None
    assert read.why_observed("trusted-new") == "[[jobs]] trusted-new"
    assert read.why_observed("trusted-1", ["gpu-1", "gpu-new-3"]) == "[[nodes]] gpu-new-*"
    assert read.why_observed("trusted-1", ["gpu-new-7"]) is None
    assert read.observed_scopes() == ("the cluster", "not jobs trusted-*", "nodes gpu-new-*")


def test_a_rule_for_nodes_without_a_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match="match is missing"):
        parse_policy({"nodes": [{"observe": True}]})

"""The list of metrics: its rules, its documentation, and Prometheus' own opinion of it."""

import re

import pytest

from agent.assembly.families import FAMILIES
from agent.metrics import MetricType


@pytest.mark.parametrize("name", FAMILIES)
def test_metric_follows_the_naming_rules(name: str) -> None:
    family = FAMILIES[name]

    # process_*: Prometheus' own names for any process
    assert re.fullmatch(r"(rankmend_[a-z0-9]+|process)(_[a-z0-9]+)+", name)
    assert name.endswith("_total") == (family.type is MetricType.COUNTER)
    if family.unit and " " not in family.unit:
        assert f"_{family.unit}" in name
    assert not {"job", "instance", "node", "le", "quantile"} & set(family.labels)
    assert family.help.endswith(".")

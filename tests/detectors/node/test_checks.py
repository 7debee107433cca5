"""The policy table: what it refuses by name, and that the shipped one is complete and sound."""

import contextlib
import re
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from agent.findings.policy_files import known_metrics, load_checks, load_policy
from detectors.finding import Action, Severity
from detectors.node.check_table import MetricShape, compile_table, override, parse_rows
from detectors.node.checks import Check, Comparison, Measure, for_one_scan
from rankmend.errors import ConfigError
from tests.support.agent import ROOT

KNOWN = {
    "rankmend_x_celsius": MetricShape(("gpu", "uuid"), is_counter=False),
    "rankmend_x_max_celsius": MetricShape(("gpu", "uuid"), is_counter=False),
    "rankmend_x_total": MetricShape(("gpu", "uuid", "kind"), is_counter=True),
    "rankmend_limit_celsius": MetricShape(("sensor",), is_counter=False),
}
ROW = {
    "component": "gpu",
    "metric": "rankmend_x_celsius",
    "condition": "value > 95",
    "severity": "warning",
    "action": "watch",
    "summary": "GPU {gpu} is at {value:.0f} C, limit {limit:.0f}",
    "source": "a data sheet",
}
COUNTING = {**ROW, "metric": "rankmend_x_total", "condition": "increase > 0", "window_s": 60}


def compile_row(**changes: object) -> Check:
    row = {name: value for name, value in {**ROW, **changes}.items() if value is not None}
    (check,) = compile_table({"hot": row}, KNOWN, "t.toml")
    return check


def test_row_becomes_a_check() -> None:
    check = compile_row(bad_looks=3, of_looks=5, when=["rankmend_x_max_celsius > 0"])

    assert (check.name, check.severity, check.action) == ("hot", Severity.WARNING, Action.WATCH)
    assert (check.condition.comparison, check.condition.limit) == (Comparison.ABOVE, 95.0)
    assert (check.persistence.bad_looks, check.persistence.of_looks) == (3, 5)
    assert check.by == ("gpu", "uuid")
    assert check.metrics == ("rankmend_x_celsius", "rankmend_x_max_celsius")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric": "rankmend_y_celsius"}, "no metric 'rankmend_y_celsius'"),
        ({"condition": "value > rankmend_y_celsius"}, "no metric 'rankmend_y_celsius'"),
        ({"when": ["rankmend_y > 1"]}, "no metric 'rankmend_y'"),
        ({"condition": "value >> 3"}, "condition 'value >> 3' is not"),
        ({"condition": "value > 3 or 1"}, "condition 'value > 3 or 1' is not"),
        ({"condition": "increase > 3", "window_s": 60}, "rankmend_x_celsius is not a counter"),
        ({**COUNTING, "window_s": 0}, "window_s is 0"),
        ({**COUNTING, "window_s": 1e9}, "window_s is 1000000000"),
        ({"window_s": 60}, "window_s and counts_from_zero need an increase or a rate"),
        ({"condition": "value > rankmend_limit_celsius"}, "has no label 'sensor'"),
        ({"when": ["rankmend_x_celsius"]}, "when 'rankmend_x_celsius' is not"),
        ({"where": {"port": "1"}}, "has no label 'port'"),
        ({"where": {"gpu": "("}}, "missing )"),
        ({"by": ["port"]}, "has no label 'port'"),
        ({"severity": "bad"}, "severity"),
        ({"action": "pray"}, "action"),
        ({"component": "soul"}, "component"),
        ({"summary": ""}, "summary of 0 characters"),
        ({"summary": "{port} is hot"}, "summary names 'port'"),
        ({"summary": "{value.__class__}"}, "summary names 'value.__class__'"),
        ({"summary": "{value!r}"}, "no conversion !r"),
        ({"summary": "{value:99999d}"}, "formats 'value' by '99999d'"),
        ({"summary": "{gpu:.3f}"}, "formats 'gpu'"),
        ({"summary": "{value"}, "summary '{value'"),
        ({"bad_looks": 3, "of_looks": 2}, "3 bad looks of 2"),
        ({"clear_looks": 0}, "0 looks to clear"),
        ({"latch": "forever"}, "latch"),
        ({"reboots_max": 0}, "reboots_max is 0"),
        ({"threshold": 3}, "threshold"),
        ({"metric": None}, "metric"),
        ({"enabled": False, "metric": "rankmend_typo"}, "no metric 'rankmend_typo'"),
    ],
)
def test_row_that_would_not_run_is_refused_by_name(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=r"^t\.toml: hot: .*" + re.escape(message)):
        compile_row(**changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[hot]\nmetric = 'x'", "hot: source is missing"),
        ("[hot]\nsource = '  '", "hot: source is missing"),
        ("hot = 1", "hot is not a row"),
        ("['a b']\nsource = 's'", "'a b' is not a check's name"),
        ("[hot\n", "t.toml: "),
        ("[hot]\nsource = 's'\n[hot]\n", "t.toml: "),
    ],
)
def test_table_that_is_none_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_rows(text, "t.toml")


@given(st.text())
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_rows(text, "t.toml")


@given(st.dictionaries(st.sampled_from([*ROW, "when", "by", "where"]), st.text(max_size=40)))
def test_no_row_does_more_than_be_refused(changes: dict[str, str]) -> None:
    with contextlib.suppress(ConfigError):
        compile_row(**changes)


def test_site_changes_single_keys_adds_rows_and_switches_rows_off() -> None:
    shipped = {"hot": ROW, "cold": {**ROW, "condition": "value < 5"}}
    site = {
        "hot": {"condition": "value > 80", "source": "our cooling"},
        "cold": {"enabled": False, "source": "we have no winter"},
        "own": {**ROW, "source": "ours"},
    }

    checks = compile_table(override(shipped, site), KNOWN, "t.toml")

    assert [(check.name, check.condition.text, check.source) for check in checks] == [
        ("hot", "value > 80", "our cooling"),
        ("own", "value > 95", "ours"),
    ]
    assert checks[0].summary == ROW["summary"]


def test_site_file_is_laid_over_the_shipped_table(tmp_path: Path) -> None:
    file = tmp_path / "site.toml"
    file.write_text("[sensor_critical]\naction = 'reboot'\nsource = 'our rooms'\n")

    by_name = {check.name: check for check in load_checks(FAMILIES, file)}

    assert by_name["sensor_critical"].action is Action.REBOOT
    assert len(by_name) == len(load_checks(FAMILIES))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[nothing_of_ours]\nsource = 'x'\n", "nothing_of_ours: "),
        (b"[sensor_critical]\naction = 'reboot'\n", "sensor_critical: source is missing"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_wrong_site_file_is_refused_with_its_name(
    data: bytes, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "site.toml"
    file.write_bytes(data)

    with pytest.raises(ConfigError, match=r"site\.toml.*" + re.escape(message)):
        load_checks(FAMILIES, file)


def test_site_file_that_is_missing_or_huge_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the policy"):
        load_checks(FAMILIES, tmp_path / "none.toml")
    (tmp_path / "huge.toml").write_text("#" * 1_000_001)
    with pytest.raises(ConfigError, match="more than 1000000 bytes"):
        load_checks(FAMILIES, tmp_path / "huge.toml")


def test_one_scan_leaves_out_what_needs_time_and_asks_for_two_looks_at_most() -> None:
    rows = {
        "slow": {**ROW, "bad_looks": 30},
        "growth": COUNTING,
        "event": {**COUNTING, "counts_from_zero": True},
    }

    checks = for_one_scan(compile_table(rows, KNOWN, "t.toml"))

    assert [check.name for check in checks] == ["slow", "event"]
    assert checks[0].persistence.bad_looks == checks[0].persistence.of_looks == 2
    assert checks[1].persistence.bad_looks == 1


def test_a_fault_that_must_last_longer_than_the_scan_is_at_most_a_warning_about_now() -> None:
    before = {check.name: check for check in load_checks(FAMILIES)}
    scanned = {check.name: check for check in for_one_scan(before.values())}
    watched = {check.name: check for check in for_one_scan(before.values(), 10)}

    long = {name for name in scanned if before[name].persistence.bad_looks > 2}
    assert {
        "nic_port_dropped",
        "gpu_fabric_not_joined",
        "gpu_silent",
        "gpu_count_low",
        "nic_slow",
    } <= long
    for name, check in scanned.items():
        is_weaker = name in long and before[name].severity is Severity.CRITICAL
        assert check.severity is (Severity.WARNING if is_weaker else before[name].severity)
        assert check.action is (Action.WATCH if is_weaker else before[name].action)
        assert check.summary == ("now: " if is_weaker else "") + before[name].summary
    assert watched["gpu_nvlink_down"].severity is Severity.CRITICAL
    assert watched["gpu_nvlink_down"].persistence.bad_looks == 10
    assert watched["nic_port_dropped"].severity is Severity.WARNING


@pytest.mark.parametrize("check", load_checks(FAMILIES), ids=lambda check: check.name)
def test_no_shipped_summary_tells_a_duration_that_nobody_measured(check: Check) -> None:
    has_duration = re.search(r"\b\d+ ?(?:s|min|minutes?|hours?)\b", check.summary)

    assert not has_duration or check.window_s, check.summary


@pytest.mark.parametrize("check", load_checks(FAMILIES), ids=lambda check: check.name)
def test_shipped_row_says_where_its_figures_come_from(check: Check) -> None:
    assert len(check.source) > 15
    assert check.summary[0] != " "
    assert not check.summary.endswith(".")
    if check.severity is Severity.CRITICAL:
        assert check.action is not Action.NONE
    if check.condition.measure is Measure.RATE:
        assert check.window_s >= 10, "a rate over less than ten samples is noise"


def test_shipped_check_of_an_event_has_no_severity_and_action_of_its_own() -> None:
    text = (ROOT / "detectors" / "data" / "node_policy.toml").read_text()

    both = [
        name
        for name, row in parse_rows(text, "node_policy.toml").items()
        if "event" in row and ("severity" in row or "action" in row)
    ]

    assert both == []


def test_check_takes_severity_and_action_from_its_event_and_a_sites_word_wins() -> None:
    row = {key: value for key, value in ROW.items() if key not in ("severity", "action")}
    events = load_policy()

    (check,) = compile_table({"hot": {**row, "event": "xid 79"}}, KNOWN, "t", events)
    site = {**row, "event": "xid 79", "action": "watch"}
    (changed,) = compile_table({"hot": site}, KNOWN, "t", events)

    assert (check.severity, check.action) == (Severity.CRITICAL, Action.REBOOT)
    assert (changed.severity, changed.action) == (Severity.CRITICAL, Action.WATCH)
    with pytest.raises(ConfigError, match="t: hot: no row for the event 'xid x'"):
        compile_table({"hot": {**row, "event": "xid x"}}, KNOWN, "t", events)
    with pytest.raises(ConfigError, match="t: hot: severity and action are missing, and no event"):
        compile_table({"hot": row}, KNOWN, "t", events)
    beside = {"beside": ["cold"], "beside_action": "drain"}
    with pytest.raises(ConfigError, match="t: hot: beside names 'cold', which is not a check"):
        compile_table({"hot": {**ROW, **beside}}, KNOWN, "t", events)


def test_every_action_that_overrules_is_a_drivers() -> None:
    overruling = [check for check in load_checks(FAMILIES) if check.overrules]

    assert all(check.metric == "rankmend_gpu_recovery_action_id" for check in overruling)


def test_every_metric_of_the_registry_is_known_with_its_labels() -> None:
    known = known_metrics(FAMILIES)

    assert known.keys() == FAMILIES.keys()
    assert known["rankmend_disk_size_bytes"] == MetricShape(("device", "mount"), is_counter=False)
    assert known["rankmend_host_cpu_seconds_total"].is_counter


def test_documented_example_of_a_site_file_is_accepted(tmp_path: Path) -> None:
    text = (ROOT / "docs/operate/findings.md").read_text()
    example = re.search(
        r"    \[gpu_memory_hot\].*?measured: 0\.01 s on a good day\"\n", text, re.DOTALL
    )
    assert example is not None
    (tmp_path / "site.toml").write_text(textwrap.dedent(example.group(0)))

    by_name = {check.name: check for check in load_checks(FAMILIES, tmp_path / "site.toml")}

    assert by_name["gpu_memory_hot"].condition.limit == 95
    assert "ethernet_paused" not in by_name
    assert by_name["scratch_slow"].persistence.of_looks == 10

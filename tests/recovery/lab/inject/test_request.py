import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rankmend.errors import ConfigError
from recovery.lab.inject.fault import FACTS, FaultKind, TargetKind
from recovery.lab.inject.request import (
    FaultOptions,
    FaultRequest,
    FaultTarget,
    check_request,
    parse_target,
)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("node", FaultTarget(TargetKind.NODE)),
        ("rank:a/b/3", FaultTarget(TargetKind.RANK, "a/b", 3)),
        ("pid:4711", FaultTarget(TargetKind.RANK, "", 4711)),
        ("path:/scratch", FaultTarget(TargetKind.PATH, "/scratch")),
        ("interface:eth1.7", FaultTarget(TargetKind.INTERFACE, "eth1.7")),
        ("service:agent", FaultTarget(TargetKind.SERVICE, "agent")),
        ("service:postgresql/77", FaultTarget(TargetKind.SERVICE, "postgresql", 77)),
        ("service:launcher/llama", FaultTarget(TargetKind.SERVICE, "launcher/llama")),
    ],
)
def test_target_is_read(text: str, target: FaultTarget) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "rank:",
            "rank:llama",
            "rank:/3",
            "rank:llama/-1",
            "rank:llama/x",
            "pid:1",
            "pid:0x10",
        ),
        *("path:scratch", "path:", "path:/a\0b", "interface:", "interface:a b", "interface:-x"),
        *(
            "interface:eth0;reboot",
            'interface:e"',
            "service:sshd",
            "service:launcher",
            "gpu:0",
            "host:a",
        ),
    ],
)
def test_hostile_target_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(ConfigError, match="--on"):
        parse_target(text)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=60))
def test_any_text_is_a_target_or_a_clear_error(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_target(text)


@pytest.mark.parametrize(
    ("fault", "target", "options", "said"),
    [
        (FaultKind.KILL, "node", {}, "kill is made on a rank, not on node"),
        (FaultKind.EXIT_CODE, "rank:a/0", {}, "needs --code"),
        (FaultKind.EXIT_CODE, "rank:a/0", {"code": 256}, "--code 256: want 1 to 255"),
        (FaultKind.LOSS, "interface:e", {"share": 1.5}, "--share 1.5"),
        (FaultKind.LOSS, "interface:e", {"share": float("nan")}, "--share nan"),
        (FaultKind.PARTITION, "node", {}, "at least one --peer"),
        (
            FaultKind.PARTITION,
            "node",
            {"peers": ("1.2.3.4; flush ruleset",)},
            "is not an IP address",
        ),
        (FaultKind.XID, "node", {"code": 79, "device": "3b\nx"}, "want a PCI address"),
        (FaultKind.GPU_STUB, "path:/x", {"answer": "a b\nc=1"}, "want KEY=VALUES"),
        (FaultKind.KILL, "rank:a/0", {"to_kernel": True}, "--kmsg is for xid and sxid"),
    ],
)
def test_option_out_of_range_is_refused(
    fault: FaultKind, target: str, options: dict[str, object], said: str
) -> None:
    request = FaultRequest(fault, parse_target(target), 30.0, FaultOptions(**options))  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        check_request(request)


@pytest.mark.parametrize("for_s", [0.0, -1.0, 86_400.1, float("inf"), float("nan")])
def test_every_fault_has_an_end(for_s: float) -> None:
    with pytest.raises(ConfigError, match="--for"):
        check_request(FaultRequest(FaultKind.KILL, parse_target("pid:7"), for_s, FaultOptions()))


def test_every_fault_is_described() -> None:
    assert set(FACTS) == set(FaultKind)

"""A log that says that messages are missing proves no silence."""

import pytest

from detectors.kernel.event_groups import KernelLogState
from detectors.kernel.left_out import LITERALS, LogGap, find_left_out
from detectors.kernel.log import parse_line
from detectors.kernel.rules.matcher import Matcher

# As posted: openbmc and systemd trackers, Red Hat's solution 1417483, kernel mailing lists and bug reports.
REPORTED = [
    ("[  180.769204] quiet_error: 48 callbacks suppressed", LogGap.RATE, 48),
    (
        "2024-06-06T10:26:40.747576+08:00 kernel: gmc_v10_0_process_interrupt: 6 callbacks suppressed",
        LogGap.RATE,
        6,
    ),
    ("[2122311.383389] warn_alloc: 3 callbacks suppressed", LogGap.RATE, 3),
    (
        "Dec  3 21:03:12 tytus kernel: [ 5293.608397] __ratelimit: 7 callbacks suppressed",
        LogGap.RATE,
        7,
    ),
    ("[ 1470.134845] net_ratelimit: 23807 callbacks suppressed", LogGap.RATE, 23807),
    ("May 29 03:24:48 k8snode234 kernel: print_req_error: 546 callbacks suppressed", LogGap.RATE, 546),
    ("Dec 09 03:24:51 ubuntu systemd-journald[363]: Missed 81 kernel messages", LogGap.LOST, 81),
    (
        "Apr  7 11:50:47 localhost rsyslogd-2177: imjournal: 406 messages lost due to rate-limiting",
        LogGap.LOST,
        406,
    ),
    (
        "Oct 28 02:07:57 localhost systemd-journal[1864]: /dev/kmsg buffer overrun, some messages lost.",
        LogGap.LOST,
        1,
    ),
    (
        "Oct 28 02:07:57 localhost systemd-journal[1864]: Suppressed 97 messages from /",
        LogGap.LOST,
        97,
    ),
    (
        "Mar  2 04:00:01 n1 systemd-journald[411]: Suppressed 12 messages from nvidia-fabricmanager.service",
        LogGap.LOST,
        12,
    ),
    (
        "Mar  2 04:00:01 n1 journal: Suppressed 8 messages from /system.slice/rsyslog.service",
        LogGap.LOST,
        8,
    ),
    (
        "Jan 9 09:18:07 server1 journal: Suppressed 7124 messages from /system.slice/named.service",
        LogGap.SERVICE,
        7124,
    ),
    ("** 45 printk messages dropped ** [   12.5] usb 1-1: new device", LogGap.LOST, 45),
]  # fmt: skip
NOT_MISSING = [
    "[   12.5] app: Suppressed 9 messages from named.service",
    "Apr  7 11:50:35 localhost rsyslogd-2177: imjournal: begin to drop messages due to rate-limiting",
    "Apr 08 05:18:37 witherspoon systemd-journald[821]: Forwarding to syslog missed 1 messages.",
    "Nov 17 03:11:48 ubuntu app[7]: net_ratelimit: 23807 callbacks suppressed",
    "[   12.5] app: Missed 81 kernel messages of my own",
]


@pytest.mark.parametrize(("line", "why", "count"), REPORTED, ids=str)
def test_a_line_says_how_many_messages_are_missing_and_why(
    line: str, why: LogGap, count: int
) -> None:
    assert find_left_out(parse_line(line)) == (why, count)


@pytest.mark.parametrize("line", NOT_MISSING, ids=str)
def test_a_line_that_looks_alike_says_nothing_of_missing_messages(line: str) -> None:
    assert find_left_out(parse_line(line)) is None


def test_a_process_cannot_say_in_the_kernels_log_that_the_kernel_left_something_out() -> None:
    user, kernel = (
        parse_line(f"{place},12,5,-;net_ratelimit: 9 callbacks suppressed") for place in (14, 6)
    )

    assert find_left_out(user) is None
    assert find_left_out(kernel) == (LogGap.RATE, 9)


def test_what_a_log_says_is_missing_is_counted_beside_its_events_and_outlives_a_restart() -> None:
    state = KernelLogState()

    state.feed_all(parse_line(line) for line, _why, _count in REPORTED)
    again = KernelLogState(old=state.snapshot())

    assert state.lost == 81 + 406 + 1 + 97 + 12 + 8 + 45
    assert state.suppressed_services == 7124
    assert state.suppressed == again.suppressed == 48 + 6 + 3 + 7 + 23807 + 546
    assert (state.events, state.untrusted) == (0, 0)


def test_no_line_about_missing_messages_is_an_event_and_each_holds_what_the_sieve_looks_for() -> (
    None
):
    for line, _why, _count in REPORTED:
        assert Matcher().match(parse_line(line)) is None
        assert any(literal in line for literal in LITERALS)

"""What a log is read by before rules see it: the sieve leaves out what they would only count."""

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.kernel.event_groups import KernelLogState
from detectors.kernel.log import parse_log
from detectors.kernel.rules.fabric_manager import FABRIC_RULES
from detectors.kernel.rules.matcher import LITERALS, RULES
from rankmend.cli.checks.compressed_log import LINE_BYTES_MAX, Sieve, lines_of
from tests.support.kernel_log_forms import FORMS

DATASETS = os.environ.get("RANKMEND_DATASETS")
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python3, GPU has fallen off the bus."
STAMPS = (
    *("[   12.345678] ", "Feb 23 16:24:18 node1 kernel: ", "3,12,5000001,-;", "<3>[ 12.5] "),
    *("Dec 31 23:59:59 node1 kernel: [ 5.5] ", "2025-02-23T16:24:18Z node1 kernel: ", ""),
    *(
        "Feb 23 16:24:18 node1 root[12]: ",
        "2025-12-31T23:59:59.1Z stderr F ",
        "\x1b[32m[ 1.5] \x1b[0m",
    ),
    "[Jul 23 2024 07:53:55] [ERROR] [tid 841] ",
)
LINES = (
    *(text for text, _event in FORMS),
    *("eth0: renamed from veth1a2b3c", "audit: type=1400 audit(17.1:5): x", "usb 1-1: new device"),
    *("detected NVSwitch fatal error 20034 on fid 0", "plain words", "x\0y", ""),
    "NVRM: The NVIDIA GPU 0000:4b:00.0",
    "NVRM: fallen off the bus and is not responding to commands.",
    "NVRM: Xi\0d (PCI:0000:3b:00): 79, a NUL in the middle",
    "N\\x56RM: \\x4eVRM: Xid (PCI:0000:3b:00): 48, escaped",
)
ENDS = (
    "\n",
    "\r\n",
    "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n",
    "\n               NVRM: more\n",
)


def read(data: bytes, *, piece_bytes: int | None) -> tuple[object, ...]:
    """Return all that a log's verdict rests on, read as it is or through the sieve."""
    state = KernelLogState()
    if piece_bytes is None:
        lines = lines_of(io.BytesIO(data))
    else:
        sieve = Sieve(
            LITERALS,
            keeps_all=lambda: state.kind is None,
            skip=state.skip,
            piece_bytes=piece_bytes,
        )
        lines = sieve.lines_of(io.BytesIO(data))
    state.feed_all(parse_log(lines))
    counts = (state.records, state.events, state.untrusted, state.missed, state.quoted)
    return (*counts, state.kind, state.is_no_log, state.groups())


@given(
    st.lists(
        st.tuples(st.sampled_from(STAMPS), st.sampled_from(LINES), st.sampled_from(ENDS)),
        max_size=30,
    ),
    st.integers(min_value=1, max_value=400),
    st.booleans(),
)
def test_any_lines_mean_the_same_with_and_without_the_sieve(
    parts: list[tuple[str, str, str]], piece_bytes: int, has_end: bool
) -> None:
    text = "".join(stamp + line + end for stamp, line, end in parts)
    data = (text if has_end else text.rstrip("\n")).encode()

    assert read(data, piece_bytes=piece_bytes) == read(data, piece_bytes=None)


@given(st.binary(max_size=400), st.integers(min_value=1, max_value=64))
def test_any_bytes_mean_the_same_with_and_without_the_sieve(data: bytes, piece_bytes: int) -> None:
    log = b"[  1.5] Linux version 6.1\n" + data

    assert read(log, piece_bytes=piece_bytes) == read(log, piece_bytes=None)


@pytest.mark.skipif(DATASETS is None, reason="RANKMEND_DATASETS is unset")
@pytest.mark.parametrize("piece_bytes", [100, 4_096, 262_144])
def test_recorded_logs_and_what_they_are_put_together_to_mean_the_same(piece_bytes: int) -> None:
    logs = [
        path.read_bytes()
        for path in sorted((Path(str(DATASETS)) / "kernel-logs").rglob("*"))
        if path.is_file() and path.suffix != ".md"
    ]
    assert logs

    for data in (*logs, b"".join(logs), b"".join(reversed(logs))):
        assert read(data, piece_bytes=piece_bytes) == read(data, piece_bytes=None)


@pytest.mark.parametrize("length", [-1, 0, 1, LINE_BYTES_MAX])
def test_a_line_at_its_bound_means_the_same_and_the_next_is_found(length: int) -> None:
    long_line = b"x" * (LINE_BYTES_MAX + length)
    data = b"[ 1.5] a\n" + long_line + b"\n[ 2.5] " + XID.encode() + b"\n" + long_line

    for piece_bytes in (1_000, 65_536, 262_144):
        assert read(data, piece_bytes=piece_bytes) == read(data, piece_bytes=None)


def test_lines_that_differ_in_their_numbers_only_are_left_out_unread() -> None:
    skipped: list[int] = []
    sieve = Sieve(LITERALS, keeps_all=lambda: False, skip=skipped.append, piece_bytes=200)
    dull = "".join(f"[ {n}.5] eth{n}: renamed from veth{n:x}\n" for n in range(1_000))

    lines = list(sieve.lines_of(io.BytesIO(f"{dull}[ 9.5] {XID}\n{dull}".encode())))

    assert [line.strip() for line in lines] == [f"[ 9.5] {XID}"]
    assert sum(skipped) == 2_000


def test_each_documented_form_holds_one_of_the_texts_that_the_sieve_looks_for() -> None:
    needles = [text for text in LITERALS if text]

    lost = [text for text, _event in FORMS if not any(needle in text for needle in needles)]

    assert lost == []
    assert all(rule.sought for rule in (*RULES, *FABRIC_RULES))

"""`rankmend check log`: a recorded log judged for people and scripts."""

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from rankmend.cli import cli
from rankmend.cli.checks.compressed_log import lines_of
from tests.support.agent import ROOT
from tests.support.eventually import DEADLINE_S

pytestmark = pytest.mark.process

DATASETS = os.environ.get("RANKMEND_DATASETS")
LOST = "[  12.5] NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python3, GPU has fallen off the bus.\n"
OOM = "[  13.5] Out of memory: Killed process 812 (python3) total-vm:1kB\n"
LIMITED = (
    "[   1.5] mlx5_core 0000:5e:00.0: 63.0 Gb/s available PCIe bandwidth, limited by "
    "8.0 GT/s PCIe x8 link at 0000:5d:00.0\n"
)


def check_log(*arguments: str, text: str | bytes = "") -> Result:
    data = text.encode() if isinstance(text, str) else text
    return CliRunner().invoke(cli, ["check", "log", *arguments], input=data)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("[  1.0] Linux version 6.1\n", 0),
        (LIMITED, 0),  # shown, and nothing to do
        (OOM, 1),
        (LOST, 2),
        (OOM + LOST, 2),
    ],
)
def test_exit_code_says_how_bad_it_is(text: str, code: int) -> None:
    assert check_log("-", text=text).exit_code == code


def test_json_holds_all_that_a_script_needs(tmp_path: Path) -> None:
    path = tmp_path / "dmesg"
    path.write_text(LIMITED + LOST + LOST.replace("12.5", "14.5"))

    result = check_log(str(path), "--json")

    report = json.loads(result.stdout)
    finding = report["findings"][0]
    assert {name: report[name] for name in ("records", "events", "untrusted")} == {
        "records": 3,
        "events": 3,
        "untrusted": 0,
    }
    assert [one["severity"] for one in report["findings"]] == ["critical", "info"]
    assert finding | {"reason": "", "evidence": []} == {
        "kind": "xid",
        "code": 79,
        "name": "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "meaning": "GPU has fallen off the bus",
        "device": "0000:3b:00.0",
        "sub_codes": [],
        "severity": "critical",
        "action": "reboot",
        "blames_hardware": True,
        "count": 2,
        "first": "12.5",
        "last": "14.5",
        "first_s": 12.5,
        "last_s": 14.5,
        "pid": 7,
        "process": "python3",
        "cgroup": "",
        "reason": "",
        "evidence": [],
    }
    assert finding["evidence"] == [LOST[9:].strip()]
    assert "RESTART_BM" in finding["reason"]


def test_table_shows_what_where_how_often_when_and_what_to_do() -> None:
    result = check_log("-", text=LOST + LOST.replace("12.5", "14.5"))

    flat = " ".join(result.stdout.split())
    for part in ("critical", "XID 79", "0000:3b:00.0", "12.5 to 14.5", "reboot", "2 events"):
        assert part in flat


def test_markup_in_a_log_is_shown_as_it_is() -> None:
    text = "[  1.0] nvme nvme0: I/O tag 1 (1) QID 4 timeout, [bold]\n" + OOM.replace(
        "(python3)", "([red]x[/red])"
    )

    result = check_log("-", text=text)

    assert result.exit_code == 1
    assert result.exception is None or isinstance(result.exception, SystemExit)


def test_lines_of_processes_are_not_believed_but_mentioned() -> None:
    text = "Feb 23 16:24:18 node1 root[12]: " + LOST[9:]

    plain, trusting = check_log("-", text=text), check_log("-", "--trust-user", text=text)

    assert plain.exit_code == 0
    assert "1 more ignored" in plain.stdout
    assert trusting.exit_code == 2


def test_rows_of_the_site_decide(tmp_path: Path) -> None:
    path = tmp_path / "site.csv"
    path.write_text(
        "table,code,name,severity,action,hardware,source,meaning\n"
        "log,oom_kill,OOM,critical,drain,no,our site,A process was killed\n"
    )

    assert check_log("-", "--policy", str(path), text=OOM).exit_code == 2


@pytest.mark.parametrize("name", ["none", "."])
def test_what_can_not_be_read_is_neither_good_nor_bad(tmp_path: Path, name: str) -> None:
    result = check_log(str(tmp_path / name))

    assert result.exit_code == 64
    assert str(tmp_path) in result.stderr


def test_a_wrong_site_table_is_refused_before_the_log_is_read(tmp_path: Path) -> None:
    path = tmp_path / "site.csv"
    path.write_text("nonsense\n")

    result = check_log("-", "--policy", str(path), text=LOST)

    assert result.exit_code == 64
    assert str(path) in result.stderr


def test_a_line_without_end_is_cut_and_the_next_is_read() -> None:
    result = check_log("-", "--json", text="x" * 300_000 + "\n" + LOST)

    report = json.loads(result.stdout)
    assert (report["records"], report["events"]) == (2, 1)


@given(st.binary(max_size=500))
def test_no_bytes_make_it_fail(data: bytes) -> None:
    assert check_log("-", text=data).exit_code in (0, 1, 2, 64)  # 64: it seems to be packed


def test_800_000_lines_through_a_pipe_are_one_finding() -> None:
    line = "3,{},{},-;NVRM: Xid (PCI:0000:3b:00): 95, pid={}, name=python3, Uncontained ECC error\n"
    process = subprocess.Popen(
        [sys.executable, "-m", "rankmend.cli", "check", "log", "-", "--json"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    for start in range(0, 800_000, 10_000):
        lines = (line.format(n, n * 10, n % 29) for n in range(start, start + 10_000))
        process.stdin.write("".join(lines).encode())
    output, _errors = process.communicate(timeout=DEADLINE_S)

    (finding,) = json.loads(output)["findings"]
    assert (finding["code"], finding["count"]) == (95, 800_000)
    assert process.returncode == 2


@pytest.mark.skipif(DATASETS is None, reason="RANKMEND_DATASETS is unset")
def test_recorded_gsp_timeout_asks_for_a_reset_of_one_gpu() -> None:
    path = Path(str(DATASETS)) / "kernel-logs" / "dmesg-with-xid-119.log"

    result = check_log(str(path), "--json")

    worst = json.loads(result.stdout)["findings"][0]
    assert result.exit_code == 2
    assert (worst["code"], worst["device"], worst["count"], worst["action"]) == (
        119,
        "0000:9b:00.0",
        5,
        "reset_gpu",
    )
    assert (worst["first"], worst["last"]) == (
        "Sun Feb 23 16:24:18 2025",
        "Sun Feb 23 16:30:13 2025",
    )


PACKED = {
    "gzip": gzip.compress(LOST.encode()),
    "xz": lzma.compress(LOST.encode()),
    "bzip2": bz2.compress(LOST.encode()),
}


@pytest.mark.parametrize("packer", PACKED)
def test_rotated_log_is_read_whatever_its_name(tmp_path: Path, packer: str) -> None:
    path = tmp_path / "kern.log.2"
    path.write_bytes(PACKED[packer])

    from_file, from_pipe = check_log(str(path)), check_log("-", text=PACKED[packer])

    assert "XID 79" in " ".join(from_file.stdout.split())
    assert (from_file.exit_code, from_pipe.exit_code) == (2, 2)


@pytest.mark.parametrize("packer", ["gzip", "xz"])
def test_rotated_logs_that_were_put_together_are_read_to_the_end(packer: str) -> None:
    result = check_log("-", "--json", text=PACKED[packer] * 3)

    assert json.loads(result.stdout)["records"] == 3


@pytest.mark.parametrize("packer", PACKED)
def test_packed_log_that_is_cut_off_or_damaged_is_refused(packer: str) -> None:
    data = PACKED[packer]

    cut, damaged = check_log("-", text=data[:-12]), check_log("-", text=data[:20] + b"x" * 60)

    assert (cut.exit_code, damaged.exit_code) == (64, 64)
    assert "compressed data" in cut.stderr
    assert "compressed data" in damaged.stderr


@pytest.mark.parametrize("packer", PACKED)
def test_what_a_packed_log_may_grow_to_is_bounded(packer: str) -> None:
    module = {"gzip": gzip, "xz": lzma, "bzip2": bz2}[packer]
    bomb = module.compress(b"x" * 5_000_000)  # type: ignore[attr-defined]

    with pytest.raises(ValueError, match="more than 1000000 bytes"):
        list(lines_of(io.BytesIO(bomb), unpacked_bytes_max=1_000_000))

    assert len(bomb) < 10_000


def test_xz_that_asks_for_too_much_memory_is_refused() -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 256 << 20, "preset": 0}]
    greedy = lzma.compress(LOST.encode(), filters=filters)

    result = check_log("-", text=greedy)

    assert result.exit_code == 64
    assert "Memory usage limit" in result.stderr


def test_log_packed_by_zstd_is_refused_with_the_way_out() -> None:
    result = check_log("-", text=b"\x28\xb5\x2f\xfd\x00\x00")

    assert result.exit_code == 64
    assert "zstd -dc FILE | rankmend check log -" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        "step 100 loss 2.31\nstep 101 loss 2.30\n",
        "2025-12-31T23:59:59.1Z stdout F step 100 loss 2.31\n",
        "name,value\na,1\n",
    ],
    ids=["training", "container", "table"],
)
def test_a_file_that_is_no_kernel_log_is_not_called_fit(text: str) -> None:
    result = check_log("-", text=text)

    assert result.exit_code == 64
    assert "no line has the form of a kernel log" in result.output


def test_an_xid_in_an_unknown_form_is_counted_and_the_file_is_not_called_fit() -> None:
    text = "[1.0] ok\n[2.0] NVRM: Xid (unknown form 79\n"

    result = check_log("-", text=text)

    assert result.exit_code == 64
    assert "1 line with an XID not judged" in " ".join(result.output.split())
    assert check_log("-", text="[1.0] ok\n").exit_code == 0


def test_a_log_that_lost_messages_is_not_called_fit() -> None:
    lost = "Dec 09 03:24:51 n1 systemd-journald[363]: Missed 81 kernel messages\n"
    limited = "Dec 09 03:24:51 n1 kernel: net_ratelimit: 12 callbacks suppressed\n"

    service = "Dec 09 03:24:51 n1 systemd-journald[363]: Suppressed {} messages from {}.service\n"
    kernels = "Dec 09 03:24:50 n1 kernel: eth0: link up\n"
    own, others = (
        check_log("-", text=kernels + service.format(number, unit))
        for number, unit in ((7, "nvidia-fabricmanager"), (9, "named"))
    )

    not_known, known = check_log("-", text=lost), check_log("-", text=limited)

    assert (not_known.exit_code, known.exit_code) == (64, 0)
    assert "81 messages missing by the log's own words" in " ".join(not_known.output.split())
    assert "12 messages left out by the kernel's rate limits" in " ".join(known.output.split())
    assert (own.exit_code, others.exit_code) == (64, 0)
    assert "7 messages missing by the log's own words" in " ".join(own.output.split())
    assert "9 messages of services left out by journald's rate" in " ".join(others.output.split())

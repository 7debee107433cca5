"""`rankmend check parts`: a history that follows serial numbers, and a file for each part to be repaired."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from detectors.formats.site.part_pages import read_findings_journal, read_part_page
from detectors.parts.part_history import (
    EVENTS_MAX,
    STAYS_MAX,
    PartEvent,
    PartHistory,
    PartSeen,
    ToldEvent,
    note_events,
    note_seen,
)
from rankmend.cli import cli
from rankmend.errors import SourceError

GPU = 'rankmend_gpu_info{{gpu="3",uuid="GPU-{0}",pci_bus_id="0000:1b:00.0",model="NVIDIA H100",serial="{0}",vbios="96",inforom="",part="",device="",driver="570",cuda="12"}} 1.0\n'
DISK = """rankmend_disk_health_info{device="nvme0",model="PM9A3",serial="S64",firmware="G"} 1
rankmend_inventory_state_id{kind="disk",device="nvme0",pci_bus_id="0000:41:00.0",identity="S64"} 0
rankmend_inventory_state_id{kind="nic",device="mlx5_0",pci_bus_id="0000:18:00.0",identity="946d:ae03"} 0.0
rankmend_inventory_state_id{kind="nic",device="mlx5_1",pci_bus_id="0000:19:00.0",identity="946d:ae04"} 1.0
rankmend_transceiver_info{device="mlx5_0",standard="QSFP",vendor="ACME \\"X\\"",part="P1",revision="A",serial="T77"} 1
rankmend_disk_health_info{device="sda",model="old",serial="N/A",firmware="1"} 1
"""
ACTIVE = 'rankmend_finding_active{{check="gpu_lost",component="gpu",uuid="GPU-{}",device="",severity="critical",action="replace"}} 1\n'


def journal_line(at: float, change: str, **changes: object) -> str:
    told = {
        "at": at, "change": change, "check": "gpu_row_remap_failed", "severity": "critical", "action": "replace",
        "summary": "a row could not be remapped", "evidence": ["rankmend_gpu_row_remap_failures 1"],
        "labels": {"uuid": "GPU-A1"},
    }  # fmt: skip
    return json.dumps(told | changes) + "\n"


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["check", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def test_a_page_names_parts_with_serial_slot_and_model() -> None:
    seen, events = read_part_page("n1", GPU.format("A1") + DISK + ACTIVE.format("A1"), 5.0)

    assert {(one.key, one.device, one.slot, one.model) for one in seen} == {
        ("gpu-A1", "gpu3", "0000:1b:00.0", "NVIDIA H100"),
        ("disk-S64", "nvme0", "0000:41:00.0", "PM9A3"),
        ("nic-946d:ae03", "mlx5_0", "0000:18:00.0", ""),
        ("transceiver-T77", "mlx5_0", "", 'ACME "X" P1'),
    }
    assert [(one.uuid, one.event.check, one.event.unix_s) for one in events] == [
        ("GPU-A1", "gpu_lost", 5.0)
    ]


def test_a_gpu_that_moves_takes_its_history_along_and_its_slot_begins_anew(tmp_path: Path) -> None:
    pages, findings, orders = (tmp_path / name for name in ("pages", "findings", "orders"))
    pages.mkdir()
    findings.mkdir()
    (pages / "n1").write_text(GPU.format("A1"))
    (pages / "n2").write_text(GPU.format("B2"))
    (findings / "n1.jsonl").write_text(journal_line(1000.0, "raised") + "torn {\n")
    words = ("parts", str(pages), "--findings", str(findings), "--history", str(tmp_path / "h"),
             "--repair", str(orders))  # fmt: skip

    first, told = run(*words)
    order = (orders / "gpu-A1.txt").read_text()
    (pages / "n1").write_text(GPU.format("B2"))
    (pages / "n2").write_text(GPU.format("A1"))
    (findings / "n2.jsonl").write_text(journal_line(2e9, "raised", check="gpu_lost"))
    second, _told = run(*words)
    _code, shown = run("part", "A1", "--history", str(tmp_path / "h"), "--json")
    _other, clean = run("part", "B2", "--history", str(tmp_path / "h"))
    (history,) = json.loads(shown)

    assert (first, second) == (1, 1)
    assert "2 parts, 1 in need of repair, 1 files written" in told
    for line in ("Serial:   A1", "Node:     n1", "Slot:     0000:1b:00.0 gpu3", "NVIDIA H100",
                 "a row could not be remapped", "rankmend_gpu_row_remap_failures 1"):  # fmt: skip
        assert line in order
    assert [one["node"] for one in history["stays"]] == ["n1", "n2"]
    assert [(one["node"], one["check"]) for one in history["events"]] == [
        ("n1", "gpu_row_remap_failed"),
        ("n2", "gpu_lost"),
    ]
    assert "nothing" in clean


def test_findings_of_a_device_belong_to_the_part_that_was_there_at_the_time() -> None:
    def disk(serial: str) -> PartSeen:
        return PartSeen("disk", serial, "n1", "nvme0")

    def event(unix_s: float) -> ToldEvent:
        return ToldEvent(
            PartEvent(unix_s, "n1", "", "raised", f"c{unix_s:g}", "warning", "watch", "slow"),
            "nvme0",
        )

    known = note_seen({}, [disk("old")], 100.0)
    known = note_seen(known, [disk("new")], 200.0)

    found = note_events(known, [event(50.0), event(150.0), event(250.0)])

    assert [one.check for one in found["disk-old"].events] == ["c50", "c150"]
    assert [one.check for one in found["disk-new"].events] == ["c250"]


def test_reading_the_same_again_changes_nothing_but_the_last_sight() -> None:
    told = list(read_findings_journal("n1", journal_line(10.0, "raised")))
    seen, active = read_part_page("n1", GPU.format("A1") + ACTIVE.format("A1"), 20.0)

    once = note_events(note_seen({}, seen, 20.0), [*told, *active])
    twice = note_events(note_seen(once, seen, 30.0), [*told, *active])

    assert once["gpu-A1"].events == twice["gpu-A1"].events
    assert [one.change for one in once["gpu-A1"].events] == ["raised", "seen"]
    assert twice["gpu-A1"].place.last_unix_s == 30.0


def test_a_finding_that_has_ended_asks_for_no_repair(tmp_path: Path) -> None:
    (tmp_path / "n1").write_text(GPU.format("A1"))
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / "n1.jsonl").write_text(journal_line(1.0, "raised") + journal_line(2.0, "ended"))
    words = (
        "parts",
        str(tmp_path / "n1"),
        "--findings",
        str(folder),
        "--repair",
        str(tmp_path / "o"),
    )

    code, _told = run(*words)
    asked, _said = run(*words, "--serial", "A1")
    strange, why = run(*words, "--serial", "Z9")

    assert (code, asked, [one.name for one in (tmp_path / "o").iterdir()]) == (0, 0, ["gpu-A1.txt"])
    assert (strange, "'Z9'" in why) == (64, True)


@pytest.mark.parametrize(
    "body", ["", "{}", "[]", '{"format": "x"}', '{"format": "rankmend-parts-1", "parts": [1]}']
)
def test_a_broken_history_is_named_and_left_alone(tmp_path: Path, body: str) -> None:
    (tmp_path / "n1").write_text(GPU.format("A1"))
    (tmp_path / "h").write_text(body)

    code, told = run("parts", str(tmp_path / "n1"), "--history", str(tmp_path / "h"))

    assert (code, str(tmp_path / "h") in told) == (64, True)
    assert (tmp_path / "h").read_text() == body


def test_names_of_files_can_not_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "n1").write_text(GPU.format("../../etc/x") + ACTIVE.format("../../etc/x"))

    run("parts", str(tmp_path / "n1"), "--repair", str(tmp_path / "o"))

    assert [one.name for one in (tmp_path / "o").iterdir()] == ["gpu-.._.._etc_x.txt"]


@given(st.lists(st.tuples(st.sampled_from("AB"), st.sampled_from(["n1", "n2"])), max_size=200))
def test_history_is_bounded_whatever_moves(moves: list[tuple[str, str]]) -> None:
    known: dict[str, PartHistory] = {}
    for at, (serial, node) in enumerate(moves):
        known = note_seen(known, [PartSeen("gpu", serial, node, "gpu0", uuid=serial)], float(at))
        event = PartEvent(float(at), node, "", "raised", "c", "critical", "replace", "s")
        known = note_events(known, [ToldEvent(event, "gpu0", serial)])

    for history in known.values():
        assert 1 <= len(history.stays) <= STAYS_MAX
        assert len(history.events) <= EVENTS_MAX
        assert all(one.first_unix_s <= one.last_unix_s for one in history.stays)
        assert history.place.node == next(
            node for serial, node in reversed(moves) if serial == history.serial
        )


@given(st.text(max_size=200))
def test_odd_text_is_a_page_and_a_journal_without_parts(text: str) -> None:
    assert read_part_page("n", text, 0.0)[0] == []
    try:
        list(read_findings_journal("n", text))
    except SourceError:
        return

"""Ascend NPUs: what npu-smi prints, parsed; and npu-smi itself, in the form of a script."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.assembly.families import FAMILIES
from agent.metrics import Metric
from agent.plugins import Origin, PluginCollector, PluginContext, check_class
from agent.root_helper.program_runner import Program
from agent.root_helper.questions import ProgramOutcome, ProgramResult
from agent.vendors.ascend import AscendCollector, parse_ecc, parse_info
from rankmend.clock import SystemClock
from rankmend.errors import NoSourceError, SourceError
from tests.support.agent import PATIENT, ROOT, values_of

pytestmark = pytest.mark.process

SAMPLES = ROOT / "tests" / "fixtures" / "ascend"
MIB = 1 << 20


def sample(name: str) -> str:
    return (SAMPLES / f"{name}.txt").read_text()


def make_context(is_live: bool = True) -> PluginContext:
    return PluginContext(Path("/proc"), Path("/sys"), is_live, SystemClock())


class FakeSmi:
    """Answers by arguments."""

    def __init__(self, **answers: str) -> None:
        self.answers = answers

    def __call__(self, program: Program, deadline_s: float) -> ProgramResult:
        key = "_".join(argument.strip("-") for argument in program.arguments)
        if key not in self.answers:
            return ProgramResult("npu-smi", ProgramOutcome.FAILED, error="it took too long")
        return ProgramResult("npu-smi", ProgramOutcome.ANSWERED, 0, self.answers[key])


def collect(**answers: str) -> dict[str, float]:
    """Return what the collector gives through the check that every plugin goes through."""
    families = check_class("ascend", AscendCollector, FAMILIES)
    collector = PluginCollector(
        Origin("ascend", "rankmend", "1", False),
        lambda: AscendCollector(make_context(), FakeSmi(**answers)),
        30.0,
        families,
    )
    metrics: list[Metric] = list(collector.collect())
    assert len({(metric.name, metric.labels) for metric in metrics}) == len(metrics)
    return {name.removeprefix("ascend_"): value for name, value in values_of(metrics).items()}


def test_table_of_the_910b_gives_every_chip_and_process() -> None:
    ecc = sample("ecc-910b")

    found = collect(info=sample("info-910b"), info_t_ecc_i_0=ecc, info_t_ecc_i_1=ecc)

    chip = "0,0,0000:c1:00.0"
    assert {name: value for name, value in found.items() if chip in name} == {
        f"info{{{chip},910B3,24.1.0}}": 1,
        f"healthy{{{chip}}}": 1,
        f"health_info{{{chip},OK}}": 1,
        f"power_watts{{{chip}}}": 95.2,
        f"temperature_celsius{{{chip}}}": 41,
        f"busy_ratio{{{chip}}}": 0.37,
        f"memory_used_bytes{{{chip},hbm}}": 42109 * MIB,
        f"memory_size_bytes{{{chip},hbm}}": 65536 * MIB,
    }
    assert found["healthy{1,0,0000:01:00.0}"] == 0
    assert found["health_info{1,0,0000:01:00.0,Alarm}"] == 1
    assert found["process_memory_bytes{0,0,81422,python3}"] == 38770 * MIB
    assert found["ecc_errors_total{1,0,hbm,double}"] == 3
    assert found["isolated_pages{1,0,hbm,double}"] == 2


def test_two_chips_of_one_npu_share_its_power() -> None:
    found = collect(info=sample("info-a3"), info_t_ecc_i_0=sample("ecc-a3"))

    assert found["power_watts{0,0,0000:9d:00.0}"] == 171.4
    assert "power_watts{0,1,0000:9f:00.0}" not in found  # "-" is absent, never zero
    assert found["temperature_celsius{0,1,0000:9f:00.0}"] == 45
    assert found["ecc_errors_total{0,0,hbm,single}"] == 1
    assert found["ecc_errors_total{0,1,hbm,double}"] == 4


def test_chip_without_hbm_shows_its_other_memory() -> None:
    unsupported = "\tThis device does not support querying ecc.\n"

    found = collect(info=sample("info-310p"), info_t_ecc_i_8=unsupported)

    assert found["memory_size_bytes{8,0,0000:03:00.0,ddr}"] == 21527 * MIB
    assert not any(name.startswith(("power", "ecc")) for name in found)


def test_counters_without_a_chip_are_of_the_only_one() -> None:
    counts = {(one.chip, one.metric, one.kind): one.value for one in parse_ecc(sample("ecc-new"))}

    assert counts[("0", "ecc_errors_total", "single")] == 5
    assert counts[("0", "isolated_pages_pending", "double")] == 1


@pytest.mark.parametrize(
    "answer", [None, "", "garbage", "\tHBM Double Bit Isolated Pages Count : x"]
)
def test_npu_whose_counters_cannot_be_read_says_so_and_keeps_the_rest(answer: str | None) -> None:
    answers = {"info": sample("info-a3")}
    if answer is not None:
        answers["info_t_ecc_i_0"] = answer

    found = collect(**answers)

    assert found["ecc_success{0}"] == 0
    assert found["healthy{0,0,0000:9d:00.0}"] == 1


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Power(W)", "Power(kW)", "unknown columns"),
        ("HBM-Usage(MB)", "HBM-Usage(GB)", "unknown columns"),
        ("0000:C1:00.0", "PCIe         ", "no bus id"),
        ("95.2", "fast", "not a number"),
        ("42109/ 65536", "42109       ", "missing figures"),
        ("| 1     910B3", "| 0     910B3", "one chip twice"),
        ("npu-smi 24.1.0", "npu-smj 24.1.0", "shows no table"),
    ],
)
def test_table_that_is_not_understood_is_broken(old: str, new: str, problem: str) -> None:
    text = sample("info-910b")
    assert old in text

    with pytest.raises(SourceError, match=problem):
        parse_info(text.replace(old, new))


def test_half_a_chip_is_broken() -> None:
    lines = sample("info-910b").splitlines()
    cut = [line for line in lines if "0000:01:00.0" not in line]

    with pytest.raises(SourceError, match="half a chip"):
        parse_info("\n".join(cut))


@PATIENT
@given(st.text(alphabet="|+-=0123456789 NAnpusmi/:.\n", max_size=400))
def test_any_text_is_a_table_or_a_source_error(text: str) -> None:
    header = "".join(sample("info-910b").splitlines(keepends=True)[:6])
    for candidate in (text, header + text):
        try:
            parse_info(candidate)
        except SourceError:
            continue


@PATIENT
@given(st.text(max_size=200), st.text(alphabet="0123456789NA-x. ", max_size=20))
def test_any_counters_are_parsed_or_a_source_error(text: str, value: str) -> None:
    line = f"HBM Double Bit Aggregate Total Err Cnt : {value}\nChip ID : {value}\n"
    for candidate in (text, line, text + line):
        try:
            parse_ecc(candidate)
        except SourceError:
            continue


def test_recorded_tree_is_not_asked_about() -> None:
    with pytest.raises(NoSourceError, match="recorded tree"):
        AscendCollector(make_context(is_live=False))


# --- with a program


def write_program(folder: Path, script: str) -> tuple[str]:
    program = folder / "npu-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return (str(program),)


def test_program_is_run_with_its_arguments(tmp_path: Path) -> None:
    paths = write_program(
        tmp_path,
        f'case "$*" in\n"info") cat {SAMPLES}/info-a3.txt;;\n'
        f'"info -t ecc -i 0") cat {SAMPLES}/ecc-a3.txt;;\n*) exit 9;;\nesac',
    )

    metrics = list(AscendCollector(make_context(), paths=paths).collect())

    assert values_of(metrics)["ascend_ecc_success{0}"] == 1


def test_program_that_fails_says_what_it_said(tmp_path: Path) -> None:
    paths = write_program(tmp_path, "echo 'dcmi module initialize failed. ret is -8005'; exit 1")

    with pytest.raises(SourceError, match="dcmi module initialize failed"):
        list(AscendCollector(make_context(), paths=paths).collect())


def test_node_without_the_program_is_absent(tmp_path: Path) -> None:
    collector = AscendCollector(make_context(), paths=(str(tmp_path / "npu-smi"),))

    with pytest.raises(NoSourceError, match="not installed"):
        list(collector.collect())

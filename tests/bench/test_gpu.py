"""The frame of the GPU report: areas that crash, hang and are resumed, and what its table shows. No GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import areas
from bench.gpu.rows import WHY_CHARACTERS_MAX, Outcome, Row, Trial
from bench.gpu.table import Report, read
from tests.support.eventually import DEADLINE_S, eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[2]
MODULE = """
import os, signal, time
from bench.gpu.rows import NotTriedError
LIMIT_S = {limit_s}
CLAIMS = {{"first": "The first.", "second": "The second."}}

def run(telling):
    with telling.row("first") as trial:
        {first}
    {between}
    with telling.row("second") as trial:
        {second}
"""
TORCH = """
__version__ = "2.0"
class version:
    cuda = "13.0"
class _properties:
    uuid = "11111111-2222-3333-4444-555555555555"
class cuda:
    is_available = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 2)
    get_device_properties = staticmethod(lambda _device: _properties)
    class nccl:
        version = staticmethod(lambda: (2, 27, 3))
"""
UUID = "GPU-11111111-2222-3333-4444-555555555555"
SMI = f"""#!/bin/sh
case "$1" in
-L) echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"; echo "GPU 1: NVIDIA H100 80GB HBM3 (UUID: {UUID})";;
*) echo 'NVIDIA H100 80GB HBM3, 580.95.05, 81559 MiB, 96.00';;
esac
"""


class Site:
    """A copy of the frame with areas of the test's own, beside a PyTorch and an nvidia-smi that only answer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.output, self.page = folder / "out.json", folder / "page.md"
        frame = folder / "bench" / "gpu"
        shutil.copytree(
            ROOT / "bench" / "gpu",
            frame,
            ignore=lambda _at, names: [one for one in names if one == "latest.json"],
        )
        for name in areas.NAMES:
            self.area(name)
        (folder / "torch.py").write_text(TORCH)
        programs = folder / "bin"
        programs.mkdir()
        (programs / "nvidia-smi").write_text(SMI)
        (programs / "nvidia-smi").chmod(0o755)

    def area(
        self,
        name: str,
        first: str = "pass",
        between: str = "pass",
        second: str = "pass",
        limit_s: float = 60.0,
    ) -> None:
        text = MODULE.format(first=first, between=between, second=second, limit_s=limit_s)
        (self.folder / "bench" / "gpu" / "areas" / f"{name}.py").write_text(text)

    def command(self, *arguments: str) -> list[str]:
        files = ("--output", str(self.output), "--table", str(self.page))
        return [sys.executable, "-m", "bench.gpu", *files, *arguments]

    def environment(self, path: str | None = None) -> dict[str, str]:
        path = path or f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "PATH": path, "PYTHONPATH": str(self.folder)}

    def run(self, *arguments: str, path: str | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=self.environment(path),
            timeout=DEADLINE_S,
        )

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments),
            stdout=subprocess.DEVNULL,
            cwd=self.folder,
            env=self.environment(),
        )

    def rows(self) -> dict[str, Row]:
        return read(self.output).rows


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_rows_that_an_area_told_before_its_crash_stay(site: Site) -> None:
    site.area("nvml", between="os.kill(os.getpid(), signal.SIGSEGV)")

    answer = site.run("--only", "nvml,faults")

    rows = site.rows()
    assert answer.returncode == 1
    assert rows["nvml.first"].outcome is Outcome.PASSED
    assert rows["nvml.second"].outcome is Outcome.FAILED
    assert "ended with -11 before this row" in rows["nvml.second"].why
    assert rows["faults.second"].outcome is Outcome.PASSED, "the next area runs"


def test_area_that_hangs_is_ended_with_what_it_has_started(site: Site) -> None:
    started = site.folder / "pid"
    hang = f"import subprocess; p = subprocess.Popen(['sleep', '600']); open({str(started)!r}, 'w').write(str(p.pid)); p.wait()"
    site.area("nvml", between=hang, limit_s=3.0)

    answer = site.run("--only", "nvml")

    rows = site.rows()
    assert answer.returncode == 1
    assert rows["nvml.second"].outcome is Outcome.FAILED
    assert "did not come to this row within 3 s" in rows["nvml.second"].why
    if started.exists():  # the machine was quick enough to come so far
        eventually(lambda: is_gone(int(started.read_text())), "what it has started is gone")


def test_run_that_is_ended_keeps_each_row_and_leaves_no_area_behind(site: Site) -> None:
    started = site.folder / "pid"
    hang = f"import os; open({str(started)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    site.area("nvml", first="trial.figure('ms', 7)", between=hang)
    run = site.start("--only", "nvml")
    try:
        eventually(lambda: "nvml.first" in site.rows(), "the row is written while the area runs")
        eventually(site.page.exists, "the page follows the rows")
        assert "| The first. | passed | ms: 7 |" in site.page.read_text()
        eventually(lambda: started.exists() and started.read_text(), "the area goes on")

        run.terminate()
        assert run.wait(300) == 128 + 15
    finally:
        run.kill()

    assert site.rows()["nvml.first"].outcome is Outcome.PASSED
    eventually(lambda: is_gone(int(started.read_text())), "the area is gone with the run")


def test_row_that_the_time_does_not_last_for_stays_as_it_was(site: Site) -> None:
    site.area("nvml", second="trial.figure('ms', 5)")
    site.run("--only", "nvml", "--commit", "earlier")
    site.area("nvml", between="time.sleep(600)", limit_s=600.0)

    answer = site.run("--only", "nvml", "--commit", "later", "--budget", "5")

    row = site.rows()["nvml.second"]
    assert answer.returncode == 0, "a row that was not come to has not failed"
    assert (row.outcome, row.figures, row.commit) == (Outcome.PASSED, {"ms": 5}, "earlier")
    assert "passed (at earlier)" in site.page.read_text()


def test_row_never_come_to_is_not_tried(site: Site) -> None:
    site.area("nvml", between="time.sleep(600)", limit_s=600.0)

    answer = site.run("--only", "nvml", "--budget", "5")

    assert answer.returncode == 0
    assert site.rows()["nvml.second"].outcome is Outcome.NOT_TRIED


def test_areas_with_rows_that_never_passed_come_first(site: Site) -> None:
    site.area("faults", second="trial.check(False, 'wrong')")
    site.run("--only", "nvml,sections,faults")

    answer = site.run("--only", "nvml,sections,faults")

    places = [answer.stdout.index(f"{name}.first") for name in ("faults", "nvml", "sections")]
    assert places == sorted(places)


def test_row_of_another_gpu_says_so(site: Site) -> None:
    site.run("--only", "nvml,sections", "--commit", "one")
    smi = site.folder / "bin" / "nvidia-smi"
    smi.write_text(SMI.replace("H100 80GB HBM3", "H200"))

    site.run("--only", "sections", "--commit", "one")

    page = site.page.read_text()
    assert "| gpu | NVIDIA H200 |" in page
    assert page.count("passed (on NVIDIA H100 80GB HBM3, 580.95.05, ") == 2


def test_areas_use_one_gpu_and_ask_nvidia_smi_about_that_one(site: Site) -> None:
    (site.folder / "bin" / "nvidia-smi").write_text(SMI + f"echo $* >> {site.folder}/asked\n")
    seen = "trial.figure('seen', os.environ['CUDA_VISIBLE_DEVICES'])"
    site.area("nvml", first=seen)

    site.run("--only", "nvml")

    assert site.rows()["nvml.first"].figures == {"seen": UUID}
    assert f"-i {UUID} --query-gpu" in (site.folder / "asked").read_text()


def test_instance_of_a_card_is_not_asked_for_as_a_card(site: Site) -> None:
    (site.folder / "torch.py").write_text(TORCH.replace("11111111", "99999999"))
    seen = "trial.figure('seen', os.environ.get('BENCH_GPU_UUID', ''))"
    site.area("nvml", first=seen)

    site.run("--only", "nvml")

    assert site.rows()["nvml.first"].figures == {"seen": ""}
    assert "| gpu | NVIDIA H100 80GB HBM3 |" in site.page.read_text()


def test_gpu_without_memory_left_is_no_failure(site: Site) -> None:
    lacks = "raise type('OutOfMemoryError', (RuntimeError,), {})('tried to allocate 4 GiB')"
    site.area("nvml", first=lacks)

    answer = site.run("--only", "nvml")

    assert answer.returncode == 0
    assert site.rows()["nvml.first"].outcome is Outcome.NOT_TRIED
    assert "tried to allocate 4 GiB" in site.rows()["nvml.first"].why


def is_gone(pid: int) -> bool:
    try:
        return " Z " in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True


def test_run_of_one_area_keeps_the_rows_of_the_others(site: Site) -> None:
    site.area("sections", first="trial.figure('ms', 1.23456)")
    site.run("--only", "sections")
    site.area("nvml", second="raise NotTriedError('no such card')")

    answer = site.run("--only", "nvml")

    rows = site.rows()
    assert answer.returncode == 0
    assert rows["sections.first"].figures == {"ms": 1.235}
    assert rows["nvml.second"].outcome is Outcome.NOT_TRIED
    page = site.page.read_text()
    assert page.index("## NVML") < page.index("## Sections by CUDA events")
    assert "3 passed, 0 failed, 1 not tried." in page
    assert "| gpu | NVIDIA H100 80GB HBM3 |" in page


def test_area_without_time_left_is_not_tried(site: Site) -> None:
    answer = site.run("--only", "nvml", "--budget", "0")

    assert answer.returncode == 0
    assert {row.outcome for row in site.rows().values()} == {Outcome.NOT_TRIED}
    assert {row.why for row in site.rows().values()} == {"no time was left"}


def test_exception_fails_its_own_row_and_no_other(site: Site) -> None:
    site.area(
        "nvml",
        first="print('{\"id\": \"nvml.second\"}', flush=True); trial.figure('seen', 3); 1 / 0",
    )

    site.run("--only", "nvml")

    rows = site.rows()
    assert rows["nvml.first"].outcome is Outcome.FAILED
    assert rows["nvml.first"].why == "ZeroDivisionError: division by zero"
    assert rows["nvml.first"].figures == {"seen": 3}
    assert rows["nvml.second"].outcome is Outcome.PASSED, "what an area prints is no row"


def test_machine_without_a_driver_is_skipped_with_the_reason(site: Site) -> None:
    answer = site.run(path=str(Path(sys.executable).parent))

    assert answer.returncode == 77
    assert answer.stderr == "skipped: no nvidia-smi on this machine: no NVIDIA driver\n"
    assert not site.output.exists()


def test_unknown_area_is_named(site: Site) -> None:
    answer = site.run("--only", "nvml,nvlm")

    assert answer.returncode == 2
    assert "no such area: nvlm" in answer.stderr


@pytest.mark.parametrize(
    "text", ["a | b", "a\n| b | c |\n# d", "\r\n\r\n# e", "<script>x()</script>", "`` ` ``"]
)
def test_text_from_a_driver_stays_in_its_cell(tmp_path: Path, text: str) -> None:
    row = Row("nvml.first", "A claim.", Outcome.FAILED, {"name": text, text: 1}, text)
    report = Report({"gpu": text}, {row.id: row})

    report.write(tmp_path / "out.json", tmp_path / "page.md")

    page = (tmp_path / "page.md").read_bytes().decode()
    line = next(line for line in page.splitlines() if line.startswith("| A claim."))
    assert line.count("|") == 4
    assert "<script>" not in page
    assert [line for line in page.splitlines() if line.startswith("#")] == [
        "# Proved on a GPU",
        "## NVML",
    ]
    assert read(tmp_path / "out.json").rows == {row.id: row}


def test_row_survives_its_way_as_a_line() -> None:
    row = Row("nvml.first", "A claim.", Outcome.PASSED, {"ms": 1.5, "pids": [1]}, "ä\u2028")

    assert Row.from_json(row.to_json()) == row


@pytest.mark.parametrize(
    "line", ["{}", "[]", "null", '{"id": 1}', '{"id": "a", "claim": "b", "outcome": "perhaps"}']
)
def test_line_that_is_no_row_is_refused(line: str) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Row.from_json(line)


def test_failed_check_fails_the_row_and_a_note_does_not() -> None:
    trial = Trial()

    trial.check(True, "never")
    trial.note("seen on the way")

    assert not trial.failures
    trial.check([], "nothing found")
    assert trial.failures == ["nothing found"]


def test_why_of_a_row_is_bounded(site: Site) -> None:
    site.area("nvml", first="trial.check(False, 'x' * 100_000)")

    site.run("--only", "nvml")

    assert len(site.rows()["nvml.first"].why) == WHY_CHARACTERS_MAX


@pytest.mark.parametrize("name", areas.NAMES)
def test_each_area_names_its_claims_in_sentences(name: str) -> None:
    area: Any = areas.load(name)

    assert 0 < area.limit_s <= 600
    for row, claim in area.claims.items():
        assert row.isidentifier()
        assert claim.endswith("."), claim
        assert "|" not in claim


def test_saved_report_is_json_that_programs_read(site: Site) -> None:
    site.run("--only", "nvml")

    saved = json.loads(site.output.read_text())

    assert saved["machine"]["driver"] == "580.95.05"
    assert [row["outcome"] for row in saved["rows"]] == ["passed", "passed"]

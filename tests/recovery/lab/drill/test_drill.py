"""Scenarios as people write them, and what is judged of them."""

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rankmend.errors import ConfigError
from rankmend.loads.drill_job import replay, share
from recovery.api.wire import IncidentView
from recovery.lab.drill.drill_report import DrillReport, drill_page, plain_drill, write_junit
from recovery.lab.drill.runner import DrillRun, JobProcess
from recovery.lab.drill.scenario import (
    DrillFault,
    DrillHolds,
    DrillJob,
    DrillLauncher,
    DrillPhase,
    Scenario,
)
from recovery.lab.drill.scenario_file import find_scenario, list_library, read_scenario
from recovery.lab.drill.verdict import DrillOutcome, judge_drill
from recovery.lab.inject.fault import FaultKind

HOLDS = DrillHolds(incidents=1, blamed=((1,),), steps_recomputed_max=20, mttr_s_max=60.0)


def incident(**changed: object) -> IncidentView:
    fields: dict[str, object] = {
        "incident_id": "i", "job_id": "j", "job": "drill", "opened_unix_s": 1.0, "attempt": 1,
        "cause": "rank_failed", "signature": "", "summary": "", "blame": "", "node": "n",
        "ranks": [1], "victims": [], "outcome": "recovered", "tries": 1, "steps": [], "phases": {},
        "notes": [], "total_s": 2.0, "recovered_s": 1.0, "steps_recomputed": 9, "caught_up_s": None,
    }  # fmt: skip
    return IncidentView(**(fields | changed))  # type: ignore[arg-type]


GOOD = DrillOutcome(0, (incident(),), (120, 7), (120, 7), ())


def failed(outcome: DrillOutcome, holds: DrillHolds = HOLDS) -> list[str]:
    return [check.name for check in judge_drill(holds, outcome) if not check.held]


def test_drill_in_which_all_held_is_told_so() -> None:
    assert failed(GOOD) == []


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"exit_code": 1}, "the job ends with exit code 0"),
        ({"exit_code": None}, "the job ends with exit code 0"),
        ({"incidents": (incident(ranks=[0]),)}, "blamed: 1"),
        ({"incidents": (incident(outcome="escalated"),)}, "every incident ends recovered"),
        ({"incidents": (incident(steps_recomputed=21),)}, "steps made again: at most 20"),
        ({"incidents": (incident(total_s=60.1),)}, "MTTR (s): at most 60"),
        ({"result": (120, 8)}, "the same result as without a fault"),
        ({"result": None}, "the same result as without a fault"),
        ({"not_undone": ("loss: x",)}, "every fault was made and undone"),
    ],
)
def test_each_thing_that_did_not_hold_is_named(changed: dict[str, object], name: str) -> None:
    assert failed(replace(GOOD, **changed)) == [name]  # type: ignore[arg-type]


class EndedJob:
    """A job that has ended before any fault could be made."""

    returncode: int | None = 3

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        return 3

    def send_signal(self, sig: int) -> None:
        raise AssertionError("it has ended")


class EndedRun(DrillRun):
    def _start(self, _log: int) -> JobProcess:
        return EndedJob()


def test_fault_that_was_never_made_did_not_hold(tmp_path: Path) -> None:
    faults = (DrillFault("kill", "rank:1", at_step=5), DrillFault("stop", "rank:0", at_step=9))
    scenario = Scenario("two", "", DrillJob(), faults, HOLDS)

    outcome = EndedRun(scenario, tmp_path, lambda _text: None).run()

    why = "the job ended with exit code 3 before step 5 on every rank"
    assert outcome.not_undone == (f"kill: not made ({why})", f"stop: not made ({why})")
    assert "every fault was made and undone" in failed(outcome)


def test_recovery_from_another_step_did_not_hold() -> None:
    holds = DrillHolds(restored_steps=(100,))
    torn = replace(GOOD, incidents=(incident(restored_step=200),))

    assert failed(torn, holds) == ["continues from step 100"]


def test_false_alarm_is_no_success() -> None:
    holds = DrillHolds(incidents=0)

    assert failed(GOOD, holds) == ["0 incidents"]


def test_a_third_rank_that_is_blamed_is_named() -> None:
    holds = DrillHolds(blamed_only=(1, 2))

    assert failed(GOOD, holds) == []
    assert failed(replace(GOOD, incidents=(incident(ranks=[1, 3]),)), holds) == [
        "nobody is blamed but 1, 2"
    ]


def test_an_escalation_may_be_what_must_happen() -> None:
    escalated = replace(GOOD, exit_code=1, incidents=(incident(outcome="escalated"),), result=None)
    holds = DrillHolds(exit_code=1, all_recovered=False, same_result=False)

    assert failed(escalated, holds) == []


@pytest.mark.parametrize("name", list_library())
def test_shipped_scenario_names_known_faults(name: str) -> None:
    scenario = read_scenario(find_scenario(name))

    assert scenario.about
    assert {fault.fault for fault in scenario.faults} <= {kind.value for kind in FaultKind}


def test_library_breaks_jobs_of_every_launcher() -> None:
    scenarios = [read_scenario(find_scenario(name)) for name in list_library()]

    assert {one.job.launcher for one in scenarios} == set(DrillLauncher)


def test_library_breaks_a_job_in_every_phase() -> None:
    scenarios = [read_scenario(find_scenario(name)) for name in list_library()]

    assert {fault.during for one in scenarios for fault in one.faults} == set(DrillPhase)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[job]\nranks = 0\n", r"line 1: \[job\] ranks 0: want 1 to 64"),
        ('[job]\nlauncher = "slurm"\n', r"line 2: \[job\] launcher.*'slurm'"),
        ('[job]\nlauncher = "torchrun"\nscript = "a.py"\n', "script 'a.py': only for launcher"),
        ('[job]\nflags = ["-x"]\nlauncher = "torchrun"\n', "flags .*: only for launcher"),
        ("[job]\nrank = 2\n", "line 2: .*unknown key 'rank'"),
        ('[[faults]]\nfault = "kill"\n', "it needs fault and on"),
        ('[[faults]]\nfault = "--undo"\non = "node"\n', "'--undo' is not a fault"),
        ('[[faults]]\nfault = "kill"\non = "rank:1"\nduring = "night"\n', "line 4: .*'night'"),
        ('[[faults]]\nfault = "kill"\non = "rank:1"\nduring = "together"\n', "with which fault"),
        (
            '[[faults]]\nfault = "kill"\non = "node"\noptions = { "a=b" = 1 }\n',
            "'a=b' is not an option of",
        ),
        ("faults = 3\n", "want a list"),
        ("[holds]\nincidents = true\n", "line 2: .*incidents"),
        ("about = \n", "not valid TOML"),
    ],
)
def test_broken_scenario_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=said):
        read_scenario(path)


def test_unknown_scenario_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="rank-killed"):
        find_scenario("../../etc/passwd-not-there")


def test_result_tells_a_step_that_was_lost_or_made_twice() -> None:
    lost = (share(replay(2, 8), 0, 10) + share(replay(2, 8), 1, 10)) % 2_147_483_647

    assert replay(2, 10) != lost
    assert replay(2, 10) == replay(2, 10)


REPORT = DrillReport(
    Scenario("mine", "<b>", DrillJob(), (), HOLDS),
    replace(GOOD, incidents=(incident(ranks=[0]),)),
    judge_drill(HOLDS, replace(GOOD, incidents=(incident(ranks=[0]),))),
    3.0,
    None,
)


def test_junit_has_a_case_for_each_thing_and_a_failure_for_what_did_not_hold() -> None:
    root = ElementTree.fromstring(write_junit([REPORT]))

    suite = root[0]
    assert suite.attrib["failures"] == "1"
    assert len(suite) == len(REPORT.checks) == int(suite.attrib["tests"])
    assert [case.attrib["name"] for case in suite if len(case)] == ["blamed: 1"]


def test_page_escapes_texts_and_needs_no_network() -> None:
    page = drill_page([REPORT], 0.0, "1")

    assert "&lt;b&gt;" in page
    assert "did not hold" in page
    assert "src=" not in page
    assert "<script" not in page


def test_plain_report_says_whether_it_held() -> None:
    assert plain_drill(REPORT)["held"] is False

"""Command lines of torchrun do under `rankmend run` what they do under torchrun, or what docs/use/torchrun.md says."""

import re
from pathlib import Path

import pytest

from tests.support.torchrun_cases import (
    RANKMEND,
    ROOT,
    TORCHRUN,
    CaseTier,
    Difference,
    LauncherCase,
    comparable,
    expected_of,
    load_recorded,
    run_case,
)
from tests.support.torchrun_table import CASES

pytestmark = pytest.mark.process

PAGE = ROOT / "docs/use/torchrun.md"
RECORDED = [case for case in CASES if case.tier is CaseTier.RECORDED]
# Each row under torchrun takes PyTorch's import several times: what is recorded is run again by `python -m tests.support.torchrun_table`.
LIVE = [case for case in CASES if case.tier is not CaseTier.RECORDED] + RECORDED[:1]


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case.name)
def test_line_does_what_torchrun_was_recorded_to_do(case: LauncherCase, tmp_path: Path) -> None:
    expected = expected_of(case, load_recorded()[case.name])

    # By default a process with PyTorch serves the store, for ranks that here don't use it; only the port is the store's matter.
    is_about_port = any("master-port" in word for word in case.options)
    program = RANKMEND if is_about_port else (*RANKMEND, "--store=ranks")
    found = run_case(case, program, tmp_path)

    assert comparable(case, found) == comparable(case, expected)


@pytest.mark.thorough
@pytest.mark.torch
@pytest.mark.parametrize("case", LIVE, ids=lambda case: case.name)
def test_line_does_what_torchrun_does(case: LauncherCase, tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.run")
    for name in ("torchrun", "rankmend"):
        (tmp_path / name).mkdir()
    theirs = run_case(case, TORCHRUN, tmp_path / "torchrun")

    ours = run_case(case, RANKMEND, tmp_path / "rankmend")

    assert comparable(case, ours) == comparable(case, expected_of(case, theirs))


def test_there_are_70_lines_and_each_cites_its_source() -> None:
    assert len(CASES) >= 70
    assert len({case.name for case in CASES}) == len(CASES)
    assert all(case.upstream.startswith(("test/distributed/", "torch/")) for case in CASES)
    assert load_recorded().keys() == {case.name for case in RECORDED}


def test_each_difference_is_on_the_page_with_its_reason() -> None:
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE))

    for difference in Difference:
        assert difference.value in rows, difference
    used = {difference for case in CASES for difference in case.differs}
    assert used == set(Difference)

"""What `make check` runs of the unit tests, and which of them a change concerns."""

from pathlib import Path

from tests.check import ROOT, affected, shards, unit_files
from tests.support.tiers import Tier, is_safety_file, tier_of


def names(files: list[Path]) -> set[str]:
    return {file.relative_to(ROOT).as_posix() for file in files}


def test_each_unit_file_is_in_one_shard() -> None:
    files = unit_files()

    dealt = shards(files, 3)

    assert sorted(file for shard in dealt for file in shard) == sorted(files)
    sizes = [sum(file.stat().st_size for file in shard) for shard in dealt]
    large, small = sizes[:3], sizes[3:]
    assert max(large) < 1.1 * min(large)
    assert max(small) < 1.3 * min(small) < min(large) / 2


def test_files_whose_times_are_known_are_dealt_out_by_them() -> None:
    files = unit_files()
    seconds = {
        file.relative_to(ROOT).as_posix(): 12.0 if place == 5 else 0.1
        for place, file in enumerate(files)
    }

    dealt = shards(files, 2, seconds)

    assert sorted(file for shard in dealt for file in shard) == sorted(files)
    times = [sum(seconds[file.relative_to(ROOT).as_posix()] for file in shard) for shard in dealt]
    assert len(dealt[0]) < len(dealt[1]) / 2, "the slow file has less beside it"
    assert max(times[:2]) < 1.1 * min(times[:2])


def test_fewer_files_than_shards_leave_no_empty_one() -> None:
    assert shards([ROOT / "pyproject.toml"], 4) == [[ROOT / "pyproject.toml"]]


def test_changed_module_concerns_the_files_that_import_it() -> None:
    found = names(affected(unit_files(), ["detectors/hang/live.py"]))

    assert "tests/detectors/hang/test_live.py" in found
    assert "tests/detectors/kernel/test_rules.py" not in found


def test_changed_test_file_concerns_itself() -> None:
    assert names(affected(unit_files(), ["tests/test_check.py"])) == {"tests/test_check.py"}


def test_changed_support_concerns_who_imports_it_also_through_other_support() -> None:
    assert "tests/test_check.py" in names(affected(unit_files(), ["tests/support/tiers.py"]))
    assert names(affected(unit_files(), ["tests/support/eventually.py"]))


def test_change_of_the_configuration_concerns_all() -> None:
    assert affected(unit_files(), ["pyproject.toml"]) == unit_files()


def test_document_concerns_no_import() -> None:
    assert affected(unit_files(), ["docs/use/run.md"]) == []


def test_tier_is_read_from_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "test_x.py"
    file.write_text(
        "import pytest\npytestmark = [\n    pytest.mark.site,\n    pytest.mark.safety,\n]\n"
        "@pytest.mark.process\ndef test_x(): pass\n"
    )
    other = tmp_path / "test_y.py"
    other.write_text(
        "@pytest.mark.process\ndef test_y(): pass  # the mark of a test is no file's\n"
    )

    assert (tier_of(file), is_safety_file(file)) == (Tier.SITE, True)
    assert (tier_of(other), is_safety_file(other)) == (Tier.UNIT, False)
    assert tier_of(tmp_path / "test_that_is_gone.py") is Tier.UNIT

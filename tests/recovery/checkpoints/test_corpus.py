"""A restart begins from what a person would have chosen: every folder of the corpus."""

import os
import shutil
from pathlib import Path

import pytest

from recovery.checkpoints.finder import CheckpointFinder
from tests.recovery.checkpoints.corpus import CORPUS, Folder
from tests.recovery.checkpoints.corpus_layouts import LAYOUTS, REPORTED
from tests.recovery.checkpoints.corpus_projects import PROJECTS
from tests.recovery.checkpoints.corpus_sites import SIBLINGS, SITES, Site

pytestmark = pytest.mark.process

BEGIN_UNIX_S = 1_900_000_000.0


def build(root: Path, folder: Folder | Site) -> None:
    """Write the files, a minute apart."""
    for at, entry in enumerate(folder.files):
        name, _arrow, target = entry[0].partition(" -> ")
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if target:
            path.symlink_to(target)
        else:
            path.write_bytes(entry[1])
        age_s = entry[2] if len(entry) == 3 else 60.0 * (at + 1)
        os.utime(path, (BEGIN_UNIX_S + age_s,) * 2, follow_symlinks=False)
        for parent in path.parents[: len(path.relative_to(root).parts) - 1]:
            os.utime(parent, (BEGIN_UNIX_S + age_s,) * 2)


@pytest.mark.parametrize(
    "folder", [*CORPUS, *PROJECTS, *LAYOUTS, *REPORTED], ids=lambda folder: folder.name
)
def test_a_restart_begins_from_what_a_person_would_choose(tmp_path: Path, folder: Folder) -> None:
    build(tmp_path, folder)

    verdicts = CheckpointFinder(tmp_path).find(0.0)

    chosen = next((one.candidate for one in verdicts if one.is_valid), None)
    name = "" if chosen is None else os.path.relpath(chosen.path, tmp_path)
    truths = (folder.truth,) if isinstance(folder.truth, str) else folder.truth
    assert name in truths, [(one.candidate.tag, one.reason) for one in verdicts]
    if chosen is not None and folder.step is not None:
        assert chosen.step == folder.step
    if chosen is not None and folder.parts:
        assert sorted(os.path.relpath(part, tmp_path) for part in chosen.parts) == sorted(
            folder.parts
        )


@pytest.mark.parametrize("site", [*SITES, *SIBLINGS], ids=lambda site: site.name)
def test_a_restart_begins_from_the_next_one_of_a_chain_once_those_before_it_are_gone(
    tmp_path: Path, site: Site
) -> None:
    build(tmp_path, site)

    for wanted in site.chain:
        verdicts = CheckpointFinder(tmp_path).find(0.0)
        chosen = next((one.candidate for one in verdicts if one.is_valid), None)
        name = "" if chosen is None else os.path.relpath(chosen.path, tmp_path)

        truths = (wanted,) if isinstance(wanted, str) else wanted
        assert name in truths, [(one.candidate.tag, one.reason) for one in verdicts]
        for path in () if chosen is None else map(Path, (chosen.path, *chosen.parts)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_the_corpus_is_large_and_each_folder_has_a_name_and_a_source() -> None:
    assert len(CORPUS) >= 120
    assert len(SITES) >= 97
    folders = [*CORPUS, *PROJECTS, *LAYOUTS, *REPORTED, *SITES, *SIBLINGS]
    assert len({folder.name for folder in folders}) == len(folders)
    assert all(folder.source for folder in folders)

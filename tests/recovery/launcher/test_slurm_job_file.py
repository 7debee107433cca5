"""A run's folder names the Slurm job of its launcher, for the clean-up in the epilog."""

from pathlib import Path

from recovery.launcher.ranks.runtime_folder import NAME, write_slurm_job


def test_the_folder_names_the_job_of_the_newest_launcher(tmp_path: Path) -> None:
    write_slurm_job(tmp_path, {"SLURM_JOB_ID": "7"})
    write_slurm_job(tmp_path, {"SLURM_JOB_ID": "8"})

    assert (tmp_path / NAME).read_text() == "8\n"


def test_a_run_that_goes_on_outside_of_slurm_is_no_longer_the_jobs(tmp_path: Path) -> None:
    write_slurm_job(tmp_path, {"SLURM_JOB_ID": "7"})
    write_slurm_job(tmp_path, {})

    assert not (tmp_path / NAME).exists()

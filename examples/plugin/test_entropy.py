"""The plugin on a tree written by hand: `python -m pytest examples/plugin`, once it is installed."""

from pathlib import Path

import pytest
from rankmend_example.entropy import EntropyCollector

from agent.plugins import PluginContext
from rankmend.clock import SystemClock
from rankmend.errors import NoSourceError, SourceError


def make(procfs: Path) -> EntropyCollector:
    return EntropyCollector(PluginContext(procfs, procfs, is_live=False, clock=SystemClock()))


def test_available_randomness_is_a_share_of_the_pool(tmp_path: Path) -> None:
    folder = tmp_path / "sys" / "kernel" / "random"
    folder.mkdir(parents=True)
    (folder / "entropy_avail").write_text("64\n")
    (folder / "poolsize").write_text("256\n")

    (metric,) = make(tmp_path).collect()

    assert (metric.name, metric.value) == ("rankmend_entropy_available_ratio", 0.25)


def test_kernel_without_the_files_is_absent(tmp_path: Path) -> None:
    with pytest.raises(NoSourceError):
        list(make(tmp_path).collect())


def test_file_that_is_no_number_is_broken(tmp_path: Path) -> None:
    folder = tmp_path / "sys" / "kernel" / "random"
    folder.mkdir(parents=True)
    (folder / "entropy_avail").write_text("many\n")

    with pytest.raises(SourceError, match="entropy_avail"):
        list(make(tmp_path).collect())

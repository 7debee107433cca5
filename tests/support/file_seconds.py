"""Keeps how long the tests of each file took, so that the next `make check` deals the files out evenly: `-p tests.support.file_seconds`."""

import json
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(".pytest_cache") / "unit_seconds"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", help="name of the part whose times are kept")


class FileSeconds:
    def __init__(self, folder: Path, shard: str) -> None:
        self._folder = folder
        self._shard = shard
        self._seconds: dict[str, float] = defaultdict(float)  # by file, relative to the root

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """Count the import of a file and the making of its cases, too."""
        began_s = time.monotonic()
        report = yield
        if isinstance(collector, pytest.Module):
            self._seconds[collector.nodeid] += time.monotonic() - began_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({name: round(seconds, 3) for name, seconds in self._seconds.items()})
        draft = self._folder / f".{self._shard}.new"
        draft.write_text(text)
        draft.replace(self._folder / f"{self._shard}.json")


def pytest_configure(config: pytest.Config) -> None:
    if shard := config.getoption("--shard"):
        config.pluginmanager.register(FileSeconds(config.rootpath / FOLDER, shard))


def known_seconds(root: Path) -> dict[str, float]:
    """Return the seconds of each file, as far as an earlier run has kept them."""
    found: dict[str, float] = {}
    for path in sorted((root / FOLDER).glob("*.json"), key=lambda path: path.stat().st_mtime):
        try:
            found |= json.loads(path.read_text())
        except ValueError:
            continue
    return found

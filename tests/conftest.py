"""For all tests."""

import contextlib
import gc
import importlib
import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
import urllib3.util.connection  # noqa: F401 - asks, when it is first imported, by a socket whether IPv6 works
from hypothesis import settings

from tests.support.hosts.machine import keep_own_mounts
from tests.support.run_again import RunAgain, known_flaky
from tests.support.tiers import Tier, UnitGuard, stays_together, tier_of

# No test asserts how long something took, and neither does hypothesis: machines are busy.
settings.register_profile("quick", deadline=None, max_examples=10)  # `make check`, `make test`
settings.register_profile("thorough", deadline=None, max_examples=100)  # `make test-all`
settings.load_profile("quick")

ROOT = Path(__file__).parents[1]
DESCRIPTORS_LEFT_MAX = 8  # what a module begins for the whole session: event loops, caches


_GUARD = UnitGuard()
_WHOLE_JOBS = Path("tests", "system")
_CHOSEN = re.compile(r"\bmark\.(real_fault|component)\b")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("rankmend")
    group.addoption(
        "--tier",
        action="append",
        choices=[tier.value for tier in Tier],
        help="only test files of this tier (repeatable); no other file is imported",
    )
    group.addoption(
        "--chosen",
        choices=["only", "not"],
        help="only the tests that stand for a real fault or a real component, or all but these",
    )
    group.addoption(
        "--run-again",
        action="store_true",
        help="run a process or site test that failed again, alone, when all others have ended",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take from the surroundings what started programs would inherit.

    A shell's background job ignores SIGINT, and what nohup starts SIGHUP; workers of pytest-xdist have the width of a terminal;
    PyTorch takes twice as long where Python keeps nothing that it compiles. A mount that one worker makes
    to hang must not be found, rightly, by the node agents that another worker tests.
    """
    with contextlib.suppress(PermissionError):
        keep_own_mounts()
    if config.getoption("--run-again") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(RunAgain(config, known_flaky()))
    for name in ("COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE"):
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by nohup
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file that has nothing of what is asked for."""
    if not collection_path.name.startswith("test_"):
        return None
    tiers = config.getoption("--tier")
    if tiers and tier_of(collection_path).value not in tiers:
        return True
    only_chosen = config.getoption("--chosen") == "only"
    return True if only_chosen and not _CHOSEN.search(collection_path.read_text()) else None


def is_chosen(item: pytest.Item) -> bool:
    """Return whether `make test` runs this process or site test."""
    return any(item.get_closest_marker(name) for name in ("real_fault", "component"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Hold a unit test to what its tier may do."""
    if tier_of(item.path) is not Tier.UNIT:
        return (yield)
    with _GUARD.armed():
        return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    result = yield
    if (deed := _GUARD.deed()) is not None:
        pytest.fail(f"this unit test {deed}: its file needs `pytest.mark.process` or `.site`")
    return result


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs PyTorch where there is none, without importing it in each worker."""
    if item.get_closest_marker("torch") is not None and find_spec("torch") is None:
        pytest.skip("no PyTorch installed")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Have each worker import another part of the test modules first.

    In a clean clone pytest rewrites the asserts of every module that it imports, and keeps the result
    for the next process. Workers that go through the modules in step would each rewrite all of them.
    """
    worker = getattr(session.config, "workerinput", None)  # what pytest-xdist gives its workers
    if worker is None:
        return
    number, count = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    modules = sorted({name for path in session.config.args for name in _test_modules(path)})
    for name in modules[number::count]:
        # Collection tells of a module that cannot be imported, or is to be skipped.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(name)


def _test_modules(argument: str) -> Iterator[str]:
    """Yield the names of the test modules in a file or folder of the command line."""
    path = Path(argument.partition("::")[0]).absolute()
    for file in path.rglob("test_*.py") if path.is_dir() else [path]:
        if file.is_relative_to(ROOT) and file.suffix == ".py":
            yield ".".join(file.relative_to(ROOT).with_suffix("").parts)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is not asked for, and hand out the slowest files first."""
    if config.getoption("--hypothesis-profile") != "thorough" and config.getoption("--tier"):
        _leave_out(config, items, lambda item: item.get_closest_marker("thorough") is not None)
    if chosen := config.getoption("--chosen"):
        _leave_out(config, items, lambda item: is_chosen(item) != (chosen == "only"))
    if not hasattr(config, "workerinput"):
        return
    # No worker may begin a long test when the others are done: those with a limit of their own, then whole jobs and beds.
    weights: Counter[Path] = Counter()
    for item in items:
        limit = item.get_closest_marker("timeout")
        is_long = tier_of(item.path) is Tier.SITE or item.path.is_relative_to(ROOT / _WHOLE_JOBS)
        weights[item.path] += int(limit.args[0]) if limit and limit.args else 60 if is_long else 10
    items.sort(key=lambda item: -weights[item.path])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand out whole jobs one by one, and all other tests a file at a time."""
    from xdist.scheduler import LoadScopeScheduling

    class BedScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return file if stays_together(ROOT / file) else nodeid

    return BedScheduling(config, log)


def _leave_out(
    config: pytest.Config, items: list[pytest.Item], is_left_out: Callable[[pytest.Item], bool]
) -> None:
    left_out = [item for item in items if is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not is_left_out(item)]


def pytest_collection_finish() -> None:
    """Spare the collector the tests and their modules: they stay, and are most of what it would go through."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _own_procfs() -> Iterator[None]:
    """Have psutil read this machine again: collectors point it at a recorded tree for good."""
    yield
    psutil.PROCFS_PATH = "/proc"


@pytest.fixture(scope="module", autouse=True)
def _closed_descriptors() -> Iterator[None]:
    """Have a module's tests leave no descriptors: past 1,024 of them select(2) refuses to work.

    Those that only garbage holds are closed here. Garbage may be out of the collector's sight: the
    agent's own start takes whatever there is out of it (`gc.freeze`).
    """
    before = _descriptors()
    yield
    gc.collect()
    left = sorted(_descriptors() - before)
    if left:
        gc.unfreeze()
        gc.collect()
        left = sorted(_descriptors() - before)
    gc.freeze()
    if len(left) > DESCRIPTORS_LEFT_MAX:  # threads that were asked to end may still hold theirs
        from tests.support.eventually import eventually

        eventually(
            lambda: len(_descriptors() - before) <= DESCRIPTORS_LEFT_MAX,
            lambda: f"no descriptors stay open: {sorted(_descriptors() - before)[:50]}",
            pause_s=0.5,
        )


def _descriptors() -> set[tuple[int, str]]:
    """Return the descriptors of this process, each with what it leads to."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add((int(path.name), str(path.readlink())))
    return found


@pytest.fixture(scope="session")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A real Kubernetes API server (`tests.support.kubernetes.Cluster`), one for all workers of the run."""
    from tests.support import kubernetes

    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    yield kubernetes.start(shared)
    kubernetes.stop(shared)

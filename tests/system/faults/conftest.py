import fcntl
import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import lockstep
from tests.support.eventually import DEADLINE_S
from tests.support.free_port import free_port
from tests.system.faults.harness import JOBS, Job
from tests.system.faults.nodes import (
    ENDLESS,
    LET_GO,
    PATIENT,
    POLICY,
    Nodes,
    Service,
    run_controller,
)

# The lockstep job needs no store of PyTorch: a process with its library, for each launcher.
NO_STORE = "--store=ranks"


@pytest.fixture
def make_job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    """Make jobs that leave nothing behind: make_job(script, *arguments, **fields)."""
    jobs: list[Job] = []

    def make(script: str, *arguments: str, **fields: object) -> Job:
        folder = tmp_path / f"job{len(jobs)}"
        folder.mkdir()
        job = Job(folder, JOBS / script, list(arguments), **fields)  # type: ignore[arg-type]
        jobs.append(job)
        return job

    yield make
    for job in jobs:
        job.close()


@pytest.fixture
def make_lockstep(make_job: Callable[..., Job]) -> Callable[..., Job]:
    """Make jobs of 60 steps of 10 ms and a checkpoint every 10, which misbehave on request.

    They make the last step once the test waits for their end: no fault comes too late.
    """

    def make(*arguments: str, **fields: object) -> Job:
        job = make_job("lockstep.py", **fields)
        job.flags = [NO_STORE, *job.flags]
        job.arguments = [
            f"--checkpoint-dir={job.checkpoints}",
            f"--result={job.folder / 'result.json'}",
            f"--let-go={job.let_go}",
            *arguments,
        ]
        return job

    return make


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return what the lockstep job comes to when nothing goes wrong."""
    return _run_once(tmp_path_factory, "undisturbed", "--step-s=0")


@pytest.fixture
def make_pair(make_lockstep: Callable[..., Job]) -> Callable[..., Job]:
    """Make such jobs of two ranks: what four show that two don't, few tests are about."""
    return partial(make_lockstep, world_size=2)


@pytest.fixture(scope="session")
def undisturbed_pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return what such a job of two ranks comes to."""
    return _run_once(tmp_path_factory, "undisturbed-pair", "--step-s=0", world_size=2)


@pytest.fixture(scope="session")
def undisturbed_100(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return what the job of four ranks comes to in 100 steps."""
    return _run_once(tmp_path_factory, "undisturbed-100", "--step-s=0", "--steps=100")


@pytest.fixture(scope="session")
def undisturbed_long(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Return the same for 600 steps."""
    return _run_once(tmp_path_factory, "undisturbed-long", "--step-s=0", "--steps=600")


def _run_once(
    factory: pytest.TempPathFactory, name: str, *arguments: str, world_size: int = 4
) -> dict[str, object]:
    """Run the undisturbed job once for all workers of pytest-xdist."""
    own = factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "result.json").exists():
            folder.mkdir()
            told = run_undisturbed(folder, *arguments, world_size=world_size)
            assert told == lockstep.undisturbed(int(str(told["step"])), world_size=world_size)
    result: dict[str, object] = json.loads((folder / "result.json").read_text())
    return result


def run_undisturbed(folder: Path, *arguments: str, world_size: int = 4) -> dict[str, object]:
    job = Job(folder, JOBS / "lockstep.py", [], world_size, flags=[NO_STORE])
    job.arguments = [
        f"--checkpoint-dir={job.checkpoints}",
        f"--result={folder / 'result.json'}",
        *arguments,
    ]
    job.start()
    try:
        assert job.wait() == 0, job.output
        return job.result()
    finally:
        job.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make_nodes(nnodes: str, *flags: str, steps: int = 600, **fields: Any) -> Nodes:
        folder = fields.pop("folder", tmp_path)
        (folder / "policy.toml").write_text(fields.pop("policy", POLICY))
        arguments = [
            f"--checkpoint-dir={folder / 'checkpoints'}",
            f"--result={folder / 'result.json'}",
            f"--steps={steps}",
            f"--let-go={folder / LET_GO}",
        ]
        if steps == ENDLESS:
            arguments.append("--step-s=0.05")
        own = [] if "script" in fields else [NO_STORE]
        fields.setdefault("arguments", arguments)
        made.append(Nodes(folder, nnodes, flags=[*own, *flags], **fields))
        return made[-1]

    yield make_nodes
    for nodes in made:
        nodes.close()


@pytest.fixture
def make_meeting(make: Callable[..., Nodes], tmp_path: Path) -> Callable[..., Nodes]:
    def make_nodes(nnodes: str, **fields: Any) -> Nodes:
        flags = [f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--config={tmp_path}/policy.toml"]
        return make(nnodes, *flags, **fields)

    return make_nodes


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[str]:
    """A controller that runs as a service, on this machine alone."""
    with run_controller(tmp_path, PATIENT) as url:
        yield url


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Callable[[str], Service]]:
    made: list[Service] = []

    def make_service(name: str) -> Service:
        made.append(Service(tmp_path, name))
        return made[-1]

    yield make_service
    for one in made:
        if one.running is not None and one.running.poll() is None:
            one.running.terminate()
            one.running.wait(DEADLINE_S)

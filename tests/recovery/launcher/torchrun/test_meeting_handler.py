"""The handler around PyTorch's: what it leaves to that, and what it never does to a training. With a fake in its place."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from rankmend.hook.layout import ENV_CHECKPOINT
from rankmend_torchrun import get_handler
from recovery.launcher.torchrun.handler import (
    FINDINGS_URL,
    MeetingHandler,
    MeetingSettings,
)

ALONE = {"vet": "0", "journal": "0"}


class SignalException(Exception):  # noqa: N818 - its name is what counts
    """As torch.distributed.elastic.multiprocessing.api raises it out of a signal handler."""


@dataclass
class FakeStore:
    values: dict[str, str] = field(default_factory=dict)
    error: Exception | None = None

    def wait(self, _keys: list[str], _timeout: object) -> None:
        if self.error is not None:
            raise self.error

    def get(self, key: str) -> bytes:
        return self.values[key].encode()


@dataclass
class FakeInner:
    met: Any
    has_shut_down: bool = False
    use_agent_store: bool = True

    def next_rendezvous(self) -> Any:
        return self.met

    def num_nodes_waiting(self) -> int:
        return 3

    def shutdown(self) -> bool:
        self.has_shut_down = True
        return True


def handler(inner: FakeInner, **conf: str) -> MeetingHandler:
    parameters = SimpleNamespace(
        min_nodes=2, max_nodes=2, run_id="job", config={**ALONE, **conf}, backend="rankmend"
    )
    return MeetingHandler(inner, parameters)


@pytest.fixture(autouse=True)
def _environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_the_entry_point_takes_nothing_and_returns_a_creator() -> None:
    assert callable(get_handler())


def test_everything_else_is_the_inner_handlers() -> None:
    inner = FakeInner(met=SimpleNamespace(store=FakeStore(), rank=0, world_size=2))
    made = handler(inner)

    assert made.get_backend() == "rankmend"
    assert made.use_agent_store is True
    assert made.num_nodes_waiting() == 3
    assert made.next_rendezvous() is inner.met
    assert made.shutdown() is True
    assert inner.has_shut_down


def test_a_meeting_of_pytorch_before_2_4_is_a_tuple() -> None:
    store = FakeStore({"rankmend/checkpoint": "/ckpt/step_5.pt"})
    met = (store, 1, 2)

    assert handler(FakeInner(met), checkpoint_dir="/ckpt").next_rendezvous() is met
    assert os.environ[ENV_CHECKPOINT] == "/ckpt/step_5.pt"
    assert os.environ["RANKMEND_RESUME_PATH"] == "/ckpt/step_5.pt"


def test_a_checkpoint_that_nobody_names_in_time_is_none() -> None:
    os.environ[ENV_CHECKPOINT] = "/ckpt/of-the-attempt-before.pt"
    store = FakeStore(error=TimeoutError("no key within 75 s"))
    met = SimpleNamespace(store=store, rank=1, world_size=2)

    assert handler(FakeInner(met), checkpoint_dir="/ckpt").next_rendezvous() is met
    assert ENV_CHECKPOINT not in os.environ


def test_a_signal_to_torchrun_is_no_error_of_ours() -> None:
    store = FakeStore(error=SignalException("SIGTERM"))
    met = SimpleNamespace(store=store, rank=1, world_size=2)

    with pytest.raises(SignalException):
        handler(FakeInner(met), checkpoint_dir="/ckpt").next_rendezvous()


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({}, MeetingSettings()),
        ({"vet": "0"}, MeetingSettings(is_vetted=False)),
        ({"vet": "False", "journal": "no"}, MeetingSettings(is_vetted=False, has_journal=False)),
        ({"preflight": "quick"}, MeetingSettings(preflight="quick")),
        ({"preflight": "burn-in"}, MeetingSettings()),
        ({"agent": "http://10.0.0.1:1/"}, MeetingSettings(agent_url="http://10.0.0.1:1")),
        ({"agent": ""}, MeetingSettings(agent_url=FINDINGS_URL)),
        (
            {"checkpoint_dir": "/ckpt", "read_timeout": "60"},
            MeetingSettings(checkpoint_dir="/ckpt"),
        ),
    ],
)
def test_settings_are_read_from_rdzv_conf(conf: dict[str, str], expected: MeetingSettings) -> None:
    assert MeetingSettings.read(conf) == expected

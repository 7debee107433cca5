"""How much memory a controller keeps of a job that fails again and again.

    python -m bench.controller_growth                          # 600 incidents of one job of two nodes
    python -m bench.controller_growth --incidents 2000 --from 400 --lines 25

A real service in this process, and launchers that only speak: a rank is killed, the job recovers, its steps go on and it saves. What Python
has allocated after the first incidents is compared with what it has allocated after all of them, by the line that did. Tracing makes it slow.
"""

import argparse
import gc
import tempfile
import threading
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psutil

from recovery.messages.exchange import (
    Collected,
    Endpoint,
    Found,
    FoundCheckpoint,
    Order,
    RankExit,
    RankReport,
)
from recovery.service.jobs.served_job import Job
from tests.support.service import Speaker, make_folder, running, two_speakers

# Nothing waits for what nobody tells, and no limit ends the job.
_POLICY: Final = """
[quarantine]
blames = 1000000
[policy]
restarts_max = 1000000
tries_max = 1000000
restarts_per_day_max = 1000000
node_failures_max = 1000000
evidence_wait_s = 0.0
retry_pause_s = 0.0
retry_pause_max_s = 0.0
"""
_KILLED: Final = RankExit(0.1, None, 9, False, False, None, ())
_STEPS: Final = 30  # that an attempt makes
_WAIT_S: Final = 120.0
_REPORT_S: Final = 0.5
_AGAIN_S: Final = 0.05  # while a recovery is to be verified


class Follower:
    """A launcher that carries out its newest order at once."""

    def __init__(self, speaker: Speaker) -> None:
        self.speaker = speaker
        self.order: Order | None = speaker.order
        self.said_s = 0.0
        self.said = 0  # the revision of the newest order to stop that it has carried out
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._is_over = threading.Event()
        self._thread.start()

    def _follow(self) -> None:
        while not self._is_over.is_set():
            self.order = self.speaker.ask(wait_s=2.0) or self.order

    def say(self, **changes: Any) -> None:
        self.said_s = time.monotonic()
        self.speaker.say(**changes)

    def stop(self, order: Order, step: int) -> None:
        """Say that no rank is left, what was collected, and which checkpoint there is."""
        self.said = order.revision
        collected = found = None
        if order.collect is not None:
            collected = Collected(order.collect, order.attempt, "/evidence", 1, 10, 0.1, ())
        if order.finds_checkpoints:
            saved = FoundCheckpoint(f"/c/step-{step}", step, "file", 100, 1e9, True, "")
            found = Found(order.attempt, (saved,), None, order.revision)
        self.say(
            revision=order.revision,
            ranks=(),
            empty_through=order.attempt,
            rendezvous=Endpoint(f"{order.node}.example", 20000 + order.attempt % 40000),
            collected=collected,
            found=found,
        )

    def end(self) -> None:
        self._is_over.set()
        self._thread.join()


def ranks_of(order: Order, step: int, steps_done: int) -> tuple[RankReport, ...]:
    return tuple(
        RankReport(rank, place, 1000 + rank, "R", steps_done=steps_done, step=step,
                   step_age_s=0.01, attached_age_s=0.5, first_section_age_s=0.4)
        for place, rank in enumerate(order.ranks)
    )  # fmt: skip


def recover(followers: list[Follower], orders: list[Order | None], step: int, job: Job) -> None:
    """Have the ranks report until the incident is over: a failure before that joins it."""
    until_s = time.monotonic() + _WAIT_S
    while is_recovering(job):
        for one, order in zip(followers, orders, strict=True):
            if order is not None and time.monotonic() - one.said_s > _AGAIN_S:
                one.say(
                    revision=order.revision,
                    attempt=order.attempt,
                    ranks=ranks_of(order, step + _STEPS - 1, _STEPS - 1),
                )
        assert time.monotonic() < until_s, "the incident does not end"
        time.sleep(0.005)


def is_recovering(job: Job) -> bool:
    return job.controller is None or job.controller.ledger.incident is not None


def fail_once(followers: list[Follower], step: int, job: Job) -> int:
    """Have the job train, recover, fail and get the order of its next attempt; return its newest step."""
    orders = [one.order for one in followers]
    for done in range(1, _STEPS, 10):
        for one, order in zip(followers, orders, strict=True):
            assert order is not None
            one.say(
                revision=order.revision,
                attempt=order.attempt,
                ranks=ranks_of(order, step + done, done),
            )
    recover(followers, orders, step, job)
    first, order = followers[0], orders[0]
    assert order is not None
    dead, *others = ranks_of(order, step + _STEPS, _STEPS)
    dead = replace(dead, process_state="", exit=_KILLED)
    first.say(ranks=(dead, *others))
    attempt = order.attempt
    until_s = time.monotonic() + _WAIT_S
    while True:
        newest = [one.order for one in followers]
        for one, told in zip(followers, newest, strict=True):
            if told is not None and not told.ranks and told.revision != one.said:
                one.stop(told, step)
            elif told is not None and time.monotonic() - one.said_s > _REPORT_S:
                one.say()  # one that is silent gets no ranks
        if all(told is not None and told.ranks and told.attempt > attempt for told in newest):
            return step + _STEPS
        assert time.monotonic() < until_s, f"no new attempt after {attempt}: {newest}"
        time.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--incidents", type=int, default=600)
    parser.add_argument("--from", dest="first", type=int, default=100, help="before it is measured")
    parser.add_argument("--lines", type=int, default=20, help="of the code that are shown")
    parser.add_argument("--frames", type=int, default=1, help="of the stack that are told apart")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rankmend-growth-") as made:
        folder = Path(made)
        config = make_folder(folder)
        (folder / "policy.toml").write_text(_POLICY)
        text = config.read_text().replace("#reports_per_node = 10.0", "reports_per_node = 1e6")
        config.write_text(f'policy_file = "{folder}/policy.toml"\n{text}')
        tracemalloc.start(options.frames)
        with running(folder) as up:
            speakers = two_speakers(up.client("launch"))
            followers = [Follower(one) for one in speakers]
            job = up.service.worker.jobs.running[speakers[0].job_id]
            step, before, kinds = 0, None, Counter[str]()
            for number in range(options.incidents):
                if number == options.first:
                    before, kinds = measure(number), count_kinds()
                step = fail_once(followers, step, job)
                if number % 100 == 99:
                    rss = psutil.Process().memory_info().rss / 2**20
                    traced = tracemalloc.get_traced_memory()[0] / 2**20
                    print(
                        f"{number + 1} incidents: {rss:.1f} MiB resident, {traced:.1f} MiB traced",
                        flush=True,
                    )
            after, kinds = measure(options.incidents), count_kinds() - kinds
            assert job.controller is not None
            opened = job.controller.ledger.incidents
            assert opened == options.incidents, f"{opened} incidents, not {options.incidents}"
            for one in followers:
                one.end()
    assert before is not None
    grown = after.compare_to(before, "lineno" if options.frames == 1 else "traceback")
    count = options.incidents - options.first
    print(
        f"KiB an incident, and objects of it, from incident {options.first} to {options.incidents}:"
    )
    for line in grown[: options.lines]:
        where = "\n".join(line.traceback.format()) if options.frames > 1 else str(line.traceback[0])
        print(f"{line.size_diff / 1024 / count:8.2f} {line.count_diff / count:8.1f}  {where}")
    print(f"{sum(one.size_diff for one in grown) / 1024 / count:8.2f}           in all")
    print("Objects more, by class:")
    for kind, more in kinds.most_common(options.lines):
        print(f"{more:8}  {kind}")


def count_kinds() -> Counter[str]:
    """Return how many objects of each class there are that the garbage collector knows."""
    return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())


def measure(number: int) -> tracemalloc.Snapshot:
    time.sleep(3.0)  # the account of the time follows
    gc.collect()
    print(f"after {number} incidents", flush=True)
    return tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(False, tracemalloc.__file__)]
    )


if __name__ == "__main__":
    main()

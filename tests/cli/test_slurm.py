"""What `rankmend slurm` says of requests."""

from rankmend.cli.slurm import say_mode, say_requests
from recovery.api import wire


def request(key: str, outcome: str, text: str = "", **fields: object) -> wire.SlurmRequestView:
    given = {"action": "drain", "nodes": ["n1"], "slurm_job": "", "reason": "", **fields}
    return wire.SlurmRequestView(
        key=key,
        asked_unix_s=1_795_000_000.0,
        outcome=outcome,
        text=text,
        **given,  # type: ignore[arg-type]
    )


def test_open_requests_come_first_with_what_they_wait_for_and_why() -> None:
    done = request("a", "done", "n1 is drained", reason="GPU 3 is bad\x1b[2J")
    waits = request(
        "b", "", "the cluster is paused", action="requeue", slurm_job="41", nodes=["n1", "n2"]
    )

    lines = say_requests([done, waits], with_all=False)

    assert [line.partition(" UTC ")[2] for line in lines[:2]] == [
        "open: requeue job 41 without n1, n2: the cluster is paused",
        "done: drain n1: n1 is drained",
    ]
    assert lines[2] == "  because: GPU 3 is bad␛[2J"


def test_older_requests_are_counted() -> None:
    ended = [request(str(number), "dry", "would drain n1") for number in range(25)]

    assert say_requests(ended, with_all=False)[-1] == "and 5 older requests (--all)"
    assert len(say_requests(ended, with_all=True)) == 25
    assert say_requests([], with_all=False) == ["no request was sent to Slurm"]


def test_the_mode_says_whether_anything_is_carried_out() -> None:
    off = wire.SlurmView(enabled=False, acts=False, problem="", requests=[], nodes=[])
    dry = wire.SlurmView(enabled=True, acts=False, problem="no route", requests=[], nodes=[])

    assert say_mode(off).startswith("Slurm: off")
    assert say_mode(dry).startswith("Slurm: dry")
    assert say_mode(dry).endswith("no answer: no route")

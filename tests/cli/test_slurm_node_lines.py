"""What `rankmend status --nodes` says of nodes that rankmend has drained in Slurm."""

import io

from rich.console import Console

from rankmend.cli.screens.slurm_node_lines import render_slurm_nodes
from recovery.api import wire


def event(kind: str, text: str) -> wire.SlurmNodeEventView:
    return wire.SlurmNodeEventView(1_795_000_000.0, kind, text)


def shown(*nodes: wire.SlurmNodeView) -> list[str]:
    out = io.StringIO()
    console = Console(width=400, file=out)
    for line in render_slurm_nodes(nodes):
        console.print(line)
    return out.getvalue().splitlines()


def test_a_node_is_shown_with_its_reason_and_history_and_those_for_a_person_come_first() -> None:
    waiting = wire.SlurmNodeView(
        "n1", True, [], "", "waiting", "return_check failed (exit code 3): row remaps",
        1_795_000_900.0, [event("drained", "GPU 3 is bad"), event("checked", "failed")],
    )  # fmt: skip
    offender = wire.SlurmNodeView("n2", True, [], "", "offender", "drained 3 times\x1b[2J")
    back = wire.SlurmNodeView("n0", False, [], "its check has passed")

    lines = shown(waiting, offender, back)

    assert [line[:3] for line in lines] == ["n2:", "n1:", "  2", "  2", "n0:"]
    assert "offender: drained 3 times" in lines[0]
    assert "\x1b" not in lines[0]
    assert "exit code 3): row remaps (next check 2026-" in lines[1]
    assert lines[2].endswith(" drained: GPU 3 is bad")
    assert lines[4] == "n0: back in Slurm: its check has passed"


def test_a_long_history_is_cut_and_says_so() -> None:
    events = [event("checked", f"try {number}") for number in range(20)]

    lines = shown(wire.SlurmNodeView("n1", True, [], "", "waiting", "", None, events))

    assert len(lines) == 8
    assert "14 earlier events" in lines[1]
    assert lines[-1].endswith("try 19")

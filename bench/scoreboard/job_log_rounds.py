"""Logs that were labelled first and judged before any rule was made for them, and what others publish of theirs.

Each row was counted once, with the rules of its day: what a rule was made for is in the corpus after that, and says no
more how often a log from elsewhere is read right. `docs/internals/scoreboard.md` has the table of it.
"""

from dataclasses import dataclass
from typing import Final

from bench.scoreboard.scores import wilson


@dataclass(frozen=True, slots=True)
class Share:
    """How many of the answers that a label fixes were right."""

    right: int
    count: int

    @property
    def text(self) -> str:
        low, high = wilson(self.right, self.count)
        return f"{self.right} of {self.count} ({low:.2f} to {high:.2f})"


@dataclass(frozen=True, slots=True)
class Round:
    """One look at logs that no rule had seen."""

    logs: str
    judge: str
    decisions: Share
    culprits: Share | None = None
    classes: Share | None = None
    wrong_stops: int | None = None


NVRX: Final = "NVRx's own, as [its pull request 390](https://github.com/NVIDIA/nvidia-resiliency-ext/pull/390) publishes"
ROUNDS: Final = (
    Round("of public threads, the day the rules were made", "rankmend", Share(80, 86), Share(20, 27), Share(34, 38), 1),
    Round("of public threads, a day later", "rankmend", Share(27, 28), Share(10, 11), Share(10, 10), 0),
    Round("of a corpus that others made and keep, with the rules so far", "rankmend", Share(48, 63), None, None, 0),
    Round("over the 38 kinds of NVRx's taxonomy, with the rules so far", "rankmend", Share(58, 68), Share(20, 23), Share(38, 42), 0),
    Round("in other frameworks' words, after the rules for those 68", "rankmend", Share(66, 71), Share(14, 14), Share(37, 41), 0),
    Round("of public threads, after the rules for those 71", "rankmend", Share(17, 22), Share(2, 2), Share(5, 5), 0),
    Round("of public threads that no look had cited, with the rules so far", "rankmend", Share(83, 93), Share(6, 6), Share(31, 37), 0),
    Round("of public threads, half of other accelerators and schedulers, after the rules for those 93", "rankmend", Share(50, 60), None, Share(8, 14), 1),
    Round("of public threads, signals, memory, NCCL and files, after the rules for those 60", "rankmend", Share(36, 37), None, Share(13, 15), 0),
    Round("of public threads that no look had cited, of all kinds, after the rules for those 37", "rankmend", Share(80, 83), Share(2, 2), Share(47, 54), 0),
    Round("of public threads, after the rules for those 83", "rankmend", Share(45, 50), Share(0, 1), Share(24, 28), 0),
    Round("of public threads, of kinds that the corpus had few of, after the rules for those 50", "rankmend", Share(70, 82), Share(5, 11), Share(19, 26), 0),
    Round("the same kinds again, mostly of other accelerators' and launchers' own words, after the rules for those 82", "rankmend", Share(30, 41), Share(3, 3), Share(6, 10), 0),
    Round("of public threads, of all kinds, after the rules for those 41", "rankmend", Share(58, 60), Share(2, 2), Share(26, 29), 0),
    Round("of public threads, after the rules for those 60", "rankmend", Share(27, 29), Share(0, 1), Share(7, 8), 1),
    Round("of public threads that no look had cited, of kinds that the corpus had few of, after the rules for those 29", "rankmend", Share(27, 30), Share(1, 1), Share(4, 4), 0),
    Round("of public threads that no look had cited, of all kinds, after the rules for those 30", "rankmend", Share(65, 71), Share(11, 12), Share(26, 33), 0),
    Round("of public threads, after the rules for those 71", "rankmend", Share(33, 34), Share(6, 6), Share(14, 16), 0),
    Round(NVRX, "its rules", Share(59, 79)),
    Round("the same", "nemotron, 20 to 63 s a log", Share(75, 79)),
    Round("the same", "qwen", Share(77, 79)),
    Round("the same", "gpt, gemini", Share(79, 79)),
)  # fmt: skip


def markdown() -> str:
    """Return the table of the rounds, with 95 % Wilson intervals."""
    lines = [
        "| logs | who judges | decision | culprit ranks | class | wrong `stop` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in ROUNDS:
        shares = (row.decisions, row.culprits, row.classes)
        cells = [row.logs, row.judge, *("" if share is None else share.text for share in shares)]
        cells.append("" if row.wrong_stops is None else str(row.wrong_stops))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"

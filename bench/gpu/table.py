"""The report's two files: JSON for programs, and the dated table of docs/reference/proved-on-gpu.md."""

import html
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.gpu import areas
from bench.gpu.rows import Outcome, Row

_HEAD = """# Proved on a GPU

Written by `make gpu` on the machine below; `bench/gpu/` has each row's code. *Not tried* says why, and counts as unproved.

"""
_LINE_END = "<br>"
_TITLES = {
    "nvml": "NVML",
    "sections": "Sections by CUDA events",
    "snapshots": "Snapshots",
    "recovery": "Recovery with a CUDA context",
    "frameworks": "Frameworks",
    "nccl": "NCCL",
    "repeat": "Repeatability",
    "faults": "Faults that software can cause",
}


@dataclass
class Report:
    machine: Mapping[str, str] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)

    def write(self, output: Path, page: Path) -> None:
        rows = [asdict(row) for row in self.rows.values()]
        text = json.dumps({"machine": self.machine, "rows": rows}, indent=1, default=str)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(text + "\n", encoding="utf-8")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(self.to_markdown(), encoding="utf-8")

    def to_markdown(self) -> str:
        """Return the page: the machine, then a table for each area, in the order of the areas."""
        machine = [
            f"| {_cell(name)} | {_cell(value) or 'unknown'} |\n"
            for name, value in self.machine.items()
        ]
        counts = {kind: sum(row.outcome is kind for row in self.rows.values()) for kind in Outcome}
        parts = [_HEAD, "| | |\n| --- | --- |\n", *machine, "\n"]
        parts.append(", ".join(f"{count} {kind.value}" for kind, count in counts.items()) + ".\n")
        for name in areas.NAMES:
            rows = [row for row in self.rows.values() if row.id.partition(".")[0] == name]
            if rows:
                head = "| claim | result | measured |\n| --- | --- | --- |\n"
                parts += [f"\n## {_TITLES[name]}\n\n", head, *map(self._line, rows)]
        return "".join(parts)

    def _line(self, row: Row) -> str:
        result = "passed" if row.outcome is Outcome.PASSED else f"**{row.outcome.value}**"
        if row.commit != self.machine.get("commit"):
            result += f" (at {row.commit or 'an unknown commit'})"
        figures = [f"{name}: {value}" for name, value in row.figures.items()]
        cells = (
            row.claim,
            result,
            _LINE_END.join(_cell(text) for text in (*figures, row.why) if text),
        )
        return "| " + " | ".join(cells) + " |\n"


def _cell(text: str) -> str:
    """Return a text that can neither end its cell nor become markup."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;").replace("`", "'")


def read(path: Path) -> Report:
    """Return the rows of an earlier run, or none where there was no run."""
    if not path.exists():
        return Report()
    kept = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(**{**row, "outcome": Outcome(row["outcome"])}) for row in kept["rows"]]
    return Report(kept["machine"], {row.id: row for row in rows})

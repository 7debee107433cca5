"""The report's two files: JSON for programs, and the dated table of docs/reference/proved-on-gpu.md."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.gpu import areas
from bench.gpu.rows import Outcome, Row

_HEAD = """# Proved on a GPU

Written by `make gpu` on the machine below; `bench/gpu/` has each row's code. *Not tried* says why, and counts as unproved.

"""
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
        machine = [f"| {name} | {value or 'unknown'} |\n" for name, value in self.machine.items()]
        counts = {kind: sum(row.outcome is kind for row in self.rows.values()) for kind in Outcome}
        parts = [_HEAD, "| | |\n| --- | --- |\n", *machine, "\n"]
        parts.append(", ".join(f"{count} {kind.value}" for kind, count in counts.items()) + ".\n")
        for name in areas.NAMES:
            rows = [row for row in self.rows.values() if row.id.partition(".")[0] == name]
            if rows:
                parts += [
                    f"\n## {_TITLES[name]}\n\n",
                    "| claim | result | measured |\n| --- | --- | --- |\n",
                ]
                parts += [_line(row) for row in rows]
        return "".join(parts)


def _line(row: Row) -> str:
    figures = ", ".join(f"{name} {value}" for name, value in row.figures.items())
    measured = "; ".join(filter(None, [figures, row.why]))
    cells = (
        row.claim,
        f"**{row.outcome.value}**" if row.outcome is not Outcome.PASSED else "passed",
        measured,
    )
    return "| " + " | ".join(cell.replace("|", "/").replace("\n", " ") for cell in cells) + " |\n"


def read(path: Path) -> Report:
    """Return the rows of an earlier run, or none where there was no run."""
    if not path.exists():
        return Report()
    kept = json.loads(path.read_text(encoding="utf-8"))
    rows = [Row(**{**row, "outcome": Outcome(row["outcome"])}) for row in kept["rows"]]
    return Report(kept["machine"], {row.id: row for row in rows})

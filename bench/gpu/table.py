"""The report's two files: JSON for programs, and the dated table of docs/reference/proved-on-gpu.md."""

import html
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench.gpu import areas
from bench.gpu.rows import Outcome, Row

_HEAD = """# Proved on a GPU

For those who ask what was seen on a real GPU.

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

    def add(self, row: Row) -> None:
        """Take a row that was tried on this machine now."""
        commit = self.machine.get("commit", "")
        self.rows[row.id] = replace(row, commit=commit, tried_on=_name_of(self.machine))

    def write(self, output: Path, page: Path) -> None:
        """Write both files, each whole at any moment."""
        rows = [asdict(row) for row in self.rows.values()]
        text = json.dumps({"machine": self.machine, "rows": rows}, indent=1, default=str)
        _replace(output, text + "\n")
        _replace(page, self.to_markdown())

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
        tried = []
        if row.commit != self.machine.get("commit"):
            tried.append(f"at {row.commit or 'an unknown commit'}")
        if row.tried_on != _name_of(self.machine):
            tried.append(f"on {_cell(row.tried_on) or 'an unknown machine'}")
        if tried:
            result += f" ({', '.join(tried)})"
        figures = [f"{name}: {value}" for name, value in row.figures.items()]
        cells = (
            row.claim,
            result,
            _LINE_END.join(_cell(text) for text in (*figures, row.why) if text),
        )
        return "| " + " | ".join(cells) + " |\n"


def _name_of(machine: Mapping[str, str]) -> str:
    """Return what tells one machine and day from another."""
    known = (machine.get("gpu"), machine.get("driver"), machine.get("date"))
    return ", ".join(text for text in known if text)


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _cell(text: str) -> str:
    """Return a text that can neither end its cell nor become markup."""
    return html.escape(" ".join(text.split()), quote=False).replace("|", "&#124;").replace("`", "'")


def read(path: Path) -> Report:
    """Return the rows of an earlier run, or none where there was no run."""
    if not path.exists():
        return Report()
    kept = json.loads(path.read_text(encoding="utf-8"))
    here = {"tried_on": _name_of(kept["machine"])}  # of a file from before rows said it
    rows = [Row(**{**here, **row, "outcome": Outcome(row["outcome"])}) for row in kept["rows"]]
    return Report(kept["machine"], {row.id: row for row in rows})

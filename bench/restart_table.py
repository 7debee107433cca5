"""What the trials of bench/restart.py come to: medians for each launcher and kill, as rows and as tables."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PHASES = ("started_s", "imported_s", "connected_s", "restored_s")


@dataclass(frozen=True, slots=True)
class Trial:
    """One kill. Times in seconds after it; None where the job did not come back."""

    peer: str
    killed_rank: int
    is_recovered: bool
    kill: int = 1  # 1: the first of its run
    first_step_s: float | None = None
    all_ranks_s: float | None = None
    steps_recomputed: int | None = None
    started_s: float | None = None  # the slowest new process's, like the following ones
    imported_s: float | None = None
    connected_s: float | None = None
    restored_s: float | None = None
    killed_unix_s: float = 0.0
    # rankmend's own account, in the order of its phases. Empty: another launcher, or no account.
    account: Mapping[str, float] = field(default_factory=dict)


def summarize(peers: list[str], trials: list[Trial]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for name in peers:
        for kill in sorted({trial.kill for trial in trials if trial.peer == name}):
            mine = [trial for trial in trials if trial.peer == name and trial.kill == kill]
            rows.append(_row(name, kill, mine))
    return rows


def _row(name: str, kill: int, trials: list[Trial]) -> dict[str, object]:
    good = [trial for trial in trials if trial.is_recovered]
    row: dict[str, object] = {
        "peer": name,
        "kill": kill,
        "trials": len(trials),
        "recovered": len(good),
    }
    for key in ("first_step_s", "all_ranks_s", "steps_recomputed", *PHASES):
        values = [getattr(trial, key) for trial in good]
        row[key] = statistics.median(values) if values else None
    times = [trial.first_step_s for trial in good if trial.first_step_s is not None]
    row["first_step_s_range"] = [min(times), max(times)] if times else None
    names = dict.fromkeys(name for trial in good for name in trial.account)
    row["account"] = {
        name: statistics.median(one.account[name] for one in good if name in one.account)
        for name in names
    }
    return row


def print_table(machine: dict[str, object], rows: list[dict[str, object]]) -> None:
    print(
        f"\n{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']},"
        f" Python {machine['python']}, torch {machine['torch']}"
    )
    print("seconds from kill -9 of a rank to the next step, medians; phases of the slowest rank\n")
    phases = "".join(f"{phase.removesuffix('_s'):>11}" for phase in PHASES)
    print(
        f"{'launcher':<18}{'kill':>5}{'recovered':>10}{phases}{'first step':>12}"
        f"{'range':>16}{'all ranks':>11}"
    )
    for row in rows:
        ratio = f"{row['recovered']}/{row['trials']}"
        if row["first_step_s"] is None:
            print(f"{row['peer']:<18}{row['kill']:>5}{ratio:>10}{'never':>12}")
            continue
        low, high = row["first_step_s_range"]
        span = f"{low:.2f} to {high:.2f}"
        phases = "".join(f"{row[phase]:>11.2f}" for phase in PHASES)
        print(
            f"{row['peer']:<18}{row['kill']:>5}{ratio:>10}{phases}{row['first_step_s']:>12.2f}"
            f"{span:>16}{row['all_ranks_s']:>11.2f}"
        )


def account_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the phases that took time in any row, in their order."""
    names = [name for row in rows for name in row["account"]]
    return [name for name in dict.fromkeys(names) if any(row["account"].get(name) for row in rows)]


def print_accounts(rows: list[dict[str, Any]]) -> None:
    """Print the phases of rankmend's own account; they follow each other, unlike the times above."""
    names = account_names(rows)
    if not names:
        return
    print("\nseconds that each phase took by rankmend's own account, medians\n")
    heads = "".join(f"{name.removesuffix('_s').replace('_', ' '):>11}" for name in names)
    print(f"{'launcher':<18}{'kill':>5}{heads}")
    for row in rows:
        if row["account"]:
            times = (row["account"].get(name) for name in names)
            cells = "".join(f"{'-':>11}" if one is None else f"{one:>11.3f}" for one in times)
            print(f"{row['peer']:<18}{row['kill']:>5}{cells}")

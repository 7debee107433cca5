"""Three controllers on one PostgreSQL under faults, with simulated launchers; then two checkers over everything.

    make jepsen                                      # an hour
    .venv/bin/python -m bench.jepsen --seconds 180 --seed 7
    .venv/bin/python -m bench.jepsen --seconds 60 --without-fencing    # the checker must find violations

Exit code 0: no rule was violated; 1: one was, or the run failed. Needs root (namespaces for the network and the disk), Debian's
postgresql, nftables, and cc.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from bench.jepsen.trial import Setting, Trial, run


def main() -> None:
    options = parse()
    if not options.inside:
        sys.exit(_enter())
    setting = Setting(
        options.seed, options.seconds, options.jobs, options.lease_s, options.deaths_per_job_s, options.alert_s,
        options.settle_s, options.restarts_max, options.stops_per_hour_max, options.deaths_min, options.without_fencing,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="rankmend-jepsen-") as folder:
        trial = run(setting, Path(folder), say)
        if options.keep is not None:
            _keep(trial, Path(folder), options.keep)
    told = to_json(trial)
    print(table(trial), flush=True)
    if options.output is not None:
        options.output.write_text(json.dumps(told, indent=1) + "\n")
    if options.page is not None:
        options.page.write_text(page(trial), encoding="utf-8")
    sys.exit(1 if trial.violations or trial.second.violations or trial.problems else 0)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="with faults")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--jobs", type=int, default=40)
    parser.add_argument("--lease-s", type=float, default=8.0)
    parser.add_argument(
        "--deaths-per-job-s", type=float, default=60.0, help="between two, in the mean"
    )
    parser.add_argument(
        "--alert-s", type=float, default=5.0, help="between two alerts, in the mean"
    )
    parser.add_argument("--settle-s", type=float, default=300.0, help="for incidents to end")
    parser.add_argument("--restarts-max", type=int, default=60, help="of a run of a job")
    parser.add_argument("--stops-per-hour-max", type=int, default=12, help="of all jobs")
    parser.add_argument("--deaths-min", type=int, default=0, help="however long that takes")
    parser.add_argument(
        "--without-fencing",
        action="store_true",
        help="break the database's refusal, to see the checker find it",
    )
    parser.add_argument("--output", type=Path, help="file for the result as JSON")
    parser.add_argument(
        "--page", type=Path, help="file for the result as a page of the documentation"
    )
    parser.add_argument("--keep", type=Path, help="folder for logs and what was written and seen")
    parser.add_argument(
        "--inside", action="store_true", help=argparse.SUPPRESS
    )  # of the namespaces
    return parser.parse_args()


def _enter() -> int:
    """Run the same in network and mount namespaces of its own."""
    if os.getuid() != 0:
        sys.exit("bench.jepsen needs root: it makes namespaces, nftables rules and a small disk")
    command = ["unshare", "--net", "--mount", "--propagation", "private", "--"]
    command += [sys.executable, "-m", "bench.jepsen", "--inside", *sys.argv[1:]]
    return subprocess.run(command, check=False).returncode


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def to_json(trial: Trial) -> dict[str, object]:
    return {
        "setting": asdict(trial.setting),
        "violations": [
            {"rule": one.rule.name, "about": one.about, "text": one.text}
            for one in trial.violations
        ],
        "second": asdict(trial.second),
        "problems": list(trial.problems),
        "settled_s": round(trial.settled_s, 1),
        "counts": trial.counts,
        "faults": trial.faults,
    }


def table(trial: Trial) -> str:
    lines = [
        f"seed {trial.setting.seed}, {trial.setting.seconds:g} s of faults, {trial.setting.jobs} jobs",
        "",
    ]
    lines += ["| what | count |", "| --- | --- |"]
    lines += [f"| {name} | {number:,} |" for name, number in trial.counts.items()]
    lines += [f"| fault: {name} | {number} |" for name, number in sorted(trial.faults.items())]
    lines += ["", f"{len(trial.violations)} violations; settled after {trial.settled_s:.0f} s"]
    lines += [f"{one.rule.name}: {one.about}: {one.text}" for one in trial.violations[:40]]
    lines += [f"second checker: {trial.second.in_words}"]
    lines += [f"second: {one}" for one in trial.second.violations[:40]]
    lines += [f"PROBLEM: {one}" for one in trial.problems]
    return "\n".join(lines)


def page(trial: Trial) -> str:
    """Return the run as a page of the documentation."""
    setting = ", ".join(f"{name} {value}" for name, value in asdict(trial.setting).items())
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f} at the end"
    return (
        "# A run of three controllers on one PostgreSQL\n\n"
        "For those who decide whether to trust several controllers. `python -m bench.jepsen --page docs/reference/jepsen.md` writes this page "
        "([how it works](../../bench/README.md#jepsen)).\n\n"
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {machine}. {setting}.\n\n"
        f"Two checkers that share no code read the same history (SHA-256 `{trial.second.sha256}`).\n\n"
        f"{table(trial)}\n"
    )


def _keep(trial: Trial, folder: Path, kept: Path) -> None:
    """Keep the controllers' logs and all that was written and seen, for people."""
    kept.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "history.jsonl", kept)
    for log in folder.glob("controller-*/log"):
        (kept / f"{log.parent.name}.log").write_bytes(log.read_bytes())
    history = trial.history
    for journal in (*history.journals, history.cluster):
        lines = [
            f"{one.committed_unix_s:.3f} {one.writer[:8]} {one.lease_epoch} {one.entry}"
            for one in journal.entries
        ]
        (kept / f"{journal.name.replace(':', '-')}.txt").write_text("\n".join(lines) + "\n")
    (kept / "seen.txt").write_text("\n".join(map(str, (*history.orders, *history.lives))) + "\n")


if __name__ == "__main__":
    main()

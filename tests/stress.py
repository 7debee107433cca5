"""What `make stress` runs: chosen tests many times, beside a load that keeps the cores busy.

    python -m tests.stress --times 20 --load 8 [--workers 4] FILE ...

Each round is a run of its own without second chances. Prints which tests failed in how many rounds, and their last output.
"""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
BUSY = "while True: pass"


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep this many processes busy, which end with this one."""
    tied = ("setpriv", "--pdeathsig=KILL", "--", sys.executable, "-I", "-S", "-c", BUSY)
    started = [subprocess.Popen(tied) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def failures(report: Path) -> Iterator[tuple[str, str]]:
    """Yield each test that a JUnit report has as failed, with what it printed."""
    # The report is pytest's own, of this run.
    for case in ElementTree.parse(report).iter("testcase"):
        for kind in ("failure", "error"):
            found = case.find(kind)
            if found is not None:
                yield f"{case.get('classname')}::{case.get('name')}", found.text or ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--load", type=int, default=8)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("tests", nargs="+")
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    printed: dict[str, str] = {}
    broken = 0
    with tempfile.TemporaryDirectory() as folder, load(options.load):
        for number in range(1, options.times + 1):
            report = Path(folder) / "report.xml"
            report.unlink(missing_ok=True)
            done = subprocess.run(
                [
                    *(sys.executable, "-m", "pytest", "-q", "--no-header", f"--junitxml={report}"),
                    *(f"--numprocesses={options.workers}", *options.tests),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
            )
            last = next(iter(done.stdout.strip().splitlines()[-1:]), "")
            print(f"{number:3} of {options.times}: {last}", flush=True)
            failed = list(failures(report)) if report.exists() else []
            if done.returncode != 0 and not failed:
                broken += 1
                sys.stdout.write(done.stdout[-4000:] + done.stderr[-2000:])
            for test, text in failed:
                counts[test] += 1
                printed[test] = text
    for test, text in printed.items():
        print(f"\n=== {test}\n{text}")
    print(f"\n{'rounds':>6}  test that failed")
    for test, count in counts.most_common():
        print(f"{count:6}  {test}")
    if broken:
        print(f"{broken:6}  (the run itself)")
    return 1 if counts or broken else 0


if __name__ == "__main__":
    sys.exit(main())

"""What `rankmend diagnose log` gets right of the labelled corpus of logs, with Wilson intervals.

    python -m bench.scoreboard.job_logs

The corpus is that of the tests, and the rules were made with it in sight: docs/internals/scoreboard.md has the figures
of logs that were judged before any rule was made for them.
"""

from collections.abc import Callable, Mapping
from typing import Final

from bench.scoreboard.scores import wilson
from detectors.job_log.lines import LogSource
from detectors.job_log.verdict import LogVerdict, diagnose_log
from tests.support.job_log_cases import JOB_LOG_CASES
from tests.support.job_log_cases_forms import JobLogCase

# For each answer whether it is right, or None where the label leaves it open.
ANSWERS: Final[Mapping[str, Callable[[JobLogCase, LogVerdict], bool | None]]] = {
    "decision": lambda case, verdict: verdict.decision.value in (case.decision, *case.also),
    "culprit ranks": lambda case, verdict: (
        None
        if case.culprit_ranks is None
        else set(case.culprit_ranks) == set(verdict.culprit_ranks)
    ),
    "culprit nodes": lambda case, verdict: (
        None
        if case.culprit_nodes is None
        else set(case.culprit_nodes) == set(verdict.culprit_nodes)
    ),
    "class": lambda case, verdict: (
        None if case.error_class is None else case.error_class == verdict.error_class.value
    ),
    "blame": lambda case, verdict: (
        None if case.blame is None else case.blame == verdict.blame.value
    ),
    "no wrong stop": lambda case, verdict: (
        verdict.decision.value != "stop" or "stop" in (case.decision, *case.also)
    ),
}


def judge(case: JobLogCase) -> LogVerdict:
    """Return what rankmend says of a case."""
    return diagnose_log(
        [
            LogSource(name, text.encode("utf-8", "surrogateescape").splitlines(keepends=True))
            for name, text in case.files.items()
        ]
    )


def main() -> None:
    """Print one row for each answer."""
    judged = [(case, judge(case)) for case in JOB_LOG_CASES]
    for name, is_right in ANSWERS.items():
        rights = [is_right(case, verdict) for case, verdict in judged]
        known = [right for right in rights if right is not None]
        low, high = wilson(sum(known), len(known))
        print(f"{name:14} {sum(known):4} of {len(known):4} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()

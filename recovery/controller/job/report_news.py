"""Tells a report that calls for a decision from one that only says that a healthy job goes on. Pure.

Of 2,000 reports a second nearly all say just that. A tick after each of them looked at every node of a job 20 times a second and
found nothing; what is judged by time alone (silence, stand-stills, slow ranks) is looked for in every tick anyway.
"""

from recovery.journal.ledger import Ledger, Wish
from recovery.messages.exchange import RankReport, Report


def brings_only_progress(report: Report, ledger: Ledger) -> bool:
    """Return whether all is well with the job, and the report has nothing in it but how far its ranks are."""
    member = ledger.members.get(report.node)
    return (
        is_well(ledger)
        and member is not None
        and member.launcher_id == report.launcher_id
        and report.attempt == ledger.attempt
        and report.epoch in (0, ledger.epoch)  # 0: of a launcher that knows no epochs
        and report.revision >= ledger.revision
        and not (report.leaving or report.findings or report.unreachable or report.copy_faults)
        and report.launch_error is None
        and report.stop_requested is None
        and report.claim is None
        and report.found is None
        and report.collected is None
        and report.hardware is None
        and all(map(_only_trains, report.ranks))
    )


def is_well(ledger: Ledger) -> bool:
    """Return whether every rank was seen to train, and nothing is being done about the job."""
    return (
        ledger.is_verified
        and ledger.wish is Wish.RANKS
        and ledger.incident is None
        and ledger.behind is None
        and ledger.closing is None
        and ledger.goes_back is None
    )


def _only_trains(rank: RankReport) -> bool:
    return (
        rank.exit is None
        and rank.progress_error is None
        and rank.first_bad_loss is None
        and rank.first_bad_grad_norm is None
    )

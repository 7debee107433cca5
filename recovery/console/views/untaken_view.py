"""What the cluster's rules would have had done and was not, and drains by others, as the API shows them. Pure."""

from collections.abc import Callable, Iterator

from recovery.api import wire
from recovery.controller.cluster.cluster_ledger import ClusterLedger
from recovery.journal.slurm_records import SlurmOutcome
from recovery.schedulers.slurm.ledger import SlurmLedger


def view_untaken(
    cluster: ClusterLedger, slurm: SlurmLedger | None, name_of: Callable[[str], str]
) -> wire.Untaken:
    """Return it from both journals, oldest first; ``name_of`` gives a job's name by its id."""
    found = sorted(_untaken(cluster, slurm, name_of), key=lambda view: view.at_unix_s)
    drains = [
        wire.DrainSeenView(unix_s, drain.node, drain.who, "rankmend")
        for unix_s, drain in cluster.drains
    ]
    if slurm is not None:
        drains += [
            wire.DrainSeenView(unix_s, item.node, item.who, "Slurm")
            for unix_s, item in slurm.drains_seen
        ]
    return wire.Untaken(found, sorted(drains, key=lambda drain: drain.unix_s))


def _untaken(
    cluster: ClusterLedger, slurm: SlurmLedger | None, name_of: Callable[[str], str]
) -> Iterator[wire.UntakenView]:
    for unix_s, requested in cluster.watched:
        if requested.is_dry:
            yield wire.UntakenView(
                unix_s, "watched", requested.action, "dry_run", requested.reason, requested.job_id, requested.job, "", list(requested.nodes)
            )  # fmt: skip
    for unix_s, retained in cluster.not_done:
        name = name_of(retained.job_id)
        why = "observe" if retained.is_observed else "launchers_alone"
        yield wire.UntakenView(
            unix_s, "cluster", retained.act.value, why, retained.reason, retained.job_id, name, retained.incident_id, [retained.node]
        )  # fmt: skip
    for work in () if slurm is None else slurm.works.values():
        if work.ended is not None and work.ended.outcome is SlurmOutcome.DRY:
            request = work.request
            yield wire.UntakenView(
                work.ended_unix_s, "slurm", request.action.value, "dry_run", request.reason, "", "", "", list(request.nodes)
            )  # fmt: skip

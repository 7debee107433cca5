"""Whether nodes may test the network now, as far as jobs share it: one probe at a time, and so many an hour. Pure."""

from collections.abc import Callable
from typing import Final

from recovery.controller.cluster.cluster_ledger import ClusterLedger
from recovery.controller.cluster.cluster_limits import ClusterPolicy
from recovery.journal.observation_records import FabricProbeAsked
from recovery.journal.witnesses import share_of

HOUR_S: Final = 3600.0
SLACK_S: Final = 10.0  # beyond a probe's own time: its nodes have ended it by then, whichever controller requested it


def refuse_probe(
    requested: FabricProbeAsked,
    job_name: str,
    ledger: ClusterLedger,
    policy: ClusterPolicy,
    now_unix_s: float,
    owner_of: Callable[[str], str] = lambda _job_id: "",
    sharer: str = "",
) -> str | None:
    """Return why the probe must not run now, or None.

    ``owner_of`` returns whose a job is; ``sharer``: the owner, where others have a share of the probes, too; empty: it has all of them.
    """
    for scope in (
        "cluster",
        f"job:{requested.job_id}",
        *(f"node:{node}" for node in requested.nodes),
    ):
        if scope in ledger.paused:
            return f"{scope} is paused"
    if (observed := policy.why_observed(job_name, requested.nodes)) is not None:
        return f"observe mode: {observed}"
    for unix_s, item, has_ended in ledger.probes:
        if not has_ended and now_unix_s < unix_s + item.limits.limit_s + SLACK_S:
            return f"probe {item.probe_id} of job {item.job_id} is under way"
    lately = [item for unix_s, item, _ended in ledger.probes if unix_s > now_unix_s - HOUR_S]
    count, most = len(lately), policy.fabric_probe.per_hour_max
    if count >= most:
        return f"{count} within the last hour; {most} are allowed (per_hour_max)"
    own = sum(owner_of(item.job_id) == sharer for item in lately) if sharer else 0
    share = share_of(most, count, own)
    if sharer and own >= share:
        return f"{own} for jobs of {sharer} within the last hour, their share of per_hour_max: {share} of {most}"
    return None

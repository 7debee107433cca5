"""Decides whether a controller may adopt an attempt that its journal does not know. Pure.

A journal can be lost, or restored from an old copy, while the job trains. Its launchers then claim
(`recovery.messages.exchange.Claim`) their orders and the controller that gave them. The rules:

- While launchers claim something that the journal does not know, the controller sends no order and
  decides nothing: training continues.
- The attempt is adopted once more than half of its nodes report and agree on it, and the
  controller that they follow has not answered them for a lease. All of them have the same job and
  owner: reports from launchers of another owner are ignored.
- A minority changes nothing. If most nodes of the newest placement follow this controller, the job
  continues, and other claims (a forged join, a launcher that was cut off) are ignored.
- The new epoch is `EPOCH_STRIDE` above every known one, so that an old controller that returns with
  the old journal can't exceed it after a few restarts. It learns the higher epoch from its
  launchers, and then the first rule stops it.

docs/operate/fencing.md describes this for operators.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

from detectors.wording import names_in_words
from recovery.controller.job.membership import place_ranks, witness_groups
from recovery.controller.job.settings import JobSettings
from recovery.journal.attempt_records import Adopted, Placement
from recovery.journal.ledger import Ledger
from recovery.journal.node_records import Joined
from recovery.messages.exchange import EPOCH_MAX, Claim, Report

# The old controller adds one at each start: it would need this many starts to exceed the new one.
EPOCH_STRIDE: Final = 1000
# A claim whose epoch is this far above most others is ignored: it may be forged.
EPOCH_JUMP_MAX: Final = 1_000_000
ROLE_MAX: Final = 64  # characters of a --role that are journaled: more than any that is known


@dataclass(frozen=True, slots=True)
class Voice:
    """A node's newest report and its arrival time (monotonic seconds of this controller)."""

    report: Report
    reported_at_s: float
    idle_since_s: float | None = None  # start of the series of reports that say nothing runs there

    @property
    def is_running(self) -> bool:
        return self.report.attempt > self.report.empty_through


@dataclass(frozen=True, slots=True)
class Waits:
    """The reason why nothing is decided."""

    reason: str
    topic: str = ""  # the reason without its changing figures: equal topics are logged once


@dataclass(frozen=True, slots=True)
class _Claimed:
    """An attempt as launchers claim it; launchers that agree have equal ones."""

    attempt: int
    group_count: int
    world_size: int
    names: tuple[str, ...]  # by group rank; "?" and the rank if no claim names it; (): no lease
    sizes: tuple[int, ...] = ()  # ranks of each node by group rank; (): all have as many


def judge(
    ledger: Ledger,
    settings: JobSettings,
    voices: Mapping[str, Voice],
    now_s: float,
    since_s: float,
    confirmed_gone: Collection[str] = (),
) -> Adopted | Waits | None:
    """Return what to do about launchers that claim something unknown to the journal.

    None: nothing, the journal is right. ``since_s``: when this controller began to listen;
    ``confirmed_gone``: nodes that a person has confirmed as gone since their last report.
    """
    gone = {node: voices.get(node) for node in confirmed_gone}
    voices = {node: voice for node, voice in voices.items() if node not in gone}
    strangers = {node for node, voice in voices.items() if _is_stranger(ledger, voice.report)}
    if not strangers:
        return _find_names(ledger, settings, voices)
    if _is_ours(ledger, voices, strangers):
        return None
    return _judge_claims(ledger, settings, voices, strangers, gone, now_s, since_s)


def _judge_claims(
    ledger: Ledger,
    settings: JobSettings,
    voices: Mapping[str, Voice],
    strangers: Collection[str],
    confirmed_gone: Mapping[str, Voice | None],
    now_s: float,
    since_s: float,
) -> Adopted | Waits:
    """Return the adoption of the newest attempt that most of its nodes claim, or the reason to wait."""
    policy = settings.policy
    fresh = {
        n: voice
        for n, voice in voices.items()
        if now_s - voice.reported_at_s < policy.node_silent_s
    }
    for claimed, nodes in _candidates(settings, fresh):
        idle = _idle(claimed, fresh, nodes.values())
        others = [n for n, item in fresh.items() if item.is_running and n not in nodes.values()]
        gone = _gone_places(claimed, nodes, confirmed_gone)
        needed = claimed.group_count - gone
        is_agreed = 2 * len(nodes) > needed
        is_agreed |= not others and 2 * (len(nodes) + len(idle)) > needed
        if not is_agreed:
            continue
        live = [fresh[n] for n in nodes.values() if _is_followed(ledger, fresh[n], settings, now_s)]
        if 2 * len(live) > len(nodes):
            return _another(live, settings, now_s)
        is_whole = len(nodes) + gone >= claimed.group_count
        if not is_whole and now_s - since_s < policy.lease_s + policy.node_silent_s:
            return Waits(f"attempt {claimed.attempt} runs; waiting for its other nodes")
        return _adopted(ledger, claimed, nodes, voices, fresh)
    if _is_idle(settings, voices, fresh, strangers, confirmed_gone):
        live = [fresh[n] for n in strangers if _is_followed(ledger, fresh[n], settings, now_s)]
        if live:
            return _another(live, settings, now_s)
        left = _left_over(ledger, settings, voices, fresh, confirmed_gone, now_s, since_s)
        return _adopted_idle(ledger, fresh) if left is None else left
    return Waits(_why_not(ledger, settings, voices, strangers, fresh))


def is_strange(ledger: Ledger, report: Report) -> bool:
    """Return whether to judge a report here; few need it once launchers follow this controller."""
    if report.claim is not None and not all(is_named(place.node) for place in ledger.placement):
        return True
    return _is_stranger(ledger, report)


def _is_stranger(ledger: Ledger, report: Report) -> bool:
    """Return whether the node knows an attempt or a controller that the journal does not."""
    if report.attempt > max(ledger.attempt, report.empty_through):
        return True
    if report.epoch and report.epoch == ledger.epoch:
        return report.controller_id != ledger.controller_id
    claimed = 0 if report.claim is None else report.claim.attempt
    return report.epoch > ledger.epoch or claimed > ledger.attempt


def _is_ours(ledger: Ledger, voices: Mapping[str, Voice], strangers: set[str]) -> bool:
    """Return whether most of the newest attempt's nodes know only what the journal knows."""
    own = 0
    for place in ledger.placement:
        voice = voices.get(place.node)
        if voice is None or place.node in strangers:
            continue
        own += voice.report.epoch > 0 or voice.report.revision > 0  # otherwise it has just started
    return 2 * own > len(ledger.placement) > 0


def _is_followed(ledger: Ledger, voice: Voice, settings: JobSettings, now_s: float) -> bool:
    """Return whether a controller no older than this one still answers the launcher."""
    claim = voice.report.claim
    if claim is None or voice.report.epoch < ledger.epoch:
        return False  # launchers refuse its orders once they have received ours
    return _contact_age_s(voice, now_s) < settings.policy.lease_s


def _contact_age_s(voice: Voice, now_s: float) -> float:
    """Return how long ago the controller that the launcher follows answered it."""
    claim = voice.report.claim
    return now_s - voice.reported_at_s + (0.0 if claim is None else claim.contact_age_s)


def _claimed(settings: JobSettings, node: str, claim: Claim) -> _Claimed | None:
    """Return what the node claims, or None if the claim can't belong to this job."""
    group, sizes = claim.group_rank, _sizes_of(settings, claim)
    if claim.group_count not in settings.sizes or claim.world_size != sum(sizes):
        return None
    first = sum(sizes[:group])
    if not 0 <= group < len(sizes) or claim.ranks != tuple(range(first, first + sizes[group])):
        return None
    peers = tuple(peer.node for peer in claim.peers)
    if not peers:  # other launchers can't ask this one, so there is no lease
        return _Claimed(claim.attempt, claim.group_count, claim.world_size, (), claim.group_sizes)
    groups = witness_groups(claim.group_count)
    if len(peers) != len(groups) or len(set(peers)) != len(peers):
        return None
    named = dict(zip(groups, peers, strict=True))
    if named.get(group, node) != node:
        return None
    names = tuple(named.get(place, f"?{place}") for place in range(claim.group_count))
    return _Claimed(claim.attempt, claim.group_count, claim.world_size, names, claim.group_sizes)


def _sizes_of(settings: JobSettings, claim: Claim) -> tuple[int, ...]:
    """Return how many ranks each node of a claimed attempt has; none where the claim can't belong to this job."""
    if not claim.group_sizes:
        # All nodes have as many; which number is only open where each node may have its own.
        slots = len(claim.ranks) if settings.has_own_slots else settings.slots
        return (slots,) * min(claim.group_count, settings.nodes_max)
    is_right = settings.has_own_slots and len(claim.group_sizes) == claim.group_count
    return claim.group_sizes if is_right and min(claim.group_sizes) > 0 else ()


def _candidates(
    settings: JobSettings, voices: Mapping[str, Voice]
) -> list[tuple[_Claimed, dict[int, str]]]:
    """Return the claimed attempts, newest first, each with the claiming nodes by group rank."""
    found: dict[_Claimed, dict[int, list[str]]] = {}
    for node, voice in voices.items():
        claim = voice.report.claim
        claimed = None if claim is None else _claimed(settings, node, claim)
        is_odd = voice.report.epoch > EPOCH_MAX
        if claim is None or claimed is None or is_odd or _runs_other(voice, claimed.attempt):
            continue
        if claim.attempt:
            found.setdefault(claimed, {}).setdefault(claim.group_rank, []).append(node)
    agreed = [
        # Two nodes claim one place, and either may be wrong.
        (claimed, {group: nodes[0] for group, nodes in places.items() if len(nodes) == 1})
        for claimed, places in found.items()
    ]
    return sorted(agreed, key=lambda item: -item[0].attempt)


def _runs_other(voice: Voice, attempt: int) -> bool:
    return voice.is_running and voice.report.attempt != attempt


def _idle(claimed: _Claimed, voices: Mapping[str, Voice], nodes: Collection[str]) -> list[str]:
    """Return the nodes of the placement that report, run nothing, and don't claim it."""
    others = [node for node in claimed.names if node in voices and node not in nodes]
    return [node for node in others if not voices[node].is_running]


def _gone_places(
    claimed: _Claimed, nodes: Mapping[int, str], confirmed_gone: Mapping[str, Voice | None]
) -> int:
    """Return how many places of the attempt are on nodes that a person has confirmed as gone.

    Claims name only some of many nodes: a confirmed node that no claim names, and that was no spare,
    counts for a place without a name or a claim.
    """
    named = confirmed_gone.keys() & set(claimed.names)
    others = [
        node
        for node, voice in confirmed_gone.items()
        if node not in named and not _is_spare(voice, claimed.attempt)
    ]
    unknown = sum(
        not is_named(_name(claimed, nodes, group)) for group in range(claimed.group_count)
    )
    return len(named) + min(len(others), unknown)


def _is_spare(voice: Voice | None, attempt: int) -> bool:
    claim = None if voice is None else voice.report.claim
    return claim is not None and claim.attempt == attempt and not claim.ranks


def _adopted(
    ledger: Ledger,
    claimed: _Claimed,
    nodes: Mapping[int, str],
    voices: Mapping[str, Voice],
    fresh: Mapping[str, Voice],
) -> Adopted:
    claims = {
        node: claim for node in nodes.values() if (claim := fresh[node].report.claim) is not None
    }
    followed = _highest_epoch([fresh[node].report.epoch for node in claims])
    count = claimed.group_count
    sizes = claimed.sizes or (claimed.world_size // count,) * count
    placement = place_ranks([_name(claimed, nodes, group) for group in range(count)], sizes)
    restarts = max(claim.restarts for claim in claims.values())
    if ledger.attempt:  # every attempt that is not in the journal counts as a restart
        restarts = max(restarts, ledger.restarts + max(0, claimed.attempt - ledger.attempt))
    first = next(iter(claims.values()))
    return Adopted(
        attempt=claimed.attempt,
        epoch=max(followed + EPOCH_STRIDE, ledger.epoch),
        followed_epoch=followed,
        placement=placement,
        nodes=_joined(placement, claims, voices),
        heard=tuple(sorted(fresh)),
        restarts=restarts,
        is_history_lost=ledger.attempt == 0,
        restore=first.restore,
        rendezvous=first.rendezvous,
        snapshot=first.snapshot,
    )


def _is_idle(
    settings: JobSettings,
    voices: Mapping[str, Voice],
    fresh: Mapping[str, Voice],
    strangers: Collection[str],
    confirmed_gone: Collection[str],
) -> bool:
    """Return whether as many nodes as the job can have report, and none runs anything.

    Nodes that a person has confirmed as gone count as reporting.
    """
    have_told = all(node in fresh and fresh[node].report.claim is not None for node in strangers)
    is_running = any(voice.is_running for voice in voices.values())
    return have_told and not is_running and len(fresh) + len(confirmed_gone) >= settings.nodes_max


def _left_over(
    ledger: Ledger,
    settings: JobSettings,
    voices: Mapping[str, Voice],
    fresh: Mapping[str, Voice],
    confirmed_gone: Collection[str],
    now_s: float,
    since_s: float,
) -> Waits | None:
    """Return the reason to wait while the newest attempt may still run on unreachable nodes.

    Even if as many nodes report as the job can have, one of them may be a replacement for a node that
    still trains behind a cut network. The proofs are those of `recovery.controller.job.membership.judge_gone`.
    """
    claims = [(n, c) for n, voice in voices.items() if (c := voice.report.claim) is not None]
    attempt = max([ledger.attempt, *(claim.attempt for _node, claim in claims)])
    placements = {
        claimed
        for node, claim in claims
        if claim.attempt == attempt and (claimed := _claimed(settings, node, claim)) is not None
    }
    if attempt == ledger.attempt and ledger.is_attempt_open and ledger.placement:
        names = tuple(place.node for place in ledger.placement)
        size = sum(len(place.ranks) for place in ledger.placement)
        placements.add(_Claimed(attempt, len(names), size, names))
    if not placements:
        return Waits(_nodes_unknown(attempt)) if attempt > ledger.attempt else None
    at = {
        (claim.group_rank, claim.group_count): node
        for node, claim in claims
        if claim.attempt == attempt and claim.ranks
    }
    for claimed in placements:
        count = claimed.group_count
        nodes = {group: at[group, count] for group in range(count) if (group, count) in at}
        names = tuple(_name(claimed, nodes, group) for group in range(count))
        unproved = [
            name
            for name in names
            if name not in confirmed_gone
            and not (name in fresh and fresh[name].report.empty_through >= attempt)
        ]
        silent = [name for name in unproved if name not in fresh]
        witnesses = [names[group] for group in witness_groups(count)]
        voting = [name for name in witnesses if name in silent]
        if silent and (not claimed.names or 2 * len(voting) > len(witnesses)):
            return Waits(_needs_person(attempt, silent))
        began_s = [since_s]
        began_s += [voices[name].reported_at_s for name in silent if name in voices]
        began_s += [_idle_since_s(fresh[name]) for name in names if name in fresh]
        policy = settings.policy
        bound_s = policy.lease_s + policy.kill_bound_s + policy.lease_margin_s
        if unproved and now_s - max(began_s) < bound_s:
            return Waits(
                f"nothing runs on the nodes that report, but {names_in_words(sorted(unproved))} may still run "
                f"attempt {attempt}: this controller waits {bound_s:g} s for the lease to end, after which "
                f"an isolated launcher has stopped its ranks"
            )
    return None


def _idle_since_s(voice: Voice) -> float:
    return voice.reported_at_s if voice.idle_since_s is None else voice.idle_since_s


def _needs_person(attempt: int, silent: Collection[str]) -> str:
    return (
        f"nothing runs on the nodes that report, but {names_in_words(sorted(silent))} may still run attempt "
        f"{attempt}, and no lease proves that they stopped: wait until they report, or power "
        f"them off and run `rankmend confirm-gone` for each"
    )


def _nodes_unknown(attempt: int) -> str:
    return (
        f"nothing runs on the nodes that report, but none of them knows where attempt {attempt} "
        f"ran: make sure that it runs nowhere, then restart the launchers"
    )


def _adopted_idle(ledger: Ledger, fresh: Mapping[str, Voice]) -> Adopted:
    """Return the adoption of a job that runs nowhere: the next attempt gets a number above the last."""
    reports = [voice.report for voice in fresh.values()]
    claims = [report.claim for report in reports if report.claim is not None]
    followed = _highest_epoch([r.epoch for r in reports if 0 < r.epoch <= EPOCH_MAX] or [0])
    return Adopted(
        attempt=max([ledger.attempt, *(claim.attempt for claim in claims)]),
        epoch=max(followed + EPOCH_STRIDE, ledger.epoch),
        followed_epoch=followed,
        placement=(),
        nodes=(),
        heard=tuple(sorted(fresh)),
        restarts=max([ledger.restarts, *(claim.restarts for claim in claims)]),
        is_history_lost=ledger.attempt == 0,
    )


def _highest_epoch(reported: Sequence[int]) -> int:
    """Return the highest epoch that is not far above most others."""
    typical = median_low(reported)
    return max(epoch for epoch in reported if epoch <= typical + EPOCH_JUMP_MAX)


def is_named(node: str) -> bool:
    """Return whether a node's name in a placement is known; no real name begins with "?"."""
    return not node.startswith("?")


def _name(claimed: _Claimed, nodes: Mapping[int, str], group: int) -> str:
    return nodes.get(group) or (claimed.names[group] if claimed.names else f"?{group}")


def _joined(
    placement: Sequence[Placement],
    claims: Mapping[str, Claim],
    voices: Mapping[str, Voice],
) -> tuple[Joined, ...]:
    """Return the launchers of the attempt, as they report themselves or as their peers' orders name them."""
    peers = {peer.node: peer for claim in claims.values() for peer in claim.peers}
    joined = []
    for place in placement:
        if place.node in claims:
            joined.append(joined_of(voices[place.node].report))
        elif (peer := peers.get(place.node)) is not None:
            size = len(place.ranks)
            joined.append(Joined(peer.node, peer.launcher_id, "", size, peer.endpoint))
    return tuple(joined)


def joined_of(report: Report) -> Joined:
    """Return the node as its launcher reports it."""
    return Joined(
        report.node,
        report.launcher_id,
        report.boot_id,
        report.slots,
        report.peer_endpoint,
        report.launcher_started_s,
        report.folder_id,
        report.kinds,
        report.role[:ROLE_MAX],
    )


def _find_names(
    ledger: Ledger, settings: JobSettings, voices: Mapping[str, Voice]
) -> Adopted | None:
    """Return the adoption again, completed, if nodes report whose names were unknown."""
    adopted = ledger.adopted
    if adopted is None or adopted.attempt != ledger.attempt:
        return None
    unknown = {place.node for place in ledger.placement if not is_named(place.node)}
    if not unknown:
        return None
    found: dict[str, Voice] = {}
    for node, voice in voices.items():
        claim = voice.report.claim
        if claim is None or node in ledger.members or claim.attempt != ledger.attempt:
            continue
        if f"?{claim.group_rank}" in unknown and _claimed(settings, node, claim) is not None:
            found.setdefault(f"?{claim.group_rank}", voice)
    if not found:
        return None
    names = {unnamed: voice.report.node for unnamed, voice in found.items()}
    return Adopted(
        attempt=adopted.attempt,
        epoch=ledger.epoch,
        followed_epoch=adopted.followed_epoch,
        placement=tuple(
            Placement(names.get(place.node, place.node), place.ranks) for place in ledger.placement
        ),
        nodes=tuple(joined_of(voice.report) for voice in found.values()),
        heard=tuple(sorted({*adopted.heard, *names.values()})),
        restarts=ledger.restarts,
        is_history_lost=adopted.is_history_lost,
        restore=adopted.restore,
        rendezvous=adopted.rendezvous,
        snapshot=adopted.snapshot,
    )


def _another(voices: Sequence[Voice], settings: JobSettings, now_s: float) -> Waits:
    """Return the reason to wait for the controller that these launchers follow: it may have ended or still run."""
    newest = min(voices, key=lambda voice: _contact_age_s(voice, now_s))
    report, lease_s = newest.report, settings.policy.lease_s
    topic = f"another controller ({report.controller_id}, epoch {report.epoch})"
    reason = (
        f"{topic} answered the launchers of this job until {_contact_age_s(newest, now_s):.0f} s ago, "
        f"{report.node} among them: this controller waits until that was {lease_s:g} s ago; if the other "
        f"still runs, stop one of the two"
    )
    return Waits(reason, topic)


def _why_not(
    ledger: Ledger,
    settings: JobSettings,
    voices: Mapping[str, Voice],
    strangers: Collection[str],
    fresh: Mapping[str, Voice],
) -> str:
    strange = [voice.report for node, voice in voices.items() if node in strangers]
    attempt = max(
        max(report.attempt, 0 if report.claim is None else report.claim.attempt)
        for report in strange
    )
    most = max(_candidates(settings, fresh), key=lambda candidate: len(candidate[1]), default=None)
    if attempt <= ledger.attempt:
        newest = max(strange, key=lambda report: report.epoch)
        known = (
            f"launchers ({names_in_words(sorted(strangers))}) follow controller {newest.controller_id} "
            f"(epoch {newest.epoch}), which is not in this journal, and know no attempt that it started"
        )
    elif most is None or most[0].attempt <= ledger.attempt:
        known = (
            f"launchers know attempt {attempt}, which is not in this journal: none of its nodes "
            f"reports, only {names_in_words(sorted(strangers))}"
        )
    else:
        known = (
            f"launchers know attempt {attempt}, which is not in this journal: {len(most[1])} of its "
            f"{most[0].group_count} nodes report ({names_in_words(sorted(most[1].values()))}), and more than half "
            f"must"
        )
    return (
        f"{known}; rankmend orders and stops nothing until this is settled (for nodes that are gone for good, "
        f"run `rankmend confirm-gone`; or restart the launchers)"
    )

"""Why a rank is slow: joins slow ranks with what their hardware showed in the same period.

Rules, in this order (the causes and their figures: `detectors.slow.cause_table`):
1. Only causes that can slow down the section that became slow are named.
2. A sign counts by its deviation from the peers' median; peers are parts of the same kind on nodes
   and devices that are not accused. The deviation must exceed the sign's figure and the spread
   among the peers (4 robust standard deviations). Without peers, a value is compared with its own
   past, and lost seconds with 0; both are trusted less.
3. A deviation that existed before the onset explains no change: it halves the confidence.
4. Causes are ordered by confidence (how directly the sign shows lost time, less what is doubtful),
   then by how far the figure is exceeded.
A metric that nobody measured is reported as missing; it is never a sign of health.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from detectors.finding import Evidence
from detectors.slow.cause_table import CAUSES
from detectors.slow.explanation import (
    Directness,
    LikelyCause,
    Scope,
    Sign,
    SlowCause,
    SlowExplanation,
    SlowPeriod,
    SlowPlace,
    SlowSection,
    Statistic,
)
from detectors.slow.hardware_reading import RUN_QUEUE, HardwareReading
from detectors.slow.measured_parts import Part, SeriesOfParts, tabulate, value_of_part

SIGMAS: Final = 4.0  # beyond the peers' own variation, as in detectors.slow.work_table
CAUSES_MAX: Final = 8
PEERS_SAMPLE_MAX: Final = 4_096
_WAS_BEFORE: Final = 0.5
_PAST_UNKNOWN: Final = 0.8
_ONE_PEER: Final = 0.9
_NO_PEER: Final = 0.7
_IMPLIED_BY: Final = {cause.name: cause.implied_by for cause in CAUSES}
_ANY_DEVICE: Final = 0.8  # it isn't known which of the node's devices the rank uses


def explain_slow(
    accused: Sequence[SlowPlace], readings: Iterable[HardwareReading], window: SlowPeriod
) -> tuple[SlowExplanation, ...]:
    """Return the likeliest causes that hardware shows for each slow rank."""
    case = _Case(tabulate(readings, window), window, accused)
    return tuple(case.explain(place) for place in accused)


@dataclass(frozen=True, slots=True)
class _Deviation:
    sign: Sign
    part: Part
    value: float
    usual: float  # the peers', or its own in the past
    strength: float  # 1: just the sign's figure
    trust: float
    against: str
    when: str


class _Case:
    """One look at all readings of one period."""

    def __init__(
        self, table: dict[str, SeriesOfParts], window: SlowPeriod, accused: Sequence[SlowPlace]
    ) -> None:
        self._table = table
        self._window = window
        self._nodes = {part[0] for parts in table.values() for part in parts}
        self._networks = self._network_devices()
        self._peers_of: dict[tuple[Scope, Sign], tuple[list[float], list[float]]] = {}
        self._own = {
            (place, scope): self._parts_of(place, scope) for place in accused for scope in Scope
        }
        self._accused_nodes = {self._node_of(place) for place in accused}

    def explain(self, accused: SlowPlace) -> SlowExplanation:
        node = self._node_of(accused)
        if node is None:
            reason = (
                f"the node of {accused.name()} is not known, so there is no hardware to look at"
            )
            return SlowExplanation(accused, (), reason, (), tuple(item.name for item in CAUSES))
        found: list[LikelyCause] = []
        looked_at: list[str] = []
        missing: list[str] = []
        beside: list[str] = []
        for cause in CAUSES:
            is_possible = (
                accused.section is SlowSection.UNKNOWN or accused.section in cause.sections
            )
            deviations, is_measured = self._judge(accused, cause, cause.signs)
            if is_possible:
                (looked_at if is_measured else missing).append(cause.name)
            if not deviations:
                continue
            if not is_possible:
                beside.append(f"{cause.summary}: {_words(deviations[0])}")
                continue
            found.append(self._likely(accused, cause, deviations))
        names = {item.cause for item in found}
        found = [item for item in found if _IMPLIED_BY[item.cause] not in names]
        found.sort(key=lambda cause: (-cause.confidence, -cause.strength))
        return SlowExplanation(
            accused=accused,
            causes=tuple(found[:CAUSES_MAX]),
            reason=_reason(accused, found, looked_at),
            looked_at=tuple(looked_at),
            missing=tuple(missing),
            beside=tuple(beside[:CAUSES_MAX]),
        )

    def _likely(
        self, accused: SlowPlace, cause: SlowCause, deviations: list[_Deviation]
    ) -> LikelyCause:
        best = deviations[0]
        is_certain = self._own[accused, cause.scope][1]
        same_part = [deviation for deviation in deviations if deviation.part == best.part]
        extra, _measured = self._judge(accused, cause, cause.supports)
        same_part += [item for item in extra if item.part == best.part]
        return LikelyCause(
            cause=cause.name,
            scope=cause.scope,
            node=best.part[0],
            device=best.part[1],
            summary=cause.summary,
            action=cause.action,
            confidence=cause.directness.value * best.trust * (1 if is_certain else _ANY_DEVICE),
            strength=best.strength,
            evidence=tuple(
                Evidence(deviation.sign.metric, _words(deviation)) for deviation in same_part
            ),
        )

    def _judge(
        self, accused: SlowPlace, cause: SlowCause, signs: Sequence[Sign]
    ) -> tuple[list[_Deviation], bool]:
        """Return the deviations of the accused's parts, clearest first, and if any was measured."""
        found = []
        is_measured = False
        for sign in signs:
            parts = self._table.get(sign.metric)
            if not parts:
                continue
            own = [part for part in self._own[accused, cause.scope][0] if part in parts]
            if cause.scope is Scope.NODE:
                own = [part for part in parts if part[0] == self._node_of(accused)]
            values = self._values(cause, sign, parts, own)
            if not values:
                continue
            is_measured = True
            key = (cause.scope, sign)  # the same for all that are accused
            if key not in self._peers_of:
                self._peers_of[key] = self._peers(cause, sign, parts)
            peers = self._peers_of[key]
            for part, before, inside in values:
                deviation = self._deviate(sign, part, before, inside, peers, cause)
                if deviation is not None:
                    found.append(deviation)
        found.sort(key=lambda item: (-item.trust, -item.strength))
        return found, is_measured

    def _values(
        self, cause: SlowCause, sign: Sign, parts: SeriesOfParts, own: Sequence[Part]
    ) -> list[tuple[Part, float | None, float]]:
        """Return the accused's parts with past and present value; a node's devices count as one."""
        if cause.scope is Scope.NODE and own:
            node = own[0][0]
            past = _of_node(parts, own, sign, is_inside=False)
            now = _of_node(parts, own, sign, is_inside=True)
            return [] if now is None else [((node, ""), past, now)]
        values = []
        for part in own:
            now = value_of_part(parts[part], sign, is_inside=True)
            if now is not None:
                values.append((part, value_of_part(parts[part], sign, is_inside=False), now))
        return values

    def _peers(
        self, cause: SlowCause, sign: Sign, parts: SeriesOfParts
    ) -> tuple[list[float], list[float]]:
        """Return what unaccused parts show before the onset and after it."""
        if cause.scope is Scope.NODE:
            by_node: dict[str, list[Part]] = defaultdict(list)
            for part in parts:
                if part[0] not in self._accused_nodes:
                    by_node[part[0]].append(part)
            groups = list(by_node.values())[:PEERS_SAMPLE_MAX]
            both = [
                [_of_node(parts, own, sign, is_inside=side) for own in groups]
                for side in (False, True)
            ]
        else:
            accused = {
                part
                for (_one, scope), (own, _known) in self._own.items()
                if scope is cause.scope
                for part in own
            }
            others = [part for part in parts if part not in accused]
            if cause.scope is Scope.CGROUP:
                others = self._rank_groups(others)
            others = others[:PEERS_SAMPLE_MAX]
            both = [
                [value_of_part(parts[part], sign, is_inside=side) for part in others]
                for side in (False, True)
            ]
        past, now = ([value for value in values if value is not None] for values in both)
        return past, now

    def _deviate(
        self,
        sign: Sign,
        part: Part,
        before: float | None,
        inside: float,
        peers: tuple[list[float], list[float]],
        cause: SlowCause,
    ) -> _Deviation | None:
        """Return how much a part deviates from its peers, or None if it doesn't."""
        peers_before, peers_now = peers
        trust, against = 1.0, "its peers"
        if peers_now:
            usual = median(peers_now)
            spread = 1.4826 * median(abs(item - usual) for item in peers_now)
            if len(peers_now) == 1:
                trust, against = _ONE_PEER, "its only peer"
        elif before is not None:
            usual, spread, trust, against = before, 0.0, _NO_PEER, "its own past"
        elif cause.directness is Directness.LOST_TIME:
            usual, spread, trust, against = 0.0, 0.0, _NO_PEER, "none at all"
        else:
            return None
        strength = _strength(sign, inside, usual)
        if strength < 1 or abs(inside - usual) < SIGMAS * spread:
            return None
        when = "throughout the record"
        if self._window.onset_s is not None and against != "its own past":
            if before is None:
                trust *= _PAST_UNKNOWN
                when = "not recorded before the onset"
            else:
                usual_before = median(peers_before) if peers_before else usual
                if _strength(sign, before, usual_before) >= 0.5 * strength:
                    trust *= _WAS_BEFORE
                    when = "but the same before the onset"
                else:
                    when = f"before the onset {_figure(before, sign.unit)}"
        return _Deviation(sign, part, inside, usual, strength, trust, against, when)

    # -- what a rank stands on

    def _info(self, metric: str) -> Iterable[tuple[Part, dict[str, str]]]:
        for part, by_labels in self._table.get(metric, {}).items():
            for labels in by_labels:
                yield part, dict(labels)

    def _is_of(self, accused: SlowPlace, labels: Mapping[str, str]) -> bool:
        return (
            accused.rank is not None
            and labels.get("rank") == str(accused.rank)
            and (accused.job_id is None or labels.get("job_id") == accused.job_id)
        )

    def _node_of(self, accused: SlowPlace) -> str | None:
        """Return the node, even if a trace has its long name and the readings its short one."""
        if accused.node is not None:
            short = accused.node.partition(".")[0]
            if accused.node not in self._nodes and short in self._nodes:
                return short
            return accused.node
        named = {
            part[0]
            for metric in ("rankmend_rank_info", "rankmend_rank_gpu_info")
            for part, labels in self._info(metric)
            if self._is_of(accused, labels)
        }
        return named.pop() if len(named) == 1 else None

    def _parts_of(self, accused: SlowPlace, scope: Scope) -> tuple[set[Part], bool]:
        """Return the parts of its node that a rank may use, and whether that is known."""
        node = self._node_of(accused)
        if node is None or scope is Scope.NODE:
            return set(), True
        metric = {
            Scope.GPU: "rankmend_rank_gpu_info",
            Scope.NIC: "rankmend_rank_nic_info",
            Scope.CGROUP: "rankmend_rank_cgroup_info",
            Scope.RANK: RUN_QUEUE,
        }[scope]
        own = {
            part
            for part, labels in self._info(metric)
            if part[0] == node and self._is_of(accused, labels)
        }
        everything = self._all_parts(node, scope)
        if not own and accused.device is not None:
            own = {
                part
                for part, labels in everything
                if accused.device in (part[1], labels.get("gpu"), f"gpu{labels.get('gpu')}")
            }
        if scope is Scope.NIC:
            own |= {(node, self._networks[part]) for part in own if part in self._networks}
        if scope is Scope.CGROUP:  # the limit is usually the job's, above the rank's own group
            names = [part[1] for part in own]
            own |= {
                part
                for part, _labels in everything
                if any(name.startswith(part[1].rstrip("/") + "/") for name in names)
            }
        return (own, True) if own else ({part for part, _labels in everything}, False)

    def _all_parts(self, node: str, scope: Scope) -> list[tuple[Part, dict[str, str]]]:
        metrics = {
            sign.metric
            for cause in CAUSES
            if cause.scope is scope
            for sign in (*cause.signs, *cause.supports)
        }
        return [
            (part, labels)
            for metric in metrics
            for part, labels in self._info(metric)
            if part[0] == node and part[1]
        ]

    def _rank_groups(self, groups: Sequence[Part]) -> list[Part]:
        """Return the control groups that hold ranks, if that is known."""
        ranks = {part for part, _labels in self._info("rankmend_rank_cgroup_info")}
        return [part for part in groups if part in ranks] or list(groups)

    def _network_devices(self) -> dict[Part, str]:
        """Return the network device of each RDMA device."""
        return {
            part: labels["network_device"]
            for part, labels in self._info("rankmend_nic_port_info")
            if labels.get("network_device")
        }


def _of_node(
    parts: SeriesOfParts, own: Sequence[Part], sign: Sign, *, is_inside: bool
) -> float | None:
    values = [
        value
        for part in own
        if (value := value_of_part(parts[part], sign, is_inside=is_inside)) is not None
    ]
    if not values:
        return None
    if sign.statistic is Statistic.RATE:
        return sum(values)
    return min(values) if sign.is_low else max(values)


def _strength(sign: Sign, value: float, usual: float) -> float:
    """Return a value's deviation as a multiple of the sign's figure."""
    deviation = usual - value if sign.is_low else value - usual
    if not sign.is_share:
        return deviation / sign.least
    if deviation < sign.floor or deviation <= 0:
        return 0.0
    if usual == 0:
        return deviation / sign.floor if sign.floor else 0.0
    return deviation / abs(usual) / sign.least


def _reason(accused: SlowPlace, found: Sequence[LikelyCause], looked_at: Sequence[str]) -> str:
    part = "" if accused.section is SlowSection.UNKNOWN else f" in {accused.section.value}"
    if found:
        best = found[0]
        device = f" {best.device}" if best.device else ""
        return f"{accused.name()} is slow{part}, most likely because {best.summary} ({best.node}{device})"
    if not looked_at:
        return f"nothing was measured that could explain why {accused.name()} is slow{part}"
    return f"hardware shows nothing that explains why {accused.name()} is slow{part}"


def _words(deviation: _Deviation) -> str:
    device = f" of {deviation.part[1]}" if deviation.part[1] else ""
    return (
        f"{deviation.sign.what}{device}: {_figure(deviation.value, deviation.sign.unit)}, "
        f"{deviation.against} {_figure(deviation.usual, deviation.sign.unit)}; {deviation.when}"
    )


def _figure(value: float, unit: str) -> str:
    """Return a value with its unit for a person."""
    if unit == "s/s":
        return f"{value:.0%} of the time"
    for scale, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if unit in ("Hz", "B", "B/s") and abs(value) >= scale:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}".strip()

"""The controller's series of where the time of jobs goes, made when Prometheus asks from what `time_accounts` holds."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from recovery.accounting.goodput.held_sums import Counted, Key
from recovery.accounting.goodput.timeline import MTTR, TimePart
from recovery.accounting.goodput.totals import TimeTotals, add_up
from recovery.service.metrics.time_accounts import JobStanding, TimeAccounts

MANAGED: Final = "managed"
WATCHED: Final = "watched"
_RECOVERY: Final = "recovery"
# A job's series are fewer than the cluster's: the phases of MTTR are one category.
CATEGORIES: Final = {part: _RECOVERY if part in MTTR else part.value for part in TimePart}

_RATIOS: Final[tuple[tuple[str, str, Callable[[JobStanding], float | None]], ...]] = (
    ("goodput_ratio", "Share of the run time that was spent on new steps", lambda item: item.totals.goodput_ratio),
    ("ettr_ratio", "Share of the wall time that was spent on new steps", lambda item: item.totals.ettr_ratio),
    ("availability_ratio", "Share of the run time in which no failure kept the job from training", lambda item: item.totals.availability_ratio),
    ("mtbf_seconds", "Training time per failure; no series before the first failure", lambda item: item.totals.mtbf_s),
    ("mttr_seconds", "Mean time from a fault to the slowest rank's first step; no series before a recovery", lambda item: item.totals.mttr_s),
    ("mfu_ratio", "Model FLOPs by the dense peak of the accelerators, by the newest record of work; no series where FLOPs or peak aren't known", lambda item: item.rates.mfu_ratio),
    ("linearity_ratio", "Work per GPU on the present number of GPUs, against that on the smallest on which a job of this name ran on the same accelerators; 1 on that one; no series where ranks tell no work", lambda item: item.linearity_ratio),
    ("flops_per_second", "Model FLOPs of all ranks, by the newest record of work", lambda item: item.rates.flops_per_s),
    ("tokens_per_second", "Tokens of all ranks, by the newest record of work", lambda item: item.rates.tokens_per_s),
    ("samples_per_second", "Samples of all ranks, by the newest record of work", lambda item: item.rates.samples_per_s),
)  # fmt: skip
_CLUSTER: Final[tuple[tuple[str, str, Callable[[TimeTotals], float | None]], ...]] = (
    ("goodput_ratio", "Share of the run time of the jobs that run now that was spent on new steps", lambda item: item.goodput_ratio),
    ("ettr_ratio", "Share of the wall time of the jobs that run now that was spent on new steps", lambda item: item.ettr_ratio),
    ("availability_ratio", "Share of the run time of the jobs that run now in which no failure kept them from training", lambda item: item.availability_ratio),
    ("restarts_per_1000_gpu_day", "Restarts after failures per 1,000 GPU-days of the jobs that run now", lambda item: item.restarts_per_1000_gpu_days),
)  # fmt: skip
_SUMS: Final = (
    (Counted.SECONDS, "job_seconds", "Wall time of jobs since the controller's start, by part (docs/reference/goodput.md).", "part"),
    (Counted.DEVICE_S, "gpu_seconds", "GPU time of jobs since the controller's start, by part; a rank counts as one GPU. productive / all parts is the goodput.", "part"),
    (Counted.LOST_DEVICE_S, "gpu_seconds_unproductive", "GPU time that went into no new step since the controller's start, of incidents that go on as well, by cause: an incident's class, a part of the time, slow_rank.", "cause"),
    (Counted.FAILURES, "failures", "Failures of jobs since the controller's start, by class. Training time / failures is the MTBF.", "class"),
    (Counted.RECOVERED, "failures_recovered", "Failures that were recovered from, by class.", "class"),
    (Counted.RECOVERY_S, "failure_recovery_seconds", "MTTR of the failures that were recovered from, in all, by class. Divided by their number: the MTTR.", "class"),
)  # fmt: skip


_HARDWARE: Final = (
    (Counted.HARDWARE_DEVICE_S, "hardware_gpu_seconds", "GPU time that trained on nodes with this hardware since the controller's start"),
    (Counted.HARDWARE_FAILURES, "hardware_failures", "Failures that accuse a node with this hardware. GPU time / failures is the MTBF in GPU-seconds"),
    (Counted.HARDWARE_RECOVERED, "hardware_failures_recovered", "Those of them that were recovered from"),
    (Counted.HARDWARE_RECOVERY_S, "hardware_recovery_seconds", "Their MTTR in all. Divided by their number: the MTTR"),
)  # fmt: skip


class TimeGauges(Collector):
    def __init__(self, prefix: str, registry: CollectorRegistry) -> None:
        self._prefix = prefix
        self._accounts: TimeAccounts | None = None
        registry.register(self)

    def watch(self, accounts: TimeAccounts) -> None:
        self._accounts = accounts

    def collect(self) -> Iterator[Metric]:
        accounts = self._accounts
        standings = () if accounts is None else accounts.standings
        yield self._info(standings)
        yield self._gpus(standings)
        yield self._categories(standings)
        yield from self._ratios(standings)
        yield self._steps(standings)
        yield self._hidden(standings)
        yield from self._cluster(standings)
        yield from self._by_class(standings)
        sums: Mapping[str, Mapping[Key, float]] = {}
        if accounts is not None:
            sums = {MANAGED: accounts.sums, WATCHED: accounts.watched_sums}
        yield from self._sums(sums)

    def _family(self, name: str, text: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=labels)

    def _info(self, standings: tuple[JobStanding, ...]) -> Metric:
        text = "1 for each job of which the time is accounted, by job_id, job (its name) and jobs: managed, or watched for those of other launchers."
        family = self._family("job_info", text, "job_id", "job", "jobs")
        for standing in standings:
            family.add_metric([standing.job_id, standing.name, _kind(standing)], 1.0)
        return family

    def _gpus(self, standings: tuple[JobStanding, ...]) -> Metric:
        text = "GPUs that the job holds now, by job_id; a rank counts as one."
        family = self._family("job_gpus", text, "job_id")
        for standing in standings:
            if standing.totals.last is not None:
                family.add_metric([standing.job_id], standing.totals.last.devices)
        return family

    def _categories(self, standings: tuple[JobStanding, ...]) -> Metric:
        text = (
            "GPU time of a job since its start, by job_id and category: a part of the time (docs/reference/goodput.md); the phases of MTTR are recovery. "
            "It can shrink when time is rebooked; take deltas of the sum."
        )
        family = self._family("job_gpu_seconds", text, "job_id", "category")
        for standing in standings:
            found: dict[str, float] = {}
            for part, time in standing.totals.parts.items():
                found[CATEGORIES[part]] = found.get(CATEGORIES[part], 0.0) + time.device_s
            for category, device_s in found.items():
                family.add_metric([standing.job_id, category], device_s)
        return family

    def _ratios(self, standings: tuple[JobStanding, ...]) -> Iterator[Metric]:
        for name, text, value_of in _RATIOS:
            family = self._family(f"job_{name}", f"{text}, by job_id.", "job_id")
            for standing in standings:
                if (value := value_of(standing)) is not None:
                    family.add_metric([standing.job_id], value)
            yield family

    def _steps(self, standings: tuple[JobStanding, ...]) -> Metric:
        text = (
            "Mean step of a job's ranks by the newest record, by job_id and part: compute, communication, io, checkpoint, other. They sum to the step; of "
            "communication and io only what is not hidden behind compute. No series where ranks tell no sections."
        )
        family = self._family("job_step_seconds", text, "job_id", "part")
        for standing in standings:
            for part, seconds in () if standing.anatomy is None else standing.anatomy.parts.items():
                family.add_metric([standing.job_id, part], seconds)
        return family

    def _hidden(self, standings: tuple[JobStanding, ...]) -> Metric:
        text = (
            "Share of a job's communication or reading that runs behind its ranks' own work, by the newest record, by job_id, part (communication, io) and "
            "bound: least and most, equal where it is measured (docs/reference/goodput.md). No series where nobody tells it."
        )
        family = self._family("job_step_hidden_ratio", text, "job_id", "part", "bound")
        for standing in standings:
            step = standing.anatomy
            if step is None:
                continue
            for part, hidden in (
                ("communication", step.hidden_communication),
                ("io", step.hidden_io),
            ):
                if hidden is not None:
                    for bound, ratio in (
                        ("least", hidden.least_ratio),
                        ("most", hidden.most_ratio),
                    ):
                        if ratio is not None:
                            family.add_metric([standing.job_id, part, bound], ratio)
        return family

    def _cluster(self, standings: tuple[JobStanding, ...]) -> Iterator[Metric]:
        totals = _by_kind(standings)
        for name, text, value_of in _CLUSTER:
            family = self._family(name, f"{text}, by jobs: managed, watched.", "jobs")
            for kind, total in totals.items():
                if (value := value_of(total)) is not None:
                    family.add_metric([kind], value)
            yield family

    def _by_class(self, standings: tuple[JobStanding, ...]) -> Iterator[Metric]:
        mtbf = self._family(
            "mtbf_seconds",
            "Training time per failure of the jobs that run now, by jobs and class of the failure.",
            *("jobs", "class"),
        )
        mttr = self._family(
            "mttr_seconds",
            "Mean time from the fault to the slowest rank's first step of the jobs that run now, by jobs and class of the failure.",
            *("jobs", "class"),
        )
        for kind, totals in _by_kind(standings).items():
            for name, group in totals.by_class.items():
                mtbf.add_metric([kind, name], totals.training_s / group.failures)
                if group.mttr_s is not None:
                    mttr.add_metric([kind, name], group.mttr_s)
        yield from (mtbf, mttr)

    def _hardware(self, sums: Mapping[str, Mapping[Key, float]]) -> Iterator[Metric]:
        for counted, name, text in _HARDWARE:
            family = CounterMetricFamily(
                f"{self._prefix}_{name}",
                f"{text}, by jobs, hardware (gpu, nic, node) and model; at most 64 models and the rest as other.",
                labels=("jobs", "hardware", "model"),
            )
            for kind, amounts in sums.items():
                for (what, about), amount in amounts.items():
                    if what is counted:
                        family.add_metric([kind, *_hardware_labels(about)], amount)
            yield family

    def _sums(self, sums: Mapping[str, Mapping[Key, float]]) -> Iterator[Metric]:
        for quantity, name, text, label in _SUMS:
            family = CounterMetricFamily(
                f"{self._prefix}_{name}",
                f"{text} By jobs: managed, watched.",
                labels=("jobs", label),
            )
            for kind, amounts in sums.items():
                for (what, about), amount in amounts.items():
                    if what is quantity:
                        family.add_metric([kind, about], amount)
            yield family
        yield from self._hardware(sums)
        restarts = CounterMetricFamily(
            f"{self._prefix}_restarts",
            "Restarts of jobs after failures since the controller's start, by jobs: managed, watched.",
            labels=("jobs",),
        )
        for kind, amounts in sums.items():
            restarts.add_metric([kind], amounts.get((Counted.RESTARTS, ""), 0.0))
        yield restarts


def _hardware_labels(about: str) -> list[str]:
    hardware, _space, name = about.partition(" ")
    return [hardware, name]


def _kind(standing: JobStanding) -> str:
    return WATCHED if standing.is_watched else MANAGED


def _by_kind(standings: tuple[JobStanding, ...]) -> dict[str, TimeTotals]:
    """Return the totals of the managed and of the watched jobs; a kind without jobs has none."""
    groups: dict[str, list[TimeTotals]] = {}
    for standing in standings:
        groups.setdefault(_kind(standing), []).append(standing.totals)
    return {kind: add_up(group) for kind, group in groups.items()}

"""Goodput: how much of the machines' time became training, what took the rest, and which job lost it."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.panels import (
    CLUSTER,
    GREEN,
    RED,
    YELLOW,
    bars,
    grown,
    lines,
    make,
    number,
    row,
    rows,
    to_job,
    top,
)

GOODPUT_STEPS = ((None, RED), (0.85, YELLOW), (0.95, GREEN))
_JOBS_MAX = 20


def _grown(metric: str, label: str, only: str = "") -> str:
    """Return how much a counter of managed and of watched jobs grew."""
    return grown(metric, label, only, "jobs, ")


def named(series: str) -> str:
    """Return series of jobs with the jobs' names."""
    info = f"max by (cluster, job_id, job) (rankmend_controller_job_info{{{CLUSTER}}})"
    return f"{series} * on (cluster, job_id) group_left (job) {info}"


def goodput() -> Dashboard:
    made = make(
        "goodput",
        "goodput",
        "How much of the GPUs' time became new steps, what took the rest, by part and cause, and which job lost it. The page on goodput defines each figure.",
    )
    made.time("now-24h", "now")
    _whole(made)
    _parts(made)
    _jobs(made)
    _failures(made)
    return made


def _whole(made: Dashboard) -> None:
    made.with_row(row("How much of the GPUs' time became training?"))
    seconds = "rankmend_controller_gpu_seconds_total"
    productive = _grown(seconds, "part", 'part="productive",')
    for panel in (
        number(
            "Goodput",
            f"sum({productive}) / sum({_grown(seconds, 'part')})",
            "GPU time spent on new steps, of all GPU time that jobs held, in the time shown.",
            unit="percentunit",
            steps=GOODPUT_STEPS,
        ),
        number(
            "GPU-hours lost",
            f"(sum({_grown(seconds, 'part')}) - sum({productive})) / 3600",
            "GPU time of the time shown that went into no new step.",
            unit="h",
        ),
        number(
            "ETTR",
            f"min(rankmend_controller_ettr_ratio{{{CLUSTER}}})",
            "Wall time spent on new steps, of the jobs that run now: the lowest of the clusters, of managed and of watched jobs.",
            unit="percentunit",
            steps=GOODPUT_STEPS,
        ),
        number(
            "Availability",
            f"min(rankmend_controller_availability_ratio{{{CLUSTER}}})",
            "Run time in which no failure kept the jobs from training, of those that run now.",
            unit="percentunit",
            steps=GOODPUT_STEPS,
        ),
        number(
            "Restarts in 1,000 GPU-days",
            f"max(rankmend_controller_restarts_per_1000_gpu_day{{{CLUSTER}}})",
            "Restarts after failures, of the jobs that run now.",
        ),
        number(
            "GPUs that jobs hold",
            f"sum(max by (cluster, job_id) (rankmend_controller_job_gpus{{{CLUSTER}}}))",
            "Now; a rank counts as one.",
        ),
    ):
        made.with_panel(panel)


def _parts(made: Dashboard) -> None:
    made.with_row(row("What took the rest?"))
    for panel in (
        lines(
            "Goodput over time",
            [
                (
                    f"min(cluster_jobs:rankmend_goodput:ratio_rate1h{{{CLUSTER}}})",
                    "of the hour before",
                ),
                (
                    f"min(cluster_jobs:rankmend_goodput:ratio_rate1d{{{CLUSTER}}})",
                    "of the day before",
                ),
            ],
            "The lowest of the clusters, of managed and of watched jobs.",
            unit="percentunit",
            width=8,
        ),
        bars(
            "GPU-hours by part of the time",
            f"{_grown('rankmend_controller_gpu_seconds_total', 'part')} / 3600 > 0",
            "{{part}}",
            "All parts of the jobs' time, in the time shown: new steps, repeated steps, phases of recoveries, saves, waits, stops.",
            unit="h",
            width=8,
            height=12,
        ),
        bars(
            "GPU-hours lost, by cause",
            f"{top(_grown('rankmend_controller_gpu_seconds_unproductive_total', 'cause'))} / 3600 > 0",
            "{{cause}}",
            "The ten causes that took most in the time shown: a class of failure, a part of the time, or slow ranks.",
            unit="h",
            width=8,
            height=12,
        ),
    ):
        made.with_panel(panel)


def _jobs(made: Dashboard) -> None:
    made.with_row(row("Which job lost time?"))
    once = "max by (cluster, job_id)"
    lost = f'sum by (cluster, job_id) (max by (cluster, job_id, category) (rankmend_controller_job_gpu_seconds{{category!="productive",{CLUSTER}}}))'
    ratio = f"{once} (rankmend_controller_job_goodput_ratio{{{CLUSTER}}})"
    for panel in (
        rows(
            "GPU-hours lost since its start",
            f"topk({_JOBS_MAX}, {named(lost)}) / 3600",
            "Of the jobs that run now. The job's dashboard shows the parts.",
            unit="h",
            value="lost",
            width=8,
            links=(to_job(),),
        ),
        rows(
            "Lowest goodput",
            f"bottomk({_JOBS_MAX}, {named(ratio)})",
            "Share of a job's run time since its start that was spent on new steps.",
            unit="percentunit",
            value="goodput",
            steps=GOODPUT_STEPS,
            width=8,
            links=(to_job(),),
        ),
        rows(
            "Lowest MFU",
            f"bottomk({_JOBS_MAX}, {named(f'{once} (rankmend_controller_job_mfu_ratio{{{CLUSTER}}})')})",
            "Model FLOPs by the dense peak of the accelerators. Only of jobs that tell FLOPs (rankmend.work, --step-work) and where the peak is known.",
            unit="percentunit",
            value="MFU",
            width=8,
            links=(to_job(),),
        ),
    ):
        made.with_panel(panel)


def _failures(made: Dashboard) -> None:
    made.with_row(row("What fails, and how long is it down?"))
    for panel in (
        bars(
            "Failures by class",
            f"{_grown('rankmend_controller_failures_total', 'class')} > 0",
            "{{class}}",
            "In the time shown, of managed and watched jobs.",
            width=8,
        ),
        bars(
            "Time between failures",
            f"min by (class) (rankmend_controller_mtbf_seconds{{{CLUSTER}}})",
            "{{class}}",
            "Training time per failure of the jobs that run now, by class: the lowest of the clusters.",
            unit="s",
            width=8,
        ),
        bars(
            "Time to recovery",
            f"max by (class) (rankmend_controller_mttr_seconds{{{CLUSTER}}})",
            "{{class}}",
            "Mean from the fault to the first step, of the jobs that run now, by class: the highest of the clusters.",
            unit="s",
            width=8,
        ),
    ):
        made.with_panel(panel)

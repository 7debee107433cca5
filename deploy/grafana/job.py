"""Job: does it train, how fast, who holds it up, and what a failure would cost now."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.goodput import GOODPUT_STEPS
from deploy.grafana.panels import (
    GREEN,
    JOB,
    RATIO_HIGH,
    RED,
    ROWS_MAX,
    WARN_ABOVE_ZERO,
    YELLOW,
    bars,
    job_variable,
    lines,
    make,
    number,
    row,
    rows,
    to_incidents,
    to_node,
    top,
)

_STEP_AGE = ((None, GREEN), (60, YELLOW), (300, RED))
_LEFT = ((None, RED), (10, GREEN))
_RANK = "max by (rank)"


def job() -> Dashboard:
    made = make(
        "job",
        "job",
        "One job, also one that another launcher started and that is watched: progress, slow ranks, checkpoints, snapshots.",
        [job_variable()],
    )
    _now(made)
    _speed(made)
    _time(made)
    _ranks(made)
    _restore(made)
    return made


def _now(made: Dashboard) -> None:
    made.with_row(row("Does it train?"))
    for panel in (
        number(
            "Ranks",
            f"count({_RANK} (rankmend_rank_info{{{JOB}}}))",
            "Ranks that agents see.",
        ),
        number(
            "Step",
            f"min(rankmend_rank_step_number{{{JOB}}})",
            "Newest step that all ranks have finished.",
        ),
        number(
            "Since the newest step",
            f"max(rankmend_rank_step_age_seconds{{{JOB}}})",
            "Of the rank that has waited longest. Compare it with the step time: a hang is a multiple of it.",
            unit="s",
            steps=_STEP_AGE,
        ),
        number(
            "Attempts",
            f"count(count by (attempt) (last_over_time(rankmend_rank_info{{{JOB}}}[$__range])))",
            "In the time shown. More than one: the job was restarted.",
        ),
        number(
            "Restarts left",
            f"min(rankmend_controller_restarts_left{{{JOB}}})",
            "Of the job's budget; when it is spent, the job is given up. Empty for a watched job.",
            steps=_LEFT,
        ),
        number(
            "Wrong numbers",
            f"sum(max by (trouble) (rankmend_controller_numbers_wrong{{{JOB}}})) or vector(0)",
            "Losses and gradient norms of this attempt that are no finite number, spiked or came apart.",
            steps=WARN_ABOVE_ZERO,
        ),
    ):
        made.with_panel(panel)


def _speed(made: Dashboard) -> None:
    made.with_row(row("How fast?"))
    step = f"{_RANK} (rankmend_rank_step_median_seconds{{{JOB}}})"
    for panel in (
        lines(
            "Step time",
            [
                (f"min({step})", "fastest rank"),
                (f"quantile(0.5, {step})", "median"),
                (f"max({step})", "slowest rank"),
            ],
            "Median of the newest steps of each rank, at most 32.",
            unit="s",
            width=8,
        ),
        lines(
            "Steps",
            [
                (
                    f"quantile(0.5, {_RANK} (rate(rankmend_rank_steps_total{{{JOB}}}[$__rate_interval])))",
                    "steps a second",
                )
            ],
            "Zero while the job stands still.",
            unit="ops",
            width=8,
        ),
        lines(
            "Where a step's time goes",
            [
                (
                    f"avg by (section) (max by (rank, section) (rankmend_rank_section_ratio{{{JOB}}}))",
                    "{{section}}",
                )
            ],
            "Mean over the ranks; needs sections in the script, without them all is idle.",
            unit="percentunit",
            width=8,
            is_stacked=True,
        ),
    ):
        made.with_panel(panel)


def _time(made: Dashboard) -> None:
    made.with_row(row("Where did its time go?"))
    for panel in (
        number(
            "Goodput",
            f"max(rankmend_controller_job_goodput_ratio{{{JOB}}})",
            "Share of its run time since its start that was spent on new steps.",
            unit="percentunit",
            steps=GOODPUT_STEPS,
        ),
        number(
            "ETTR",
            f"max(rankmend_controller_job_ettr_ratio{{{JOB}}})",
            "Share of its wall time that was spent on new steps.",
            unit="percentunit",
            steps=GOODPUT_STEPS,
        ),
        number(
            "MTBF",
            f"max(rankmend_controller_job_mtbf_seconds{{{JOB}}})",
            "Training time per failure; empty before the first.",
            unit="s",
        ),
        number(
            "MTTR",
            f"max(rankmend_controller_job_mttr_seconds{{{JOB}}})",
            "Mean time from a fault to the slowest rank's first step; empty before the first recovery.",
            unit="s",
        ),
        number(
            "MFU",
            f"max(rankmend_controller_job_mfu_ratio{{{JOB}}})",
            "Model FLOPs by the dense peak of the accelerators; empty where the script tells no FLOPs or the peak isn't known.",
            unit="percentunit",
        ),
        number(
            "Linearity",
            f"max(rankmend_controller_job_linearity_ratio{{{JOB}}})",
            "Work per GPU, against that on the smallest number of GPUs on which a job of this name ran on the same accelerators. Empty where ranks tell no work.",
            unit="percentunit",
        ),
        number(
            "Tokens a second",
            f"max(rankmend_controller_job_tokens_per_second{{{JOB}}})",
            "Of all ranks; empty where the script tells no tokens.",
        ),
        lines(
            "A step's parts",
            [(f"max by (part) (rankmend_controller_job_step_seconds{{{JOB}}})", "{{part}}")],
            "Mean over the ranks, by the newest record. Of communication and I/O only what is not hidden behind compute. Needs sections in the script.",
            unit="s",
            width=8,
            is_stacked=True,
        ),
        lines(
            "Hidden behind compute",
            [
                (
                    f"max by (part, bound) (rankmend_controller_job_step_hidden_ratio{{{JOB}}})",
                    "{{part}}, {{bound}}",
                )
            ],
            "Share of communication and I/O that runs beside the ranks' own work: at least, at most. Empty where nobody tells it; the page on goodput says who does.",
            unit="percentunit",
            width=8,
        ),
        bars(
            "GPU-hours by part",
            f"max by (category) (rankmend_controller_job_gpu_seconds{{{JOB}}}) / 3600",
            "{{category}}",
            "Since the job's start. The page on goodput defines the parts; recovery is the sum of the phases of MTTR.",
            unit="h",
            width=8,
        ),
    ):
        made.with_panel(panel)


def _ranks(made: Dashboard) -> None:
    made.with_row(row("Who holds it up?"))
    for panel in (
        rows(
            "Ranks that compute longest",
            top(
                f"max by (rank, node) (rank:rankmend_rank_compute_seconds:ratio_to_median{{{JOB}}})"
            ),
            "A rank's own compute in a step, against the median of the job. Needs sections and four ranks.",
            unit="percentunit",
            value="of median",
            steps=RATIO_HIGH,
            width=8,
            links=(to_node(),),
        ),
        rows(
            "Ranks that wait longest",
            top(f"max by (rank, node) (rankmend_rank_step_age_seconds{{{JOB}}})"),
            "Time since a rank's newest step.",
            unit="s",
            value="since its step",
            width=8,
            links=(to_node(),),
        ),
        rows(
            "Findings on its ranks' devices",
            f"topk({ROWS_MAX}, max by (check, node, rank, uuid, device) (rankmend_finding_rank_info{{{JOB}}}))",
            "Findings of node agents that affect a rank of this job.",
            width=8,
            hidden=("Value",),
            links=(to_node(),),
        ),
        rows(
            "Found slow",
            top(f"max by (rank, section, cause, node) (rankmend_rank_slow_ratio{{{JOB}}})"),
            "Ranks that the job's detectors call slow, how much, and the likeliest cause in hardware.",
            unit="percentunit",
            value="of its peers",
            steps=RATIO_HIGH,
            width=12,
            links=(to_node(),),
        ),
        rows(
            "Ranks of each attempt",
            f"count by (attempt, job_name) (last_over_time(rankmend_rank_info{{{JOB}}}[$__range]))",
            "Attempts in the time shown, and the ranks of each. The incidents dashboard shows why each ended.",
            value="ranks",
            width=12,
            links=(to_incidents("attempt"),),
        ),
    ):
        made.with_panel(panel)


def _restore(made: Dashboard) -> None:
    made.with_row(row("What would a failure cost now?"))
    for panel in (
        lines(
            "Age of the newest state that can be restored",
            [(f"min by (tier) (rankmend_controller_restorable_age_seconds{{{JOB}}})", "{{tier}}")],
            "A failure costs the steps since then: memory (snapshots of the ranks), peer (their copies on other nodes), checkpoint.",
            unit="s",
            width=8,
        ),
        lines(
            "Interval of checkpoints",
            [
                (f"max(rankmend_controller_checkpoint_interval_seconds{{{JOB}}})", "now"),
                (f"max(rankmend_controller_checkpoint_best_interval_seconds{{{JOB}}})", "cheapest"),
            ],
            "Cheapest: where saves and repeated steps together cost least (Young/Daly).",
            unit="s",
            width=8,
        ),
        lines(
            "What the present interval costs",
            [(f"max by (part) (rankmend_controller_checkpoint_cost_ratio{{{JOB}}})", "{{part}}")],
            "Share of the wall time: stalls of saves, repeated steps, restarts.",
            unit="percentunit",
            width=8,
            is_stacked=True,
        ),
        lines(
            "A save",
            [
                (
                    f"max(rankmend_controller_checkpoint_stall_seconds{{{JOB}}})",
                    "stops training for",
                ),
                (f"max(rankmend_controller_checkpoint_save_seconds{{{JOB}}})", "is written in"),
            ],
            "A save that is written in the background stops training only for a part of it.",
            unit="s",
            width=8,
        ),
        lines(
            "Snapshots",
            [
                (f"max(rankmend_controller_snapshot_interval_seconds{{{JOB}}})", "interval"),
                (f"max(rankmend_controller_snapshot_stall_seconds{{{JOB}}})", "stop training for"),
            ],
            "Of scripts that call rankmend.snapshot().",
            unit="s",
            width=8,
        ),
        rows(
            "Ranks without snapshots",
            f"topk({ROWS_MAX}, max by (rank, node) (increase(rankmend_rank_snapshots_refused_total{{{JOB}}}[$__range])))",
            "Snapshots that ranks asked for and did not get, in the time shown.",
            value="refused",
            steps=WARN_ABOVE_ZERO,
            width=8,
            links=(to_node(),),
        ),
    ):
        made.with_panel(panel)

"""Incidents: how often, how long, what they cost, what waits for a person, and whether the controller is well."""

from grafana_foundation_sdk.builders.dashboard import Dashboard

from deploy.grafana.panels import (
    BAD_ABOVE_ZERO,
    CLUSTER,
    GREEN,
    LINES_MAX,
    RED,
    ROWS_MAX,
    WARN_ABOVE_ZERO,
    YELLOW,
    bars,
    grown,
    heat,
    lines,
    make,
    number,
    row,
    rows,
    to_job,
    to_notice,
)

_RECOVERED = 'outcome="recovered",'
_MTTR_STEPS = ((None, GREEN), (60, YELLOW), (600, RED))


def incidents() -> Dashboard:
    made = make(
        "incidents",
        "incidents",
        "Recoveries of all jobs: how many, how long by phase, what they cost by cause, what waits for a person.",
    )
    _now(made)
    _mttr(made)
    _cost(made)
    _slow(made)
    _controller(made)
    return made


def _now(made: Dashboard) -> None:
    made.with_row(row("Does anything wait for a person?"))
    notices = f"max by (cluster, instance, notice) (rankmend_controller_notices{{{CLUSTER}}})"
    for panel in (
        number(
            "Gave up",
            f'sum(rankmend_controller_notices{{notice="RankmendIncidentEscalated",{CLUSTER}}}) or vector(0)',
            "Jobs that are stopped and that rankmend has given up.",
            steps=BAD_ABOVE_ZERO,
        ),
        number(
            "Plans that wait",
            f'sum(rankmend_controller_notices{{notice="RankmendPlanWaits",{CLUSTER}}}) or vector(0)',
            "For an approval, the end of a pause or dry run, or a node. `rankmend approve` or `rankmend reject` ends the wait for an approval.",
            steps=BAD_ABOVE_ZERO,
        ),
        number(
            "Incidents opened",
            f"sum({grown('rankmend_controller_incidents_opened_total', 'cause')})",
            "In the time shown.",
        ),
        number(
            "Recovered",
            f"sum({grown('rankmend_controller_incidents_total', 'cause', _RECOVERED)})",
            "Incidents of the time shown after which every rank trained again.",
        ),
        number(
            "MTTR, half of all",
            f"max(cluster:rankmend_controller_recovery_seconds:p50_1d{{{CLUSTER}}})",
            "From the fault to the first new step of the slowest rank, within a day.",
            unit="s",
            steps=_MTTR_STEPS,
        ),
        number(
            "MTTR, nine of ten",
            f"max(cluster:rankmend_controller_recovery_seconds:p90_1d{{{CLUSTER}}})",
            "Nine of ten incidents of a day took no longer.",
            unit="s",
            steps=_MTTR_STEPS,
        ),
        rows(
            "Notices",
            f"topk({ROWS_MAX}, max by (cluster, instance, notice) ({notices} > 0))",
            "What the controllers tell people now; the runbook has a section for each. Empty when nothing waits.",
            value="active",
            steps=WARN_ABOVE_ZERO,
            width=8,
            links=(to_notice(),),
        ),
        rows(
            "What is left of the budgets",
            f"min by (cluster, budget) (rankmend_controller_budget_left{{{CLUSTER}}})",
            "At 0 rankmend stops no further job, or holds back no further node, and tells people.",
            value="left",
            steps=((None, RED), (1, GREEN)),
            width=8,
        ),
        rows(
            "Jobs with the fewest restarts left",
            f"bottomk({LINES_MAX}, min by (cluster, job_id) (rankmend_controller_restarts_left{{{CLUSTER}}}))",
            "A job whose budget is spent is given up.",
            value="left",
            steps=((None, RED), (10, GREEN)),
            width=8,
            links=(to_job(),),
        ),
    ):
        made.with_panel(panel)


def _mttr(made: Dashboard) -> None:
    made.with_row(row("How long do recoveries take?"))
    for panel in (
        bars(
            "MTTR by phase",
            f"avg by (phase) (cluster_phase:rankmend_controller_recovery_phase_seconds:mean1d{{{CLUSTER}}})",
            "{{phase}}",
            "Mean length of each phase within a day. The page on time to recovery says what decides each.",
            unit="s",
            width=8,
        ),
        heat(
            "MTTR of each incident",
            f"sum by (le) (increase(rankmend_controller_recovery_seconds_bucket{{{CLUSTER}}}[$__rate_interval]))",
            "From the fault to the first new step.",
            width=8,
        ),
        lines(
            "MTTR over time",
            [
                (
                    f"max(cluster:rankmend_controller_recovery_seconds:p50_1d{{{CLUSTER}}})",
                    "half of all",
                ),
                (
                    f"max(cluster:rankmend_controller_recovery_seconds:p90_1d{{{CLUSTER}}})",
                    "nine of ten",
                ),
                (f"max(cluster:rankmend_controller_recovery_seconds:mean1d{{{CLUSTER}}})", "mean"),
            ],
            "Of the day before each moment.",
            unit="s",
            width=8,
        ),
    ):
        made.with_panel(panel)


def _cost(made: Dashboard) -> None:
    made.with_row(row("What do they cost?"))
    for panel in (
        bars(
            "GPU-hours lost, by cause",
            f"{grown('rankmend_controller_gpu_seconds_lost_total', 'cause')} / 3600",
            "{{cause}}",
            "From the fault to the first step, in the time shown. A rank counts as one GPU; repeated steps are not in it.",
            unit="h",
            width=8,
        ),
        lines(
            "Incidents by cause",
            [
                (
                    f"sum by (cause) (cluster_cause_outcome:rankmend_controller_incidents:increase1d{{{CLUSTER}}})",
                    "{{cause}}",
                )
            ],
            "That ended within the day before each moment.",
            width=8,
            is_stacked=True,
        ),
        bars(
            "Steps made again, a recovery",
            f"sum by (tier) (increase(rankmend_controller_steps_lost_sum{{{CLUSTER}}}[$__range])) / (sum by (tier) (increase(rankmend_controller_steps_lost_count{{{CLUSTER}}}[$__range])) > 0)",
            "{{tier}}",
            "Mean, by what was restored: memory (snapshots), checkpoint, or the start.",
            width=8,
        ),
    ):
        made.with_panel(panel)


def _slow(made: Dashboard) -> None:
    made.with_row(row("What stops nobody, and costs all the same"))
    for panel in (
        bars(
            "Ranks found slow",
            grown("rankmend_controller_slow_ranks_total", "section"),
            "{{section}}",
            "In the time shown, by the section in which they lose time.",
            width=8,
        ),
        lines(
            "Watched jobs",
            [
                (
                    f"sum by (state) (max by (cluster, instance, state) (rankmend_controller_watched_jobs{{{CLUSTER}}}))",
                    "{{state}}",
                )
            ],
            "Jobs of other launchers that agents report, by what the controller thinks of them.",
            width=8,
            is_stacked=True,
        ),
        lines(
            "Mean time between failures of a job",
            [
                (
                    f"quantile(0.5, max by (job_id) (rankmend_controller_failure_interval_seconds{{{CLUSTER}}}))",
                    "median of the jobs",
                )
            ],
            "Running time between failures, measured as far as jobs had any.",
            unit="s",
            width=8,
        ),
    ):
        made.with_panel(panel)


def _controller(made: Dashboard) -> None:
    made.with_row(row("Is the controller well?"))
    for panel in (
        lines(
            "Deciding thread",
            [
                (
                    f"max by (instance) (rankmend_controller_turn_age_seconds{{{CLUSTER}}})",
                    "{{instance}}: since its last turn",
                ),
                (
                    f"max by (instance) (rankmend_controller_lateness_seconds{{{CLUSTER}}})",
                    "{{instance}}: oldest report waits",
                ),
            ],
            "Above 10 s: RankmendControllerStuck. 5 s late for 5 minutes: RankmendControllerOverloaded.",
            unit="s",
            width=8,
        ),
        lines(
            "Journal",
            [
                (
                    f"sum by (instance) (rate(rankmend_controller_commit_seconds_sum{{{CLUSTER}}}[$__rate_interval]))"
                    f" / sum by (instance) (rate(rankmend_controller_commit_seconds_count{{{CLUSTER}}}[$__rate_interval]))",
                    "{{instance}}: mean",
                ),
                (
                    "histogram_quantile(0.99, sum by (instance, le)"
                    f" (rate(rankmend_controller_commit_seconds_bucket{{{CLUSTER}}}[$__rate_interval])))",
                    "{{instance}}: 99 % within",
                ),
            ],
            "How long a commit to the journals of jobs takes. A recovery waits for two to four. Above 0.5 s: RankmendJournalSlow.",
            unit="s",
            width=8,
        ),
        lines(
            "Reports",
            [
                (
                    f"sum by (result) (rate(rankmend_controller_reports_total{{{CLUSTER}}}[$__rate_interval]))",
                    "{{result}}",
                )
            ],
            "Of launchers, a second. `full` and `rate` are refusals.",
            unit="reqps",
            width=8,
        ),
        lines(
            "Jobs",
            [
                (
                    f"sum(max by (cluster, instance) (rankmend_controller_jobs{{{CLUSTER}}}))",
                    "managed",
                )
            ],
            "Jobs that the controllers manage.",
            width=8,
        ),
        lines(
            "Alerts in",
            [
                (
                    f"sum by (instance) (rate(rankmend_controller_alerts_total{{{CLUSTER}}}[$__rate_interval]))",
                    "{{instance}}",
                )
            ],
            "Alerts that the controllers have accepted, a second.",
            unit="reqps",
            width=8,
        ),
        rows(
            "Alertmanagers that take notices",
            f"max by (instance, target) (rankmend_controller_people_told{{{CLUSTER}}})",
            "1: the newest message for people was accepted. 0 everywhere: nobody is told (RankmendPeopleNotTold).",
            value="accepted",
            steps=((None, RED), (1, GREEN)),
            width=8,
        ),
    ):
        made.with_panel(panel)

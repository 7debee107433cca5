"""The metric families of `agent/collectors/ranks.py`."""

from typing import Final

from agent.metrics import RANK_LABELS, Family, counter, gauge

FAMILIES: Final[tuple[Family, ...]] = (
    gauge(
        "rank_info",
        "",
        ("job_id", "rank", "pid", "attempt", "job_name"),
        "What belongs to a rank; always 1.",
    ),
    gauge(
        "rank_nccl_info",
        "",
        (*RANK_LABELS, "version"),
        "A version of NCCL (or RCCL) that a rank has loaded, wherever its library came from; always 1. No series before its first process group or step.",
    ),
    gauge(
        "rank_pod_info",
        "",
        ("job_id", "rank", "pod", "namespace", "pod_uid"),
        "The pod of Kubernetes that a rank runs in; always 1. No series of a rank outside of pods.",
    ),
    gauge(
        "watched_job_info",
        "",
        ("job_id", "job_name", "user", "launcher", "slurm_job"),
        "A job of another launcher with a watched rank on this node; always 1.",
    ),
    gauge(
        "rank_progress_success",
        "",
        RANK_LABELS,
        "1 when the rank's progress file could be read, 0 when it is broken.",
    ),
    gauge("rank_step_number", "", RANK_LABELS, "Number of the newest finished step."),
    counter("rank_steps", "", RANK_LABELS, "Steps finished in this attempt."),
    gauge("rank_step_last_seconds", "seconds", RANK_LABELS, "Duration of the newest step."),
    gauge(
        "rank_step_median_seconds",
        "seconds",
        RANK_LABELS,
        "Median duration of the newest steps, at most 32.",
    ),
    gauge("rank_step_age_seconds", "seconds", RANK_LABELS, "Time since the newest step ended."),
    gauge(
        "rank_section_ratio",
        "ratio",
        ("job_id", "rank", "section"),
        "Share of the time of the newest steps (at most 32) spent in a section; idle is outside of all.",
    ),
    gauge(
        "rank_section_age_seconds",
        "seconds",
        ("job_id", "rank", "section"),
        "How long the rank has been in the section where it is now.",
    ),
    counter(
        "rank_checkpoint_seconds",
        "seconds",
        RANK_LABELS,
        "Time in the checkpoint section in this attempt, up to the newest step: its rate is the share that saves cost.",
    ),
    counter("rank_collectives_entered", "", RANK_LABELS, "Collectives entered in this attempt."),
    counter(
        "rank_collectives_completed", "", RANK_LABELS, "Collectives completed in this attempt."
    ),
    gauge(
        "rank_slow_ratio",
        "ratio",
        (*RANK_LABELS, "section", "cause"),
        "Own work of a step of a rank that its launcher calls slow, against its peers'; the likeliest cause, unknown where hardware shows none.",
    ),
    gauge(
        "job_fault_age_seconds",
        "seconds",
        ("job_id", "kind", "ranks"),
        "Since the newest incident of a job that runs here: rank_hung or rank_failed, and the culprits on this node (empty: nobody is accused).",
    ),
    *(
        gauge(
            f"controller_checkpoint_{name}",
            unit,
            ("job_id", "part") if name == "cost_ratio" else ("job_id",),
            f"{text} Of a job on one node, whose controller is in its launcher.",
        )
        for name, unit, text in (
            ("age_seconds", "seconds", "Age of the newest restorable checkpoint."),
            ("interval_seconds", "seconds", "Usual time from the begin of a save to the next."),
            ("best_interval_seconds", "seconds", "Interval at which checkpoints cost least."),
            ("stall_seconds", "seconds", "For how long a save stops training."),
            (
                "save_seconds",
                "seconds",
                "From the first change of a checkpoint's files to the last.",
            ),
            ("write_bytes_per_second", "bytes_per_second", "At which the job saves."),
            (
                "read_bytes_per_second",
                "bytes_per_second",
                "At which ranks read the newest restore.",
            ),
            ("cost_ratio", "ratio", "Share of the wall time that the present interval costs."),
        )
    ),
    gauge(
        "controller_unsaved_seconds",
        "seconds",
        ("job_id", "cause"),
        "For how long a job has trained and saved nothing where checkpoints are looked for: nothing_found, none_valid, none_newer. Of a job on one node, whose controller is in its launcher.",
    ),
    gauge(
        "controller_restorable_age_seconds",
        "seconds",
        ("job_id", "tier"),
        "Age of the newest state that a failure could restore: of the ranks' snapshots (memory), or a checkpoint. Of a job on one node, whose controller is in its launcher.",
    ),
    *(
        gauge(
            f"controller_snapshot_{name}",
            unit,
            ("job_id",),
            f"{text} Of a job on one node, whose controller is in its launcher.",
        )
        for name, unit, text in (
            ("held_bytes", "bytes", "Memory that the ranks' snapshots hold."),
            (
                "stall_seconds",
                "seconds",
                "For how long a snapshot stops training, on the slowest rank.",
            ),
            ("interval_seconds", "seconds", "Usual time from one snapshot to the next."),
            ("best_interval_seconds", "seconds", "Interval at which snapshots cost least."),
        )
    ),
    counter(
        "rank_snapshots",
        "",
        RANK_LABELS,
        "Snapshots that the rank has kept of its state in this attempt; of ranks that ever asked for one.",
    ),
    counter(
        "rank_snapshots_refused",
        "",
        RANK_LABELS,
        "Snapshots that the rank asked for and that were not kept, for want of memory or because its state can't be kept.",
    ),
    gauge("rank_snapshot_step", "", RANK_LABELS, "Step of the rank's newest snapshot."),
    gauge("rank_snapshot_size_bytes", "bytes", RANK_LABELS, "Size of the rank's newest snapshot."),
    counter(
        "rank_snapshot_stall_seconds",
        "seconds",
        RANK_LABELS,
        "Time for which training stood still for snapshots in this attempt: its rate is the share that they cost.",
    ),
    gauge(
        "rank_snapshot_files",
        "",
        RANK_LABELS,
        "Snapshots of the rank for which there is room: 2, 1 (a death while it is written leaves none) or 0.",
    ),
    counter(
        "rank_flops",
        "",
        (*RANK_LABELS, "dtype", "device"),
        "FLOPs of the model that the rank has told in this attempt, by data type and accelerator; of ranks that tell any.",
    ),
    counter("rank_tokens", "", RANK_LABELS, "Tokens that the rank has told in this attempt."),
    counter("rank_samples", "", RANK_LABELS, "Samples that the rank has told in this attempt."),
    counter(
        "rank_run_queue_seconds",
        "seconds",
        RANK_LABELS,
        "Time that the rank's main thread was ready to run and had no CPU.",
    ),
)

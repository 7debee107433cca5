"""The labelled corpus of logs of training jobs: what an operator of experience would say of each.

It was labelled before the rules that judge it were read. Logs of gloo jobs are real ones, shortened; those of GPUs,
Slurm, MPI and other launchers have the programs' own forms, and each case names the thread or the program.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.support.job_log_cases_blind import BLIND
from tests.support.job_log_cases_blind_fifth import BLIND_FIFTH
from tests.support.job_log_cases_blind_fourth import BLIND_FOURTH
from tests.support.job_log_cases_blind_second import BLIND_SECOND
from tests.support.job_log_cases_blind_sixth import BLIND_SIXTH
from tests.support.job_log_cases_blind_third import BLIND_THIRD
from tests.support.job_log_cases_code import CODE
from tests.support.job_log_cases_ends import ENDS
from tests.support.job_log_cases_field import FIELD
from tests.support.job_log_cases_forms import JobLogCase, after_a_run, after_a_start
from tests.support.job_log_cases_frameworks import FRAMEWORKS
from tests.support.job_log_cases_hangs import HANGS
from tests.support.job_log_cases_machines import MACHINES
from tests.support.job_log_cases_open import OPEN_CASES
from tests.support.job_log_cases_pasted_ends import PASTED_ENDS
from tests.support.job_log_cases_pasted_errors import PASTED_ERRORS
from tests.support.job_log_cases_pasted_more import PASTED_MORE
from tests.support.job_log_cases_pasted_third import PASTED_THIRD
from tests.support.job_log_cases_rare import RARE
from tests.support.job_log_cases_real import REAL
from tests.support.job_log_cases_services import SERVICES
from tests.support.job_log_cases_siblings import SIBLINGS
from tests.support.job_log_cases_taxonomy import TAXONOMY
from tests.support.job_log_cases_thin import THIN
from tests.support.job_log_cases_thin_second import THIN_SECOND
from tests.support.job_log_cases_trackers import TRACKERS

# What is certain of class and blame, by the first words of a case's name: where two classes may be right, none is given.
CERTAIN: Mapping[str, tuple[str | None, str | None]] = {
    "watchdogs of ": (None, "rank"),
    "rank 2 never enqueued the work": ("host-stuck", "rank"),
    "collectives differ at step 0": ("mismatch", "program"),
    "NCCL finds collectives that differ": ("mismatch", "program"),
    "clients of the store never joined": ("communication", None),
    "CUDA memory of": ("device_memory", "program"),
    "cuBLAS of rank 1 got no memory": ("device_memory", "program"),
    "the kernel killed rank 5": ("oom_killed", "memory"),
    "a module that is not installed": ("exception", "program"),
    "a name that a package no longer has": ("exception", "program"),
    "an option that is": ("exception", "program"),
    "a syntax error": ("program", "program"),
    "a key that the configuration lacks": ("exception", "program"),
    "a checkpoint of another shape": ("exception", "program"),
    "an argument that a function doesn't know": ("program", "program"),
    "shapes that don't multiply": ("exception", "program"),
    "an index error of rank 1 in its loader": ("exception", "program"),
    "a loss of rank 1 that is no number": ("numbers", None),
    "a name error under spawn": ("program", "program"),
    "an import error in 16": ("exception", "program"),
    "ranks that share a GPU": ("program", "program"),
    "an ECC error": ("device", "rank"),
    "a device that fell off the bus": ("device", "rank"),
    "an NVLink error": ("device", "rank"),
    "an illegal address of rank 2": ("kernel_fault", None),
    "a launch that failed": ("kernel_fault", None),
    "GPU row remapping fails": ("device", "rank"),
    "GSP of a device": ("device", "rank"),
    "a driver that doesn't fit": ("device", "rank"),
    "a driver that is too old": ("device", None),
    "a machine check": ("node_failed", "rank"),
    "an InfiniBand": ("communication", "communication"),
    "NCCLs of two versions": ("mixed_nccl", "program"),
    "a full disk while": ("storage", "nobody"),
    "a quota": ("storage", "nobody"),
    "a stale": ("storage", "nobody"),
    "an input/output error": ("storage", "nobody"),
    "a read-only file system": ("storage", "nobody"),
    "Weights & Biases doesn't": ("service", "nobody"),
    "the Hugging Face hub answers": ("service", "nobody"),
    "S3": ("service", "nobody"),
    "GCS": ("service", "nobody"),
    "SIGKILL of rank 2": ("killed", "rank"),
    "a segmentation fault of rank 2": ("crashed", "rank"),
    "a loader's worker without shared memory": ("host_memory", "memory"),
    "host memory that can't be had": ("host_memory", "memory"),
    "mpirun noticed that rank 7": ("killed", "rank"),
    "Slurm: a time limit": ("time_limit", "user"),
    "Slurm: preemption": ("preempted", "user"),
    "Slurm: a node that failed": ("node_failed", "rank"),
    "Slurm: a task that Slurm's memory": ("oom_killed", "memory"),
    "Slurm: a killed task": ("killed", "rank"),
    "Slurm: a segmentation fault": ("crashed", "rank"),
    "Slurm: somebody cancelled": ("user", "user"),
    "Ctrl-C of a person": ("user", "user"),
    "a port that is in use": ("communication", "nobody"),
    "kubectl describes a pod": ("oom_killed", "memory"),
    "an AMD device's memory is used up": ("device_memory", "program"),
    "a full /dev/shm": ("host_memory", "memory"),
    "torchrun: rank 1 is killed": ("killed", "rank"),
    "torchrun: rank 1 crashes": ("crashed", "rank"),
    "torchrun: all ranks crash at once": ("crashed", "program"),
    "torchrun: a module": ("exception", "program"),
    "rankmend: rank 1 is killed": ("killed", "rank"),
    "srun: rank 1 is killed": ("killed", "rank"),
    "HCCL": ("communication", "communication"),
    "an attribute that is not there": ("program", "program"),
    "a batch size of DeepSpeed": ("exception", "program"),
    "a tensor-parallel size": ("exception", "program"),
    "keys that a checkpoint lacks": ("exception", "program"),
    "an optimiser whose groups": ("exception", "program"),
    "tensors on two devices": ("exception", "program"),
    "gradients that DDP": ("exception", "program"),
    "a device that can't be found": ("device", "rank"),
    "a device that is in a bad state": ("device", "rank"),
    "a repository that": ("exception", "program"),
    "a tracker without a key": ("exception", "program"),
    "an abort of rank 2 for want": ("host_memory", "memory"),
    "a rendezvous": ("communication", None),
    "a host's name": ("communication", None),
    "a mount that is not connected": ("storage", "nobody"),
    "a Lustre": ("storage", "nobody"),
    "an MLflow": ("service", "nobody"),
    "a hub that limits": ("service", "nobody"),
    "the hub's name": ("service", "nobody"),
    "only ": ("none", "nobody"),
    "a log of ": ("none", "nobody"),
}


def _labelled(case: JobLogCase) -> JobLogCase:
    """Return a case with the class and the blame that are certain of it."""
    found = next((pair for start, pair in CERTAIN.items() if case.name.startswith(start)), None)
    if found is None:
        return case
    error_class, blame = found
    return replace(case, error_class=case.error_class or error_class, blame=case.blame or blame)


_CASES: Sequence[JobLogCase] = (
    *HANGS,
    *CODE,
    *MACHINES,
    *SERVICES,
    *ENDS,
    *OPEN_CASES,
    *RARE,
    *REAL,
    *FIELD,
    *TRACKERS,
    *TAXONOMY,
    *FRAMEWORKS,
    *PASTED_ENDS,
    *PASTED_ERRORS,
    *PASTED_MORE,
    *PASTED_THIRD,
    *BLIND,
    *BLIND_SECOND,
    *BLIND_THIRD,
    *BLIND_FOURTH,
    *BLIND_FIFTH,
    *BLIND_SIXTH,
    *THIN,
    *THIN_SECOND,
    *SIBLINGS,
    # Where the label is "restart" and not "unknown", steps before it change nothing.
    *(
        after_a_run(case)
        for case in (
            *PASTED_ENDS,
            *PASTED_ERRORS,
            *PASTED_MORE,
            *PASTED_THIRD,
            *BLIND,
            *BLIND_SECOND,
            *BLIND_THIRD,
            *BLIND_FOURTH,
            *BLIND_FIFTH,
            *BLIND_SIXTH,
            *THIN,
            *THIN_SECOND,
            *SIBLINGS,
        )
        if case.decision == "restart" and "unknown" not in case.also and not case.is_noisy
        if not case.files["job.log"].startswith("{")  # nobody writes lines before a collector's
    ),
    *(
        after_a_start(case)
        for case in (
            *BLIND,
            *BLIND_SECOND,
            *BLIND_THIRD,
            *BLIND_FOURTH,
            *BLIND_FIFTH,
            *BLIND_SIXTH,
            *THIN,
            *THIN_SECOND,
        )
        if case.decision == "stop"
    ),
)

JOB_LOG_CASES: Sequence[JobLogCase] = tuple(_labelled(case) for case in _CASES)

"""Where the progress files of watched ranks lie: read by the agent, made by `rankmend.hook.watched`."""

import uuid

ROOT = "/dev/shm"  # noqa: S108 - the folders below it are checked
FOLDER_PREFIX = "rankmend-watch-"  # then the user's id
JOB_FILE = "job.json"
PROGRESS_SUFFIX = ".progress"
# After the name of a rank's progress file, where the job's owner wants evidence: `rankmend.hook.watched_stacks`.
STACKS_SUFFIX = ".stacks"
ASK_SUFFIX = ".ask"
DRILL_SUFFIX = (
    ".drill"  # where the rank says that it makes faults on request: `rankmend.hook.drill`
)
RECORDER_SUFFIX = ".recorder"  # JSON: where PyTorch's flight recorder dumps, and its pipe
NAMESPACE = uuid.UUID("8f1a1f0e-6a2c-5d0e-9a3a-2f6f4d1c7b55")


def job_id_of(uid, key):
    """Return the UUID of a job; ``key``: what all its ranks know alike."""
    return uuid.uuid5(NAMESPACE, "%d:%s" % (uid, key))


def number_of(environment, name):
    try:
        value = int(environment.get(name, ""))
    except ValueError:
        return None
    return value if value >= 0 else None


def find_rank(environment):
    """Return (launcher, rank, local rank, world size) by the variables of the launcher closest to the script, or None."""
    kinds = [
        ("torchrun", "RANK", "LOCAL_RANK", "WORLD_SIZE"),
        ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ]
    # Hydra's, of MPICH and Intel MPI. Under `srun --mpi=pmi2` they are those of the step: then srun's count.
    if environment.get("PMI_RANK") != environment.get("SLURM_PROCID"):
        kinds.append(("hydra", "PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"))
    # In a batch script, which is no task of a step, Slurm sets the same.
    if environment.get("SLURM_STEP_ID"):
        kinds.append(("srun", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"))
    for launcher, *names in kinds:
        rank, local_rank, size = [number_of(environment, name) for name in names]
        if rank is not None and size is not None and rank < size <= 0xFFFFFFFF:
            return launcher, rank, local_rank or 0, size
    return None

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

"""Real logs of jobs on gloo under torchrun 2.13, rankmend, srun, mpirun and accelerate, shortened.

A small program made each failure: it kills itself, sleeps, imports what is not there, reads a bad sample, asks for more
memory than its limit, saves to a full disk of 1 MiB. Paths are neutral; frames that all logs share are kept once, and
the lines under code that mark a column are left out.
"""

from collections.abc import Mapping, Sequence

from tests.support.job_log_cases_forms import JobLogCase
from tests.support.job_log_cases_real_ends import ENDS_TEXTS
from tests.support.job_log_cases_real_errors import ERRORS_TEXTS
from tests.support.job_log_cases_real_launchers import LAUNCHERS_TEXTS

TEXTS: Mapping[str, str] = {**ENDS_TEXTS, **ERRORS_TEXTS, **LAUNCHERS_TEXTS}

_LAUNCHER = """\
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "<frozen runpy>", line 88, in _run_code
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1032, in <module>
    main()
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/errors/__init__.py", line 367, in wrapper
    return f(*args, **kwargs)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1028, in main
    run(args)
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1019, in run
    elastic_launch(
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 194, in __call__
    return launch_agent(
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/launcher/api.py", line 383, in launch_agent
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
"""

_BACKWARD = """\
Traceback (most recent call last):
  File "/home/user/train.py", line 51, in <module>
    main()
  File "/home/user/train.py", line 28, in main
    opt.zero_grad(); loss.backward()
  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward
    torch.autograd.backward(
  File "/opt/venv/lib/python3.11/site-packages/torch/autograd/__init__.py", line 395, in backward
    _engine_run_backward(
  File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
    return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass
"""


def _whole(text: str) -> str:
    """Return a text with the frames that were kept once."""
    text = text.replace("<launcher's frames>\n", _LAUNCHER)
    for rank in range(3):
        frames = "".join(f"[rank{rank}]: {line}\n" for line in _BACKWARD.splitlines())
        text = text.replace(f"<backward of {rank}>\n", frames)
    return text


def _real(
    key: str,
    name: str,
    decision: str,
    ranks: tuple[int, ...] | None,
    also: tuple[str, ...] = (),
) -> JobLogCase:
    return JobLogCase(
        name=name,
        files={"job.log": _whole(TEXTS[key])},
        decision=decision,
        source="a run of PyTorch 2.13 on gloo",
        culprit_ranks=ranks,
        also=also,
        is_noisy=True,
    )


REAL: Sequence[JobLogCase] = (
    _real("torchrun-ok", "torchrun: a run that ends well", "unknown", (), ()),
    _real("torchrun-import", "torchrun: a module that isn't there", "stop", None, ()),
    _real("torchrun-config", "torchrun: an option that is missing", "stop", None, ()),
    _real("torchrun-keyerror", "torchrun: a key that the configuration lacks", "stop", None, ()),
    _real("torchrun-kill", "torchrun: rank 1 is killed", "restart", (1,), ()),
    _real("torchrun-segv", "torchrun: rank 1 crashes", "restart", (1,), ()),
    _real("torchrun-term", "torchrun: rank 1 gets SIGTERM", "restart", (1,), ("unknown",)),
    _real(
        "torchrun-memory", "torchrun: PyTorch gets no host memory on rank 1", "restart", (1,), ()
    ),
    _real("torchrun-pymemory", "torchrun: Python gets no memory on rank 1", "restart", (1,), ()),
    _real(
        "torchrun-nan",
        "torchrun: a loss of rank 1 that is no number",
        "restart",
        (1,),
        ("unknown",),
    ),
    _real("torchrun-exit3", "torchrun: rank 1 exits with 3", "restart", (1,), ("unknown",)),
    _real(
        "torchrun-disk",
        "torchrun: a full disk that the error doesn't name",
        "restart",
        None,
        ("unknown",),
    ),
    _real(
        "torchrun-perm",
        "torchrun: a checkpoint's folder that can't be opened",
        "stop",
        None,
        ("restart", "unknown"),
    ),
    _real("torchrun-shape", "torchrun: shapes that don't multiply", "stop", None, ()),
    _real(
        "torchrun-dataerror",
        "torchrun: a sample of rank 1 that can't be read",
        "restart",
        (1,),
        ("stop",),
    ),
    _real(
        "torchrun-workerkill",
        "torchrun: a loader's worker of rank 1 is killed",
        "restart",
        (1,),
        (),
    ),
    _real(
        "torchrun-mismatch",
        "torchrun: rank 1 broadcasts while the others reduce",
        "restart",
        None,
        ("unknown",),
    ),
    _real("torchrun-crashes", "torchrun: all ranks crash at once", "restart", None, ("unknown",)),
    _real("torchrun-hang", "torchrun: rank 1 sleeps", "restart", (1,), ()),
    _real("plain-port", "a port that is in use, without a launcher", "restart", None, ("unknown",)),
    _real("torchrun-port", "torchrun: a port that is in use", "restart", None, ("unknown",)),
    _real("rankmend-ok", "rankmend: a run that ends well", "unknown", (), ()),
    _real("rankmend-import", "rankmend: a module that isn't there", "stop", None, ()),
    _real("rankmend-kill", "rankmend: rank 1 is killed", "restart", (1,), ()),
    _real(
        "rankmend-nan",
        "rankmend: a loss of rank 1 that is no number",
        "restart",
        (1,),
        ("unknown",),
    ),
    _real("rankmend-hang", "rankmend: rank 1 sleeps", "restart", (1,), ()),
    _real("srun-kill", "srun: rank 1 is killed", "restart", (1,), ()),
    _real("srun-import", "srun: a module that isn't there", "stop", None, ()),
    _real("srun-nan", "srun: a loss of rank 1 that is no number", "restart", (1,), ("unknown",)),
    _real("srun-hang", "srun: rank 1 sleeps", "restart", (1,), ()),
    _real("mpirun-kill", "mpirun: rank 1 is killed", "restart", (1,), ()),
    _real("mpirun-keyerror", "mpirun: a key that the configuration lacks", "stop", None, ()),
    _real(
        "accelerate-variable",
        "accelerate: a variable that its simple launcher doesn't set",
        "stop",
        None,
        (),
    ),
    _real("accelerate-import", "accelerate: a module that isn't there", "stop", None, ()),
)

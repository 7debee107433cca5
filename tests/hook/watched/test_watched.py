"""Ranks that other launchers have started: watched from their first optimizer step on, and everything else left as it was."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.ranks.watched import WatchedRanks
from rankmend.progress import RankIdentity
from rankmend.watch.hook_folder import make_hook_folder
from tests.support.eventually import eventually
from tests.support.free_port import free_port
from tests.support.hook import ROOT, RUN_S_MAX, each_python
from tests.support.nccl import WHY_NOT, make_nccl
from tests.support.watched_jobs import OPTIMIZER

pytestmark = pytest.mark.process
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="needs root")

TRAIN = "from torch.optim.optimizer import SGD; o = SGD(); [o.step() for _ in range(5)];"
# Looks from within a job, as the agent does: in a process of its own, for the rank's Python may be older.
LOOK = """
import json, sys
from agent.ranks.watched import WatchedRanks
found = WatchedRanks().look()
told = [(job.name, job.user, job.launcher, job.slurm_job, str(job.job_id)) for job in found.jobs]
read = [(one.identity.rank, one.identity.local_rank, one.identity.world_size, one.identity.attempt,
         one.reader.read(1e9, 8).step_count, one.job_name) for one in found.ranks]
print(json.dumps([told, read]))
"""
TORCHRUN = {
    **{"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "TORCHELASTIC_RESTART_COUNT": "2"},
    "TORCHELASTIC_RUN_ID": "pretrain",
}
SRUN = {
    **{"SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_JOB_NAME": "llama", "SLURM_NTASKS": "8"},
    **{"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_CLUSTER_NAME": "toy"},
}
MPIRUN = {
    **{"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"},
    "PMIX_NAMESPACE": "host-7@1",
}
HYDRA = {
    **{"PMI_RANK": "6", "PMI_SIZE": "9", "MPI_LOCALRANKID": "2"},
    **{"MASTER_ADDR": "node1", "MASTER_PORT": "29500"},
}
# Hydra starts a proxy on each node by srun: a step of one task a node.
HYDRA_BY_SRUN = {**SRUN, **HYDRA, "SLURM_PROCID": "1", "SLURM_NTASKS": "3"}


@dataclass
class Site:
    """A machine whose users have the lines of `rankmend watch env`, with a /dev/shm of its own."""

    folder: Path
    hook: Path
    nccl: list[object] = field(default_factory=list)  # of the ranks of the last look
    _seen: tuple[list[list[str]], list[list[object]]] | None = None

    def variables(self, rank: dict[str, str], *, is_watched: bool = True) -> dict[str, str]:
        kept = {"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}
        path = f"{self.hook}:{self.folder / 'modules'}" if is_watched else self.folder / "modules"
        watched = {"RANKMEND_WATCH": "1"} if is_watched else {}
        return {**kept, **watched, **rank, "PYTHONPATH": str(path)}

    def run(
        self,
        python: str,
        code: str,
        rank: dict[str, str],
        *flags: str,
        before: str = "true",
        is_watched: bool = True,
        looks: bool = False,
        until: str = "",
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program; with ``looks``, one that waits for a line afterwards, while we look.

        ``until``: the program itself waits for a line, after this word is in its output.
        """
        script = self.folder / "train.py"
        ran = self.folder / "ran"
        ran.unlink(missing_ok=True)
        waits = f"\nopen({str(ran)!r}, 'w').close()\ninput()\n"
        script.write_text(textwrap.dedent(code) + (waits if looks else ""))
        out = self.folder / "out"
        inner = " ".join([python, *flags, str(script), *([f"> {out}"] if until else [])])
        shell = f"mount -t tmpfs -o size=8m,mode=1777 tmpfs /dev/shm && {before} && {{ {inner}; }}"
        command = ["unshare", "--mount", "sh", "-c", shell]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.variables(rank, is_watched=is_watched),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as job:
            if looks or until:
                is_there = (
                    ran.exists if looks else lambda: out.exists() and until in out.read_text()
                )
                eventually(lambda: is_there() or job.poll() is not None, "the end of the steps")
                self._look(Path(f"/proc/{job.pid}/root/dev/shm"))
            stdout, stderr = job.communicate("\n", timeout=RUN_S_MAX)
        return subprocess.CompletedProcess(command, job.returncode, stdout, stderr)

    def _look(self, root: Path) -> None:
        """Look as the agent does, while the rank lives, into the /dev/shm of its machine."""
        watched = WatchedRanks(root)
        found = watched.look()
        progress = [rank.reader.read(1e9, 8) for rank in found.ranks]
        self._seen = (
            [
                [job.name, job.user, job.launcher, job.slurm_job, str(job.job_id)]
                for job in found.jobs
            ],
            [
                [*_numbers_of(rank.identity), read.step_count, rank.job_name]
                for rank, read in zip(found.ranks, progress, strict=True)
            ],
        )
        self.nccl = [read.nccl for read in progress]
        watched.close()

    def look(self) -> tuple[list[list[str]], list[list[object]]]:
        assert self._seen is not None
        return self._seen


def _numbers_of(identity: RankIdentity) -> list[object]:
    return [identity.rank, identity.local_rank, identity.world_size, identity.attempt]


@pytest.fixture(scope="module")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hook") / "hook"
    make_hook_folder(folder)
    return folder


@pytest.fixture
def site(tmp_path: Path, hook: Path) -> Site:
    modules = tmp_path / "modules" / "torch" / "optim"
    modules.mkdir(parents=True)
    for folder in (modules, modules.parent):
        (folder / "__init__.py").touch()
    (modules / "optimizer.py").write_text(OPTIMIZER)
    return Site(tmp_path, hook)


@needs_root
@each_python
@pytest.mark.parametrize(
    ("rank", "job", "read"),
    [
        (TORCHRUN, ["pretrain", "root", "torchrun", ""], [1, 1, 4, 3, 5, "pretrain"]),
        (SRUN, ["llama", "root", "srun", "41"], [5, 1, 8, 1, 5, "llama"]),
        (MPIRUN, ["train.py", "root", "mpirun", ""], [2, 0, 3, 1, 5, "train.py"]),
        (HYDRA, ["train.py", "root", "hydra", ""], [6, 2, 9, 1, 5, "train.py"]),
        (HYDRA_BY_SRUN, ["llama", "root", "hydra", "41"], [6, 2, 9, 1, 5, "llama"]),
        (
            {**SRUN, "PMI_RANK": "5", "PMI_SIZE": "8"},
            ["llama", "root", "srun", "41"],
            [5, 1, 8, 1, 5, "llama"],
        ),
        # The launcher closest to the script counts.
        ({**SRUN, **TORCHRUN}, ["llama", "root", "torchrun", "41"], [1, 1, 4, 3, 5, "llama"]),
        # torchrun --standalone names a run so.
        (
            {**TORCHRUN, "TORCHELASTIC_RUN_ID": "5c1c4ff5-bbd7-4b42-9f3b-5e2f5b8a4d52"},
            ["train.py", "root", "torchrun", ""],
            [1, 1, 4, 3, 5, "train.py"],
        ),
    ],
    ids=[
        "torchrun",
        "srun",
        "mpirun",
        "hydra",
        "hydra by srun",
        "srun with pmi2",
        "torchrun in srun",
        "torchrun standalone",
    ],
)
def test_rank_of_another_launcher_is_found_with_its_job_and_its_steps(
    site: Site, python: str, rank: dict[str, str], job: list[str], read: list[object]
) -> None:
    done = site.run(python, TRAIN, rank, looks=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    jobs, ranks = site.look()
    assert [told[:4] for told in jobs] == [job]
    assert ranks == [read]


@needs_root
@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_rank_of_another_launcher_tells_which_nccl_it_has_loaded(site: Site) -> None:
    library = make_nccl(site.folder, 22703)

    site.run(
        sys.executable, f"import ctypes; ctypes.CDLL({str(library)!r}); {TRAIN}", SRUN, looks=True
    )

    assert site.nccl == [("2.27.3",)]


@pytest.mark.safety
@needs_root
@each_python
def test_process_without_a_launcher_is_a_job_of_one_rank_where_its_owner_says_so(
    site: Site, python: str
) -> None:
    ids = []
    for _run in range(2):
        done = site.run(python, TRAIN, {"RANKMEND_WATCH_ANY": "1"}, looks=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        jobs, ranks = site.look()
        assert [told[:4] for told in jobs] == [["train.py", "root", "single", ""]]
        assert ranks == [[0, 0, 1, 1, 5, "train.py"]]
        ids.append(jobs[0][4])
    assert ids[0] != ids[1]


SPAWN = """
import multiprocessing, os, sys, time
def distribute(rank, size):
    import types
    module = types.ModuleType("torch.distributed")
    module.is_available = module.is_initialized = lambda: True
    module.get_rank, module.get_world_size = lambda: rank, lambda: size
    sys.modules["torch.distributed"] = module
def train(rank, size, in_group, done, end):
    if in_group:
        distribute(rank, size)
    TRAIN
    done.put(rank)
    end.wait()
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    done, end = context.Queue(), context.Event()
    children = [context.Process(target=train, args=(n, 2, IN_GROUP, done, end)) for n in range(2)]
    [one.start() for one in children]
    [done.get() for _one in children]
    print("stepped", flush=True)
    input()
    end.set()
    [one.join() for one in children]
    sys.exit(max(one.exitcode for one in children))
"""


@needs_root
@each_python
@pytest.mark.parametrize("variables", [{}, TORCHRUN], ids=["plain", "in a rank of torchrun"])
@pytest.mark.parametrize("in_group", [True, False])
def test_spawned_processes_are_the_ranks_that_they_are_in_their_group_and_none_without(
    site: Site, python: str, in_group: bool, variables: dict[str, str]
) -> None:
    code = SPAWN.replace("TRAIN", TRAIN).replace("IN_GROUP", str(in_group))

    done = site.run(python, code, {**variables, "RANKMEND_WATCH_ANY": "1"}, until="stepped")

    assert (done.returncode, done.stderr) == (0, "")
    jobs, ranks = site.look()
    if not in_group:
        assert (jobs, ranks) == ([], [])
        return
    assert [told[2] for told in jobs] == ["spawn"]
    assert [(rank[0], rank[2], rank[4]) for rank in ranks] == [(0, 2, 5), (1, 2, 5)]


# As Lightning does it: the script sets the variables for itself, as rank 0, and starts itself again for the others.
STARTS_ITSELF = """
import os, subprocess, sys
first = "LOCAL_RANK" not in os.environ
if first:
    os.environ.update(LOCAL_RANK="0", NODE_RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    other = subprocess.Popen([sys.executable, sys.argv[0]], env=dict(os.environ, LOCAL_RANK="1"),
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, universal_newlines=True)
import types
module = types.ModuleType("torch.distributed")
module.is_available = module.is_initialized = lambda: True
module.get_rank, module.get_world_size = lambda: int(os.environ["LOCAL_RANK"]), lambda: 2
sys.modules["torch.distributed"] = module
TRAIN
if first:
    other.stdout.readline()
print("stepped", flush=True)
sys.stdin.read(1)
if first:
    other.stdin.close()
    sys.exit(other.wait())
"""


@needs_root
@each_python
def test_script_that_starts_itself_for_the_other_ranks_is_one_job(site: Site, python: str) -> None:
    code = STARTS_ITSELF.replace("TRAIN", TRAIN)

    done = site.run(python, code, {"RANKMEND_WATCH_ANY": "1"}, until="stepped")

    assert (done.returncode, done.stderr) == (0, "")
    jobs, ranks = site.look()
    assert [told[:3] for told in jobs] == [["train.py", "root", "spawn"]]
    assert [(rank[0], rank[2], rank[4]) for rank in ranks] == [(0, 2, 5), (1, 2, 5)]


@needs_root
def test_ranks_of_one_job_have_one_id_and_those_of_another_run_another(site: Site) -> None:
    ids = []
    for changes in ({}, {"RANK": "3"}, {"TORCHELASTIC_RUN_ID": "other"}, {"SLURM_JOB_ID": "9"}):
        site.run(sys.executable, TRAIN, {**TORCHRUN, **changes}, looks=True)
        ids.append(site.look()[0][0][4])

    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.safety
@needs_root
@each_python
@pytest.mark.parametrize("wants", [True, False])
def test_rank_offers_its_stacks_only_where_its_owner_wants_that(
    site: Site, python: str, wants: bool
) -> None:
    show = f"""
    {TRAIN}
    import os, signal
    (job,) = [one for one in os.scandir("/dev/shm/rankmend-watch-0")]
    print(sorted(os.listdir(job.path)))
    mask = next(line for line in open("/proc/self/status") if line.startswith("SigCgt"))
    print(int(mask.split()[1], 16) >> 44 & 1)
    """
    wanted = {
        **{"RANKMEND_WATCH_EVIDENCE": "1", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "flight-"},
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    done = site.run(python, show, {**TORCHRUN, **(wanted if wants else {})})

    more = ["rank-1.progress.ask", "rank-1.progress.recorder", "rank-1.progress.stacks"]
    files = ["job.json", "rank-1.progress", *(more if wants else [])]
    assert (done.stdout, done.stderr) == (f"{files}\n{int(wants)}\n", "")


@needs_root
@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, {"ras_port": 28028}),
        ({"NCCL_RAS_ADDR": "localhost:4000"}, {"ras_port": 4000}),
        ({"NCCL_RAS_ADDR": "localhost"}, {"ras_port": 28028}),
        ({"NCCL_RAS_ENABLE": "0"}, None),
        (
            {"NCCL_RAS_ENABLE": "0", "TORCH_FR_DUMP_TEMP_FILE": "/data/fr-"},
            {"dump": "/data/fr-1"},
        ),
    ],
)
def test_rank_tells_where_nccl_can_be_asked(
    site: Site, variables: dict[str, str], told: dict[str, object] | None
) -> None:
    show = f"""
    {TRAIN}
    import os
    (job,) = [one for one in os.scandir("/dev/shm/rankmend-watch-0")]
    path = job.path + "/rank-1.progress.recorder"
    print(open(path).read() if os.path.exists(path) else "null")
    """

    done = site.run(sys.executable, show, {**TORCHRUN, **variables, "RANKMEND_WATCH_EVIDENCE": "1"})

    assert (json.loads(done.stdout), done.stderr) == (told, "")


@needs_root
@pytest.mark.parametrize(
    ("rank", "code"),
    [
        ({}, TRAIN),  # no rank
        ({**SRUN, "SLURM_STEP_ID": ""}, TRAIN),  # a batch script
        ({**TORCHRUN, "WORLD_SIZE": "1"}, TRAIN),  # impossible
        (TORCHRUN, "import torch.optim.optimizer"),  # the launcher itself: it trains nothing
        (TORCHRUN, f"import os\nif os.fork() == 0:\n    {TRAIN}\n    os._exit(0)\nos.wait()"),
    ],
    ids=["no rank", "batch", "impossible", "no step", "child"],
)
def test_what_is_no_rank_or_does_not_train_makes_nothing(
    site: Site, rank: dict[str, str], code: str
) -> None:
    show = "\nimport os; print(os.listdir('/dev/shm'))"

    done = site.run(sys.executable, code + show, rank)

    assert (done.stdout, done.stderr) == ("[]\n", "")


@needs_root
def test_program_that_a_rank_starts_does_not_write_to_its_file(site: Site) -> None:
    code = f"{TRAIN}\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', '''{TRAIN}'''])"

    done = site.run(sys.executable, code, TORCHRUN, looks=True)

    assert (done.returncode, done.stderr) == (0, "")
    assert site.look()[1] == [[1, 1, 4, 3, 5, "pretrain"]]


@needs_root
@pytest.mark.parametrize(
    "before",
    [
        "mount -t tmpfs -o size=4k tmpfs /dev/shm",
        "mount -o remount,ro /dev/shm",
        "umount /dev/shm && mount --bind /proc /dev/shm",
        "mkdir etc etc/rankmend && touch etc/rankmend/watch-off && mount --bind etc /etc",
    ],
    ids=["full", "read-only", "no shared memory", "switched off"],
)
def test_where_it_can_not_or_must_not_be_watched_a_rank_trains_on_silently(
    site: Site, before: str
) -> None:
    done = site.run(sys.executable, TRAIN, TORCHRUN, before=before, looks=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert site.look() == ([], [])


@needs_root
def test_folder_of_another_user_neither_blocks_nor_speaks_for_a_job(site: Site) -> None:
    before = "mkdir /dev/shm/rankmend-watch-0 && chown 1000 /dev/shm/rankmend-watch-0"
    forge = """
    import os, pathlib, shutil
    (own,) = [one for one in pathlib.Path("/dev/shm").iterdir() if "-watch-0-" in one.name]
    theirs = pathlib.Path("/dev/shm/rankmend-watch-1000")
    shutil.copytree(own, theirs)
    for path in (theirs, *theirs.rglob("*")):
        os.chown(path, 1000, 1000)
    """

    site.run(sys.executable, TRAIN + textwrap.dedent(forge), TORCHRUN, before=before, looks=True)

    jobs, ranks = site.look()
    assert [told[1] for told in jobs] == ["root"]
    assert ranks == [[1, 1, 4, 3, 5, "pretrain"]]


@needs_root
def test_rank_that_died_is_seen_no_more_and_the_next_attempt_takes_its_place(site: Site) -> None:
    first = f"RANK=1 {sys.executable} -c '{TRAIN}'"

    site.run(
        sys.executable, TRAIN, {**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "3"},
        before=f"TORCHELASTIC_RESTART_COUNT=2 {first}", looks=True,
    )  # fmt: skip
    assert site.look()[1] == [[1, 1, 4, 4, 5, "pretrain"]]

    site.run(sys.executable, "", {}, before=f"{_words(TORCHRUN)} {first}", looks=True)
    assert site.look() == ([], [])


REMOVE = f"""
{TRAIN}
import glob, os, shutil, time
ROOT = "/dev/shm/rankmend-watch-0"
def remove():
    BREAK
def files():
    return glob.glob(ROOT + "/*/rank-1.progress*")
before, steps, until_s = sorted(files()), 5, time.monotonic() + 200
remove()
assert not files()
while sorted(files()) != before and time.monotonic() < until_s:
    o.step()
    steps += 1
    time.sleep(0.01)
print("steps", steps, flush=True)
input()
"""


@needs_root
@each_python
@pytest.mark.parametrize(
    "by",
    [
        "shutil.rmtree(ROOT)",
        pytest.param("[os.unlink(one) for one in files()]"),
        pytest.param("os.rename(ROOT, '/dev/shm/elsewhere')"),
    ],
)
def test_rank_whose_files_somebody_removes_makes_them_anew_and_loses_no_step(
    site: Site, python: str, by: str
) -> None:
    evidence = {"RANKMEND_WATCH_EVIDENCE": "1"}

    done = site.run(python, REMOVE.replace("BREAK", by), {**TORCHRUN, **evidence}, until="steps")

    assert (done.returncode, done.stderr) == (0, "")
    steps = int((site.folder / "out").read_text().split()[1])
    jobs, ranks = site.look()
    assert [told[:4] for told in jobs] == [["pretrain", "root", "torchrun", ""]]
    assert ranks == [[1, 1, 4, 3, steps, "pretrain"]]


@needs_root
def test_folder_that_another_rank_fills_stays_and_one_of_the_day_before_yesterday_goes(
    site: Site,
) -> None:
    show = "\nimport os; print(sorted(os.listdir('/dev/shm/rankmend-watch-0')))"
    before = (
        "mkdir -p /dev/shm/rankmend-watch-0/new /dev/shm/rankmend-watch-0/old && "
        "touch /dev/shm/rankmend-watch-0/old/job.json && "
        "touch -d '2 days ago' /dev/shm/rankmend-watch-0/old"
    )

    done = site.run(sys.executable, TRAIN + show, TORCHRUN, before=before)

    left = done.stdout.replace("'", "").strip("[]\n").split(", ")
    assert "new" in left
    assert "old" not in left
    assert len(left) == 2


def _words(rank: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in rank.items())


@needs_root
@each_python
@pytest.mark.parametrize("rank", [{}, TORCHRUN], ids=["no rank", "rank"])
@pytest.mark.parametrize("flags", [(), ("-I",), ("-S",), ("-E",)], ids=" ".join)
def test_program_behaves_the_same_with_and_without(
    site: Site, python: str, rank: dict[str, str], flags: tuple[str, ...]
) -> None:
    (site.folder / "modules" / "sitecustomize.py").write_text("print('mine', __name__)\n")
    code = """
    import sys
    known = {name for name in sys.modules if not name.startswith("rankmend")}
    print(sorted(known) if not RANK else "")
    print(sys.argv[1:], sys.flags.isolated, [one for one in sys.path if "hook" not in one][1:])
    sys.exit(7)
    """.replace("RANK", str(bool(rank)))

    without, watched = (
        site.run(python, code, rank, *flags, is_watched=one) for one in (False, True)
    )

    assert (watched.stdout, watched.stderr) == (without.stdout, without.stderr)
    assert watched.returncode == without.returncode == 7


@needs_root
def test_scripts_own_rankmend_is_the_one_that_it_imports(site: Site) -> None:
    package = site.folder / "modules" / "rankmend"
    package.mkdir()
    (package / "__init__.py").write_text("name = 'of the script'\n")

    done = site.run(sys.executable, f"{TRAIN}\nimport rankmend; print(rankmend.name)", TORCHRUN)

    assert (done.stdout, done.stderr) == ("of the script\n", "")


@pytest.mark.torch
@needs_root
def test_unchanged_script_under_torchrun_is_watched(site: Site) -> None:
    shutil.rmtree(site.folder / "modules" / "torch")
    code = """
    import time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for _step in range(6):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    if dist.get_rank() == 0:
        import os, subprocess, sys
        environment = {**os.environ, "PYTHONPATH": ROOT, "RANKMEND_WATCH": ""}
        print(subprocess.check_output([sys.executable, "-c", LOOK], env=environment, text=True))
    dist.barrier()
    time.sleep(0.5)  # gloo's threads let go of the last collective, else this may hang (pytorch#56297)
    dist.destroy_process_group()
    """
    code = f"ROOT, LOOK = {str(ROOT)!r}, {LOOK!r}\n" + textwrap.dedent(code)

    done = site.run(
        sys.executable, code, {"OMP_NUM_THREADS": "1"}, "-m", "torch.distributed.run",
        "--nproc-per-node=2", f"--master-port={free_port()}",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    jobs, ranks = json.loads(next(one for one in done.stdout.splitlines() if one.startswith("[[")))
    assert [told[:3] for told in jobs] == [["train.py", "root", "torchrun"]]
    assert [(one[0], one[2]) for one in ranks] == [(0, 2), (1, 2)]
    assert {one[4] for one in ranks} <= {5, 6}

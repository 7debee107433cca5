"""The lines of a job's log that may mean something, each with its rank and node.

A log of a job has gigabytes of lines that differ in their numbers only. `LineSieve` takes the digits out of a
batch of lines at once and looks at each form once; lines of known and empty forms cost 0.2 us each. It keeps
the first lines of a form and the newest lines of all, so a log of any size and of 16,384 ranks stays bounded.

A rank is known by a prefix (torch's ``[rank3]:``, torchrun's ``[default3]:``, ``3:`` of srun -l, mpirun's
``[1,3]<stderr>:``), else by the name of its file (``attempt_0/3/stderr.log``, ``rank_3.log``). A number before a colon
counts only where most lines of the log have one, and so does a host's name.
"""

import re
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import Final

import msgspec

from detectors.failed.plain_lines import ANSI
from detectors.job_log.json_lines import JobLines

BATCH_LINES: Final = 4_096
LINE_BYTES_MAX: Final = 4_096
FORMS_MAX: Final = 50_000
FORM_LINES_MAX: Final = (
    64  # of one form that are kept from the start; later ones compete with all others
)
HANG_LINES_MAX: Final = 70_000  # each rank of 16,384 prints four
KEPT_LINES_MAX: Final = 60_000  # over all sources
NEWEST_LINES: Final = 4_000  # of a source
WEAK_LINES_MAX: Final = 1_000  # with a word such as "fail" and no error, from the start
NEWEST_WEAK_LINES: Final = 500
_FRAME_TAIL: Final = 4  # a frame, its code, its carets, the error
_ERROR_TAIL: Final = 8  # lines of one message
_BOX_TAIL: Final = 120  # Rich's box around a traceback, IPython's cells
RANK_MAX: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class LogSource:
    """One file of a job's log, or standard input."""

    name: str
    lines: Iterable[bytes]


class LogLine(msgspec.Struct, frozen=True, gc=False):
    """One kept line without colours and prefixes."""

    source: int  # place of its source
    number: int  # from 1
    text: str
    rank: int | None = None
    node: str | None = None
    is_of_rank: bool = False  # by a prefix, not by the file's name


@dataclass(slots=True)
class SourceLines:
    """What one source says."""

    name: str
    lines: list[LogLine] = field(default_factory=list)
    count: int = 0
    first_progress: int | None = None  # line numbers of finished training steps
    last_progress: int | None = None
    ranks: frozenset[int] = frozenset()  # that said anything
    marks: int = 0  # forms that only a job's log has
    foreign: int = 0  # forms that only another program's log has


# A line in small letters has one of these, or it says nothing. Each costs 1 ms per MB of text without repeats.
_NEEDLES: Final = (
    *(b"error", b"exception", b"traceback", b'file "', b"nccl warn", b"watchdog", b"timeout", b"timed out", b"kill"),
    *(b"sig", b"abort", b"cancel", b"nvrm", b"memory", b"oom", b"nan", b"terminat", b"exit", b"fail", b"segfault"),
    *(b"segmentation", b"due to", b"preempt", b"evict", b"low on res", b"enqueued", b"optype", b"collective #", b"join collective"),
    *(b"lagging", b"clients joined", b"nranks", b"attempt", b"restart", b"requeue", b"cycle:", b"ould not", b"an't open", b"interrupt"),
    *(b"resum", b"restor", b"loaded ch", b"loading ch", b"world_size", b"world size", b"mismatch", b"rank      :", b"host      :", b"duplicate gpu"),
    *(b"mpi_", b"limit", b"pid ", b"global_rank", b"got async", b"got completion", b"diverge", b"not finite", b"not in struct", b"no module"),
    *(b"-based barrier", b"missing ranks", b"stalled ranks", b"remainder of ranks", b"set to error", b"remote daemon", b"no rank advances", b"access fault", b"link down"),
    *(b"disconnected", b"incarnation", b"shut down", b"lost communication", b"route a message", b"process name", b"recvvalue"),
    *(b"malloc(", b"corrupt", b"free()", b"not found", b"execve()", b"reported to coord", b"deadline", b"wallclock", b"times out", b"deleted at", b"write to eq", b"marked dead", b"device handle", b"went down", b"exhausted"),
    *(b'"mainthread"', "❱".encode(), b"\xe2\x94\x80\xe2\x95\xaf", b"coordination service agent", b"retry count", b"qp operation", b"remote operation"),
    *(b"completed", b"training done", b"train_runtime", b"max_epochs", b"successfully", b"training is done", b"training finished"),
)  # fmt: skip
_PROGRESS_NEEDLES: Final = (
    b"loss",
    b"it/s",
    b"s/it",
    b"iteration",
    b"tokens",
    b"samples/s",
    b"epoch ",
)
_HANG_NEEDLES: Final = (b"optype", b"enqueued", b"collective #")
_MARK: Final = re.compile(
    rb"(?i)\btorch|nccl|\brank\b|\[rank|\[default\]|cuda|\bgpus?\b|deepspeed|megatron|lightning|transformers|tensorflow|\bjax\b|jax_worker|\bxla\b|torch_npu|hccl|npustream|ascend|rccl|oneccl|\|CCL_|rocm|paddle|xgboost|horovod|accelerate"
    rb"|\bsrun|slurm|mpirun|prterun|\bORTE[ _]|\bPRRTE\b|slots that were requested by|requested more processes than the ppr|\bMPI_|gloo|\bepochs?\b|checkpoint|\btrain|world.?size|wandb|huggingface|dataloader|optimizer|learning.?rate|rankmend|python.*\berror\b|modulenotfound|\(raylet\)|\(\w{1,80} pid=|tensorcore|local_rank|libfabric:|ib_mlx\d_log|mlflow\.(?:utils|tracking)|\bvllm|\btrl\b|\bverl\b|openrlhf|\bdali\b|ssh not successful for host|\w{2,20}Job \S{1,100} (?:has failed|is restarting) because|\bcoredump_hook\.cc"
)
_FOREIGN: Final = re.compile(
    rb'(?i)"(?:GET|POST|PUT|HEAD) /|\b(?:nginx|apache|django|flask|uvicorn|gunicorn|celery|tomcat|postgres|mysqld|sshd|systemd|dpkg|spring|(?<! {2})kubelet|java\.lang|at (?:org|com|java)\.|npm |webpack|ansible|CRON|dhcp|apt-get|maven|gradle)|^Collecting \w|^\s*Downloading \S+\.whl|Requirement already satisfied|No matching distribution|Could not find a version that|\] (?:LOG|ERROR|FATAL|STATEMENT):  '
)
# One of these is in all that the two patterns match, in small letters and without digits: a look at words first costs a tenth.
_MARK_WORDS: Final = (
    *(b"torch", b"nccl", b"rank", b"default", b"cuda", b"gpu", b"deepspeed", b"megatron", b"lightning", b"transformers", b"tensorflow"),
    *(b"jax", b"xla", b"npu", b"ccl", b"ascend", b"paddle", b"xgboost", b"rocm", b"horovod", b"accelerate", b"srun", b"slurm", b"mpi", b"prterun", b"gloo"),
    *(b"orte", b"prrte", b"slots that were", b"than the ppr"),
    *(b"epoch", b"checkpoint", b"train", b"world", b"wandb", b"huggingface", b"dataloader", b"optimizer", b"learning", b"python"),
    *(b"modulenotfound", b"raylet", b" pid=", b"tensorcore", b"local_rank", b"libfabric", b"ib_mlx", b"mlflow", b"has failed because", b"is restarting because", b"coredump_hook", b"vllm", b"trl", b"verl", b"openrlhf", b"dali", b"not successful for"),
)  # fmt: skip
_FOREIGN_WORDS: Final = (
    *(b'"get ', b'"post ', b'"put ', b'"head ', b"nginx", b"apache", b"django", b"flask", b"corn", b"celery", b"tomcat", b"postgres", b"mysqld"),
    *(b"sshd", b"systemd", b"dpkg", b"spring", b"kubelet", b"java", b"at org.", b"at com.", b"npm ", b"webpack", b"ansible", b"cron", b"dhcp"),
    *(b"apt-get", b"maven", b"gradle", b"collecting ", b"downloading ", b"requirement already", b"no matching dist", b"could not find a version"),
    *(b"] log:  ", b"] error:  ", b"] fatal:  ", b"] statement:  "),
)  # fmt: skip


def _has_mark(form: bytes) -> bool:
    for word in _MARK_WORDS:
        if word in form:
            return _MARK.search(form) is not None
    return False


_PROGRESS: Final = re.compile(
    rb"(?i)\b\w{0,64}loss\w{0,64}(?:['\"]?\s{0,4}[:=|]\s{0,4}|['\"]?\s{1,8}|['\"])(?:tensor\()?[-+]?\.?\d|\biteration\s+\d+/|elapsed time per iteration|tokens[ /_]?per[ _]?sec\w*|samples/s"
    rb"|\b(?:epoch|step|iter|train)[^|]{0,80}\|[^|]{0,80}\| *[1-9]\d*/\d+ \[|\b[1-9]\d*/\d+ \[\d[\d:]*<\d[\d:]*, *[\d.]+ ?(?:it/s|s/it)"
    rb"|(?:\A|[:\]] )(?-i:Epoch) (?:[2-9]|[1-9]\d{1,6})\s*\Z"  # heads an epoch behind others, as nnU-Net prints it
)
_NO_PROGRESS: Final = re.compile(
    rb"(?i)download|loading|tokeniz|^map\b|map \(|filter|resolving|fetch|shards|sanity|preprocess|generating|extract|compil|saving|building|upload|packing|Traceback|raise |import |[\w.]\.py\b.{0,200}line|^ {2,}\w.*(?:=|\()|loss[-_]?(?:fn|func|scale|fraction|weight|type|coef|fct)|attempted loss scale|restor"
)
_HEAD_BYTES: Final = 16
_HEAD_STARTS: Final = frozenset({b"[", b" ", *(b"%d" % digit for digit in range(10))})
RANKS_SEEN_MAX: Final = 100_000
_HEAD_RANK: Final = re.compile(
    rb"\[(?:rank|default|RANK|Rank)[ :_-]?(\d{1,7})\]|\[\d{1,5},(?:mpirank:)?(\d{1,7})[\],]|\[rank ?(\d{1,7})\]"
)
_TASK_HEAD: Final = re.compile(rb" {0,6}(\d{1,6}): ")
_EMPTY, _KEEP, _STEP, _FRAME, _ERROR, _HANG, _BOX, _STRONG = 0, 1, 2, 4, 8, 16, 32, 64
_TAILS: Final = _FRAME | _ERROR | _BOX
# A needle's longest word, by which it is sought first: a text has few different words.
_SOUGHT: Final = tuple(
    (max(needle.split(), key=len), needle, flag)
    for needles, flag in ((_NEEDLES, _KEEP), (_PROGRESS_NEEDLES, _STEP), (_HANG_NEEDLES, _HANG))
    for needle in needles
)
_SAID_AGAIN: Final = b"] timeout at nccl work: "
_MARKS_MAX: Final = 50
_MARK_FORMS: Final = 48  # of a batch whose kind is looked at
_DIGITS: Final = b"0123456789"
_SMALL: Final = bytes(range(256)).lower()


class LineSieve:
    """Keeps the lines of one source that may say something."""

    def __init__(self, kept_max: int) -> None:
        self._known: dict[bytes, int] = {}
        self._seen: dict[bytes, int] = {}
        self._kept: list[tuple[int, bytes]] = []
        # Batches with the number of their first line, and the places of their lines.
        self._newest: deque[tuple[int, list[bytes], list[int]]] = deque()
        self._newest_count = 0
        self._newest_weak: deque[tuple[int, bytes]] = deque(maxlen=NEWEST_WEAK_LINES)
        self._weak_lines = 0
        self._heads: set[bytes] = set()
        self.ranks: set[int] = set()
        self.tasks: set[int] = set()  # numbers before a colon: ranks where srun -l wrote the log
        self._kept_max = kept_max
        self._tail = 0
        self._hang_lines = 0
        self._has_status = False  # PyTorch 2.4 and 2.5 say the same twice
        self.first_progress: int | None = None
        self.last_progress: int | None = None
        self.count = 0
        self.marks = 0
        self.foreign = 0
        self.head: list[bytes] = []  # some lines, by which the form of prefixes is known

    def feed(self, lines: Iterable[bytes]) -> None:
        """Read all lines."""
        source = iter(lines)
        while batch := list(islice(source, BATCH_LINES)):
            self._feed_batch([line[:LINE_BYTES_MAX].rstrip(b"\r\n") for line in batch])

    def kept(self) -> list[tuple[int, bytes]]:
        """Return the kept lines with their numbers, in order."""
        retained = dict(self._kept)
        left = NEWEST_LINES
        for start, batch, places in reversed(self._newest):
            retained |= {start + place: batch[place] for place in places[-left:]}
            left -= len(places)
            if left <= 0:
                break
        retained |= dict(self._newest_weak)
        return sorted(retained.items())

    def _feed_batch(self, batch: list[bytes]) -> None:
        if len(self.head) < 400:
            self.head += batch[:400]
        blob = b"\n".join(batch)
        if b"\0" in blob:  # UTF-16, or a file with a hole
            blob = blob.replace(b"\0", b"")
            batch = [line.replace(b"\0", b"") for line in batch]
        forms = blob.translate(_SMALL, _DIGITS).split(b"\n")
        if len(forms) != len(batch):
            forms = [line.translate(_SMALL, _DIGITS) for line in batch]
        known = self._known
        if unknown := set(forms) - known.keys():
            if len(known) > FORMS_MAX:
                known.clear()
                unknown = set(forms)
            self._learn(unknown, dict(zip(reversed(forms), reversed(batch), strict=True)))
        for head in {
            line[:_HEAD_BYTES] for line in batch if line[:1] in _HEAD_STARTS
        } - self._heads:
            self._see(head)
        start = self.count + 1
        self.count += len(batch)
        self._keep(batch, forms, [known[form] for form in forms], start)

    def _keep(  # noqa: PLR0912 - a call a line would double its cost
        self, batch: list[bytes], forms: list[bytes], flags_of: list[int], start: int
    ) -> None:
        """Keep what may say something: the first lines of a form, and the newest of all."""
        tail, seen, retained, kept_max = self._tail, self._seen, self._kept, self._kept_max
        newest: list[int] = []
        if len(seen) > FORMS_MAX:
            seen.clear()
        for place, flags in enumerate(flags_of):
            if not flags and not tail:
                continue
            if flags & _STEP:
                self.last_progress = start + place
                if self.first_progress is None:
                    self.first_progress = start + place
                if flags == _STEP:
                    continue
            if tail:
                tail -= 1
            if flags & _TAILS:
                if flags & _BOX:
                    tail = _BOX_TAIL
                elif flags & _FRAME:
                    tail = max(tail, _FRAME_TAIL)
                else:
                    tail = max(tail, _ERROR_TAIL)
            if flags & _HANG and self._hang_lines < HANG_LINES_MAX:
                self._hang_lines += 1
                retained.append((start + place, batch[place]))
                continue
            form = forms[place]
            count = seen.get(form, 0) + 1
            seen[form] = count
            is_early = count <= FORM_LINES_MAX and len(retained) < kept_max
            if flags & _STRONG or tail:
                if is_early:
                    retained.append((start + place, batch[place]))
                else:
                    newest.append(place)
                continue
            self._weak_lines += 1
            if is_early and self._weak_lines <= WEAK_LINES_MAX:
                retained.append((start + place, batch[place]))
            else:
                self._newest_weak.append((start + place, batch[place]))
                newest.append(place)
        self._tail = tail
        if newest:
            self._newest.append((start, batch, newest))
            self._newest_count += len(newest)
            while self._newest_count - len(self._newest[0][2]) >= NEWEST_LINES:
                self._newest_count -= len(self._newest.popleft()[2])

    def _see(self, head: bytes) -> None:
        """Record the rank that begins a line, whatever the line says."""
        if len(self._heads) < RANKS_SEEN_MAX:
            if match := _HEAD_RANK.match(head):
                self.ranks.add(int(match[1] or match[2] or match[3]))
                self._heads.add(head)
            elif match := _TASK_HEAD.match(head):
                self.tasks.add(int(match[1]))
                self._heads.add(head)

    def _learn(self, unknown: set[bytes], examples: dict[bytes, bytes]) -> None:
        forms = list(unknown)
        joined = b"\n".join(forms)
        flags = dict.fromkeys(forms, _EMPTY)
        words = b" ".join(set(joined.split()))
        starts = [0, *accumulate(len(form) + 1 for form in forms)]
        for word, needle, flag in _SOUGHT:
            at = joined.find(needle) if word in words else -1
            while at >= 0:
                place = bisect_right(starts, at) - 1
                flags[forms[place]] |= flag
                at = joined.find(needle, starts[place + 1])
        self._has_status = self._has_status or b"detected by watchdog at work: " in joined
        for form, found in flags.items():
            if found:
                flags[form] = _flags_of(found, examples[form])
                if self._has_status and found & _HANG and _SAID_AGAIN in form:
                    flags[form] &= ~_HANG
        if self.marks < _MARKS_MAX and self.foreign < _MARKS_MAX:
            some = [form[:400] for form in sorted(forms[:_MARK_FORMS])]
            self.marks += sum(_has_mark(form) for form in some)
            joined = b"\n".join(some)
            if any(word in joined for word in _FOREIGN_WORDS):
                self.foreign += sum(_FOREIGN.search(form) is not None for form in some)
        self._known.update(flags)


def _flags_of(found: int, line: bytes) -> int:
    """Return what a line with some needles is, by its words."""
    if found & _STEP and (not _PROGRESS.search(line) or _NO_PROGRESS.search(line)):
        found &= ~_STEP
    if found & _KEEP and any(word in line for word in _LONG_HEADS):
        found |= _BOX | _STRONG
    is_strong = bool(found & _KEEP) and _is_strong(line)
    if found & _STEP and not is_strong:
        found &= ~_KEEP
    if is_strong:
        found |= _STRONG
        if b"raceback (most" in line:
            found |= _FRAME if line.rstrip().endswith(b":") else _BOX
        elif b'File "' in line:
            found |= _FRAME
        elif _MESSAGE.search(line):
            found |= _ERROR
    elif found & _KEEP and b'File "' in line:
        found |= _FRAME | _STRONG
    return found


# Many lines follow that have no words of their own: py-spy's frames, the code in Rich's box.
_LONG_HEADS: Final = (b'"MainThread"', "❱".encode())
_STRONG_WORDS: Final = (
    *(b"raceback", b"Error", b"Exception", b"atchdog", b"NaN", b"nan", b"NCCL WARN", b"CANCELLED", b"NVRM", b"Killed", b"SIG"),
    *(b"srun", b"slurmstepd", b"DUE TO", b"exitcode", b"noticed that", b"oom", b"OOM", b"reempt", b"PREEMPT", b"nranks", b"rank      :", b"ttempts left"),
    *(b"terminate called", b"FAILED", b"atal", b"error: ", b"Root Cause", b"Interrupt", b"HYDRA", b"Failure", b"Timeout", b"Missing ranks", b"Stalled ranks", b"UCX ", b"ib_mlx5_log", b"Coordination service agent"),
)  # fmt: skip


def _is_strong(line: bytes) -> bool:
    for word in _STRONG_WORDS:  # noqa: SIM110 - a loop is twice as fast as any(), and thrice as a pattern
        if word in line:
            return True
    return False


_MESSAGE: Final = re.compile(
    rb"(?:Error|Exception|Interrupt|Exit|Timeout|Failure)(?::|\b *$)|terminate called|what\(\)|FAILED|(?:Missing|Stalled) ranks|Fatal Python|HYDRA|: error: |NCCL WARN|Root Cause"
)


# --- prefixes -------------------------------------------------------------------------------------

_TIME: Final = r"(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?|\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)"
# One space at most belongs to a stamp: the next are a traceback's. Source: Kubernetes, CRI log format; kubectl logs --timestamps.
_STAMP: Final = re.compile(rf"\[?{_TIME}\]?(?: std(?:err|out) [FP] |[,:|-]?(?: [|-])?[ \t]?)")
_RANK: Final = re.compile(
    r"\[(?:rank|default|RANK|Rank)[ :_-]?(\d{1,7})\]:? ?|\[rank ?(\d{1,7})\] ?"
    r"|\[\d{1,9},(?:mpirank:)?(\d{1,7})(?:,(?P<host>[\w-]{1,60}))?\]<std(?:err|out)>: ?"
)
_BRACKETED: Final = frozenset(
    "rRd0123456789"
)  # what may stand behind the bracket of a rank or a stamp
_RAY: Final = re.compile(
    r"\(\w[\w.<>:]{0,80} (?:rank=(\d{1,7}) |(?:[A-Z]P\d{1,4} ){1,4})?pid=\d{1,9}(?:, ip=([\w.:]{1,45}))?\) ?"
)
_TASK: Final = re.compile(r" {0,6}(\d{1,6}): ?")
# srun -l before torch's own prefix: no other program writes both.
_TASK_OF_RANK: Final = re.compile(r" {0,6}\d{1,6}: (?=\[rank\d)")
_TASK_BYTES: Final = re.compile(rb" {0,6}\d{1,6}:(?: |$|\t|\[)")
_HOST: Final = re.compile(r"([A-Za-z][\w.-]{0,60}\d[\w.-]{0,40}): ?")
_HOST_BYTES: Final = re.compile(rb"([A-Za-z][\w.-]{0,60}\d[\w.-]{0,40}): ?")
_NO_HOST: Final = re.compile(
    r"(?i)^(?:step|iter|epoch|rank|layer|gpu\d|cuda|warning|error|info|line|block|stage|python\d|\[)"
)
_NCCL: Final = re.compile(r"([A-Za-z0-9][\w.-]{0,100}):\d{1,9}:\d{1,9} \[(\d{1,3}|-1)\] ")
_SAYS_RANK: Final = re.compile(
    r"^\W{0,3}(?:[\w.]{0,30} ?[-|:]? ?)?\(?[Rr](?:ank|ANK) ?[=:#_-]?(\d{1,7})\b(?!/)"
)
_NAME_RANK: Final = re.compile(
    r"(?i)(?:^|[/_.-])(?:global[_-]?)?rank[_-]?(\d{1,7})(?=\D|$)|(?:^|/)(\d{1,6})/(?:filtered_)?(?:stdout|stderr)(?:\.log|\.txt)?(?:\.gz)?$|(?:^|[/_.-])(?:task|proc)[_-]?(\d{1,6})(?=\D|$)"
)
_NAME_NODE: Final = re.compile(
    r"(?i)(?:^|[/_.-])((?:node|host|nid|compute|dgx|hgx|gpu-?node|gpu|worker|gn|cn|ip)[-_]?\w{0,64}\d[\w-]{0,64}?)(?=[/.]|_rank|-rank|$)"
)
_SHARE_MIN: Final = 0.6
_REPEATED_SHARE_MIN: Final = 0.15
_HEAD_MIN: Final = 2


def read_sources(sources: Sequence[LogSource]) -> list[SourceLines]:
    """Return what each source says, bounded together."""
    kept_max = max(500, KEPT_LINES_MAX // max(1, len(sources)))
    nodes = _nodes_of_names([source.name for source in sources])
    return [
        _read_source(place, source, kept_max, nodes.get(source.name))
        for place, source in enumerate(sources)
    ]


# What else files of one job are numbered by.
_NO_NODE: Final = frozenset(
    {"attempt", "chunk", "cycle", "e", "err", "job", "l", "log", "o", "out", "part", "pid", "r", "rank", "restart", "run", "shard", "stage", "step", "stderr", "stdout", "task", "train", "try", "v", "version", "worker"}
)  # fmt: skip
_NAME_PARTS: Final = re.compile(r"[/_.]")
# Behind a job's number, as in `slurm-4711-n1.out`.
_NAMED_NODE: Final = re.compile(
    r"(?:(?:[a-z]{1,32}-)?\d{1,12}-)?(([A-Za-z](?:[\w-]{0,60}[A-Za-z-])?)\d{1,6})"
)


def _nodes_of_names(names: Sequence[str]) -> dict[str, str]:
    """Return the node of each file, where names differ in nothing but a short host's name such as ``n1`` and ``n2``."""
    parts = [_NAME_PARTS.split(name) for name in names]
    if len(parts) < 2 or len({len(row) for row in parts}) != 1:
        return {}
    columns = [column for column in zip(*parts, strict=True) if len(set(column)) > 1]
    if len(columns) != 1 or len(set(columns[0])) != len(names):
        return {}
    found = [match for name in columns[0] if (match := _NAMED_NODE.fullmatch(name))]
    stems = {match[2].lower().rstrip("-") for match in found}
    if len(found) != len(names) or len(stems) != 1 or stems & _NO_NODE:
        return {}
    return dict(zip(names, (match[1] for match in found), strict=True))


def _read_source(
    place: int, source: LogSource, kept_max: int, named_node: str | None = None
) -> SourceLines:
    sieve = LineSieve(kept_max)
    given = JobLines(source.lines)
    sieve.feed(given)
    rank, node = _of_name(source.name)
    node = node or named_node
    has_tasks = _share(sieve.head, _TASK_BYTES) >= _SHARE_MIN or _has_repeated_tasks(sieve.head)
    hosts = _hosts(sieve.head)
    lines = _of_table(
        [
            _line(place, given.number_of(number), raw, rank, node, has_tasks=has_tasks, hosts=hosts)
            for number, raw in sieve.kept()
        ]
    )
    lines = _of_spawned(lines)
    return SourceLines(
        source.name,
        lines,
        given.number_of(sieve.count),
        given.number_of(sieve.first_progress) if sieve.first_progress else None,
        given.number_of(sieve.last_progress) if sieve.last_progress else None,
        frozenset(
            sieve.ranks
            | (sieve.tasks if has_tasks else set())
            | ({rank} if rank is not None and sieve.count else set())
        ),
        sieve.marks,
        sieve.foreign,
    )


# Source: torch/multiprocessing/spawn.py. The error of the process follows, up to an empty line.
_SPAWNED: Final = re.compile(r"-- Process (\d{1,7}) terminated with the following error:")


def _of_spawned(lines: list[LogLine]) -> list[LogLine]:
    """Return the lines, with the rank of a spawned process on those of its error."""
    rank: int | None = None
    last = 0
    for place, line in enumerate(lines):
        if line.text[:1] == "-" and (match := _SPAWNED.match(line.text)):
            rank = int(match[1])
        elif rank is not None:
            if (
                line.rank is not None
                or not line.text.strip()
                or not last <= line.number <= last + 1
            ):
                rank = None
            else:
                lines[place] = msgspec.structs.replace(line, rank=rank)
        last = line.number
    return lines


# torchrun's table of ends, where a function of the program is wrapped by `record`: the traceback is indented by two.
# Source: torch/distributed/elastic/multiprocessing/errors/__init__.py.
_TABLE_RANK: Final = re.compile(r"  rank {6}: (\d{1,7}) \(")
_TABLE_TRACEBACK: Final = "  traceback : Traceback (most recent call last):"


def _of_table(lines: list[LogLine]) -> list[LogLine]:
    """Return the lines, with those of a table's tracebacks as their ranks would have printed them."""
    rank: int | None = None
    is_within = False
    for place, line in enumerate(lines):
        text = line.text
        if text[:2] != "  ":
            is_within = False
        elif match := _TABLE_RANK.match(text):
            rank, is_within = int(match[1]), False
        elif text.startswith(_TABLE_TRACEBACK):
            is_within = True
            text = text.partition(": ")[2]
        elif is_within:
            text = text[2:]
        if is_within and line.rank is None:
            lines[place] = msgspec.structs.replace(line, text=text, rank=rank)
    return lines


def _share(head: Sequence[bytes], pattern: re.Pattern[bytes]) -> float:
    said = [line for line in head if line.strip()]
    return (
        sum(1 for line in said if pattern.match(line)) / len(said)
        if len(said) >= _HEAD_MIN
        else 0.0
    )


def _has_repeated_tasks(head: Sequence[bytes]) -> bool:
    """Return whether many lines begin with one of few numbers: a launcher's own lines stand between those of srun -l.

    Numbers of lines, as in a quoted file, come once each.
    """
    said = [line for line in head if line.strip()]
    tasks = [line.partition(b":")[0].strip() for line in said if _TASK_BYTES.match(line)]
    return len(tasks) >= max(4, _REPEATED_SHARE_MIN * len(said)) and 2 * len(set(tasks)) <= len(
        tasks
    )


def _hosts(head: Sequence[bytes]) -> frozenset[str]:
    """Return the hosts' names before lines, where most lines begin with one."""
    found: Counter[str] = Counter()
    said = [line for line in head if line.strip()]
    for line in said:
        if (match := _HOST_BYTES.match(line)) and not _NCCL.match(line.decode("latin-1")):
            found[match[1].decode("latin-1")] += 1
    names = {name: count for name, count in found.items() if count > 1 and not _NO_HOST.match(name)}
    is_prefix = sum(names.values()) >= _SHARE_MIN * len(said) and len(said) >= _HEAD_MIN
    return frozenset(names) if is_prefix else frozenset()


def _of_name(name: str) -> tuple[int | None, str | None]:
    found = _NAME_RANK.search(name)
    rank = (
        next((int(group) for group in found.groups() if group is not None), None) if found else None
    )
    node = _NAME_NODE.search(name)
    return rank, node[1] if node else None


def _line(  # noqa: PLR0912 - one branch for each form of a prefix
    place: int,
    number: int,
    raw: bytes,
    rank: int | None,
    node: str | None,
    *,
    has_tasks: bool,
    hosts: frozenset[str],
) -> LogLine:
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text:
        text = ANSI.sub("", text)
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip()), "")
    is_of_rank = False
    for _turn in range(4):
        head = text[:1]
        if not head or (head == " " and not has_tasks):
            break
        if head == "[" and text[1:2] not in _BRACKETED:
            break
        if head == "[" and (match := _RANK.match(text)):
            rank = int(match[1] or match[2] or match[3])
            node = match["host"] or node
            is_of_rank = True
        elif has_tasks and not is_of_rank and (match := _TASK.match(text)):
            rank, is_of_rank = int(match[1]), True
        elif head.isdigit() and (match := _TASK_OF_RANK.match(text)):
            pass
        elif head == "(" and (match := _RAY.match(text)):
            node = match[2] or node
            rank = int(match[1]) if match[1] else rank
        elif hosts and (match := _HOST.match(text)) and match[1] in hosts:
            node = match[1]
        elif (head.isdigit() or head == "[") and (match := _STAMP.match(text)):
            pass
        else:
            break
        text = text[match.end() :]
        if has_tasks and is_of_rank:
            has_tasks = False
    if text[:1].isalnum() and (match := _NCCL.match(text)):
        node = match[1]
    elif rank is None and (match := _SAYS_RANK.match(text[:60])):
        rank = int(match[1])
    if rank is not None and rank > RANK_MAX:
        rank = None
    return LogLine(place, number, text, rank, node, is_of_rank)


def streams_of(source: SourceLines) -> Iterator[tuple[int | None, list[LogLine]]]:
    """Yield the lines of each rank of a source; those of no rank come as rank None."""
    by_rank: dict[int | None, list[LogLine]] = {}
    for line in source.lines:
        by_rank.setdefault(line.rank, []).append(line)
    yield from by_rank.items()

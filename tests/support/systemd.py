"""A real systemd as PID 1 of namespaces of its own, over a throw-away overlay of this machine's root.

What a test starts here reads and writes a copy: the units of this machine are not in it, and
nothing of it is left afterwards. Needs root, overlayfs and a systemd that knows this machine's
cgroups; `why_not` says what is missing.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.eventually import DEADLINE_S, eventually

ROOT = Path(__file__).resolve().parents[2]
SYSTEMD = Path("/lib/systemd/systemd")
_CGROUPS = Path("/sys/fs/cgroup")
_V1 = ("cpu", "cpuacct", "memory", "pids", "devices")
_DEVICES = "null zero full random urandom tty kmsg"
_ENTER = (
    "-m",
    "-p",
    "-u",
    "-i",
    "-n",
    "-C",
    "-r",
    "-w",
)  # mount, pid, uts, ipc, net, cgroup, root, folder

# The keeper: bash out here, whose standard input ends when the test is over, or is killed. Then it takes the bed away.
_OUTER = r"""
exec 3<&0
(
  for group in $GROUPS_MADE; do echo $BASHPID > "$group/cgroup.procs" || exit 1; done
  exec unshare --fork --pid --mount --uts --ipc --cgroup --kill-child --mount-proc --net bash -c "$INNER" 3<&-
) &
bed=$!
( read -r _ <&3; kill -KILL $bed ) 2>/dev/null &
end=$!
wait $bed
kill -KILL $end 2>/dev/null
for group in $GROUPS_MADE; do
  for _ in {1..1200}; do  # a killed process leaves its group when it is reaped
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
    [ -d "$group" ] || break
    sleep 0.05
  done
done
rm -rf "$SCRATCH"
"""
_INNER = r"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$BED"; mkdir "$BED/up" "$BED/work" "$BED/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$BED/up,workdir=$BED/work" "$BED/root"
cd "$BED/root"
mount -t proc proc proc; mount -t sysfs -o ro sysfs sys
mount -t tmpfs -o mode=755 tmpfs dev
for n in $DEVICES; do touch "dev/$n"; mount --bind "/dev/$n" "dev/$n"; done
mkdir dev/pts dev/shm; mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts
ln -s pts/ptmx dev/ptmx; ln -s /proc/self/fd dev/fd; mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=755 tmpfs run; mount -t tmpfs -o mode=1777 tmpfs tmp
if [ -n "$V1" ]; then
  mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
  for c in $V1; do mkdir "sys/fs/cgroup/$c"; mount -t cgroup -o "$c" cgroup "sys/fs/cgroup/$c"; done
  mkdir sys/fs/cgroup/systemd sys/fs/cgroup/unified
  mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
  mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
else
  mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
rm -rf etc/systemd/system/*; mkdir -p etc/systemd/system etc/rankmend
if [ -n "$SOURCE" ]; then
mkdir -p opt/rankmend/bin opt/rankmend/lib opt/rankmend/src opt/rankmend/site
mount --bind "$PYTHON_HOME" opt/rankmend/lib
mount --bind "$SOURCE" opt/rankmend/src
mount --bind "$SITE" opt/rankmend/site
cat > opt/rankmend/bin/python <<EOF
#!/bin/sh
export LD_LIBRARY_PATH=/opt/rankmend/lib/lib PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=/opt/rankmend/src:/opt/rankmend/site
exec /opt/rankmend/lib/bin/$PYTHON_NAME "\$@"
EOF
printf '#!/bin/sh\nexec /opt/rankmend/bin/python -m rankmend.cli "$@"\n' > opt/rankmend/bin/rankmend
chmod 755 opt/rankmend/bin/*
else
mkdir mnt/changes; mount --bind "$BED/up" mnt/changes
rm -f usr/sbin/policy-rc.d
fi
cp -r "$FILES/." .
printf '[Unit]\nRequires=dbus.socket\nWants=systemd-journald.service\n' \
  > etc/systemd/system/testbed.target
mkdir -p mnt/old; pivot_root . mnt/old; cd /; umount -l /mnt/old
export container=testbed
exec /lib/systemd/systemd --system --unit=testbed.target --log-target=journal
"""


def why_not() -> str:
    """Return why no bed can be made here; empty when one can."""
    if os.geteuid() != 0:
        return "needs root for namespaces of its own"
    if not SYSTEMD.exists():
        return "systemd is not installed"
    if "overlay" not in Path("/proc/filesystems").read_text(encoding="ascii"):
        return "this kernel has no overlayfs"
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        return "util-linux is not installed"
    if not (_CGROUPS / "cgroup.controllers").exists() and not (_CGROUPS / "systemd").is_dir():
        return "no cgroup hierarchy for systemd"
    return ""


class Bed:
    """A running systemd."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def run(
        self, *command: str, text: str = "", check: bool = True, timeout_s: float = 200.0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["nsenter", "-t", str(self.pid), *_ENTER, "--", *command],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if check and done.returncode != 0:
            journal = self.run("journalctl", "--no-pager", "-n", "60", check=False).stdout
            raise AssertionError(f"{command}: {done.returncode}\n{done.stderr}\n{journal}")
        return done

    def show(self, unit: str, name: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", name, unit).stdout.strip()

    def has_restarted(self, unit: str) -> bool:
        """Return whether systemd has started a unit again. On a busy machine, a short watchdog may do that more than once."""
        restarts, state = self.show(unit, "NRestarts"), self.show(unit, "ActiveState")
        return restarts not in ("", "0") and state == "active"

    def journal(self, unit: str, cursor: str = "") -> str:
        """Return what a unit has logged, after a cursor where one is given."""
        after = ("--after-cursor", cursor) if cursor else ()
        return self.run("journalctl", "--no-pager", "-o", "cat", "-u", unit, *after).stdout

    def cursor(self) -> str:
        shown = self.run("journalctl", "--no-pager", "-n", "1", "--show-cursor").stdout
        return shown.rpartition("-- cursor: ")[2].strip()

    def status_of(self, pid: str) -> dict[str, str]:
        """Return the fields of /proc/PID/status."""
        status = self.run("cat", f"/proc/{pid}/status").stdout
        return dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)

    def mount_options_of(self, pid: str) -> dict[str, list[str]]:
        """Return the options of each mount point that a process sees."""
        mounts = self.run("cat", f"/proc/{pid}/mountinfo").stdout.splitlines()
        return {line.split()[4]: line.split()[5].split(",") for line in mounts}

    def drop_in(self, unit: str, text: str) -> None:
        """Change a unit by a drop-in file; an empty text takes the change back."""
        folder = f"/run/systemd/system/{unit}.d"
        script = f"mkdir -p {folder}; cat > {folder}/test.conf; systemctl daemon-reload"
        self.run("sh", "-c", script, text=text)

    def stop(self, unit: str) -> None:
        self.run("systemctl", "stop", unit, check=False)
        self.run("systemctl", "reset-failed", unit, check=False)

    @contextmanager
    def started(self, unit: str) -> Iterator["Bed"]:
        """Run a unit as it is shipped."""
        self.run("systemctl", "start", unit)
        yield self
        self.stop(unit)

    @contextmanager
    def impatient(self, unit: str) -> Iterator["Bed"]:
        """Give a unit a short watchdog."""
        self.drop_in(unit, "[Service]\nWatchdogSec=4\nRestartSec=200ms\nTimeoutAbortSec=1\n")
        yield self
        self.stop(unit)
        self.drop_in(unit, "")

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        def state() -> str:
            journal = self.run("journalctl", "--no-pager", "-n", "60", check=False).stdout
            return f"{what}\n{journal}"

        eventually(condition, state, pause_s=0.05)

    def get(self, url: str) -> str:
        """Fetch a page as somebody within would; empty when nobody answers."""
        script = "import sys,urllib.request as u;print(u.urlopen(sys.argv[1],timeout=10).read().decode())"
        return self.run("/opt/rankmend/bin/python", "-c", script, url, check=False).stdout


def _python_name() -> str:
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


@contextmanager
def running_systemd(files: Path, *, has_rankmend: bool = True) -> Iterator[Bed]:
    """Run systemd over a copy of the root with ``files`` laid over it.

    It has a network of its own, as units listen on fixed ports. ``has_rankmend``: /opt/rankmend runs this source. Without it, the bed is
    for the package: /mnt/changes has what differs from this machine's root, and package managers may start services.
    """
    name = f"rankmend-bed-{uuid.uuid4().hex[:8]}"
    scratch = Path(tempfile.mkdtemp(prefix=f"{name}-"))
    console = scratch / "console"
    mounted = scratch / "bed"
    mounted.mkdir()
    has_v1 = not (_CGROUPS / "cgroup.controllers").exists()
    cgroups = _own_cgroups(name)
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "BED": str(mounted),
        "FILES": str(files),
        "SOURCE": str(ROOT) if has_rankmend else "",
        "SITE": sysconfig.get_paths()["purelib"],
        "PYTHON_HOME": sys.base_prefix,
        "PYTHON_NAME": _python_name(),
        "DEVICES": _DEVICES,
        "V1": " ".join(_V1) if has_v1 else "",
        "INNER": _INNER,
        "GROUPS_MADE": " ".join(map(str, cgroups)),
        "SCRATCH": str(scratch),
    }
    with console.open("wb") as output:
        keeper = subprocess.Popen(
            ["bash", "-c", _OUTER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    assert keeper.stdin is not None
    try:
        bed = Bed(_wait_for_pid_1(keeper, console))
        _wait_until_up(bed, keeper, console)
        yield bed
    finally:
        keeper.stdin.close()
        keeper.wait(DEADLINE_S)


def _own_cgroups(name: str) -> list[Path]:
    """Make a cgroup below this process's own in each hierarchy."""
    made = []
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _number, controllers, path = line.split(":", 2)
        if not controllers:
            is_v2_only = (_CGROUPS / "cgroup.controllers").exists()
            hierarchy = _CGROUPS if is_v2_only else _CGROUPS / "unified"
        elif controllers == "name=systemd":
            hierarchy = _CGROUPS / "systemd"
        elif controllers in _V1:
            hierarchy = _CGROUPS / controllers
        else:
            continue
        folder = hierarchy / path.lstrip("/") / name
        if hierarchy.is_dir():
            folder.mkdir()
            made.append(folder)
    return made


def _wait_for_pid_1(keeper: subprocess.Popen[bytes], console: Path) -> int:
    def look() -> int | None:
        assert keeper.poll() is None, _shown(console)
        for unshare in _children_of(keeper.pid):
            for pid in _children_of(unshare):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text(encoding="ascii") == "systemd\n":
                        return pid
        return None

    return eventually(look, lambda: _shown(console))


def _shown(console: Path) -> str:
    return f"systemd starts: {console.read_text(errors='replace')[-4000:]}"


def _children_of(pid: int) -> list[int]:
    try:
        told = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(child) for child in told.split()]


def _wait_until_up(bed: Bed, keeper: subprocess.Popen[bytes], console: Path) -> None:
    def is_up() -> bool:
        assert keeper.poll() is None, _shown(console)
        told = bed.run("systemctl", "is-active", "testbed.target", check=False)
        return told.returncode == 0

    eventually(is_up, lambda: _shown(console), pause_s=0.05)

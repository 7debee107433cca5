"""Says what a rank finds around itself."""

import os
import signal
from pathlib import Path

FOLDER = Path("/proc/self/fd")
listed = sorted(int(entry.name) for entry in FOLDER.iterdir())
kept = [number for number in listed if (FOLDER / str(number)).exists()]
print("descriptors:", [number for number in kept if number < 512])
high = [number for number in kept if number >= 512]
suffixes = {number: (FOLDER / str(number)).readlink().suffix for number in high}
print("held by the hook:", list(suffixes.values()))
print("inherited by children:", [suffixes[one] for one in high if os.get_inheritable(one)])
print("leads its session:", os.getsid(0) == os.getpid())
ignored = [number.name for number in signal.Signals if signal.getsignal(number) is signal.SIG_IGN]
# Python itself ignores these two, whatever it was started with.
print("ignored signals:", [name for name in ignored if name not in ("SIGPIPE", "SIGXFSZ")])

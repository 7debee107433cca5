"""Tells what a script can see of how it was started."""

import os
import pickle
import sys
import time
from pathlib import Path

import rankmend


class Thing:
    pass


for step in (1, 2):
    rankmend.step(step)
if os.environ.get("TELL_WAIT") and os.environ["RANKMEND_ATTEMPT"] == "2":
    time.sleep(600)
main = sys.modules["__main__"]
environ = Path("/proc/self/environ").read_bytes().split(b"\0")
marks = [entry for entry in environ if entry.startswith(b"RANKMEND_ATTEMPT=")]
print("tells:")
print(f"argv={sys.argv}")
print(f"path0={sys.path[0]}")
print(f"name={__name__}")
print(f"file={__file__}")
print(f"spec={__spec__}")
print(f"doc={__doc__}")
print(f"is main={main.__dict__ is globals()}")
print(f"pickles={pickle.loads(pickle.dumps(Thing())).__class__ is Thing}")
print(f"folder={Path.cwd()}")
print(f"session={os.getsid(0) == os.getpid()}")
print(f"attempt={os.environ['RANKMEND_ATTEMPT']}")
print(f"mark={int(marks[0].split(b'=')[1])}")
names = sorted(
    name
    for name in os.environ
    if name not in ("TELL_WAIT", "RANKMEND_RESUME_STEP", "RANKMEND_RESUME_PATH")
)
print(f"environment={names}")

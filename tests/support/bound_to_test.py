"""Has a daemon end when the tests' process does, even by kill -9, where no fixture tidies up."""

# prctl(2), PR_SET_PDEATHSIG, which outlives execve(2). Not for programs that change their user: the kernel clears it there.
BOUND_TO_TEST = ("setpriv", "--pdeathsig=KILL", "--")

"""Ends with 0 once SIGUSR1 has come."""

import signal

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
print("got", signal.Signals(signal.sigwait([signal.SIGUSR1])).name, flush=True)

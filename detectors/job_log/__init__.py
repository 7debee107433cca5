"""What the log of a job says: which rank, why, and whether starting again makes sense. Pure.

`verdict` is the door: `diagnose_log` reads sources of lines (`lines.LogSource`) and returns a `LogVerdict`.
"""

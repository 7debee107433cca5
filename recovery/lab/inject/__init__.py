"""Breaks a job or a node on purpose, for a bounded time, and puts everything back (`rankmend inject`).

What may be broken, and how it is put back, is decided before anything is done. How to put it back is on disk, and a
process that does so is running, before the fault is made.
"""

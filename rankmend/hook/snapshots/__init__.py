"""Snapshots of a rank's training state in shared memory: written here, kept by the launcher, read back here.

Design: docs/internals/design/0006-snapshots.md. Standard library and Python 3.8 only.
"""

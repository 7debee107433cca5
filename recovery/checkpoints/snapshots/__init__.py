"""Snapshots of the ranks' training state: what a launcher holds of them, checks, copies and reports.

Ranks write them (`rankmend.hook.snapshots`), and `recovery.controller.job.restore.snapshot_choice` decides which one is restored.
Design: docs/internals/design/0006-snapshots.md.
"""

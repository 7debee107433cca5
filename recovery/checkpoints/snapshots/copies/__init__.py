"""Copies of snapshots on other nodes. Design: docs/internals/design/0006-snapshots.md."""

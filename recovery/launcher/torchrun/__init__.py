"""Beside an unchanged torchrun: `torchrun --rdzv-backend=rankmend` (docs/use/watch.md)."""

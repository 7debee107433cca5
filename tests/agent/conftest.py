"""Fixtures of several files of this folder."""

from tests.support.nvml_stub.node import library_folder, node

__all__ = ["library_folder", "node"]

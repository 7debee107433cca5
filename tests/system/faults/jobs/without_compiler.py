"""Gives the Python that imports it a stand-in for PyTorch's compiler, for scripts that compile nothing.

DistributedDataParallel and each optimizer import torch._dynamo, which takes as much CPU time as PyTorch itself, and need of it what
is here. To a fork server, which imports what the ranks had from installed packages, the stand-in is none of these.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

NAME = "torch._dynamo"


def disable(function=None, recursive=True, **_options):
    return (lambda given: given) if function is None else function


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return (
            ModuleSpec(name, Finder, is_package=True) if name in (NAME, f"{NAME}.utils") else None
        )

    @staticmethod
    def create_module(spec):
        module = ModuleType(spec.name)
        module.disable = disable
        module.graph_break = lambda: None
        module.get_optimize_ddp_mode = lambda: "no_optimization"  # of `utils`
        module.trace_rules, module.clear_lru_cache = module, lambda: None
        return module

    @staticmethod
    def exec_module(module):
        if module.__name__ == NAME:
            import torch._dynamo.utils  # noqa: F401


sys.meta_path.insert(0, Finder)

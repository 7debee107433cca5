"""The environment of the fork server while it imports: for each package as the ranks had it then.

What the ranks tell (`rankmend.hook.import_order`), and the launcher merges:

    modules      [name, origin], in sections between changes
    changes      [index, variables, differing]: for the section from this module on, which variables differ from
                 those at the start of a rank, and which of these differ between the ranks
    by_imports   module: [variables, differing] that its import has set itself
    expected     variable: the values that the script may set it to in a forked rank (`rankmend.hook.variables`)
    environment  variables that have changed at an unknown time; such a script can't be replayed
    statements   in the first run of a script, where no rank has told yet: [name, names] of its first imports
"""

import os
import sys

from rankmend.hook import import_order

_OF_PYTHON = "LC_CTYPE"  # set by Python itself where the locale is C (PEP 538)


class Replay:
    def __init__(self, told, started_with):
        """``started_with``: the environment of this process at its start."""
        self._told = told
        self._started_with = started_with
        self._began = dict(os.environ)  # changed by .pth files and sitecustomize only
        self._met = self._began  # what the present package meets
        self._made = {}  # by imports: a forked rank has these changes as well

    def refusal(self):
        """Return why no rank can be forked at all, or None."""
        if self._told.get("statements") is not None:
            for name in sorted({**self._started_with, **self._began}):
                if name != _OF_PYTHON and self._began.get(name) != self._started_with.get(name):
                    return "%s is changed before the script begins" % name
            return None
        made, differing = self._told["by_imports"].get(import_order.SITE, ({}, ()))
        for name in differing:
            return "%s is changed before the script begins, and differs between the ranks" % name
        for name, value in made.items():
            if self._began.get(name) != value:
                return "%s is changed before the script begins, to another value here" % name
        return None

    def packages(self, left_out):
        """Yield each package with its modules to import, in their environment; add to ``left_out``."""
        differing = []
        for modules, variables, section_differing in self._sections():
            differing = differing or section_differing
            for package, some in _by_package(modules).items():
                if package in left_out:
                    continue
                if not all(name in sys.modules for name, _origin in some):
                    if differing and not _is_pythons_own(some):
                        left_out[package] = (
                            "is imported after a change of %s that differs between the ranks"
                            % ", ".join(differing)
                        )
                        continue
                    self._meet(variables)
                loaded = set(sys.modules)
                yield package, some
                self._made.update(self._changes(loaded))

    def fault(self, loaded):
        """Return why the imports since must not be shared, for what they did to the environment.

        ``loaded``: names of the modules before.
        """
        for name in self._by_imports_since(loaded):
            for variable in self._told["by_imports"][name][1]:
                return "sets %s at import, which differs between the ranks" % variable
        for variable, value in self._changes(loaded).items():
            if os.environ.get(variable) != value:
                return "sets %s at import, to another value here than in the ranks" % variable
            if self._met.get(variable) != self._kept(variable):
                return "changes %s at import, which the script has changed before" % variable
        return None

    def take_made(self):
        """Keep what an import of a script's first run has just changed, and return it: a forked rank has it as well."""
        made = {
            name: os.environ.get(name)
            for name in {**self._met, **os.environ}
            if os.environ.get(name) != self._met.get(name)
        }
        self._made.update(made)
        self._met = dict(os.environ)
        return made

    def environment(self):
        """Return (name, before, after) of what is changed in a forked rank before its script begins."""
        now = {
            name: self._kept(name) for name in {**self._started_with, **self._began, **self._made}
        }
        before = self._started_with
        return [
            (name, before.get(name), now[name])
            for name in sorted(now)
            if now[name] != before.get(name)
        ]

    def _sections(self):
        modules, start, state = self._told["modules"], 0, ({}, [])
        for index, variables, differing in [*self._told["changes"], [len(modules), {}, []]]:
            yield modules[start:index], *state
            start, state = index, (variables, differing)

    def _meet(self, variables):
        wanted = {**self._began, **variables}
        self._met = {name: value for name, value in wanted.items() if value is not None}
        for name in set(os.environ) - set(self._met):
            del os.environ[name]
        for name, value in self._met.items():
            if os.environ.get(name) != value:
                os.environ[name] = value

    def _kept(self, name):
        return self._made.get(name, self._began.get(name))

    def _by_imports_since(self, loaded):
        new = self._told["by_imports"].keys() & sys.modules.keys() - loaded
        return [name for name in list(sys.modules) if name in new] if new else []

    def _changes(self, loaded):
        """Return what the imports since have changed in the ranks."""
        found = {}
        for name in self._by_imports_since(loaded):
            found.update(self._told["by_imports"][name][0])
        return {name: value for name, value in found.items() if value != self._met.get(name)}


def _is_pythons_own(modules):
    """Return whether these are of Python's library, which keeps nothing at import that ranks set differently.

    In 3.8 and 3.13 it reads PY_SAX_PARSER, DISTUTILS_DEBUG, _PYTHON_PROJECT_BASE and pydoc's there, no others.
    """
    return all(import_order.is_pythons_own(origin) for _name, origin in modules)


def _by_package(modules):
    """Return the modules of each package (``name.partition('.')``), in the order of first imports."""
    packages = {}
    for name, origin in modules:
        packages.setdefault(name.partition(".")[0], []).append((name, origin))
    return packages

"""Calls a function right after a module has been imported, whoever imports it and whenever."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Installs = Mapping[str, Callable[[ModuleType], None]]


class AfterImport(MetaPathFinder):
    """Stands first among the finders; lets the others find, and adds a call to what they found."""

    def __init__(self, installs: Installs) -> None:
        """`installs` by full name of a module."""
        self._installs = dict(installs)
        self._finding: set[str] = set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a named module with the call added to its loader; None for the others."""
        if fullname not in self._installs or fullname in self._finding:
            return None
        self._finding.add(fullname)  # the others are asked through the same door
        try:
            spec = find_spec(fullname)
        finally:
            self._finding.discard(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute, install = spec.loader.exec_module, self._installs[fullname]

        def execute_and_install(module: ModuleType) -> None:
            execute(module)
            install(module)

        spec.loader.exec_module = execute_and_install
        return spec


def after_import(installs: Installs) -> None:
    """Call each function once its module has been imported; at once for those that have been."""
    sys.meta_path.insert(0, AfterImport(installs))
    for name in installs.keys() & sys.modules.keys():
        installs[name](sys.modules[name])

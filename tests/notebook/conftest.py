"""Tests of widgets need the notebook extra; where it is not installed they are left out, in CI they fail."""

from __future__ import annotations

import importlib.util
import os

if importlib.util.find_spec("ipywidgets") is None and not os.environ.get("CI"):
    collect_ignore_glob = ["test_*.py"]

"""Runs the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import unittest

import opt_supervisor

PACKAGES = [opt_supervisor]
if importlib.util.find_spec("torch") is not None:
    PACKAGES.append(importlib.import_module("opt_captures"))


def load_tests(loader: unittest.TestLoader, tests: unittest.TestSuite, pattern: str | None) -> unittest.TestSuite:
    """Adds the doctests of all modules except `__main__` and the pytest plugin; called by unittest."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not module.name.endswith(("__main__", "pytest_plugin")):
                tests.addTests(doctest.DocTestSuite(importlib.import_module(module.name)))
    return tests

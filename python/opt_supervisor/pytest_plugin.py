"""A pytest plugin that runs kernels as tests.

    @pytest.mark.opt("kernels/*.c", plan="plan.toml")
    def test_kernel(opt_result):
        assert opt_result.passed, opt_result.feedback
        assert opt_result.speedup.ci_low > 1

The test is run once for each file that the pattern matches. The paths of a marker are relative to the folder of the
test file. The candidates of a plan share one run, which stays open until the tests are over. For tests without a
marker, set ``--opt-plan`` and ``--opt-candidates``, or ``opt_plan`` and ``opt_candidates`` in pytest's settings. These
paths are relative to pytest's root folder. A marker without ``plan`` uses the plan of these settings.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .result import Result
from .session import Session

FIXTURE = "opt_result"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the plugin's options. Called by pytest, like all functions that begin with ``pytest_``."""
    group = parser.getgroup("opt-supervisor")
    group.addoption("--opt-plan", metavar="PLAN", help="plan for tests that use opt_result")
    group.addoption("--opt-candidates", metavar="PATTERN", help="candidates for tests that use opt_result")
    parser.addini("opt_plan", "plan for tests that use opt_result", default="plan.toml")
    parser.addini("opt_candidates", "candidates for tests that use opt_result", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Describes the marker ``opt``."""
    config.addinivalue_line(
        "markers",
        "opt(*patterns, plan=None, job=None, language=None, symbol=None): candidates for which the test is run, and "
        "their plan (by default, that of --opt-plan or opt_plan)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test for each candidate."""
    if FIXTURE not in metafunc.fixturenames:
        return
    config = metafunc.config
    marker = metafunc.definition.get_closest_marker("opt")
    marked = marker.kwargs if marker else {}
    patterns = list(marker.args) if marker else []
    option = config.getoption("--opt-candidates") or config.getini("opt_candidates")
    from_options = not patterns
    patterns = patterns or ([option] if option else [])
    plan = marked.get("plan") or config.getoption("--opt-plan") or config.getini("opt_plan")
    base = config.rootpath if from_options else metafunc.definition.path.parent
    found = sorted({path for pattern in patterns for path in base.glob(pattern)})
    if not found:
        raise pytest.UsageError(
            f"{metafunc.definition.nodeid}: no candidate matches {patterns or 'an empty list'} below {base} "
            '(write @pytest.mark.opt("kernels/*.c"), or --opt-candidates)'
        )
    plan_base = config.rootpath if "plan" not in marked else metafunc.definition.path.parent
    options = {name: marked.get(name) for name in ("job", "language", "symbol")}
    requests = [(path, plan_base / plan, options) for path in found]
    metafunc.parametrize(FIXTURE, requests, indirect=True, ids=[str(path.relative_to(base)) for path in found])


@pytest.fixture(scope="session")
def opt_sessions() -> Iterator[dict[Path, Session]]:
    """The open sessions, by plan. They are closed after the last test."""
    sessions: dict[Path, Session] = {}
    yield sessions
    for session in sessions.values():
        session.close()


@pytest.fixture
def opt_result(request: pytest.FixtureRequest, opt_sessions: dict[Path, Session]) -> Result:
    """The result of this test's candidate."""
    path, plan, options = request.param
    if plan not in opt_sessions:
        opt_sessions[plan] = Session(plan).__enter__()
    result = opt_sessions[plan].evaluate(path, **options)
    request.node.opt_result = result
    return result


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[None]:
    """Adds the candidate's feedback to the report of its test."""
    outcome = yield
    result = getattr(item, FIXTURE, None)
    if result is not None and call.when == "call":
        report = outcome.get_result()  # type: ignore[attr-defined]
        report.sections.append(("opt-supervisor", f"{result}\n{result.feedback}"))

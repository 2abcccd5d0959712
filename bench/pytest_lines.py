# SPDX-License-Identifier: Apache-2.0
"""A plugin for pytest that writes a line for each test as it ends: ``pytest -p bench.pytest_lines --lines FILE``.

With xdist the process that collects the results writes. A test that was running when the run was killed is logged as
begun but not done.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.gpu_lines import Lines

if TYPE_CHECKING:
    import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--lines", type=Path, default=None, help="write a line for each test to this file")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--lines")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer(Lines(path)), "lines of tests")
        if config.pluginmanager.hasplugin("xdist"):
            config.pluginmanager.register(_OfWorkers(), "lines of workers")


class _Writer:
    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.planned = False
        #: The failures of a test's phases so far.
        self._failed: dict[str, str] = {}
        self._skipped: dict[str, str] = {}

    def plan(self, names: list[str]) -> None:
        # Every worker of xdist collects the same.
        if not self.planned:
            self.lines.plan(names)
            self.planned = True

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if session.items:
            self.plan([item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.lines.done(report.nodeid or "collection", str(report.longrepr))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.lines.begin(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid
        if report.failed:
            self._failed[name] = f"{self._failed.get(name, '')}{_last_line(report)}\n{report.when}: {report.longrepr}\n"
        elif report.skipped:
            reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else report.longrepr
            self._skipped[name] = str(reason)
        # A worker that crashed gives no teardown, and its report has the phase "???".
        if report.when not in ("setup", "call"):
            more: dict[str, Any] = {"skipped": self._skipped.pop(name)} if name in self._skipped else {}
            self.lines.done(name, self._failed.pop(name, ""), seconds=report.duration, **more)


class _OfWorkers:
    """Hooks that exist only with xdist."""

    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        node.config.pluginmanager.getplugin("lines of tests").plan(list(ids))


def _last_line(report: pytest.TestReport) -> str:
    """What went wrong, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return (text.strip().splitlines() or [""])[0]

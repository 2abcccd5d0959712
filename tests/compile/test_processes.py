# SPDX-License-Identifier: Apache-2.0
"""Commands that are ended, with their children, when nobody waits for them: compilers that hang, and a stranger's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import gpucast
from endings import HANGS, have_ended
from gpucast.compile.cxx import Commands

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc says what has ended")
ROOT = Path(gpucast.__file__).parents[1]

#: Waits until the compiler hangs.
WAIT = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"


@pytest.fixture
def compiler(tmp_path: Path) -> Path:
    """A compiler that hangs, and so does its child. When both run, their ids are in the file `pids` beside it."""
    path = tmp_path / "compiler"
    path.write_text('#!/bin/sh\ncd "${0%/*}"\nsleep 600 &\necho $$ $! > writing\nmv writing pids\nwait\n')
    path.chmod(0o755)
    return path


def run(code: str, compiler: Path, *arguments: str, **variables: str) -> int:
    """The exit code of a process, once that has ended with all that it started; all of it is ended should it hang."""
    command = [sys.executable, "-c", code, str(compiler.with_name("pids")), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CC": str(compiler), "CXX": str(compiler), **variables}
    try:
        return subprocess.call(command, env=environment, timeout=HANGS, stderr=subprocess.DEVNULL)
    finally:
        assert ended(compiler)


def wait_until_it_hangs(compiler: Path) -> None:
    while not compiler.with_name("pids").exists():
        time.sleep(0.01)


def ended(compiler: Path) -> bool:
    pids = [int(pid) for pid in compiler.with_name("pids").read_text().split()]
    assert len(pids) == 2
    return have_ended(pids)


def test_a_compiler_of_the_host_build_that_hangs(compiler: Path) -> None:
    """Ctrl-C, while the process waits for it."""
    interrupt = (
        "import signal, threading\n"
        "def interrupt():\n"
        + "".join(f"    {line}\n" for line in WAIT.splitlines())
        + "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "from gpucast.core import dtypes, rule\n"
        "from gpucast.parity import host_build\n"
        "host_build.build([rule.resolve(dtypes.dtype('FLOAT'), dtypes.dtype('INT8'))])\n"
    )
    assert run(interrupt, compiler) == -signal.SIGINT


def test_a_command_that_takes_too_long(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here its child holds the pipes, and outlives it: that ends with it, too. Its time begins when both run."""
    wait_for_output = subprocess.Popen.communicate

    def communicate(process: subprocess.Popen[str], **options: float | None) -> tuple[str, str]:
        wait_until_it_hangs(compiler)
        return wait_for_output(process, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(subprocess.Popen, "communicate", communicate)
    text = compiler.read_text().replace("wait\n", "exit\n")
    compiler.write_text(text)
    with Commands() as commands, pytest.raises(subprocess.TimeoutExpired):
        commands.run([str(compiler)], timeout=0.1)
    assert ended(compiler)


def test_commands_that_nobody_waits_for(compiler: Path) -> None:
    results: list[int] = []
    with Commands() as commands:
        thread = threading.Thread(target=lambda: results.append(commands.run([str(compiler)]).returncode))
        thread.start()
        wait_until_it_hangs(compiler)
    thread.join()
    assert results == [-signal.SIGKILL] and ended(compiler)
    with pytest.raises(subprocess.SubprocessError, match="compiler is not started, for nobody waits"):
        commands.run([str(compiler)])

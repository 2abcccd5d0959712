# SPDX-License-Identifier: Apache-2.0
"""Conversions on a Dask cluster of real processes, of which one is killed in the middle of a file."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gpucast
from conversions import checkpoint, planned
from endings import HANGS
from gpucast import files
from gpucast.cli import main
from gpucast.convert import ConversionPlan, Options, Outcome, run

distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed")

from gpucast.convert.running import cluster as on_cluster  # noqa: E402
from gpucast.convert.running.cluster import ClusterError, run_on  # noqa: E402
from gpucast.convert.running.stream import run_file  # noqa: E402
from gpucast.convert.running.work import UnfinishedWork  # noqa: E402

SHARDS = 4


def made(folder: Path, tensors: int = 2, size: int = 1000) -> Path:
    """A checkpoint of several shards and a file of another kind."""
    random = np.random.default_rng(4)
    held = {
        f"model-{shard}": {f"{shard}.{i}": random.normal(size=size).astype(np.float32) for i in range(tensors)}
        for shard in range(SHARDS)
    }
    checkpoint(folder, held, total_size=SHARDS * tensors * size * 4)
    (folder / "config.json").write_text("{}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}


def address(cluster: Any) -> str:
    return str(cluster.scheduler.address)


def test_a_worker_killed_in_the_middle_of_a_file(cluster: Any, tmp_path: Path) -> None:
    source, target = made(tmp_path / "in", tensors=48, size=1 << 16), tmp_path / "out"
    plan = planned(source, target, "BFLOAT16")
    outcome, advanced = Outcome(plan), []
    thread = threading.Thread(target=run_on, args=(address(cluster), plan, Options(), outcome, advanced.append))
    thread.start()
    victim, begun = kill_half_way(cluster, plan, thread)
    assert not target.exists()
    thread.join(HANGS)
    assert not thread.is_alive()
    run(planned(source, tmp_path / "alone", "BFLOAT16"), Options(), Outcome(plan))
    assert contents(target) == contents(tmp_path / "alone")
    assert sum(advanced) == sum(file.bytes_in for file in plan.files)
    assert len(outcome.results) == SHARDS * 48 and outcome.waiting == 0
    # The next worker went on from where the killed one was. Whole files come on top where an answer was lost with the
    # worker, or its copy of the job that another task was using: Dask asks for those files once more.
    assert 0 < begun <= outcome.resumed <= sum(advanced)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "in", "out"]
    assert victim not in cluster.run(os.getpid).values()


def kill_half_way(cluster: Any, plan: ConversionPlan, thread: threading.Thread) -> tuple[int, int]:
    """Kill a worker that has finished some tensors of a file, and not the file: its process, the bytes of them."""
    work, pids = UnfinishedWork(plan), cluster.run(os.getpid)
    while thread.is_alive():
        for worker in cluster.processing():
            # Stopped first: it would finish the file while it is looked at.
            os.kill(pids[worker], signal.SIGSTOP)
            try:
                wait_until_stopped(pids[worker])
                for key in map(str, cluster.processing()[worker]):
                    file = plan.files[int(key.split("-")[1])] if key.startswith("convert-") else None
                    begun = 0 if file is None else sum(record["bytes_in"] for record in work.journal(file).read())
                    if file is not None and begun and not work.is_done(file):
                        os.kill(pids[worker], signal.SIGKILL)
                        return pids[worker], begun
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pids[worker], signal.SIGCONT)
        time.sleep(0.002)
    raise AssertionError("no worker was seen at work")


def wait_until_stopped(pid: int) -> None:
    def state(thread: Path) -> str:
        with contextlib.suppress(OSError):
            return (thread / "stat").read_text().rpartition(")")[2].split()[0]
        return "ended"

    while any(state(thread) not in ("T", "Z", "ended") for thread in Path(f"/proc/{pid}/task").glob("*")):
        time.sleep(0.0005)


def test_the_command_converts_on_a_cluster(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "in")
    command = ["convert", "in", "out", "--to", "FLOAT16", "--scheduler", address(cluster)]
    assert main([*command, "--verify", "--json", "--report", "report.html"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["total"]["tensors"] == len(result["tensors"]) == SHARDS * 2
    assert result["verified_elements"] == SHARDS * 2 * 1000
    assert main([*command[:2], "alone", *command[3:5]]) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "alone")
    assert "model-3.safetensors" in (tmp_path / "report.html").read_text()


def test_an_error_of_a_worker_ends_the_run(cluster: Any, tmp_path: Path) -> None:
    source = made(tmp_path / "in")
    files.save(str(source / "model-2.safetensors"), {"2.0": np.full(1000, 1e9, np.float32), "2.1": np.zeros(1)})
    with pytest.raises(ValueError, match="tensor '2.0' from FLOAT to FLOAT16 would lose 1,000"):
        run_on(address(cluster), plan := planned(source, tmp_path / "out"), Options(), Outcome(plan))
    assert not (tmp_path / "out").exists()


def test_workers_of_another_version_are_refused(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(made(tmp_path / "in"), tmp_path / "out")
    version = gpucast.__version__
    monkeypatch.setattr(on_cluster, "__version__", "0.0.1")
    with pytest.raises(
        ClusterError,
        match=rf"^worker tcp://\S+ has gpucast {re.escape(version)} \(2 workers in all\); this is gpucast 0.0.1$",
    ):
        run_on(address(cluster), plan, Options(), Outcome(plan))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]


def test_workers_that_do_not_see_the_files_are_refused(cluster: Any, tmp_path: Path) -> None:
    plan = planned(made(tmp_path / "in"), tmp_path / "out")
    first, *others = plan.files
    changes: list[tuple[dict[str, Any], str]] = [
        ({"path": "/elsewhere/model.safetensors"}, r"No such file or directory \(worker tcp://\S+\).*elsewhere"),
        ({"time": 1}, "config.json: was changed since"),
    ]
    for changed, said in changes:
        known = dataclasses.replace(first.identity[0], **changed)
        wrong = dataclasses.replace(plan, files=(dataclasses.replace(first, identity=(known,)), *others))
        with pytest.raises((OSError, files.FileError), match=said):
            run_on(address(cluster), wrong, Options(restart=True), Outcome(plan))
        assert not (tmp_path / "out").exists()
    # A folder that the client made on a disk of its own.
    apart = planned(tmp_path / "in", tmp_path / "apart")
    with pytest.raises(files.FileError, match="apart.partial: cannot be seen; all machines must see"):
        run_file(apart, apart.files[0], Options(), Outcome(apart))
    with pytest.raises(ValueError, match="must be absolute paths"):
        run_on(address(cluster), dataclasses.replace(plan, target="out"), Options(), Outcome(plan))


def test_a_scheduler_that_is_not_there_or_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_cluster, "_WORKERS", 0.5)
    plan = planned(made(tmp_path / "in"), tmp_path / "out")
    for wrong in ("tcp://127.0.0.1:1", "nonsense://127.0.0.1"):
        with monkeypatch.context() as quick, pytest.raises(ClusterError, match=f"--scheduler {wrong}: cannot be"):
            quick.setattr(on_cluster, "_REACH", 0.5)
            run_on(wrong, plan, Options(), Outcome(plan))
    with distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty:
        with pytest.raises(ClusterError, match="has no workers"):
            run_on(empty.scheduler_address, plan, Options(), Outcome(plan))
        monkeypatch.setattr(on_cluster, "_LOOK", 0.1)
        with distributed.Client(empty) as client, pytest.raises(ClusterError, match="all workers are gone"):
            list(on_cluster._completed(client, {client.submit(int, 1)}))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in"]

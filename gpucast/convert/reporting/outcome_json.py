# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion, as JSON and as a page."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gpucast.casting.loss_counts import CastReport
from gpucast.convert.losses import counts
from gpucast.convert.planning.plan import ConversionPlan, FilePlan
from gpucast.convert.planning.tensor_plan import TensorPlan
from gpucast.convert.reporting import html_page
from gpucast.convert.running.outcome import Outcome, Result
from gpucast.core.dtypes import DTYPES, DType


def summary(outcome: Outcome) -> dict[str, Any]:
    """Every tensor that was cast or left alone, in the order of the files, and the totals."""
    plan = outcome.plan
    document: dict[str, Any] = {
        "input": plan.source,
        "output": plan.target,
        "to": plan.request.choice.to.name,
        "tensors": [_tensor(plan, result) for result in outcome.results],
        "left_alone": [_left_alone(plan, file, tensor) for file, tensor in plan.left_alone],
        "total": total(outcome),
    }
    if outcome.was_written:
        document["written_by_another_run"] = True
    if outcome.waiting:
        document["waiting_for_files"] = outcome.waiting
    if outcome.verified:
        document["verified_elements"] = outcome.verified
    return document


def report(outcome: Outcome) -> dict[str, Any]:
    """The summary with the worst tensors first, the options, and the files. See docs/checkpoints.md."""
    plan, request = outcome.plan, outcome.plan.request
    options: dict[str, Any] = {
        "to": request.choice.to.name,
        "include": list(request.choice.include),
        "exclude": list(request.choice.exclude),
        "rules": [str(rule) for rule in request.choice.rules],
        "scale": request.scale,
        "style": request.style,
        **request.attributes,
        **({} if request.seed is None else {"seed": request.seed}),
    }
    document = summary(outcome) | {
        **html_page.made(),
        "options": options,
        "files": [_file(file) for file in plan.files],
    }
    document["tensors"] = [_tensor(plan, result) for result in sorted(outcome.results, key=badness)]
    return document


def badness(result: Result) -> tuple[float, float]:
    """A sort key, worst first: by the share of lost values, then by signal-to-noise ratio."""
    report, errors = result.statistics.report, result.statistics.errors
    lost = report.lost / max(1, report.elements)
    ratio = None if errors is None else errors.sqnr_db
    return -lost, float("inf") if ratio is None else ratio


def total(outcome: Outcome) -> dict[str, Any]:
    results = outcome.results
    report = sum((result.statistics.report for result in results), CastReport())
    sizes = {
        "tensors": len(results),
        "bytes_in": sum(result.plan.bytes_in for result in results),
        "bytes_out": sum(result.bytes_out for result in results),
    }
    special = {
        f"results_{name}": sum(getattr(result.statistics, name) for result in results) for name in ("nan", "infinite")
    }
    return sizes | counts.as_json(report) | special


def _tensor(plan: ConversionPlan, result: Result) -> dict[str, Any]:
    entry = _entry(plan, result.file, result.plan)
    return entry | {"bytes_out": result.bytes_out} | result.statistics.as_json()


def _entry(plan: ConversionPlan, file: FilePlan, tensor: TensorPlan) -> dict[str, Any]:
    """A tensor as it is planned."""
    return {
        "name": tensor.name,
        **({} if plan.single else {"file": file.name}),
        "from": tensor.kind,
        "to": None if tensor.dtype is None else tensor.dtype.name,
        "shape": tensor.shape,
        "bytes_in": tensor.bytes_in,
        "bytes_out": tensor.bytes_out,
        **({"lossless": True} if tensor.lossless else {}),
        **({"why": tensor.why} if tensor.why else {}),
    }


def _left_alone(plan: ConversionPlan, file: FilePlan, tensor: TensorPlan) -> dict[str, Any]:
    known = _entry(plan, file, tensor)
    others = {key: known[key] for key in ("file", "shape", "why") if key in known}
    return {"name": tensor.name, "dtype": tensor.kind, "bytes": tensor.bytes_in} | others


def _file(file: FilePlan) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": file.name, "bytes_in": file.bytes_in}
    if file.tensors is None:
        return entry | {"copied": True}
    cast = sum(tensor.dtype is not None for tensor in file.tensors)
    return entry | {"tensors": len(file.tensors), "cast": cast}


def planned(plan: ConversionPlan) -> dict[str, Any]:
    """The plan of a conversion as JSON. `bytes_out` is null for text, whose size is not known in advance."""
    tensors = [(file, tensor) for file in plan.files for tensor in file.tensors or ()]
    copied = sum(file.bytes_in for file in plan.files if file.tensors is None)
    sizes = [tensor.bytes_out for _, tensor in tensors]
    return {
        "input": plan.source,
        "output": plan.target,
        "tensors": [_entry(plan, file, tensor) for file, tensor in tensors],
        "files": [_file(file) for file in plan.files],
        "total": {
            "tensors": len(plan.converted),
            "bytes_in": copied + sum(tensor.bytes_in for _, tensor in tensors),
            "bytes_out": None if None in sizes else copied + sum(size for size in sizes if size is not None),
        },
    }


def page(report: Mapping[str, Any]) -> str:
    """The page for the result of `gpucast.convert.reporting.outcome_json.report`."""
    shown = {key: report[key][: html_page.MOST] for key in ("tensors", "left_alone")}
    data = {
        "report": {**report, **shown},
        "limits": {row.name: _limits(row) for row in DTYPES},
        "loss": counts.LIMIT,
        "types": list(dict.fromkeys(tensor["to"] for tensor in report["tensors"])),
        "kept_bytes": sum(tensor["bytes"] for tensor in report["left_alone"]),
        **{key: len(report[key]) for key in shown},
    }
    return html_page.page("Report of a conversion", "conversion.js", data)


def _limits(row: DType) -> list[int]:
    """The exponents of the smallest and largest magnitude of a floating type; empty for other types."""
    if not row.is_float or row.family == "string":
        return []
    smallest = min(row.value(code) for code in (1, 0) if row.value(code) > 0)
    return [math.frexp(float(smallest))[1] - 1, math.frexp(float(row.max))[1]]

# SPDX-License-Identifier: Apache-2.0
"""The text that `gpucast convert` prints: the plan (--dry-run) and the result."""

from __future__ import annotations

import dataclasses

from gpucast.casting.loss_counts import CastReport
from gpucast.cli.dtypes import columns, counted
from gpucast.convert import ConversionPlan, Outcome
from gpucast.convert.losses import counts
from gpucast.convert.reporting import outcome_json
from gpucast.convert.running.outcome import Result
from gpucast.convert.scales import scale_styles, scaling
from gpucast.core.errors import printable

#: At most this many names of tensors are printed for each reason.
_NAMED = 5
#: Sizes up to this many bytes are shown exactly.
_EXACT = 10_000


def outcome_text(outcome: Outcome, has_share: bool) -> str:
    plan, results = outcome.plan, outcome.results
    if outcome.was_written:
        verified = f"; {_verified(outcome)}" if outcome.verified else "; its bytes were not read: --verify does that"
        return f"{plan.target}: was written by another run of the same conversion{verified}"
    if not has_share and outcome.waiting:
        return f"{plan.target}: this share has nothing to do; others have {counted(outcome.waiting, 'file')}"
    lines = _not_cast(plan)
    scale = plan.request.scale
    if scale not in (None, "none") and all(len(tensor.names) == 1 for _, tensor in plan.converted):
        lines.append(f"--scale {scale} scaled nothing: it is for floating values that go to 8 bits or fewer")
    of_own = [
        repr(result.plan.name)
        for result in results
        if len(result.plan.names) > 1 and not result.plan.lossless and result.plan.dtype is not None
        if scaling.is_of_own_rule(plan.request, result.plan.kind, result.plan.dtype)
    ]
    if of_own:
        writer = scale_styles.STYLES[plan.request.style].writer
        lines.append(f"by gpucast's own rule, since no recipe has the codes and scales of {writer}: {_some(of_own)}")
    if kept := sum(result.plan.lossless for result in results):
        lines.append(f"lossless: {counted(kept, 'tensor')} with every value kept and compared")
    if outcome.resumed:
        lines.append(f"{outcome.resumed:,} bytes had been finished before")
    if outcome.verified:
        lines.append(_verified(outcome))
    lost = sum((result.statistics.report for result in results), CastReport())
    bytes_in, bytes_out = sum(r.plan.bytes_in for r in results), sum(r.bytes_out for r in results)
    types = dict.fromkeys(result.plan.dtype.name for result in results if result.plan.dtype is not None)
    files = "" if plan.single else f" of {counted(len({result.file.name for result in results}), 'file')}"
    same = sum(result.plan.kind == getattr(result.plan.dtype, "name", "") for result in results)
    if same:
        lines.append(f"of that type before, and as they were: {counted(same, 'tensor')}")
    lines.append(
        f"{plan.target}: {counted(len(results) - same, 'tensor')}{files} cast to {', '.join(types) or 'nothing'}, "
        f"{lost.elements:,} elements, {_sizes(bytes_in, bytes_out)}{_quality(results)}"
    )
    if outcome.waiting:
        lines.append(f"not written yet: other shares have {counted(outcome.waiting, 'file')} to finish")
    return "\n".join(lines)


def _not_cast(plan: ConversionPlan) -> list[str]:
    """What is left alone, dropped, copied or left out, and why."""
    lines = []
    by_reason: dict[str, list[str]] = {}
    for _, tensor in plan.left_alone:
        by_reason.setdefault(_shown(tensor.why), []).append(f"{tensor.name!r} ({_shown(tensor.kind)})")
    for reason, names in by_reason.items():
        why = f" ({reason})" if reason else ""
        lines.append(f"left alone{why}: {_some(names)}")
    beside: dict[str, list[str]] = {}
    for file in plan.files:
        for part in file.sources:
            for name, what in part.scales.dropped.items():
                beside.setdefault(what, []).append(repr(name))
    beside.pop("", None)
    for what, names in beside.items():
        lines.append(f"dropped, {what}: {_shown(_some(names))}")
    copied = sum(file.tensors is None for file in plan.files)
    if copied:
        lines.append(f"copied as they are: {counted(copied, 'file')}")
    if plan.dropped:
        why = "files say different things" if any(file.parts for file in plan.files) else "the format of OUT has none"
        lines.append(f"metadata not kept, since {why}: {', '.join(map(repr, plan.dropped))}")
    if plan.left_out:
        lines.append(f"not in the one file that was written: {_some(list(map(_shown, plan.left_out)))}")
    return lines


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _quality(results: list[Result]) -> str:
    """The signal to noise ratio of the worst tensor, and what is no number or out of range."""
    ratios = [
        (ratio, result.plan.name)
        for result in results
        if (errors := result.statistics.errors) is not None and (ratio := errors.sqnr_db) is not None
    ]
    reports = [
        counts.unexpected(result.statistics.report)
        if len(result.plan.names) > 1
        else dataclasses.replace(result.statistics.report, underflowed=0)
        for result in results
    ]
    report = sum(reports, CastReport())
    said = [counts.words(report, zeros=False)]
    # Those that were such before are no losses, but they are shown.
    for name, what in (("nan", "NaN"), ("infinite", "infinite")):
        number = sum(getattr(result.statistics, name) for result in results)
        if number != getattr(report, name):
            said.append(f"{counted(number, 'result')} {'is' if number == 1 else 'are'} {what}")
    if ratios:
        ratio, name = min(ratios)
        said.insert(0, f"SQNR {ratio:.1f} dB" + (f" at worst, of {_shown(name)!r}" if len(results) > 1 else ""))
    return "".join(f"; {text}" for text in filter(None, said)) or ("; no error" if results else "")


def _verified(outcome: Outcome) -> str:
    return f"verified: {outcome.verified:,} elements are equal to those of the exact cast, bit for bit"


def _sizes(before: int, after: int) -> str:
    if max(before, after) <= _EXACT:
        return f"{before:,} -> {after:,} bytes"
    return f"{_size(before)} -> {_size(after)}"


def _size(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def _shown(text: str) -> str:
    """A text from a file, as part of a line: in quotes where escapes take the place of characters."""
    return text if text.isprintable() else f"'{printable(text)}'"


def plan_table(plan: ConversionPlan) -> str:
    """The plan as a table with one line per tensor, and below it the reasons why some are kept."""
    lines = [("file", "tensor", "from", "to", "shape", "bytes", "becomes")]
    reasons = list(dict.fromkeys(tensor.why for _, tensor in plan.left_alone if tensor.why))
    for file in plan.files:
        if file.tensors is None:
            lines.append((file.name, "", "", "copied", "", f"{file.bytes_in:,}", f"{file.bytes_in:,}"))
        for tensor in file.tensors or ():
            note = f" ({reasons.index(tensor.why) + 1})" if tensor.why else ""
            target = f"kept{note}" if tensor.dtype is None else tensor.dtype.name + " (lossless)" * tensor.lossless
            becomes = "?" if tensor.bytes_out is None else f"{tensor.bytes_out:,}"
            shape = "x".join(map(str, tensor.shape)) or "scalar"
            lines.append((file.name, tensor.name, tensor.kind, target, shape, f"{tensor.bytes_in:,}", becomes))
    sizes = outcome_json.planned(plan)["total"]
    becomes = "?" if sizes["bytes_out"] is None else f"{sizes['bytes_out']:,}"
    lines.append(
        ("total", counted(sizes["tensors"], "tensor") + " cast", "", "", "", f"{sizes['bytes_in']:,}", becomes)
    )
    # The name of a single file says nothing new.
    shown = [list(map(_shown, line[1:] if plan.single else line)) for line in lines]
    if plan.single:
        shown[-1][0] = f"total: {shown[-1][0]}"
    notes = (f"({number}) {_shown(reason)}" for number, reason in enumerate(reasons, 1))
    return "\n".join([columns(shown, numbers=2), *notes])

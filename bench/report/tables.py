# SPDX-License-Identifier: Apache-2.0
"""The results of a GPU as Markdown: speeds compared with the ceilings and the rivals, including where we lose."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from bench.cases.buffers import CONTIGUOUS
from bench.cases.contenders import OURS
from bench.cases.pairs import COMMON, Measurement
from bench.gpu import plan as gpu_plan
from bench.report.figures import PACKED, WHOLE, Group, geometric_mean, groups, rivals, speed_ups
from bench.report.results import Results
from bench.timing.times import verdict
from gpucast.core.dtypes import dtype

#: The goals for layouts, as a share of the contiguous speed.
LAYOUT_GOALS = {"source off by one": 0.95, "destination off by one": 0.95, "both off by one": 0.95, "transposed": 0.80}


def markdown(results: Results) -> str:
    """Everything, for a file of its own."""
    parts = [
        f"# gpucast on {results.label}",
        _facts(results),
        "## Ceilings",
        ceiling_table(results),
        "## Common pairs",
        common_table(results),
        "## All pairs",
        "\n".join(f"- {line}" for line in [*pair_lines(results), *rival_lines(results)]),
        "## Sizes",
        size_table(results),
        "## Layouts",
        layout_table(results),
        "## Calls",
        call_table(results),
        "## First calls",
        first_call_table(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(results: Results) -> str:
    shown = {name: value for name, value in results.facts.items() if name not in ("name", "packages", "contenders")}
    shown |= results.facts.get("packages", {})
    states = [state for state in results.lines["state"] if "sm_mhz" in state]
    if states:
        clocks = [state["sm_mhz"] for state in states]
        shown["SM clock while measuring, MHz"] = f"{min(clocks):g} to {max(clocks):g}"
    return ", ".join(f"{name} {value}" for name, value in shown.items())


def common_table(results: Results) -> str:
    """Common pairs of large arrays: speeds, shares of the ceilings, and the best rival."""
    by_name = {group.name: group for group in groups(results, gpu_plan.LARGE)}
    chosen = [by_name[name] for src, dst in COMMON if (name := f"{src} to {dst}") in by_name]
    if not chosen:
        return ""
    peak = results.facts.get("peak_bytes_per_second") or 0.0
    lines = [
        f"{gpu_plan.LARGE:,} elements; GB/s of bytes read and written; medians. A speed-up in brackets is no claim:",
        "the 5th to 95th percentiles overlap. Differ: results unlike the reference's, of those compared.",
        "",
        "| From | To | us | GB/s | of memcpy | of copy kernel | of peak | Best rival | GB/s | Speed-up | Differ |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for group in chosen:
        ours = group.ours
        assert ours.times is not None
        cells = [ours.src, ours.dst, f"{ours.times.median * 1e6:,.1f}", f"{ours.speed / 1e9:,.0f}"]
        cells += [_share(ours.speed, ceiling) for ceiling in (group.memcpy, group.copy_kernel, peak)]
        best = next(iter(group.rivals()), None)
        if best is not None:
            cells += [best.contender + (" *" if best.wrong else ""), f"{best.speed / 1e9:,.0f}", _speed_up(ours, best)]
        else:
            cells += ["none has it", "", ""]
        cells.append(f"{ours.wrong:,} of {ours.checked:,}")
        lines.append(f"| {' | '.join(cells)} |")
    if any(measurement.wrong for group in chosen for measurement in group.rivals()[:1]):
        lines += ["", "\\* its results differ from the reference's for some inputs: out of range, NaN or subnormal."]
    return "\n".join(lines)


def _share(speed: float, ceiling: float) -> str:
    return f"{speed / ceiling:.0%}" if ceiling else "-"


def _speed_up(ours: Measurement, theirs: Measurement) -> str:
    assert ours.times is not None and theirs.times is not None
    ratio = f"{theirs.times.median / ours.times.median:.2f}"
    return f"({ratio})" if verdict(ours.times, theirs.times) == "same" else ratio


def ceiling_table(results: Results) -> str:
    sizes = sorted({one.bytes for one in results.ceilings})
    if not sizes:
        return ""
    names = list(dict.fromkeys(one.name for one in results.ceilings))
    speed = {(one.name, one.bytes): one.speed for one in results.ceilings}
    lines = [
        "| GB/s | " + " | ".join(f"{size / 2**20:g} MiB" for size in sizes) + " |",
        "| --- |" + " --- |" * len(sizes),
    ]
    for name in names:
        cells = (f"{speed[name, size] / 1e9:,.0f}" if (name, size) in speed else "-" for size in sizes)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def pair_lines(results: Results) -> list[str]:
    """How many pairs reach the goals, which do not, and how many results differ."""
    found = groups(results, gpu_plan.LARGE)
    lines = []
    for what, goal in (("types of whole bytes", WHOLE), ("packed types", PACKED)):
        chosen = [group for group in found if group.goal == goal and group.share]
        if not chosen:
            continue
        short = sorted((group for group in chosen if group.share < goal), key=lambda group: group.share)
        shares = [group.share for group in chosen]
        line = (
            f"pairs of {what} at {goal:.0%} or more of the copy kernel: {len(chosen) - len(short)} of {len(chosen)} "
            f"(median {statistics.median(shares):.0%}, lowest {min(shares):.0%})"
        )
        if short:
            line += ": short are " + ", ".join(f"{group.name} {group.share:.0%}" for group in short[:12])
            line += f" and {len(short) - 12} more" if len(short) > 12 else ""
        lines.append(line)
    ours = [measurement for measurement in results.rows if measurement.is_ours]
    wrong, checked = sum(measurement.wrong for measurement in ours), sum(measurement.checked for measurement in ours)
    lines.append(f"results that differ from the reference: {wrong:,} of {checked:,}")
    lines += [
        f"not measured: {measurement.src} to {measurement.dst}, {measurement.n:,} elements: {measurement.problem}"
        for measurement in ours
        if measurement.problem
    ]
    return lines


def rival_lines(results: Results) -> list[str]:
    """For each rival: the geometric mean of the speed-ups of large arrays, and the verdicts beyond 2^16 elements."""
    large, all_sizes = groups(results, gpu_plan.LARGE), groups(results)
    lines = _narrow_line(large)
    for name in rivals(results):
        mean = geometric_mean(large, name)
        if mean is None:
            continue
        words = [
            (verdict(group.ours.times, theirs.times), group, theirs)
            for group in all_sizes
            if group.ours.n > 1 << 16
            and (theirs := group.rows.get(name)) is not None
            and group.ours.times
            and theirs.times
        ]
        # Less than 3 % is within what one and the same GPU varies by.
        slower = [
            f"{group.name} at {group.ours.n:,} ({theirs.speed / group.ours.speed:.2f} x)"
            for word, group, theirs in words
            if word == "slower" and theirs.speed > 1.03 * group.ours.speed
        ]
        faster = sum(word == "faster" for word, _, _ in words)
        line = f"{mean:.2f} x {name} over its pairs (geometric mean); faster in {faster} of {len(words)} measurements"
        lines.append(line + f", slower in {len(slower)}" + (f": {', '.join(slower[:12])}" if slower else ""))
    return lines


def _narrow_line(large: Sequence[Group]) -> list[str]:
    """The pairs of one byte to one byte, in which a scalar loop is slowest."""
    narrow = [group for group in large if dtype(group.ours.src).bits == dtype(group.ours.dst).bits == 8]
    ratios = {group.name: ratio for group, ratio in speed_ups(narrow, "CuPy copyto")}
    if not ratios:
        return []
    worst = min(ratios, key=lambda pair: ratios[pair])
    return [f"one byte to one byte: {ratios[worst]:.2f} ({worst}) to {max(ratios.values()):.2f} x CuPy copyto"]


def size_table(results: Results) -> str:
    """Our speed and the rivals' by size: medians over the common pairs."""
    common = {f"{src} to {dst}" for src, dst in COMMON}
    lines: list[str] = []
    for via in ("calls", "graph"):
        by_size: dict[int, list[Group]] = {}
        for group in groups(results, via=via):
            if group.name in common:
                by_size.setdefault(group.ours.n, []).append(group)
        if not by_size:
            continue
        measured = {name for of_size in by_size.values() for group in of_size for name in group.rows}
        names = [OURS, *(name for name in rivals(results) if name in measured)]
        what = "one call after the other" if via == "calls" else "as nodes of a CUDA graph"
        lines += [
            *([""] if lines else []),
            f"GB/s, {what}: medians over the common pairs that a contender has.",
            "",
            f"| Elements | In the cache | {' | '.join(names)} |",
            "| --- |" + " --- |" * (1 + len(names)),
        ]
        for n, of_size in sorted(by_size.items()):
            cold = sum(group.ours.cold for group in of_size)
            cached = (
                "no" if cold == len(of_size) else "yes" if cold == 0 else f"{len(of_size) - cold} of {len(of_size)}"
            )
            lines.append(f"| {n:,} | {cached} | " + " | ".join(_median_speed(of_size, name) for name in names) + " |")
    return "\n".join(lines)


def _median_speed(found: Iterable[Group], name: str) -> str:
    speeds = [
        measurement.speed for group in found if (measurement := group.rows.get(name)) is not None and measurement.times
    ]
    return f"{statistics.median(speeds) / 1e9:,.4g}" if speeds else "-"


def layout_table(results: Results) -> str:
    """The cost of layouts: our speed divided by that for contiguous arrays, for the common pairs."""
    usual = {group.name: group.ours.speed for group in groups(results, gpu_plan.LAYOUT_SIZE)}
    names = [
        name for name in dict.fromkeys(measurement.layout for measurement in results.rows) if name != CONTIGUOUS.name
    ]
    lines = []
    for name in names:
        ratios = {
            group.name: group.ours.speed / usual[group.name]
            for group in groups(results, gpu_plan.LAYOUT_SIZE, name)
            if group.name in usual
        }
        if ratios:
            worst = min(ratios, key=lambda pair: ratios[pair])
            goal = f"{LAYOUT_GOALS[name]:.0%}" if name in LAYOUT_GOALS else "-"
            median = statistics.median(ratios.values())
            lines.append(f"| {name} | {median:.0%} | {ratios[worst]:.0%} ({worst}) | {goal} |")
    if not lines:
        return ""
    head = [f"{gpu_plan.LAYOUT_SIZE:,} elements; our speed over that of contiguous arrays.", ""]
    head += ["| Layout | Median | Lowest | Goal |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *lines])


def call_table(results: Results) -> str:
    """Microseconds of a call by contender, one column for each pair and size."""
    columns = list(dict.fromkeys((line["src"], line["dst"], line["n"]) for line in results.lines["latency"]))
    if not columns:
        return ""
    cells = {(line["contender"], line["src"], line["dst"], line["n"]): line for line in results.lines["latency"]}
    names = list(dict.fromkeys(line["contender"] for line in results.lines["latency"]))
    lines = [
        "Microseconds of one call, without a wait (5th to 95th percentile of rows of 1000; 99th of single calls).",
        "",
        "| Call | " + " | ".join(f"{src} to {dst}, n = {n:,}" for src, dst, n in columns) + " |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name in names:
        texts = []
        for column in columns:
            line = cells.get((name, *column))
            if line is None:
                texts.append("-")
                continue
            times = line["times"]
            low, middle, high = (times[field] * 1e6 for field in ("p5", "median", "p95"))
            texts.append(f"{middle:.2f} ({low:.2f} to {high:.2f}; {line['p99'] * 1e6:.1f})")
        lines.append(f"| {name} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def first_call_table(results: Results) -> str:
    """Milliseconds of the first casts of a process."""
    if not results.lines["first call"]:
        return ""
    names = [name for name in results.lines["first call"][0] if name not in ("cache", "problem")]
    lines = [
        "Milliseconds in a process of its own, once the CUDA context is made.",
        "",
        f"| Cache | {' | '.join(names)} |",
        "| --- |" + " --- |" * len(names),
    ]
    for line in results.lines["first call"]:
        cells = [f"{line[name] * 1e3:,.3g}" if name in line else line.get("problem", "-") for name in names]
        lines.append(f"| {line['cache']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)

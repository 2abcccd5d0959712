# SPDX-License-Identifier: Apache-2.0
"""The report of a conversion as one HTML page that needs no network and no scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from html import escape
from typing import Any

from gpucast.checkpoints.losses import limits as loss
from gpucast.checkpoints.reporting import cells, plots
from gpucast.checkpoints.reporting.style import STYLE
from gpucast.core.dtypes import DType, dtype

#: Tensors per foldable part of the table, and histograms per foldable part; the first part is open.
_ROWS, _CARDS = 100, 48
#: Tensors that a page shows at most: browsers cannot cope with the hundred thousand of a large model.
_MOST = 2000

_LOSSES = {
    "saturated": "Saturated",
    "wrapped": "Wrapped",
    "infinite": "Infinite",
    "underflowed": "Underflowed",
    "nan": "NaN",
    "nan_lost": "NaN lost",
}
#: Columns that are left out if they are all zero.
_RARE = ("wrapped", "infinite", "nan_lost")


def page(report: Mapping[str, Any]) -> str:
    """The page for the result of `gpucast.checkpoints.reporting.summary.report`."""
    count = len(report["tensors"])
    tensors = [_clean(tensor) for tensor in report["tensors"][:_MOST]]
    title = cells.text(f"{report['output']}: {cells.count(count, 'tensor')} cast")
    parts = [
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>",
        '<meta name=viewport content="width=device-width, initial-scale=1">',
        # Nothing is loaded and no script runs, whatever the names in a file may say.
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title><style>{STYLE}</style></head><body>",
        f"<header><h1>{cells.text(report['output'])}</h1>",
        f"<p>{cells.text('from {input}, by gpucast {gpucast}, {created}'.format_map(report))}</p>",
        f"<p>Shown are the {_MOST:,} worst tensors of {count:,}; a report in JSON has all.</p>" * (count > _MOST),
        "</header>",
        _summary(report),
        _plot(tensors),
        _table(tensors),
        _histograms(tensors, scaled=report["options"].get("scale") not in (None, "none")),
        _left_alone(report["left_alone"]),
        _options(report),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _clean(tensor: Mapping[str, Any]) -> dict[str, Any]:
    """A tensor with displayable names and all the keys that the page needs."""
    clean = {"file": "", "sqnr_db": None, "max_absolute_error": None, **tensor}
    clean["name"], clean["file"] = cells.visible(clean["name"]), cells.visible(clean["file"])
    lost = sum(tensor.get(key, 0) for key in _LOSSES)
    clean["lost"] = lost > loss.LIMIT * tensor.get("nonzero", 0)
    return clean


# ---- sections ----


def _summary(report: Mapping[str, Any]) -> str:
    total, tensors = report["total"], report["tensors"]
    before, after = total["bytes_in"], total["bytes_out"]
    lost = sum(total.get(key, 0) for key in _LOSSES)
    elements = total.get("elements", 0)
    tiles = [
        (f"{len(tensors):,}", cells.plural(len(tensors), "tensor") + " cast to " + _types(tensors)),
        (f"{cells.size(before)} → {cells.size(after)}", f"{cells.share(after, before)} of the size"),
        (f"{lost:,}", f"of {elements:,} values lost ({cells.share(lost, elements)})"),
    ]
    tiles += [(f"{total[key]:,}", cells.text(label.lower())) for key, label in _LOSSES.items() if total.get(key)]
    kept = report["left_alone"]
    if kept:
        size = sum(tensor["bytes"] for tensor in kept)
        tiles.append((f"{len(kept):,}", f"{cells.plural(len(kept), 'tensor')} left alone ({cells.size(size)})"))
    if report.get("verified_elements"):
        tiles.append((f"{report['verified_elements']:,}", "elements read again and found right"))
    if len(report["files"]) > 1:
        tiles.append((f"{len(report['files']):,}", "files"))
    shown = "".join(f"<div><dd>{number}</dd><dt>{label}</dt></div>" for number, label in tiles)
    return f"<dl class=tiles>{shown}</dl>"


def _plot(tensors: Sequence[Mapping[str, Any]]) -> str:
    plot = plots.ratios(sorted(tensors, key=lambda tensor: _natural(tensor["file"] + "/" + tensor["name"])))
    if not plot:
        return ""
    return (
        "<section><h2>Signal to noise</h2><p>The power of a tensor's values over that of its rounding errors: 6 dB are "
        "one bit. <span class=key><i class=dot></i>values kept <i class='dot lost'></i>over "
        f"{cells.share(1, round(1 / loss.LIMIT))} of the values lost</span></p>"
        f"<div class=wide>{plot}</div></section>"
    )


def _table(tensors: Sequence[Mapping[str, Any]]) -> str:
    if not tensors:
        return ""
    losses = {
        key: label for key, label in _LOSSES.items() if key not in _RARE or any(tensor.get(key) for tensor in tensors)
    }
    labels = ["Tensor", "Type", "Shape", "Bytes", *losses.values(), "Largest error", "Mean error", "SNR"]
    parts = [
        f"<tr><td>{_name(tensor, place)}</td><td>{cells.text(tensor['from'])} → {cells.text(tensor['to'])}</td>"
        f"<td>{cells.shape(tensor['shape'])}</td>"
        f"<td title='{tensor['bytes_in']:,} → {tensor['bytes_out']:,}'>"
        f"{cells.size(tensor['bytes_in'])} → {cells.size(tensor['bytes_out'])}</td>"
        + "".join(_counted(tensor, key, label) for key, label in losses.items())
        + f"<td data-l='Largest error'>{_error(tensor, 'max_relative_error')}</td>"
        f"<td data-l='Mean error'>{_error(tensor, 'mean_relative_error')}</td>"
        f"<td data-l=SNR>{_ratio(tensor)}</td></tr>"
        for place, tensor in enumerate(tensors)
    ]
    groups = _folded(parts, _ROWS, f"<div class=wide><table>{_head(labels)}<tbody>", "</tbody></table></div>")
    return (
        "<section><h2>Tensors, the worst first</h2><p>First by the share of values lost, then by signal to noise. "
        f"Errors are relative to the value before.{_sampled(tensors)}</p>{groups}</section>"
    )


def _sampled(tensors: Sequence[Mapping[str, Any]]) -> str:
    """That errors are those of a sample, where they are."""
    sampled = [tensor for tensor in tensors if tensor.get("examined", tensor["elements"]) < tensor["elements"]]
    if not sampled:
        return ""
    seen, elements = (sum(tensor[key] for tensor in sampled) for key in ("examined", "elements"))
    return (
        " Counts are of all values; errors, signal to noise and histograms of "
        f"{cells.count(len(sampled), 'large tensor')} are those of a sample, {cells.share(seen, elements)} of their "
        "values."
    )


def _histograms(tensors: Sequence[Mapping[str, Any]], scaled: bool) -> str:
    parts = []
    for place, tensor in enumerate(tensors):
        magnitudes = tensor.get("log2_magnitudes")
        if magnitudes is None:
            continue
        before, after = magnitudes["before"], magnitudes["after"]
        specials = [
            f"{label} {before[key]:,} → {after[key]:,}"
            for key, label in (("zero", "zero"), ("inf", "infinite"), ("nan", "NaN"))
            if before[key] or after[key]
        ]
        # Values of scaled tensors are shown with their scales applied, so the range of the type means nothing there.
        plot = plots.histogram(before, after, None if scaled else _known_dtype(tensor["to"]))
        parts.append(
            f"<figure id=h{place}><figcaption>{cells.breakable(tensor['name'])} {cells.small(cells.text(tensor['to']))}"
            f"</figcaption>{plot}<small>{'; '.join(specials)}&nbsp;</small></figure>"
        )
    if not parts:
        return ""
    groups = _folded(parts, _CARDS, "<div class=cards>", "</div>")
    return (
        "<section><h2>Magnitudes before and after</h2><p>How many values lie between each power of two and the next, "
        "on a logarithmic scale. <span class=key><i class=before></i>before <i class=after></i>after "
        f"<i class=bound></i>limits of the type</span></p>{groups}</section>"
    )


def _left_alone(kept: Sequence[Mapping[str, Any]]) -> str:
    if not kept:
        return ""
    rows = "".join(
        f"<tr><td>{cells.breakable(cells.visible(tensor['name']))}"
        f"{cells.small(cells.text(tensor.get('file', '')))}{cells.small(cells.text(tensor.get('why', '')))}</td>"
        f"<td>{cells.text(tensor['dtype'])}</td><td>{cells.shape(tensor['shape'])}</td>"
        f"<td>{cells.size(tensor['bytes'])}</td></tr>"
        for tensor in kept[:_MOST]
    )
    first = f", the first {_MOST:,}" * (len(kept) > _MOST)
    return (
        f"<section><h2>Left alone</h2><details><summary>{cells.count(len(kept), 'tensor')}{first}</summary>"
        f"<div class=wide><table>{_head(['Tensor', 'Type', 'Shape', 'Bytes'])}<tbody>{rows}</tbody></table></div>"
        "</details></section>"
    )


def _options(report: Mapping[str, Any]) -> str:
    given = {key: value for key, value in report["options"].items() if value not in (None, [], "")}
    given = {key: ", ".join(value) if isinstance(value, list) else value for key, value in given.items()}
    rows = "".join(f"<tr><td>{cells.text(key)}</td><td>{cells.text(value)}</td></tr>" for key, value in given.items())
    return f"<section><h2>Asked for</h2><table class=options><tbody>{rows}</tbody></table></section>"


def _head(labels: Iterable[str]) -> str:
    return f"<thead><tr>{''.join(f'<th scope=col>{label}</th>' for label in labels)}</tr></thead>"


def _folded(parts: Sequence[str], size: int, before: str, after: str) -> str:
    """The parts in foldable groups; only the first is open."""
    groups = []
    for start in range(0, len(parts), size):
        group = before + "".join(parts[start : start + size]) + after
        if len(parts) > size:
            last = min(start + size, len(parts))
            is_open = " open" if start == 0 else ""
            label = f"{start + 1:,} to {last:,}" if last > start + 1 else f"{last:,}"
            group = f"<details{is_open}><summary>{label} of {len(parts):,}</summary>{group}</details>"
        groups.append(group)
    return "\n".join(groups)


# ---- cells ----


def _name(tensor: Mapping[str, Any], place: int) -> str:
    name = cells.breakable(tensor["name"])
    if tensor.get("log2_magnitudes") is not None:
        name = f"<a href=#h{place}>{name}</a>"
    return name + cells.small(escape(tensor["file"]))


def _counted(tensor: Mapping[str, Any], key: str, label: str) -> str:
    count = tensor.get(key, 0)
    if not count:
        return "<td class=zero>0</td>"
    kind = " class=bad" if tensor["lost"] else ""
    return f"<td{kind} data-l='{label}'>{count:,} <small>{cells.share(count, tensor['elements'])}</small></td>"


def _error(tensor: Mapping[str, Any], key: str) -> str:
    if key not in tensor:
        return "–"
    # Infinite errors are null in JSON.
    return "∞" if tensor[key] is None else f"{tensor[key]:.3g}"


def _ratio(tensor: Mapping[str, Any]) -> str:
    if tensor["sqnr_db"] is not None:
        return f"{tensor['sqnr_db']:.1f} dB"
    return "exact" if tensor["max_absolute_error"] == 0 else "–"


def _types(tensors: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(cells.text(name) for name in dict.fromkeys(tensor["to"] for tensor in tensors)) or "nothing"


def _known_dtype(name: str) -> DType | None:
    try:
        return dtype(name)
    except TypeError:
        return None


def _natural(name: str) -> list[tuple[int, Any]]:
    """A sort key that compares numbers within names by value, of any length: `int` refuses more than 4,300 digits."""
    return [(0, Decimal(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part]

# SPDX-License-Identifier: Apache-2.0
"""The style sheet of the report page: light and dark, for wide and narrow screens."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --text: #1c2430; --soft: #5b6675; --line: #d9dee5; --back: #fff; --panel: #f5f7f9;
  --old: #b9c3cf; --new: #0b6bcb; --bad: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --text: #e4e8ee; --soft: #9aa6b5; --line: #333c48; --back: #14181d;
  --panel: #1d232a; --old: #4b5766; --new: #5aaeff; --bad: #ff9058; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem; max-width: 84rem; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.4rem; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2rem 0 .25rem; }
header p, section > p { color: var(--soft); margin: .25rem 0 .75rem; overflow-wrap: anywhere; }
small { color: var(--soft); font-size: .85em; }
a { color: inherit; text-decoration-color: var(--old); }
bdi { overflow-wrap: break-word; }
figcaption bdi { overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(13rem, 1fr)); gap: .75rem; margin: 1.25rem 0; }
.tiles div { display: flex; flex-direction: column; padding: .7rem .9rem; background: var(--panel);
  border-radius: .5rem; }
.tiles dd { margin: 0; font-size: 1.25rem; font-variant-numeric: tabular-nums; }
.tiles dt { color: var(--soft); overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
  white-space: nowrap; }
th { font-weight: 600; color: var(--soft); }
th:first-child, td:first-child { text-align: left; white-space: normal; min-width: 14rem; }
th:nth-child(2), td:nth-child(2), .options td { text-align: left; white-space: normal; }
td:first-child small { display: block; overflow-wrap: anywhere; }
.options { width: auto; }
.options td:first-child { min-width: 7rem; color: var(--soft); }
.zero { color: var(--old); }
.bad { color: var(--bad); }
details { margin: .4rem 0; }
summary { cursor: pointer; color: var(--soft); padding: .3rem 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: 1.1rem 1.25rem; }
figure { margin: 0; min-width: 0; }
figure:target { outline: 2px solid var(--new); outline-offset: .4rem; }
figcaption { line-height: 1.25; margin-bottom: .3rem; }
.none { color: var(--soft); }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; }
svg .power { font-size: 8px; }
svg .middle { text-anchor: middle; }
svg .end { text-anchor: end; }
.ratios { min-width: 40rem; }
.ratios text { font-size: 12px; }
path.before { fill: var(--old); }
path.after { fill: none; stroke: var(--new); stroke-width: 1.5; }
path.bound { fill: none; stroke: var(--bad); stroke-dasharray: 3 3; }
path.axis, path.grid { fill: none; stroke: var(--line); }
circle.dot { fill: var(--new); fill-opacity: .75; }
circle.lost { fill: var(--bad); }
.key { white-space: nowrap; }
.key i { display: inline-block; width: .8em; height: .8em; margin: 0 .3em 0 .8em; vertical-align: -.05em; }
.key .before { background: var(--old); }
.key .after { border-top: 2px solid var(--new); height: .3em; vertical-align: 0; }
.key .bound { border-left: 2px dashed var(--bad); width: 0; }
.key .dot { border-radius: 50%; background: var(--new); }
.key .dot.lost { background: var(--bad); }
@media (max-width: 40rem) {
  body { padding: 1rem; }
  .tiles { grid-template-columns: 1fr 1fr; }
  .tiles dd { font-size: 1.05rem; }
  .key { display: block; white-space: normal; }
  .key i:first-child { margin-left: 0; }
  thead { display: none; }
  tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td, td:first-child { display: block; padding: 0; border: 0; text-align: left; white-space: normal; min-width: 0; }
  td + td { display: inline-block; margin-right: 1rem; }
  td[data-l]::before { content: attr(data-l) " "; color: var(--soft); }
  td + td.zero { display: none; }
}
@media print { details > * { display: block; } figure, tr { break-inside: avoid; } }
"""

// SPDX-License-Identifier: Apache-2.0
// The report as gpucast writes it in JSON; `limits` has the exponents between which a type's magnitudes lie.
// Of the worst tensors, and the first that were left alone; the numbers beside it are those of all.
const {report, limits, loss, types, kept_bytes: keptBytes, tensors: count, left_alone: keptCount} = DATA;
const LOSSES = {saturated: "Saturated", wrapped: "Wrapped", infinite: "Infinite", underflowed: "Underflowed",
  nan: "NaN", nan_lost: "NaN lost"};
// Columns that are left out if they are all zero.
const RARE = ["wrapped", "infinite", "nan_lost"];
// Histograms per foldable part.
const CARDS = 48;
const lost = counts => Object.keys(LOSSES).reduce((sum, key) => sum + (counts[key] ?? 0), 0);
const isLossy = tensor => lost(tensor) > loss * (tensor.nonzero ?? 0);
const isExact = tensor => tensor.sqnr_db == null && tensor.max_absolute_error === 0;
const ratio = tensor => tensor.sqnr_db != null ? tensor.sqnr_db.toFixed(1) + " dB" : isExact(tensor) ? "exact" : "–";

// ---- sections ----

function summary() {
  const {total, files} = report;
  const tiles = [
    [number(count), `${plural(count, "tensor")} cast to ${types.join(", ") || "nothing"}`],
    [`${size(total.bytes_in)} → ${size(total.bytes_out)}`, `${share(total.bytes_out, total.bytes_in)} of the size`],
    [number(lost(total)), `of ${number(total.elements ?? 0)} values lost (${share(lost(total), total.elements)})`],
    ...Object.entries(LOSSES).filter(([key]) => total[key]).map(
      ([key, label]) => [number(total[key]), label.toLowerCase()]),
  ];
  if (keptCount) tiles.push([number(keptCount), `${plural(keptCount, "tensor")} left alone (${size(keptBytes)})`]);
  if (report.verified_elements) tiles.push([number(report.verified_elements), "elements read again and found right"]);
  if (files.length > 1) tiles.push([number(files.length), "files"]);
  return tiled(tiles);
}

function ratios() {
  const known = report.tensors.filter(tensor => tensor.sqnr_db != null).map(tensor => tensor.sqnr_db);
  if (!known.length) return null;
  const width = 960, height = 280, left = 56, top = 30;
  const low = Math.floor(Math.min(...known) / 10) * 10;
  const high = Math.max(Math.ceil(Math.max(...known) / 10) * 10, low + 10);
  const step = [10, 20, 50, 100, 200, 500, 1000, 10000].find(step => (high - low) / step <= 7);
  const y = value => height - 26 - (value - low) * (height - top - 26) / (high - low);
  const line = (at, label) => [svg("path", {class: "grid", d: `M${left} ${at}H${width}`}),
    svg("text", {class: "end", x: left - 8, y: at + 4}, label)];
  const parts = [];
  for (let value = low; value <= high; value += step) parts.push(line(short(y(value)), `${value} dB`));
  if (report.tensors.some(isExact)) parts.push(line(10, "exact"));
  const order = new Intl.Collator("en", {numeric: true}), path = tensor => `${tensor.file ?? ""}/${tensor.name}`;
  const named = [...report.tensors].sort((one, other) => order.compare(path(one), path(other)));
  // Tensors with losses are drawn last, so that other dots do not hide them.
  const dots = named.map((tensor, place) => [tensor, place]).filter(([tensor]) => ratio(tensor) !== "–");
  for (const [tensor, place] of [...dots.filter(([one]) => !isLossy(one)), ...dots.filter(([one]) => isLossy(one))])
    parts.push(svg("circle", {class: isLossy(tensor) ? "dot lost" : "dot", r: 3.5,
      cx: short(left + 8 + (width - left - 16) * (place + 0.5) / named.length),
      cy: isExact(tensor) ? 10 : short(y(tensor.sqnr_db))}, svg("title", {}, `${tensor.name}: ${ratio(tensor)}`)));
  parts.push(svg("text", {class: "middle", x: (width + left) / 2, y: height - 4},
    "tensors, in the order of their names"));
  const key = html("span", {class: "key"}, html("i", {class: "dot"}), "values kept ", html("i", {class: "dot lost"}),
    `over ${share(loss, 1)} of the values lost`);
  return section("Signal to noise",
    ["The power of a tensor's values over that of its rounding errors: 6 dB are one bit. ", key],
    html("div", {class: "wide"}, svg("svg", {class: "ratios", viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": "signal to noise of each tensor"}, parts)));
}
const short = value => Number(value.toFixed(1));

function tensorTable() {
  const {tensors} = report;
  if (!tensors.length) return null;
  const losses = Object.keys(LOSSES).filter(key => !RARE.includes(key) || tensors.some(tensor => tensor[key]));
  const labels = ["Tensor", "Type", "Shape", "Bytes", ...losses.map(key => LOSSES[key]), "Largest error",
    "Mean error", "SNR"];
  const rows = tensors.map((tensor, place) => row(
    cell(tensor.log2_magnitudes ? html("a", {href: `#h${place}`}, breakable(tensor.name)) : breakable(tensor.name),
      small(tensor.file)),
    cell(`${tensor.from} → ${tensor.to}`), cell(shape(tensor.shape)),
    html("td", {title: `${number(tensor.bytes_in)} → ${number(tensor.bytes_out)}`},
      `${size(tensor.bytes_in)} → ${size(tensor.bytes_out)}`),
    losses.map(key => !tensor[key] ? html("td", {class: "zero"}, "0")
      : html("td", {class: isLossy(tensor) ? "bad" : null, "data-l": LOSSES[key]}, `${number(tensor[key])} `,
        small(share(tensor[key], tensor.elements)))),
    html("td", {"data-l": "Largest error"}, error(tensor.max_relative_error)),
    html("td", {"data-l": "Mean error"}, error(tensor.mean_relative_error)),
    html("td", {"data-l": "SNR"}, ratio(tensor))));
  const sampled = tensors.filter(tensor => (tensor.examined ?? tensor.elements) < tensor.elements);
  const sum = key => sampled.reduce((sum, tensor) => sum + tensor[key], 0);
  return section("Tensors, the worst first", "First by the share of values lost, then by signal to noise. Errors are "
    + "relative to the value before." + (!sampled.length ? "" : " Counts are of all values; errors, signal to noise "
    + `and histograms of ${counted(sampled.length, "large tensor")} are those of a sample, `
    + `${share(sum("examined"), sum("elements"))} of their values.`),
    folded(rows, ROWS, some => table(labels, some)));
}

// Magnitudes before (area) and after (line) by floor(log2); the height of a bar is the logarithm of its count.
function histogram({before, after}, bounds) {
  const width = 260, height = 96, sides = [before, after].filter(side => side.counts.length);
  if (!sides.length) return html("p", {class: "none"}, "no finite values but zero");
  let low = Math.min(...sides.map(side => side.lowest));
  let high = Math.max(...sides.map(side => side.lowest + side.counts.length));
  // At least 12 exponents are shown.
  const spare = Math.max(0, 12 - (high - low));
  low -= Math.floor(spare / 2) + 1;
  high += Math.ceil(spare / 2) + 1;
  const scale = width / (high - low), top = Math.log1p(Math.max(...sides.flatMap(side => side.counts)));
  const x = exponent => short((exponent - low) * scale);
  const outline = side => !side.counts.length ? "" : `M${x(side.lowest)} ${height}` + side.counts.map((many, place) =>
    `V${short(height - Math.log1p(many) / top * (height - 6))}H${x(side.lowest + place + 1)}`).join("") + `V${height}`;
  const step = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512].find(step => (high - low) / step <= 7), powers = [];
  for (let exponent = Math.ceil(low / step) * step; exponent <= high; exponent += step)
    if (x(exponent) >= 12 && x(exponent) <= width - 12)
      powers.push(svg("text", {class: "middle", x: x(exponent), y: height + 13}, "2",
        svg("tspan", {class: "power", dy: -4}, String(exponent))));
  return svg("svg", {class: "histogram", viewBox: `0 0 ${width} ${height + 16}`, role: "img",
    "aria-label": `magnitudes from 2^${low} to 2^${high}`},
    svg("path", {class: "before", d: outline(before)}), svg("path", {class: "after", d: outline(after)}),
    bounds.filter(bound => bound >= low && bound <= high).map(
      bound => svg("path", {class: "bound", d: `M${x(bound)} 0V${height}`})),
    svg("path", {class: "axis", d: `M0 ${height}H${width}`}), powers);
}

function histograms() {
  // Values of scaled tensors are shown with their scales applied, so the range of the type means nothing there.
  const isScaled = ![null, undefined, "none"].includes(report.options.scale);
  const cards = report.tensors.flatMap((tensor, place) => {
    const sides = tensor.log2_magnitudes;
    if (!sides) return [];
    const specials = [["zero", "zero"], ["inf", "infinite"], ["nan", "NaN"]].filter(
      ([key]) => sides.before[key] || sides.after[key]).map(
      ([key, label]) => `${label} ${number(sides.before[key])} → ${number(sides.after[key])}`);
    return [html("figure", {id: `h${place}`}, html("figcaption", {}, breakable(tensor.name), " ", small(tensor.to)),
      histogram(sides, isScaled ? [] : limits[tensor.to] ?? []), html("small", {}, specials.join("; ") + NBSP))];
  });
  const key = html("span", {class: "key"}, html("i", {class: "before"}), "before ", html("i", {class: "after"}),
    "after ", html("i", {class: "bound"}), "limits of the type");
  return !cards.length ? null : section("Magnitudes before and after",
    ["How many values lie between each power of two and the next, on a logarithmic scale. ", key],
    folded(cards, CARDS, some => html("div", {class: "cards"}, some)));
}

function leftAlone() {
  const kept = report.left_alone;
  const rows = kept.map(tensor => row(cell(breakable(tensor.name), small(tensor.file), small(tensor.why)),
    cell(tensor.dtype), cell(shape(tensor.shape)), cell(size(tensor.bytes))));
  const first = keptCount > kept.length ? `, the first ${number(kept.length)}` : "";
  return !kept.length ? null : section("Left alone", null, html("details", {},
    html("summary", {}, counted(keptCount, "tensor") + first), table(["Tensor", "Type", "Shape", "Bytes"], rows)));
}

function options() {
  const given = Object.entries(report.options).filter(([, value]) => value !== null && value.length !== 0);
  return section("Asked for", null, html("table", {class: "options"}, html("tbody", {}, given.map(
    ([key, value]) => row(cell(key), cell(Array.isArray(value) ? value.join(", ") : String(value)))))));
}

document.title = `${report.output}: ${counted(count, "tensor")} cast`;
filled(document.body, {}, [
  html("header", {}, html("h1", {}, report.output),
    html("p", {}, `from ${report.input}, by gpucast ${report.gpucast}, ${report.created}`),
    count === report.tensors.length ? null : html("p", {},
      `Shown are the ${number(report.tensors.length)} worst tensors of ${number(count)}; a report in JSON has all.`)),
  summary(), ratios(), tensorTable(), histograms(), leftAlone(), options(),
]);

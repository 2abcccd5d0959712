// SPDX-License-Identifier: Apache-2.0
// What `gpucast diff --json` prints, of the worst tensors; `compared` is the number of all.
const {a, b, original, gpucast, created, tensors, compared, differ, only_in: missing, problems} = DATA;
// Rows of all tensors that are listed as the worst.
const WORST = 50;

const count = counts => !counts ? cell("–") : !counts.differ ? html("td", {class: "zero"}, "0")
  : cell(`${number(counts.differ)} `, small(share(counts.differ, counts.of)));
const ulps = ({codes, values}) => (codes ?? {}).ulps ?? values.ulps;
const recipe = found => {
  if (!found.length) return "–";
  const exact = found.filter(one => !one.codes && !one.scales).map(one => one.recipe), [best] = found;
  return exact.length ? exact.join(" or ") : [`nearest ${best.recipe} `,
    small(`${number(best.codes)} of ${number(best.of)} codes, ${number(best.scales)} scales differ`)];
};

function summary() {
  const known = tensors.flatMap(({recipes}) => [recipes.a, recipes.b]).filter(found => found.length);
  const exact = known.filter(([best]) => !best.codes && !best.scales);
  const tiles = [[number(differ), `of ${counted(compared, "tensor")} differ`]];
  if (known.length) tiles.push([number(exact.length), `of ${number(known.length)} quantized tensors have a known recipe`]);
  for (const [path, names] of Object.entries(missing)) if (names.length)
    tiles.push([number(names.length), `${plural(names.length, "tensor")} only in ${path}`]);
  if (problems.length) tiles.push([number(problems.length), "not compared"]);
  return tiled(tiles);
}

function tensorTable() {
  const labels = ["Tensor", "A and B", "Shape", "Numbers differ", "Codes", "Scales", "ULPs", "Relative error",
    "Recipe of A", "Recipe of B"];
  const rows = tensors.map(tensor => row(cell(breakable(tensor.name), small(tensor.problem)),
    cell(tensor.kinds[0] === tensor.kinds[1] ? tensor.kinds[0] : tensor.kinds.join(" → ")), cell(shape(tensor.shape)),
    count(tensor.values), count(tensor.codes), count(tensor.scales),
    cell(ulps(tensor) == null ? "–" : number(ulps(tensor))),
    tensor.problem ? cell("–") : html("td", {class: tensor.values.differ ? "bad" : "zero"}, error(tensor.relative_error)),
    cell(recipe(tensor.recipes.a)), cell(recipe(tensor.recipes.b))));
  return section("Tensors, the worst first", "Codes and scales are counted where both sides have them in one form. ULPs "
    + "are the largest distance. The relative error is that of all numbers of a tensor.",
    folded(rows, ROWS, some => table(labels, some)));
}

function worstRows() {
  const found = tensors.flatMap(({name, worst}) => worst.map(([place, value]) => ({name, place, value})))
    .filter(({value}) => value !== 0).sort((one, other) => (other.value ?? Infinity) - (one.value ?? Infinity));
  const most = Math.max(...found.map(({value}) => value ?? 0));
  const bar = value => svg("svg", {class: "bar", viewBox: "0 0 200 12", role: "img", "aria-label": error(value)},
    svg("path", {class: "bar", d: `M0 1h${Number((200 * (value === null ? 1 : value / most)).toFixed(1))}v10H0Z`}));
  const rows = found.slice(0, WORST).map(({name, place, value}) => row(cell(breakable(name)), cell(number(place)),
    cell(error(value)), cell(bar(value))));
  return !rows.length ? null : section("Worst channels",
    "The rows of the first axis with the largest relative errors, three of a tensor at most.",
    table(["Tensor", "Row", "Relative error", ""], rows));
}

function names() {
  const lists = [...Object.entries(missing).map(([path, some]) => [`Only in ${path}`, some]), ["Not compared", problems]];
  return lists.filter(([, some]) => some.length).map(([title, some]) => section(title, null, html("details", {},
    html("summary", {}, number(some.length)), some.map(name => html("p", {}, breakable(name))))));
}

document.title = `${a} and ${b}: ${number(differ)} of ${counted(compared, "tensor")} differ`;
filled(document.body, {}, [
  html("header", {}, html("h1", {}, `${a} and ${b}`),
    html("p", {}, `${original === null ? "" : `made from ${original}; `}by gpucast ${gpucast}, ${created}`),
    compared === tensors.length ? null : html("p", {},
      `Shown are the ${number(tensors.length)} worst tensors of ${number(compared)}; --json has all.`)),
  summary(), tensorTable(), worstRows(), names(),
]);

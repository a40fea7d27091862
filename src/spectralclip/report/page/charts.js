// The charts, as Vega-Lite specifications. Colours are the page's CSS variables, so that the
// charts follow the theme, and paper, without being drawn again.

const FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";
const CONFIG = {
  background: null,
  font: FONT,
  view: { stroke: null },
  mark: { aria: false },
  axis: {
    labelColor: "var(--muted)", titleColor: "var(--muted)", gridColor: "var(--line)",
    domainColor: "var(--line-strong)", tickColor: "var(--line-strong)", labelFontSize: 11,
    titleFontSize: 11, titleFontWeight: "normal", labelPadding: 4, titlePadding: 8, tickSize: 4,
  },
  axisY: { domain: false, ticks: false },
  axisX: { grid: false },
  legend: {
    orient: "top", title: null, labelColor: "var(--text)", labelFontSize: 12, symbolSize: 70,
    offset: 6, symbolStrokeWidth: 1.5,
  },
};
const MANY_CHAINS = 30; // with more, names would be too many to read

function makeCharts(embed, data, choose) {
  const views = [];

  async function draw(place, spec, kept = true) {
    const options = { actions: false, renderer: "svg", ast: false, tooltip: { theme: "custom" } };
    const full = { width: "container", autosize: { type: "fit-x", contains: "padding" }, config: CONFIG, ...spec };
    const { view } = await embed(place, full, options);
    view.addEventListener("click", (event, item) => {
      if (item?.datum?.id !== undefined) choose(item.datum.id);
    });
    if (kept) views.push(view);
    return view;
  }

  // One after the other, with a pause for the browser to show what it has.
  async function drawAt(id, spec) {
    const place = byId(id);
    if (!place || !data.rows.length) return;
    await draw(place, spec(data));
    await new Promise((resume) => setTimeout(resume));
  }

  let values = null;
  return {
    async first() {
      await drawAt("range-chart", rangeSpec);
      await drawAt("depth-chart", data.sides.length > 1 ? pairSpec : depthSpec);
    },
    async rest() {
      await drawAt("chains-chart", chainSpec);
      await drawAt("steps-chart", stepSpec);
    },
    async values(place, row, parts) {
      values?.finalize();
      values = await draw(place, valueSpec(data, row, parts), false);
      return values;
    },
    choose(id) {
      for (const view of views) if (view.getState().signals?.chosen !== undefined) view.signal("chosen", id).run();
    },
  };
}

// A scale for these numbers: of logarithms where they spread, with room at the ends.
function norms(numbers, { always = false } = {}) {
  const found = numbers.filter((value) => Number.isFinite(value) && value > 0);
  if (!found.length) return { type: "linear", domain: [0, 1] };
  const [low, high] = [Math.min(...found), Math.max(...found)];
  if (!always && high / low < 20) return { type: "linear", domain: [0, high * 1.08], nice: true };
  const room = Math.max(Math.pow(high / low, 0.06), 1.15);
  return { type: "log", domain: [low / room, high * room], clamp: true, nice: false };
}

// Zero has no place on a scale of logarithms: it sits at the lower end, its tooltip says what it is.
const placed = (value, scale) => (value === null ? null : Math.max(value, scale.domain[0]));

const axis = (title, scale) => ({
  title, labelOverlap: true, labelExpr: LABEL, ...(scale.type === "log" ? { values: decades(scale.domain) } : { tickCount: 5 }),
});
const LABEL = "datum.value && (datum.value >= 1e4 || datum.value < 1e-3) ? format(datum.value, '.0e') : format(datum.value, '~g')";

// Ticks that read well: powers of ten, with 2 and 5 between them where there are few.
function decades([low, high]) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const step = Math.max(1, Math.ceil((last - first) / 8));
  const between = high / low <= 300 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += step) for (const digit of between) ticks.push(Number(`${digit}e${power}`));
  return ticks.filter((tick) => tick >= low && tick <= high);
}

// A line across the chart, drawn once and not for every row of the data.
const across = (channel, value, scale, mark) => ({
  data: { values: [{ value }] }, mark: { type: "rule", strokeDash: [4, 3], ...mark },
  encoding: { x: null, y: null, [channel]: { field: "value", type: "quantitative", scale } },
});

const one = (scale) => (scale.type === "log" ? Math.max(scale.domain[0], Math.min(1, scale.domain[1])) : 1);

const chosenParam = [{ name: "chosen", value: -1 }];
const ring = { type: "point", shape: "circle", size: 260, filled: false, strokeWidth: 2, color: "var(--text)" };
const placeAxis = { title: "place in the network", tickMinStep: 1, format: "d" };
const placeScale = (data) => ({ domain: [0.2, data.rows.length + 0.8], nice: false, zero: false });
const tooltips = (...pairs) => pairs.map(([field, title]) => ({ field, title, type: "nominal" }));

function depthSpec(data) {
  const all = data.rows.flatMap((row) => [row.sides[0].lo, row.sides[0].hi]);
  const scale = norms([...all, 1]);
  const values = data.rows.filter((row) => row.sides[0].hi !== null).map((row) => ({
    id: row.id, place: row.id + 1, name: row.name, role: standing(row), kind: row.kind, norm: row.sides[0].norm,
    lo: placed(row.sides[0].lo ?? 0, scale), hi: placed(row.sides[0].hi, scale), one: one(scale),
  }));
  const y = (field) => ({ field, type: "quantitative", scale, axis: axis("norm", scale) });
  const x = { field: "place", type: "quantitative", axis: placeAxis, scale: placeScale(data) };
  const domain = ["layer", "chain", "part of a chain"].filter((role) => values.some((value) => value.role === role));
  const among = (...range) => ({ domain, range: range.filter((_, index) => domain.includes(["layer", "chain", "part of a chain"][index])) });
  const color = { field: "role", type: "nominal", sort: domain, scale: among("var(--series-1)", "var(--series-2)", "var(--part)"), legend: {} };
  return {
    description: `Norm of each of ${values.length} layers and chains by depth.`,
    height: 270, params: chosenParam, data: { values }, encoding: { x },
    layer: [
      across("y", one(scale), scale, { color: "var(--muted)", strokeWidth: 0.8 }),
      { mark: { type: "rule", color: "var(--stem)", strokeWidth: 1 }, encoding: { y: y("one"), y2: { field: "hi" } } },
      { mark: { type: "rule", strokeWidth: 3 }, encoding: { y: y("lo"), y2: { field: "hi" }, color } },
      // Under the points: these are what the pointer has to meet.
      { transform: [{ filter: "datum.id === chosen" }], mark: ring, encoding: { y: y("hi") } },
      {
        mark: { type: "point", filled: true, size: sizeFor(values.length), opacity: 1, cursor: "pointer" },
        encoding: {
          y: y("hi"), color,
          shape: { ...color, scale: among("circle", "diamond", "circle") },
          tooltip: tooltips(["name", "layer"], ["kind", "kind"], ["norm", "norm"]),
        },
      },
    ],
  };
}

// Whether a row counts by itself or only as a part of a chain.
const standing = (row) => (row.unit ? row.role : "part of a chain");

const sizeFor = (count) => (count > 300 ? 18 : count > 100 ? 36 : 70);

function pairSpec(data) {
  const ends = (row) => row.sides.map((side) => side?.hi ?? null);
  const scale = norms([...data.rows.flatMap(ends), 1]);
  const values = data.rows.map((row) => {
    const [before, after] = ends(row).map((value) => placed(value, scale));
    return { id: row.id, place: row.id + 1, name: row.name, before, after, was: row.cells[1], is: row.cells[2], change: row.cells[3], weight: row.unit ? 1 : 0.4 };
  });
  const x = { field: "place", type: "quantitative", axis: placeAxis, scale: placeScale(data) };
  const y = (field) => ({ field, type: "quantitative", scale, axis: axis("norm, upper end", scale) });
  const tooltip = tooltips(["name", "layer"], ["was", "before"], ["is", "after"], ["change", "change"]);
  const size = sizeFor(values.length);
  const color = {
    type: "nominal",
    scale: { domain: ["before", "after"], range: ["var(--series-3)", "var(--series-1)"] },
    legend: { symbolType: "circle", symbolOpacity: 1 },
  };
  const opacity = { field: "weight", type: "quantitative", scale: null, legend: null };
  const dots = (field, filled) => ({
    transform: [{ filter: `isValid(datum.${field})` }],
    mark: { type: "point", size, cursor: "pointer", ...(filled ? { filled } : { filled: false, fill: "var(--page)", strokeWidth: 1.6 }) },
    encoding: { y: y(field), color: { ...color, datum: field }, opacity, tooltip },
  });
  return {
    description: `Norms of ${values.length} layers and chains before and after.`,
    height: 290, params: chosenParam, data: { values }, encoding: { x },
    layer: [
      across("y", one(scale), scale, { color: "var(--muted)", strokeWidth: 0.8 }),
      {
        transform: [{ filter: "isValid(datum.before) && isValid(datum.after)" }],
        mark: { type: "rule", strokeWidth: 2, color: "var(--stem)" }, encoding: { y: y("before"), y2: { field: "after" } },
      },
      { transform: [{ filter: "datum.id === chosen && isValid(datum.after)" }], mark: ring, encoding: { y: y("after") } },
      dots("before", false), dots("after", true),
    ],
  };
}

function rangeSpec(data) {
  const found = data.ranges.map((range, index) => ({ range, side: data.sides[index] })).filter(({ range }) => range);
  const scale = norms(found.flatMap(({ range }) => [range.lower, range.upper, range.product, ...range.local]), { always: true });
  // Room on the right for the dashes that say there is no end.
  if (found.some(({ range }) => range.upper === null)) scale.domain[1] *= 10;
  const values = found.map(({ range, side }) => ({
    side, lower: placed(range.lower ?? 0, scale), upper: range.upper, product: range.product,
    end: range.upper ?? scale.domain[1],
  }));
  const local = found.flatMap(({ range, side }) => range.local.map((value) => ({ side, value: placed(value, scale) })));
  const y = { field: "side", type: "nominal", sort: data.sides, axis: found.length > 1 ? { title: null, labelFontSize: 12 } : null };
  const x = (field) => ({ field, type: "quantitative", scale, axis: { ...axis(null, scale), grid: true } });
  return {
    description: "The interval that holds the network’s Lipschitz constant, and the product of layers beside it.",
    height: 34 * values.length, data: { values }, encoding: { y },
    layer: [
      { transform: [{ filter: "!isValid(datum.upper)" }], mark: { type: "rule", strokeWidth: 3, strokeDash: [3, 5], color: "var(--series-1)" }, encoding: { x: x("lower"), x2: { field: "end" } } },
      { transform: [{ filter: "isValid(datum.upper)" }], mark: { type: "rule", strokeWidth: 10, strokeCap: "round", color: "var(--series-1)", opacity: 0.85 }, encoding: { x: x("lower"), x2: { field: "upper" } } },
      { data: { values: local }, mark: { type: "tick", thickness: 1.5, size: 22, color: "var(--text)" }, encoding: { x: x("value") } },
      { transform: [{ filter: "isValid(datum.product)" }], mark: { type: "point", shape: "cross", angle: 45, size: 130, filled: true, color: "var(--series-2)", opacity: 1 }, encoding: { x: x("product") } },
    ],
  };
}

function chainSpec(data) {
  const chains = data.rows.filter((row) => row.sides[0]?.split);
  const picked = [...chains].sort((a, b) => largest(b) - largest(a)).slice(0, MANY_CHAINS).sort((a, b) => a.id - b.id);
  byId("chains-caption").textContent = chains.length > picked.length
    ? `The ${picked.length} chains with the largest norms, of ${chains.length}; the table has them all.` : "";
  const parts = picked.flatMap((row) => {
    const [linear, batch] = row.sides[0].split;
    return [["before batch norm", linear], ["batch norm", batch], ["together", row.sides[0].hi], ["product", linear * batch]]
      .map(([part, value]) => ({ id: row.id, label: `${row.id + 1}  ${row.name}`, name: row.name, part, value, shown: row.sides[0].norm }));
  });
  const scale = norms([...parts.map((part) => part.value), 1]);
  const values = parts.map((part) => ({ ...part, value: placed(part.value, scale) }));
  const kinds = ["before batch norm", "batch norm", "together", "product"];
  const y = { field: "label", type: "nominal", sort: null, axis: { title: null, labelLimit: innerWidth < 600 ? 130 : 330, labelColor: "var(--text)", grid: true, gridDash: [1, 3] } };
  const x = (extra) => ({ field: "value", type: "quantitative", scale, axis: { ...axis("norm", scale), grid: false }, ...extra });
  const range = ["var(--series-1)", "var(--series-3)", "var(--series-2)", "var(--muted)"];
  return {
    description: `Norms of the linear part, the batch norm and their composition for ${picked.length} chains.`,
    height: 22 * picked.length, params: chosenParam, data: { values }, encoding: { y },
    layer: [
      across("x", one(scale), scale, { color: "var(--muted)", strokeWidth: 0.8 }),
      { transform: [{ aggregate: [{ op: "min", field: "value", as: "from" }, { op: "max", field: "value", as: "to" }], groupby: ["label", "id"] }], mark: { type: "rule", color: "var(--stem)", strokeWidth: 1.5 }, encoding: { x: { ...x(), field: "from" }, x2: { field: "to" } } },
      {
        mark: { type: "point", filled: true, size: 75, opacity: 1, cursor: "pointer" },
        encoding: {
          x: x(), tooltip: tooltips(["name", "chain"], ["part", "part"], ["shown", "norm together"]),
          color: { field: "part", type: "nominal", scale: { domain: kinds, range }, sort: kinds, legend: { columns: innerWidth < 600 ? 1 : 4 } },
          shape: { field: "part", type: "nominal", scale: { domain: kinds, range: ["circle", "triangle-up", "diamond", "cross"] }, sort: kinds },
        },
      },
    ],
  };
}

function stepSpec(data) {
  const values = data.steps.flatMap((steps, index) => steps.map(([where, operation, factor, shown, bound], at) =>
    ({ side: data.sides[index], at: at + 1, where: where || "(the model itself)", operation, factor, shown, bound })));
  const scale = norms(values.map((value) => value.bound));
  const longest = Math.max(...data.steps.map((steps) => steps.length));
  const color = data.sides.length > 1
    ? { field: "side", type: "nominal", sort: data.sides, scale: { domain: data.sides, range: ["var(--series-3)", "var(--series-1)"] }, legend: {} }
    : { value: "var(--series-1)" };
  return {
    description: "The bound on the Lipschitz constant from the input up to each step.",
    height: 190, data: { values: values.map((value) => ({ ...value, bound: placed(value.bound, scale) })) },
    encoding: {
      x: { field: "at", type: "quantitative", axis: { title: "step", tickMinStep: 1, format: "d" }, scale: { domain: [0.5, longest + 0.5], nice: false, zero: false } },
      y: { field: "bound", type: "quantitative", scale, axis: axis("bound so far", scale) }, color,
    },
    layer: [
      { mark: { type: "line", interpolate: "step-after", strokeWidth: 2 } },
      { mark: { type: "point", filled: true, size: 40, opacity: values.length > 300 ? 0 : 1 }, encoding: { tooltip: tooltips(["where", "where"], ["operation", "operation"], ["factor", "factor"], ["shown", "bound so far"]) } },
    ],
  };
}

function valueSpec(data, row, parts) {
  const compared = row.sides.length > 1;
  const curves = compared
    ? row.sides.map((side, index) => [data.sides[index], side?.values ?? []])
    : [...parts.map((part) => [part.name, part.sides[0].values]), [parts.length ? "together" : row.name, row.sides[0].values]];
  const names = curves.map(([name]) => name);
  const values = curves.flatMap(([name, list]) => list.map((value, index) => ({ name, at: index + 1, value, shown: value })));
  const reshaped = row.sides[row.sides.length - 1]?.reshaped ?? null;
  const scale = norms([...values.map((item) => item.value), ...(reshaped === null ? [] : [reshaped])]);
  const range = compared ? ["var(--series-3)", "var(--series-1)"]
    : [...["var(--series-1)", "var(--series-3)", "var(--muted)"].slice(0, parts.length), ...parts.slice(3).map(() => "var(--muted)"), "var(--series-2)"];
  const single = names.length === 1;
  const color = { field: "name", type: "nominal", sort: names, scale: { domain: names, range: single ? ["var(--series-1)"] : range }, legend: single ? null : { labelLimit: 150, columns: 2 } };
  const layer = [
    { mark: { type: "line", strokeWidth: 2 }, encoding: { color } },
    { mark: { type: "point", filled: true, size: 50, opacity: 1 }, encoding: { color, tooltip: tooltips(["name", "layer"], ["at", "place"], ["shown", "singular value"]) } },
  ];
  if (reshaped !== null) {
    const at = placed(reshaped, scale);
    const words = { type: "text", align: "left", dx: 4, x: 0, ...(scale.type === "log" ? { baseline: "bottom", dy: -3 } : { baseline: "top", dy: 4 }), fontSize: 11, color: "var(--muted)", text: "reshaped kernel" };
    layer.push(across("y", at, scale, { color: "var(--muted)" }), across("y", at, scale, words));
  }
  const count = Math.max(1, ...curves.map(([, list]) => list.length));
  return {
    description: `The ${count} largest singular values of ${row.name}.`,
    height: 190, data: { values: values.map((item) => ({ ...item, value: placed(item.value, scale) })) },
    encoding: {
      x: { field: "at", type: "quantitative", axis: { title: "singular value, in order", tickMinStep: 1, format: "d" }, scale: { domain: [0.6, count + 0.4], nice: false, zero: false } },
      y: { field: "value", type: "quantitative", scale, axis: axis(null, scale) },
    },
    layer,
  };
}

// The panel of the chosen layer: what it is, what to make of it, its singular values.

function makeDetail(data) {
  const panel = byId("detail");
  const byName = new Map(data.rows.filter((row) => row.role === "layer").map((row) => [row.name, row]));
  let latest = null;

  return async function show(row, charts) {
    latest = row.id;
    panel.replaceChildren(...about(row), ...remarks(row, data), factTable(row, data));
    if (!charts || !row.sides.some((side) => side?.values.length)) return;
    const place = el("div", { id: "values-chart", class: "chart" });
    panel.querySelector(".facts").before(el("figure", {}, place));
    const drawn = await charts.values(place, row, partsOf(row, byName));
    if (latest === row.id && drawn) panel.dataset.drawn = row.id;
  };
}

// The layers that a chain is made of, to lay their curves beside its own.
function partsOf(row, byName) {
  if (row.role !== "chain" || row.sides.length > 1) return [];
  return row.parts.map((name) => byName.get(name)).filter((part) => part?.sides[0]);
}

function about(row) {
  const words = [row.kind, row.geometry].filter(Boolean).join(" · ");
  return [
    el("p", { class: "label" }, row.role === "chain" ? "Chosen chain" : "Chosen layer"),
    el("h3", {}, row.name),
    words ? el("p", { class: "about" }, words) : null,
  ].filter(Boolean);
}

function remarks(row, data) {
  const said = row.sides.map((side, index) => [data.sides[index], side?.remark]).filter(([, text]) => text);
  const same = new Set(said.map(([, text]) => text)).size === 1;
  return (same ? said.slice(-1) : said).map(([name, text]) =>
    el("p", { class: "remark" }, said.length > 1 && !same ? `${capital(name)}: ${text}` : text));
}

function factTable(row, data) {
  const lines = data.facts.map((label, index) => [label, row.sides.map((side) => side?.facts[index] ?? null)])
    .filter(([, texts]) => texts.some((text) => text !== null));
  const table = el("table", { class: "facts" });
  if (row.sides.length > 1) {
    table.append(el("thead", {}, el("tr", {}, el("td"), ...data.sides.map((name) => el("th", { scope: "col" }, capital(name))))));
  }
  table.append(el("tbody", {}, ...lines.map(([label, texts]) =>
    el("tr", {}, el("th", { scope: "row" }, label), ...texts.map((text) => el("td", {}, text ?? "–"))))));
  return table;
}

const capital = (word) => word[0].toUpperCase() + word.slice(1);

// The trail of rules as a table for each audit, folded up where it is long.
function stepTables(data) {
  return data.steps.filter((steps) => steps.length).map((steps) => {
    const which = data.sides.length > 1 ? `${capital(data.sides[data.steps.indexOf(steps)])}: ` : "";
    const head = ["#", "Where", "Operation", "Factor", "Bound so far", "Note"];
    const body = steps.map(([where, operation, factor, bound, , note], index) => el("tr", {},
      el("td", { class: "num" }, String(index + 1)), el("th", { scope: "row" }, where || "(the model itself)"), el("td", { class: "wide" }, operation),
      el("td", { class: "num" }, factor), el("td", { class: "num" }, bound), el("td", { class: "wide" }, note)));
    return el("details", { class: "steps", open: steps.length <= 12 },
      el("summary", {}, `${which}${steps.length} steps`),
      el("div", { class: "scroll" }, el("table", {},
        el("thead", {}, el("tr", {}, ...head.map((text, index) =>
          el("th", { scope: "col", class: [0, 3, 4].includes(index) ? "num" : [2, 5].includes(index) ? "wide" : null }, text)))),
        el("tbody", {}, ...body))));
  });
}

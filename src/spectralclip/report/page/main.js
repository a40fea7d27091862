// Puts the parts together: the table first, the charts as soon as their library is unpacked.

const THEMES = ["auto", "light", "dark"];

function themes() {
  const root = document.documentElement;
  const show = () => { byId("theme-name").textContent = capital(root.dataset.theme ?? "auto"); };
  byId("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(root.dataset.theme ?? "auto") + 1) % THEMES.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    try {
      if (next === "auto") localStorage.removeItem("spectralclip-theme");
      else localStorage.setItem("spectralclip-theme", next);
    } catch { /* nothing to remember in a sandboxed frame */ }
    show();
  });
  show();
}

function shortcuts() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.closest("input, textarea")) return;
    event.preventDefault();
    byId("filter").focus();
  });
  // Paper cannot be unfolded.
  window.addEventListener("beforeprint", () => {
    for (const node of document.querySelectorAll("details")) node.open = true;
  });
}

async function loadCharts(library, data, choose) {
  // The library is meant as a module: in a function of its own its names stay inside.
  new Function(await library)();
  return makeCharts(window.vegaEmbed, data, choose);
}

async function start() {
  themes();
  shortcuts();
  const library = unpack("library");
  const data = JSON.parse(await unpack("data"));
  const detail = makeDetail(data);
  let charts = null;
  let chosen = null;

  function choose(id, reveal = false) {
    chosen = data.rows[id] ?? null;
    if (!chosen) return;
    table.mark(id);
    if (reveal) table.reveal(id);
    charts?.choose(id);
    detail(chosen, charts);
  }

  const table = makeTable(data, choose);
  byId("steps-tables")?.append(...stepTables(data));
  choose(mostTelling(data.rows), true);
  charts = await loadCharts(library, data, (id) => choose(id, true));
  await charts.first();
  if (chosen) choose(chosen.id);
  document.documentElement.dataset.ready = "first";
  await charts.rest();
  document.documentElement.dataset.ready = "all";
}

// What to show first: the largest norm that counts, or of a comparison the one that moved most.
function mostTelling(rows) {
  const moved = (row) => Math.abs(Math.log(row.keys[row.keys.length - 1] || 1));
  const score = (row) => (row.unit ? (row.sides.length > 1 ? moved(row) : largest(row)) : -1);
  let best = 0;
  for (const row of rows) if (score(row) > score(rows[best])) best = row.id;
  return best;
}

if (typeof DecompressionStream === "undefined") {
  trouble("This page needs a browser from 2023 or later to unpack its table and charts.");
} else {
  start().catch((error) => trouble(`The page could not be put together: ${error.message}`));
}

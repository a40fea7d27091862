// The table: built once, then sorted by moving rows and filtered by hiding them.

function makeTable(data, choose) {
  const table = byId("layers");
  const body = table.tBodies[0];
  const columns = [{ label: "#", hint: "Place in the network" }, ...data.columns];
  const rows = data.rows.map((row) => ({ row, node: rowNode(row, data), text: searchText(row) }));
  // The largest norms are what one comes for, or what fell furthest.
  const compared = data.sides.length > 1;
  const state = { column: compared ? 4 : 2, descending: !compared, chosen: null };

  const heads = columns.map((column, index) => {
    const button = el("button", { type: "button", title: column.hint }, column.label);
    button.addEventListener("click", () => sort(index));
    return el("th", { role: "columnheader", scope: "col", class: columnClass(column, index) }, button);
  });
  table.tHead.append(el("tr", { role: "row" }, ...heads));

  const key = (row, index) => (index === 0 ? row.id : row.keys[index - 1]);

  function sort(index) {
    // Numbers are of interest from the largest down, names and places from the first on.
    const first = index > 1;
    state.descending = state.column === index ? !state.descending : first;
    state.column = index;
    place();
  }

  function place() {
    const sign = state.descending ? -1 : 1;
    rows.sort((a, b) => {
      const [x, y] = [key(a.row, state.column), key(b.row, state.column)];
      if (x === null || y === null) return (x === null) - (y === null) || a.row.id - b.row.id;
      const order = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
      return sign * order || a.row.id - b.row.id;
    });
    body.append(...rows.map((entry) => entry.node));
    heads.forEach((head, index) => {
      if (index !== state.column) head.removeAttribute("aria-sort");
      else head.setAttribute("aria-sort", state.descending ? "descending" : "ascending");
    });
  }

  function filter() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const role = document.querySelector("input[name=role]:checked")?.value ?? "all";
    const typed = byId("threshold").valueAsNumber;
    const above = Number.isNaN(typed) ? -Infinity : typed;
    let shown = 0;
    for (const { row, node, text } of rows) {
      const fits = words.every((word) => text.includes(word)) &&
        (role === "all" || row.role === role) && largest(row) > above;
      node.hidden = !fits;
      shown += fits;
    }
    byId("shown").textContent = shown === rows.length ? `${shown} rows` : `${shown} of ${rows.length} rows`;
    reachable();
  }

  // One row at a time is in the order of the Tab key; the arrows go from there.
  function reachable(node) {
    const visible = rows.filter((entry) => !entry.node.hidden).map((entry) => entry.node);
    const chosen = visible.find((candidate) => Number(candidate.dataset.id) === state.chosen);
    const target = node ?? chosen ?? visible[0];
    for (const candidate of visible) candidate.tabIndex = candidate === target ? 0 : -1;
    return visible;
  }

  function mark(id) {
    state.chosen = id;
    for (const { row, node } of rows) {
      node.setAttribute("aria-selected", row.id === id ? "true" : "false");
    }
    reachable();
  }

  // Moves the table's own scroll and never the page's.
  function reveal(id) {
    const node = rows.find((entry) => entry.row.id === id)?.node;
    const frame = byId("scroll");
    if (!node || node.hidden) return;
    const top = node.offsetTop - table.tHead.offsetHeight;
    const bottom = node.offsetTop + node.offsetHeight - frame.clientHeight;
    if (frame.scrollTop > top) frame.scrollTop = top;
    else if (frame.scrollTop < bottom) frame.scrollTop = bottom;
  }

  function keyboard(event) {
    const node = event.target.closest("tr");
    const visible = reachable(node);
    const at = visible.indexOf(node);
    const last = visible.length - 1;
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: last, PageDown: at + 10, PageUp: at - 10 };
    if (event.key === "Enter" || event.key === " ") choose(Number(node.dataset.id));
    else if (event.key in moves) {
      const next = visible[Math.min(Math.max(moves[event.key], 0), last)];
      reachable(next);
      next.focus({ preventScroll: true });
      reveal(Number(next.dataset.id));
    } else return;
    event.preventDefault();
  }

  body.addEventListener("click", (event) => {
    const node = event.target.closest("tr");
    if (node) choose(Number(node.dataset.id));
  });
  body.addEventListener("keydown", keyboard);
  byId("controls").addEventListener("input", filter);
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  place();
  filter();
  return { mark, reveal };
}

const largest = (row) => Math.max(...row.sides.map((side) => (side ? side.hi ?? Infinity : -Infinity)));

const searchText = (row) => `${row.name} ${row.kind} ${row.geometry}`.toLowerCase();

const columnClass = (column, index) =>
  [index === 1 ? "name" : "num", column.label === "#" ? "place" : "", column.wide ? "wide" : ""].filter(Boolean).join(" ");

function rowNode(row, data) {
  const about = [row.kind, row.geometry].filter(Boolean).join(" · ");
  const flag = row.compensates ? el("span", { class: "flag" }, "compensates") : null;
  const name = el("th", { role: "rowheader", scope: "row", class: "name" },
    el("span", { class: "title" }, row.name), flag, el("span", { class: "about" }, about));
  const cells = row.cells.slice(1).map((text, index) => {
    const column = data.columns[index + 1];
    return el("td", { role: "gridcell", class: columnClass(column, index + 2) + tone(row, column) }, text);
  });
  const attributes = { role: "row", "data-id": row.id, "data-role": row.role, tabindex: -1, "aria-selected": "false" };
  return el("tr", attributes, el("td", { role: "gridcell", class: "num place" }, String(row.id + 1)), name, ...cells);
}

function tone(row, column) {
  if (column.label === "Change") {
    const change = row.keys[row.keys.length - 1];
    return change === null || change === 1 ? "" : change < 1 ? " down" : " up";
  }
  return column.label === "Norm" && (row.keys[1] === null || row.keys[1] > 1) ? " above" : "";
}

const PAGE = 25;
const element = (kind, text, parent) => {
  const made = document.createElement(kind);
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
};
const plain = (value) => (Number.isInteger(value) ? value : Number(value.toFixed(3))).toLocaleString("en", { maximumFractionDigits: 3 });
// Bounds and values: nanoseconds with units, or plain numbers.
const sized = (value, isTime) => (isTime ? shown(value) : plain(value));

function ranged(low, high, isTime) {
  if (high <= 0) return "below 0";
  if (high > 1e18) return `≥ ${sized(low, isTime)}`;
  return `${sized(low, isTime)} … ${sized(high, isTime)}`;
}

const SAID = {
  t: (value) => value,
  n: (value) => (value === null ? "-" : plain(value)),
  d: (value, step) => (value === null ? "-" : Array.isArray(value) ? `< ${shown(value[1])}` : value < 1.5 * step ? `≤ ${Number(step.toPrecision(2))} ns` : shown(value)),
  f: (value) => value.toFixed(1),
  g: (value) => (value === null ? "-" : Number(value.toPrecision(4)).toLocaleString("en", { maximumSignificantDigits: 4 })),
};

// A step for each interval, as high as its number; seconds and numbers come one after the other. With labels: a chart.
function curve(flat, highest, parent, unit) {
  const [wide, high] = unit === undefined ? [160, 22] : [760, 150];
  const draw = (kind, values, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(values)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const [left, below, top] = unit === undefined ? [0, 1, 1] : [64, 20, 8];
  const end = flat[flat.length - 2] || 1;
  const x = (seconds) => (left + (seconds / end) * (wide - left)).toFixed(1);
  const y = (value) => (high - below - (Math.max(value, 0) / (highest || 1)) * (high - below - top)).toFixed(1);
  let path = `M${x(0)} ${y(0)}`;
  for (let at = 0, from = 0; at < flat.length; from = flat[at], at += 2) path += `L${x(from)} ${y(flat[at + 1])}H${x(flat[at])}`;
  const made = draw("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, class: "curve", role: "img", "aria-label": "over time" });
  made.append(draw("path", { d: `${path}V${y(0)}Z` }));
  if (unit !== undefined) {
    made.append(draw("text", { x: left - 6, y: y(highest), "text-anchor": "end", dy: 10 }, SAID.g(highest)), draw("text", { x: left - 6, y: y(0), "text-anchor": "end" }, "0"));
    made.append(draw("text", { x: left, y: high - 4 }, "0 s"), draw("text", { x: wide, y: high - 4, "text-anchor": "end" }, `${plain(end)} s`));
    made.append(draw("text", { x: (wide + left) / 2, y: high - 4, "text-anchor": "middle" }, unit));
  }
  parent.append(made);
}

// Cells: text, numbers, and pairs of a time below its error and what it is less than.
// A table that is sorted by a click on a heading; a row with a histogram shows it.
function showTable(table, parent, chosen) {
  const section = element("section", undefined, parent);
  const title = element("h2", table.title, section);
  title.id = `part-${parent.children.length}`;
  const hasHistograms = table.rows.some((row) => row[table.columns.length]);
  const curved = table.kinds.indexOf("c");
  const highest = curved < 0 ? 0 : Math.max(...table.rows.flatMap((row) => (row[curved] || []).filter((_, at) => at % 2)), 0);
  const hasCurves = table.rows.some((row) => row[curved]?.length);
  const note = [table.note, hasHistograms ? "a click on a row shows its histogram" : "", hasCurves ? "a click on a row shows its curve" : ""].filter(Boolean).join("; ");
  if (note) element("p", note, section).className = "note";
  const tools = element("div", undefined, section);
  tools.className = "tools";
  const filter = element("input", undefined, tools);
  filter.type = "search";
  filter.placeholder = filter.ariaLabel = `Search ${table.title}`;
  const scroll = element("div", undefined, section);
  scroll.className = "scroll";
  const made = element("table", undefined, scroll);
  const [head, body] = [element("tr", undefined, element("thead", undefined, made)), element("tbody", undefined, made)];
  const used = table.columns.map((_, at) => table.kinds[at] === "t" || table.rows.some((row) => row[at] !== null && (at !== curved || row[at].length)));
  let [by, falling, most, selected] = [table.by, table.kinds[table.by] !== "t", PAGE, null];
  const more = element("button", "", section);
  more.className = "more";
  more.type = "button";

  function histogram(row, line) {
    const flat = row[curved] || row[table.columns.length];
    if (!flat || !flat.length) return;
    const rows = [];
    for (let at = 0; at < flat.length; at += 2) rows.push([flat[at] <= 1 ? flat[at] - 1 : flat[at] / 2, flat[at], flat[at + 1]]);
    const below = document.createElement("tr");
    below.className = "detail";
    const cell = element("td", undefined, below);
    cell.colSpan = head.children.length;
    if (curved >= 0) {
      curve(flat, Math.max(...flat.filter((_, at) => at % 2)), cell, table.unit);
      line.after(below);
      return;
    }
    const bars = element("div", undefined, cell);
    bars.className = "bars";
    const [longest, isTime] = [Math.max(...rows.map((each) => each[2])), table.kinds.includes("d")];
    for (const [low, high, count] of rows) {
      element("span", ranged(low, high, isTime), bars);
      element("span", plain(count), bars);
      element("div", undefined, bars).style.width = `${(100 * count) / longest}%`;
    }
    line.after(below);
  }
  function choose(row, line) {
    const again = line === selected;
    body.querySelector(".detail")?.remove();
    selected?.removeAttribute("aria-selected");
    selected = again ? null : line;
    if (again) return;
    line.setAttribute("aria-selected", "true");
    histogram(row, line);
    chosen(row[0]);
  }
  function fill() {
    const word = filter.value.trim().toLowerCase();
    const matching = table.rows.filter((row) => !word || row.some((cell) => typeof cell === "string" && cell.toLowerCase().includes(word)));
    const order = (one, other) => {
      const [left, right] = [one, other].map((row) => (Array.isArray(row[by]) ? row[by][0] : row[by]));
      if (left === null || right === null) return (left === null) - (right === null);
      const sign = typeof left === "string" ? left.localeCompare(right) : left - right;
      return falling ? -sign : sign;
    };
    matching.sort(order);
    body.replaceChildren(...matching.slice(0, most).map((row) => {
      const line = document.createElement("tr");
      table.columns.forEach((_, at) => {
        if (!used[at]) return;
        const kind = table.kinds[at];
        const cell = element("td", kind === "c" ? undefined : SAID[kind](row[at], table.steps?.includes(at) ? table.step : 0), line);
        if (kind === "t") cell.className = "text";
        if (kind === "c" && row[at]) curve(row[at], highest, cell);
      });
      line.onclick = () => choose(row, line);
      return line;
    }));
    const left = matching.length - Math.min(most, matching.length);
    more.hidden = !left && !table.left_out;
    more.disabled = !left;
    more.textContent = left ? `${plain(left)} more rows` : `${plain(table.left_out)} rows are in the archive only`;
    [...head.children].forEach((cell) => {
      Number(cell.dataset.at) === by ? cell.setAttribute("aria-sort", falling ? "descending" : "ascending") : cell.removeAttribute("aria-sort");
    });
  }
  table.columns.forEach((name, at) => {
    if (!used[at]) return;
    const cell = element("th", undefined, head);
    cell.dataset.at = at;
    if (table.kinds[at] === "t") cell.className = "text";
    const button = element("button", name, cell);
    button.type = "button";
    if (table.kinds[at] === "c") button.disabled = true;
    button.onclick = () => { [by, falling] = [at, by === at ? !falling : table.kinds[at] !== "t"]; fill(); };
  });
  filter.oninput = fill;
  more.onclick = () => { most *= 10; fill(); };
  fill();
  return title;
}

// Time from left to right, values from below; a cell's colour is the logarithm of its count.
function heatMap(map) {
  const canvas = find("map");
  const [left, below, top] = [78, 22, 6];
  const counts = new Map();
  let most = 1;
  for (let at = 0; at < map.cells.length; at += 3) {
    const [column, row, count] = map.cells.slice(at, at + 3);
    counts.set(`${column} ${row}`, count);
    most = Math.max(most, count);
  }
  const [begin, end] = [map.edges[0], map.edges[map.edges.length - 1] || 1];
  let geometry;
  function draw() {
    const ratio = devicePixelRatio || 1;
    const [wide, high] = [canvas.clientWidth, canvas.clientHeight];
    [canvas.width, canvas.height] = [wide * ratio, high * ratio];
    const paint = canvas.getContext("2d");
    paint.scale(ratio, ratio);
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const x = (at) => left + ((at - begin) / (end - begin)) * (wide - left - 8);
    const y = (row) => high - below - (row / map.rows.length) * (high - below - top);
    geometry = { x, y };
    for (const [key, count] of counts) {
      const [column, row] = key.split(" ").map(Number);
      const part = Math.log1p(count) / Math.log1p(most);
      paint.fillStyle = dark ? `hsl(${230 - 180 * part} 70% ${22 + 50 * part}%)` : `hsl(${205 + 35 * part} 75% ${88 - 60 * part}%)`;
      const [from, to] = [x(map.edges[column]), x(map.edges[column + 1])];
      paint.fillRect(from, y(row + 1), Math.max(to - from - 0.5, 1), Math.max(y(row) - y(row + 1) - 0.5, 1));
    }
    paint.fillStyle = getComputedStyle(document.body).color;
    paint.font = "12px system-ui, sans-serif";
    paint.textAlign = "right";
    const each = Math.ceil(map.rows.length / Math.max((high - below - top) / 22, 1));
    for (let row = 0; row < map.rows.length; row += each) {
      const [low, up] = map.rows[row];
      paint.fillText(up <= 0 ? "< 0" : sized(low, map.time), left - 6, y(row) - 1);
    }
    paint.textAlign = "center";
    const steps = Math.max(Math.floor((wide - left) / 110), 1);
    for (let at = 0; at <= steps; at++) {
      const when = begin + ((end - begin) * at) / steps;
      paint.textAlign = at === 0 ? "left" : at === steps ? "right" : "center";
      paint.fillText(`${plain(Number(when.toPrecision(3)))} s`, x(when), high - 6);
    }
  }
  const all = [...counts.values()].reduce((sum, count) => sum + count, 0);
  const noun = map.time ? "calls" : "values";
  const rest = `${plain(all)} ${noun} in ${plain(end - begin)} s; at most ${plain(most)} in a cell`;
  canvas.onmousemove = (event) => {
    const column = map.edges.findIndex((at, index) => index < map.edges.length - 1 && geometry.x(map.edges[index + 1]) > event.offsetX);
    const row = map.rows.findIndex((_, index) => geometry.y(index + 1) < event.offsetY);
    const count = counts.get(`${column} ${row}`) || 0;
    const inside = column >= 0 && row >= 0 && event.offsetX >= geometry.x(begin);
    find("cell").textContent = inside
      ? `${plain(map.edges[column])} s … ${plain(map.edges[column + 1])} s, ${ranged(...map.rows[row], map.time)}: ${plain(count)} ${noun}`
      : rest;
  };
  canvas.onmouseleave = () => { find("cell").textContent = rest; };
  find("cell").textContent = rest;
  draw();
  return draw;
}

function showReport(report) {
  document.title = find("name").textContent = report.title;
  for (const [name, text] of report.facts) {
    element("dt", name, find("about"));
    element("dd", text, find("about"));
  }
  find("warnings").hidden = !report.warnings.length;
  for (const each of report.warnings) element("li", each, find("warnings"));
  const parts = [];
  const maps = report.maps.shown;
  const index = new Map(maps.map((map, at) => [map.name, at]).reverse());
  let redraw = () => {};
  const choose = (at) => { find("which").value = at; redraw = heatMap(maps[at]); };
  const chosen = (name) => {
    const bare = name.replace(/ \*$/, ""); // the mark of functions of which not all calls were timed
    if (index.has(bare)) choose(index.get(bare));
  };
  for (const table of report.tables) parts.push(showTable(table, find("tables"), chosen));
  if (maps.length) {
    find("heat").hidden = false;
    maps.forEach((map, at) => { element("option", map.module ? `${map.name} (${map.module})` : map.name, find("which")).value = at; });
    find("which").onchange = () => choose(Number(find("which").value));
    if (report.maps.left_out) find("unmapped").textContent = `${plain(report.maps.left_out)} functions with less time have no map here; their intervals are in the archive.`;
    choose(0);
    addEventListener("resize", () => redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw());
    parts.push(find("heat").firstElementChild);
  }
  if (report.flame) {
    find("tree").hidden = false;
    flameGraph(report.flame);
    parts.push(find("tree").firstElementChild);
  }
  const { columns, rows, left_out } = report.refused;
  if (rows.length) {
    const all = rows.length + left_out;
    const note = `${plain(all)} ${all === 1 ? "place was" : "places were"} asked for and not probed; anyprobe explain SPEC says more.`;
    const title = showTable({ title: "Refused", columns, kinds: "tttt", by: 2, note, rows, left_out }, document.body, () => {});
    parts.push(title);
  }
  parts.forEach((title, at) => {
    title.id = `part-${at}`;
    if (parts.length < 2) return;
    const link = element("a", title.textContent, find("parts"));
    link.href = `#${title.id}`;
  });
}

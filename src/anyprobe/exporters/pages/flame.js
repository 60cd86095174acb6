"use strict";
const [ROW, LEAST, ROWS] = [19, 0.7, 200];
const find = (id) => document.getElementById(id);

let counts = false; // whether widths are of something else than nanoseconds

function shown(ns) {
  if (counts) return ns.toLocaleString("en");
  const size = Math.abs(ns);
  for (const [unit, one] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (size >= one) return `${(ns / one).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

// A profile: names [function, module]; nodes [depth, name, self, calls], each followed by those that it called. Of two
// runs nodes also have self and calls of the first, and seconds is how long each run was. Inverted, nodes are followed by
// those that called them, self is where a chain of callers ends, and calls are those of what it begins with.
function flameGraph(profile) {
  counts = Boolean(profile.counts);
  const nodes = [{ name: -1, depth: 0, own: 0, count: 0, was: 0, counted: 0, parent: null, calls: [] }];
  const path = [nodes[0]];
  for (const [depth, name, own, count, was, counted] of profile.nodes) {
    const node = { name, depth: depth + 1, own, count, was: was || 0, counted, parent: path[depth], calls: [] };
    path[depth].calls.push(node);
    path[depth + 1] = node;
    nodes.push(node);
  }
  for (const node of nodes) [node.total, node.before] = [node.own, node.was];
  for (let i = nodes.length - 1; i > 0; i--) {
    nodes[i].parent.total += nodes[i].total;
    nodes[i].parent.before += nodes[i].before;
  }
  const root = nodes[0];
  const compared = Boolean(profile.seconds);
  let [base, upward, sorted, width] = [root, false, "own", (node) => node.total];

  const text = (node) => (node.name < 0 ? "all" : profile.names[node.name][0]);
  const module = (node) => (node.name < 0 ? "" : profile.names[node.name][1]);
  const share = (ns) => (root.total ? `${((100 * ns) / root.total).toFixed(1)} %` : "0 %");
  // Of a difference: the time of each second of both runs; of programs that have run to their ends, all of it.
  let perSecond = compared && !profile.whole;
  const rates = (node) => (perSecond ? [node.before / profile.seconds[0], node.total / profile.seconds[1]] : [node.before, node.total]);
  const grown = (node) => rates(node)[1] - rates(node)[0];
  function colour(node) {
    if (compared) {
      const part = Math.max(-1, Math.min(1, grown(node) / (Math.max(...rates(root)) || 1)));
      if (Math.abs(part) < 0.002) return "var(--same)";
      return `hsl(${part > 0 ? 8 : 212} ${30 + 60 * Math.sqrt(Math.abs(part))}% var(--light))`;
    }
    let hue = 0;
    for (const each of module(node)) hue = (hue * 31 + each.codePointAt(0)) % 360;
    let shade = 0;
    for (const each of text(node)) shade = (shade * 17 + each.codePointAt(0)) % 9;
    return node.name < 0 ? "#a1a1aa" : `hsl(${(hue * 47) % 360} ${45 + 3 * shade}% var(--light))`;
  }
  function line(node) {
    const where = module(node) ? ` (${module(node)})` : "";
    if (compared) {
      const [was, now] = rates(node);
      const change = was && now ? `${now >= was ? "+" : ""}${(100 * (now / was - 1)).toFixed(1)} %` : now ? "new" : was ? "gone" : "no time";
      const all = perSecond ? ` of each second, ${change}; in all ${shown(node.before)} → ${shown(node.total)}` : `, ${change}`;
      return `${text(node)}${where}: ${shown(was)} → ${shown(now)}${all}`;
    }
    const calls = node.count && !counts ? `, ${node.count.toLocaleString("en")} ${profile.counted}` : "";
    if (profile.inverted) {
      const whose = ["in all", "self", "by calls from here"][Math.min(node.depth, 2)];
      return `${text(node)}${where}: ${shown(node.total)} ${whose}, ${share(node.total)}${calls}`;
    }
    return `${text(node)}${where}: ${shown(node.total)} in all, ${share(node.total)}; ${shown(node.own)} self, ${share(node.own)}${calls}`;
  }
  const matches = (node, word) => node.name >= 0 && profile.names[node.name].some((each) => each.toLowerCase().includes(word));

  function draw() {
    const [room, word, frames] = [find("flame").clientWidth, find("search").value.trim().toLowerCase(), []];
    let [deepest, found] = [0, 0];
    const put = (node, left, wide, above) => {
      const frame = document.createElement("div");
      frame.className = "frame" + (above ? " above" : "") + (word && matches(node, word) ? " hit" : "");
      frame.dataset.at = node.depth;
      frame.style.cssText = `left:${left}px;width:${Math.max(wide - 1, LEAST)}px;background:${colour(node)}`;
      frame.textContent = wide > 24 ? text(node) : "";
      frame.title = line(node);
      frame.tabIndex = 0;
      frame.onmouseenter = frame.onfocus = () => { find("told").textContent = line(node); };
      frame.onclick = () => { base = node; draw(); };
      frame.onkeydown = (event) => { if (event.key === "Enter") frame.onclick(); };
      frames.push(frame);
      deepest = Math.max(deepest, node.depth);
    };
    for (let node = base.parent; node; node = node.parent) put(node, 0, room, true);
    const waiting = [[base, 0, false]];
    const whole = width(base);
    while (waiting.length) {
      const [node, left, within] = waiting.pop();
      const wide = whole ? (room * width(node)) / whole : node === base ? room : 0;
      const hit = word && !within && matches(node, word);
      if (hit) found += width(node);
      const small = wide < LEAST;
      if (!small) put(node, left, wide, false);
      if (small && (!word || within || hit)) continue; // a search adds up frames too small to be seen, too
      let at = left;
      for (const each of node.calls) {
        waiting.push([each, at, within || hit]);
        at += whole ? (room * width(each)) / whole : 0;
      }
    }
    for (const frame of frames) frame.style[upward ? "bottom" : "top"] = `${frame.dataset.at * ROW}px`;
    find("flame").style.height = `${(deepest + 1) * ROW}px`;
    find("flame").replaceChildren(...frames);
    find("told").textContent = word ? `Functions that match take ${shown(found)} of ${shown(whole)}.` : line(base);
  }

  // Recursion counts once in the total: only a function's outermost call on a stack adds to it.
  function functions() {
    const rows = profile.names.map(([name, home]) => ({ name, home, own: 0, total: 0, count: 0, was: 0, before: 0, counted: 0 }));
    const [open, entered] = [new Array(rows.length).fill(0), []];
    for (const node of nodes.slice(1)) {
      while (entered.length >= node.depth) open[entered.pop().name]--;
      const row = rows[node.name];
      if (!profile.inverted || node.depth === 1) [row.own, row.count] = [row.own + (profile.inverted ? node.total : node.own), row.count + node.count];
      row.was += node.was;
      row.counted += node.counted;
      if (!open[node.name]++) [row.total, row.before] = [row.total + node.total, row.before + node.before];
      entered.push(node);
    }
    return rows;
  }
  function list() {
    const table = find("functions");
    const first = { own: "was", total: "before", count: "counted" };
    const key = (row) => (compared ? Math.abs(row[sorted] - row[first[sorted]]) : row[sorted]);
    const shownRows = [...rows].sort((one, other) => key(other) - key(one)).slice(0, ROWS);
    const cell = (row, name, said) => (compared ? `${said(row[first[name]])} → ` : "") + said(row[name]);
    table.querySelector("tbody").replaceChildren(...shownRows.map((row) => {
      const line = document.createElement("tr");
      const counts = cell(row, "count", (each) => each.toLocaleString("en"));
      for (const each of [cell(row, "own", shown), cell(row, "total", shown), counts, row.name]) {
        line.insertCell().textContent = each;
      }
      const home = document.createElement("span");
      home.className = "module";
      home.textContent = row.home ? ` ${row.home}` : "";
      line.lastChild.append(home);
      line.onclick = () => { find("search").value = row.name; draw(); };
      return line;
    }));
    for (const each of table.querySelectorAll("th button")) {
      each.dataset.by === sorted ? each.parentNode.setAttribute("aria-sort", "descending") : each.parentNode.removeAttribute("aria-sort");
    }
  }
  const rows = find("functions") ? functions() : [];
  if (find("title")) document.title = find("title").textContent = profile.title;
  find("facts").textContent = profile.facts;
  if (find("functions")) {
    document.querySelector("[data-by=count]").textContent = profile.counted;
    for (const each of document.querySelectorAll("#functions th button")) each.onclick = () => { sorted = each.dataset.by; list(); };
    list();
  }
  find("search").oninput = draw;
  const sayTurn = () => { find("turn").textContent = `${profile.inverted ? "What ran" : "Outermost"} at the ${upward ? "top" : "bottom"}`; };
  find("turn").onclick = () => { upward = !upward; sayTurn(); draw(); };
  sayTurn();
  if (compared) {
    let first = false;
    const [button, basis] = [find("other"), find("basis")];
    const sayBasis = () => { basis.textContent = perSecond ? "Compare all time" : "Compare time per second"; };
    basis.hidden = false;
    basis.onclick = () => { perSecond = !perSecond; sayBasis(); draw(); };
    sayBasis();
    document.body.classList.add("compared");
    const say = () => { button.textContent = first ? "Widths of the second run" : "Widths of the first run"; };
    button.hidden = false;
    button.onclick = () => { first = !first; width = (node) => (first ? node.before : node.total); say(); draw(); };
    say();
  }
  find("reset").onclick = () => { base = root; find("search").value = ""; draw(); };
  addEventListener("keydown", (event) => { if (event.key === "Escape") find("reset").onclick(); });
  addEventListener("resize", draw);
  find("search").value = decodeURIComponent(location.hash.slice(1)); // a link may say what to search for
  draw();
}

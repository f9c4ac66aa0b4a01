// Elements, numbers, colours and charts that all parts of the page share.
// Text from files only becomes textContent; nothing is parsed as markup.

const el = (tag, attributes, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
};

const svgElement = (tag, attributes, ...children) => {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children);
  return node;
};

// ---- numbers

const PREFIXES = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const digits = (value, count = 3) => Number(value.toPrecision(count)).toString();
const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const amount = (value, unit = "") => {
  if (!isNumber(value)) return "–";
  const [factor, prefix] = PREFIXES.find(([f]) => Math.abs(value) >= f) || [1, ""];
  return `${digits(value / factor)} ${prefix}${unit}`.trim();
};
const duration = (seconds) => {
  if (!isNumber(seconds)) return "–";
  if (seconds < 1) return seconds < 1e-3 ? `${digits(1e6 * seconds, 2)} µs` : `${digits(1e3 * seconds, 2)} ms`;
  if (seconds < 120) return `${digits(seconds, seconds < 10 ? 2 : 3)} s`;
  if (seconds < 7200) return `${digits(seconds / 60)} min`;
  return `${digits(seconds / 3600)} h`;
};
const written = (value, form) => {
  if (!isNumber(value)) return "–";
  if (form === "percent") return `${(100 * value).toFixed(1)} %`;
  if (form === "count") return digits(value, 4);
  return Math.abs(value) >= 1000 || (value !== 0 && Math.abs(value) < 0.001) ? value.toExponential(2) : digits(value, 4);
};
const signed = (value, form) => {
  if (!isNumber(value)) return "";
  const text = form === "percent" ? (100 * Math.abs(value)).toFixed(1) : digits(Math.abs(value), 3);
  return `${value < 0 ? "−" : "+"}${text}`;
};
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

const AXES = {
  round: { label: "Rounds", title: "round", write: (v) => digits(v, 6) },
  bytes: { label: "Bytes", title: "traffic, down and up", write: (v) => amount(v, "B") },
  flops: { label: "FLOPs", title: "clients' work, FLOPs", write: (v) => amount(v) },
  seconds: { label: "Time", title: "time", write: duration },
};

// ---- columns: base64 of 32-bit floats, or one number for all rows

const floats = (text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer, 0, bytes.length >> 2);
};
const decoded = new WeakMap();
const column = (table, name) => {
  const packed = table[name];
  if (packed === undefined) return null;
  if (typeof packed === "number") return new Float32Array(table.rows).fill(packed);
  if (!decoded.has(table)) decoded.set(table, {});
  const columns = decoded.get(table);
  return (columns[name] ??= floats(packed));
};

// ---- colours: six that are distinct for any colour vision (drawing/style.py), then other strokes

const COLOURS = 6;
const STROKES = ["solid", "dashed", "dotted", [8, 3, 2, 3]];
const strokeOf = (place) => Math.floor(place / COLOURS) % STROKES.length;
const colour = (place) => `--c${place % COLOURS}`;
const stroke = (place) => STROKES[strokeOf(place)];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const swatch = (place) =>
  el("span", { class: `swatch c${place % COLOURS} ${["", "dash", "dot", "mix"][strokeOf(place)]}`, "aria-hidden": "true" });

// ---- charts: drawn once visible, and again after a change of size or colours

const charts = new Set();
const watcher = new IntersectionObserver(
  (entries) => entries.forEach((entry) => { if (entry.isIntersecting) entry.target.chart.show(); }),
  { rootMargin: "400px" },
);

class Chart {
  // `option()` returns the chart; `label` describes it to screen readers
  constructor(label, option, extra = "") {
    this.node = el("div", { class: `chart ${extra}`, role: "img", "aria-label": label });
    this.node.chart = this;
    this.option = option;
    charts.add(this);
    watcher.observe(this.node);
  }

  show() {
    if (this.instance) return;
    this.instance = echarts.init(this.node, null, { renderer: "svg" });
    this.draw();
  }

  draw() {
    if (this.instance) this.instance.setOption({ ...common(), ...this.option() }, { notMerge: true });
  }

  resize() {
    if (this.instance) this.instance.resize({ animation: { duration: 0 } });
  }

  close() {
    watcher.unobserve(this.node);
    if (this.instance) this.instance.dispose();
    charts.delete(this);
  }
}

const common = () => ({
  animation: false,
  textStyle: { fontFamily: css("--text"), color: css("--muted"), fontSize: 12 },
  aria: { enabled: false },
});
const axisStyle = () => ({
  axisLine: { lineStyle: { color: css("--line") } },
  axisTick: { show: false },
  axisLabel: { color: css("--muted"), hideOverlap: true },
  splitLine: { lineStyle: { color: css("--line"), opacity: 0.7 } },
  nameTextStyle: { color: css("--muted") },
});
const tooltipStyle = () => ({
  backgroundColor: css("--surface"),
  borderColor: css("--line"),
  borderWidth: 1,
  padding: 10,
  confine: true,
  transitionDuration: 0,
  extraCssText: "box-shadow: 0 4px 18px rgba(0,0,0,.12); border-radius: 7px;",
});
const tip = (head, rows) =>
  el("div", { class: "tip" }, el("div", { class: "head" }, head), el("table", {}, el("tbody", {},
    rows.map(([place, name, value]) =>
      el("tr", {}, el("td", {}, place === null ? "" : swatch(place)), el("td", {}, name), el("td", {}, value))))));

// ---- controls

const segments = (legend, choices, current, change) => {
  const name = `s${(segments.count = (segments.count || 0) + 1)}`;
  return el("fieldset", { class: "segments" }, el("legend", {}, legend),
    Object.entries(choices).map(([value, label]) =>
      el("label", {}, el("input", { type: "radio", name, value, checked: value === current, onchange: () => change(value) }),
        el("span", {}, label))));
};
const choice = (label, choices, current, change) => {
  const select = el("select", { "aria-label": label, onchange: () => change(select.value) },
    choices.map(([value, text]) => el("option", { value, selected: value === current }, text)));
  return select;
};

// a table sorted by its headings, also after a redraw; cells are texts or {text, value, node}
const sortings = new Map();
const dataTable = (caption, headings, rows, attributes = () => ({})) => {
  const body = el("tbody");
  const key = (cell) => (cell !== null && typeof cell === "object" ? cell.value ?? cell.text : cell);
  const fill = (order) => body.replaceChildren(...order.map((row) => {
    const tr = el("tr", attributes(row.place), row.cells.map((cell, c) => {
      const content = cell !== null && typeof cell === "object" ? cell.node ?? cell.text : cell;
      return el("td", { class: headings[c].number ? "right" : "" }, content ?? "");
    }));
    return tr;
  }));
  const given = rows.map((cells, place) => ({ cells, place }));
  const sort = (c, down) => {
    sortings.set(caption, { label: headings[c].label, down });
    cells.forEach((other) => other.removeAttribute("aria-sort"));
    cells[c].setAttribute("aria-sort", down ? "descending" : "ascending");
    const sign = down ? -1 : 1;
    fill([...given].sort((a, b) => {
      const [x, y] = [key(a.cells[c]), key(b.cells[c])];
      const [noX, noY] = [x === null || x === undefined || x === "", y === null || y === undefined || y === ""];
      if (noX || noY) return noX - noY;
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
    }));
  };
  const cells = headings.map((heading, c) => {
    const th = el("th", { scope: "col", class: heading.number ? "right" : "" }, el("button", { type: "button", onclick: () =>
      sort(c, th.getAttribute("aria-sort") === "ascending" || (!th.hasAttribute("aria-sort") && Boolean(heading.number))) }, heading.label));
    return th;
  });
  fill(given);
  const before = sortings.get(caption);
  const place = before ? headings.findIndex((heading) => heading.label === before.label) : -1;
  if (place >= 0) sort(place, before.down);
  return el("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption },
    el("table", { class: "data" }, el("thead", {}, el("tr", {}, cells)), body));
};

const pill = (verdict) => {
  const plain = verdict.replace(/ \*$/, "");
  const kind = { holds: "good", yes: "good", "yes, faster": "good", reversed: "bad", no: "bad", best: "best" }[plain] || "";
  return el("span", { class: `pill ${kind}` }, verdict);
};
const SHORT = { standing: "Ranking", capacity: "Capacity", coverage: "Coverage", data: "Data", time: "Time", troubles: "Refused", differences: "Differences", repeat: "Repeat", fitted: "Fitted" };
const section = (id, title, about, ...children) =>
  el("section", { id, "data-short": SHORT[id.split("-")[0]] || title, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title),
    about ? el("p", { class: "about" }, about) : null, ...children);
const copyable = (text) => {
  const button = el("button", { type: "button", "aria-label": "Copy", onclick: async () => {
    try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(pre); button.textContent = "Selected"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  } }, "Copy");
  const pre = el("pre", { tabindex: "0" }, text);
  return el("div", { class: "copy" }, pre, button);
};

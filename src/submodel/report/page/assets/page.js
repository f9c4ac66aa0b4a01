// The whole page: sections, colours, printing, and updates during a run.

const state = { measure: null, x: "round", log: false, seeds: false, hidden: new Set(), filter: "", capacityGroup: 0, run: 0, coverage: { place: 0, round: null, number: null, level: null, cut: null, all: false }, onChange: [],
  changed() { this.onChange.forEach((callback) => callback()); } };
let current = null;

// arms tested on different data share no chart unless the filter is changed
const chooseData = (data) => {
  const names = [...new Set(data.standings.map((standing) => standing.data))];
  if (current === null && names.length > 1) state.filter = `data.name=${names[0]}`;
};

const render = (data) => {
  charts.forEach((chart) => chart.close());
  state.onChange = [];
  const warnings = data.warnings.length ? el("div", { class: "warnings", role: "note" }, el("strong", {}, data.warnings.length > 1 ? `${data.warnings.length} warnings` : "Warning"),
    el("ul", {}, data.warnings.slice(0, 12).map((text) => el("li", {}, text)), data.warnings.length > 12 ? el("li", {}, `and ${data.warnings.length - 12} more`) : null)) : null;
  const lead = el("div", { class: "lead" }, el("h1", {}, data.title), el("p", { id: "sentence" }, data.sentence.replaceAll(" %", "\u00a0%")),
    data.words.length ? el("p", { class: "words" }, data.words.join("; ")) : null, numbersList(data), warnings);
  const sections = [curvesSection(data, state), standingSection(data, state), capacitySection(data, state), fittedSection(data), coverageSection(data, state), ...tableSections(data), ...studySections(data),
    partitionSection(data), timeSection(data, state), troubleSection(data), differenceSection(data), repeatSection(data, state)].filter(Boolean);
  const main = document.getElementById("main");
  const returnToPlace = rememberPlace();
  main.replaceChildren(lead, ...sections);
  returnToPlace();
  document.getElementById("contents").replaceChildren(...sections.map((node) => el("a", { href: `#${node.id}` }, node.dataset.short.split(":")[0])));
  document.getElementById("footer").replaceChildren(el("p", {}, `Written by submodel ${data.versions.submodel}. ${LIVE ? "It is updated while “submodel watch” runs." : "This file is complete; it loads nothing from a network."}`));
  if (LIVE) showStates(data);
};

// draw newer data; called by a live page or by another script
const update = (data) => {
  for (const part of ["partitions", "coverage"]) if (data[part] === null && current) data[part] = current[part];
  chooseData(data);
  current = data;
  render(data);
};

const redraw = () => charts.forEach((chart) => chart.draw());
const isDark = () => (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  try { localStorage.setItem("submodel-theme", document.documentElement.dataset.theme); } catch { /* a page from a file may have no storage */ }
  redraw();
});
try {
  const theme = localStorage.getItem("submodel-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* as above */ }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

let width = innerWidth;
addEventListener("resize", () => {
  charts.forEach((chart) => chart.resize());
  if ((width < 640) !== (innerWidth < 640)) redraw();
  width = innerWidth;
});

// print on white, with all charts drawn
let theme;
addEventListener("beforeprint", () => {
  theme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  document.documentElement.classList.add("printing");  // set the width of paper before charts are measured
  charts.forEach((chart) => { chart.show(); chart.resize(); chart.draw(); });
});
addEventListener("afterprint", () => {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  document.documentElement.classList.remove("printing");
  charts.forEach((chart) => { chart.resize(); chart.draw(); });
});

const given = document.getElementById("page-data").textContent;
update(JSON.parse(given));
window.submodelPage = { update };
if (LIVE) follow(given, update);

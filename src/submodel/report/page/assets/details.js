// Partition of data, time by phase, failures, differing settings, and reproduction.

// a table of numbers as a picture, darker for larger ones, with a readout by pointer or keys
const heatmap = (label, rows, columns, value, describe, cellHeight) => {
  const canvas = el("canvas", { role: "img", "aria-label": label, tabindex: "0", width: columns, height: rows });
  const readout = el("p", { class: "readout", "aria-live": "polite" });
  canvas.style.height = `${Math.max(60, Math.min(420, rows * cellHeight))}px`;
  let most = 0;
  for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) most = Math.max(most, value(r, c));
  const draw = () => {
    const context = canvas.getContext("2d");
    const ink = css("--heat");
    context.clearRect(0, 0, columns, rows);
    for (let r = 0; r < rows; r++) for (let c = 0; c < columns; c++) {
      context.fillStyle = `rgba(${ink}, ${0.04 + 0.96 * (value(r, c) / (most || 1))})`;
      context.fillRect(c, r, 1, 1);
    }
  };
  let here = [0, 0];
  const showReadout = () => { readout.textContent = describe(here[0], here[1]); };
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect();
    here = [Math.min(rows - 1, Math.floor(((event.clientY - box.top) / box.height) * rows)), Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns))];
    showReadout();
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    here = [Math.max(0, Math.min(rows - 1, here[0] + step[0])), Math.max(0, Math.min(columns - 1, here[1] + step[1]))];
    showReadout();
  });
  charts.add({ draw, resize: () => {}, close() { charts.delete(this); }, show: draw });
  draw();
  return { node: el("div", {}, canvas, readout), most, canvas };
};
const scaleOf = (least, most, unit) => el("span", { class: "scale" }, least, el("i"), `${most} ${unit}`);

const partitionSection = (data) => {
  if (!data.partitions || !data.partitions.length) return null;
  const parts = data.partitions.map((part) => {
    const heading = data.partitions.length > 1 ? el("h3", {}, part.title) : null;
    const words = el("p", { class: "about" }, part.words.join(" "));
    if (!part.counts) return el("div", {}, heading, words);
    const counts = floats(part.counts);
    if (!part.labels.length) {
      const sizes = [...counts.slice(0, part.clients)];
      const chart = new Chart("Examples of every client", () => ({
        grid: { left: 52, right: 12, top: 30, bottom: 40 },
        xAxis: { type: "category", data: sizes.map((_, i) => String(i)), name: "client", nameLocation: "middle", nameGap: 26, ...axisStyle(), splitLine: { show: false } },
        yAxis: { type: "value", name: "examples", ...axisStyle(), axisLine: { show: false }, axisLabel: { ...axisStyle().axisLabel, formatter: (v) => amount(v) } },
        tooltip: { trigger: "axis", ...tooltipStyle(), formatter: ([p]) => tip(`client ${p.axisValue}`, [[null, "examples", digits(p.value, 7)]]) },
        series: [{ type: "bar", data: sizes, color: css("--c0"), barCategoryGap: "10%" }],
      }), "low");
      return el("div", {}, heading, words, chart.node);
    }
    // labels are rows, clients columns, as there are more clients
    const rows = part.labels.length;
    const map = heatmap(`Examples of every label, client by client: ${part.words.join(" ")}`, rows, part.clients, (r, c) => counts[c * rows + r],
      (r, c) => `client ${c}, label ${part.labels[r]}: ${counts[c * rows + r]} examples`, Math.max(8, Math.min(22, 260 / rows)));
    return el("div", {}, heading, words, map.node, el("p", { class: "note" }, `Rows are ${rows} labels (${part.labels[0]} at the top, ${part.labels[rows - 1]} at the bottom), columns are clients. `, scaleOf("0", map.most, "examples")));
  });
  return section("data", "Partition of data", null, parts);
};

const timeSection = (data, state) => {
  const groups = data.groups.map((group, place) => ({ group, place })).filter(({ group }) => group.runs.some((run) => Object.keys(data.runs[run].phases).length));
  if (!groups.length) return null;
  const phases = [...new Set(data.runs.flatMap((run) => Object.keys(run.phases)))];
  const perRound = (group, phase) => meanOf(group.runs.map((run) => (data.runs[run].phases[phase] || 0) / Math.max(1, data.runs[run].rounds)));
  const total = (phase) => mean(groups.map(({ group }) => perRound(group, phase)));
  phases.sort((a, b) => total(b) - total(a));
  const chart = new Chart("Seconds of a round by phase", () => {
    const shown = groups.filter(({ place }) => isShown(data, state, place)).reverse();
    const narrow = innerWidth < 640;
    return {
      grid: { left: shown.length > 1 ? (narrow ? 96 : 190) : 12, right: 24, top: 8, bottom: 44 },
      xAxis: { type: "value", name: "seconds of a round", nameLocation: "middle", nameGap: 28, ...axisStyle(), axisLabel: { ...axisStyle().axisLabel, formatter: (v) => digits(v) } },
      yAxis: { type: "category", data: shown.map(({ group }) => group.label), ...axisStyle(), axisLine: { show: false }, axisLabel: { show: shown.length > 1, color: css("--ink"), width: narrow ? 88 : 178, overflow: "truncate" } },
      tooltip: { trigger: "axis", axisPointer: { type: "shadow" }, ...tooltipStyle(), formatter: (params) => tip(params[0].axisValue, params.filter((p) => p.value > 0).map((p) => [p.seriesIndex, p.seriesName, duration(p.value)])) },
      series: phases.map((phase, i) => ({ type: "bar", stack: "phases", name: phase, color: css(colour(i)), barMaxWidth: 26, itemStyle: { borderColor: css("--ground"), borderWidth: 1 }, data: shown.map(({ group }) => perRound(group, phase)) })),
    };
  });
  chart.node.style.height = `${Math.min(560, 90 + 30 * groups.length)}px`;
  state.onChange.push(() => chart.draw());
  const rows = phases.map((phase, i) => [{ value: phase, node: el("span", {}, swatch(i), ` ${phase}`) }, ...[total(phase), total(phase) / phases.reduce((sum, p) => sum + total(p), 0)].map((v, k) => ({ value: v, text: k ? `${(100 * v).toFixed(1)} %` : duration(v) }))]);
  return section("time", "Time by phase", null, chart.node, dataTable("Seconds by phase", [{ label: "phase" }, { label: "of a round", number: true }, { label: "share", number: true }], rows));
};

const troubleSection = (data) => {
  const rows = data.runs.flatMap((run) => run.troubles.map((trouble) => [run.path || run.name, pill(trouble.kind).textContent, trouble.reason, { value: trouble.count, text: String(trouble.count) },
    trouble.clients.join(", "), { value: trouble.first_round, text: trouble.first_round === trouble.last_round ? `${trouble.first_round}` : `${trouble.first_round} to ${trouble.last_round}` }]));
  const updates = data.runs.some((run) => Object.keys(run.phases).length);
  if (!updates) return null;
  if (!rows.length) return section("troubles", "Refused and missing", "No update was refused, and no device was missing.");
  return section("troubles", "Refused and missing", "Updates that were not merged, and devices without an answer, by reason.",
    dataTable("Refused and missing", [{ label: "run" }, { label: "what" }, { label: "reason" }, { label: "times", number: true }, { label: "clients" }, { label: "rounds" }], rows));
};

const differenceSection = (data) => {
  const keys = [...new Set(data.groups.flatMap((group) => Object.keys(group.settings)))];
  if (data.groups.length < 2) return null;
  if (!keys.length) return section("differences", "Differences", "The configurations differ only in seeds and names.");
  const rows = data.groups.map((group, place) => [{ value: group.label, node: el("span", {}, swatch(place), ` ${group.label}`) }, ...keys.map((key) => group.settings[key] ?? "–")]);
  return section("differences", "Differences", "Keys of the configuration that differ between arms; all others are equal.",
    dataTable("Differences of configuration", [{ label: "arm" }, ...keys.map((label) => ({ label }))], rows));
};

const tableSections = (data) => data.tables.map((table, i) => {
  const judged = table.headings.indexOf(table.verdicts);
  const rows = table.rows.map((row) => row.map((cell, c) => (c === judged ? { value: cell, node: pill(cell) } : cell)));
  const numeric = table.headings.map((_, c) => table.rows.every((row) => /^[[\d+<−-]|^$/.test(row[c])) && c !== judged);
  return section(`table-${i}`, table.title, null, dataTable(table.title, table.headings.map((label, c) => ({ label, number: numeric[c] })), rows), table.note ? el("p", { class: "note" }, table.note) : null);
});

// how to train a run again: a command, devices, or the Python program with model and data
const repeatCommand = (run) => {
  if (run.settings["model.name"] === "own" || run.settings["data.name"] === "own") {
    return ["Its model or data came from Python. With the same objects, and the configuration saved as config.toml:", "submodel.train(model, data, submodel.config.read(\"config.toml\"), out=\"runs/again\")"];
  }
  if (run.settings["engine.name"] === "flower") return ["It was trained over devices. Save the configuration as config.toml, and let devices join:", "submodel serve config.toml"];
  return ["Save the configuration as config.toml, and train:", "submodel train config.toml"];
};

const repeatSection = (data, state) => {
  if (!data.runs.length) return null;
  const panel = el("div");
  const show = (place) => {
    state.run = Math.min(place, data.runs.length - 1);
    const run = data.runs[state.run];
    const facts = [["run", run.path || run.name], ["seed", String(run.seed)], ["rounds", run.rounds === run.planned_rounds ? `${run.rounds}` : `${run.rounds} of ${run.planned_rounds}`], ["model sha256", run.model_sha256 || "not finished"]];
    const [words, command] = repeatCommand(run);
    panel.replaceChildren(
      el("dl", { class: "facts" }, facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, el("code", {}, value))])),
      el("p", { class: "note" }, words), copyable(command),
      el("details", {}, el("summary", {}, "config.toml"), copyable(run.toml)));
  };
  show(state.run);
  const select = data.runs.length > 1 ? el("div", { class: "controls" }, el("label", {}, "Run ", choice("Run", data.runs.map((run, place) => [String(place), `${run.path || run.name}, seed ${run.seed}`]), String(state.run), (place) => show(Number(place))))) : null;
  const versions = Object.entries(data.versions).map(([name, version]) => `${name} ${version}`).join(", ");
  return section("repeat", "Reproduction", `The same configuration and seed give the same model, byte for byte, with equal versions on an equal machine. This page was written with ${versions}.`, data.commands.map(copyable), select, panel);
};

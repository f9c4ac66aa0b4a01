// Studies of the theory lab: verdicts, numbers with intervals, and a chart of any of them.

const studySections = (data) => data.studies.map((study, i) => {
  const id = `study-${i}`;
  const judged = study.claims.headings.indexOf(study.claims.verdicts);
  const counts = new Map();
  study.claims.rows.forEach((row) => { const verdict = row[judged].replace(/ \*$/, ""); counts.set(verdict, (counts.get(verdict) || 0) + 1); });
  const chips = el("p", {}, [...counts].flatMap(([verdict, count]) => [pill(verdict), ` ${count}  `]));
  const claims = dataTable(`Statements of ${study.name}`, study.claims.headings.map((label) => ({ label })),
    study.claims.rows.map((row) => row.map((cell, c) => (c === judged ? { value: cell, node: pill(cell) } : cell))));
  const lazily = (summary, make) => {
    const node = el("details", {}, el("summary", {}, summary));
    node.addEventListener("toggle", () => { if (node.open && node.children.length === 1) node.append(make()); });
    return node;
  };
  const settings = lazily("Settings", () => el("dl", { class: "facts" }, Object.entries(study.settings).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])));
  const all = lazily(`All ${study.rows.length} rows`, () => dataTable(`Rows of ${study.name}`, study.headings.map((label) => ({ label, number: true })),
    study.rows.map((row) => row.map((cell) => (typeof cell === "number" ? { value: cell, text: digits(cell, 5) } : cell ?? "")))));
  const picture = study.picture ? lazily("Figure of the study", () => el("img", { class: "figure", src: study.picture, alt: `Figure: ${study.title}` })) : null;
  return section(id, study.title, null, chips, studyChart(study), claims, el("p", { class: "note" }, study.claims.note),
    study.notes.map((note) => el("p", { class: "note" }, note)), settings, all, picture);
});

// a number of the study against a parameter, a line for each setting of the others
const studyChart = (study) => {
  const place = new Map(study.headings.map((name, c) => [name, c]));
  const measures = study.headings.filter((name) => place.has(`${name} low`) && place.has(`${name} high`));
  if (!measures.length) return null;
  const parameters = study.headings.slice(0, place.get(measures[0]));
  const values = (name) => new Set(study.rows.map((row) => row[place.get(name)]));
  const axes = parameters.filter((name) => values(name).size > 1 && [...values(name)].every((v) => typeof v === "number"));
  if (!axes.length) return null;
  axes.sort((a, b) => (b === "R") - (a === "R") || values(b).size - values(a).size);
  const state = { x: axes[0], y: measures[0], log: true };
  const lines = () => {
    const others = parameters.filter((name) => name !== state.x && name !== "eta" && values(name).size > 1);  // eta depends on the others
    const series = new Map();
    for (const row of study.rows) {
      const key = others.map((name) => row[place.get(name)]).join("|");
      if (!series.has(key)) series.set(key, []);
      series.get(key).push(row);
    }
    const full = [...series.values()].filter((rows) => new Set(rows.map((row) => row[place.get(state.x)])).size > 1 && isNumber(rows[0][place.get(state.y)]));
    const varying = others.filter((name) => new Set(full.map((rows) => rows[0][place.get(name)])).size > 1);
    return full.slice(0, 16).map((rows, i) => ({
      name: varying.map((name) => { const value = rows[0][place.get(name)]; return value === "true" ? name : typeof value === "string" ? value : `${name} ${value}`; }).filter((word) => word !== "false").join(", ") || state.y,
      place: i, rows: rows.slice().sort((a, b) => a[place.get(state.x)] - b[place.get(state.x)]) }));
  };
  const at = (row, suffix = "") => row[place.get(state.y + suffix)];
  const chart = new Chart(`Chart of ${study.title}`, () => {
    const isDrawn = (row) => !state.log || (row[place.get(state.x)] > 0 && at(row) > 0);
    const shown = lines().map((line) => ({ ...line, rows: line.rows.filter(isDrawn) }));
    const kind = state.log ? "log" : "value";
    return {
      grid: { left: 62, right: 18, top: 34, bottom: 44 },
      xAxis: { type: kind, min: "dataMin", max: "dataMax", name: state.x, nameLocation: "middle", nameGap: 28, scale: true, ...axisStyle(), splitLine: { show: false }, axisLabel: { ...axisStyle().axisLabel, formatter: (v) => digits(v) } },
      yAxis: { type: kind, name: state.y, scale: true, ...axisStyle(), axisLine: { show: false }, nameTextStyle: { color: css("--muted"), align: "left", padding: [0, 0, 0, -54] }, axisLabel: { ...axisStyle().axisLabel, formatter: (v) => (v !== 0 && (Math.abs(v) < 1e-3 || Math.abs(v) >= 1e5) ? v.toExponential(0) : digits(v)) } },
      tooltip: { trigger: "item", ...tooltipStyle(), formatter: (p) => {
        const line = shown[Number(p.seriesId.split("-")[1])];
        const row = line.rows[p.dataIndex];
        const exact = place.has(`${state.y} exact`) ? [[null, "exact", isNumber(at(row, " exact")) ? digits(at(row, " exact"), 4) : "–"]] : [];
        return tip(`${line.name}, ${state.x} ${p.value[0]}`, [[line.place, state.y, digits(p.value[1], 4)], [null, "95 % interval", `${digits(at(row, " low"), 3)} – ${digits(at(row, " high"), 3)}`], ...exact]);
      } },
      series: shown.flatMap((line) => [{ type: "line", id: `line-${line.place}`, name: line.name, color: css(colour(line.place)), symbol: "circle", symbolSize: 7, lineStyle: { width: 2, type: stroke(line.place) }, emphasis: { focus: "series" },
        data: line.rows.map((row) => [row[place.get(state.x)], at(row)]) },
      { type: "custom", silent: true, name: line.name, data: line.rows.map((row) => [row[place.get(state.x)], at(row, " low"), at(row, " high")]), tooltip: { show: false }, encode: { x: 0, y: [1, 2] },
        renderItem: (_, api) => {
          if (state.log && !(api.value(1) > 0)) return null;
          const [low, high] = [api.coord([api.value(0), api.value(1)]), api.coord([api.value(0), api.value(2)])];
          return { type: "line", shape: { x1: low[0], y1: low[1], x2: high[0], y2: high[1] }, style: { stroke: css(colour(line.place)), lineWidth: 1.5, opacity: 0.6 } };
        } }]),
    };
  });
  const names = el("div", { class: "legend" });
  const redraw = () => {
    chart.draw();
    names.replaceChildren(...lines().map((line) => el("span", { class: "chip" }, swatch(line.place), line.name)));
  };
  redraw();
  return el("div", {}, el("div", { class: "controls" },
    el("label", {}, "Number ", choice("Number", measures.map((name) => [name, name]), state.y, (value) => { state.y = value; redraw(); })),
    el("label", {}, "against ", choice("Against", axes.map((name) => [name, name]), state.x, (value) => { state.x = value; redraw(); })),
    el("label", {}, el("input", { type: "checkbox", checked: true, onchange: (event) => { state.log = event.target.checked; redraw(); } }), " logarithmic")), chart.node, names);
};

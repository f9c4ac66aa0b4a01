// Curves against rounds, bytes, FLOPs or time; several seeds form a band from the least to the most.

// x and y values of one run, from rows that have both
const curveOf = (run, measure, x) => {
  const table = run[measure.table];
  const [places, values] = [column(table, x), column(table, measure.key)];
  const points = { x: [], y: [] };
  if (!places || !values) return points;
  for (let row = 0; row < values.length; row++) {
    if (Number.isFinite(places[row]) && Number.isFinite(values[row])) {
      points.x.push(places[row]);
      points.y.push(values[row]);
    }
  }
  return points;
};

const interpolate = (curve, place) => {
  let high = curve.x.findIndex((x) => x >= place);
  if (high === -1) high = curve.x.length - 1;
  if (high === 0 || curve.x[high] === place) return curve.y[high];
  const [a, b] = [curve.x[high - 1], curve.x[high]];
  return curve.y[high - 1] + ((curve.y[high] - curve.y[high - 1]) * (place - a)) / (b - a);
};

// several curves over their common range: bytes of the same round differ between seeds
const bandOf = (curves) => {
  const some = curves.filter((curve) => curve.x.length);
  if (!some.length) return null;
  if (some.length === 1) return { x: some[0].x, mean: some[0].y, low: null, high: null };
  const first = Math.max(...some.map((c) => c.x[0]));
  const last = Math.min(...some.map((c) => c.x[c.x.length - 1]));
  let grid = [...new Set(some.flatMap((c) => c.x))].filter((x) => x >= first && x <= last).sort((a, b) => a - b);
  if (first > last) grid = [mean(some.map((c) => c.x[c.x.length - 1]))];
  if (grid.length > 1500) grid = grid.filter((_, i) => i % Math.ceil(grid.length / 1500) === 0 || i === grid.length - 1);
  const table = some.map((curve) => resample(curve, grid));
  const over = (f) => grid.map((_, i) => f(table.map((row) => row[i])));
  return { x: grid, mean: over(mean), low: over((v) => Math.min(...v)), high: over((v) => Math.max(...v)) };
};
const resample = (curve, grid) => {
  let high = 0;
  return grid.map((place) => {
    while (high < curve.x.length - 1 && curve.x[high] < place) high++;
    return interpolate({ x: curve.x.slice(Math.max(0, high - 1), high + 1), y: curve.y.slice(Math.max(0, high - 1), high + 1) }, place);
  });
};

// offsets of the names at line ends that keep them apart
const labelShifts = (lines, [low, high], height) => {
  const gap = 15;
  const ends = lines.map((line) => ({ line, at: height * (1 - (line.band.mean[line.band.mean.length - 1] - low) / (high - low)) })).sort((a, b) => a.at - b.at);
  const free = ends.map((end) => end.at);
  for (let turn = 0; turn < 60; turn++) {
    for (let i = 1; i < free.length; i++) {
      const over = gap - (free[i] - free[i - 1]);
      if (over > 0) { free[i] += over / 2; free[i - 1] -= over / 2; }
    }
  }
  return new Map(ends.map((end, i) => [end.line, free[i] - end.at]));
};

// lines: [{name, place, band, dash}]
const lineOption = (lines, { x, form, log, labels, title, height }) => {
  const narrow = innerWidth < 640;
  const loud = lines.filter((line) => !line.quiet);
  const longest = Math.max(0, ...loud.map((line) => Math.min(line.name.length, 26)));
  const direct = labels && loud.length <= 8 && lines.length > 1 && (!narrow || longest < 6);
  const ends = lines.flatMap((line) => [...(line.band.low || line.band.mean), ...(line.band.high || line.band.mean)]).filter((v) => !log || v > 0);
  const [least, most] = [Math.min(...ends), Math.max(...ends)];
  const pad = (most - least) * 0.05 || Math.abs(most) * 0.05 || 1;
  const bound = form === "percent" ? [Math.max(0, least - pad), Math.min(1, most + pad)] : [least >= 0 ? Math.max(0, least - pad) : least - pad, most + pad];
  const shifts = log ? new Map() : labelShifts(loud, bound, height - 78);
  const series = lines.flatMap((line) => {
    const { band } = line;
    const ink = css(line.quiet ? "--faint" : line.colour || colour(line.place));
    const points = band.x.map((place, i) => [place, band.mean[i]]);
    const curve = {
      type: "line", name: line.name, id: `line-${line.name}-${line.place}`, data: points, color: ink, z: line.quiet ? 2 : 3,
      showSymbol: points.length <= 12 && !line.quiet, symbol: "circle", symbolSize: 5, sampling: "lttb",
      lineStyle: line.quiet ? { width: 1, opacity: 0.55 } : { width: 2, type: line.dash || stroke(line.place) },
      emphasis: { focus: "series", lineStyle: { width: 3, opacity: 1, color: css(line.colour || colour(line.place)) } },
      blur: { lineStyle: { opacity: 0.15 } },
      endLabel: direct && !line.quiet
        ? { show: true, formatter: () => line.name, color: ink, fontSize: 12, fontWeight: 600, distance: 8, width: 190, overflow: "truncate", offset: [0, shifts.get(line) || 0] }
        : { show: false },
    };
    if (!band.low || band.x.length < 2 || line.quiet) return [curve];
    const outline = [...band.x.map((place, i) => [place, band.high[i]]), ...band.x.map((place, i) => [place, band.low[i]]).reverse()];
    const area = {
      type: "custom", name: line.name, silent: true, z: 1, clip: true, tooltip: { show: false },
      data: [[0, 0]], encode: { x: -1, y: -1 },
      renderItem: (_, api) => ({ type: "polygon", shape: { points: outline.map((p) => api.coord(p)) }, style: { fill: ink, opacity: 0.13 } }),
    };
    return [area, curve];
  });
  const byName = new Map(lines.map((line) => [line.name, line]));
  return {
    grid: { left: narrow ? 46 : 58, right: direct ? Math.min(205, 24 + 6.8 * longest) : 18, top: 34, bottom: 44 },
    xAxis: { type: "value", min: 0, max: "dataMax", name: AXES[x].title, nameLocation: "middle", nameGap: 28, ...axisStyle(),
      splitLine: { show: false }, splitNumber: narrow ? 4 : 7, minInterval: x === "round" ? 1 : undefined,
      axisLabel: { ...axisStyle().axisLabel, formatter: AXES[x].write, showMaxLabel: true, alignMaxLabel: "right" } },
    yAxis: { type: log ? "log" : "value", min: log ? undefined : bound[0], max: log ? undefined : bound[1], scale: true,
      name: title, nameLocation: "end", nameGap: 14, ...axisStyle(), axisLine: { show: false },
      nameTextStyle: { color: css("--muted"), align: "left", padding: [0, 0, 0, narrow ? -40 : -50] },
      axisLabel: { ...axisStyle().axisLabel, showMinLabel: false, showMaxLabel: false, formatter: (v) => (form === "percent" ? `${digits(100 * v)} %` : digits(v, 3)) } },
    tooltip: { trigger: "axis", ...tooltipStyle(), axisPointer: { type: "line", lineStyle: { color: css("--faint") } },
      formatter: (params) => {
        const shown = params.filter((p) => p.seriesType === "line").sort((a, b) => b.value[1] - a.value[1]);
        if (!shown.length) return "";
        const rows = shown.slice(0, 12).map((p) => {
          const line = byName.get(p.seriesName);
          const { band } = line;
          const range = band.low ? ` (${written(band.low[p.dataIndex], form)} – ${written(band.high[p.dataIndex], form)})` : "";
          return [line.colour ? null : line.place, p.seriesName, written(p.value[1], form) + range];
        });
        if (shown.length > 12) rows.push([null, `and ${shown.length - 12} more`, ""]);
        return tip(`${AXES[x].title} ${AXES[x].write(shown[0].value[0])}`, rows);
      } },
    series,
  };
};

const MOST_LOUD = 6;
const curvesSection = (data, state) => {
  const measures = new Map(data.measures.map((measure) => [measure.key, measure]));
  if (!measures.size) return null;
  if (!measures.has(state.measure)) state.measure = data.measures[0].key;
  const current = () => measures.get(state.measure);
  const groups = () => data.groups.map((group, place) => ({ group, place })).filter(({ place }) => isShown(data, state, place));
  const lines = () => groups().flatMap(({ group, place }) => {
    const curves = group.runs.map((run) => curveOf(data.runs[run], current(), state.x));
    if (state.seeds && group.runs.length > 1) {
      return curves.map((curve, i) => ({ name: `${group.label}, seed ${data.runs[group.runs[i]].seed}`, place, band: { x: curve.x, mean: curve.y } }))
        .filter((line) => line.band.x.length);
    }
    const band = bandOf(curves);
    return band ? [{ name: group.label, place, band }] : [];
  });
  // of many arms, only the best are coloured
  const withQuiet = (all) => {
    const standings = standingsBy(data, state.measure);
    if (state.seeds || all.length <= MOST_LOUD + 2 || !standings.length) return all;
    const better = measures.get(standings[0].measure)?.better === "less" ? 1 : -1;
    const means = new Map(standings.flatMap((standing) => standing.rows.map((row) => [row.group, row.mean])));
    const order = [...all].sort((a, b) => better * ((means.get(a.place) ?? Infinity * better) - (means.get(b.place) ?? Infinity * better)));
    const best = new Set(order.slice(0, MOST_LOUD));
    return all.map((line) => ({ ...line, quiet: !best.has(line) }));
  };
  const chart = new Chart("Curves of every arm", () =>
    lineOption(withQuiet(lines()), { x: state.x, form: current().form, log: state.log, labels: !state.seeds, title: current().label, height: chart.node.clientHeight }));
  chart.node.id = "curves-chart";
  const axisChoices = Object.entries(AXES).filter(([key]) => data.runs.some((run) => column(run.scores, key) || column(run.every, key)));
  if (!axisChoices.some(([key]) => key === state.x)) state.x = "round";
  const several = data.groups.some((group) => group.runs.length > 1);
  const check = (label, name) => el("label", {}, el("input", { type: "checkbox", checked: state[name], onchange: (event) => {
    state[name] = event.target.checked;
    chart.draw();
  } }), ` ${label}`);
  const controls = el("div", { class: "controls" },
    el("label", {}, "Measure ", choice("Measure", data.measures.map((m) => [m.key, m.label]), state.measure, (key) => {
      state.measure = key;
      state.changed();
    })),
    segments("Against", Object.fromEntries(axisChoices.map(([key, axis]) => [key, axis.label])), state.x, (key) => {
      state.x = key;
      state.changed();
    }),
    check("logarithmic", "log"), several ? check("every seed", "seeds") : null);
  state.onChange.push(() => chart.draw());
  state.highlight = (place) => {
    if (!chart.instance) return;
    chart.instance.dispatchAction(place === null ? { type: "downplay" } : { type: "highlight", seriesName: data.groups[place].label });
  };
  const words = [several ? "Lines are means over seeds, bands range from the least to the most." : "",
    data.groups.length > MOST_LOUD + 2 ? `Of more than ${MOST_LOUD + 2} arms, the best ${MOST_LOUD} are coloured; hide or filter arms to colour others.` : ""];
  const about = words.filter(Boolean).join(" ") || null;
  return section("curves", "Curves", about, controls, chart.node, data.groups.length > 1 ? legend(data, state) : null);
};

const isShown = (data, state, place) => {
  const group = data.groups[place];
  if (state.hidden.has(group.label)) return false;
  const words = state.filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = [group.label, ...Object.entries(group.settings).map(([key, value]) => `${key}=${value}`)].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
};
const toggle = (data, state, place) => {
  const { label } = data.groups[place];
  if (!state.hidden.delete(label)) state.hidden.add(label);
  state.changed();
};

const legend = (data, state) => {
  const chips = data.groups.map((group, place) => el("button", {
    type: "button", class: "chip", onclick: () => toggle(data, state, place),
    onmouseenter: () => state.highlight(place), onmouseleave: () => state.highlight(null),
  }, swatch(place), group.label));
  const search = el("input", { type: "search", placeholder: "Filter, such as rolling", "aria-label": "Filter arms by name or setting",
    value: state.filter, oninput: () => { state.filter = search.value; state.changed(); } });
  const all = (label, hide) => el("button", { type: "button", class: "quiet", onclick: () => {
    state.hidden = new Set(hide ? data.groups.map((group) => group.label) : []);
    state.changed();
  } }, label);
  const update = () => chips.forEach((chip, place) => chip.setAttribute("aria-pressed", String(isShown(data, state, place))));
  state.onChange.push(update);
  update();
  return el("div", {}, el("div", { class: "controls" }, search, all("Show all", false), all("Hide all", true)),
    el("div", { class: "legend", role: "group", "aria-label": "Arms" }, chips));
};

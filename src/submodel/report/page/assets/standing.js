// Headline numbers and the ranking of arms: means, intervals, paired tests.

const bytesOf = (run) => run.totals.bytes ?? (isNumber(run.totals.bytes_down) ? run.totals.bytes_down + run.totals.bytes_up : null);
const numbersOf = (values) => values.filter(isNumber);
const meanOf = (values) => (numbersOf(values).length ? mean(numbersOf(values)) : null);

// rankings by one measure, one per dataset: arms tested on different data are not compared
const headlineKey = (data) => (data.standings.find((s) => s.measure === "test_accuracy") || data.standings[0])?.measure;
const standingsBy = (data, measure) => {
  const some = data.standings.filter((s) => s.measure === measure);
  return some.length ? some : data.standings.filter((s) => s.measure === headlineKey(data));
};
const formOf = (data, key) => data.measures.find((measure) => measure.key === key)?.form || "number";

const numbersList = (data) => {
  const { runs, groups } = data;
  const items = [];
  const add = (label, value, small) => items.push(el("div", {}, el("dt", {}, label),
    el("dd", { class: value.length > 14 ? "long" : "" }, value, small ? el("small", {}, ` ${small}`) : null)));
  const each = groups.length > 1 || runs.length > 1 ? "a run" : "";
  if (groups.length > 1 && data.standings.length) {
    for (const standing of standingsBy(data, headlineKey(data))) {
      const form = formOf(data, standing.measure);
      const row = standing.rows.find((one) => one.group === standing.best);
      const on = standing.data ? `, ${standing.data}` : "";
      add(`best ${standing.label}${on}`, written(row.mean, form), row.deviation ? `± ${signed(row.deviation, form).slice(1)} (standard deviation over seeds)` : "");
      add(`best arm${on}`, groups[standing.best].label);
    }
    add("arms × runs", `${groups.length}`, `${runs.length} runs`);
  } else {
    const shown = data.standings.slice().sort((a, b) => (b.measure === "test_accuracy") - (a.measure === "test_accuracy"));
    for (const standing of shown.filter((s) => s.measure.startsWith("test_")).slice(0, 3)) {
      const form = formOf(data, standing.measure);
      const row = standing.rows[0];
      add(standing.label, written(row.mean, form), row.deviation ? `± ${signed(row.deviation, form).slice(1)} (standard deviation over seeds)` : "");
    }
    const sizes = capacityKeys(data);
    if (sizes.length > 1) {
      const least = sizes[0];
      add(`at capacity ${share(least.capacity)}`, written(meanOf(runs.map((run) => run.final[least.key])), least.form));
    }
  }
  if (runs.length) {
    add("traffic", amount(meanOf(runs.map(bytesOf)), "B"), each);
    add("clients' FLOPs", amount(meanOf(runs.map((run) => run.totals.flops))), each);
    add("time", duration(meanOf(runs.map((run) => run.totals.seconds))), each);
  }
  for (const study of data.studies) {
    const verdicts = study.claims.rows.map((row) => row[row.length - 1].replace(/ \*$/, ""));
    const yes = verdicts.filter((verdict) => verdict.startsWith("yes")).length;
    add(study.name, `${yes} hold`, `of ${verdicts.filter((verdict) => verdict !== "-" && verdict !== "no theorem").length}`);
  }
  return items.length ? el("dl", { class: "numbers" }, items) : null;
};

// an interval as a line around zero, on one scale for the whole table
const forest = (row, scale) => {
  const at = (value) => 4 + (168 * (value - scale[0])) / (scale[1] - scale[0] || 1);
  const node = svgElement("svg", { class: "forest", viewBox: "0 0 176 22", "aria-hidden": "true" });
  node.append(svgElement("line", { x1: at(0), x2: at(0), y1: 1, y2: 21, stroke: "var(--line)", "stroke-width": 1.5 }));
  const ink = `var(${colour(row.group)})`;
  if (row.difference_interval) {
    const [low, high] = row.difference_interval;
    node.append(svgElement("line", { x1: at(low), x2: at(high), y1: 11, y2: 11, stroke: ink, "stroke-width": 2 }));
  }
  if (isNumber(row.difference)) node.append(svgElement("circle", { cx: at(row.difference), cy: 11, r: 4, fill: ink }));
  else if (row.verdict === "best") node.append(svgElement("circle", { cx: at(0), cy: 11, r: 4.5, fill: "var(--ground)", stroke: ink, "stroke-width": 2 }));
  return node;
};

const standingSection = (data, state) => {
  const { groups, runs } = data;
  if (groups.length < 2) return null;
  const several = new Set(data.standings.map((standing) => standing.data)).size > 1;
  const box = el("div");
  const draw = () => {
    const shown = standingsBy(data, state.measure).filter((standing) => standing.rows.some((r) => isShown(data, state, r.group)));
    const tables = shown.flatMap((standing) => [standing.data ? el("h3", {}, standing.data) : null, table(standing)]);
    box.replaceChildren(...(tables.length ? tables.filter(Boolean) : [costs()]));
  };
  const of = (place, value) => meanOf(groups[place].runs.map((run) => value(runs[run])));
  const nameCell = (place) => ({ value: groups[place].label, node: el("button", { type: "button", class: "name",
    "aria-pressed": String(isShown(data, state, place)), onclick: (event) => { event.stopPropagation(); toggle(data, state, place); } },
    swatch(place), " ", groups[place].label) });
  const costHeadings = [{ label: "seeds", number: true }, { label: "rounds", number: true }, { label: "traffic", number: true },
    { label: "FLOPs", number: true }, { label: "time", number: true }];
  const costCells = (place) => {
    const [rounds, bytes, flops, seconds] = [(r) => r.rounds, bytesOf, (r) => r.totals.flops, (r) => r.totals.seconds].map((f) => of(place, f));
    const counts = groups[place].runs.map((run) => runs[run].rounds).filter(isNumber);
    const [least, most] = [Math.min(...counts), Math.max(...counts)];
    return [groups[place].runs.length, { value: rounds, text: !counts.length ? "–" : least === most ? `${least}` : `${least}–${most}` }, { value: bytes, text: amount(bytes, "B") },
      { value: flops, text: amount(flops) }, { value: seconds, text: duration(seconds) }];
  };
  const row = (place) => ({ class: `pick ${isShown(data, state, place) ? "" : "off"}`, onclick: () => toggle(data, state, place),
    onmouseenter: () => state.highlight?.(place), onmouseleave: () => state.highlight?.(null) });
  const costs = () => dataTable("Arms", [{ label: "arm" }, ...costHeadings], groups.map((_, place) => [nameCell(place), ...costCells(place)]), row);
  const table = (standing) => {
    const form = formOf(data, standing.measure);
    const better = data.measures.find((m) => m.key === standing.measure)?.better === "less" ? 1 : -1;
    const order = [...standing.rows].sort((a, b) => better * ((a.mean ?? Infinity * better) - (b.mean ?? Infinity * better)));
    const ends = standing.rows.flatMap((r) => [r.difference, ...(r.difference_interval || [])]).filter(isNumber);
    const widest = Math.max(...ends.map(Math.abs), 1e-9);
    const scale = [Math.max(Math.min(0, ...ends), -widest), Math.min(Math.max(0, ...ends), widest)];
    const unit = form === "percent" ? " (points)" : "";
    const headings = [{ label: "arm" }, { label: standing.label, number: true }, { label: `difference to the best${unit}` },
      { label: "mean", number: true }, { label: "95 % interval", number: true }, { label: "p (Holm)", number: true }, { label: "behind the best" }, ...costHeadings];
    const cells = order.map((r) => [
      nameCell(r.group),
      { value: r.mean, text: written(r.mean, form) + (groups[r.group].runs.length > 1 && isNumber(r.deviation) ? ` ± ${signed(r.deviation, form).slice(1)}` : "") },
      { value: r.difference, node: forest(r, scale) },
      { value: r.difference, text: signed(r.difference, form) },
      { value: r.difference_interval?.[0], text: r.difference_interval ? `[${r.difference_interval.map((end) => signed(end, form)).join(", ")}]` : "" },
      { value: r.p, text: isNumber(r.p) ? (r.p < 0.001 ? "< 0.001" : r.p.toFixed(3)) : "" },
      { value: r.verdict, node: pill(r.verdict) },
      ...costCells(r.group)]);
    const places = order.map((r) => r.group);
    return el("div", {}, dataTable(`Ranking of arms${standing.data ? ` on ${standing.data}` : ""}`, headings, cells, (place) => row(places[place])), el("p", { class: "note" }, standing.note));
  };
  state.onChange.push(draw);
  draw();
  return section("standing", "Ranking", `After the last evaluated round, by the measure selected above. Click a row to show or hide its curve.${several ? " Arms tested on different data are not compared; the filter above selects data." : ""}`, box);
};

// ---- scores by capacity

const share = (capacity) => {
  const inverse = 1 / capacity;
  return capacity === 1 ? "1" : Math.abs(inverse - Math.round(inverse)) < 1e-6 ? `1/${Math.round(inverse)}` : digits(capacity);
};
const capacityKeys = (data) => {
  for (const [part, form] of [["capacity_accuracy.", "percent"], ["capacity_loss.", "number"]]) {
    const keys = new Set(data.runs.flatMap((run) => Object.keys(run.final).filter((key) => key.startsWith(part) && isNumber(run.final[key]))));
    const list = [...keys].map((key) => ({ key, form, capacity: Number(key.slice(part.length)) })).filter((one) => isNumber(one.capacity));
    if (list.length) return list.sort((a, b) => a.capacity - b.capacity);
  }
  return [];
};

const capacitySection = (data, state) => {
  const keys = capacityKeys(data);
  if (keys.length < 2) return null;
  const { form } = keys[0];
  const word = form === "percent" ? "test accuracy" : "test loss";
  const groups = () => data.groups.map((group, place) => ({ group, place })).filter(({ group, place }) => isShown(data, state, place) && group.runs.some((run) => isNumber(data.runs[run].final[keys[0].key])));
  const last = new Chart("Scores by capacity after the last round", () => ({
    grid: { left: 52, right: 18, top: 34, bottom: 44 },
    xAxis: { type: "category", data: keys.map((one) => share(one.capacity)), name: "capacity", nameLocation: "middle", nameGap: 28, ...axisStyle(), splitLine: { show: false } },
    yAxis: { type: "value", scale: form !== "percent", min: form === "percent" ? 0 : undefined, name: word, ...axisStyle(), axisLine: { show: false }, nameTextStyle: { color: css("--muted"), align: "left", padding: [0, 0, 0, -44] },
      axisLabel: { ...axisStyle().axisLabel, formatter: (v) => (form === "percent" ? `${digits(100 * v)} %` : digits(v)) } },
    tooltip: { trigger: "axis", ...tooltipStyle(), formatter: (params) => tip(`capacity ${params[0].axisValue}`, params.filter((p) => p.seriesType === "line").sort((a, b) => b.value - a.value).slice(0, 14)
      .map((p) => [groups()[p.seriesIndex].place, p.seriesName, written(p.value, form)])) },
    series: groups().map(({ group, place }) => ({ type: "line", name: group.label, color: css(colour(place)), symbol: "circle", symbolSize: 7,
      lineStyle: { width: 2, type: stroke(place) }, emphasis: { focus: "series" },
      data: keys.map((one) => meanOf(group.runs.map((run) => data.runs[run].final[one.key]))) })),
  }), "low");
  const over = new Chart("Scores by capacity during training", () => {
    const place = Math.min(state.capacityGroup, data.groups.length - 1);
    const lines = keys.slice().reverse().map((one, i) => ({ name: share(one.capacity), place: i, colour: colour(i), dash: "solid",
      band: bandOf(data.groups[place].runs.map((run) => curveOf(data.runs[run], { key: one.key, table: "scores" }, state.x))) })).filter((line) => line.band);
    return lineOption(lines, { x: state.x, form, log: false, labels: true, title: word, height: over.node.clientHeight });
  }, "low");
  state.onChange.push(() => { last.draw(); over.draw(); });
  const select = data.groups.length > 1 ? choice("Arm", data.groups.map((group, place) => [String(place), group.label]), String(state.capacityGroup), (value) => { state.capacityGroup = Number(value); over.draw(); }) : null;
  return section("capacity", "By capacity", "Scores of sub-models cut from the global model, by capacity.",
    el("div", { class: "pair" }, el("div", {}, el("h3", {}, "After the last round"), last.node), el("div", {}, el("h3", {}, "During training ", select), over.node)));
};

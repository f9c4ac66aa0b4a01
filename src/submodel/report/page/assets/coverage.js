// Coverage: holders of every unit round by round, and the cut of one client through the layers.

const bytesOf64 = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
const gridCells = new WeakMap();
const cellsOf = (grid) => {
  if (!gridCells.has(grid)) gridCells.set(grid, bytesOf64(grid.cells));
  return gridCells.get(grid);
};
// holders of one column in one round, of one capacity (its index) or of all (null)
const holdersAt = (axis, row, c, level) => {
  const at = (grid) => cellsOf(grid)[row * grid.columns + c] * grid.step;
  return level === null ? axis.holders.reduce((sum, grid) => sum + at(grid), 0) : at(axis.holders[level]);
};
const unitMask = (cut, axis, size) => {
  const text = cut.units[axis];
  const bytes = text === undefined ? null : bytesOf64(text);
  return Array.from({ length: size }, (_, unit) => (bytes ? (bytes[unit >> 3] >> (7 - (unit & 7))) & 1 : 1));
};

const inkColour = () => css("--heat").split(",").map(Number);
const backgroundColour = () => css("--ground").match(/\w\w/g).map((pair) => parseInt(pair, 16));
const paint = (canvas, columns, rows, value) => {  // value: 0 to 1
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  const [dark, light] = [inkColour(), backgroundColour()];
  for (let y = 0; y < rows; y++) for (let x = 0; x < columns; x++) {
    const share = 0.05 + 0.95 * Math.min(1, value(x, y));
    for (let k = 0; k < 3; k++) image.data[4 * (y * columns + x) + k] = light[k] + (dark[k] - light[k]) * share;
    image.data[4 * (y * columns + x) + 3] = 255;
  }
  context.putImageData(image, 0, 0);
};

const MOST_AXES = 12;
const coverageSection = (data, state) => {
  const list = (data.coverage || []).filter((one) => one.rounds && one.rounds.length);
  const reasons = (data.coverage || []).filter((one) => !one.rounds || !one.rounds.length);
  if (!list.length) return reasons.length ? section("coverage", "Coverage", reasons[0].reason || "The cuts of all rounds are unknown.") : null;
  const box = el("div");
  const view = state.coverage;
  const show = () => {
    view.place = Math.min(view.place, list.length - 1);
    box.replaceChildren(coverageView(list[view.place], view));
  };
  show();
  const select = list.length > 1 ? el("div", { class: "controls" }, el("label", {}, "Of ", choice("Arm", list.map((one, i) => [String(i), one.title]), String(view.place), (value) => { view.place = Number(value); show(); }))) : null;
  const few = list.length < data.groups.length ? ` Shown for ${list.length} of ${data.groups.length} arms.` : "";
  return section("coverage", "Coverage", `Number of clients that held each unit of every axis, by round. The slider selects a round; below is the cut of one client of a capacity.${few}`, select, box);
};

const coverageView = (coverage, view) => {
  const { rounds, capacities, axes } = coverage;
  const nearest = () => rounds.reduce((best, round, i) => (Math.abs(round.number - view.number) < Math.abs(rounds[best].number - view.number) ? i : best), 0);
  view.round = view.number === null ? rounds.length - 1 : nearest();  // the last, until another is selected
  if (view.level !== null && view.level >= capacities.length) view.level = null;
  let most = 0;
  const redrawMaps = [];
  const shown = view.all ? axes : axes.slice(0, MOST_AXES);
  const measureMost = () => {
    most = 0;
    for (const axis of shown) for (let row = 0; row < rounds.length; row++) for (let c = 0; c < axis.holders[0].columns; c++) most = Math.max(most, holdersAt(axis, row, c, view.level));
  };
  const readout = el("p", { class: "readout", "aria-live": "polite" }, "Point at the map for values; click it, or move the slider, to select a round.");
  const slider = el("input", { type: "range", id: "round-slider", min: 0, max: rounds.length - 1, step: 1, value: view.round, "aria-label": "Round" });
  const output = el("output", { for: "round-slider" });
  const scale = el("span", { class: "scale" });
  const cutBox = el("div");
  const maps = el("div", { class: "maps" }, shown.map((axis) => {
    const columns = axis.holders[0].columns;
    const map = el("canvas", { role: "img", "aria-label": `Holders of the ${axis.size} ${axis.cuts} of ${axis.name}, round by round` });
    const strip = el("canvas", { role: "img", "aria-label": `Mean number of holders of every unit of ${axis.name} so far` });
    const cursor = el("i", { class: "cursor" });
    const height = `${Math.max(14, Math.min(84, columns * 2.2))}px`;
    map.style.height = strip.style.height = height;
    const frame = el("div", { class: "frame" }, map, cursor);
    const locate = (event) => {
      const area = map.getBoundingClientRect();
      const row = Math.max(0, Math.min(rounds.length - 1, Math.floor(((event.clientX - area.left) / area.width) * rounds.length)));
      const c = Math.max(0, Math.min(columns - 1, Math.floor(((event.clientY - area.top) / area.height) * columns)));
      return [row, c];
    };
    map.addEventListener("mousemove", (event) => {
      const [row, c] = locate(event);
      const unit = axis.units_per_column > 1 ? (axis.cuts === "weights" ? "its weights" : `units ${c * axis.units_per_column} to ${Math.min(axis.size, (c + 1) * axis.units_per_column) - 1}`) : `unit ${c}`;
      readout.textContent = `${axis.name}, ${unit}, round ${rounds[row].number}: held by ${digits(holdersAt(axis, row, c, view.level))} of ${rounds[row].clients.length} clients`;
    });
    map.addEventListener("click", (event) => { slider.value = locate(event)[0]; slider.dispatchEvent(new Event("input")); });
    const whole = () => paint(map, rounds.length, columns, (x, y) => holdersAt(axis, x, y, view.level) / (most || 1));
    const soFar = () => {
      cursor.style.left = `${(100 * (view.round + 0.5)) / rounds.length}%`;
      const sums = Array.from({ length: columns }, (_, c) => { let sum = 0; for (let row = 0; row <= view.round; row++) sum += holdersAt(axis, row, c, view.level); return sum / (view.round + 1); });
      paint(strip, 1, columns, (_, y) => sums[y] / (most || 1));
    };
    redrawMaps.push({ whole, soFar });
    return el("div", { class: "axis" }, el("div", { class: "axis-name", title: axis.layers.join(", ") }, axis.name, el("small", {}, axis.cuts === "units" ? ` ${axis.size} units` : ` ${amount(axis.size)} weights`)), frame, strip);
  }));
  const more = axes.length > MOST_AXES && !view.all ? el("button", { type: "button", onclick: () => { view.all = true; node.replaceWith(coverageView(coverage, view)); } }, `Show all ${axes.length} axes`) : null;
  const showRound = () => {
    const round = rounds[view.round];
    output.textContent = `round ${round.number} of ${coverage.rounds_done}, ${round.clients.length} clients`;
    slider.setAttribute("aria-valuetext", output.textContent);
    redrawMaps.forEach((map) => map.soFar());
    cutBox.replaceChildren(cutView(coverage, view));
  };
  const drawAll = () => {
    measureMost();
    redrawMaps.forEach((map) => map.whole());
    scale.replaceChildren("0", el("i"), `${digits(most)} clients; the strip on the right is the mean so far`);
    showRound();
  };
  slider.addEventListener("input", () => {
    view.round = Number(slider.value);
    view.number = view.round === rounds.length - 1 ? null : rounds[view.round].number;
    showRound();
  });
  const levels = { all: "all", ...Object.fromEntries(capacities.map((capacity, i) => [`c${i}`, share(capacity)])) };
  const controls = el("div", { class: "controls" }, el("span", { class: "muted" }, "Clients of capacity"), segments("Capacity of clients", levels, view.level === null ? "all" : `c${view.level}`, (value) => {
    view.level = value === "all" ? null : Number(value.slice(1));
    drawAll();
  }));
  charts.add({ draw: drawAll, resize: () => {}, show: () => {}, close() { charts.delete(this); } });
  drawAll();
  const node = el("div", { class: "coverage" }, capacities.length > 1 ? controls : null, maps, more, el("div", { class: "scrub" }, slider, output), readout, el("p", { class: "note" }, scale),
    el("h3", {}, "One client's cut, layer by layer"), cutBox, coverage.notes.map((text) => el("p", { class: "note" }, text)));
  return node;
};

// the cut of the example client of the selected round and capacity
const MOST_LAYERS = 48;
const cutView = (coverage, view) => {
  const number = coverage.rounds[view.round].number;
  const nearest = coverage.cuts.reduce((best, cut) => (Math.abs(cut.round - number) < Math.abs(best - number) ? cut.round : best), Infinity);
  const there = coverage.cuts.filter((cut) => cut.round === nearest);
  if (!there.length) return el("p", { class: "about" }, "The cuts of single clients are unknown.");
  const cut = there.find((one) => one.capacity === view.cut) || (view.level !== null && there.find((one) => one.capacity === view.level)) || there[there.length - 1];
  const sizes = new Map(coverage.axes.map((axis) => [axis.name, axis.size]));
  const masks = new Map();
  const maskOf = (axis) => { if (!masks.has(axis)) masks.set(axis, unitMask(cut, axis, sizes.get(axis) ?? 0)); return masks.get(axis); };
  const positions = (dimension) => {  // held positions of a dimension; a unit may have several in a row
    const known = dimension.axes.filter((axis) => sizes.has(axis));
    if (!known.length) return new Array(dimension.size).fill(1);
    const units = known.flatMap(maskOf);
    const times = dimension.size / units.length;
    return Array.from({ length: dimension.size }, (_, i) => units[Math.min(units.length - 1, Math.floor(i / times))]);
  };
  let [held, all] = [0, 0];
  const drawings = [];
  const boxes = coverage.layers.map((layer) => {
    const tensor = layer.tensors[0];
    for (const one of layer.tensors) {
      const total = one.dimensions.reduce((product, d) => product * d.size, 1);
      const part = cut.shares[one.name] ?? one.dimensions.reduce((product, d) => product * mean([...positions(d), 0].slice(0, d.size)), 1);
      all += total;
      held += total * part;
    }
    const [rows, columns] = [tensor.dimensions[0], tensor.dimensions[1]].map((d) => (d ? positions(d) : [1]));
    const alpha = cut.shares[tensor.name];
    const canvas = el("canvas", { "aria-hidden": "true" });
    const side = (n) => Math.round(Math.max(9, Math.min(150, 12 * Math.sqrt(n))));
    canvas.style.width = `${side(columns.length)}px`;
    canvas.style.height = `${side(rows.length)}px`;
    const [w, h] = [Math.min(96, columns.length), Math.min(96, rows.length)];
    const draw = () => paint(canvas, w, h, (x, y) => (alpha === undefined ? rows[Math.floor((y * rows.length) / h)] * columns[Math.floor((x * columns.length) / w)] : alpha));
    drawings.push(draw);
    const count = (mask) => mask.reduce((sum, one) => sum + one, 0);
    const words = tensor.dimensions.map((d, i) => (i < 2 && d.axes.length && alpha === undefined ? `${count([rows, columns][i])} of ${d.size}` : `${d.size}`)).join(" × ");
    return el("li", { title: tensor.name }, canvas, el("b", {}, layer.name || "model"), el("small", {}, layer.kind), el("small", {}, alpha === undefined ? words : `${(100 * alpha).toFixed(0)} % of ${words}`));
  });
  drawings.forEach((draw) => draw());
  const capacityChoices = Object.fromEntries(there.map((one) => [String(one.capacity), share(coverage.capacities[one.capacity])]));
  const controls = there.length > 1 ? el("div", { class: "controls" }, el("span", { class: "muted" }, "A client of capacity"), segments("Capacity of the client", capacityChoices, String(cut.capacity), (value) => {
    view.cut = Number(value);
    const next = cutView(coverage, view);
    node.replaceWith(next);
    next.querySelector(`input[value='${value}']`).focus();
  })) : null;
  const about = `Client ${cut.client}, capacity ${share(coverage.capacities[cut.capacity])}, in round ${cut.round}: ${(100 * held / all).toFixed(1)} % of the weights. Held weights are coloured; outputs run down, inputs across.`;
  const rest = boxes.length > MOST_LAYERS ? el("p", { class: "note" }, `${boxes.length - MOST_LAYERS} more layers are not shown.`) : null;
  const node = el("div", {}, controls, el("p", { class: "about" }, about), el("ol", { class: "layers" }, boxes.slice(0, MOST_LAYERS)), rest);
  return node;
};

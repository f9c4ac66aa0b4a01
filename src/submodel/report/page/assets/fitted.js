// Fitted sub-models of `submodel fit`: scores before and after, and their units.

const fittedSection = (data) => {
  const list = data.runs.flatMap((run) => run.fits.map((fit) => ({ run, fit })));
  if (!list.length) return null;
  const several = data.runs.length > 1;
  const form = (fit) => (fit.headline === "accuracy" ? "percent" : "number");
  const word = list.every(({ fit }) => fit.headline === list[0].fit.headline) ? `test ${list[0].fit.headline}` : "test score";
  const score = (fit, value) => ({ value, text: written(value, form(fit)) });
  const headings = [...(several ? [{ label: "run" }] : []), { label: "capacity", number: true }, { label: "parameters", number: true }, { label: `${word} before`, number: true },
    { label: "fitted", number: true }, { label: "global model", number: true }, { label: "cut" }, { label: "rounds", number: true }, { label: "traffic", number: true }, { label: "FLOPs", number: true }];
  const rows = list.map(({ run, fit }) => [...(several ? [run.path || run.name] : []), { value: fit.capacity, text: share(fit.capacity) }, { value: fit.parameters, text: fit.parameters?.toLocaleString("en") ?? "–" },
    score(fit, fit.before), score(fit, fit.score), score(fit, fit.global_score), fit.cut, { value: fit.rounds, text: isNumber(fit.rounds) ? String(fit.rounds) : "–" },
    { value: fit.bytes, text: amount(fit.bytes, "B") }, { value: fit.flops, text: amount(fit.flops) }]);
  return section("fitted", "Fitted sub-models", "Sub-models that devices keep: “submodel fit” cut one per capacity from the global model and trained each on its own.",
    dataTable("Fitted sub-models", headings, rows), fittedUnits(list, several));
};

// units of each, axis by axis: held units are coloured
const fittedUnits = (list, several) => {
  const axes = [...new Set(list.flatMap(({ fit }) => Object.keys(fit.units)))].slice(0, MOST_AXES);
  if (!axes.length) return null;
  const draws = [];
  const rows = list.flatMap(({ run, fit }) => axes.filter((axis) => axis in fit.units).map((axis) => {
    const mask = unitMask(fit, axis, fit.sizes[axis]);
    const kept = mask.reduce((sum, one) => sum + one, 0);
    const name = `${several ? `${run.name}, ` : ""}capacity ${share(fit.capacity)}, axis ${axis}: ${kept} of ${fit.sizes[axis]} units`;
    const canvas = el("canvas", { role: "img", "aria-label": name });
    draws.push(() => paint(canvas, mask.length, 1, (x) => mask[x]));
    return el("div", { class: "kept" }, el("span", {}, name), canvas);
  }));
  const draw = () => draws.forEach((one) => one());
  charts.add({ draw, resize: () => {}, show: () => {}, close() { charts.delete(this); } });
  draw();
  return el("div", {}, el("h3", {}, "Held units"), rows);
};

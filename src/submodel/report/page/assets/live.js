// A live page: states of runs and newer data every two seconds; focus and position are kept.

const LIVE = document.body.dataset.liveUrl;
const PAUSE = 2000;  // milliseconds between an answer and the next request
const FOCUSABLE = "a, button, input, select, summary, canvas, pre, [tabindex]";

// remember focus and scroll position, to restore them after a redraw
const rememberPlace = () => {
  const active = document.activeElement;
  const home = active?.closest("section[id]");
  const among = home ? [...home.querySelectorAll(FOCUSABLE)].indexOf(active) : -1;
  const caret = active?.type === "search" ? active.selectionStart : null;
  const opened = [...document.querySelectorAll("section[id]")].map((node) => [node.id, [...node.querySelectorAll("details")].map((one) => one.open)]);
  const height = scrollY;
  return () => {
    for (const [id, opens] of opened) document.getElementById(id)?.querySelectorAll("details").forEach((one, i) => { one.open = Boolean(opens[i]); });
    const found = among >= 0 ? document.getElementById(home.id)?.querySelectorAll(FOCUSABLE)[among] : null;
    found?.focus({ preventScroll: true });
    if (caret !== null) found?.setSelectionRange(caret, caret);
    scrollTo(0, height);
  };
};

const liveState = document.getElementById("live");
const showStates = (data) => {
  const counts = new Map();
  for (const run of data.runs) counts.set(run.state, (counts.get(run.state) || 0) + 1);
  const words = data.runs.length === 1 ? data.runs[0].state : [...counts].map(([word, count]) => `${count} ${word}`).join(", ");
  if (liveState.textContent !== words) liveState.textContent = words;
  liveState.className = counts.has("running") ? "live running" : "live";
};

let isPressed = false;  // do not replace a slider while it is dragged
addEventListener("pointerdown", () => { isPressed = true; });
for (const end of ["pointerup", "pointercancel", "blur"]) addEventListener(end, () => { isPressed = false; });

const follow = (latest, update) => {
  const ask = async () => {
    try {
      const response = await fetch(LIVE, { cache: "no-cache" });
      const text = response.ok ? await response.text() : latest;
      if (text !== latest && !isPressed) {
        update(JSON.parse(text));
        latest = text;
      } else if (liveState.classList.contains("away")) showStates(JSON.parse(latest));
    } catch {  // keep the page as it is
      liveState.textContent = "no answer: is “submodel watch --web” running?";
      liveState.className = "live away";
    }
    setTimeout(ask, PAUSE);
  };
  setTimeout(ask, PAUSE);
};

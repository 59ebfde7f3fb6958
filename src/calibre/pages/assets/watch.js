// Asks for the run's state again and again, and shows what changed.
const EVERY = 2000; // milliseconds
const $ = (id) => document.getElementById(id);
const drawn = new Map(); // stages by the name of what they show

function inWords(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

function facts(state) {
  const counted = state.clients === null ? null
    : whole(state.clients) + (state.novel ? ` and ${whole(state.novel)} novel` : "");
  const known = {
    round: `${whole(state.round)} of ${whole(state.rounds)}`,
    "time in rounds": state.finished ? null : inWords(state.elapsed),
    "time in all": state.finished ? inWords(state.elapsed) : null,
    "rounds left, about": state.left === null || state.round >= state.rounds ? null
      : inWords(state.left),
    "last word": state.finished || !state.begun ? null : `${inWords(state.silence)} ago`,
    clients: counted,
    "failed updates": whole(state.failures.count),
  };
  $("facts").replaceChildren();
  for (const [name, value] of Object.entries(known)) {
    if (value === null) continue;
    const pair = element("div");
    pair.append(element("dt", name), element("dd", value));
    $("facts").append(pair);
  }
}

function listIn(section, texts) {
  section.hidden = texts.length === 0;
  section.querySelector("ul").replaceChildren(...texts.map((text) => element("li", text)));
}

function failures({ count, clients, last }) {
  const often = clients.map(({ name, times }) => `${name} (${whole(times)})`).join(", ");
  $("often").textContent = `${whole(count)} ${count === 1 ? "update was" : "updates were"} left out: `
    + often;
  listIn($("failures"), last.map(({ round, name, cause }) => `round ${round}, ${name}: ${cause}`));
}

function results(rows) {
  $("results").hidden = rows.length === 0;
  const points = (share) => (share === null ? "–" : (100 * share).toFixed(2));
  $("results").querySelector("tbody").replaceChildren(...rows.map((row) => {
    const made = element("tr");
    made.append(element("td", row.clients, "text"), element("td", row.model, "text"),
      element("td", points(row.mean)), element("td", points(row.worst_tenth)));
    return made;
  }));
}

function training(curves) {
  $("training").hidden = curves.length === 0;
  const host = document.querySelector(".curves");
  for (const curve of curves) {
    const view = curvePlot(curve);
    if (drawn.has(curve.name)) drawn.get(curve.name).renew(view);
    else {
      const empty = figureIn(host, curve.name, { meaning: curve.meaning, size: "small" });
      drawn.set(curve.name, stage(empty, view));
    }
  }
}

function show(state) {
  $("title").textContent = `${state.method || "A run"} on ${state.source}`;
  $("name").textContent = `run ${state.name}`;
  const far = state.finished ? "finished" : `${state.round} of ${state.rounds}`;
  document.title = `${far} · ${state.name}`;
  if ($("said").textContent !== state.said) $("said").textContent = state.said;
  $("bar").max = Math.max(1, state.rounds);
  $("bar").value = state.finished ? $("bar").max : state.round;
  $("after").hidden = !state.finished;
  facts(state);
  listIn($("warnings"), state.warnings);
  failures(state.failures);
  results(state.results);
  training(state.curves);
}

async function follow() {
  try {
    const reply = await fetch("state");
    const state = await reply.json();
    if (!reply.ok) throw new Error(state.error);
    show(state);
  } catch (error) {
    $("said").textContent = error instanceof TypeError
      ? "calibre-fl watch has stopped; the run itself goes on without it." : error.message;
  }
  setTimeout(follow, document.hidden ? 5 * EVERY : EVERY);
}

follow();

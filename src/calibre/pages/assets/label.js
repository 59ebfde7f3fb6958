// The server is the truth: every step goes there, and its answer is what is shown.
let state = null;
let shown = null;  // { index, name, reason, was }: what is on the desk
let again = null;  // an image of the contact sheet that is looked at again
let busy = false;
let steps = 0;  // that were taken here: what was asked before the last of them is out of date
let timer = 0;
let noted = "";
let failing = false;  // whether the message tells why the last look at the server failed
let tiles = 300;  // of the contact sheet that are shown

async function ask(path, body) {
  let reply;
  try {
    reply = await fetch(path, body === undefined ? {} : { method: "POST", body: JSON.stringify(body) });
  } catch {
    throw new Error("The command that serves this page has ended. Start it again: nothing was lost.");
  }
  const found = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(found.error), { status: reply.status });
  return found;
}

function say(text) {
  $("message").hidden = !text;
  $("message").textContent = text ?? "";
}

async function step(path, body) {
  if (busy) return;
  busy = true;
  steps += 1;
  try {
    const found = await ask(path, body);
    again = null;
    say("");
    show(found);
  } catch (error) {
    say(error.message);
    if (error.status) again = null;
    try { show(await ask("state")); } catch { /* said already */ }
  }
  busy = false;
}

function show(found) {
  state = found;
  document.title = `${state.client}: ${state.labelled} labels – Calibre`;
  $("title").textContent = `Labelling the images of ${state.client}`;
  const left = state.images - state.labelled - state.unsure;
  $("progress").textContent = [`${state.labelled} labelled`,
    ...(state.unsure ? [`${state.unsure} not sure`] : []), `${left} without a label`].join(" · ");
  if (state.note && state.note !== noted) say(noted = state.note);
  $("undo").disabled = !state.undo;
  desk();
  classes();
  quality();
  if ($("seen").open) sheet();
  refreshAfter(state.pending || state.looking ? 400 : 3000);
}

function refreshAfter(milliseconds) {
  clearTimeout(timer);
  timer = setTimeout(refresh, milliseconds);
}

// Another window may have labelled too, and the estimate follows a little later.
async function refresh() {
  if (document.hidden) { refreshAfter(3000); return; }
  const before = steps;
  try {
    const found = await ask("state");
    if (failing) say("");
    failing = false;
    const fresh = !busy && steps === before;
    if (fresh && found.revision !== state?.revision) show(found);
    else refreshAfter(found.pending || found.looking ? 400 : 3000);
  } catch (error) {
    failing = true;
    say(error.message);
    refreshAfter(3000);
  }
}

function desk() {
  const next = again ?? (state.queue.length ? { ...state.queue[0], was: null } : null);
  $("desk").hidden = next === null;
  $("through").hidden = next !== null;
  const left = state.images - state.labelled - state.unsure;
  $("why").textContent = !left ? "Every image was looked at."
    : state.looking ? "Looking for more images …"
    : "The images left look like some that have a label.";
  if (next === null) { shown = null; return; }
  if (shown?.index !== next.index) {
    $("image").src = `image?index=${next.index}&side=1400`;
    $("image").alt = next.name;
    $("name").textContent = next.name;
    $("guess").textContent = "";
    showLarge(false);
  }
  $("reason").textContent = again ? `labelled ${again.was || "“not sure”"}` : next.reason;
  shown = next;
}

function classes() {
  choices("classes", state.classes.slice(0, 9), true);
  search();
}

// A button that is replaced between finger down and finger up is never pressed: while nothing about
// them changes, they stay.
const offered = {};
function choices(place, found, keys) {
  const names = found.map(({ name }) => name);
  const now = JSON.stringify([names, again?.was]);
  if (offered[place] === now) return;
  offered[place] = now;
  $(place).replaceChildren();
  names.forEach((name, i) => choice($(place), name, keys && i + 1));
}

function choice(parent, name, key) {
  const made = element("button", null, parent);
  made.type = "button";
  if (key) element("kbd", String(key), made);
  made.append((key ? " " : "") + name);
  made.setAttribute("aria-pressed", String(again?.was === name));
  made.addEventListener("click", () => give(name));
}

// Beyond nine classes, and to find one by a part of its name.
function search() {
  const wanted = $("search").value.trim().toLowerCase();
  const rest = state.classes.slice(wanted ? 0 : 9);
  const fit = rest.filter(({ name }) => name.toLowerCase().includes(wanted));
  choices("found", fit.slice(0, 12), false);
  const known = state.classes.some(({ name }) => name.toLowerCase() === wanted);
  $("give").textContent = wanted && !known ? "New class" : "Give";
}

function give(name) {
  if (shown === null) return;
  $("search").value = "";
  step("label", { index: shown.index, label: name, was: shown.was });
}

function typed() {
  const text = $("search").value.trim();
  if (!text) return;
  const known = state.classes.find(({ name }) => name.toLowerCase() === text.toLowerCase());
  give(known ? known.name : text);
  $("search").blur();
}

function quality() {
  const found = state.estimate;
  $("estimate").textContent = found
    ? `${percent(found.value)} right (95 % interval ${percent(found.low)} to ${percent(found.high)}), `
      + `by cross-validation on ${found.images} labels${state.pending ? " …" : ""}`
    : state.pending ? "…" : "Not known yet: give at least two images the same class.";
  drawGrowth($("growth"), state.growth);
  $("trend").textContent = state.growth.length ? trendOf(state.growth) : "";
  $("counts").replaceChildren();
  for (const { name, labels } of state.classes) {
    const row = element("div", null, $("counts"));
    element("dt", name, row, "soft");
    element("dd", String(labels), row);
  }
  $("make").disabled = state.labelled === 0;
}

async function sheet() {
  const { images } = await ask("sheet");
  const old = new Map([...$("sheet").children].map((each) => [each.dataset.index, each]));
  $("more").hidden = images.length <= tiles;
  $("more").textContent = `Show more of ${images.length}`;
  $("sheet").replaceChildren(...images.slice(0, tiles).map((each) => {
    const key = String(each.index);
    const made = old.get(key) ?? tile(each);
    made.lastChild.textContent = each.label || "not sure";
    made.lastChild.classList.toggle("none", !each.label);
    made.onclick = () => { again = { ...each, was: each.label }; show(state); scrollTo(0, 0); };
    return made;
  }));
}

function tile(each) {
  const made = document.createElement("button");
  made.dataset.index = each.index;
  made.disabled = each.fixed;
  made.title = each.fixed ? `${each.name}: its folder is its class` : each.name;
  const image = element("img", null, made);
  image.loading = "lazy";
  image.alt = each.name;
  image.src = `image?index=${each.index}&side=160`;
  image.addEventListener("load", () => image.classList.toggle("small", image.naturalWidth < 100));
  element("span", "", made);
  return made;
}

async function guess() {
  if (shown === null) return;
  const index = shown.index;
  $("guess").textContent = "…";
  try {
    const found = (await ask(`guess?index=${index}`)).guess;
    if (shown?.index !== index) return;
    $("guess").textContent = found.length
      ? "The model says: " + found.slice(0, 3).map((one) => `${one.name} ${certainty(one.share)}`).join(", ")
      : "The model knows no class yet.";
  } catch (error) { $("guess").textContent = error.message; }
}

async function make(replace) {
  $("made").textContent = "Making the model …";
  $("make").disabled = $("replace").disabled = true;
  $("replace").hidden = true;
  try {
    const found = await ask("model", { replace });
    $("made").textContent = `Made from ${found.labels} labels: ${found.accuracy}. It is in ${found.bundle}`
      + (found.older ? `; the older one is in ${found.older}.` : ".");
    showCard(found.card, $("card"));
    $("about").hidden = false;
  } catch (error) {
    $("made").textContent = error.message;
    $("replace").hidden = error.status !== 409;
  }
  $("make").disabled = $("replace").disabled = false;
}

function zoom(event) {
  if (enlarged()) { showLarge(false); $("zoom").focus(); }
  else if (shown) enlarge(`image?index=${shown.index}&side=2048`, pressed(event, $("image")));
}

const KEYS = {
  s: () => $("skip").click(), n: () => $("unsure").click(), u: () => $("undo").click(),
  g: () => guess(), z: () => zoom(), "/": () => $("search").focus(),
  Escape: () => { showLarge(false); $("search").blur(); },
};

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || !state) return;
  const typing = event.target === $("search");
  if (typing && event.key !== "Escape") return;
  const named = /^[1-9]$/.test(event.key) && state.classes[event.key - 1];
  if (named) give(named.name);
  else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
});
$("image").addEventListener("load", () => {
  $("image").classList.toggle("small", $("image").naturalWidth < 200);
});
$("image").addEventListener("error", () => {
  if (shown) ask(`image?index=${shown.index}`).catch((error) => say(`${error.message}. Skip it.`));
});
$("zoom").addEventListener("click", zoom);
$("large").addEventListener("click", zoom);
$("skip").addEventListener("click", () => {
  if (again) { again = null; show(state); } else if (shown) step("skip", { index: shown.index });
});
$("unsure").addEventListener("click", () => give(""));
$("undo").addEventListener("click", () => step("undo", {}));
$("ask").addEventListener("click", guess);
$("form").addEventListener("submit", (event) => { event.preventDefault(); typed(); });
$("search").addEventListener("input", search);
$("seen").addEventListener("toggle", () => { if ($("seen").open) sheet(); });
$("more").addEventListener("click", () => { tiles *= 2; sheet(); });
$("make").addEventListener("click", () => make(false));
$("replace").addEventListener("click", () => make(true));
addEventListener("resize", () => { if (state) drawGrowth($("growth"), state.growth); });
refresh();

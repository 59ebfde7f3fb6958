// One article per image, in the order that is asked for; and all of them as CSV.
const SHOWN = 5;  // classes with a bar
const answers = [];  // {name, article, found} or {name, article, error}; neither: on its way

function addAnswer(file) {
  const article = element("article", null, $("results"));
  const frame = element("div", null, article, "picture");
  const picture = element("img", null, frame);
  picture.alt = "";
  picture.decoding = "async";
  picture.onload = () => {
    picture.classList.toggle("small", picture.naturalWidth <= 96);
    URL.revokeObjectURL(picture.src);
  };
  picture.onerror = () => { frame.textContent = "no preview"; };
  picture.src = URL.createObjectURL(file);
  const side = element("div", null, article);
  element("p", file.name, side, "file");
  element("p", "…", side, "soft");
  const answer = { name: file.name, article };
  answers.push(answer);
  return answer;
}

function side(answer, title) {
  const place = answer.article.lastElementChild;
  place.replaceChildren(place.firstElementChild);
  element("h2", title, place);
  return place;
}

function showFound(answer, found) {
  answer.found = found;
  if (found.label === null) return showNone(answer, found);
  const place = side(answer, found.label);
  const far = found.distance === null ? "" : `; distance ${found.distance.toFixed(2)} (limit ${
    found.limit.toFixed(2)})`;
  element("p", certainty(found.probability) + " sure" + far, place, "soft");
  const list = element("dl", null, place);
  Object.entries(found.probabilities).sort((x, y) => y[1] - x[1]).slice(0, SHOWN)
    .forEach(([name, p]) => {
      element("dt", name, list);
      const meter = element("meter", null, element("dd", null, list));
      meter.value = p;
      meter.setAttribute("aria-label", `${name}: ${certainty(p)}`);
      element("dd", certainty(p), list);
    });
}

// No bars here: how sure the model would be among the wrong classes says nothing.
function showNone(answer, found) {
  answer.article.classList.add("none");
  const place = side(answer, found.answer);
  if (found.reasons.length) {
    const list = element("ul", null, place);
    for (const reason of found.reasons) element("li", reason, list);
  } else if (found.distance !== null) {
    element("p", `Too far from all of them: distance ${found.distance.toFixed(2)}, limit ${
      found.limit.toFixed(2)}.`, place);
  }
  if (found.nearest !== null) element("p", `Nearest: ${found.nearest}`, place, "soft");
}

function showError(answer, why) {
  answer.error = why;
  answer.article.classList.add("bad");
  element("p", why, side(answer, "no answer"));
}

const ORDERS = {
  surest: (x, y) => y - x,
  unsure: (x, y) => x - y,
  given: () => 0,
};

// Between 0 and 1; strangers are less sure than any class, and what has no answer comes last.
function sureness(answer) {
  return answer.found.label === null ? -1 : answer.found.probability;
}

function arrange() {
  const compare = ORDERS[$("order").value];
  const found = answers.filter((answer) => answer.found);
  found.sort((x, y) => compare(sureness(x), sureness(y)));
  const rest = answers.filter((answer) => !answer.found);
  const shown = $("order").value === "given" ? answers : [...found, ...rest];
  $("results").append(...shown.map((answer) => answer.article));
  const none = found.filter((answer) => answer.found.label === null).length;
  const failed = rest.filter((answer) => answer.error).length;
  const open = rest.length - failed;
  $("count").textContent = [
    `${answers.length} ${answers.length === 1 ? "image" : "images"}`,
    ...(none ? [`${none} none of your classes`] : []),
    ...(failed ? [`${failed} without an answer`] : []),
    ...(open ? [`${open} on their way`] : []),
  ].join(" · ");
  $("tools").hidden = answers.length === 0;
  $("csv").disabled = open > 0;
}

// The columns of `calibre-fl predict --csv`. A cell that a spreadsheet would run gets a mark.
function asCsv(classes) {
  const text = (value) => {
    const said = value ?? "";
    const safe = typeof said === "string" && /^[=+\-@\t\r]/.test(said) ? "'" + said : String(said);
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const head = ["image", "answer", "nearest", "probability", "distance", "reasons", "error"];
  const rows = answers.map(({ name, found, error }) => [
    name, found ? found.answer : "unreadable", found?.nearest, found?.probability,
    found?.distance, found?.reasons.join("; "), error, ...classes.map((each) => found?.probabilities[each]),
  ]);
  const table = [[...head, ...classes.map((each) => `p(${each})`)], ...rows];
  return "\ufeff" + table.map((row) => row.map(text).join(",") + "\r\n").join("");
}

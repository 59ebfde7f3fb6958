// Images go out a few at a time, and come back as answers.
const AT_ONCE = 4;
const waiting = [];  // [file, answer]
let asking = 0;
let classes = [];
let arranged = false;

async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.json()).error);
  return answer;
}

async function introduce() {
  const card = await (await get("card")).json();
  classes = card.classes.map((held) => held.name);
  $("title").textContent = "Personal model of " + card.client;
  document.title = card.client + " – Calibre";
  const a = card.accuracy;
  $("accuracy").textContent = a
    ? `${percent(a.value)} right on ${a.images} ${a.how === "test images"
        ? "test images" : "images, by cross-validation"} (95 % interval ${percent(a.low)} to ${
        percent(a.high)}); ${card.method}`
    : `How often it is right is not known; ${card.method}`;
  const held = card.classes.filter((each) => each.labelled > 0).map((each) => each.name);
  $("classes").textContent = `${held.length} ${held.length === 1 ? "class" : "classes"}: `
    + held.slice(0, 20).join(", ") + (held.length > 20 ? ", …" : "");
  for (const text of card.warnings) element("li", text, $("warnings"));
  $("warnings").hidden = card.warnings.length === 0;
  showCard(await (await get("card.md")).text(), $("card"));
}

function take(files) {
  for (const file of files) waiting.push([file, addAnswer(file)]);
  arrangeSoon();
  while (asking < AT_ONCE && waiting.length) askNext();
}

async function askNext() {
  asking += 1;
  while (waiting.length) {
    const [file, answer] = waiting.shift();
    try {
      const reply = await fetch("predict", { method: "POST", body: file });
      const found = await reply.json();
      if (reply.ok) showFound(answer, found);
      else showError(answer, found.error);
    } catch {
      showError(answer, "the server cannot be reached");
    }
    arrangeSoon();
  }
  asking -= 1;
}

// Once per frame, however many answers come.
function arrangeSoon() {
  if (arranged) return;
  arranged = true;
  requestAnimationFrame(() => { arranged = false; arrange(); });
}

function saveCsv() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([asCsv(classes)], { type: "text/csv" }));
  link.download = "answers.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

$("file").addEventListener("change", (event) => {
  take([...event.target.files]);
  event.target.value = "";
});
for (const kind of ["dragover", "dragleave", "drop"])
  addEventListener(kind, (event) => {
    event.preventDefault();
    $("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") take([...event.dataTransfer.files]);
  });
addEventListener("paste", (event) => take([...event.clipboardData.files]));
$("order").addEventListener("change", arrange);
$("csv").addEventListener("click", saveCsv);
introduce().catch((error) => { $("accuracy").textContent = error.message; });

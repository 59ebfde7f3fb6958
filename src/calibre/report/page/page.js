/* The page: what it holds, put on stages and into tables. */

/* Buttons with a mark; each shows or hides the series of its name. */
function legend(host, series, redraw) {
  for (const name of new Set(series.map((one) => one.name))) {
    const those = series.filter((one) => one.name === name);
    const { shape = "stroke", paint } = those[0];
    const button = element("button", name, "series");
    const mark = element("span", "", `mark ${shape}`);
    mark.style.background = `var(${paint})`;
    button.type = "button";
    button.prepend(mark);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      for (const each of those) each.hidden = !each.hidden;
      button.setAttribute("aria-pressed", String(!those[0].hidden));
      redraw();
    });
    host.append(button);
  }
}

function clientsOf(host, c, models) {
  const points = (value) => (100 * value).toFixed(2);
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(100 * value).toFixed(1)}`;
  const kind = (novel) => (novel ? "novel" : "trained");
  const gain = c.local?.map((alone, i) => c.accuracy[i] - alone);
  const counts = [
    ["labelled", c.samples],
    ["unlabelled", c.unlabelled],
    ["test", c.test_samples],
    ["classes", c.classes],
    ["rounds", c.rounds],
    ["failures", c.failures],
  ];
  const columns = [
    { title: "client", values: c.name, show: String, text: true },
    { title: "kind", values: c.novel, show: kind, text: true },
    ...models.map(({ key, title }) => ({ title, values: c[key], show: points })),
    { title: "gain", about: "over local training, in points", values: gain, show: signed },
    ...counts.map(([title, values]) => ({ title, values, show: whole })),
  ];
  return clientTable(host, {
    count: c.id.length,
    name: (i) => c.name[i],
    // of no use are columns of what is not known, and of zeros only
    columns: columns.filter(({ values, text }) => values && (text || values.some(Boolean))),
    first: c.accuracy,
    filters: {
      "all clients": () => true,
      trained: (i) => !c.novel[i],
      novel: (i) => c.novel[i],
      ...(gain && { "better off alone": (i) => gain[i] < 0 }),
    },
  });
}

function showRun(section, run) {
  const part = (selector) => section.querySelector(selector);
  const c = run.clients;
  const models = modelsOf(run);
  const table = clientsOf(part(".clients"), c, models);
  const ofClient = {
    client: ([, i]) => i,
    pick: (i) => table.find(c.name[i]),
    tip: ([, i]) => ({
      title: `${c.name[i]} (${c.novel[i] ? "novel" : "trained"})`,
      rows: [
        ...models.map(({ key, name }) => [name, percent(c[key][i])]),
        ["labelled images", whole(c.samples[i])],
        ["unlabelled images", whole(c.unlabelled[i])],
        ["test images", whole(c.test_samples[i])],
        ["classes", whole(c.classes[i])],
        ["rounds trained", whole(c.rounds[i])],
        ["failures", whole(c.failures[i])],
      ],
    }),
  };

  const group = []; // of stages that mark the same client
  const ranks = rankPlot(c, models, ofClient);
  const { draw } = stage(part(".rank"), ranks, group);
  legend(part(".rank-legend"), [...ranks.series].reverse(), draw);
  for (const view of scatters(c, ofClient))
    stage(figureIn(part(".scatters"), view.label), view, group);
  for (const curve of run.curves) {
    const { name, meaning } = curve;
    stage(figureIn(part(".curves"), name, { meaning, size: "small" }), curvePlot(curve));
  }
  if (run.wrong.length) showWrong(part(".mistaken"), run.wrong);
  if (run.heat) {
    const host = part(".heat");
    const rows = run.heat.classes.length + TOTALS.length;
    host.style.height = `${Math.max(160, Math.min(520, 18 * rows + 110))}px`;
    stage(host, heat(run.heat));
  }
}

function showTogether(host, runs) {
  for (const [novel, label] of [[0, "trained clients"], [1, "novel clients"]]) {
    const view = togetherPlot(runs, novel, label);
    if (!view.series.length) continue;
    const empty = figureIn(host, `${label}, worst to best`);
    const buttons = element("div", "", "legend");
    empty.before(buttons);
    legend(buttons, view.series, stage(empty, view).draw);
  }
}

const data = JSON.parse(document.getElementById("data").textContent);
document.querySelectorAll("table.sortable").forEach(sortable);
data.runs.forEach((run, i) => showRun(document.getElementById(`run-${i}`), run));
const together = document.querySelector(".together");
if (together) showTogether(together, data.runs);

for (const link of document.querySelectorAll(".links a"))
  link.addEventListener("click", () => (document.querySelector(link.hash).open = true));
for (const button of document.querySelectorAll("button.copy"))
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.of).textContent);
    button.textContent = "copied";
  });

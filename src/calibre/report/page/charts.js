/* The charts of the page: what the plots show of clients, rounds and runs. */

/* How models are drawn: a client's own, and the floors, whose names come with the run. */
const LOOKS = {
  accuracy: { title: "accuracy %", shape: "circle", paint: "--personal" },
  local: { shape: "square", paint: "--local" },
  pixels: { shape: "diamond", paint: "--pixels" },
  untrained: { shape: "triangle", paint: "--untrained" },
  majority: { shape: "wedge", paint: "--majority" },
};
function modelsOf(run) {
  const named = Object.entries({ accuracy: "personal model", ...run.floors });
  return named.map(([key, name]) => ({ key, name, title: `${name} %`, ...LOOKS[key] }));
}
const wholePercent = (value) => `${Math.round(100 * value)} %`;
const accuracyAxis = (low) => ({ min: low, max: 1.02, most: 1, format: wholePercent });
const lowest = (lists) => Math.max(-0.02, Math.floor(rangeOf(lists, 0)[0] * 10) / 10 - 0.02);
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const NAMED = 60; // up to so many clients the axis says who is who
const LINKED = 200; // up to so many a line ties a client's marks together
const NARROWEST = 0.28; // share of the width that the heading of a panel needs

/* Clients of one kind, from worst to best. */
function ranked(c, novel) {
  const members = c.id.map((_, i) => i).filter((i) => c.novel[i] === novel);
  return members.sort((a, b) => c.accuracy[a] - c.accuracy[b] || a - b);
}

/* Where each kind of client stands: a panel of its own, as wide as it has many. */
function panelsOf(c, x) {
  const kinds = [0, 1].map((novel) => ranked(c, novel)).filter((members) => members.length);
  const shares = kinds.map((members) => Math.max(members.length / c.id.length, NARROWEST));
  const total = shares.reduce((sum, share) => sum + share, 0);
  const gap = kinds.length > 1 ? 0.02 : 0;
  let from = 0;
  return kinds.map((members, k) => {
    const to = from + shares[k] / total - gap;
    const step = (to - from) / members.length;
    members.forEach((i, rank) => (x[i] = from + (rank + 0.5) * step));
    const scores = members.map((i) => c.accuracy[i]);
    const tenth = Math.ceil(members.length / 10);
    const panel = {
      members,
      from,
      to,
      tenth: from + tenth * step,
      mean: mean(scores),
      heading: [
        `${whole(members.length)} ${c.novel[members[0]] ? "novel" : "trained"}`,
        `mean ${percent(mean(scores))}`,
        `worst 10th ${percent(mean(scores.slice(0, tenth)))}`,
      ],
    };
    from = to + gap;
    return panel;
  });
}

/* Every client with its floors, from worst to best. */
function rankPlot(c, models, ofClient) {
  const x = [];
  const panels = panelsOf(c, x);
  const order = panels.flatMap((panel) => panel.members);
  const named = order.length <= NAMED;
  const series = models.map(({ key, name, shape, paint }) => {
    return { name, shape, paint, x, y: c[key], faint: key !== "accuracy" };
  });
  return plot({
    label: "accuracy of every client, worst to best",
    x: {
      min: -0.005,
      max: 1.005,
      ticks: named ? order.map((i) => [x[i], c.short[i]]) : [],
      title: `client${named ? "" : "s"}, worst to best`,
    },
    y: accuracyAxis(lowest(models.map(({ key }) => c[key]))),
    headroom: 50,
    series: series.reverse(), // what is drawn last lies on top
    order,
    under(pen, box) {
      pen.fillStyle = colour("--shade");
      for (const { from, tenth } of panels)
        pen.fillRect(box.x(from), box.top, box.x(tenth) - box.x(from), box.bottom - box.top);
      if (order.length > LINKED) return;
      pen.strokeStyle = colour("--line");
      for (const i of order) {
        const scores = models.map(({ key }) => box.y(c[key][i]));
        line(pen, box.x(x[i]), Math.min(...scores), box.x(x[i]), Math.max(...scores));
      }
    },
    above(pen, box) {
      for (const { from, to, mean, heading } of panels) {
        pen.strokeStyle = colour("--personal");
        pen.lineWidth = 1.25;
        pen.setLineDash([5, 3]);
        line(pen, box.x(from), box.y(mean), box.x(to), box.y(mean));
        pen.setLineDash([]);
        pen.fillStyle = colour("--ink");
        pen.textAlign = "left";
        pen.textBaseline = "top";
        const wide = box.x(to) - box.x(from);
        heading.forEach((text, row) => pen.fillText(text, box.x(from), 2 + 15 * row, wide));
      }
    },
    ...ofClient,
  });
}

/* Accuracy against what might explain it; what is the same for all clients explains nothing. */
function scatters(c, ofClient) {
  const trainedIn = c.rounds.map((rounds, i) => (c.novel[i] ? null : rounds));
  const against = [
    ["local training alone (below the line: better off alone)", "local only", c.local],
    ["labelled images", "labelled images", c.samples],
    ["unlabelled images", "unlabelled images", c.unlabelled],
    ["classes held", "classes held", c.classes],
    ["rounds trained", "rounds trained", trainedIn],
  ];
  const varies = (values) => new Set(values.filter((value) => value !== null)).size > 1;
  return against
    .filter(([, , values]) => values && varies(values))
    .map(([what, title, values]) => scatter(c, what, title, values, ofClient));
}

function scatter(c, what, title, values, ofClient) {
  const alone = values === c.local;
  const low = lowest(alone ? [c.accuracy, c.local] : [c.accuracy]);
  const [min, max] = rangeOf([values]);
  const only = (novel) => c.accuracy.map((score, i) => (c.novel[i] === novel ? score : null));
  return plot({
    label: `accuracy against ${what}`,
    x: alone ? { ...accuracyAxis(low), title } : { min, max, title, step: 1, format: short },
    y: accuracyAxis(low),
    series: [
      { name: "trained", shape: "circle", paint: "--personal", x: values, y: only(0) },
      { name: "novel", shape: "diamond", paint: "--novel", x: values, y: only(1) },
    ],
    order: c.id.map((_, i) => i).sort((a, b) => values[a] - values[b] || a - b),
    under(pen, box) {
      if (!alone) return;
      pen.strokeStyle = colour("--soft");
      line(pen, box.x(low), box.y(low), box.x(1), box.y(1));
    },
    ...ofClient,
  });
}

/* One term of training by round: its mean over clients in the band of most of them. */
function curvePlot({ name, rounds, mean, low, high, mark }) {
  const [min, max] = rangeOf([low, high, mark === null ? [] : [mark]]);
  return plot({
    label: `${name} by round`,
    x: { min: rounds[0] - 0.5, max: rounds.at(-1) + 0.5, title: "round", format: short },
    y: { min, max, format: short },
    byX: true,
    series: [{ name, paint: "--personal", x: rounds, y: mean, low, high }],
    under(pen, box) {
      if (mark === null) return;
      pen.strokeStyle = colour("--alarm");
      pen.setLineDash([2, 3]);
      line(pen, box.left, box.y(mark), box.right, box.y(mark));
      pen.setLineDash([]);
    },
    tip: ([, i]) => ({
      title: `${name}, round ${rounds[i]}`,
      rows: [
        ["mean over clients", short(mean[i])],
        ["tenth to ninetieth percentile", `${short(low[i])} to ${short(high[i])}`],
      ],
    }),
  });
}

/* Runs beside each other: each a line through its clients of one kind, from worst to best. */
function togetherPlot(runs, novel, label) {
  const methods = [...new Set(runs.map((run) => run.method))];
  const series = runs.map((run) => {
    const members = ranked(run.clients, novel);
    const hue = methods.indexOf(run.method);
    return {
      name: run.method,
      run,
      members,
      paint: `--run${hue % 6}`,
      dash: [[], [7, 3], [2, 2]][Math.floor(hue / 6) % 3],
      x: members.map((_, rank) => (rank + 0.5) / members.length),
      y: members.map((i) => run.clients.accuracy[i]),
    };
  });
  return plot({
    label: `accuracy of ${label}, worst to best, a line for each run`,
    x: { min: 0, max: 1, title: "share of clients", format: wholePercent },
    y: accuracyAxis(lowest(series.map((one) => one.y))),
    series: series.filter((one) => one.members.length),
    tip: ([one, rank]) => ({
      title: one.run.name,
      rows: [
        ["client", one.run.clients.name[one.members[rank]]],
        ["accuracy", percent(one.y[rank])],
      ],
    }),
  });
}

// How the estimate grew: a line through the values, a band for their intervals.
function drawGrowth(svg, growth) {
  svg.replaceChildren();
  svg.toggleAttribute("hidden", growth.length < 2);
  if (growth.length < 2) return;
  const wide = Math.max(240, svg.getBoundingClientRect().width);  // so that text keeps its size
  svg.setAttribute("viewBox", `0 0 ${wide} 150`);
  const [left, right, top, bottom] = [46, wide - 10, 8, 122];
  const first = growth[0].labels, last = growth.at(-1).labels;
  const x = (labels) => left + (right - left) * (labels - first) / Math.max(1, last - first);
  const y = (share) => bottom - (bottom - top) * share;
  const make = (name, attributes, text) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text) made.textContent = text;
    svg.append(made);
  };
  for (const share of [0, 0.5, 1]) {
    make("line", { class: "rule", x1: left, x2: right, y1: y(share), y2: y(share) });
    make("text", { x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share} %`);
  }
  make("text", { x: left, y: 142 }, `${first} labels`);
  make("text", { x: right, y: 142, "text-anchor": "end" }, `${last} labels`);
  const line = (rows, pick) => rows.map((row) => `${x(row.labels)},${y(pick(row))}`);
  const band = [...line(growth, (row) => row.high), ...line([...growth].reverse(), (row) => row.low)];
  make("polygon", { class: "band", points: band.join(" ") });
  make("polyline", { class: "curve", points: line(growth, (row) => row.value).join(" ") });
  make("circle", { class: "dot", r: 4, cx: x(last), cy: y(growth.at(-1).value) });
}

// In words, so that one sees when to stop.
function trendOf(growth) {
  const last = growth.at(-1);
  const before = growth.findLast((row) => row.labels <= last.labels - 10);
  if (!before) return "";
  const gained = 100 * (last.value - before.value);
  const words = `The last ${last.labels - before.labels} labels changed it by ${
    gained >= 0 ? "+" : ""}${gained.toFixed(1)} points.`;
  return last.labels >= 30 && Math.abs(gained) < 1
    ? words + " More labels of this kind will change little." : words;
}

/* Views for the stage: points and lines in a frame, and a heat map. */

const FONT = "11px system-ui, sans-serif";
const percent = (value) => (value === null ? "–" : `${(100 * value).toFixed(1)}\u00a0%`);
const whole = (value) => value.toLocaleString("en-US");
const short = (value) => {
  if (value === null) return "–";
  if (value === 0) return "0"; // not -0
  if (Number.isInteger(value)) return whole(value);
  const size = Math.abs(value);
  return size >= 1e5 || size < 1e-3 ? value.toExponential(2) : String(+value.toPrecision(4));
};

function niceTicks(low, high, count, least = 0) {
  const raw = (high - low) / Math.max(count, 1) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(least, [1, 2, 5, 10].find((n) => n * power >= raw) * power);
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

function rangeOf(lists, pad = 0.05) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists)
    for (const value of list)
      if (value !== null) [low, high] = [Math.min(low, value), Math.max(high, value)];
  if (low > high) return [0, 1];
  const room = (high - low) * pad || Math.abs(high) * 0.1 || 1;
  return [low < 0 ? low - room : Math.max(0, low - room), high + room];
}

/* Axes of a plot; returns where its values lie on the canvas. */
function frame(pen, { x, y, headroom = 8 }, width, height) {
  pen.clearRect(0, 0, width, height);
  pen.font = FONT;
  const drop = x.ticks ? tiltedBy(pen, x.ticks.map(([, text]) => text), width) : 0;
  const bottom = height - (x.title ? 34 : 20) - drop;
  const yTicks = niceTicks(y.min, y.most ?? y.max, (bottom - headroom) / 34);
  const left = 10 + Math.max(...yTicks.map((tick) => pen.measureText(y.format(tick)).width));
  const box = { left, right: width - 18, top: headroom, bottom };
  const across = (box.right - box.left) / (x.max - x.min);
  const down = (box.bottom - box.top) / (y.max - y.min);
  box.x = (value) => box.left + (value - x.min) * across;
  box.y = (value) => box.bottom - (value - y.min) * down;

  pen.fillStyle = colour("--soft");
  pen.strokeStyle = colour("--line");
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const tick of yTicks) {
    line(pen, box.left, box.y(tick), box.right, box.y(tick));
    pen.fillText(y.format(tick), left - 5, box.y(tick));
  }
  pen.textAlign = "center";
  pen.textBaseline = "top";
  const nice = () => niceTicks(x.min, x.most ?? x.max, width / 55, x.step);
  const xTicks = x.ticks ?? nice().map((at) => [at, x.format(at)]);
  labelsBelow(pen, xTicks.map(([at, text]) => [box.x(at), text]), bottom + 5, width, drop);
  if (x.title) pen.fillText(x.title, (box.left + box.right) / 2, height - 13);
  return box;
}

/* How far labels reach down when they are tilted; 0 where they fit side by side. */
function tiltedBy(pen, texts, width) {
  const longest = Math.max(0, ...texts.map((text) => pen.measureText(text).width));
  const fit = longest < (width - 60) / Math.max(1, texts.length) - 4 || longest < 22;
  return fit ? 0 : Math.min(90, 0.71 * longest + 2);
}

/* Words below an axis; those that would cover one another are left out. */
function labelsBelow(pen, labels, y, width, drop) {
  pen.textBaseline = "top";
  let free = -Infinity;
  for (const [x, text] of labels) {
    const half = drop ? 7 : pen.measureText(text).width / 2;
    if (x - half < free || x + half > width) continue;
    free = x + half + (drop ? 0 : 4);
    if (!drop) {
      pen.textAlign = "center";
      pen.fillText(text, x, y);
      continue;
    }
    pen.save();
    pen.textAlign = "right";
    pen.translate(x + 4, y);
    pen.rotate(-Math.PI / 4);
    pen.fillText(text, 0, 0);
    pen.restore();
  }
  pen.textAlign = "center";
}

function line(pen, x1, y1, x2, y2) {
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x2, y2);
  pen.stroke();
}

const SHAPES = {
  circle: (pen, x, y, r) => pen.arc(x, y, r, 0, 7),
  square: (pen, x, y, r) => pen.rect(x - r * 0.85, y - r * 0.85, r * 1.7, r * 1.7),
  triangle(pen, x, y, r) {
    pen.moveTo(x, y - r * 1.1);
    pen.lineTo(x + r, y + r * 0.8);
    pen.lineTo(x - r, y + r * 0.8);
    pen.closePath();
  },
  wedge(pen, x, y, r) {
    pen.moveTo(x, y + r * 1.1);
    pen.lineTo(x + r, y - r * 0.8);
    pen.lineTo(x - r, y - r * 0.8);
    pen.closePath();
  },
  diamond(pen, x, y, r) {
    pen.moveTo(x, y - r * 1.3);
    pen.lineTo(x + r * 1.1, y);
    pen.lineTo(x, y + r * 1.3);
    pen.lineTo(x - r * 1.1, y);
    pen.closePath();
  },
};

function drawPoints(pen, box, { x, y, shape, paint, faint }) {
  const r = Math.max(1.2, Math.min(5, 60 / Math.sqrt(x.length)));
  pen.fillStyle = colour(paint);
  pen.strokeStyle = colour("--page");
  pen.globalAlpha = x.length > 500 ? (faint ? 0.3 : 0.7) : 1;
  for (let i = 0; i < x.length; i++) {
    if (y[i] === null || x[i] === null) continue;
    pen.beginPath();
    SHAPES[shape](pen, box.x(x[i]), box.y(y[i]), r);
    pen.fill();
    if (r > 2.5) pen.stroke();
  }
  pen.globalAlpha = 1;
}

function drawLine(pen, box, { x, y, low, high, paint, dash = [] }) {
  pen.fillStyle = pen.strokeStyle = colour(paint);
  if (low) {
    const known = x.map((_, i) => i).filter((i) => low[i] !== null);
    pen.globalAlpha = 0.18;
    pen.beginPath();
    for (const i of known) pen.lineTo(box.x(x[i]), box.y(high[i]));
    for (const i of known.reverse()) pen.lineTo(box.x(x[i]), box.y(low[i]));
    pen.fill();
    pen.globalAlpha = 1;
  }
  pen.lineWidth = 1.75;
  pen.setLineDash(dash);
  pen.beginPath();
  for (let i = 0; i < x.length; i++) if (y[i] !== null) pen.lineTo(box.x(x[i]), box.y(y[i]));
  pen.stroke();
  pen.setLineDash([]);
  if (x.length < 3) drawPoints(pen, box, { x, y, shape: "circle", paint });
}

/* Series of points or of lines. An item is [series, index]; `order` is the way of the keys. */
function plot(spec) {
  let box = null;
  const visible = () => spec.series.filter((one) => !one.hidden);
  const at = ([one, i]) => [box.x(one.x[i]), box.y(one.y[i])];
  return {
    ...spec,
    at,
    draw(pen, width, height) {
      box = frame(pen, spec, width, height);
      spec.under?.(pen, box);
      for (const one of visible()) (one.shape ? drawPoints : drawLine)(pen, box, one);
      spec.above?.(pen, box);
    },
    find(px, py) {
      let [best, nearest] = [null, spec.byX ? Infinity : 30 ** 2];
      for (const one of visible())
        for (let i = 0; i < one.x.length; i++) {
          if (one.y[i] === null || one.x[i] === null) continue;
          const [dx, dy] = [box.x(one.x[i]) - px, box.y(one.y[i]) - py];
          const far = dx * dx * (spec.byX ? 1e4 : 1) + dy * dy;
          if (far < nearest) [best, nearest] = [[one, i], far];
        }
      return best;
    },
    next(item, step) {
      const one = item?.[0] ?? visible()[0];
      if (!one) return null;
      const order = (spec.order ?? one.x.map((_, i) => i)).filter(
        (i) => one.y[i] !== null && one.x[i] !== null,
      );
      const from = item ? order.indexOf(item[1]) : step > 0 ? -1 : order.length;
      const to = Math.max(0, Math.min(order.length - 1, from + step));
      return order.length ? [one, order[to]] : null;
    },
    spot(client) {
      const one = spec.series.find((each) => !each.hidden && each.y[client] != null);
      return one && one.x[client] !== null ? at([one, client]) : null;
    },
  };
}

const TOTALS = ["labelled", "unlabelled", "test"]; // images of a client in all
const APART = 8; // pixels between them and the classes

/* Classes by clients, or by groups of alike clients; the darker, the more images. Below them, what
   clients hold in all. */
function heat({ classes, columns, values }) {
  const most = rangeOf(values, 0)[1];
  const mostInAll = rangeOf(columns.map((column) => column.totals), 0)[1];
  const rows = [...classes, ...TOTALS];
  const gap = columns.findIndex((column) => column.novel);
  let box = null;
  const cell = ([column, row]) => {
    const wide = (box.right - box.left) / columns.length;
    const high = (box.bottom - box.top - APART) / rows.length;
    const down = row >= classes.length ? APART : 0;
    return [box.left + column * wide, box.top + row * high + down, wide, high];
  };
  const amount = (i, k) =>
    k < classes.length ? values[i][k] : columns[i].totals[k - classes.length];
  return {
    label: "images by class and client, and in all",
    draw(pen, width, height) {
      pen.clearRect(0, 0, width, height);
      pen.font = FONT;
      const names = rows.map((name) => (name.length > 14 ? `${name.slice(0, 13)}…` : name));
      const left = 8 + Math.max(...names.map((name) => pen.measureText(name).width));
      const single = columns.every((column) => column.clients === 1);
      const below = single ? columns.map((column) => column.short) : [];
      const drop = tiltedBy(pen, below, width - left);
      const bottom = height - 20 - (single ? 16 + drop : 0);
      box = { left: Math.min(left, width / 3), right: width - 6, top: 4, bottom };
      for (let i = 0; i < columns.length; i++)
        for (let k = 0; k < rows.length; k++) {
          const [x, y, wide, high] = cell([i, k]);
          const inAll = k >= classes.length;
          const share = amount(i, k) / (inAll ? 3 * mostInAll : most);
          pen.fillStyle = colour(inAll ? "--soft" : "--personal");
          pen.globalAlpha = share ** 0.7; // a few images should still be seen
          pen.fillRect(x, y, wide + (wide < 4 ? 0.5 : -1), high - (high < 4 ? 0 : 1));
          pen.globalAlpha = 1;
          if (!inAll || !single) continue;
          pen.fillStyle = colour("--ink");
          pen.textAlign = "center";
          pen.textBaseline = "middle";
          const text = whole(amount(i, k));
          if (pen.measureText(text).width < wide - 2) pen.fillText(text, x + wide / 2, y + high / 2);
        }
      pen.fillStyle = colour("--soft");
      pen.textAlign = "right";
      pen.textBaseline = "middle";
      const each = Math.ceil((13 * rows.length) / (box.bottom - box.top));
      for (let k = 0; k < rows.length; k += k < classes.length ? each : 1) {
        const [, y, , high] = cell([0, k]);
        pen.fillText(names[k], box.left - 5, y + high / 2, box.left - 6);
      }
      const middle = (column) => cell([column, 0])[0] + cell([0, 0])[2] / 2;
      labelsBelow(pen, below.map((text, i) => [middle(i), text]), box.bottom + 4, width, drop);
      pen.textBaseline = "bottom";
      pen.textAlign = "left";
      const sides = [["trained", gap === 0 ? -1 : 0], ["novel", gap]];
      for (const [text, from] of sides) {
        if (from < 0) continue;
        const [x] = cell([from, 0]);
        pen.fillText(text, x, height - 2);
        pen.strokeStyle = colour("--ink");
        if (from > 0) line(pen, x - 0.5, box.top, x - 0.5, height);
      }
    },
    find(x, y) {
      if (!box || x < box.left || x >= box.right || y < box.top || y >= box.bottom) return null;
      const across = Math.floor(((x - box.left) / (box.right - box.left)) * columns.length);
      const down = rows.findIndex((_, k) => {
        const [, top, , high] = cell([across, k]);
        return y >= top && y < top + high;
      });
      return down < 0 ? null : [across, down];
    },
    next(item, step) {
      if (item === null) return [0, 0];
      const last = columns.length * rows.length - 1;
      const to = Math.max(0, Math.min(last, item[0] * rows.length + item[1] + step));
      return [Math.floor(to / rows.length), to % rows.length];
    },
    at(item) {
      const [x, y, wide, high] = cell(item);
      return [x + wide / 2, y + high / 2];
    },
    tip([i, k]) {
      const mean = columns[i].clients > 1 ? " on average" : "";
      const said = (value) => `${short(value)} images${mean}`;
      const inAll = TOTALS.map((name, n) => [name, said(columns[i].totals[n])]);
      const own = k < classes.length ? [[classes[k], said(values[i][k])]] : [];
      return { title: columns[i].name, rows: [...own, ...inAll] };
    },
  };
}

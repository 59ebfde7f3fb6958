/* A chart's stage: one canvas that is drawn once, one that follows the pointer; mouse, touch, keys.

   A view is {label, draw(pen, width, height), find(x, y), next(item, step), at(item), tip(item)};
   those of single clients also have client(item), spot(client) and may have pick(client).
   Stages of the same group mark the same client. */

const stages = [];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const element = (tag, text = "", name = "") => {
  const made = document.createElement(tag);
  made.textContent = text; // never HTML: names come from other people's files
  made.className = name;
  return made;
};

const tipBox = document.getElementById("tip");
function showTip(x, y, { title, rows }) {
  const list = element("dl");
  for (const [name, value] of rows) list.append(element("dt", name), element("dd", value));
  tipBox.replaceChildren(element("strong", title), list);
  tipBox.hidden = false;
  const { width, height } = tipBox.getBoundingClientRect();
  const left = x + 14 + width < innerWidth ? x + 14 : x - 14 - width;
  const top = y + 14 + height < innerHeight ? y + 14 : y - 14 - height;
  tipBox.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
  tipBox.style.top = `${Math.max(4, top)}px`;
}
const hideTip = () => (tipBox.hidden = true);
addEventListener("scroll", hideTip, { passive: true, capture: true });

function stage(host, view, group = []) {
  const [base, over] = [element("canvas"), element("canvas")];
  host.append(base, over);
  host.tabIndex = 0;
  host.setAttribute("role", "application");
  host.setAttribute("aria-label", `${view.label}. Arrow keys move from one to the next.`);
  let item = null;

  const pen = (canvas) => {
    const { clientWidth: width, clientHeight: height } = host;
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    const made = canvas.getContext("2d");
    made.scale(ratio, ratio);
    return [made, width, height];
  };
  const ring = (at) => {
    const [made] = pen(over);
    if (!at) return;
    made.strokeStyle = colour("--ink");
    made.lineWidth = 2;
    made.beginPath();
    made.arc(at[0], at[1], 7, 0, 7);
    made.stroke();
  };
  const self = {
    draw() {
      if (!host.clientWidth) return; // in a closed section: drawn when it opens
      view.draw(...pen(base));
      ring(item === null ? null : view.at(item));
    },
    renew(next) {
      view = next; // of the same kind, with more to show
      self.draw();
    },
    mark(client) {
      if (host.clientWidth) ring(client === null ? null : view.spot(client));
    },
  };

  const show = (found) => {
    item = found;
    ring(item === null ? null : view.at(item));
    if (item === null) hideTip();
    else {
      const box = host.getBoundingClientRect();
      const [x, y] = view.at(item);
      showTip(box.left + x, box.top + y, view.tip(item));
    }
    if (view.client)
      for (const other of group)
        if (other !== self) other.mark(item === null ? null : view.client(item));
  };
  const under = (event) => {
    const box = host.getBoundingClientRect();
    return view.find(event.clientX - box.left, event.clientY - box.top);
  };
  host.addEventListener("pointermove", (event) => show(under(event)));
  host.addEventListener("pointerdown", (event) => show(under(event)));
  host.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && show(null));
  host.addEventListener("blur", () => show(null));
  host.addEventListener("click", (event) => {
    const found = under(event);
    if (found !== null && view.pick) view.pick(view.client(found));
  });
  const steps = { ArrowRight: 1, ArrowLeft: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 };
  host.addEventListener("keydown", (event) => {
    if (event.key === "Escape") show(null);
    else if (event.key === "Enter" && item !== null && view.pick) view.pick(view.client(item));
    else if (event.key in steps) {
      event.preventDefault();
      show(view.next(item, steps[event.key]));
    }
  });
  new ResizeObserver(self.draw).observe(host);
  if (view.client) group.push(self);
  stages.push(self);
  return self;
}

/* A figure with a caption and an empty stage, which is returned. */
function figureIn(host, caption, { meaning = "", size = "" } = {}) {
  const [figure, heading] = [element("figure"), element("figcaption", caption)];
  const empty = element("div", "", `plot ${size}`);
  if (meaning) heading.append(element("span", meaning));
  figure.append(heading, empty);
  host.append(figure);
  return empty;
}

const drawAll = () => stages.forEach((each) => each.draw());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
const onPaper = (yes) => () => {
  document.documentElement.classList.toggle("paper", yes);
  if (yes) document.querySelectorAll("details.settings").forEach((one) => (one.open = true));
  drawAll();
};
addEventListener("beforeprint", onPaper(true));
addEventListener("afterprint", onPaper(false));

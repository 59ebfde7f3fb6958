// What every page shares.
const $ = (id) => document.getElementById(id);
const percent = (value) => (100 * value).toFixed(1) + "\u00a0%";
const certainty = (p) => p > 0.999 && p < 1 ? "> " + percent(0.999) : percent(p);

// Names are other people's words: they become text, never markup.
function element(name, text, parent, className) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  if (className) made.className = className;
  parent.append(made);
  return made;
}

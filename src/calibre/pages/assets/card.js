// The model card, from the text of card.md: headings, lists, tables, pictures, paragraphs, **bold**,
// `code`.
function showCard(text, parent) {
  parent.replaceChildren();
  for (const block of text.split(/\n{2,}/)) {
    const lines = block.trim().split("\n");
    if (block.startsWith("# ")) continue;  // the page has its own title
    if (block.startsWith("## ")) inline(lines[0].slice(3), element("h2", null, parent));
    else if (lines[0].startsWith("- ")) list(lines, parent);
    else if (lines[0].startsWith("|")) table(lines, parent);
    else if (lines[0].startsWith("![")) picture(lines[0], parent);
    else if (lines[0]) paragraph(lines.join(" "), parent);
  }
}

function paragraph(text, parent) {
  const made = element("p", null, parent);
  if (text.startsWith("**Warning:**")) made.className = "warning";
  inline(text, made);
}

// Of this server only.
function picture(line, parent) {
  const [, about, name] = line.match(/^!\[([^\]]*)\]\(([a-z]+\.png)\)$/) ?? [];
  if (!name) return;
  const made = element("img", null, element("div", null, parent, "scroll"));
  made.alt = about;
  made.src = name;
}

function list(lines, parent) {
  const made = element("ul", null, parent);
  for (const line of lines) inline(line.replace(/^- /, ""), element("li", null, made));
}

function table(lines, parent) {
  const made = element("table", null, element("div", null, parent, "scroll"));
  lines.forEach((line, number) => {
    if (number === 1) return;  // | --- | --- |
    const row = element("tr", null, made);
    for (const cell of line.replace(/^\| | \|$/g, "").split(" | "))
      inline(cell, element(number ? "td" : "th", null, row));
  });
}

function inline(text, parent) {
  for (const [part] of text.matchAll(/\*\*.+?\*\*|`.+?`|(?:\\[^]|[^\\*`])+|[^]/g)) {
    const plain = part.replace(/\\([^])/g, "$1");
    if (/^\*\*.+\*\*$/.test(part)) element("b", plain.slice(2, -2), parent);
    else if (/^`.+`$/.test(part)) element("code", part.slice(1, -1), parent);
    else parent.append(plain);
  }
}

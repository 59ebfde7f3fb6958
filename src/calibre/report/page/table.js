/* Tables: a small one is sorted where it stands; that of the clients shows a page of its rows. */

const collator = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => {
  if (a === b) return 0;
  if (a === null) return 1;
  if (b === null) return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : collator.compare(a, b);
};

/* A heading that sorts: a button, so that keys and screen readers reach it. */
function sortButton(heading, act) {
  const button = element("button", heading.textContent);
  button.type = "button";
  button.addEventListener("click", act);
  heading.replaceChildren(button);
}
function showOrder(headings, chosen, down) {
  for (const heading of headings) heading.removeAttribute("aria-sort");
  chosen.setAttribute("aria-sort", down ? "descending" : "ascending");
}

function sortable(table) {
  const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell.textContent.trim();
    if (text === "–") return null;
    return "value" in cell.dataset ? Number(cell.dataset.value) : text;
  };
  headings.forEach((heading, column) =>
    sortButton(heading, () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      const rows = [...table.tBodies[0].rows];
      rows.sort((a, b) => (down ? -1 : 1) * compare(value(a, column), value(b, column)));
      table.tBodies[0].append(...rows);
      showOrder(headings, heading, down);
    }),
  );
}

const PAGE = 50;

/* columns: {title, values, show, text?, about?}, sorted by those values that come first;
   filters: {name: (client) => boolean}. */
function clientTable(host, { columns, first, filters, name, count }) {
  const part = (selector) => host.querySelector(selector);
  const [search, which, body, said] = ["input", "select", "tbody", ".range"].map(part);
  let [sorted, down, page] = [columns.find((column) => column.values === first), false, 0];
  let shown = [];

  const headings = columns.map((column) => {
    const heading = element("th", column.title, column.text ? "text" : "");
    heading.scope = "col";
    if (column.about) heading.title = column.about;
    sortButton(heading, () => {
      [down, sorted] = [sorted === column && !down, column];
      showOrder(headings, heading, down);
      select();
    });
    return heading;
  });
  part("thead tr").replaceChildren(...headings);
  for (const title of Object.keys(filters)) which.append(new Option(title));

  const select = () => {
    const words = search.value.trim().toLowerCase();
    const wanted = filters[which.value];
    shown = [];
    for (let i = 0; i < count; i++)
      if (wanted(i) && (!words || name(i).toLowerCase().includes(words))) shown.push(i);
    const values = sorted.values;
    const exact = (i) => words && name(i).toLowerCase() === words;
    shown.sort(
      (a, b) => exact(b) - exact(a) || (down ? -1 : 1) * compare(values[a], values[b]) || a - b,
    );
    turn(0);
  };
  const turn = (to) => {
    const pages = Math.max(1, Math.ceil(shown.length / PAGE));
    page = Math.max(0, Math.min(pages - 1, to));
    const rows = shown.slice(page * PAGE, (page + 1) * PAGE).map((i) => {
      const row = element("tr");
      columns.forEach((column, k) => {
        const cell = element(k ? "td" : "th", column.show(column.values[i]));
        if (column.text) cell.className = "text";
        if (!k) cell.scope = "row";
        row.append(cell);
      });
      return row;
    });
    body.replaceChildren(...rows);
    const from = shown.length ? page * PAGE + 1 : 0;
    const to_ = Math.min(shown.length, (page + 1) * PAGE);
    said.textContent = `${whole(from)}–${whole(to_)} of ${whole(shown.length)}`;
    part(".back").disabled = page === 0;
    part(".on").disabled = page >= pages - 1;
  };
  search.addEventListener("input", select);
  which.addEventListener("change", select);
  part(".back").addEventListener("click", () => turn(page - 1));
  part(".on").addEventListener("click", () => turn(page + 1));
  showOrder(headings, headings[columns.indexOf(sorted)], false);
  select();
  return {
    find(text) {
      [search.value, which.selectedIndex] = [text, 0];
      select();
      host.scrollIntoView({ block: "nearest" });
    },
  };
}

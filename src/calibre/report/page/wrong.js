/* What one client's model gets wrong: recall by class, and what is taken for what. */

const MATRIX = 20; // classes of a matrix; of more, the most frequent pairs are listed

function tableOf(head, rows) {
  const table = element("table");
  const top = table.createTHead().insertRow();
  head.forEach((title, i) => top.append(element("th", title, i ? "" : "text")));
  const body = table.createTBody();
  for (const cells of rows) {
    const row = body.insertRow();
    cells.forEach((cell, i) => row.append(element(i ? "td" : "th", String(cell), i ? "" : "text")));
  }
  return table;
}

function recallTable(classes) {
  const refusing = classes.some(([, , , , , refused]) => refused !== null);
  return tableOf(
    ["class", "images", "right", "95 % interval", ...(refusing ? ["refused"] : [])],
    classes.map(([name, images, correct, low, high, refused]) => [
      name,
      whole(images),
      percent(correct / images),
      `${Math.round(100 * low)} to ${Math.round(100 * high)}\u00a0%`,
      ...(refusing ? [refused] : []),
    ]),
  );
}

function matrixTable({ classes, confused }) {
  const truths = classes.map(([name]) => name);
  const answers = [...new Set([...truths, ...confused.map(([, answer]) => answer)])];
  if (answers.length > MATRIX)
    return tableOf(["is", "taken for", "images"], confused.slice(0, MATRIX));
  const counts = new Map(confused.map(([is, answer, images]) => [`${is}\n${answer}`, images]));
  for (const [name, , correct] of classes) counts.set(`${name}\n${name}`, correct);
  const table = tableOf(
    ["is \\ taken for", ...answers],
    truths.map((is) => [is, ...answers.map((answer) => counts.get(`${is}\n${answer}`) ?? 0)]),
  );
  table.classList.add("matrix");
  truths.forEach((is, i) => {
    const cells = table.tBodies[0].rows[i].cells;
    answers.forEach((answer, j) => {
      const share = (counts.get(`${is}\n${answer}`) ?? 0) / classes[i][1];
      cells[j + 1].classList.add(is === answer ? "right" : "wrong");
      cells[j + 1].style.setProperty("--share", `${Math.round(100 * share)}%`);
    });
  });
  return table;
}

function showWrong(section, clients) {
  const choice = section.querySelector("select");
  const [said, recalls, matrix] = [".on", ".recalls", ".confusions"].map((one) =>
    section.querySelector(one),
  );
  for (const { client } of clients) choice.append(new Option(client));
  const show = () => {
    const one = clients[choice.selectedIndex];
    const how = one.how === "test images" ? one.how : "images, by cross-validation";
    said.textContent = `On ${whole(one.images)} ${how}`;
    recalls.replaceChildren(recallTable(one.classes));
    matrix.replaceChildren(
      one.confused.length ? matrixTable(one) : element("p", "No image was taken for another class."),
    );
  };
  choice.addEventListener("change", show);
  show();
}

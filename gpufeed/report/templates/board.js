// Sorts and filters the tables. Without it they are plain tables that show every cell.
const MOST = 20;  // rows at first

// Turns the headings into buttons: the first click brings the largest numbers up, and the first words.
const sortable = table => {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  const key = (row, column, number) =>
    number ? row.cells[column].dataset.value : row.cells[column].textContent.trim();
  const sort = (head, column) => {
    const number = "number" in head.dataset, before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : number;
    const keys = new Map([...body.rows].map(row => [row, key(row, column, number)]));
    const known = [...body.rows].filter(row => keys.get(row) && keys.get(row) !== "-");
    const words = new Intl.Collator("en", {numeric: true});
    known.sort((a, b) => number ? keys.get(a) - keys.get(b) : words.compare(keys.get(a), keys.get(b)));
    if (down) known.reverse();
    body.append(...new Set([...known, ...body.rows]));  // what is not known comes last either way
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    table.dispatchEvent(new Event("sorted"));
  };
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head, column));
    head.append(button);
  });
};

for (const board of document.querySelectorAll(".board")) {
  const table = board.querySelector("table"), form = board.querySelector("form");
  const rows = [...table.tBodies[0].rows], more = board.querySelector(".rest");
  const text = row => [...row.cells].map(cell => cell.textContent).join(" ").toLowerCase();
  const texts = new Map(rows.map(row => [row, text(row)]));
  let all = rows.length <= MOST;

  const filter = () => {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [...form.querySelectorAll("select")].filter(select => select.value);
    const found = [...table.tBodies[0].rows].filter(row => words.every(word => texts.get(row).includes(word))
      && chosen.every(select => row.dataset[select.name] === select.value));
    const shown = new Set(all ? found : found.slice(0, MOST));
    for (const row of rows) row.hidden = !shown.has(row);
    form.querySelector("output").textContent = `${found.length} of ${rows.length} cells`;
    more.hidden = shown.size === found.length;
    more.textContent = `Show ${found.length - shown.size} more`;
  };
  const everything = () => { all = true; filter(); };

  sortable(table);
  table.addEventListener("sorted", filter);
  form.addEventListener("input", filter);
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  more.addEventListener("click", everything);
  addEventListener("beforeprint", everything);
  form.hidden = false;
  filter();
}

// The lines of a CSV file as lists of fields.
const parsed = text => {
  const rows = [[]];
  for (const [, end, quoted, plain] of text.matchAll(/(^|,|\r?\n)(?:"((?:[^"]|"")*)"|([^,"\r\n]*))/g)) {
    if (end.includes("\n")) rows.push([]);
    rows.at(-1).push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
  }
  return rows.filter(row => row.length > 1);
};

const element = (name, text = "", more = {}) => Object.assign(document.createElement(name), {textContent: text}, more);

// Makes the table of all columns from the file to download; what all rows share stands above it once.
const fill = folded => {
  const link = document.querySelector(`a[download="${folded.dataset.file}"]`);
  const bytes = Uint8Array.from(atob(link.href.split(",", 2)[1]), letter => letter.charCodeAt(0));
  const [names, ...lines] = parsed(new TextDecoder().decode(bytes));
  const differs = names.map((_, column) => lines.some(line => line[column] !== lines[0][column]));
  const first = names.indexOf("cell_id"), order = [...names.keys()].filter(column => differs[column] && column !== first);
  const shared = names.map((name, column) => `${name}: ${lines[0][column]}`)
    .filter((text, column) => !differs[column] && lines[0][column] !== "");
  const numeric = new Set(order.filter(column => lines.every(line => !line[column] || isFinite(line[column]))));
  const table = element("table", "", {className: "plain"}), head = table.createTHead().insertRow();
  for (const column of [first, ...order]) {
    const cell = element("th", names[column], {scope: "col"});
    if (numeric.has(column)) cell.dataset.number = "";
    head.append(cell);
  }
  const body = table.createTBody();
  const add = lines => {
    for (const line of lines) {
      const row = body.insertRow();
      row.append(element("th", line[first], {scope: "row"}));
      for (const column of order) {
        const cell = element("td", line[column] && numeric.has(column) ? String(+(+line[column]).toPrecision(6)) : line[column]);
        if (numeric.has(column) && line[column]) cell.dataset.value = line[column];
        row.append(cell);
      }
    }
  };
  const at = 200;  // rows at first: thousands of rows with dozens of columns take seconds
  add(lines.slice(0, at));
  sortable(table);
  const box = element("div", "", {className: "scroll", tabIndex: 0, role: "region", ariaLabel: "All columns"});
  box.append(table);
  folded.querySelector("p").replaceWith(element("p", `The same in all rows: ${shared.join(", ")}.`), box);
  if (lines.length > at) {
    const rest = element("button", `Show ${lines.length - at} more`, {type: "button"});
    rest.addEventListener("click", () => { add(lines.slice(at)); rest.remove(); });
    folded.append(rest);
  }
  watch(box);
};
for (const folded of document.querySelectorAll("details.all"))
  folded.addEventListener("toggle", () => fill(folded), {once: true});

// A link into something folded opens it.
const unfold = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  for (let folded = target.querySelector(":scope > details.part") ?? target.closest("details"); folded;
    folded = folded.parentElement.closest("details")) folded.open = true;
  target.scrollIntoView();
};
addEventListener("hashchange", unfold);
unfold();

// Sorts and filters the leaderboards. Without it they are plain tables that show every cell.
for (const board of document.querySelectorAll(".board")) {
  const table = board.querySelector("table"), body = table.tBodies[0];
  const rows = [...body.rows], form = board.querySelector("form");
  const texts = new Map(rows.map(row => [row, row.innerText.toLowerCase()]));  // with blanks between cells
  const heads = [...table.tHead.rows[0].cells];

  const filter = () => {
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const chosen = [...form.querySelectorAll("select")].filter(select => select.value);
    for (const row of rows) {
      row.hidden = !words.every(word => texts.get(row).includes(word))
        || !chosen.every(select => row.dataset[select.name] === select.value);
    }
    const shown = rows.filter(row => !row.hidden).length;
    form.querySelector("output").textContent = `${shown} of ${rows.length} cells`;
  };

  const sort = (head, column) => {
    const number = "number" in head.dataset;
    // the first click brings the largest numbers up, and the first words
    const before = head.getAttribute("aria-sort");
    const down = before ? before === "ascending" : number;
    const key = row => number ? row.cells[column].dataset.value : row.cells[column].textContent.trim();
    const known = rows.filter(row => key(row) !== undefined && key(row) !== "-");
    known.sort((a, b) => number ? key(a) - key(b) : key(a).localeCompare(key(b), "en", {numeric: true}));
    if (down) known.reverse();
    const order = new Set([...known, ...rows]);  // what is not known comes last either way
    body.append(...order);
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
  };

  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    button.addEventListener("click", () => sort(head, column));
    head.append(button);
  });
  form.addEventListener("input", filter);
  form.addEventListener("submit", event => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  form.hidden = false;
  filter();
}

// A link to a script opens what it is folded into.
const unfold = () => {
  const target = document.getElementById(location.hash.slice(1));
  const folded = target && target.closest("details");
  if (folded && !folded.open) {
    folded.open = true;
    target.scrollIntoView();
  }
};
addEventListener("hashchange", unfold);
unfold();

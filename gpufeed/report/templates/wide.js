// Says above a box that scrolls sideways that it does: phones show no scroll bar.
const hints = new Map();
const look = new ResizeObserver(entries => {
  for (const box of new Set(entries.map(entry => entry.target.closest(".scroll"))))
    hints.get(box).hidden = box.scrollWidth <= box.clientWidth + 1;
});
const names = new Map();  // of regions: each has its own, for screen readers
const watch = box => {
  const name = box.getAttribute("aria-label"), count = (names.get(name) ?? 0) + 1;
  names.set(name, count);
  if (count > 1) box.setAttribute("aria-label", `${name} (${count})`);
  const hint = document.createElement("p");
  hint.className = "wide";
  hint.textContent = "more on the right \u2192";
  hint.hidden = true;
  hint.ariaHidden = "true";  // the region has a name for screen readers
  box.before(hint);
  hints.set(box, hint);
  for (const part of [box, ...box.children]) look.observe(part);
};
document.querySelectorAll(".scroll").forEach(watch);

// Paper has no folds: open what is folded for a print, but for code and other forms of a table.
const opened = [];
addEventListener("beforeprint", () => {
  for (const folded of document.querySelectorAll("details:not([open], .calls, .markdown, .all)")) {
    folded.open = true;
    opened.push(folded);
  }
});
addEventListener("afterprint", () => { for (const folded of opened.splice(0)) folded.open = false; });

// Says above a box that scrolls sideways that it does: phones show no scroll bar.
const hints = new Map();
const look = new ResizeObserver(entries => {
  for (const box of new Set(entries.map(entry => entry.target.closest(".scroll")))) {
    const scrolls = box.querySelector(".dt-layout-full") ?? box;  // DataTables has a box of its own inside
    hints.get(box).hidden = scrolls.scrollWidth <= scrolls.clientWidth + 1;
  }
});
for (const box of document.querySelectorAll(".scroll")) {
  const hint = document.createElement("p");
  hint.className = "wide";
  hint.textContent = "goes on to the right \u2192";
  hint.hidden = true;
  hint.ariaHidden = "true";  // a reader of the screen is told the region's name
  box.before(hint);
  hints.set(box, hint);
  for (const part of [box, ...box.children]) look.observe(part);
}

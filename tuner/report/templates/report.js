"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const dark = read("dark");
  const darkness = matchMedia("(prefers-color-scheme: dark)");
  const narrowness = matchMedia("(max-width: 40rem)");

  // The same figure with every colour exchanged for its partner in the dark.
  const painted = (value, colours) => {
    if (typeof value === "string") return colours[value] ?? value;
    if (Array.isArray(value)) return value.map((each) => painted(each, colours));
    if (value === null || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, painted(each, colours)]));
  };

  const draw = (inTheDark) => {
    for (const place of document.querySelectorAll("[data-figure]")) {
      const { data, layout } = painted(figures[place.dataset.figure], inTheDark ? dark : {});
      if (narrowness.matches) {
        // The legend takes a line for each name there.
        layout.font.size = 12;
        layout.height += 16 * data.length;
      }
      Plotly.react(place, data, layout, { responsive: true, displayModeBar: false });
    }
  };
  draw(darkness.matches);
  darkness.addEventListener("change", () => draw(darkness.matches));
  narrowness.addEventListener("change", () => draw(darkness.matches));
  // Paper is white.
  addEventListener("beforeprint", () => draw(false));
  addEventListener("afterprint", () => draw(darkness.matches));

  // Numbers by size, words by the alphabet; what has no key stays at the end in either order.
  const compare = (one, other, sign) => {
    if (one === undefined || other === undefined) return (one === undefined) - (other === undefined);
    const [a, b] = [Number(one), Number(other)];
    return sign * (Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other) : a - b);
  };

  const sort = (table, heading) => {
    const headings = [...heading.parentElement.children];
    const column = headings.indexOf(heading);
    const order = heading.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const each of headings) each.setAttribute("aria-sort", each === heading ? order : "none");
    const key = (row) => row.cells[column].dataset.key;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(key(a), key(b), order === "ascending" ? 1 : -1));
    table.tBodies[0].append(...rows);
    document.getElementById("said").textContent = `Sorted by ${heading.innerText.trim()}, ${order}`;
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    for (const heading of table.tHead.rows[0].cells) {
      heading.querySelector("button").addEventListener("click", () => sort(table, heading));
    }
  }
})();

// Click on a heading sorts its table: by numbers where both cells begin with one.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    if (!head.textContent) return;
    const button = document.createElement("button");
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].textContent.trim();
      const number = (text) => parseFloat(text.replaceAll(",", ""));
      const order = (a, b) => {
        const [x, y] = [number(a), number(b)];
        return isNaN(x) || isNaN(y) ? a.localeCompare(b) : x - y;
      };
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * order(key(a), key(b)));
      body.append(...rows);
    });
  });
}

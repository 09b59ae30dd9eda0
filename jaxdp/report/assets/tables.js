// Tables that sort: a header's button goes from ascending to descending; what is unknown stays last.

function makeSortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", other === head ? order : "none"));
      sortRows(table.tBodies[0], column, order === "ascending" ? 1 : -1);
    });
  });
}

function sortRows(body, column, sign) {
  const valueOf = (row) => row.cells[column].dataset.value;
  const rows = [...body.rows];
  rows.sort((a, b) => compareValues(valueOf(a), valueOf(b), sign));
  body.append(...rows);
}

function compareValues(a, b, sign) {
  if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
  const [x, y] = [Number(a), Number(b)];
  const bothNumbers = a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y);
  return sign * (bothNumbers ? x - y : a.localeCompare(b, "en", { numeric: true }));
}

// Brings the page to life: switches, theme, sorting, and charts for the width at hand.

const report = JSON.parse(document.getElementById("data").textContent);
const switches = [...document.querySelectorAll(".switch input")];
const figures = [...document.querySelectorAll("[data-chart]")];

function groupIndex(group) {
  return report.groups.indexOf(group);
}

function isShown(group) {
  return group === "" || switches[groupIndex(group)].checked;
}

function drawAll() {
  card.hide(true);
  for (const figure of figures) drawChart(figure, report.charts[figure.dataset.chart]);
}

function applySwitches() {
  for (const row of document.querySelectorAll("tr[data-group]")) {
    row.classList.toggle("off", !switches[row.dataset.group].checked);
  }
  drawAll();
}

function isDark() {
  const asked = document.documentElement.dataset.theme;
  return asked ? asked === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

document.getElementById("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
});
for (const input of switches) input.addEventListener("input", applySwitches);
for (const key of document.querySelectorAll(".switch .key")) drawKey(key, Number(key.dataset.key));
for (const table of document.querySelectorAll("main table")) if (table.tHead) makeSortable(table);

let drawnFor = 0;
function fit() {
  const width = document.documentElement.clientWidth;
  if (width !== drawnFor) applySwitches();
  drawnFor = width;
}
fit();
new ResizeObserver(() => requestAnimationFrame(fit)).observe(document.documentElement);
startDocuments();

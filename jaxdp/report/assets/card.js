// The card that says what a point is: shown while one hovers or holds the focus, kept by a click or tap.

const card = {
  element: document.getElementById("card"),
  point: null,

  get pinned() {
    return this.element.classList.contains("pinned");
  },

  show(node, series, point, chart, pin) {
    if (this.pinned && !pin) return;
    this.point?.classList.remove("open");
    this.point = node;
    node.classList.add("open");
    this.element.classList.toggle("pinned", pin);
    this.element.replaceChildren(...cardContent(series, point, chart));
    this.element.hidden = false;
    this.place(node.querySelector(".halo").getBoundingClientRect());
  },

  /** Beside the point, inside the window: above it where there is room. */
  place(box) {
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const left = Math.min(Math.max(12, box.left + box.width / 2 - width / 2), document.documentElement.clientWidth - width - 12);
    const top = box.top - height - 8 >= 0 ? box.top - height - 8 : box.bottom + 8;
    this.element.style.left = `${left + window.scrollX}px`;
    this.element.style.top = `${top + window.scrollY}px`;
  },

  hide(evenPinned = false) {
    if (this.pinned && !evenPinned) return;
    this.point?.classList.remove("open");
    this.point = null;
    this.element.classList.remove("pinned");
    this.element.hidden = true;
  },
};

function cardContent(series, point, chart) {
  const facts = Object.entries(cardFacts(point, chart)).flatMap(([key, value]) => [html("dt", {}, [key]), html("dd", {}, [value])]);
  const parts = [html("h3", {}, [series.name]), html("dl", {}, facts)];
  if (point.flag) parts.push(html("p", { class: "flagged" }, [point.flag]));
  parts.push(html("p", { class: "hint" }, ["Click or tap to keep open."]));
  if (point.document in report.documents) parts.push(settingsButtons(point.document));
  return parts;
}

function cardFacts(point, chart) {
  const where = chart.categories.length ? {} : { [chart.x_label]: valueText(point.x) };
  const spread = point.low === null ? {} : { spread: `${valueText(point.low)} to ${valueText(point.high)}` };
  const category = chart.categories.length ? { "": chart.categories[point.x] } : {};
  return { ...category, ...where, [chart.y_label]: valueText(point.y), ...spread, ...point.details };
}

function settingsButtons(name) {
  const read = html("button", { type: "button" }, ["Settings"]);
  const compare = html("button", { type: "button" }, ["Compare with it"]);
  read.addEventListener("click", () => openDocument("document-a", name));
  compare.addEventListener("click", () => openDocument("document-b", name));
  return html("div", { class: "actions" }, [read, compare]);
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") card.hide(true);
});
document.addEventListener("click", (event) => {
  if (!event.target.closest("#card, .plot")) card.hide(true);
});

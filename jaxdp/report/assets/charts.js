// Charts as SVG, drawn for the width at hand: lines over a number, or dots in rows for categories.

const REACH = 44; // pixels from the pointer within which a point is meant
const MOST_MARKERS = 40; // of a series; a denser one is a bare line
const ROW = 30; // pixels of a category

function drawChart(figure, chart) {
  const shown = chart.series.filter((series) => isShown(series.group));
  const place = chart.categories.length ? placeRows : placeLines;
  const width = Math.max(240, figure.clientWidth - horizontalPadding(figure));
  const parts = [html("figcaption", {}, [chart.title]), legendOf(shown)];
  if (shown.some((series) => series.points.length && !series.reference)) {
    parts.push(plotOf(chart, shown, place(chart, shown, width)));
  } else {
    parts.push(html("p", { class: "empty" }, ["Nothing to show: every series is switched off or has no value."]));
  }
  if (chart.note) parts.push(html("p", { class: "note" }, [chart.note]));
  figure.replaceChildren(...parts);
}

function horizontalPadding(element) {
  const style = getComputedStyle(element);
  return parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
}

function legendOf(shown) {
  const entries = shown.map((series) => {
    const key = svg("svg", { class: "key", "aria-hidden": "true" });
    drawKey(key, groupIndex(series.group), series.reference);
    return html("span", {}, [key, series.name]);
  });
  return html("div", { class: "legend" }, entries);
}

/** Where everything goes, for a chart over a number. */
function placeLines(chart, shown, width) {
  const points = shown.flatMap((series) => series.points);
  const height = Math.round(Math.min(330, Math.max(230, width * 0.6)));
  const [logX, logY] = [chart.x_scale === "log", chart.y_scale === "log"];
  const yDomain = domainOf(points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]), logY, chart.from_zero);
  const yTicks = logY ? logTicks(...yDomain) : roundTicks(...yDomain, 5);
  const box = { left: 14 + Math.max(...yTicks.map((tick) => textWidth(tickText(tick)))), right: width - 14, top: 24, bottom: height - 42 };
  const xDomain = domainOf(points.map((p) => p.x), logX, false);
  const x = scaleOf(xDomain, [box.left + (logX ? 16 : 0), box.right - (logX ? 16 : 0)], logX);
  const y = scaleOf(yDomain, [box.bottom, box.top], logY);
  const aside = dodge(chart, shown, x);
  return {
    width, height, box, yTicks, x, y, xTicks: xTicks(points, xDomain, logX, x, box),
    at: (p, series) => [x(p.x) + aside(series), y(p.y)],
    spread: (p, series) => [[x(p.x) + aside(series), y(p.low)], [x(p.x) + aside(series), y(p.high)]],
  };
}

/** Pixels by which a series over devices stands aside, so that no marker or whisker hides another. */
function dodge(chart, shown, x) {
  const own = chart.x_scale === "log" ? shown.filter((series) => !series.reference) : [];
  const places = [...new Set(own.flatMap((series) => series.points.map((point) => x(point.x))))].sort((a, b) => a - b);
  const gaps = places.slice(1).map((place, index) => place - places[index]);
  const by = Math.min(6, Math.min(...gaps, 60) / (own.length + 1));
  return (series) => (own.includes(series) ? by * (own.indexOf(series) - (own.length - 1) / 2) : 0);
}

/** Device counts stand where they are; other numbers get round ticks. */
function xTicks(points, domain, logarithmic, place, box) {
  const values = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b);
  const ticks = values.length <= 12 && values.every(Number.isInteger) ? values : logarithmic ? logTicks(...domain) : roundTicks(...domain, (box.right - box.left) / 80);
  return withoutOverlaps(ticks, place, (tick) => textWidth(tickText(tick)));
}

/** Where everything goes, for rows of dots: names to the left, or above the dots where it is narrow. */
function placeRows(chart, shown, width) {
  const points = shown.flatMap((series) => series.points);
  const used = [...new Set(shown.filter((s) => !s.reference).flatMap((s) => s.points.map((p) => p.x)))].sort((a, b) => a - b);
  const longest = Math.max(...used.map((index) => textWidth(chart.categories[index])));
  const above = longest > width * 0.42;
  const row = above ? ROW + 14 : ROW;
  const box = { left: above ? 10 : longest + 16, right: width - 16, top: 8, bottom: 8 + row * used.length };
  const domain = domainOf(points.flatMap((p) => [p.y, p.low ?? p.y, p.high ?? p.y]), chart.y_scale === "log", chart.from_zero);
  const value = scaleOf(domain, [box.left + 6, box.right - 6], chart.y_scale === "log");
  const rowTop = (index) => box.top + used.indexOf(index) * row + (above ? 14 : 0);
  const drawn = shown.filter((series) => !series.reference);
  const shared = drawn.flatMap((series) => series.points).length > used.length; // rows with a dot of several series
  const level = (series, p) => rowTop(p.x) + (shared ? (ROW * (drawn.indexOf(series) + 1)) / (drawn.length + 1) : ROW / 2);
  const ticks = chart.y_scale === "log" ? logTicks(...domain) : roundTicks(...domain, (box.right - box.left) / 80);
  return {
    width, height: box.bottom + 42, box, rows: used.map((index) => ({ name: chart.categories[index], y: rowTop(index), above })),
    at: (p, series) => [value(p.y), series.reference ? (p.x === series.points[0].x ? box.top : box.bottom) : level(series, p)],
    xTicks: withoutOverlaps(ticks, value, (tick) => textWidth(tickText(tick))), x: value,
    spread: (p, series) => [[value(p.low), level(series, p)], [value(p.high), level(series, p)]],
  };
}

function plotOf(chart, shown, placed) {
  const { width, height, box } = placed;
  const plot = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, height, role: "group", "aria-label": `${chart.title}; arrow keys go from point to point` });
  plot.append(...axesOf(chart, placed));
  const nodes = [];
  for (const series of shown) {
    const layer = svg("g", { class: series.reference ? "reference" : "series" });
    const style = styleOf(groupIndex(series.group));
    if (!series.reference) layer.style.setProperty("--c", style.colour);
    if (series.reference || !chart.categories.length) {
      const d = `M${series.points.map((point) => placed.at(point, series).map((v) => v.toFixed(1)).join(",")).join("L")}`;
      if (series.points.length > 1) layer.append(svg("path", { class: "curve", d, "stroke-dasharray": series.reference ? "1 3" : style.dash }));
    }
    if (!series.reference) nodes.push(...series.points.map((point) => pointOf(chart, series, point, placed, layer)));
    plot.append(layer);
  }
  listen(plot, nodes, chart);
  return plot;
}

function axesOf(chart, { box, xTicks: ticks, yTicks, x, y, rows, height }) {
  const parts = [];
  const valueLabel = chart.categories.length ? chart.y_label : chart.x_label;
  for (const tick of yTicks ?? []) {
    parts.push(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(tick), y2: y(tick) }));
    parts.push(svg("text", { x: box.left - 7, y: y(tick) + 4, "text-anchor": "end" }, [tickText(tick)]));
  }
  for (const tick of ticks) {
    parts.push(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: box.top, y2: box.bottom }));
    parts.push(svg("text", { x: x(tick), y: box.bottom + 17, "text-anchor": "middle" }, [tickText(tick)]));
  }
  for (const row of rows ?? []) {
    const where = row.above ? { x: box.left, y: row.y + 2 } : { x: box.left - 10, y: row.y + ROW / 2 + 4, "text-anchor": "end" };
    parts.push(svg("text", { class: "label", ...where }, [row.name]));
  }
  parts.push(svg("line", { class: "axis", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }));
  parts.push(svg("text", { class: "label", x: (box.left + box.right) / 2, y: height - 6, "text-anchor": "middle" }, [valueLabel]));
  if (!chart.categories.length) parts.push(svg("text", { class: "label", x: 2, y: 12 }, [chart.y_label]));
  return parts;
}

function pointOf(chart, series, point, placed, layer) {
  const [x, y] = placed.at(point, series);
  const facts = Object.entries(cardFacts(point, chart)).map(([key, value]) => `${key} ${value}`);
  const label = [series.name, ...facts, point.flag].filter(Boolean).join(", ");
  const node = svg("g", { class: "point", tabindex: "-1", role: "img", "aria-label": label });
  if (point.low !== null && point.high !== null) {
    const [[x1, y1], [x2, y2]] = placed.spread(point, series);
    const [dx, dy] = x1 === x2 ? [4, 0] : [0, 4];
    node.append(svg("path", { class: "spread", d: `M${x1},${y1}L${x2},${y2}M${x1 - dx},${y1 - dy}L${x1 + dx},${y1 + dy}M${x2 - dx},${y2 - dy}L${x2 + dx},${y2 + dy}` }));
  }
  if (series.points.length <= MOST_MARKERS) {
    const mark = marker(groupIndex(series.group), 4.6);
    mark.setAttribute("transform", `translate(${x} ${y})`);
    node.append(mark);
  }
  if (point.flag) node.append(svg("circle", { class: "flag", cx: x, cy: y, r: 10 }));
  node.append(svg("circle", { class: "halo", cx: x, cy: y, r: 8 }));
  layer.append(node);
  return { node, series, point, x, y };
}

/** Hovering and tapping take the nearest point, arrow keys the next one; one tab stop a chart. */
function listen(plot, nodes, chart) {
  const open = (each, pin) => card.show(each.node, each.series, each.point, chart, pin);
  const nearest = (event) => {
    const frame = plot.getBoundingClientRect();
    const [x, y] = [event.clientX - frame.left, event.clientY - frame.top];
    const distances = nodes.map((each) => Math.hypot(each.x - x, each.y - y));
    const least = Math.min(...distances);
    return least <= REACH ? nodes[distances.indexOf(least)] : null;
  };
  plot.addEventListener("pointermove", (event) => {
    const each = nearest(event);
    if (each) open(each, false);
    else card.hide();
  });
  plot.addEventListener("pointerleave", () => card.hide());
  plot.addEventListener("click", (event) => {
    const each = nearest(event);
    card.hide(true);
    if (each) open(each, true);
  });
  nodes[0].node.setAttribute("tabindex", "0");
  for (const each of nodes) {
    each.node.addEventListener("focus", () => open(each, false));
    each.node.addEventListener("blur", () => card.hide());
    each.node.addEventListener("keydown", (event) => step(event, each, nodes, open));
  }
}

function step(event, each, nodes, open) {
  if (event.key === "Enter" || event.key === " ") {
    event.preventDefault();
    open(each, true);
    return;
  }
  const next = { ArrowRight: beside(each, nodes, 1), ArrowLeft: beside(each, nodes, -1), ArrowDown: across(each, nodes, 1), ArrowUp: across(each, nodes, -1) }[event.key];
  if (!next) return;
  event.preventDefault();
  card.hide(true);
  each.node.setAttribute("tabindex", "-1");
  next.node.setAttribute("tabindex", "0");
  next.node.focus();
}

function beside(each, nodes, by) {
  const own = nodes.filter((other) => other.series === each.series);
  return own[own.indexOf(each) + by];
}

/** The point of the next series that lies nearest along x. */
function across(each, nodes, by) {
  const order = [...new Set(nodes.map((other) => other.series))];
  const series = order[order.indexOf(each.series) + by];
  const there = nodes.filter((other) => other.series === series);
  return there.sort((a, b) => Math.abs(a.x - each.x) - Math.abs(b.x - each.x))[0];
}

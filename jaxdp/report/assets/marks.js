// Shapes: a group is told by its marker and dash as well as by its colour.

function svg(name, attributes = {}, children = []) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function html(name, attributes = {}, children = []) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const OUTLINES = {
  circle: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0Z`,
  square: (r) => `M${-r * 0.9},${-r * 0.9}h${1.8 * r}v${1.8 * r}h${-1.8 * r}Z`,
  triangle: (r) => `M0,${-1.2 * r}L${1.15 * r},${0.85 * r}H${-1.15 * r}Z`,
  diamond: (r) => `M0,${-1.3 * r}L${1.3 * r},0L0,${1.3 * r}L${-1.3 * r},0Z`,
  cross: (r) => bars(r, 45),
  down: (r) => `M0,${1.2 * r}L${1.15 * r},${-0.85 * r}H${-1.15 * r}Z`,
  plus: (r) => bars(r, 0),
};

/** The outline of a plus sign, turned. */
function bars(r, degrees) {
  const [a, b] = [r * 0.45, r * 1.25];
  const corners = [[-a, -b], [a, -b], [a, -a], [b, -a], [b, a], [a, a], [a, b], [-a, b], [-a, a], [-b, a], [-b, -a], [-a, -a]];
  const [c, s] = [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
  return `M${corners.map(([x, y]) => `${(x * c - y * s).toFixed(2)},${(x * s + y * c).toFixed(2)}`).join("L")}Z`;
}

/** How a group is drawn; -1 is no group. */
function styleOf(group) {
  if (group < 0) return { colour: "var(--accent)", marker: "circle", dash: "" };
  return {
    colour: `var(--group-${group % report.colours})`,
    marker: report.markers[group % report.markers.length],
    dash: report.dashes[group % report.dashes.length],
  };
}

function marker(group, radius) {
  return svg("path", { class: "marker", d: OUTLINES[styleOf(group).marker](radius) });
}

/** The short stroke with a marker that stands for a group in legends and switches. */
function drawKey(target, group, reference = false) {
  const style = styleOf(group);
  target.style.setProperty("--c", reference ? "var(--quiet)" : style.colour);
  target.setAttribute("viewBox", "0 0 30 12");
  const line = svg("path", { class: "curve", d: "M1,6H29", "stroke-dasharray": reference ? "1 3" : style.dash });
  const mark = svg("g", { class: "point", transform: "translate(15 6)" }, [marker(group, 3.6)]);
  target.replaceChildren(line, ...(reference ? [] : [mark]));
}

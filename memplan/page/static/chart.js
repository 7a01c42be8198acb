// Context against memory, a panel for each device: what memplan plot draws.

import { PARTS, el, gib, patterns, text, tokens, widthOf } from "./draw.js";

const FIELD = Object.fromEntries(PARTS.map(([field, name]) => [name, field]));
const GIB = 1 << 30;
const BOLD = "700 12px system-ui, sans-serif";

/** One panel as an SVG, `width` pixels wide; `now`: the context that the form asks for. */
export function panelPicture(panel, width, now) {
  const height = 230;
  const edge = { left: 58, right: 12, top: 44, bottom: 30 };
  const xs = panel.series[0].xs;
  const [first, last] = [Math.log2(xs[0]), Math.log2(xs.at(-1))];
  const x = (count) => edge.left + ((Math.log2(count) - first) / (last - first || 1)) * (width - edge.left - edge.right);
  const y = (bytes) => height - edge.bottom - (bytes / panel.top) * (height - edge.top - edge.bottom);
  const id = `panel-${panel.device}`;
  const picture = el("svg", { width, height, role: "img", "aria-label": `${panel.title}: ${panel.marks.map((mark) => mark.label).join("; ") || panel.verdict}` });
  picture.append(patterns(id), el("clipPath", { id: `${id}-clip` }, el("rect", { x: edge.left, y: edge.top - 2, width: width - edge.left - edge.right, height: height - edge.top - edge.bottom + 2 })));
  picture.append(text(0, 13, panel.title, { "font-weight": 700 }));
  const beside = widthOf(panel.title, BOLD) + widthOf(panel.verdict) + 16 < width;
  picture.append(text(beside ? width - edge.right : 0, beside ? 13 : 29, panel.verdict, { fill: "var(--muted)", "text-anchor": beside ? "end" : "start" }));

  let step = GIB / 4;
  while (panel.top / step > 5) step *= 2;
  for (let level = 0; level <= panel.top; level += step) {
    picture.append(el("path", { d: `M${edge.left} ${y(level)}H${width - edge.right}`, stroke: "var(--line)" }));
    picture.append(text(edge.left - 6, y(level) + 4, level ? `${level / GIB} GiB` : "0", { "text-anchor": "end", fill: "var(--muted)" }));
  }

  const shapes = el("g", { "clip-path": `url(#${id}-clip)` });
  let floor = xs.map(() => 0);
  for (const series of panel.series) {
    const top = series.ys.map((bytes, at) => (bytes === null ? null : floor[at] + bytes));
    // where llama.cpp does not start there is nothing: each run between is a shape of its own
    for (const run of runs(top)) {
      const up = run.map((at) => `${x(xs[at])} ${y(top[at])}`);
      const down = run.map((at) => `${x(xs[at])} ${y(floor[at])}`).reverse();
      shapes.append(el("path", { d: `M${[...up, ...down].join("L")}Z`, fill: `url(#${id}-${FIELD[series.label]})` }, el("title", {}, series.label)));
    }
    floor = top.map((bytes, at) => bytes ?? floor[at]);
  }
  picture.append(shapes);

  for (const capacity of panel.capacities) {
    picture.append(el("path", { d: `M${edge.left} ${y(capacity.bytes)}H${width - edge.right}`, stroke: "var(--limit)", "stroke-width": 2 }));
    // on the side where the stack is lower
    const left = (floor.at(-1) ?? 0) > 0.9 * capacity.bytes;
    picture.append(text(left ? edge.left + 4 : width - edge.right, y(capacity.bytes) - 6, capacity.label, { "text-anchor": left ? "start" : "end", ...halo }));
  }
  if (now >= xs[0] && now <= xs.at(-1)) {
    picture.append(el("path", { d: `M${x(now)} ${edge.top}V${height - edge.bottom}`, stroke: "var(--text)", "stroke-dasharray": "3 3" }, el("title", {}, `now: ${now.toLocaleString("en-US")} tokens`)));
  }
  for (const mark of panel.marks) {
    const at = x(mark.x);
    const wide = widthOf(mark.label, mark.whole ? BOLD : undefined);
    const start = Math.min(Math.max(at - wide / 2, edge.left + 2), width - edge.right - wide);
    picture.append(el("circle", { cx: at, cy: y(mark.y), r: 4.5, fill: "var(--ground)", stroke: "var(--limit)", "stroke-width": 2 }));
    picture.append(text(start, Math.min(y(mark.y) + 20, height - edge.bottom - 6), mark.label, { "font-weight": mark.whole ? 700 : 400, ...halo }));
  }
  const every = Math.ceil(((last - first) * 38) / (width - edge.left - edge.right));
  for (let power = Math.ceil(first); power <= last + 1e-9; power += every) {
    picture.append(text(x(2 ** power), height - edge.bottom + 16, tokens(2 ** power), { "text-anchor": power === last ? "end" : "middle", fill: "var(--muted)" }));
  }
  return picture;
}

const halo = { stroke: "var(--ground)", "stroke-width": 4, "paint-order": "stroke", "stroke-linejoin": "round" };

/** The places of values in a row that are there. */
function runs(values) {
  const found = [];
  values.forEach((value, at) => {
    if (value === null) return;
    if (at && values[at - 1] !== null) found.at(-1).push(at);
    else found.push([at]);
  });
  return found;
}

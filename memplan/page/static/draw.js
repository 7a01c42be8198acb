// SVG by hand: elements, the parts of a device's memory with their patterns, and sizes in words.

const SPACE = "http://www.w3.org/2000/svg";

/** An SVG element. */
export function el(name, attributes = {}, ...children) {
  const made = document.createElementNS(SPACE, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** What memory holds, in order: the field of the answer, its name, its colour, and its pattern in a square of 8. */
export const PARTS = [
  ["model", "weights", "var(--weights)", ""],
  ["context", "context", "var(--context)", "M-2 2 2 -2M0 8 8 0M6 10 10 6"],
  ["compute", "compute", "var(--compute)", "M2 1v2M6 5v2"],
  ["run_time", "run time", "var(--runtime)", "M0 4h8M4 0v8"],
  ["draft", "drafter", "var(--drafter)", "M0 4h8"],
  ["projector", "projector", "var(--projector)", "M4 0v8"],
];

/** The patterns, so that nothing is told by its colour alone; `prefix` keeps several pictures apart. */
export function patterns(prefix) {
  const made = PARTS.map(([field, , colour, path]) =>
    el("pattern", { id: `${prefix}-${field}`, width: 8, height: 8, patternUnits: "userSpaceOnUse" },
      el("rect", { width: 8, height: 8, fill: colour }),
      el("path", { d: path || "M0 0", stroke: "var(--stroke)", "stroke-width": 1.5, fill: "none" })),
  );
  const short = el("pattern", { id: `${prefix}-short`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
    el("rect", { width: 6, height: 6, fill: "var(--ground)" }),
    el("path", { d: "M0 0 6 6M6 0 0 6", stroke: "var(--bad)", "stroke-width": 1.5 }));
  return el("defs", {}, ...made, short);
}

export const text = (x, y, words, attributes = {}) => el("text", { x, y, fill: "var(--text)", ...attributes }, words);

/** The width of words in a picture's usual letters, near enough to place them. */
const measure = document.createElement("canvas").getContext("2d");
export function widthOf(words, font = "12px system-ui, sans-serif") {
  measure.font = font;
  return measure.measureText(words).width;
}

const MIB = 1 << 20;
const GIB = 1 << 30;

/** Whole MiB as the commands print them: a shortage never less than it is. */
export const mib = (bytes) => (bytes < 0 ? Math.floor(bytes / MIB) : Math.round(bytes / MIB)).toLocaleString("en-US");
export const tenths = (bytes) => (bytes / MIB).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
export const gib = (bytes) => `${(bytes / GIB).toLocaleString("en-US", { minimumFractionDigits: 1, maximumFractionDigits: 1 })} GiB`;
export const tokens = (count) =>
  count >= 1 << 20 && count % (1 << 20) === 0 ? `${count >> 20}M` : count >= 1024 && count % 1024 === 0 ? `${count >> 10}K` : count.toLocaleString("en-US");
export const cardName = (name) =>
  name.replace(/^NVIDIA /, "").replace(/^GeForce /, "").replace(/ Generation$/, "").replace(/ Workstation Edition$/, "").replace(/ Blackwell$/, "");

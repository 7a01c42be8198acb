// The answer as one picture, in a file.

import { barsPicture } from "./bars.js";
import { panelPicture } from "./chart.js";
import { el, text, widthOf } from "./draw.js";

const WIDTH = 1000;
const EDGE = 24;

/** Bars and chart under each other, with what was asked; colours as they are on the page now. */
function whole({ estimate, chart, line }) {
  const inner = WIDTH - 2 * EDGE;
  const picture = el("svg", { xmlns: "http://www.w3.org/2000/svg", width: WIDTH, "font-family": "system-ui, sans-serif", "font-size": 12 });
  const body = [];
  let y = EDGE + 16;
  body.push(text(EDGE, y, estimate.model_line, { "font-weight": 700, "font-size": 16 }));
  for (const words of wrapped(line, inner)) body.push(text(EDGE, (y += 18), words, { fill: "var(--muted)" }));
  for (const words of wrapped(estimate.verdict.join(" · "), inner)) body.push(text(EDGE, (y += 22), words, { "font-weight": 700 }));
  y += 18;
  if (estimate.refused === null) {
    const bars = barsPicture(estimate, inner);
    y = place(bars, EDGE, y, body) + 12;
  }
  const panels = chart?.panels ?? [];
  const columns = Math.min(2, panels.length);
  const width = (inner - (columns - 1) * 20) / columns;
  for (let at = 0; at < panels.length; at += columns) {
    let bottom = y;
    panels.slice(at, at + columns).forEach((panel, column) => {
      bottom = place(panelPicture(panel, width, estimate.n_ctx), EDGE + column * (width + 20), y, body);
    });
    y = bottom + 12;
  }
  picture.setAttribute("height", y + EDGE / 2);
  picture.append(el("rect", { width: "100%", height: "100%", fill: "var(--ground)" }), ...body);
  const colours = getComputedStyle(document.documentElement);
  return new XMLSerializer().serializeToString(picture).replaceAll(/var\((--[\w-]+)\)/g, (_, name) => colours.getPropertyValue(name).trim());
}

function place(part, x, y, body) {
  part.setAttribute("x", x);
  part.setAttribute("y", y);
  body.push(part);
  return y + Number(part.getAttribute("height"));
}

function wrapped(words, width) {
  const lines = [""];
  for (const word of words.split(/\s+/)) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (widthOf(longer) > width && lines.at(-1)) lines.push(word);
    else lines[lines.length - 1] = longer;
  }
  return lines;
}

function save(blob, name) {
  const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const blobOf = (shown) => new Blob([whole(shown)], { type: "image/svg+xml" });

export const saveSvg = (shown) => save(blobOf(shown), "memplan.svg");

export async function savePng(shown) {
  const url = URL.createObjectURL(blobOf(shown));
  const image = new Image();
  image.src = url;
  await image.decode();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * image.width, height: 2 * image.height });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(url);
  canvas.toBlob((blob) => save(blob, "memplan.png"));
}

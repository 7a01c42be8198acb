// A bar for each device and the host, and the same figures as a table.

import { PARTS, cardName, el, gib, mib, patterns, text, widthOf } from "./draw.js";

/** The devices and the host of an answer, each with what it has and holds. */
function places(answer) {
  const devices = answer.devices.map((device) => ({ ...device, label: `${device.name}  ${cardName(device.description)}` }));
  const host = answer.host;
  const used = PARTS.reduce((sum, [field]) => sum + (host[field] ?? 0), 0);
  const left = host.total === null ? null : host.total - used;
  return [...devices, { ...host, name: "host", label: "host", free: host.total, left }];
}

const present = (answer) => {
  const all = places(answer);
  return PARTS.filter(([field], at) => at < 3 || all.some((place) => place[field]));
};

/** The bars as an SVG, `width` pixels wide. */
export function barsPicture(answer, width) {
  const rows = places(answer);
  const parts = present(answer);
  const row = 54;
  const top = 26;
  const picture = el("svg", { width, height: top + rows.length * row, role: "img" });
  picture.append(el("title", {}, "What every device holds"), patterns("bar"));
  let x = 0;
  for (const [field, name] of parts) {
    picture.append(el("rect", { x, y: 2, width: 14, height: 12, fill: `url(#bar-${field})` }), text(x + 19, 12, name, { fill: "var(--muted)" }));
    x += widthOf(name) + 34;
  }
  if (x + 40 < width) picture.append(el("rect", { x, y: 2, width: 14, height: 12, fill: "var(--rest)" }), text(x + 19, 12, "left", { fill: "var(--muted)" }));
  rows.forEach((place, at) => {
    const y = top + at * row;
    const used = parts.reduce((sum, [field]) => sum + (place[field] ?? 0), 0);
    const room = place.free ?? used;
    const whole = Math.max(place.total ?? 0, room, used, 1);
    const scale = (bytes) => (bytes / whole) * width;
    const group = el("g", {});
    group.append(text(0, y + 14, place.label, { "font-weight": 600 }));
    const short = place.left !== null && place.left < 0;
    const said = place.left === null ? `${gib(used)} needed` : short ? `✗ ${gib(-place.left)} short of ${gib(room)}` : `${gib(place.left)} left of ${gib(room)}`;
    group.append(text(width, y + 14, said, { "text-anchor": "end", fill: short ? "var(--bad)" : "var(--muted)", "font-weight": short ? 700 : 400 }));
    group.append(el("rect", { x: 0, y: y + 20, width, height: 22, rx: 3, fill: "var(--rest)" }));
    if (place.total > room && !short) group.append(el("rect", { x: scale(room), y: y + 20, width: scale(place.total - room), height: 22, fill: "var(--taken)" }, el("title", {}, `${mib(place.total - room)} MiB are taken before llama.cpp starts`)));
    let from = 0;
    for (const [field, name] of parts) {
      const bytes = place[field] ?? 0;
      if (!bytes) continue;
      const bar = el("rect", { x: scale(from), y: y + 20, width: Math.max(scale(bytes), 1), height: 22, fill: `url(#bar-${field})` });
      bar.append(el("title", {}, `${name}: ${mib(bytes)} MiB (${bytes.toLocaleString("en-US")} bytes)`));
      group.append(bar);
      from += bytes;
    }
    if (short) {
      group.append(el("rect", { x: scale(room), y: y + 17, width: Math.max(scale(used - room), 2), height: 28, fill: "url(#bar-short)", opacity: 0.75 }));
      group.append(el("path", { d: `M${scale(room)} ${y + 16}v30`, stroke: "var(--limit)", "stroke-width": 2 }));
    }
    picture.append(group);
  });
  return picture;
}

/** The figures as a table's content, in MiB; every cell holds its bytes. */
export function figures(answer) {
  const parts = present(answer);
  const cell = (bytes, kind = "td", className = "") => {
    const made = document.createElement(kind);
    made.textContent = bytes === null ? "" : mib(bytes);
    if (bytes !== null) {
      made.dataset.bytes = bytes;
      made.title = `${bytes.toLocaleString("en-US")} bytes`;
    }
    made.className = className;
    return made;
  };
  const head = document.createElement("tr");
  for (const word of ["MiB", ...parts.map(([, name]) => name), "free", "left"]) {
    head.append(Object.assign(document.createElement("th"), { textContent: word, scope: "col" }));
  }
  const rows = places(answer).map((place) => {
    const made = document.createElement("tr");
    made.dataset.device = place.name;
    made.append(Object.assign(document.createElement("th"), { textContent: place.name, scope: "row" }));
    for (const [field] of parts) {
      const made_of = cell(field === "run_time" && place.name === "host" ? null : (place[field] ?? 0));
      made_of.dataset.part = field;
      if (field === "run_time" && answer.run_time_not_modelled.includes(place.name)) made_of.textContent = "?";
      made.append(made_of);
    }
    made.append(cell(place.free), cell(place.left, "td", place.left < 0 ? "short" : ""));
    return made;
  });
  const thead = document.createElement("thead");
  thead.append(head);
  const tbody = document.createElement("tbody");
  tbody.append(...rows);
  const caption = Object.assign(document.createElement("caption"), { textContent: `${answer.model_line}. ${answer.settings_line}.` });
  return [caption, thead, tbody];
}

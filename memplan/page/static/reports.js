// The longer answers: what a compute buffer is made of, and a plan.

import { mib, tenths } from "./draw.js";
import { quoted } from "./form.js";

const make = (name, text = "", attributes = {}) => {
  const made = Object.assign(document.createElement(name), attributes);
  made.textContent = text;
  return made;
};

function table(heads, rows) {
  const made = document.createElement("table");
  const row = (cells, kind) => {
    const line = document.createElement("tr");
    line.append(...cells.map((cell, at) => (kind === "td" && at ? make("td", cell) : make("th", cell, { scope: kind === "th" ? "col" : "row" }))));
    return line;
  };
  const thead = document.createElement("thead");
  thead.append(row(heads, "th"));
  const tbody = document.createElement("tbody");
  tbody.append(...rows.map((cells) => row(cells, "td")));
  made.append(thead, tbody);
  const wide = make("div", "", { className: "wide" });
  wide.append(made);
  return wide;
}

/** What is alive when each compute buffer is fullest. */
export function whyBody(answer) {
  if (answer.error) return [make("p", answer.error)];
  return answer.buffers.flatMap((buffer) => {
    const share = (bytes) => `${Math.round((100 * bytes) / buffer.bytes)} %`;
    const rows = buffer.groups.map(({ base, bytes, count, layers }) => [base, tenths(bytes), share(bytes), String(count), layers.length > 1 ? `${layers[0]} to ${layers.at(-1)}` : layers.join("")]);
    if (buffer.rest) rows.push(["all others", tenths(buffer.rest), share(buffer.rest), "", ""]);
    if (buffer.gaps) rows.push(["gaps between them", tenths(buffer.gaps), share(buffer.gaps), "", ""]);
    return [make("h3", `${buffer.device}: ${mib(buffer.bytes)} MiB`), make("p", [buffer.verdict, buffer.meaning].filter(Boolean).join(". ")), table(["tensor", "MiB", "share", "how many", "layers"], rows)];
  });
}

let copies = 0;
function copyable(words) {
  const box = make("div", "", { className: "copy" });
  const id = `copy-${++copies}`;
  const button = make("button", "Copy", { type: "button" });
  button.dataset.copy = id;
  box.append(make("pre", words, { id, tabIndex: 0 }), button);
  return box;
}

function list(lines) {
  const made = document.createElement("ul");
  made.append(...lines.map((line) => make("li", line)));
  return made;
}

const inShell = (args) => args.map(quoted).join(" ");

/** Flags that fit, or what would; `fit`: margins for llama.cpp's own --fit; `use`: takes a plan's flags into the form. */
export function planBody(plan, fit, use) {
  if (!plan) return [];
  if (plan.error) return [make("p", plan.error)];
  const body = [];
  if (plan.args === null) {
    body.push(make("p", plan.notes.join(" ")));
    for (const change of plan.nearest) body.push(make("p", `${change.change} fits:`), copyable(inShell(change.args)));
  } else {
    const button = make("button", "Use these flags", { type: "button" });
    button.addEventListener("click", () => use(plan.more));
    body.push(make("p", "Add these flags, which have as much on GPUs as fits:"), copyable(inShell(plan.args)), button);
    if (plan.token_ms?.estimated) body.push(make("p", `About ${plan.token_ms.estimated.toFixed(1)} ms a token, estimated: ${plan.token_ms.assumed.join("; ")}.`));
    body.push(list(plan.notes), make("h3", "All flags in one line"), copyable(plan.line), make("h3", "For llama-server's --models-preset (INI)"), copyable(plan.ini));
  }
  if (fit?.args) body.push(make("h3", "For llama.cpp's own --fit"), copyable(fit.args.join(" ")), list([...fit.reasons, ...fit.warnings]));
  return body;
}

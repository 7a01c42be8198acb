// The form as a question, as a link, and as a command line; and back.

const $ = (id) => document.getElementById(id);

/** Fields with a flag of llama-server's: the element, the flag, and the value for which the flag is left out. */
const FLAGS = [
  ["context", "-c", ""],
  ["slots", "-np", ""],
  ["batch", "-b", ""],
  ["ubatch", "-ub", ""],
  ["cache-k", "-ctk", "f16"],
  ["cache-v", "-ctv", "f16"],
  ["flash", "-fa", "auto"],
  ["experts", "-ncmoe", ""],
  ["layers", "-ngl", ""],
];

/** Every field that a link holds, by the name it has there. */
const FIELDS = {
  model: "model", recipe: "recipe", address: "address", host: "host", c: "context", np: "slots", b: "batch", ub: "ubatch",
  ctk: "cache-k", ctv: "cache-v", fa: "flash", ncmoe: "experts", ngl: "layers", draft: "drafter", md: "draft-model",
  llama: "release", app: "app", more: "more",
};

export const FIRST = { model: "qwen3-30b-a3b", c: "32768", np: "1", gpu: ["1*RTX 3090"] };

/** A word as a shell reads it. */
export const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
const tidy = (text) => text.trim().replace(/^(\d+(?:\.\d+)?)\s*([km])$/i, (_, n, unit) => Math.round(n * (unit.toLowerCase() === "k" ? 1024 : 1 << 20)));

/** Where the model comes from: built-in, file or address. */
export const source = () => document.querySelector('input[name="source"]:checked').value;

export function setSource(value) {
  document.querySelector(`input[name="source"][value="${value}"]`).checked = true;
  for (const part of document.querySelectorAll("[data-source]")) part.hidden = part.dataset.source !== value;
}

// --- cards ---

function cardRows() {
  return [...document.querySelectorAll("#cards .card")].map((row) => {
    const [count, name, free] = row.querySelectorAll("input");
    return { row, count: count.value.trim() || "1", name: name.value.trim(), free: free.value.trim() };
  });
}

export function addCard({ count = "1", name = "", free = "" } = {}) {
  const row = $("card-row").content.firstElementChild.cloneNode(true);
  const [c, n, f] = row.querySelectorAll("input");
  [c.value, n.value, f.value] = [count, name, free];
  $("cards").append(row);
  return row;
}

/** A --gpu spec as a row: a free memory alone has a field, other figures stay with the name. */
function readSpec(spec) {
  const [, count, rest] = /^\s*(?:(\d+)\s*[*x]\s*)?(.*)$/.exec(spec);
  const alone = /^([^:]+)::(\d+)$/.exec(rest);
  return { count: count ?? "1", name: alone ? alone[1] : rest, free: alone ? alone[2] : "" };
}

function setCards(specs) {
  $("cards").replaceChildren();
  for (const spec of specs) addCard(readSpec(spec));
}

export const specs = () =>
  cardRows()
    .filter(({ name }) => name)
    .map(({ count, name, free }) => `${count === "1" ? "" : `${count}*`}${name}${free ? `::${free}` : ""}`);

// --- the question ---

/** llama-server's flags that the fields stand for. */
function flagWords(draftPath) {
  const words = [];
  for (const [id, flag, left] of FLAGS) {
    const value = tidy(String($(id).value));
    if (value === left || value === "") continue;
    if (id === "experts" && value === "0") continue;
    words.push(flag, value);
  }
  const drafter = $("drafter").value;
  if (drafter === "mtp") words.push("--spec-type", "draft-mtp");
  if (drafter === "model" && draftPath) words.push("-md", draftPath);
  return words;
}

/** What the worker is asked. `files`: the paths of the files that were given, by what they are for. */
export function question(files) {
  const builtin = $("model").value + ($("recipe").value ? `:${$("recipe").value}` : "");
  const host = $("host").value.trim();
  return {
    model: source() === "builtin" ? builtin : (files[source()]?.path ?? ""),
    flags: flagWords(files.draft?.path ?? $("draft-model").value.trim()),
    more: $("more").value,
    gpus: specs(),
    host_mib: host === "" ? null : Math.round(Number(host) * 1024),
    llama: $("release").value || "latest",
    app: $("app").value,
  };
}

/** Command lines for a shell. `name`: what a path is called outside of this page. */
export function commandLines(asked, name) {
  const flags = asked.flags.map((word) => quoted(name(word))).join(" ");
  const more = asked.more.trim().replaceAll(/\s+/g, " ");
  const model = quoted(name(asked.model));
  const rig = asked.gpus.length ? asked.gpus.map((spec) => `--gpu ${quoted(spec)}`) : ["--no-gpu"];
  if (asked.host_mib !== null) rig.push(`--host-mib ${asked.host_mib}`);
  if (asked.llama !== "latest") rig.push(`--llama ${asked.llama}`);
  if (asked.app !== "server") rig.push(`--app ${asked.app}`);
  const join = (...parts) => parts.flat().filter(Boolean).join(" ");
  const file = source() === "builtin" ? "MODEL.gguf" : model;
  const theirs = more.replaceAll(/(^|\s)--(reserve|filled|path|without-op)\s+\S+/g, "").trim(); // those are memplan's own
  return { memplan: join("memplan estimate", model, rig, flags, more), server: join(`llama-${asked.app} -m`, file, flags, theirs) };
}

// --- links ---

export function toLink(fileName) {
  const link = new URLSearchParams();
  const kind = source();
  if (kind !== "builtin") link.set("source", kind);
  if (kind === "file" && fileName) link.set("file", fileName);
  for (const [key, id] of Object.entries(FIELDS)) {
    const skip = (kind !== "builtin" && (key === "model" || key === "recipe")) || (kind !== "address" && key === "address");
    const value = String($(id).value).trim();
    if (!skip && value !== "" && value !== ($(id).dataset.usual ?? "")) link.set(key, value);
  }
  for (const spec of specs()) link.append("gpu", spec);
  return `#${link}`;
}

/** Fill the form; what is not named is as it is in an empty form. `gpu` null: cards stay. */
export function fill(values) {
  setSource(values.source ?? "builtin");
  for (const [key, id] of Object.entries(FIELDS)) {
    if (key === "model" || key === "recipe") continue;
    $(id).value = values[key] ?? $(id).dataset.usual ?? "";
  }
  if (values.model) {
    if (!models.some(({ name }) => name === values.model)) $("model").append(new Option(`${values.model}: not built in`, values.model));
    $("model").value = values.model;
    fillRecipes(values.recipe);
  }
  if (values.gpu) setCards(values.gpu);
}

export function fromLink(hash) {
  const link = new URLSearchParams(hash.slice(1));
  if (![...link.keys()].length) return null;
  return { ...Object.fromEntries(link), gpu: link.getAll("gpu") };
}

// --- pasted lines ---

/** What a line that the worker read fills the form with, and what to say of it. */
export function fromLine(read) {
  const values = { gpu: read.gpus, llama: read.llama ?? "", app: read.app ?? "server", host: $("host").value };
  if (read.host_mib !== null) values.host = String(read.host_mib / 1024);
  const keys = Object.fromEntries(Object.entries(FIELDS).map(([key, id]) => [id, key]));
  const more = [];
  for (const { field, words } of read.flags) {
    const id = FLAGS.find(([, flag]) => flag === field)?.[0];
    if (id) values[keys[id]] = words[1];
    else if (field === "-md") Object.assign(values, { draft: "model", md: words[1] });
    else if (field === "--spec-type" && words[1] === "draft-mtp") values.draft = "mtp";
    else more.push(...words.map(quoted));
  }
  values.more = more.join(" ");
  const said = [...read.notes];
  if (read.builtin) {
    [values.model, values.recipe] = read.builtin.split(":");
    const named = [values.model, read.builtin].includes(read.model.toLowerCase());
    if (!named) said.push(`${read.model} is taken for the built-in ${read.builtin}; drop the file for its own types`);
  } else if (/^(https?:|hf:|ms:|modelscope:)/i.test(read.model)) {
    Object.assign(values, { source: "address", address: read.model });
    said.push("read the address to see what fits");
  } else if (read.model) {
    values.source = "file";
    said.push(`drop ${read.model} on this page`);
  }
  if (read.left_out.length) said.push(`${read.left_out.join(", ")} left out: its value is secret`);
  return { values, said: said.join("; ") };
}

// --- choices ---

let models = [];

export function offer(catalogue) {
  models = catalogue.models;
  const families = new Map();
  for (const model of models) {
    const family = /^[A-Za-z]+(-oss)?/.exec(model.about)[0];
    families.set(family, [...(families.get(family) ?? []), model]);
  }
  const groups = [...families].map(([family, members]) => {
    const group = document.createElement("optgroup");
    group.label = family;
    group.append(...members.map((model) => new Option(model.about, model.name)));
    return group;
  });
  $("model").replaceChildren(...groups);
  fillRecipes();
  $("known-cards").replaceChildren(
    ...catalogue.cards.map((card) => {
      const size = card.total_mib ? `${Math.round(card.total_mib / 1024)} GB` : "memory varies";
      return Object.assign(document.createElement("option"), { value: card.name, label: `${card.maker}, ${size}` });
    }),
  );
  $("known-models").replaceChildren(...models.map((model) => new Option(model.about, model.name)));
  for (const id of ["cache-k", "cache-v"]) $(id).replaceChildren(...catalogue.cache_types.map((type) => new Option(type, type, type === "f16", type === "f16")));
  $("release").replaceChildren(
    ...catalogue.releases.map((name) => new Option(name === catalogue.latest ? `${name} (latest)` : name, name === catalogue.latest ? "" : name)),
  );
  $("release").value = "";
  $("version").textContent = catalogue.version;
}

export function fillRecipes(wanted) {
  const model = models.find(({ name }) => name === $("model").value) ?? { recipes: [] };
  $("recipe").replaceChildren(...model.recipes.map(({ name, about }) => new Option(about ? `${name}: ${about}` : name, name)));
  $("recipe").value = model.recipes.find(({ name }) => name.toLowerCase() === wanted?.toLowerCase())?.name ?? model.default ?? "";
}

// --- what is wrong, beside its field ---

const OWNERS = [
  ...FLAGS.map(([id, flag]) => [new RegExp(`(^|\\s)${flag}(\\s|:|,|$)`), id]),
  [/-md\b|--spec-type|draft/, "drafter"],
];

/** Say `text` beside the field that it is about, which is returned; null when there is none. */
export function complain(text, about = "") {
  for (const shown of document.querySelectorAll(".error")) shown.textContent = "";
  for (const field of document.querySelectorAll("[aria-invalid]")) field.removeAttribute("aria-invalid");
  if (!text) return null;
  let id = about === "cards" && /^--host-mib/.test(text) ? "host" : about || OWNERS.find(([pattern]) => pattern.test(text))?.[1];
  if (id === "model" && source() !== "builtin") id = source();
  if (!id && $("more").value.trim()) id = "more";
  const place = id && $(`${id}-error`);
  if (!place) return null;
  place.textContent = text;
  $(id).setAttribute("aria-invalid", "true");
  return id;
}

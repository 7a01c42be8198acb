// The page: what the form asks is answered as it is changed.

import { barsPicture, figures } from "./bars.js";
import { panelPicture } from "./chart.js";
import { Engine } from "./engine.js";
import { mountFiles, readAddress } from "./files.js";
import * as form from "./form.js";
import { savePng, saveSvg } from "./picture.js";
import { planBody, whyBody } from "./reports.js";

const $ = (id) => document.getElementById(id);

const files = { file: null, address: null, draft: null };
const shown = { estimate: null, chart: null, plan: null, fit: null };

const engine = new Engine({ onStarted: begin, onFailed: fail, onIdle: idle });

/** What is under way: typing, a line, an estimate, a search. Who looks on sees whether there is any. */
const underWay = new Set();
function working(what, yes) {
  if (yes) underWay.add(what);
  else underWay.delete(what);
  document.body.dataset.asking = [...underWay].join(" ");
}

function fail(said) {
  verdict("refused", `Python does not start in this browser: ${said}`);
  $("answer").setAttribute("aria-busy", "false");
}

async function begin() {
  form.offer(await engine.ask("catalogue", {}));
  form.fill(form.fromLink(location.hash) ?? form.FIRST);
  const file = new URLSearchParams(location.hash.slice(1)).get("file");
  if (file) $("file-hint").textContent = `This link is about ${file}: choose that file, or drop it here. Its header alone is read, where it lies.`;
  $("question").inert = false;
  document.body.dataset.ready = "yes";
  changed();
}

// --- asking ---

/** What a path is called outside of this page. */
const nameOf = (path) => Object.values(files).find((given) => given?.path === path)?.named ?? path.replace(/^\/models\/\d+\//, "");

function changed() {
  clearTimeout(typing);
  working("typing", false);
  const question = form.question(files);
  history.replaceState(null, "", form.toLink(files.file?.name));
  const lines = form.commandLines(question, nameOf);
  $("server-line").textContent = lines.server;
  $("memplan-line").textContent = lines.memplan;
  $("draft-field").hidden = $("drafter").value !== "model";
  slide("context", Math.log2(Number(question.flags[question.flags.indexOf("-c") + 1]) || 1));
  slide("experts", Number($("experts").value) || 0);
  if (!question.model) {
    verdict("", form.source() === "file" ? "Choose a GGUF file, or drop it on this page." : "Give an address, and read it.");
    return;
  }
  ask(question);
}

function slide(id, value) {
  if (document.activeElement !== $(`${id}-slider`)) $(`${id}-slider`).value = value;
}

let latest = null;
let asked = 0;

/** Estimates, one at a time; of what was asked meanwhile only the last. */
async function ask(question) {
  latest = question;
  asked += 1;
  $("answer").classList.add("stale");
  $("answer").setAttribute("aria-busy", "true");
  clearTimeout(soon);
  soon = 0;
  engine.drop();
  if (underWay.has("estimate")) return;
  working("estimate", true);
  while (latest) {
    const mine = latest;
    latest = null;
    const answer = await engine.ask("estimate", mine);
    if (latest) continue;
    showEstimate(answer);
    searchSoon(mine, answer);
  }
  working("estimate", false);
}

let soon = 0;

/** The slower answers, once the form has been still for a moment. */
function searchSoon(question, answer) {
  const starts = !answer.error && answer.refused === null;
  const jobs = [];
  if (starts && answer.graph.nodes[0]) {
    jobs.push("largest", "chart");
    if ($("why").open) jobs.push("why");
  }
  if (starts && question.gpus.length && ($("plan").open || !answer.fits)) jobs.push("plan", "fit");
  if (!jobs.includes("chart")) clearSearched();
  working("search", true);
  soon = setTimeout(() => {
    soon = 0;
    engine.search(jobs, question, showBusy, showSearched);
  }, 120);
}

// --- showing ---

const MARKS = { fits: "✓", tight: "!", short: "✗", refused: "✗" };

function verdict(is, said) {
  $("verdict-part").dataset.is = is;
  const mark = MARKS[is] ? Object.assign(document.createElement("span"), { className: "mark", textContent: MARKS[is] }) : "";
  $("verdict").className = is ? "" : "waiting";
  $("verdict").replaceChildren(mark, said);
  $("exact").textContent = "";
}

function showEstimate(answer) {
  $("answer").classList.remove("stale");
  $("answer").setAttribute("aria-busy", "false");
  if (answer.error) {
    const id = form.complain(answer.error, answer.about);
    verdict("refused", id ? `Look at the form: ${answer.error}` : answer.error);
    shown.estimate = null;
    $("bars").replaceChildren();
    $("figures").replaceChildren();
    return;
  }
  shown.estimate = answer;
  const { refused } = answer;
  form.complain(refused ? answer.verdict.slice(1).join("; ") || refused.said : "");
  verdict(refused ? "refused" : !answer.fits ? "short" : answer.tight.length ? "tight" : "fits", refused ? answer.verdict.join("\n") : answer.verdict[0]);
  if (!refused) $("exact").textContent = answer.exact ? `Exact: ${answer.llama}'s own numbers, to the byte.` : answer.verdict.slice(1).join(" ");
  if (!refused && !answer.fits && answer.devices.length) {
    $("exact").append(" ", Object.assign(document.createElement("a"), { href: "#plan", textContent: "What would fit?" }));
  }
  $("model-line").textContent = answer.model_line;
  const { block_count: layers, expert_count: experts, context_length: context } = answer.shape;
  $("experts-field").hidden = !experts;
  $("experts-slider").max = layers || 1;
  if (context) $("context-slider").max = Math.log2(context);
  $("said").replaceChildren(...answer.said.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
  draw();
}

function draw() {
  const answer = shown.estimate;
  if (answer && answer.refused === null) {
    $("bars").textContent ||= " "; // an empty section is not shown, and has no width
    $("bars").replaceChildren(barsPicture(answer, $("bars").clientWidth));
    $("figures").replaceChildren(...figures(answer));
  } else {
    $("bars").replaceChildren();
    $("figures").replaceChildren();
  }
  drawChart();
}

function drawChart() {
  const panels = shown.chart?.panels ?? [];
  const boxes = panels.map(() => document.createElement("figure"));
  $("chart").ariaLabel = `Context against memory: ${shown.chart?.answer ?? "none"}`;
  $("chart").replaceChildren(...boxes); // how wide each is shows once all are there
  boxes.forEach((box, at) => box.append(panelPicture(panels[at], box.clientWidth, shown.estimate?.n_ctx ?? 0)));
}

const BUSY = {
  largest: "Looking for the largest context …", chart: "Drawing context against memory …", why: "Packing the whole graph, tensor by tensor …",
  plan: "Looking for a placement that fits …", fit: "Looking for margins for --fit …",
};
let stoppable = 0;

function showBusy(kind) {
  if ($("busy").dataset.state !== "running") stoppable = setTimeout(() => ($("stop").hidden = false), 1000);
  $("busy").dataset.state = "running";
  $("busy-text").textContent = BUSY[kind];
}

function idle() {
  clearTimeout(stoppable);
  $("stop").hidden = true;
  if (!soon) working("search", false);
  if ($("busy").dataset.state !== "running") return;
  $("busy").dataset.state = "";
  $("busy-text").textContent = "";
}

function showSearched(kind, answer) {
  if (kind === "largest") showLargest(answer);
  if (kind === "chart") {
    shown.chart = answer.error ? null : answer;
    drawChart();
  }
  if (kind === "why") {
    $("why").dataset.of = asked;
    $("why-body").replaceChildren(...whyBody(answer));
  }
  if (kind === "plan" || kind === "fit") {
    if (kind === "plan") shown.fit = null;
    shown[kind] = answer;
    $("plan").dataset.of = asked;
    $("plan-body").replaceChildren(...planBody(shown.plan, shown.fit, useFlags));
    if (!shown.estimate.fits) $("plan").open = true;
  }
}

function clearSearched() {
  shown.chart = null;
  for (const id of ["largest", "chart", "why-body", "plan-body"]) $(id).replaceChildren();
}

function showLargest(answer) {
  if (answer.error) $("largest").textContent = answer.error;
  else if (answer.value === null) $("largest").textContent = `No context fits. With ${answer.first} tokens it ${answer.said}.`;
  else {
    const strong = Object.assign(document.createElement("strong"), { textContent: answer.value.toLocaleString("en-US") });
    const beyond = answer.beyond ? `With ${answer.beyond.value.toLocaleString("en-US")}: ${answer.beyond.said}` : "That is all that the model has";
    const use = Object.assign(document.createElement("button"), { type: "button", textContent: "Use it" });
    use.addEventListener("click", () => {
      $("context").value = answer.value;
      changed();
    });
    $("largest").replaceChildren(strong, ` tokens at most, with these settings. ${beyond}. `, use);
  }
}

// --- what the form does ---

/** Take a plan's flags in place of those that the form has for placement. `more`: with the others that have no field. */
function useFlags(more) {
  $("experts").value = "";
  $("layers").value = "";
  $("more").value = more;
  changed();
}

let typing = 0;
$("question").addEventListener("input", ({ target }) => {
  if (target.id === "context-slider") $("context").value = Math.max(256, Math.round(2 ** target.value / 256) * 256);
  if (target.id === "experts-slider") $("experts").value = target.value;
  if (target.id === "model") form.fillRecipes();
  if (target.name === "source") form.setSource(target.value);
  if (["paste", "address", "file", "draft-file"].includes(target.id)) return;
  working("typing", true);
  clearTimeout(typing);
  typing = setTimeout(changed, 15);
});
$("question").addEventListener("submit", (event) => event.preventDefault());
$("add-card").addEventListener("click", () => form.addCard().querySelector(".name").focus());
$("cards").addEventListener("click", ({ target }) => {
  if (!target.closest(".remove")) return;
  target.closest(".card").remove();
  $("add-card").focus();
  changed();
});

function take(list, use) {
  if (!list.length) return;
  files[use] = mountFiles(engine, list);
  if (use === "file") {
    form.setSource("file");
    $("file-hint").textContent = files.file.name;
  } else {
    $("drafter").value = "model";
    $("draft-model").value = files.draft.name;
  }
  changed();
}

$("file").addEventListener("change", ({ target }) => take(target.files, "file"));
$("draft-file").addEventListener("change", ({ target }) => take(target.files, "draft"));
$("draft-model").addEventListener("input", () => (files.draft = null));

const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
let over = 0;
addEventListener("dragenter", (event) => hasFiles(event) && ((over += 1), ($("drop").hidden = false)));
addEventListener("dragleave", (event) => hasFiles(event) && (over -= 1) <= 0 && ($("drop").hidden = true));
addEventListener("dragover", (event) => hasFiles(event) && event.preventDefault());
addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  over = 0;
  $("drop").hidden = true;
  take(event.dataTransfer.files, "file");
});

$("read").addEventListener("click", async () => {
  form.complain("");
  $("read").disabled = true;
  try {
    files.address = await readAddress(engine, $("address").value.trim(), (said) => ($("address-hint").textContent = said));
    $("address-hint").textContent = files.address.name;
    changed();
  } catch (error) {
    $("address-error").textContent = error.message;
    $("address").setAttribute("aria-invalid", "true");
  }
  $("read").disabled = false;
});

$("paste").addEventListener("input", async () => {
  const text = $("paste").value.trim();
  $("paste-error").textContent = "";
  $("paste-said").textContent = "";
  if (!text) return;
  working("line", true);
  const read = await engine.ask("line", { text, gpus: form.specs() });
  working("line", false);
  if (read.error) {
    $("paste-error").textContent = read.error;
    return;
  }
  const { values, said } = form.fromLine(read);
  form.fill(values);
  $("paste-said").textContent = said;
  changed();
});

$("stop").addEventListener("click", () => {
  engine.stop();
  $("busy").dataset.state = "stopped";
  $("busy-text").textContent = "Stopped.";
});
for (const id of ["why", "plan"]) {
  $(id).addEventListener("toggle", () => {
    if (!$(id).open) $(`${id}-body`).replaceChildren();
    else if (shown.estimate && $(id).dataset.of !== String(asked)) changed();
    else return;
    delete $(id).dataset.of;
  });
}

function said(words) {
  $("copied").textContent = words;
  setTimeout(() => ($("copied").textContent = ""), 2500);
}

async function copy(words, done) {
  try {
    await navigator.clipboard.writeText(words);
    said(done);
  } catch {
    said("The browser does not let this page copy: select the text");
  }
}

document.addEventListener("click", (event) => {
  const { target } = event;
  if (target.matches('a[href="#plan"]')) {
    // the address holds the question, so the browser does not go there by itself
    event.preventDefault();
    $("plan").open = true;
    $("plan").querySelector("summary").focus();
    $("plan").scrollIntoView();
  }
  const from = target.dataset?.copy;
  if (from) copy($(from).textContent, "Copied");
});
$("link").addEventListener("click", () => copy(location.href, "Link copied"));
const picture = () => ({ estimate: shown.estimate, chart: shown.chart, line: $("memplan-line").textContent });
$("svg").addEventListener("click", () => shown.estimate && saveSvg(picture()));
$("png").addEventListener("click", () => shown.estimate && savePng(picture()));

addEventListener("hashchange", () => {
  const values = form.fromLink(location.hash);
  if (!values || $("question").inert) return;
  form.fill(values);
  changed();
});
let width = innerWidth;
addEventListener("resize", () => {
  if (width === innerWidth) return;
  width = innerWidth;
  draw();
});

// served on this machine by memplan page it needs no copy; elsewhere it is kept to work without a network
if ("serviceWorker" in navigator && location.hostname !== "127.0.0.1") navigator.serviceWorker.register("sw.js").catch(() => {});

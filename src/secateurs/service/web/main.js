// The page: reads the state from the address, asks the service, shows the answer.

import { ApiError, explain, hasKey, listFields, listIndexes, pruneCurve, search, setKey } from "./api.js";
import { ALL, GROUPS, otherSettings, phrase } from "./beside.js";
import { chips } from "./chips.js";
import { compare } from "./compare.js";
import { curve } from "./curve.js";
import { el, find, ms, number, plural } from "./dom.js";
import { keyButtons } from "./filter.js";
import { hitItem } from "./results.js";
import { readState, writeState } from "./state.js";
import { greeting, measured } from "./welcome.js";
import { why } from "./why.js";

const HITS = 10;
const TYPING_PAUSE = 200; // ms without a key before a search
const SLIDING_PAUSE = 40;
const SLOW = 2500;

let state = readState();
let indexes = [];
let limits = {}; // the largest k and p that the server takes
let remark = ""; // stays above the results
let running = null; // aborts the search under way
let explaining = null;
let shown = []; // the hits on the page
let timer = 0;
let unpruned = { key: "" }; // what does not depend on p: the full ranking, the curve, the time to encode
let other = { key: "" }; // the ranking to compare with, if that is not the full one
let keysOf = ""; // the index whose keys are shown

const hitsWanted = () => Math.min(HITS, limits.k);

// What every request for the query of the page says.
const asked = ({ q, order, weights, where }) => {
  const settings = { query: q, k: hitsWanted(), order, weights, partial: true };
  return where.trim() ? { ...settings, where } : settings;
};

// ---- What there is to search

async function start() {
  busy(true);
  try {
    const answer = await listIndexes();
    find("index").replaceChildren(...answer.indexes.map((index) => el("option", { value: index.name }, index.name)));
    find("beside").replaceChildren(...GROUPS.map(([label, choices]) =>
      el("optgroup", { label }, choices.map(([value, name]) => el("option", { value }, name)))));
    ({ indexes, limits } = answer);
  } catch (error) {
    fail(error, start);
    return;
  } finally {
    busy(false);
  }
  show();
}

function show() {
  if (indexes.length === 0) return; // the address changed before the list came: start() shows the page then
  const known = indexes.some((index) => index.name === state.index);
  remark = known || !state.index ? "" : `There is no index “${state.index}” here; this is ${indexes[0].name}.`;
  if (!known) state.index = indexes[0].name;
  if (state.p !== "auto") state.p = Math.min(state.p, limits.p);
  if (location.hash) writeState(state); // as the page itself writes it
  const index = indexes.find((served) => served.name === state.index);
  find("index").value = state.index;
  find("index-facts").textContent = `${plural(index.documents, "document")}, ${plural(index.embeddings, "embedding")}${measured(index.calibration)}`;
  if (find("query").value !== state.q) find("query").value = state.q;
  if (find("where").value !== state.where) find("where").value = state.where;
  showKeys();
  find("beside").value = state.beside;
  find("order").value = state.order;
  find("weights").value = state.weights;
  if (!state.q.trim() || index.documents === 0 || index.encoder.kind === "precomputed") {
    running?.abort();
    forgetUnpruned();
    busy(false);
    notice(remark);
    welcome(index);
  } else {
    run();
  }
}

function welcome(index) {
  find("view").hidden = true;
  find("welcome").hidden = false;
  document.title = "Secateurs explorer";
  find("welcome").replaceChildren(...greeting(index));
}

// The keys of the metadata, if the server tells them: a help, without which the filter works too.
async function showKeys() {
  const { index } = state;
  if (keysOf === index) return;
  keysOf = index;
  find("keys").replaceChildren();
  try {
    const { fields } = await listFields(index);
    const write = (text) => {
      find("where").value = text;
      find("where").focus();
      ask(true);
    };
    if (keysOf === index) find("keys").replaceChildren(...keyButtons(fields, () => find("where").value, write));
  } catch {
    if (keysOf === index) find("keys").replaceChildren();
  }
}

// ---- One search

async function run() {
  running?.abort();
  running = new AbortController();
  const { signal } = running;
  const { index, q, p, order, weights, where, beside } = state;
  const key = JSON.stringify([index, q, order, weights, where]);
  busy(true);
  const slow = setTimeout(() => notice("Still searching. The server may be busy.", "slow"), SLOW);
  try {
    const settings = asked(state);
    // One after the other: side by side they would slow each other down, and their times are compared.
    if (unpruned.key !== key) {
      forgetUnpruned();
      const full = await search(index, { ...settings, p: "all" }, signal);
      unpruned = { key, full, encode: full.stats.milliseconds.encode, curve: new AbortController() };
    }
    const compared = otherSettings(beside, { ...settings, p }, limits.p);
    const otherKey = JSON.stringify([index, compared]);
    if (beside !== ALL && other.key !== otherKey) other = { key: otherKey, ranking: await search(index, compared, signal) };
    const pruned = await search(index, { ...settings, p, details: true }, signal);
    notice(remark);
    find("where").removeAttribute("aria-invalid");
    Object.assign(unpruned, { other: beside === ALL ? unpruned.full : other.ranking, beside });
    render(pruned, unpruned);
    unpruned.pruned = pruned;
    drawCurve();
  } catch (error) {
    if (error.name !== "AbortError") fail(error, run);
    else return;
  } finally {
    clearTimeout(slow);
    if (!signal.aborted) busy(false);
  }
}

function forgetUnpruned() {
  unpruned.curve?.abort();
  unpruned = { key: "" };
}

function render(pruned, { other: otherRanking, beside, points, encode }) {
  const { stats, tokens } = pruned;
  find("welcome").hidden = true;
  find("view").hidden = false;
  find("view").classList.remove("stale");
  document.title = `${state.q} – Secateurs explorer`;

  const slider = find("p");
  const automatic = state.p === "auto";
  slider.max = String(Math.min(stats.query_embeddings, limits.p));
  if (document.activeElement !== slider || automatic) slider.value = String(stats.embeddings_kept);
  shownP(stats.embeddings_kept, stats.query_embeddings);
  find("p-auto").setAttribute("aria-pressed", String(automatic));
  const held = document.activeElement?.closest("#chips button")?.dataset.last;
  find("chips").replaceChildren(...chips(tokens, chooseP));
  if (held) find("chips").querySelector(`[data-last="${held}"]`)?.focus();
  find("encoded").textContent = encode < 0.1 ? "encoded before" : `encoded in ${ms(encode)}`; // from the cache
  const all = pruned.plan.gather === "exhaustive";
  const missing = stats.shards_missing;
  find("note").hidden = !all && !missing;
  find("note").textContent = missing
    ? `Not everything was searched: ${plural(missing, "shard")} of this index could not be reached.`
    : stats.documents_matching < stats.documents_in_index
      ? "Few enough documents match the filter to score every one of them, so pruning changes nothing here."
      : "This index is small enough to score every document, so pruning changes nothing here.";

  const before = new Map(otherRanking.hits.map((hit) => [hit.docno, hit.rank]));
  shown = pruned.hits.map((hit) => hitItem(hit, tokens, before.get(hit.docno), phrase(beside), toggle));
  const nothing = el("li", { class: "card hit" }, el("p", {}, "Nothing was found."));
  find("hits").replaceChildren(...(shown.length ? shown.map((hit) => hit.item) : [nothing]));
  for (const hit of shown.filter((item) => item.docno === state.open)) {
    hit.set(true);
    fillPanel(hit.docno, hit.panel);
  }
  const matching = stats.documents_matching < stats.documents_in_index ? `${number(stats.documents_matching)} matching` : number(stats.documents_in_index);
  const saved = `${number(stats.documents_gathered)} of ${matching} documents gathered, ${number(stats.documents_scored)} scored, ${ms(pruned.search_milliseconds)}`;
  find("results-facts").textContent = saved;
  find("status").textContent = `${plural(pruned.hits.length, "result")}. ${saved}.`;
  const marked = pruned.hits.some((hit) => hit.highlights?.length);
  find("legend").replaceChildren(
    ...(marked
      ? [el("mark", { class: "word", vars: { "--depth": "0.8" } }, "Shaded"), " words are the best match of a query word, darker the closer and the rarer both are, ",
         el("mark", { class: "expansion" }, "underlined"), " ones only of special embeddings such as [MASK]."]
      : ["This index’s encoder does not tell where its tokens stand in the text, so no words are marked."]),
  );
  find("compare").replaceChildren(...compare(pruned, otherRanking, beside, points));
}

function shownP(kept, total) {
  find("p-shown").textContent = `${kept} of ${plural(total, "embedding")}`;
  find("p").setAttribute("aria-valuetext", `${kept} of ${total} embeddings`);
}

// Asked for once, however often p changes meanwhile: it takes long, and does not depend on p.
async function drawCurve() {
  const { index } = state;
  const place = find("curve");
  const wanted = unpruned;
  try {
    if (!wanted.points) {
      place.replaceChildren(el("p", { class: "quiet" }, "Searching with every p …"));
      wanted.promise ??= pruneCurve(index, asked(state), wanted.curve.signal);
      wanted.points = await wanted.promise;
      if (wanted !== unpruned) return;
    }
    place.replaceChildren(...curve(wanted.points, wanted.pruned.stats.embeddings_kept, chooseP));
    find("compare").replaceChildren(...compare(wanted.pruned, wanted.other, wanted.beside, wanted.points));
  } catch (error) {
    wanted.promise = null; // the next p may ask again
    if (wanted === unpruned) place.replaceChildren(el("p", { class: "quiet" }, `No plot: ${error.message}`));
  }
}

// ---- One document's map

// One map at a time, the one that the address names.
function toggle(docno) {
  const open = state.open !== docno;
  state.open = open ? docno : "";
  writeState(state);
  for (const hit of shown) {
    const opens = open && hit.docno === docno;
    hit.set(opens);
    if (opens) fillPanel(docno, hit.panel);
  }
}

async function fillPanel(docno, panel) {
  explaining?.abort();
  explaining = new AbortController();
  panel.replaceChildren(el("p", { class: "quiet" }, "Comparing token by token …"));
  try {
    const settings = { ...asked(state), docno, p: state.p, map: true };
    panel.replaceChildren(...why(await explain(state.index, settings, explaining.signal)));
  } catch (error) {
    if (error.name !== "AbortError") panel.replaceChildren(el("p", { class: "quiet" }, `No map: ${error.message}`));
  }
}

// ---- Waiting and failing

function busy(on) {
  document.body.classList.toggle("busy", on);
  find("view").setAttribute("aria-busy", String(on));
}

function notice(text = "", kind = "info", ...more) {
  const place = find("notice");
  place.hidden = text === "";
  place.className = `notice ${kind}`;
  if (text) place.replaceChildren(el("p", {}, text), ...more);
  else place.replaceChildren();
}

function fail(error, again) {
  find("view").classList.add("stale");
  find("status").textContent = "";
  if (error.status === 401) {
    askForKey(again);
    return;
  }
  const unexpected = !(error instanceof ApiError);
  if (!unexpected && error.fields.includes("where")) find("where").setAttribute("aria-invalid", "true");
  if (unexpected) console.error(error);
  const mayPass = unexpected || error.status === 0 || error.status === 429 || error.status >= 500; // a wrong query stays wrong
  const retry = el("button", { type: "button", on: { click: () => again() } }, "Try again");
  notice(unexpected ? "The server’s answer was not understood." : error.message, "error", ...(mayPass ? [retry] : []));
}

function askForKey(again) {
  const input = el("input", { type: "password", id: "key", autocomplete: "off", required: true });
  const form = el(
    "form",
    {
      class: "key",
      on: {
        submit: (event) => {
          event.preventDefault();
          setKey(input.value.trim());
          again();
        },
      },
    },
    el("label", { for: "key" }, "Key"),
    input,
    el("button", { type: "submit" }, "Use it"),
  );
  const asked = hasKey() ? "That key was not accepted." : "This server asks for a key.";
  notice(`${asked} It is kept until this tab is closed.`, "info", form);
  input.focus();
}

// ---- What people do

function later(action, pause) {
  clearTimeout(timer);
  timer = setTimeout(action, pause);
}

function chooseP(p) {
  state.p = Math.min(p, limits.p);
  find("p").value = String(state.p);
  writeState(state);
  run();
}

function ask(remember) {
  clearTimeout(timer);
  const q = find("query").value;
  const where = find("where").value;
  if (q !== state.q || where !== state.where) state = { ...state, q, where, open: "" };
  writeState(state, remember);
  show();
}

find("search").addEventListener("submit", (event) => {
  event.preventDefault();
  ask(true);
});
find("query").addEventListener("input", () => later(() => ask(false), TYPING_PAUSE));
find("p").addEventListener("input", () => {
  const slider = find("p");
  state.p = Number(slider.value);
  shownP(state.p, unpruned.full?.stats.query_embeddings ?? Number(slider.max));
  writeState(state);
  later(run, SLIDING_PAUSE);
});
find("p-auto").addEventListener("click", () => {
  state.p = "auto";
  writeState(state);
  run();
});
find("order").addEventListener("change", () => {
  state.order = find("order").value;
  writeState(state);
  show();
});
find("weights").addEventListener("change", () => {
  state.weights = find("weights").value;
  writeState(state);
  show();
});
find("where").addEventListener("change", () => ask(true)); // not while it is typed: half a filter is wrong
find("beside").addEventListener("change", () => {
  state.beside = find("beside").value;
  writeState(state);
  run();
});
find("index").addEventListener("change", () => {
  state = { ...state, index: find("index").value, where: "", open: "" }; // another index has other keys
  writeState(state, true);
  show();
});
addEventListener("keydown", (event) => {
  const alone = !(event.ctrlKey || event.metaKey || event.altKey);
  if (event.key === "/" && alone && !event.target.closest("input, select, textarea")) {
    event.preventDefault();
    find("query").focus();
    find("query").select();
  }
});
find("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the part of the address that it would change holds the view
  find("results-title").focus();
});
addEventListener("hashchange", () => {
  state = readState();
  if (indexes.length) show();
});

start();

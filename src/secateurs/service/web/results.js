// The pruned ranking, each hit with what moved, its marked text and its map.

import { el } from "./dom.js";
import { markedText } from "./text.js";

// `how` says of the other ranking how it was made: "without pruning".
export function movement(rank, before, how) {
  if (before === undefined) return { kind: "new", text: "new", spoken: `not among the best ${how}` };
  const places = before - rank;
  if (places === 0) return { kind: "same", text: "=", spoken: `same place ${how}` };
  const up = places > 0;
  return {
    kind: up ? "up" : "down",
    text: `${up ? "▲" : "▼"} ${Math.abs(places)}`,
    spoken: `${up ? "up" : "down"} ${Math.abs(places)} from place ${before} ${how}`,
  };
}

function metadata(facts) {
  const pairs = Object.entries(facts).slice(0, 6);
  if (pairs.length === 0) return null;
  const shown = pairs.map(([name, value]) => {
    const text = typeof value === "object" ? JSON.stringify(value) : String(value);
    return `${name} ${text.length > 60 ? `${text.slice(0, 60)}…` : text}`;
  });
  return el("p", { class: "quiet metadata", dir: "auto" }, shown.join(" · "));
}

// An item of the list, and what is needed to open and close its map.
export function hitItem(hit, tokens, before, how, toggle) {
  const moved = movement(hit.rank, before, how);
  const weighted = tokens.some((token) => token.weight !== 1);
  const panel = el("div", { class: "why", id: `why-${hit.rank}` });
  const button = el("button", {
    type: "button",
    class: "link",
    "aria-controls": panel.id,
    on: { click: () => toggle(hit.docno) },
  });
  const set = (open) => {
    panel.hidden = !open;
    button.setAttribute("aria-expanded", String(open));
    button.textContent = open ? "Hide the map" : "Why? The MaxSim map";
    if (!open) panel.replaceChildren();
  };
  set(false);
  const item = el(
    "li",
    { class: "card hit" },
    el(
      "div",
      { class: "hit-head" },
      el("span", { class: "rank", "aria-hidden": "true" }, String(hit.rank)),
      el("h3", {}, el("bdi", {}, hit.docno)),
      el(
        "span",
        { class: `moved ${moved.kind}`, title: moved.spoken },
        el("span", { "aria-hidden": "true" }, moved.text),
        el("span", { class: "hidden" }, moved.spoken),
      ),
      el("span", { class: "score", title: weighted ? "exact score, with weights" : "exact score, Eq. 1" }, hit.score.toFixed(2)),
      el("span", { class: "relevance", title: "relevance, from 0 to 1: can be compared between queries" }, hit.relevance.toFixed(2)),
    ),
    ...markedText(hit, tokens),
    metadata(hit.metadata),
    button,
    panel,
  );
  return { docno: hit.docno, item, panel, set };
}

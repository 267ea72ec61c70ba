// The query's embeddings in importance order. A run of equal special tokens, such as MASKs, is one chip.

import { el, number } from "./dom.js";

const WORDS = ["word", "punctuation"];
export const isWord = (token) => WORDS.includes(token.kind);
// A summary is shown by what it stands for: its token says nothing.
export const nameOf = (token) => (token.kind === "summary" ? "whole query" : token.token);

export function chips(tokens, choose) {
  const runs = [];
  for (const token of tokens) {
    const last = runs.at(-1)?.at(-1);
    const joins = last && !isWord(token) && last.token === token.token && last.kept === token.kept;
    if (joins) runs.at(-1).push(token);
    else runs.push([token]);
  }
  return runs.map((run) => chip(run, choose));
}

function chip(run, choose) {
  const token = run[0];
  const last = run.at(-1);
  const shown = nameOf(token);
  const rarity = isWord(token)
    ? `${number(token.collection_frequency)} in the collection`
    : token.kind === "summary"
      ? "summary: it stands for the whole query"
      : "special: it stands for no word of the query";
  const weight = token.weight === 1 ? "" : `, weight ${token.weight.toFixed(2)}`;
  const count = run.length > 1 ? ` ×${run.length}` : "";
  const state = token.kept ? "kept" : "pruned";
  const button = el(
    "button",
    {
      type: "button",
      "data-last": last.importance,
      class: `chip ${state}${isWord(token) ? "" : " special"}`,
      title: `${rarity}${weight}, ${state}. Gather with the first ${last.importance}.`,
      "aria-label": `${shown}${count}, ${rarity}${weight}, ${state}. Gather with the first ${last.importance}`,
      on: { click: () => choose(last.importance) },
    },
    el("span", { class: "token" }, shown + count),
    isWord(token) ? el("span", { class: "frequency" }, number(token.collection_frequency)) : null,
  );
  return el("li", {}, button);
}

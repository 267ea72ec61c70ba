// One document's MaxSim map: every query embedding against the document's tokens, and which embeddings gathered it.

import { el, number, plural } from "./dom.js";
import { isWord, nameOf } from "./chips.js";

function sentence(explanation) {
  const kept = explanation.tokens.filter((token) => token.kept);
  const names = (tokens) => {
    const words = tokens.filter((token) => isWord(token) || token.kind === "summary").map(nameOf);
    const others = tokens.length - words.length;
    if (others) words.push(plural(others, "special embedding"));
    return words.join(", ");
  };
  const finders = kept.filter((token) => token.gathers);
  const others = kept.filter((token) => !token.gathers);
  const place =
    explanation.rank !== null
      ? `It is number ${number(explanation.rank)} of ${plural(explanation.documents_scored, "document")} scored.`
      : explanation.gathered
        ? `It was gathered, but ${number(explanation.documents_scored)} others looked better and were scored instead.`
        : "None of the kept embeddings finds it.";
  const parts = [el("strong", {}, finders.length ? `Gathered by ${names(finders)}` : "Gathered by none")];
  if (others.length) parts.push(`, not by ${names(others)}`);
  parts.push(`. ${place}`);
  return el("p", {}, ...parts);
}

const isWeighted = (tokens) => tokens.some((token) => token.weight !== 1);

function table(explanation, everyQueryToken, everyDocumentToken) {
  const { document_tokens: tokens, similarities } = explanation.map;
  const rows = explanation.tokens.filter((token) => everyQueryToken || isWord(token));
  // A merged word has its embedding at several places: its first stands for them, unless all tokens are shown.
  const places = new Map(rows.map((token) => [token.match_positions[0], token.match_positions.length]));
  const columns = tokens.map((_, i) => i).filter((i) => everyDocumentToken || places.has(i));
  const label = (column) => {
    const count = everyDocumentToken ? 1 : places.get(column);
    return count > 1 ? `${tokens[column].token} ×${count}` : tokens[column].token;
  };
  const shown = rows.flatMap((row) => columns.map((column) => similarities[column][row.position]));
  // Not Math.min(...shown): a long document has more similarities than a call may have arguments.
  const low = shown.reduce((a, b) => Math.min(a, b), Infinity);
  const high = shown.reduce((a, b) => Math.max(a, b), -Infinity);
  const weighted = isWeighted(explanation.tokens);
  const shade = (value) => ((value - low) / Math.max(high - low, 1e-9)).toFixed(3);
  const head = el(
    "tr",
    {},
    el("th", { scope: "col" }, "Query"),
    el("th", { scope: "col" }, "Gathers"),
    weighted ? el("th", { scope: "col" }, "Weight") : null,
    columns.map((column) => el("th", { scope: "col", class: "document-token" }, el("span", {}, label(column)))),
  );
  const body = rows.map((row) => {
    const gathers = row.kept ? (row.gathers ? "yes" : "no") : "pruned";
    return el(
      "tr",
      { class: row.kept ? "" : "pruned" },
      el("th", { scope: "row" }, nameOf(row)),
      el("td", { class: `gathers ${gathers}` }, gathers),
      weighted ? el("td", { class: "weight" }, row.weight.toFixed(2)) : null,
      columns.map((column) => {
        const value = similarities[column][row.position];
        const best = row.match_positions.includes(column);
        return el(
          "td",
          {
            class: best ? "cell best" : "cell",
            title: `${row.token} with ${tokens[column].token}: ${value.toFixed(3)}${best ? ", its best match" : ""}`,
            vars: { "--depth": shade(value) },
          },
          value.toFixed(2).replace(/^(-?)0/, "$1"),
        );
      }),
    );
  });
  return el("table", { class: "map" }, el("thead", {}, head), el("tbody", {}, body));
}

function choice(label, change) {
  const box = el("input", { type: "checkbox", on: { change: () => change(box.checked) } });
  return el("label", { class: "choice" }, box, ` ${label}`);
}

export function why(explanation) {
  if (explanation.map.document_tokens.length === 0) {
    return [el("p", {}, "This document has no embeddings, so nothing can match it.")];
  }
  let everyQueryToken = !explanation.tokens.some(isWord);
  let everyDocumentToken = false;
  const frame = el("div", {
    class: "scroll",
    tabindex: "0",
    role: "region",
    "aria-label": `Similarity of each query token with the tokens of ${explanation.docno}`,
  });
  const draw = () => frame.replaceChildren(table(explanation, everyQueryToken, everyDocumentToken));
  draw();
  const total = plural(explanation.tokens.length, "query embedding");
  const best = isWeighted(explanation.tokens) ? "The best of each row, outlined, times its weight," : "The best of each row, outlined,";
  return [
    sentence(explanation),
    frame,
    el(
      "p",
      { class: "quiet" },
      `${best} add up to the score: ${explanation.score.toFixed(2)} over ${total}.`,
    ),
    el(
      "div",
      { class: "choices" },
      choice("[MASK] and other special embeddings too", (on) => {
        everyQueryToken = on;
        draw();
      }),
      choice(`all ${number(explanation.map.document_tokens.length)} document tokens`, (on) => {
        everyDocumentToken = on;
        draw();
      }),
    ),
  ];
}

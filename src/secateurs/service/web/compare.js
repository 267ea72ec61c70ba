// The unpruned ranking beside the pruned one: what moved, what was lost, and what both cost.

import { el, ms, number } from "./dom.js";
import { movement } from "./results.js";

// Times come from the curve if it is there: it times every p on the same thread, right after each other.
function timeOf({ stats, search_milliseconds: spent }, curve) {
  const point = curve?.points.find((candidate) => candidate.p === stats.embeddings_kept);
  return ms(point && curve.gather !== "exhaustive" ? point.milliseconds : spent);
}

function costs(pruned, full, curve) {
  const rows = [
    ["Embeddings that gather", ({ stats }) => number(stats.embeddings_kept)],
    ["Documents gathered", ({ stats }) => number(stats.documents_gathered)],
    ["Documents scored", ({ stats }) => number(stats.documents_scored)],
    ["Search time", (ranking) => timeOf(ranking, curve)],
  ];
  return el(
    "table",
    { class: "costs" },
    el("thead", {}, el("tr", {}, el("td"), el("th", { scope: "col" }, "pruned"), el("th", { scope: "col" }, "all"))),
    el("tbody", {}, rows.map(([name, value]) =>
      el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value(pruned)), el("td", {}, value(full))))),
  );
}

export function compare(pruned, full, curve) {
  const rankOf = new Map(pruned.hits.map((hit) => [hit.docno, hit.rank]));
  const lost = full.hits.filter((hit) => !rankOf.has(hit.docno)).length;
  const same = full.hits.length - lost;
  const summary =
    lost === 0
      ? `All ${full.hits.length} of its documents are in the pruned ranking too.`
      : `${same} of its ${full.hits.length} documents are in the pruned ranking too; ${lost} ${lost === 1 ? "was" : "were"} lost.`;
  const list = full.hits.map((hit) => {
    const rank = rankOf.get(hit.docno);
    const moved = rank === undefined ? { kind: "lost", text: "lost", spoken: "lost by pruning" } : movement(rank, hit.rank);
    return el(
      "li",
      { class: moved.kind },
      el("span", { class: "rank" }, String(hit.rank)),
      el("bdi", { class: "docno", title: hit.docno }, hit.docno),
      el("span", { class: `moved ${moved.kind}`, title: moved.spoken }, el("span", { "aria-hidden": "true" }, moved.text),
        el("span", { class: "hidden" }, moved.spoken)),
    );
  });
  return [costs(pruned, full, curve), el("p", {}, summary), el("ol", { class: "full", "aria-label": "The unpruned ranking" }, list)];
}

// Another ranking beside the ranking of the page: what moved, what is missing, and what both cost.

import { ALL, nameOfChoice, phrase } from "./beside.js";
import { el, ms, number } from "./dom.js";
import { movement } from "./results.js";

// Times come from the curve if it is there: it times every p on the same thread, right after each other.
function timeOf({ stats, search_milliseconds: spent }, curve) {
  const point = curve?.points.find((candidate) => candidate.p === stats.embeddings_kept);
  return ms(point && curve.gather !== "exhaustive" ? point.milliseconds : spent);
}

function costs(ranking, other, choice, curve) {
  const rows = [
    ["Embeddings that gather", ({ stats }) => number(stats.embeddings_kept)],
    ["Documents gathered", ({ stats }) => number(stats.documents_gathered)],
    ["Documents scored", ({ stats }) => number(stats.documents_scored)],
    ["Search time", (found) => timeOf(found, curve)],
  ];
  return el(
    "table",
    { class: "costs" },
    el("thead", {}, el("tr", {}, el("td"), el("th", { scope: "col" }, "here"), el("th", { scope: "col" }, choice === ALL ? "all" : nameOfChoice(choice)))),
    el("tbody", {}, rows.map(([name, value]) =>
      el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value(ranking)), el("td", {}, value(other))))),
  );
}

export function compare(ranking, other, choice, curve) {
  const how = phrase(choice);
  const rankOf = new Map(ranking.hits.map((hit) => [hit.docno, hit.rank]));
  const missing = other.hits.filter((hit) => !rankOf.has(hit.docno)).length;
  const same = other.hits.length - missing;
  const gone = choice === ALL ? `${missing === 1 ? "was" : "were"} lost` : `${missing === 1 ? "is" : "are"} only there`;
  const summary =
    missing === 0
      ? `All ${other.hits.length} documents found ${how} are here too.`
      : `${same} of the ${other.hits.length} documents found ${how} are here too; ${missing} ${gone}.`;
  const absent =
    choice === ALL
      ? { kind: "lost", text: "lost", spoken: "lost by pruning" }
      : { kind: "lost", text: "only there", spoken: `found ${how} only` };
  const list = other.hits.map((hit) => {
    const rank = rankOf.get(hit.docno);
    const moved = rank === undefined ? absent : movement(rank, hit.rank, how);
    return el(
      "li",
      { class: moved.kind },
      el("span", { class: "rank" }, String(hit.rank)),
      el("bdi", { class: "docno", title: hit.docno }, hit.docno),
      el("span", { class: `moved ${moved.kind}`, title: moved.spoken }, el("span", { "aria-hidden": "true" }, moved.text),
        el("span", { class: "hidden" }, moved.spoken)),
    );
  });
  // The curve is of this order and effort: it has the times of both only if p is what differs.
  const timed = choice === ALL || choice.startsWith("p=") ? curve : null;
  const label = choice === ALL ? "The unpruned ranking" : `The ranking ${how}`;
  return [costs(ranking, other, choice, timed), el("p", {}, summary), el("ol", { class: "full", "aria-label": label }, list)];
}

// Two small plots over p, one above the other: how much of the unpruned ranking is found, and what it costs.

import { el, number, percent, svg } from "./dom.js";

const WIDTH = 340, LEFT = 44, RIGHT = 8;
const OVERLAP = { top: 22, height: 70 };
const DOCUMENTS = { top: 126, height: 84 };
const HEIGHT = 250;

export function curve(answer, p, choose) {
  const points = answer.points;
  if (answer.gather === "exhaustive" || points.length < 2) {
    return [el("p", { class: "quiet" }, "Every document of this index is scored, so p changes nothing here.")];
  }
  const last = points.at(-1).p;
  const x = (value) => LEFT + ((value - 1) / Math.max(last - 1, 1)) * (WIDTH - LEFT - RIGHT);
  const most = Math.max(...points.map((point) => Math.max(point.documents_gathered, point.documents_scored)), 1);
  const up = (panel, share) => panel.top + panel.height * (1 - share);
  const line = (panel, share) => points.map((point, i) => `${i ? "L" : "M"}${x(point.p).toFixed(1)} ${up(panel, share(point)).toFixed(1)}`).join("");
  const gathered = (point) => point.documents_gathered / most;
  const area = `${line(DOCUMENTS, gathered)}L${x(last)} ${up(DOCUMENTS, 0)}L${x(1)} ${up(DOCUMENTS, 0)}Z`;
  const here = points.reduce((best, point) => (Math.abs(point.p - p) < Math.abs(best.p - p) ? point : best));
  const grid = (panel, labels) =>
    labels.map(([share, text]) => [
      svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: up(panel, share), y2: up(panel, share) }),
      svg("text", { class: "tick", x: LEFT - 6, y: up(panel, share) + 3.5, "text-anchor": "end" }, text),
    ]).flat();
  const ticks = [...new Set([1, Math.round(last / 4), Math.round(last / 2), Math.round((3 * last) / 4), last])];
  const step = (WIDTH - LEFT - RIGHT) / points.length;
  const plot = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "curve", role: "img", "aria-label": `Plot over p; the numbers are in the table below. At p = ${here.p}: ${spoken(here, answer)}` },
    svg("text", { class: "title", x: LEFT, y: 12 }, `found of the unpruned ${answer.k} best`),
    grid(OVERLAP, [[0, "0%"], [0.5, "50%"], [1, "100%"]]),
    svg("path", { class: "overlap", d: line(OVERLAP, (point) => point.overlap) }),
    svg("text", { class: "title", x: LEFT, y: DOCUMENTS.top - 10 }, "documents gathered"),
    svg("text", { class: "title scored-title", x: WIDTH - RIGHT, y: DOCUMENTS.top - 10, "text-anchor": "end" }, "– – scored"),
    grid(DOCUMENTS, [[0, "0"], [0.5, number(Math.round(most / 2))], [1, number(most)]]),
    svg("path", { class: "gathered-area", d: area }),
    svg("path", { class: "gathered", d: line(DOCUMENTS, gathered) }),
    svg("path", { class: "scored", d: line(DOCUMENTS, (point) => point.documents_scored / most) }),
    [OVERLAP, DOCUMENTS].map((panel) =>
      svg("line", { class: "here", x1: x(here.p), x2: x(here.p), y1: panel.top, y2: up(panel, 0) })),
    svg("circle", { class: "dot", cx: x(here.p), cy: up(OVERLAP, here.overlap), r: 4 }),
    svg("circle", { class: "dot", cx: x(here.p), cy: up(DOCUMENTS, gathered(here)), r: 4 }),
    ticks.map((tick) => svg("text", { class: "tick", x: x(tick), y: HEIGHT - 24, "text-anchor": "middle" }, String(tick))),
    svg("text", { class: "tick", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle" }, "p, embeddings that gather"),
    points.map((point) =>
      svg("rect", { class: "touch", x: x(point.p) - step / 2, y: 0, width: step, height: HEIGHT, on: { click: () => choose(point.p) } },
        svg("title", {}, `p = ${point.p}: ${spoken(point, answer)}`))),
  );
  return [
    el("p", { class: "here-facts" }, el("strong", {}, `p = ${here.p}: `), spoken(here, answer)),
    plot,
    el("details", {}, el("summary", {}, "The numbers"), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Numbers for every p" }, numbers(points, answer.k))),
  ];
}

function spoken(point, answer) {
  return `${number(point.documents_gathered)} of ${number(answer.documents_in_index)} documents gathered, ` +
    `${number(point.documents_scored)} scored, ${percent(point.overlap)} of the unpruned ${answer.k} found`;
}

function numbers(points, k) {
  const names = ["p", "gathered", "scored", `overlap@${k}`, "ms"];
  return el(
    "table",
    { class: "costs" },
    el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, points.map((point) =>
      el("tr", {}, el("th", { scope: "row" }, String(point.p)), el("td", {}, number(point.documents_gathered)),
        el("td", {}, number(point.documents_scored)), el("td", {}, percent(point.overlap)), el("td", {}, point.milliseconds.toFixed(1))))),
  );
}

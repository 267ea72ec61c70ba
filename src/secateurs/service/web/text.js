// A document's text with its matched words marked. Places are counted in code points, as the service does.

import { el } from "./dom.js";
import { isWord } from "./chips.js";

const WHOLE = 520; // texts up to here are shown whole
const WINDOW = 420;

// A word's match is shaded by its similarity times the rarity of the commoner of the two words, so that the match of a
// common word, or with one, is barely visible; what only special embeddings match is underlined.
function weigh(highlight, tokenAt) {
  let shade = 0;
  let kind = "expansion";
  const names = [];
  highlight.positions.forEach((position, i) => {
    const token = tokenAt.get(position);
    const similarity = highlight.similarities[i];
    const times = token && token.weight !== 1 ? ` × ${token.weight.toFixed(2)}` : "";
    const name = `${token?.token ?? "?"} ${similarity.toFixed(2)}${times}`;
    if (token && isWord(token)) {
      kind = "word";
      shade = Math.max(shade, similarity * Math.min(token.rarity, highlight.rarity));
      names.unshift(name);
    } else {
      names.push(name);
    }
  });
  const title = `adds ${highlight.contribution.toFixed(2)} to the score: ${names.join(", ")}`;
  return { ...highlight, shade, kind, title };
}

// The stretch with the most in it, begun and ended between words where there is a space nearby.
function bestWindow(points, marks) {
  const { length } = points;
  if (length <= WHOLE) return [0, length];
  let best = [0, -1];
  let first = 0;
  for (const mark of marks) { // in the order of the text, so that no stretch begins before the last one did
    const start = Math.max(0, Math.min(mark.start - 40, length - WINDOW));
    while (marks[first].start < start) first++;
    let worth = 0;
    for (let i = first; i < marks.length && marks[i].end <= start + WINDOW; i++) {
      worth += 10 * marks[i].shade + marks[i].contribution;
    }
    if (worth > best[1]) best = [start, worth];
  }
  let [start, end] = [best[0], best[0] + WINDOW];
  const isSpace = (at) => /\s/.test(points[at]);
  for (let at = start; start > 0 && at < start + 20; at++) if (isSpace(at)) { start = at + 1; break; }
  for (let at = end; end < length && at > end - 20; at--) if (isSpace(at)) { end = at; break; }
  return [start, end];
}

function* pieces(points, marks, from, to) {
  let at = from;
  for (const mark of marks) {
    const start = Math.max(mark.start, at);
    const end = Math.min(mark.end, to);
    if (end <= start) continue;
    if (start > at) yield points.slice(at, start).join("");
    // Similarities of a word and its match lie between about 0.5 and 1, so that half of the shades would not be used.
    const depth = Math.min(Math.max((mark.shade - 0.3) / 0.6, 0), 1);
    yield el("mark", { class: mark.kind, title: mark.title, vars: { "--depth": depth.toFixed(2) } },
      points.slice(start, end).join(""));
    at = end;
  }
  if (at < to) yield points.slice(at, to).join("");
}

export function markedText(hit, tokens) {
  const points = Array.from(hit.text);
  const tokenAt = new Map(tokens.map((token) => [token.position, token]));
  const marks = (hit.highlights ?? []).map((highlight) => weigh(highlight, tokenAt));
  const [from, to] = bestWindow(points, marks);
  const paragraph = el("p", { class: "text", dir: "auto" });
  const show = (start, end) => {
    paragraph.replaceChildren();
    if (start > 0) paragraph.append("… ");
    paragraph.append(...pieces(points, marks, start, end));
    if (end < points.length) paragraph.append(" …");
  };
  show(from, to);
  if (to - from === points.length) return [paragraph];
  const more = el("button", { type: "button", class: "link", "aria-expanded": "false" }, "All of the text");
  more.addEventListener("click", () => {
    const open = more.getAttribute("aria-expanded") === "false";
    more.setAttribute("aria-expanded", String(open));
    more.textContent = open ? "Less of the text" : "All of the text";
    paragraph.classList.toggle("long", open);
    if (open) show(0, points.length);
    else show(from, to);
  });
  return [paragraph, more];
}

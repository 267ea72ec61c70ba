// What the page says of an index before there is a query.

import { el } from "./dom.js";

// What the index has measured of itself: how much of the exact ten best a search with p = auto finds.
export function measured(calibration) {
  if (!calibration) return "";
  const { found } = calibration.efforts.balanced;
  return `; with p = auto it finds ${Math.round(found * 100)}% of the exact ten best`;
}

export function greeting(index) {
  const code = (text) => el("code", {}, text);
  let content = [
    el("h2", {}, "A few embeddings find nearly all that the rest would"),
    el("p", {}, "A query becomes about 32 embeddings. Those of its rarest words gather nearly every document that belongs at the top; all of them score what was gathered. Ask something, then:"),
    el("ul", {},
      el("li", {}, "move the slider, and see the ranking and the number of documents gathered change;"),
      el("li", {}, "compare with the unpruned ranking: what moved, what was lost, what it cost;"),
      el("li", {}, "open a document’s MaxSim map to see which words matched.")),
    el("p", { class: "quiet" }, "Press ", el("kbd", {}, "/"), " to type. The address holds the whole view, so it can be shared."),
  ];
  if (index.documents === 0) {
    content = [
      el("h2", {}, "This index is empty"),
      el("p", {}, "It holds no documents yet, so there is nothing to find. Add documents with ", code(`POST /v1/indexes/${index.name}/documents`), " and load this page again."),
    ];
  } else if (index.encoder.kind === "precomputed") {
    content = [
      el("h2", {}, "This index takes no text"),
      el("p", {}, "It was built from embeddings, without an encoder, so only a program can search it: ", code(`POST /v1/indexes/${index.name}/search`), " with embeddings."),
    ];
  }
  return content;
}

// The filter: a condition on the metadata, and the keys that there are, each of which writes a comparison to begin with.

import { el, number } from "./dom.js";

const PLAIN = /^[A-Za-z_]\w*(\.\w+)*$/;
const quoted = (text, quote) => quote + text.replaceAll(quote, quote + quote) + quote;

function comparison(name, { example }) {
  const key = PLAIN.test(name) ? name : quoted(name, '"');
  if (typeof example === "number") return `${key} >= ${example}`;
  if (typeof example === "boolean") return `${key} = ${example}`;
  if (typeof example === "string" && example.length <= 60) return `${key} = ${quoted(example, "'")}`;
  return `${key} is not null`;
}

// `write` gets the new text of the filter.
export function keyButtons(fields, current, write) {
  return Object.entries(fields).map(([name, field]) => {
    const text = comparison(name, field);
    const about = `${field.types.join(", ")}, in ${number(field.documents)} documents: ${text}`;
    const click = () => write(current().trim() ? `${current().trim()} and ${text}` : text);
    return el("button", { type: "button", class: "key-name", title: about, on: { click } }, el("bdi", {}, name));
  });
}

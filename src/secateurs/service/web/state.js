// What is looked at, kept in the part of the address after #, which a browser never sends to a server.

import { ALL, isChoice } from "./beside.js";

const ORDERS = ["rarity", "icf", "idf", "first", "random"];
const WEIGHTS = ["none", "idf"];

let settled; // the query that was last submitted or arrived at, and its address

export function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const p = given.get("p");
  settled = { q: given.get("q") ?? "", address: location.hash || "#" };
  return {
    index: given.get("index") ?? "",
    q: given.get("q") ?? "",
    p: /^[1-9]\d{0,3}$/.test(p ?? "") ? Number(p) : "auto",
    order: ORDERS.includes(given.get("order")) ? given.get("order") : "rarity",
    weights: WEIGHTS.includes(given.get("weights")) ? given.get("weights") : "none",
    where: given.get("where") ?? "",
    beside: isChoice(given.get("beside")) ? given.get("beside") : ALL,
    open: given.get("open") ?? "",
  };
}

export function writeState(state, remember = false) {
  const written = new URLSearchParams();
  const unsaid = { p: "auto", weights: "none", beside: ALL };
  for (const name of ["index", "q", "where", "p", "order", "weights", "beside", "open"]) {
    if (state[name] !== "" && state[name] !== unsaid[name]) written.set(name, state[name]);
  }
  const address = `#${written}`;
  if (remember && address !== settled.address) {
    history.replaceState(null, "", settled.address); // typing has gone over it
    history.pushState(null, "", address);
  } else if (address !== location.hash) {
    history.replaceState(null, "", address);
  }
  if (remember || state.q === settled.q) settled = { q: state.q, address };
}

// What a ranking is compared with: the same search with one setting changed.

const P = ["auto", 1, 2, 3, 4, 6, 8];
const ORDERS = ["rarity", "icf", "idf", "first", "random"];
const EFFORTS = ["fast", "balanced", "thorough", "exact"];

export const ALL = "all"; // all embeddings gather
export const GROUPS = [
  ["Pruning", [[ALL, "all embeddings"], ...P.map((p) => [`p=${p}`, `p = ${p}`])]],
  ["Order", ORDERS.map((order) => [`order=${order}`, `order ${order}`])],
  ["Effort, with p = auto", EFFORTS.map((effort) => [`effort=${effort}`, `effort ${effort}`])],
];
const NAMES = new Map(GROUPS.flatMap(([, choices]) => choices));

export const isChoice = (choice) => NAMES.has(choice);
export const nameOfChoice = (choice) => NAMES.get(choice);
export const phrase = (choice) => (choice === ALL ? "without pruning" : `with ${NAMES.get(choice)}`);

// The settings of the other search; `settings` are those of the ranking, with its p.
export function otherSettings(choice, settings, largestP) {
  const [name, value] = choice.split("=");
  if (choice === ALL) return { ...settings, p: ALL };
  if (name === "p") return { ...settings, p: value === "auto" ? value : Math.min(Number(value), largestP) };
  if (name === "effort") return { ...settings, p: "auto", effort: value };
  return { ...settings, [name]: value };
}

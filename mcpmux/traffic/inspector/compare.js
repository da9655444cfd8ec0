// Where two JSON values differ: a mark for each path, `changed` or `only`, and a sign on the way to each of them.

import { Exact } from "./api.js";

const LIMIT = 50_000; // values that are compared; beyond that nothing is marked

export const below = (path, name) => `${path}/${String(name).replaceAll("~", "~0").replaceAll("/", "~1")}`;

/** Marks for both values. A path with a NUL behind it has a mark somewhere below. */
export function compare(left, right) {
  const marks = [new Map(), new Map()];
  const budget = { left: LIMIT };
  walk(left, right, "", marks, budget, []);
  return marks;
}

function walk(left, right, path, marks, budget, above) {
  if (budget.left-- <= 0) return;
  if (isContainer(left) && isContainer(right) && Array.isArray(left) === Array.isArray(right)) {
    const way = [...above, path];
    for (const name of new Set([...Object.keys(left), ...Object.keys(right)])) {
      const next = below(path, name);
      if (!Object.hasOwn(right, name)) mark(marks[0], next, "only", way);
      else if (!Object.hasOwn(left, name)) mark(marks[1], next, "only", way);
      else walk(left[name], right[name], next, marks, budget, way);
    }
  } else if (!same(left, right)) {
    marks.forEach((side) => mark(side, path, "changed", above));
  }
}

function mark(side, path, word, above) {
  side.set(path, word);
  for (const each of above) side.set(`${each}\u0000`, true);
}

const isContainer = (value) => value !== null && typeof value === "object" && !(value instanceof Exact);

function same(left, right) {
  if (left instanceof Exact && right instanceof Exact) return left.source === right.source;
  return left === right;
}

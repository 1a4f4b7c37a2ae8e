// SPDX-License-Identifier: Apache-2.0
// What is searched for: a part of a name, a /regular expression/, or path: and a part of the file's.
"use strict";

function matcher(query) {
  const expression = /^\/(.+)\/$/s.exec(query);
  if (expression) {
    const pattern = new RegExp(expression[1], "iu");
    return (frame) => pattern.test(frame.name);
  }
  if (query.startsWith("path:")) {
    const part = query.slice(5).toLowerCase();
    return (frame) => (frame.path || frame.module || "").toLowerCase().includes(part);
  }
  const wanted = query.toLowerCase();
  return (frame) => frame.name.toLowerCase().includes(wanted) || frame.raw.toLowerCase().includes(wanted);
}

// By frame whether it matches. Raises SyntaxError for an expression that is none.
function framesThatMatch(profile, query) {
  const matches = matcher(query);
  return Uint8Array.from(profile.frames, (frame) => (frame.kind !== "root" && matches(frame) ? 1 : 0));
}

// The weight of what matches below a node, for each side, and how many names that are. A match inside a match
// has been counted with it.
function matchedWeights(view, root, found) {
  const weights = view.sideTotals.map(() => 0);
  const names = new Set();
  let inside = 0;
  view.walk(
    root,
    (node) => {
      if (!found[view.frameIds[node]]) return;
      names.add(view.frameIds[node]);
      if (inside++ === 0) view.sideTotals.forEach((totals, side) => { weights[side] += totals[node]; });
    },
    (node) => { inside -= found[view.frameIds[node]]; },
  );
  return { weights, names: names.size };
}

// Tells what was found, and returns by frame whether it matches; null if nothing is searched for.
function search(view, root, query, told) {
  told.textContent = "";
  if (!query) return null;
  let found;
  try {
    found = framesThatMatch(view.profile, query);
  } catch (error) {
    told.textContent = "not a regular expression: " + visible(error.message);
    return null;
  }
  const { weights, names } = matchedWeights(view, root, found);
  const { unit, side } = view.options;
  if (names === 0) {
    told.textContent = "no frame matches";
  } else if (weights.length === 2) {
    const wholes = wholesOf(view);
    const change = changeAt(weights.map((weight) => [weight]), 0, wholes);
    told.textContent = `${changeText(change, weights, wholes, unit)}, ${plural(names, "name")}`;
  } else {
    told.textContent =
      `${percent(weights[side], view.total[root])} matched (${amount(weights[side], unit)}, ${plural(names, "name")})`;
  }
  return found;
}

// SPDX-License-Identifier: Apache-2.0
// What was recorded, and what of it was lost.
"use strict";

function addTotals(line, { read, lost, truncated, failed }) {
  const count = (name, value, bad) => {
    addText(line, "span", name + " ");
    addText(line, "b", number(value), bad ? "bad" : "");
    addText(line, "span", " · ");
  };
  count("read", read, false);
  count("lost", lost, lost > 0);
  count("truncated", truncated, false);
  addText(line, "span", failed.length ? "incomplete or not sent: " : "incomplete or not sent: none");
  failed.forEach(([reason, times], index) => {
    addText(line, "span", (index ? ", " : "") + visible(reason) + " ");
    addText(line, "b", number(times));
  });
}

function showHeading(data) {
  const title = visible(data.title) || "Flame graph";
  element("title").textContent = title;
  document.title = title + " - rubyunwind";
  const details = ({ title: known, details: all }) => all.filter((text) => text !== known).map(visible).join(" · ");
  const totals = element("totals");
  if (!data.sides) {
    element("details").textContent = details(data);
    addTotals(totals, data.totals);
    return;
  }
  data.sides.forEach((side, index) => {
    const line = addText(totals, "span", "", "side");
    addText(line, "b", SIDES[index] === "before" ? "Before" : "After");
    addText(line, "span", `: ${[visible(side.title), details(side)].filter(Boolean).join(" · ")} · `);
    addTotals(line, side.totals);
  });
}

// What of the weight is not in plain sight in the graph.
function notes(view) {
  const { unit, side } = view.options;
  const told = [];
  const sides = view.profile.sides === 2 ? SIDES.map((name, at) => [at, name + ": "]) : [[side, ""]];
  for (const [at, name] of sides) {
    const incomplete = view.sideIncomplete[at];
    const whole = view.sideTotals[at][0] + (view.leavesOut ? incomplete : 0);
    if (incomplete > 0) {
      const share = `${name}${percent(incomplete, whole)} (${amount(incomplete, unit)}) is in stacks that did not reach their root`;
      told.push(share + (view.leavesOut ? "; they are left out." : "; they stand apart, on the hatched frames."));
    }
    if (whole < view.sideUnitTotal[at]) told.push(`${name}Chosen: ${amount(whole, unit)} of ${amount(view.sideUnitTotal[at], unit)}.`);
    if (name && whole === 0) told.push(`There is nothing ${name.slice(0, -2)}.`);
  }
  return told.join(" ");
}

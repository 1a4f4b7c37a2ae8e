// SPDX-License-Identifier: Apache-2.0
// Two recordings compared: shares of each one's weight, and by how much they differ, in percentage points.
"use strict";

const SIDES = ["before", "after"];
// Points from which on a change is of the next step of colour. Less than the first counts as none.
const CHANGES = [0.1, 0.5, 2, 5];

const shareOf = (part, whole) => (whole > 0 ? (100 * part) / whole : 0);
const points = (change) => (change < 0 ? "-" : "+") + Math.abs(change).toFixed(Math.abs(change) < 10 ? 2 : 1);

function changeStep(change) {
  const step = CHANGES.filter((least) => Math.abs(change) >= least).length;
  return change < 0 ? -step : step;
}

// Shares in percent of all that is shown. `weights` has a column for each side, `wholes` what each of them weighs.
function changeAt(weights, at, wholes) {
  const [before, after] = wholes.map((whole, side) => shareOf(weights[side][at], whole));
  return { before, after, change: after - before };
}

const wholesOf = (view) => view.sideTotals.map((totals) => totals[0]);
const changeOf = (view, node) => changeAt(view.sideTotals, node, wholesOf(view));

// Whether samples taken at random would differ as much in one of twenty pairs of recordings of the same program.
// Only samples are such; time off the CPU is not.
function mayBeChance({ before, after, change }, wholes, unit) {
  if (unit !== "samples" || change === 0 || !wholes.every((whole) => whole > 0)) return false;
  const variance = [before, after].reduce((sum, share, side) => {
    return sum + ((share / 100) * (1 - share / 100)) / wholes[side];
  }, 0);
  return Math.abs(change) / 100 < 1.96 * Math.sqrt(variance);
}

function changeText(change, [before, after], wholes, unit) {
  const chance = mayBeChance(change, wholes, unit) ? ", which may be chance" : "";
  return `${change.before.toFixed(2)}% before (${amount(before, unit)}), ${change.after.toFixed(2)}% after ` +
    `(${amount(after, unit)}): ${change.change === 0 ? "no change" : points(change.change) + " points"}${chance}`;
}

// The rows of the table: methods with their shares on both sides, `of` themselves or of all that they call.
function changedMethods(view, root, of) {
  const wholes = wholesOf(view);
  const [befores, afters] = SIDES.map((_, side) => methodWeights(view, root, side));
  const rows = [];
  for (let frame = 0; frame < befores[of].length; frame++) {
    if ((befores.total[frame] > 0 || afters.total[frame] > 0) && !view.profile.frames[frame].marker) {
      const weights = [befores[of], afters[of]];
      rows.push({ frame, ...changeAt(weights, frame, wholes), weights: weights.map((each) => each[frame]) });
    }
  }
  return rows;
}

const CHANGE_COLUMNS = [
  ...SIDES.map((key, side) => ({
    key,
    label: key === "before" ? "Before" : "After",
    title: `Share of all weight ${key}`,
    text: (row) => row[key].toFixed(2) + "%",
    detail: (row, view) => amount(row.weights[side], view.options.unit),
    bar: (row) => row[key],
  })),
  {
    key: "change",
    label: "Change",
    title: "In percentage points; the largest changes first, whichever way",
    rank: (row) => Math.abs(row.change),
    text: (row) => (row.change === 0 ? "0" : points(row.change)),
    detail: (row, view) => changeText(row, row.weights, wholesOf(view), view.options.unit),
    bar: () => 0,
  },
];

// What the colours mean.
function changeLegend(list, theme) {
  const scale = addText(list, "span", "", "scale");
  addText(scale, "span", "shrank");
  for (let step = -CHANGES.length; step <= CHANGES.length; step++) {
    const swatch = addText(scale, "span", step === 0 ? "same" : String(CHANGES[Math.abs(step) - 1]), "step");
    const [least, most] = [CHANGES[Math.abs(step) - 1], CHANGES[Math.abs(step)]];
    const range = most === undefined ? `${least} points or more` : `${least} to ${most} points`;
    swatch.title = step === 0 ? `less than ${CHANGES[0]} points` : `${step < 0 ? "shrank" : "grew"} by ${range}`;
    swatch.style.background = theme.change(step);
    swatch.style.color = theme.frameText;
  }
  addText(scale, "span", "grew, by points of all (or more)");
}

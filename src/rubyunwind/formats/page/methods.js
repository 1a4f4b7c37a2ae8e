// SPDX-License-Identifier: Apache-2.0
// The table of the hottest methods: what each weighs itself, and with all that it calls.
"use strict";

// Longer names lose their namespaces in the table; the whole name is in the tip.
const LONG = 22;
const FIRST_ROWS = 100;

// Weights of all frames below a node, on a side. A method that calls itself is counted once.
function methodWeights(view, root, side) {
  const count = view.profile.frames.length;
  const [self, total, open] = [new Float64Array(count), new Float64Array(count), new Uint32Array(count)];
  const [selfs, totals] = [view.sideSelfs[side], view.sideTotals[side]];
  view.walk(
    root,
    (node) => {
      const frame = view.frameIds[node];
      self[frame] += selfs[node];
      if (open[frame]++ === 0) total[frame] += totals[node];
    },
    (node) => { open[view.frameIds[node]]--; },
  );
  return { self, total };
}

function hottest(view, root) {
  const { self, total } = methodWeights(view, root, view.options.side);
  const found = [];
  for (let frame = 0; frame < total.length; frame++) {
    if (total[frame] > 0 && !view.profile.frames[frame].marker) found.push({ frame, self: self[frame], total: total[frame] });
  }
  return found;
}

// A column: what it is called, by what its rows are ordered (`rank`, else what has its key), and what a cell has.
const WEIGHT_COLUMNS = [["self", "Self", "Without what it calls"], ["total", "Total", "With all that it calls"]].map(
  ([key, label, title]) => ({
    key,
    label,
    title,
    text: (row, view, whole) => percent(row[key], whole),
    detail: (row, view) => amount(row[key], view.options.unit),
    bar: (row, view, whole) => (100 * row[key]) / whole,
  }),
);

class MethodTable {
  // `order` is the key of the column by which rows are sorted at first, `gather(view, root, of)` makes them;
  // choose(frame) is called when a method is clicked.
  constructor(columns, order, gather, choose) {
    this.columns = columns;
    this.order = order;
    this.gather = gather;
    this.choose = choose;
    this.limit = FIRST_ROWS;
    this.rows = [];
    const head = element("columns");
    for (const { key, label, title } of [...columns, { key: "name", label: "Method", title: "" }]) {
      const cell = addText(head, "th", "", key === "name" ? "" : "number");
      cell.scope = "col";
      const button = addText(cell, "button", label, "link");
      button.id = "by-" + key;
      button.type = "button";
      button.title = title;
      button.addEventListener("click", () => {
        this.order = key;
        this.draw();
      });
    }
    element("more").addEventListener("click", () => {
      this.limit *= 10;
      this.draw();
    });
  }

  // `matches` is a Uint8Array by frame, or null when nothing is searched for.
  show(view, root, matches, of, theme) {
    this.view = view;
    this.whole = view.total[root];
    this.theme = theme;
    this.rows = this.gather(view, root, of).filter((row) => matches === null || matches[row.frame]);
    this.searched = matches !== null;
    this.limit = FIRST_ROWS;
    this.draw();
  }

  sort() {
    const { frames } = this.view.profile;
    const name = (row) => frames[row.frame].name;
    const byName = (a, b) => (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : a.frame - b.frame);
    const first = this.columns.filter(({ key }) => key === this.order);
    const ranks = [...first, ...this.columns].map(({ key, rank }) => rank || ((row) => row[key]));
    this.rows.sort((a, b) => {
      if (this.order !== "name") for (const rank of ranks) if (rank(a) !== rank(b)) return rank(b) - rank(a);
      return byName(a, b);
    });
    for (const key of [...this.columns.map((column) => column.key), "name"]) {
      const sorted = key === this.order ? (key === "name" ? "ascending" : "descending") : "none";
      element("by-" + key).parentNode.setAttribute("aria-sort", sorted);
    }
  }

  draw() {
    this.sort();
    const { view, whole, theme } = this;
    const body = element("rows");
    body.replaceChildren();
    for (const row of this.rows.slice(0, this.limit)) {
      const frame = view.profile.frames[row.frame];
      const line = document.createElement("tr");
      for (const { text, detail, bar } of this.columns) {
        const cell = addText(line, "td", text(row, view, whole), "weight");
        cell.title = detail(row, view);
        cell.style.setProperty("--share", bar(row, view, whole) + "%");
      }
      const cell = addText(line, "td", "", "method");
      const swatch = addText(cell, "span", "", "swatch");
      swatch.style.background = "change" in row ? theme.change(changeStep(row.change)) : theme.colour(frame, true);
      const button = addText(cell, "button", frame.name.length > LONG ? shortened(frame.name)[0] : frame.name, "link");
      button.type = "button";
      button.title = [frame.name, KINDS[frame.kind] || frame.kind, place(frame, 0)].filter(Boolean).join(", ");
      button.addEventListener("click", () => this.choose(frame));
      body.append(line);
    }
    element("more").hidden = this.rows.length <= this.limit;
    element("shown").textContent =
      (this.searched ? "of those that match, " : "") + plural(this.rows.length, "method");
  }
}

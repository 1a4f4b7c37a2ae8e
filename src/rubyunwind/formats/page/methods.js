// SPDX-License-Identifier: Apache-2.0
// The table of the hottest methods: what each weighs itself, and with all that it calls.
"use strict";

// Longer names lose their namespaces in the table; the whole name is in the tip.
const LONG = 22;

// Of all frames below a node. A method that calls itself is counted once.
function hottest(view, root) {
  const count = view.profile.frames.length;
  const self = new Float64Array(count);
  const total = new Float64Array(count);
  const open = new Uint32Array(count);
  view.walk(
    root,
    (node) => {
      const frame = view.frameIds[node];
      self[frame] += view.self[node];
      if (open[frame]++ === 0) total[frame] += view.total[node];
    },
    (node) => { open[view.frameIds[node]]--; },
  );
  const found = [];
  for (let frame = 0; frame < count; frame++) {
    if (total[frame] > 0 && !view.profile.frames[frame].marker) found.push({ frame, self: self[frame], total: total[frame] });
  }
  return found;
}

class MethodTable {
  // choose(frame) is called when a method is clicked.
  constructor(choose) {
    this.choose = choose;
    this.order = "self";
    this.limit = 100;
    this.rows = [];
    for (const column of ["self", "total", "name"]) {
      element("by-" + column).addEventListener("click", () => {
        this.order = column;
        this.draw();
      });
    }
    element("more").addEventListener("click", () => {
      this.limit *= 10;
      this.draw();
    });
  }

  // `matches` is a Uint8Array by frame, or null when nothing is searched for.
  show(view, root, matches, colour) {
    this.view = view;
    this.whole = view.total[root];
    this.colour = colour;
    this.rows = hottest(view, root).filter((row) => matches === null || matches[row.frame]);
    this.searched = matches !== null;
    this.limit = 100;
    this.draw();
  }

  draw() {
    const { frames } = this.view.profile;
    const name = (row) => frames[row.frame].name;
    const byName = (a, b) => (name(a) < name(b) ? -1 : name(a) > name(b) ? 1 : a.frame - b.frame);
    const other = this.order === "self" ? "total" : "self";
    this.rows.sort(this.order === "name"
      ? byName : (a, b) => b[this.order] - a[this.order] || b[other] - a[other] || byName(a, b));
    for (const column of ["self", "total", "name"]) {
      const sorted = column === this.order ? (column === "name" ? "ascending" : "descending") : "none";
      element("by-" + column).parentNode.setAttribute("aria-sort", sorted);
    }
    const body = element("rows");
    body.replaceChildren();
    const { unit } = this.view.options;
    for (const row of this.rows.slice(0, this.limit)) {
      const frame = frames[row.frame];
      const line = document.createElement("tr");
      for (const weight of [row.self, row.total]) {
        const cell = addText(line, "td", percent(weight, this.whole), "weight");
        cell.title = amount(weight, unit);
        cell.style.setProperty("--share", (100 * weight) / this.whole + "%");
      }
      const cell = addText(line, "td", "", "method");
      const swatch = addText(cell, "span", "", "swatch");
      swatch.style.background = this.colour(frame);
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

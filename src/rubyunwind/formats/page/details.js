// SPDX-License-Identifier: Apache-2.0
// What is told of a frame: in the tip at the pointer, and in the line at the bottom, whose place can be copied.
"use strict";

const HINT = "Point at a frame for its details; click to zoom in, click a pale frame to zoom out. Press ? for help.";
const TOLD_LINES = 5;

class FrameDetails {
  constructor() {
    this.tip = element("tip");
    element("copy").addEventListener("click", () => this.copy());
  }

  show(view, zoomed) {
    this.view = view;
    this.zoomed = zoomed;
  }

  shares(node) {
    const { view, zoomed } = this;
    const { unit } = view.options;
    if (view.profile.sides === 2) return this.changes(node, unit);
    const [value, self] = [view.total[node], view.self[node]];
    let text = `${amount(value, unit)}, ${percent(value, view.total[0])} of all`;
    if (zoomed > 0 && value <= view.total[zoomed]) text += `, ${percent(value, view.total[zoomed])} of the zoomed`;
    return self > 0 && self < value ? `${text}; itself ${amount(self, unit)}, ${percent(self, view.total[0])}` : text;
  }

  changes(node, unit) {
    const { view } = this;
    const wholes = wholesOf(view);
    const told = (weights) => changeText(changeAt(weights, node, wholes), weights.map((each) => each[node]), wholes, unit);
    const text = told(view.sideTotals);
    const self = view.sideSelfs.map((weights) => weights[node]);
    const alike = self.every((weight, side) => weight === view.sideTotals[side][node]);
    return alike || self.every((weight) => weight === 0) ? text : `${text}; itself ${told(view.sideSelfs)}`;
  }

  // The tip, at the place of an event; without one, or a node of -1, there is none.
  point(node, event) {
    const { tip, view } = this;
    tip.hidden = node < 0 || !event;
    if (tip.hidden) return;
    const frame = view.frame(node);
    tip.replaceChildren();
    addText(tip, "div", frame.name, "name");
    const where = view.place(node);
    if (where) addText(tip, "div", where, "place");
    const lines = view.lines(node);
    if (lines.length > 1) {
      const shown = lines.slice(0, TOLD_LINES).map(([line, weight]) => `${line} (${percent(weight, view.total[node])})`);
      addText(tip, "div", `lines ${shown.join(", ")}${lines.length > TOLD_LINES ? ", ..." : ""}`, "kind");
    }
    addText(tip, "div", KINDS[frame.kind] || frame.kind, "kind");
    for (const text of this.shares(node).split("; ")) addText(tip, "div", text);
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY + 14 + height > innerHeight ? event.clientY - 14 - height : event.clientY + 14;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, top) + "px";
  }

  describe(node) {
    const { view } = this;
    const known = node >= 0 && node < view.count;
    element("status").textContent = known ? `${view.frame(node).name} — ${this.shares(node)}` : HINT;
    const where = known ? view.place(node) : "";
    if (element("where").textContent !== where) element("copy").textContent = "Copy";
    element("where").textContent = where;
    element("copy").hidden = !where;
  }

  async copy() {
    const where = element("where").textContent;
    if (where) element("copy").textContent = (await copyText(where)) ? "Copied" : "Could not copy";
  }
}

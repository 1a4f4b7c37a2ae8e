// SPDX-License-Identifier: Apache-2.0
// The graph on its canvas. The canvas is as large as what can be seen of it and is drawn anew when that moves: a
// stack of thousands of frames would be taller than any canvas may be.
"use strict";

const ROW = 18;
// Frames narrower than this are not drawn; they appear when their caller is zoomed.
const NARROWEST = 0.6;
const SHORTEST_TEXT = 22;
const MOST_PRINTED_ROWS = 150;

class Graph {
  // Handlers: point(node, event or null), choose(node, zoom) for a click or a key.
  constructor(handlers) {
    this.canvas = element("canvas");
    this.scroller = element("graph");
    this.context = this.canvas.getContext("2d");
    this.handlers = handlers;
    this.flipped = false;
    this.hovered = -1;
    this.selected = -1;
    this.matches = null;
    this.rows = [];
    this.widths = new Map();
    this.printing = false;
    this.scroller.addEventListener("scroll", () => this.draw(), { passive: true });
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => {
      const node = this.at(event);
      this.scroller.focus({ preventScroll: true });
      if (node >= 0) handlers.choose(node, !(event.ctrlKey || event.metaKey || event.shiftKey));
    });
    this.scroller.addEventListener("keydown", (event) => this.key(event));
  }

  show(view, zoomed, matches, theme) {
    const turned = this.flipped && this.zoomed !== zoomed;
    this.view = view;
    this.zoomed = zoomed;
    this.matches = matches;
    this.theme = theme;
    this.compares = view.profile.sides > 1;
    this.hovered = -1;
    this.layout();
    if (turned) this.scroller.scrollTop = this.rows.length * ROW;
    this.draw();
  }

  // Rows of frames: columns of node, left and width. -1 is the room of frames that are too narrow.
  layout() {
    const { view, zoomed } = this;
    this.width = Math.max(100, this.scroller.clientWidth);
    const above = [];
    for (let node = view.parents[zoomed]; node >= 0; node = view.parents[node]) above.unshift(node);
    this.above = above.length;
    this.rows = [...above, zoomed].map((node) => ({ nodes: [node], lefts: [0], widths: [this.width] }));
    const whole = view.total[zoomed];
    const scale = whole > 0 ? this.width / whole : 0;
    for (let row = this.rows[this.rows.length - 1]; row; ) {
      const deeper = { nodes: [], lefts: [], widths: [] };
      for (let index = 0; index < row.nodes.length; index++) {
        const node = row.nodes[index];
        if (node < 0) continue;
        let left = row.lefts[index];
        let rest = view.total[node] - view.self[node];
        for (const child of view.children(node, NARROWEST / scale)) {
          const width = view.total[child] * scale;
          deeper.nodes.push(child);
          deeper.lefts.push(left);
          deeper.widths.push(width);
          left += width;
          rest -= view.total[child];
        }
        if (rest * scale >= 1) {
          deeper.nodes.push(-1);
          deeper.lefts.push(left);
          deeper.widths.push(rest * scale);
        }
      }
      row = deeper.nodes.length ? deeper : null;
      if (row) this.rows.push(row);
    }
    element("height").style.height = this.rows.length * ROW + "px";
  }

  top(row) {
    return (this.flipped ? this.rows.length - 1 - row : row) * ROW;
  }

  draw() {
    if (!this.view) return;
    const { context, canvas, scroller } = this;
    const offset = this.printing ? 0 : scroller.scrollTop;
    const height = this.printing ? Math.min(this.rows.length, MOST_PRINTED_ROWS) * ROW : scroller.clientHeight;
    const ratio = this.printing ? 2 : devicePixelRatio;
    canvas.style.height = height + "px";
    canvas.width = this.width * ratio;
    canvas.height = height * ratio;
    context.scale(ratio, ratio);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.direction = "ltr";
    for (let row = 0; row < this.rows.length; row++) {
      const y = this.top(row) - offset;
      if (y > -ROW && y < height) this.drawRow(this.rows[row], y, row < this.above);
    }
    this.outline(this.selected, offset, 2);
    if (this.hovered !== this.selected) this.outline(this.hovered, offset, 1);
  }

  drawRow({ nodes, lefts, widths }, y, faded) {
    const { context, view, theme } = this;
    for (let index = 0; index < nodes.length; index++) {
      const [node, left, width] = [nodes[index], lefts[index], widths[index]];
      const drawn = width > 3 ? width - 0.8 : width;
      if (node < 0) {
        context.fillStyle = theme.rest;
        context.fillRect(left, y, drawn, ROW - 1);
        continue;
      }
      const frame = view.frame(node);
      const matched = this.matches !== null && this.matches[view.frameIds[node]];
      context.globalAlpha = faded ? 0.55 : this.matches !== null && !matched ? (this.compares ? 0.25 : 0.45) : 1;
      context.fillStyle = this.colour(frame, node, matched);
      context.fillRect(left, y, drawn, ROW - 1);
      context.globalAlpha = faded ? 0.75 : 1;
      if (width >= SHORTEST_TEXT) this.drawText(frame, node, left + 4, y + ROW / 2, width - 8);
      context.globalAlpha = 1;
    }
  }

  // In a comparison what matches keeps the colour of its change; the others are paler.
  colour(frame, node, matched) {
    const { theme } = this;
    if (!this.compares) return matched ? theme.match : theme.colour(frame);
    return frame.kind === "incomplete" ? theme.colour(frame) : theme.change(changeStep(changeOf(this.view, node).change));
  }

  textWidth(text) {
    let width = this.widths.get(text);
    if (width === undefined) {
      width = this.context.measureText(text.slice(0, 400)).width;
      this.widths.set(text, width);
    }
    return width;
  }

  drawText(frame, node, x, y, room) {
    let text = frame.name;
    if (this.view.options.lines && frame.path !== null) {
      const [line] = this.view.lines(node);
      if (line) text += ":" + line[0];
    }
    // Told in numbers, too: not everybody sees colours, and not every printer has them.
    const change = this.compares ? changeOf(this.view, node).change : 0;
    if (changeStep(change) !== 0) {
      const told = points(change);
      const taken = this.textWidth(told) + 8;
      if (taken + SHORTEST_TEXT < room) {
        this.context.fillStyle = this.theme.frameText;
        this.context.fillText(told, x + room - taken + 8, y);
        room -= taken;
      }
    }
    if (this.textWidth(text) > room) {
      const shorter = shortened(text);
      text = shorter.find((each) => this.textWidth(each) <= room) || shorter[shorter.length - 1];
      const fits = Math.floor((text.length * room) / this.textWidth(text)) - 1;
      if (this.textWidth(text) > room) text = fits < 2 ? "" : text.slice(0, fits) + "…";
    }
    if (!text) return;
    this.context.fillStyle = this.theme.frameText;
    this.context.fillText(text, x, y, room);
  }

  box(node) {
    for (let row = 0; row < this.rows.length; row++) {
      const index = this.rows[row].nodes.indexOf(node);
      if (index >= 0) return { row, index, left: this.rows[row].lefts[index], width: this.rows[row].widths[index] };
    }
    return null;
  }

  outline(node, offset, thick) {
    const box = node >= 0 && !this.printing ? this.box(node) : null;
    if (!box) return;
    this.context.strokeStyle = this.theme.text;
    this.context.lineWidth = thick;
    const inset = thick / 2;
    this.context.strokeRect(box.left + inset, this.top(box.row) - offset + inset, Math.max(1, box.width - thick), ROW - 1 - thick);
  }

  // The node under the pointer, -1 if there is none.
  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top + this.scroller.scrollTop];
    const line = Math.floor(y / ROW);
    const row = this.rows[this.flipped ? this.rows.length - 1 - line : line];
    if (!row) return -1;
    let [low, high] = [0, row.lefts.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.lefts[middle] <= x) low = middle + 1;
      else high = middle;
    }
    return low > 0 && x < row.lefts[low - 1] + row.widths[low - 1] ? row.nodes[low - 1] : -1;
  }

  point(event) {
    const node = event ? this.at(event) : -1;
    if (node !== this.hovered) {
      this.hovered = node;
      this.draw();
    }
    this.canvas.style.cursor = node >= 0 ? "pointer" : "default";
    this.handlers.point(node, event);
  }

  select(node) {
    this.selected = node;
    const box = node >= 0 ? this.box(node) : null;
    if (box) {
      const top = this.top(box.row);
      const { scrollTop, clientHeight } = this.scroller;
      if (top < scrollTop) this.scroller.scrollTop = top;
      else if (top + ROW > scrollTop + clientHeight) this.scroller.scrollTop = top + ROW - clientHeight;
    }
    this.draw();
  }

  // Arrows go from frame to frame of what is drawn.
  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { ArrowUp: this.flipped ? "in" : "out", ArrowDown: this.flipped ? "out" : "in", ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const box = this.selected >= 0 ? this.box(this.selected) : null;
    if (event.key === "Enter" && box) this.handlers.choose(this.selected, true);
    else if (step === undefined) return;
    else if (!box) this.handlers.choose(this.zoomed, false);
    else {
      const node = this.neighbour(box, step);
      if (node >= 0) this.handlers.choose(node, false);
    }
    event.preventDefault();
  }

  neighbour({ row, index, left, width }, step) {
    if (step === "out") return this.view.parents[this.selected];
    if (step === "in") {
      const deeper = this.rows[row + 1];
      const inside = (at) => deeper.nodes[at] >= 0 && deeper.lefts[at] >= left - 1e-6 && deeper.lefts[at] < left + width;
      const found = deeper ? deeper.nodes.findIndex((_, at) => inside(at)) : -1;
      return found < 0 ? -1 : deeper.nodes[found];
    }
    const { nodes } = this.rows[row];
    let at = index + step;
    while (nodes[at] === -1) at += step;
    return nodes[at] === undefined ? -1 : nodes[at];
  }
}

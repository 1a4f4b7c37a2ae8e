// SPDX-License-Identifier: Apache-2.0
// The tree that is shown: the profile's, with the samples that were asked for and the frames that were asked for.
// Nothing here recurses, since stacks may be deep.
"use strict";

// Children by parent and key, with open addressing: a Map of a million numbers takes seconds.
class ChildTable {
  constructor(expected, parents, keys) {
    let size = 1024;
    while (size < expected * 2) size *= 2;
    this.slots = new Int32Array(size);
    this.mask = size - 1;
    this.parents = parents;
    this.keys = keys;
  }

  // The slot of the child, or the free one where it belongs.
  slot(parent, key) {
    let at = (Math.imul(parent, 0x9e3779b1) ^ Math.imul(key + 1, 0x85ebca6b)) >>> 0;
    at = (at ^ (at >>> 15)) & this.mask;
    for (;;) {
      const node = this.slots[at];
      if (node === 0 || (this.parents[node] === parent && this.keys[node] === key)) return at;
      at = (at + 1) & this.mask;
    }
  }
}

// Options: unit; track(track) says whether it is wanted; from and to (slices, to is not in it); native: "off",
// "inside" (what a C function does, up to the next Ruby frame, which is not shown when there is one) or "all";
// lines: whether lines tell frames apart; hidden: a Set of kinds; side: which one's weights are `self` and `total`.
class View {
  constructor(profile, options) {
    this.profile = profile;
    this.options = options;
    this.weigh();
    this.grow();
    this.link();
  }

  // What each node of the profile weighs, on each side of a comparison; a profile by itself has one side.
  weigh() {
    const { profile, options } = this;
    const { parents, nodeSites, siteFrames, frames, weights, tracks } = profile;
    const count = parents.length;
    const cut = new Uint8Array(count);  // below a marker of an incomplete stack
    for (let node = 1; node < count; node++) {
      cut[node] = cut[parents[node]] || (frames[siteFrames[nodeSites[node]]].kind === "incomplete" ? 1 : 0);
    }
    const sides = Array.from({ length: profile.sides }, (_, side) => side);
    const owns = (this.owns = sides.map(() => new Float64Array(count)));
    const wanted = tracks.map((track) => track.unit === options.unit && options.track(track));
    const ofUnit = tracks.map((track) => track.unit === options.unit);
    const leaveOut = (this.leavesOut = options.hidden.has("incomplete"));
    this.sideUnitTotal = sides.map(() => 0);
    this.sideIncomplete = sides.map(() => 0);
    const { node: nodes, track: trackIds, slice: slices, weight } = weights;
    for (let index = 0; index < nodes.length; index++) {
      const track = trackIds[index];
      const { side } = tracks[track];
      if (ofUnit[track]) this.sideUnitTotal[side] += weight[index];
      if (!wanted[track] || slices[index] < options.from || slices[index] >= options.to) continue;
      const node = nodes[index];
      if (cut[node]) this.sideIncomplete[side] += weight[index];
      if (!(cut[node] && leaveOut)) owns[side][node] += weight[index];
    }
    this.incomplete = this.sideIncomplete[options.side];
    this.leftOut = leaveOut ? this.incomplete : 0;
    const present = (this.present = new Uint8Array(count));
    const totals = owns.map((own) => {
      const total = Float64Array.from(own);
      for (let node = count - 1; node > 0; node--) total[parents[node]] += total[node];
      for (let node = 0; node < count; node++) present[node] |= total[node] > 0;
      return total;
    });
    this.totals = totals[options.side];
  }

  // The nodes that are shown. Of each node of the profile there are two images, since what becomes of a native
  // frame depends on whether Ruby code is called below it: `through` is for that code, `inner` for all else.
  grow() {
    const { profile, options, owns, present } = this;
    const { parents, nodeSites, siteFrames, siteLines, frames } = profile;
    const count = parents.length;
    const capacity = 2 * count + 8;
    const viewParents = (this.parents = new Int32Array(capacity));
    const viewKeys = (this.keys = new Int32Array(capacity));
    const viewFrames = (this.frameIds = new Int32Array(capacity));
    const selfs = (this.sideSelfs = owns.map(() => new Float64Array(capacity)));
    const table = new ChildTable(count, viewParents, viewKeys);
    const through = new Int32Array(count);
    const inner = new Int32Array(count);
    const open = new Uint8Array(count);
    const shownAs = (this.shownAs = new Int32Array(count));  // -1: not shown
    viewParents[0] = -1;
    viewKeys[0] = options.lines ? 0 : siteFrames[0];
    viewFrames[0] = siteFrames[0];
    this.count = 1;
    open[0] = 1;
    const child = (parent, frame, key) => {
      const slot = table.slot(parent, key);
      if (table.slots[slot] === 0) {
        const node = this.count++;
        viewParents[node] = parent;
        viewKeys[node] = key;
        viewFrames[node] = frame;
        table.slots[slot] = node;
      }
      return table.slots[slot];
    };
    const inside = options.native === "inside";
    const hiddenFrames = frames.map((frame) =>
      (frame.machine ? options.native === "off" : frame.kind !== "incomplete" && options.hidden.has(frame.kind)) ? 1 : 0);
    for (let node = 1; node < count; node++) {
      shownAs[node] = -1;
      if (!present[node]) continue;
      const parent = parents[node];
      const site = nodeSites[node];
      const frameId = siteFrames[site];
      const frame = frames[frameId];
      const key = options.lines ? site : frameId;
      open[node] = frame.role === PASSES ? open[parent] : frame.role === OPENS ? 1 : 0;
      if (hiddenFrames[frameId]) {
        through[node] = through[parent];
        inner[node] = frame.role === PASSES ? inner[parent] : through[parent];
      } else if (frame.machine && inside) {
        through[node] = through[parent];
        inner[node] = open[parent] ? child(inner[parent], frameId, key) : inner[parent];
        if (inner[node] !== inner[parent]) shownAs[node] = inner[node];
      } else {
        through[node] = child(through[parent], frameId, key);
        inner[node] = frame.role !== PASSES || inner[parent] === through[parent]
          ? through[node] : child(inner[parent], frameId, key);
        shownAs[node] = inner[node];
      }
      if (owns.some((own) => own[node] > 0)) {
        let at = inner[node];
        // All frames hidden: the weight must not vanish into the root.
        if (frames[viewFrames[at]].marker && shownAs[node] < 0) at = this.nothing(at, child);
        owns.forEach((own, side) => { selfs[side][at] += own[node]; });
      }
    }
    owns.forEach((own, side) => { selfs[side][0] += own[0]; });
  }

  nothing(parent, child) {
    const { frames } = this.profile;
    if (this.nothingId === undefined) {
      this.nothingId = frames.findIndex((frame) => frame.kind === "nothing");
      if (this.nothingId < 0) {
        const name = "[only hidden frames]";
        frames.push({ kind: "nothing", name, raw: name, path: null, module: null, shade: 0, role: PASSES, machine: false, marker: true });
        this.nothingId = frames.length - 1;
      }
    }
    return child(parent, this.nothingId, -2);
  }

  // Weights with those of the children, and lists of children.
  link() {
    const { count, parents, options } = this;
    this.sideTotals = this.sideSelfs.map((self) => {
      const total = self.slice(0, count);
      for (let node = count - 1; node > 0; node--) total[parents[node]] += total[node];
      return total;
    });
    const self = (this.self = this.sideSelfs[options.side]);
    this.total = this.sideTotals[options.side];
    this.order = this.total;
    if (this.sideTotals.length > 1) {
      // The order of both, so that frames keep their places when the other side gives the widths.
      this.order = new Float64Array(count);
      for (const totals of this.sideTotals) {
        for (let node = 0; node < count; node++) this.order[node] += shareOf(totals[node], totals[0]);
      }
    }
    this.first = new Int32Array(count).fill(-1);
    this.next = new Int32Array(count).fill(-1);
    for (let node = count - 1; node > 0; node--) {
      const parent = parents[node];
      if (this.order[node] === 0) continue;
      this.next[node] = this.first[parent];
      this.first[parent] = node;
    }
    this.kindWeights = {};  // of the frames that are on top
    for (let node = 0; node < count; node++) {
      if (self[node] > 0) this.kindWeights[this.frame(node).kind] = (this.kindWeights[this.frame(node).kind] || 0) + self[node];
    }
    this.lineCache = new Map();
  }

  frame(node) {
    return this.profile.frames[this.frameIds[node]];
  }

  // Children that weigh at least this much: heavy ones first, stacks that did not reach their root last.
  children(node, least = 0) {
    const found = [];
    for (let child = this.first[node]; child >= 0; child = this.next[child]) {
      if (this.total[child] >= least) found.push(child);
    }
    if (found.length > 1) {
      const last = (child) => (this.frame(child).marker && this.frame(child).kind !== "process" ? 1 : 0);
      found.sort((a, b) => last(a) - last(b) || this.order[b] - this.order[a] || (this.frame(a).name < this.frame(b).name ? -1 : 1));
    }
    return found;
  }

  // Lines of a node with their weights, the heaviest first.
  lines(node) {
    if (this.lineCache.has(node)) return this.lineCache.get(node);
    const { nodeSites, siteLines } = this.profile;
    const weights = new Map();
    const { shownAs, totals } = this;
    for (let at = 1; at < shownAs.length; at++) {
      if (shownAs[at] !== node) continue;
      const line = siteLines[nodeSites[at]];
      if (line) weights.set(line, (weights.get(line) || 0) + totals[at]);
    }
    const found = [...weights].sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    this.lineCache.set(node, found);
    return found;
  }

  place(node) {
    const lines = this.lines(node);
    return place(this.frame(node), lines.length ? lines[0][0] : 0);
  }

  path(node) {
    const keys = [];
    for (let at = node; at > 0; at = this.parents[at]) keys.push(this.frameIds[at]);
    return keys.reverse();
  }

  // The node of a path of frames, or the last one on the way that is still shown. Native frames may have come or
  // gone in between.
  find(path) {
    const { frames } = this.profile;
    let node = 0;
    for (const wanted of path) {
      const found = this.search(node, wanted);
      if (found >= 0) node = found;
      else if (!(frames[wanted] && frames[wanted].machine)) break;
    }
    return node;
  }

  search(node, wanted) {
    let level = [node];
    while (level.length) {
      const deeper = [];
      for (const above of level) {
        for (const child of this.children(above)) {
          if (this.frameIds[child] === wanted) return child;
          if (this.frame(child).machine) deeper.push(child);
        }
      }
      level = deeper;
    }
    return -1;
  }

  // Every node of a subtree, callers first; enter() may return false to leave out what is below.
  walk(root, enter, leave = () => {}) {
    let node = root;
    for (;;) {
      if (enter(node) !== false && this.first[node] >= 0) {
        node = this.first[node];
        continue;
      }
      leave(node);
      while (node !== root && this.next[node] < 0) {
        node = this.parents[node];
        leave(node);
      }
      if (node === root) return;
      node = this.next[node];
    }
  }
}

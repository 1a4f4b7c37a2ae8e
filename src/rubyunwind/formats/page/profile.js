// SPDX-License-Identifier: Apache-2.0
// The profile as it stands in the page, unpacked into typed arrays. flamegraph.py says what is in it.
"use strict";

const COLUMN_TYPES = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };

async function unpacked([type, packed]) {
  const raw = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new COLUMN_TYPES[type](await new Response(stream).arrayBuffer());
}

async function unpackedAll(columns) {
  const names = Object.keys(columns);
  const arrays = await Promise.all(names.map((name) => unpacked(columns[name])));
  return Object.fromEntries(names.map((name, index) => [name, arrays[index]]));
}

// What a frame means for the frames that it calls: see View.
const PASSES = 0, OPENS = 1, CLOSES = 2;
const ROLES = { ruby: CLOSES, unknown: CLOSES, cfunc: OPENS, gc: OPENS };

function frameOf([kind, name, path, module], string) {
  const shown = visible(string(name)) || "(no name)";
  let hash = 7;
  for (let index = 0; index < Math.min(shown.length, 40); index++) hash = (hash * 31 + shown.charCodeAt(index)) % 8191;
  const frame = {
    kind: string(kind), name: shown, raw: string(name), path: string(path), module: string(module), shade: hash % 4,
  };
  frame.role = ROLES[frame.kind] || PASSES;
  // A native frame without a module is a remark of the profiler: what a thread waits for.
  frame.machine = frame.kind === "native" && frame.module !== null;
  frame.marker = frame.kind === "process" || frame.kind === "incomplete" || frame.kind === "root";
  return frame;
}

// Where a frame is, as editors take it.
function place(frame, line) {
  if (frame.path !== null) return visible(frame.path) + (line ? ":" + line : "");
  return frame.module === null ? "" : visible(frame.module);
}

async function readProfile(data) {
  const [sites, nodes, weights] = await Promise.all([data.sites, data.nodes, data.weights].map(unpackedAll));
  const string = (index) => (index < 0 ? null : data.strings[index]);
  const frames = data.frames.map((frame) => frameOf(frame, string));
  // The parent of a node is the last one before it that is one less deep.
  const parents = new Int32Array(nodes.depth.length);
  const path = [];
  for (let node = 0; node < parents.length; node++) {
    const depth = nodes.depth[node];
    parents[node] = depth > 0 ? path[depth - 1] : -1;
    path[depth] = node;
  }
  const tracks = data.tracks.map(([pid, tid, comm, container, unit, side = 0]) => (
    { pid, tid, comm: visible(string(comm)), container: string(container), unit: string(unit), side }
  ));
  const [start, width, slices] = data.time;
  return {
    frames, tracks, weights, parents,
    sides: data.sides ? 2 : 1,
    siteFrames: sites.frame, siteLines: sites.line, nodeSites: nodes.site,
    time: { start, width, slices },
    units: [...new Set(tracks.map((track) => track.unit))].sort().reverse(),
  };
}

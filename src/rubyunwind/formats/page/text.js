// SPDX-License-Identifier: Apache-2.0
// Text of the profiled program and numbers, as people read them. Names may be anything: they reach the document
// through textContent and the canvas, never as markup.
"use strict";

// Controls, bytes that were no UTF-8, and characters that turn the direction of text or have no width, made visible.
const HIDDEN =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\u{e0000}-\u{e007f}]/gu;
function visible(text) {
  return text.replace(HIDDEN, (character) => {
    const code = character.codePointAt(0);
    if (code === 10) return "\\n";
    if (code < 0x80) return "\\x" + code.toString(16).padStart(2, "0");
    if (code >= 0xdc80 && code <= 0xdcff) return "\\x" + (code & 0xff).toString(16);
    return "\\u" + code.toString(16).padStart(4, "0");
  });
}

const number = (value) => value.toLocaleString("en-US");
const percent = (part, whole) => (whole > 0 ? ((100 * part) / whole).toFixed(part === whole ? 0 : 2) : "0") + "%";
const plural = (count, one, many = one + "s") => number(count) + " " + (count === 1 ? one : many);

// A weight in its unit. Different units never meet in one number.
function amount(weight, unit) {
  if (unit === "samples") return plural(weight, "sample");
  if (unit !== "ns") return visible((number(weight) + " " + unit).trim());
  if (weight >= 1e9) return (weight / 1e9).toFixed(2) + " s";
  if (weight >= 1e6) return (weight / 1e6).toFixed(2) + " ms";
  return (weight / 1e3).toFixed(1) + " µs";
}
const UNIT_NAMES = { samples: "Samples (on the CPU)", ns: "Time off the CPU" };

const element = (id) => document.getElementById(id);
function addText(parent, tag, text, className = "") {
  const child = document.createElement(tag);
  child.textContent = text;
  if (className) child.className = className;
  parent.append(child);
  return child;
}

// Kinds of frames, as the legend names them and in its order.
const KINDS = {
  ruby: "Ruby", cfunc: "C function", native: "native", kernel: "kernel", gc: "garbage collection",
  jit: "JIT-compiled", unknown: "unknown", error: "error", incomplete: "incomplete",
};

// Without the namespaces, and only what is called: what is left of a name where there is little room.
function shortened(name) {
  const plain = name.replace(/[A-Za-z_]\w*::/g, "");
  const method = /[#.]([^#.]+)$/.exec(plain);
  return method ? [plain, method[1]] : [plain];
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without the permission, or in a page that the browser does not call secure.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

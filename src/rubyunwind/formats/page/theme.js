// SPDX-License-Identifier: Apache-2.0
// Light and dark, and the colours that follow from it. The style sheet has them as lightness, chroma and hue of
// OKLCH, where equal numbers look equally bright; they are turned into sRGB here, since older browsers cannot.
"use strict";

const STORED_THEME = "rubyunwind-theme";

function preferredTheme() {
  let saved = null;
  try {
    saved = localStorage.getItem(STORED_THEME);
  } catch {
    // Storage is forbidden.
  }
  return saved || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

function keepTheme(name) {
  try {
    localStorage.setItem(STORED_THEME, name);
  } catch {
    // Then it is forgotten.
  }
}

// By the definition of OKLab: from there to cone responses, to linear sRGB, and through its transfer curve.
function srgb(lightness, chroma, hue) {
  const [a, b] = [chroma * Math.cos((hue * Math.PI) / 180), chroma * Math.sin((hue * Math.PI) / 180)];
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * medium + 1.707614701 * short,
  ];
  const channels = linear.map((value) => {
    const curved = value <= 0.0031308 ? 12.92 * value : 1.055 * value ** (1 / 2.4) - 0.055;
    return Math.round(255 * Math.min(1, Math.max(0, curved)));
  });
  return `rgb(${channels.join(", ")})`;
}

// The colours of a theme by name. It becomes that of the document.
class Theme {
  constructor(name) {
    document.documentElement.dataset.theme = name;
    const style = getComputedStyle(document.documentElement);
    const value = (property) => style.getPropertyValue("--" + property).trim();
    this.name = name;
    this.value = value;
    this.light = Number(value("light"));
    this.known = new Map();
    this.hatch = [value("hatch-ground"), value("hatch-line")];
    this.hatched = hatched(this.hatch);
    this.match = value("match");
    this.rest = value("rest");
    this.text = value("text");
    this.frameText = value("frame-text");
    this.bar = value("bar");
    this.pale = value("edge");
  }

  // Of a frame, by its kind; with `css` as a background of an element, else as a canvas takes it.
  colour({ kind, shade }, css = false) {
    if (kind === "incomplete" || kind === "nothing") {
      return css ? `repeating-linear-gradient(45deg, ${this.hatch[0]} 0 4px, ${this.hatch[1]} 4px 6px)` : this.hatched;
    }
    return this.remembered(kind + shade, () => {
      const [chroma, hue] = this.value(kind in KINDS ? kind : "root").split(" ").map(Number);
      return srgb(this.light + shade * 0.022, chroma, hue);
    });
  }

  // Of a step of change, from -CHANGES.length to CHANGES.length: 0 is grey, the last ones are the strongest.
  change(step) {
    return this.remembered("change " + step, () => {
      const end = this.value(step < 0 ? "shrank" : "grew").split(" ").map(Number);
      const [from, strength] = [this.value("same").split(" ").map(Number), Math.abs(step) / CHANGES.length];
      const [lightness, chroma] = [0, 1].map((at) => from[at] + (end[at] - from[at]) * strength);
      return srgb(lightness, chroma, end[2]);
    });
  }

  remembered(key, make) {
    if (!this.known.has(key)) this.known.set(key, make());
    return this.known.get(key);
  }
}

function hatched([ground, line]) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const context = tile.getContext("2d");
  context.fillStyle = ground;
  context.fillRect(0, 0, 8, 8);
  context.strokeStyle = line;
  context.lineWidth = 2;
  for (const shift of [-8, 0, 8]) {
    context.beginPath();
    context.moveTo(shift, 8);
    context.lineTo(shift + 8, 0);
    context.stroke();
  }
  return context.createPattern(tile, "repeat");
}

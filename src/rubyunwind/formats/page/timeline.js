// SPDX-License-Identifier: Apache-2.0
// When the samples were taken, as bars; dragging over them chooses a part of the time.
"use strict";

class TimelineBars {
  // choose(from, to) is called with slices, `to` not in it.
  constructor(profile, choose) {
    this.profile = profile;
    this.canvas = element("bars");
    this.range = [0, profile.time.slices];
    const { width, slices } = profile.time;
    this.digits = Math.min(3, Math.max(0, Math.ceil(-Math.log10(width))));
    let begun = null;
    const slice = (event) => {
      const box = this.canvas.getBoundingClientRect();
      return Math.max(0, Math.min(slices, ((event.clientX - box.left) / box.width) * slices));
    };
    const between = (event) => {
      const [low, high] = [begun, slice(event)].sort((a, b) => a - b);
      return [Math.floor(low), Math.max(Math.floor(low) + 1, Math.ceil(high))];
    };
    this.canvas.addEventListener("pointerdown", (event) => {
      begun = slice(event);
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (begun === null) return;
      this.range = between(event);
      this.draw();
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (begun === null) return;
      const [from, to] = between(event);
      begun = null;
      choose(from, Math.min(to, slices));
    });
    this.canvas.addEventListener("dblclick", () => choose(0, slices));
    const typed = () => {
      const from = Math.floor(Number(element("from").value) / width + 1e-6);
      const to = Math.ceil(Number(element("to").value) / width - 1e-6);
      if (from >= 0 && to > from) choose(Math.min(from, slices - 1), Math.min(to, slices));
      else this.fields();
    };
    element("from").addEventListener("change", typed);
    element("to").addEventListener("change", typed);
    element("whole").addEventListener("click", () => choose(0, slices));
  }

  // `wanted` says of each track whether it counts; a part of the time is no reason to hide the rest here.
  show(wanted, range, colours) {
    const { weights, time } = this.profile;
    this.range = range;
    this.colours = colours;
    this.sums = new Float64Array(time.slices);
    for (let index = 0; index < weights.slice.length; index++) {
      if (wanted[weights.track[index]]) this.sums[weights.slice[index]] += weights.weight[index];
    }
    this.fields();
    this.draw();
  }

  fields() {
    const { width, slices } = this.profile.time;
    const [from, to] = this.range;
    element("from").value = (from * width).toFixed(this.digits);
    element("to").value = (to * width).toFixed(this.digits);
    element("whole").disabled = from === 0 && to === slices;
  }

  draw() {
    const { canvas, sums } = this;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width || !sums) return;
    canvas.width = width * devicePixelRatio;
    canvas.height = height * devicePixelRatio;
    const context = canvas.getContext("2d");
    context.scale(devicePixelRatio, devicePixelRatio);
    let most = 0;
    for (const sum of sums) most = Math.max(most, sum);
    const step = width / sums.length;
    for (let at = 0; at < sums.length; at++) {
      if (sums[at] === 0) continue;
      const tall = Math.max(1, (sums[at] / most) * (height - 2));
      const inside = at >= this.range[0] && at < this.range[1];
      context.fillStyle = inside ? this.colours.bar : this.colours.pale;
      context.fillRect(at * step, height - tall, Math.max(1, step - (step > 4 ? 1 : 0)), tall);
    }
    if (this.range[0] > 0 || this.range[1] < sums.length) {
      context.strokeStyle = this.colours.text;
      context.strokeRect(this.range[0] * step + 0.5, 0.5, Math.max(1, (this.range[1] - this.range[0]) * step - 1), height - 1);
    }
  }
}

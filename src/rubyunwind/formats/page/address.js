// SPDX-License-Identifier: Apache-2.0
// What the reader asked for. All of it is in the address, so that it can be reloaded and gone back to.
"use strict";

const NATIVE = ["off", "inside", "all"];
// A longer path to a zoomed frame stays out of the address, and only back and forward know it.
const LONGEST_ADDRESS = 4000;

class Choices {
  // `changed(replaced)` is called after each change of `state`.
  constructor(profile, changed) {
    this.profile = profile;
    this.changed = changed;
    this.defaults = {
      unit: profile.units[0], native: "inside", lines: "", hide: "", thread: "", from: "0", to: String(profile.time.slices),
      q: "", zoom: "", side: "after", of: "self",
    };
    this.state = { ...this.defaults };
    this.step = 0;  // of the history
    this.steps = 0;
    addEventListener("popstate", (event) => this.restore(event.state));
  }

  set(change, replace = false) {
    const state = { ...this.state, ...change };
    if (Object.keys(state).every((key) => state[key] === this.state[key])) return;
    this.state = state;
    if (!replace) this.steps = ++this.step;
    this.remember(replace);
    this.changed();
  }

  remember(replace) {
    const { step, state } = this;
    const entry = [{ rubyunwind: step, state }, "", this.address(state)];
    try {
      if (replace) history.replaceState(...entry);
      else history.pushState(...entry);
    } catch {
      // A page inside another may not touch the history.
    }
  }

  address(state) {
    const parameters = new URLSearchParams();
    for (const [key, value] of Object.entries(state)) {
      const text = value.toWellFormed ? value.toWellFormed() : value;
      if (value !== this.defaults[key] && text.length < LONGEST_ADDRESS) parameters.set(key, text);
    }
    const hash = String(parameters);
    return hash ? "#" + hash : location.pathname + location.search;
  }

  // From the history, or else from the address, which the reader may have changed.
  restore(entry, begins = false) {
    const { defaults } = this;
    let state = { ...defaults };
    if (entry && entry.state && typeof entry.rubyunwind === "number") {
      state = { ...defaults, ...entry.state };
      this.step = entry.rubyunwind;
      this.steps = Math.max(this.steps, this.step);
    } else {
      for (const [key, value] of new URLSearchParams(location.hash.slice(1))) if (key in defaults) state[key] = value;
      if (!begins) this.steps = ++this.step;
    }
    const known = { unit: this.profile.units, native: NATIVE, side: SIDES, of: ["self", "total"] };
    for (const [key, values] of Object.entries(known)) if (!values.includes(state[key])) state[key] = defaults[key];
    this.state = state;
    element("search").value = state.q;
    this.remember(true);
    this.changed();
  }

  // Slices of time, the end not among them.
  range() {
    const { slices } = this.profile.time;
    const from = Math.min(Math.max(0, Number(this.state.from) || 0), slices - 1);
    const to = Math.min(Math.max(from + 1, Number(this.state.to) || slices), slices);
    return [Math.floor(from), Math.ceil(to)];
  }

  // Whether a track is of the thread or the process that was chosen.
  track() {
    const [pid, tid] = this.state.thread.split("/");
    return (track) => !pid || (String(track.pid) === pid && (tid === undefined || String(track.tid) === tid));
  }

  hidden() {
    return new Set(this.state.hide.split(",").filter(Boolean));
  }

  toggle(kind) {
    if (kind === "native") return this.set({ native: this.state.native === "off" ? "inside" : "off" });
    const hidden = this.hidden();
    if (!hidden.delete(kind)) hidden.add(kind);
    return this.set({ hide: [...hidden].sort().join(",") });
  }
}

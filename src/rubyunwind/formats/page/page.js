// SPDX-License-Identifier: Apache-2.0
// What the reader asked for, and the parts of the page that show it. All of it is in the address, so that it can
// be reloaded and gone back to.
"use strict";

const DEFAULTS = { unit: "", native: "inside", lines: "", hide: "", thread: "", from: "", to: "", q: "", zoom: "" };
const NATIVE = ["off", "inside", "all"];
// A longer path to a zoomed frame stays out of the address, and only back and forward know it.
const LONGEST_ADDRESS = 4000;
const HINT = "Point at a frame for its details; click to zoom in, click a pale frame to zoom out. Press ? for help.";

class Page {
  constructor(data) {
    this.data = data;
    this.state = { ...DEFAULTS };
    this.step = 0;  // of the history
    this.steps = 0;
    this.pinned = -1;
    this.theme = {};
  }

  head() {
    const { data } = this;
    const title = visible(data.title) || "Flame graph";
    element("title").textContent = title;
    document.title = title + " - rubyunwind";
    element("details").textContent = data.details.filter((text) => text !== data.title).map(visible).join(" · ");
    const { read, lost, truncated, failed } = data.totals;
    const line = element("totals");
    const count = (name, value, bad) => {
      addText(line, "span", name + " ");
      addText(line, "b", number(value), bad ? "bad" : "");
      addText(line, "span", " · ");
    };
    count("read", read, false);
    count("lost", lost, lost > 0);
    count("truncated", truncated, false);
    addText(line, "span", failed.length ? "incomplete or not sent: " : "incomplete or not sent: none");
    failed.forEach(([reason, times], index) => {
      addText(line, "span", (index ? ", " : "") + visible(reason) + " ");
      addText(line, "b", number(times));
    });
  }

  // Everything that needs the profile.
  start(profile) {
    this.profile = profile;
    DEFAULTS.unit = profile.units[0];
    DEFAULTS.from = "0";
    DEFAULTS.to = String(profile.time.slices);
    for (const id of ["tools", "main", "footer"]) element(id).hidden = false;
    this.graph = new Graph({
      point: (node, event) => this.point(node, event),
      choose: (node, zoom) => this.choose(node, zoom),
    });
    this.table = new MethodTable((frame) => this.set({ q: "/^" + frame.name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&") + "$/" }));
    this.bars = new TimelineBars(profile, (from, to) => this.set({ from: String(from), to: String(to) }));
    this.controls();
    this.keys();
    this.colours(this.savedTheme());
    this.restore(history.state, true);
  }

  // ---- state ---------------------------------------------------------------------------------

  set(change, replace = false) {
    const state = { ...this.state, ...change };
    if (Object.keys(state).every((key) => state[key] === this.state[key])) return;
    this.state = state;
    if (!replace) this.steps = ++this.step;
    this.remember(replace);
    this.show();
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
      if (value !== DEFAULTS[key] && text.length < LONGEST_ADDRESS) parameters.set(key, text);
    }
    const hash = String(parameters);
    return hash ? "#" + hash : location.pathname + location.search;
  }

  // From the history, or else from the address, which the reader may have changed.
  restore(entry, begins = false) {
    let state = { ...DEFAULTS };
    if (entry && entry.state && typeof entry.rubyunwind === "number") {
      state = { ...DEFAULTS, ...entry.state };
      this.step = entry.rubyunwind;
      this.steps = Math.max(this.steps, this.step);
    } else {
      for (const [key, value] of new URLSearchParams(location.hash.slice(1))) if (key in DEFAULTS) state[key] = value;
      if (!begins) this.steps = ++this.step;
    }
    if (!this.profile.units.includes(state.unit)) state.unit = DEFAULTS.unit;
    if (!NATIVE.includes(state.native)) state.native = DEFAULTS.native;
    this.state = state;
    element("search").value = state.q;
    this.remember(true);
    this.show();
  }

  // ---- what is shown -------------------------------------------------------------------------

  range() {
    const { slices } = this.profile.time;
    const from = Math.min(Math.max(0, Number(this.state.from) || 0), slices - 1);
    const to = Math.min(Math.max(from + 1, Number(this.state.to) || slices), slices);
    return [Math.floor(from), Math.ceil(to)];
  }

  wanted() {
    const [pid, tid] = this.state.thread.split("/");
    return (track) => !pid || (String(track.pid) === pid && (tid === undefined || String(track.tid) === tid));
  }

  show() {
    const { state, profile } = this;
    const [from, to] = this.range();
    const hidden = new Set(state.hide.split(",").filter(Boolean));
    const built = [state.unit, state.native, state.lines, state.hide, state.thread, from, to].join("\n");
    if (built !== this.built) {
      this.view = new View(profile, {
        unit: state.unit, track: this.wanted(), from, to, native: state.native, lines: state.lines === "1", hidden,
      });
      this.built = built;
      this.legend(hidden);
      this.threads();
      const track = this.wanted();
      this.bars.show(profile.tracks.map((each) => each.unit === state.unit && track(each)), [from, to], this.theme);
    }
    const { view } = this;
    const zoomed = view.find(state.zoom.split(".").filter(Boolean).map(Number));
    if (zoomed !== this.zoomed) this.pinned = zoomed > 0 ? zoomed : -1;
    this.zoomed = zoomed;
    this.graph.selected = this.pinned < view.count ? this.pinned : -1;
    const matches = this.search(zoomed);
    this.graph.show(view, zoomed, matches, this.theme);
    this.table.show(view, zoomed, matches, (frame) => this.theme.colour(frame, true));
    this.notes();
    this.fields();
    this.describe(this.pinned);
  }

  notes() {
    const { view, state } = this;
    const whole = view.total[0] + view.leftOut;
    const told = [];
    if (view.incomplete > 0) {
      const share = `${percent(view.incomplete, whole)} (${amount(view.incomplete, state.unit)}) is in stacks that did not reach their root`;
      told.push(share + (view.leftOut ? "; they are left out." : "; they stand apart, on the hatched frames."));
    }
    if (whole < view.unitTotal) told.push(`Chosen: ${amount(whole, state.unit)} of ${amount(view.unitTotal, state.unit)}.`);
    element("warning").textContent = told.join(" ");
    element("warning").hidden = told.length === 0;
  }

  fields() {
    const { state } = this;
    element("back").disabled = this.step === 0;
    element("forward").disabled = this.step >= this.steps;
    element("reset").disabled = this.zoomed === 0;
    element("unit").value = state.unit;
    element("thread").value = state.thread;
    element("lines").checked = state.lines === "1";
    for (const radio of document.getElementsByName("native")) radio.checked = radio.value === state.native;
  }

  matcher(query) {
    const expression = /^\/(.+)\/$/s.exec(query);
    if (expression) {
      const pattern = new RegExp(expression[1], "iu");
      return (frame) => pattern.test(frame.name);
    }
    if (query.startsWith("path:")) {
      const part = query.slice(5).toLowerCase();
      return (frame) => (frame.path || frame.module || "").toLowerCase().includes(part);
    }
    const wanted = query.toLowerCase();
    return (frame) => frame.name.toLowerCase().includes(wanted) || frame.raw.toLowerCase().includes(wanted);
  }

  // By frame whether it matches, null without a search. A match inside a match has been counted with it.
  search(zoomed) {
    const { view, profile } = this;
    const query = this.state.q;
    const told = element("matches");
    told.textContent = "";
    if (!query) return null;
    let matches;
    try {
      matches = this.matcher(query);
    } catch (error) {
      told.textContent = "not a regular expression: " + visible(error.message);
      return null;
    }
    const found = Uint8Array.from(profile.frames, (frame) => (frame.kind !== "root" && matches(frame) ? 1 : 0));
    let weight = 0;
    const names = new Set();
    let inside = 0;
    view.walk(
      zoomed,
      (node) => {
        if (!found[view.frameIds[node]]) return;
        names.add(view.frameIds[node]);
        if (inside++ === 0) weight += view.total[node];
      },
      (node) => { inside -= found[view.frameIds[node]]; },
    );
    told.textContent = names.size
      ? `${percent(weight, view.total[zoomed])} matched (${amount(weight, this.state.unit)}, ${plural(names.size, "name")})`
      : "no frame matches";
    return found;
  }

  legend(hidden) {
    const list = element("legend");
    const focused = document.activeElement && document.activeElement.dataset.kind;
    list.replaceChildren();
    const present = new Set(this.profile.frames.map((frame) => frame.kind));
    const { view } = this;
    const whole = view.total[0] + view.leftOut;
    for (const [kind, label] of Object.entries(KINDS)) {
      if (!present.has(kind)) continue;
      const on = kind === "native" ? this.state.native !== "off" : !hidden.has(kind);
      const weight = kind === "incomplete" ? view.incomplete : view.kindWeights[kind] || 0;
      const button = addText(list, "button", "");
      button.type = "button";
      button.dataset.kind = kind;
      button.setAttribute("aria-pressed", String(on));
      button.title = (kind === "incomplete" ? "Stacks that did not reach their root" : "Share on top of the stack") +
        (on ? ". Press to hide." : ". Press to show.");
      addText(button, "span", "", "swatch").style.background = this.theme.colour({ kind, shade: 1 }, true);
      addText(button, "span", on || kind === "incomplete" ? `${label} ${percent(weight, whole)}` : label);
      button.addEventListener("click", () => this.toggle(kind));
      if (kind === focused) button.focus();
    }
  }

  toggle(kind) {
    if (kind === "native") return this.set({ native: this.state.native === "off" ? "inside" : "off" });
    const hidden = new Set(this.state.hide.split(",").filter(Boolean));
    if (!hidden.delete(kind)) hidden.add(kind);
    return this.set({ hide: [...hidden].sort().join(",") });
  }

  threads() {
    const { profile, state } = this;
    const sums = new Float64Array(profile.tracks.length);
    profile.weights.track.forEach((track, index) => { sums[track] += profile.weights.weight[index]; });
    const processes = new Map();
    let whole = 0;
    profile.tracks.forEach((track, index) => {
      if (track.unit !== state.unit) return;
      whole += sums[index];
      const process = processes.get(track.pid) || { weight: 0, threads: [], comm: track.comm };
      processes.set(track.pid, process);
      process.weight += sums[index];
      if (track.tid === track.pid) process.comm = track.comm;
      process.threads.push({ track, weight: sums[index] });
    });
    const select = element("thread");
    select.replaceChildren(new Option("all", ""));
    const heaviest = (a, b) => b.weight - a.weight;
    for (const [pid, process] of [...processes].sort((a, b) => heaviest(a[1], b[1]))) {
      const group = document.createElement("optgroup");
      group.label = `${process.comm} (${pid})`;
      if (processes.size > 1) group.append(new Option(`process ${pid}, all threads: ${percent(process.weight, whole)}`, String(pid)));
      for (const { track, weight } of process.threads.sort(heaviest)) {
        group.append(new Option(`${track.comm} (${track.tid}): ${percent(weight, whole)}`, `${pid}/${track.tid}`));
      }
      select.append(group);
    }
    if (state.thread && select.querySelector(`option[value="${CSS.escape(state.thread)}"]`) === null) {
      select.append(new Option(visible(state.thread) + ": none", state.thread));
    }
    element("threads").hidden = select.options.length < 3;
  }

  // ---- frames --------------------------------------------------------------------------------

  shares(node) {
    const { view } = this;
    const { unit } = this.state;
    const [value, self] = [view.total[node], view.self[node]];
    let text = `${amount(value, unit)}, ${percent(value, view.total[0])} of all`;
    if (this.zoomed > 0 && value <= view.total[this.zoomed]) text += `, ${percent(value, view.total[this.zoomed])} of the zoomed`;
    return self > 0 && self < value ? `${text}; itself ${amount(self, unit)}, ${percent(self, view.total[0])}` : text;
  }

  point(node, event) {
    const tip = element("tip");
    if (node < 0 || !event) {
      tip.hidden = true;
      this.describe(this.pinned);
      return;
    }
    const { view } = this;
    const frame = view.frame(node);
    tip.replaceChildren();
    addText(tip, "div", frame.name, "name");
    const where = view.place(node);
    if (where) addText(tip, "div", where, "place");
    const lines = view.lines(node);
    if (lines.length > 1) {
      const shown = lines.slice(0, 5).map(([line, weight]) => `${line} (${percent(weight, view.total[node])})`);
      addText(tip, "div", `lines ${shown.join(", ")}${lines.length > 5 ? ", ..." : ""}`, "kind");
    }
    addText(tip, "div", KINDS[frame.kind] || frame.kind, "kind");
    addText(tip, "div", this.shares(node));
    tip.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = tip;
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY + 14 + height > innerHeight ? event.clientY - 14 - height : event.clientY + 14;
    tip.style.left = Math.max(4, left) + "px";
    tip.style.top = Math.max(4, top) + "px";
  }

  choose(node, zoom) {
    element("tip").hidden = true;
    this.pinned = node;
    if (zoom && node !== this.zoomed) {
      this.set({ zoom: this.view.path(node).join(".") });
      this.pinned = this.zoomed > 0 ? this.zoomed : -1;
    }
    this.graph.select(this.pinned);
    this.describe(this.pinned);
  }

  // The line at the bottom: the frame that was chosen, whose place can be copied.
  describe(node) {
    const known = node >= 0 && node < this.view.count;
    element("status").textContent = known ? `${this.view.frame(node).name} — ${this.shares(node)}` : HINT;
    const where = known ? this.view.place(node) : "";
    if (element("where").textContent !== where) element("copy").textContent = "Copy";
    element("where").textContent = where;
    element("copy").hidden = !where;
  }

  async copy() {
    const where = element("where").textContent;
    if (where) element("copy").textContent = (await copyText(where)) ? "Copied" : "Could not copy";
  }

  // ---- looks ---------------------------------------------------------------------------------

  savedTheme() {
    let saved = null;
    try {
      saved = localStorage.getItem("rubyunwind-theme");
    } catch {
      // Storage is forbidden.
    }
    return saved || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  }

  colours(name) {
    document.documentElement.dataset.theme = name;
    element("theme").textContent = name === "dark" ? "Light" : "Dark";
    const style = getComputedStyle(document.documentElement);
    const value = (property) => style.getPropertyValue("--" + property).trim();
    const light = Number(value("light"));
    const known = new Map();
    const hatch = [value("hatch-ground"), value("hatch-line")];
    const colour = ({ kind, shade }, css = false) => {
      if (kind === "incomplete" || kind === "nothing") {
        return css ? `repeating-linear-gradient(45deg, ${hatch[0]} 0 4px, ${hatch[1]} 4px 6px)` : this.theme.hatched;
      }
      const key = kind + shade;
      if (!known.has(key)) {
        known.set(key, `oklch(${light + shade * 0.022} ${value(kind in KINDS ? kind : "root")})`);
      }
      return known.get(key);
    };
    this.theme = {
      name, colour, hatched: this.hatched(hatch), match: value("match"), rest: value("rest"), text: value("text"),
      frameText: value("frame-text"), bar: value("bar"), pale: value("edge"),
    };
  }

  hatched([ground, line]) {
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

  look(name, keep) {
    this.colours(name);
    if (keep) {
      try {
        localStorage.setItem("rubyunwind-theme", name);
      } catch {
        // Then it is forgotten.
      }
    }
    this.built = undefined;
    this.show();
  }

  flip() {
    this.graph.flipped = !this.graph.flipped;
    element("flip").textContent = this.graph.flipped ? "Root at the top" : "Root at the bottom";
    this.graph.draw();
    this.graph.scroller.scrollTop = this.graph.flipped ? this.graph.rows.length * ROW : 0;
  }

  print(begins) {
    this.graph.printing = begins;
    if (begins) this.before = this.theme.name;
    this.look(begins ? "light" : this.before, false);
  }

  // ---- controls ------------------------------------------------------------------------------

  controls() {
    const on = (id, type, act) => element(id).addEventListener(type, act);
    let typing = 0;
    const search = (replace) => {
      clearTimeout(typing);
      this.set({ q: element("search").value }, replace);
    };
    on("search", "input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => search(true), 150);
    });
    on("search", "keydown", (event) => {
      if (event.key === "Enter") search(false);
    });
    on("back", "click", () => history.back());
    on("forward", "click", () => history.forward());
    on("reset", "click", () => this.set({ zoom: "" }));
    on("unit", "change", () => this.set({ unit: element("unit").value }));
    on("thread", "change", () => this.set({ thread: element("thread").value }));
    on("natives", "change", (event) => this.set({ native: event.target.value }));
    on("lines", "change", () => this.set({ lines: element("lines").checked ? "1" : "" }));
    on("flip", "click", () => this.flip());
    on("theme", "click", () => this.look(this.theme.name === "dark" ? "light" : "dark", true));
    on("ask", "click", () => element("help").showModal());
    on("copy", "click", () => this.copy());
    for (const unit of this.profile.units) element("unit").append(new Option(UNIT_NAMES[unit] || visible(unit), unit));
    element("units").hidden = this.profile.units.length < 2;
    element("time").hidden = this.profile.time.slices < 2;
    addEventListener("popstate", (event) => this.restore(event.state));
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.look(this.savedTheme(), false));
    let last = 0;
    new ResizeObserver(() => {
      cancelAnimationFrame(last);
      last = requestAnimationFrame(() => {
        this.graph.layout();
        this.graph.draw();
        this.bars.draw();
      });
    }).observe(element("graph"));
  }

  keys() {
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || element("help").open) return;
      if (event.key === "Escape") {
        if (element("search").value || this.state.q) {
          element("search").value = "";
          this.set({ q: "" });
        } else if (this.zoomed > 0) this.set({ zoom: "" });
        else return;
        event.preventDefault();
        return;
      }
      if (event.target.closest("input:not([type=radio]):not([type=checkbox]), select, textarea")) return;
      const act = {
        "/": () => element("search").select(),
        "?": () => element("help").showModal(),
        "0": () => this.set({ zoom: "" }),
        n: () => this.set({ native: NATIVE[(NATIVE.indexOf(this.state.native) + 1) % NATIVE.length] }),
        c: () => this.copy(),
        f: () => this.flip(),
        t: () => element("theme").click(),
      }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }
}

async function main() {
  const page = new Page(JSON.parse(element("profile").textContent));
  page.head();
  page.colours(page.savedTheme());
  if (page.data.tracks.length === 0) {
    element("empty").hidden = false;
  } else if (typeof DecompressionStream === "undefined") {
    element("trouble").textContent =
      "This browser cannot unpack the profile (it has no DecompressionStream). Chrome 80, Firefox 113, Safari 16.4 and later can.";
    element("trouble").hidden = false;
  } else {
    page.start(await readProfile(page.data));
    window.flamegraph = page;
  }
  // When the first picture was there, in ms, for those who measure.
  requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.ready = String(Math.round(performance.now())); }));
}

main().catch((error) => {
  element("trouble").textContent = "The profile in this page cannot be shown: " + visible(String(error));
  element("trouble").hidden = false;
  document.documentElement.dataset.ready = "failed";
});

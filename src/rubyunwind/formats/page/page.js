// SPDX-License-Identifier: Apache-2.0
// The page: what is shown follows from the profile and from what the reader has chosen.
"use strict";

class Page {
  constructor(profile) {
    this.profile = profile;
    this.pinned = -1;
    for (const id of ["tools", "main", "footer"]) element(id).hidden = false;
    this.theme = new Theme(preferredTheme());
    this.choices = new Choices(profile, () => this.show());
    this.details = new FrameDetails();
    this.graph = new Graph({
      point: (node, event) => {
        this.details.point(node, event);
        if (node < 0 || !event) this.details.describe(this.pinned);
      },
      choose: (node, zoom) => this.choose(node, zoom),
    });
    const choose = (frame) => this.set({ q: "/^" + frame.name.replace(/[\\^$.*+?()[\]{}|/]/g, "\\$&") + "$/" });
    this.table = profile.sides > 1
      ? new MethodTable(CHANGE_COLUMNS, "change", changedMethods, choose) : new MethodTable(WEIGHT_COLUMNS, "self", hottest, choose);
    this.bars = new TimelineBars(profile, (from, to) => this.set({ from: String(from), to: String(to) }));
    connectControls(this);
    connectKeys(this);
    this.look(this.theme.name, false);
    this.choices.restore(history.state, true);
  }

  set(change) {
    this.choices.set(change);
  }

  show() {
    const { profile, choices } = this;
    const { state } = choices;
    const [from, to] = choices.range();
    const built = [state.unit, state.native, state.lines, state.hide, state.thread, from, to, state.side].join("\n");
    if (built !== this.built) {
      const track = choices.track();
      this.view = new View(profile, {
        unit: state.unit, track, from, to, native: state.native, lines: state.lines === "1", hidden: choices.hidden(),
        side: profile.sides > 1 ? SIDES.indexOf(state.side) : 0,
      });
      this.built = built;
      kindButtons(element("legend"), this.view, this.theme, (kind) => choices.toggle(kind));
      threadOptions(element("thread"), profile, state);
      this.bars.show(profile.tracks.map((each) => each.unit === state.unit && track(each)), [from, to], this.theme);
    }
    const { view } = this;
    const zoomed = view.find(state.zoom.split(".").filter(Boolean).map(Number));
    if (zoomed !== this.zoomed) this.pinned = zoomed > 0 ? zoomed : -1;
    this.zoomed = zoomed;
    this.details.show(view, zoomed);
    this.graph.selected = this.pinned < view.count ? this.pinned : -1;
    const matches = search(view, zoomed, state.q, element("matches"));
    this.graph.show(view, zoomed, matches, this.theme);
    this.table.show(view, zoomed, matches, state.of, this.theme);
    const told = notes(view);
    element("warning").textContent = told;
    element("warning").hidden = !told;
    showState(this);
    this.details.describe(this.pinned);
  }

  choose(node, zoom) {
    this.details.point(-1, null);
    this.pinned = node;
    if (zoom && node !== this.zoomed) {
      this.set({ zoom: this.view.path(node).join(".") });
      this.pinned = this.zoomed > 0 ? this.zoomed : -1;
    }
    this.graph.select(this.pinned);
    this.details.describe(this.pinned);
  }

  look(name, keep) {
    this.theme = new Theme(name);
    element("theme").textContent = name === "dark" ? "Light" : "Dark";
    if (keep) keepTheme(name);
    if (!this.view) return;
    this.built = undefined;
    this.show();
  }

  flip() {
    this.graph.flipped = !this.graph.flipped;
    element("flip").textContent = this.graph.flipped ? "Root at the top" : "Root at the bottom";
    this.graph.draw();
    this.graph.scroller.scrollTop = this.graph.flipped ? this.graph.rows.length * ROW : 0;
  }

  resize() {
    this.graph.layout();
    this.graph.draw();
    this.bars.draw();
  }

  print(begins) {
    this.graph.printing = begins;
    if (begins) this.before = this.theme.name;
    this.look(begins ? "light" : this.before, false);
  }
}

async function main() {
  const data = JSON.parse(element("profile").textContent);
  showHeading(data);
  document.documentElement.dataset.theme = preferredTheme();
  if (data.tracks.length === 0) {
    element("empty").hidden = false;
  } else if (typeof DecompressionStream === "undefined") {
    element("trouble").textContent =
      "This browser cannot unpack the profile (it has no DecompressionStream). Chrome 86, Firefox 113, Safari 16.4 and later can.";
    element("trouble").hidden = false;
  } else {
    window.flamegraph = new Page(await readProfile(data));
  }
  // When the first picture was there, in ms, for those who measure.
  requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.ready = String(Math.round(performance.now())); }));
}

main().catch((error) => {
  element("trouble").textContent = "The profile in this page cannot be shown: " + visible(String(error));
  element("trouble").hidden = false;
  document.documentElement.dataset.ready = "failed";
});

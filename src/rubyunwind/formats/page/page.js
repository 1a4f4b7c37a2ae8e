// SPDX-License-Identifier: Apache-2.0
// Draws the profile in #profile with d3-flame-graph. Names come from the profiled program and may be anything:
// they reach the document through textContent (and as text of the library's labels), never as markup.
(() => {
  "use strict";

  const KINDS = {
    ruby: "Ruby", cfunc: "C function", native: "native", kernel: "kernel", gc: "garbage collection",
    jit: "JIT-compiled", unknown: "unknown", error: "error", incomplete: "stack did not reach its root",
  };
  // #q=foo in the address searches for foo, #view=ns shows the graph of that unit.
  const address = () => new URLSearchParams(location.hash.slice(1));
  function setAddress(name, value) {
    const parameters = address();
    if (value) parameters.set(name, value);
    else parameters.delete(name);
    const hash = String(parameters) && "#" + parameters;
    if (location.hash !== hash) history.replaceState(null, "", hash || location.pathname + location.search);
  }
  const whole = JSON.parse(document.getElementById("profile").textContent);
  const views = [whole, ...(whole.others || [])];
  const profile = { ...whole, ...(views.find((view) => view.unit === address().get("view")) || whole) };
  const VIEWS = { samples: "On the CPU", ns: "Off the CPU" };
  const element = (id) => document.getElementById(id);
  const number = (value) => value.toLocaleString("en-US");

  // Controls, bytes that were no UTF-8 and characters that turn the direction of text, made visible.
  const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]/gu;
  function visible(text) {
    return text.replace(HIDDEN, (character) => {
      const code = character.codePointAt(0);
      if (code === 10) return "\\n";
      if (code < 0x80) return "\\x" + code.toString(16).padStart(2, "0");
      if (code >= 0xdc80 && code <= 0xdcff) return "\\x" + (code & 0xff).toString(16);
      return "\\u" + code.toString(16).padStart(4, "0");
    });
  }

  function amount(weight) {
    if (profile.unit === "ns") {
      if (weight >= 1e9) return (weight / 1e9).toFixed(2) + " s";
      if (weight >= 1e6) return (weight / 1e6).toFixed(2) + " ms";
      return (weight / 1e3).toFixed(1) + " µs";
    }
    if (profile.unit === "samples") return number(weight) + (weight === 1 ? " sample" : " samples");
    return visible((number(weight) + " " + profile.unit).trim());
  }
  const share = (weight) => ((100 * weight) / total).toFixed(weight === total ? 0 : 2) + "%";

  // The tree: columns to objects. A parent comes before its children. Nothing here recurses: stacks may be deep.
  const { parent: parents, frame: frameIds, weight: weights, line: lines } = profile.nodes;
  const string = (index) => (index < 0 ? null : profile.strings[index]);
  const frames = profile.frames.map(([kind, name, path, module]) => {
    const shown = visible(string(name)) || "(no name)";
    return { kind: string(kind), name: shown, raw: string(name), path: string(path), module: string(module), shade: shadeOf(shown) };
  });
  const nodes = weights.map((weight, index) => ({
    frame: frames[frameIds[index]], frameId: frameIds[index], value: weight, self: weight, line: lines[index], children: [],
  }));
  for (let index = 1; index < nodes.length; index++) {
    const parent = nodes[parents[index]];
    parent.children.push(nodes[index]);
    parent.self -= nodes[index].value;
  }
  const total = nodes[0].value;

  function shadeOf(name) {
    let hash = 7;
    for (let index = 0; index < Math.min(name.length, 40); index++) hash = (hash * 31 + name.charCodeAt(index)) % 8191;
    return hash % 4;
  }
  function colour(kind, shade) {
    if (kind === "incomplete") return "url(#hatch)";
    const own = kind in KINDS ? kind : "root";
    return `oklch(calc(var(--light) + ${shade * 0.022}) var(--${own}))`;
  }

  function place(node) {
    const { path, module } = node.frame;
    if (path !== null) return visible(path) + (node.line ? ":" + node.line : "");
    return module === null ? "" : visible(module);
  }
  function shares(node) {
    const whole = `${amount(node.value)}, ${share(node.value)} of all`;
    return node.self > 0 && node.self < node.value ? `${whole}; itself ${amount(node.self)}, ${share(node.self)}` : whole;
  }

  function addText(parent, tag, text, className) {
    const child = document.createElement(tag);
    child.textContent = text;
    if (className) child.className = className;
    parent.append(child);
    return child;
  }

  function fillHead() {
    const title = visible(profile.title) || "Flame graph";
    element("title").textContent = title;
    document.title = title + " - rubyunwind";
    element("details").textContent = profile.details.map(visible).join(" · ");
    const totals = profile.totals;
    const line = element("totals");
    addText(line, "span", `read ${number(totals.read)} · `);
    addText(line, "span", `lost ${number(totals.lost)}`, totals.lost ? "bad" : "");
    addText(line, "span", ` · truncated ${number(totals.truncated)} · `);
    const failed = totals.failed.map(([reason, count]) => `${visible(reason)} ${number(count)}`);
    addText(line, "span", "failed: " + (failed.length ? failed.join(", ") : "none"));
    const cut = nodes.reduce((sum, node) => (node.frame.kind === "incomplete" ? sum + node.value : sum), 0);
    if (cut > 0) {
      element("warning").textContent =
        `${share(cut)} of the profile (${amount(cut)}) is in stacks that did not reach their root; they stand apart, on the hatched frames.`;
      element("warning").hidden = false;
    }
  }

  function fillLegend() {
    const own = {};
    addText(element("legend"), "li", "On top of the stack:");
    for (const node of nodes) own[node.frame.kind] = (own[node.frame.kind] || 0) + node.self;
    for (const [kind, label] of Object.entries(KINDS)) {
      if (!(kind in own)) continue;
      const item = document.createElement("li");
      const swatch = document.createElementNS("http://www.w3.org/2000/svg", "svg");
      const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
      box.setAttribute("width", "14");
      box.setAttribute("height", "14");
      box.setAttribute("fill", colour(kind, 1));
      swatch.append(box);
      item.append(swatch);
      addText(item, "span", kind === "incomplete" ? label : `${label} ${share(own[kind])}`);
      element("legend").append(item);
    }
    element("legend").title = "Shares are of the weight that frames of a kind have themselves, without what they call.";
  }

  // Each unit has a graph of its own. The page is read anew for another one: all of it is made of one tree.
  function fillViews() {
    if (views.length < 2) return;
    for (const view of views) {
      const button = addText(element("views"), "button", VIEWS[view.unit] || visible(view.unit));
      button.type = "button";
      button.disabled = view.unit === profile.unit;
      button.addEventListener("click", () => {
        setAddress("view", view.unit);
        location.reload();
      });
    }
    element("views").hidden = false;
  }

  fillHead();
  fillViews();
  if (!(total > 0)) {
    element("empty").hidden = false;
    element("tools").hidden = true;
    return;
  }
  fillLegend();

  // The library calls the tooltip with its selection, then show(event, datum) and hide().
  const tip = () => {};
  tip.show = (event, datum) => {
    const box = element("tip");
    const node = datum.data;
    box.replaceChildren();
    addText(box, "div", node.frame.name, "name");
    const where = place(node);
    if (where) addText(box, "div", where, "place");
    const kind = KINDS[node.frame.kind];
    addText(box, "div", kind || node.frame.kind, "kind");
    addText(box, "div", shares(node));
    box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = box;
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY + 14 + height > innerHeight ? event.clientY - 14 - height : event.clientY + 14;
    box.style.left = Math.max(4, left) + "px";
    box.style.top = Math.max(4, top) + "px";
  };
  tip.hide = () => { element("tip").hidden = true; };

  const HINT = "Point at a frame for its details; click to zoom in, click a pale frame to zoom out.";
  const room = () => Math.max(320, element("chart").clientWidth - 32);
  const chart = flamegraph.default()
    .width(room())
    .cellHeight(18)
    .minFrameSize(0.4)  // thinner frames appear when their caller is zoomed; drawing them all costs seconds
    .transitionDuration(0)
    .inverted(true)
    .resetHeightOnZoom(true)
    .getName((datum) => datum.data.frame.name)
    .label((datum) => [datum.data.frame.name, place(datum.data), shares(datum.data)].filter(Boolean).join("  —  "))
    .setColorMapper((datum) =>
      datum.highlight ? "var(--match)" : colour(datum.data.frame.kind, datum.data.frame.shade))
    .setDetailsHandler((text) => { element("status").textContent = text || HINT; })
    .tooltip(tip);
  // The library sets widths in a transition, which even with no duration takes some turns of a timer; a page that
  // is printed or photographed meanwhile would show half of them.
  const settle = () => { for (let turn = 0; turn < 4; turn++) d3.timerFlush(); };
  const redraw = () => { chart.update(); settle(); };
  d3.select("#chart").datum(nodes[0]).call(chart);
  settle();
  const root = d3.select("#chart").datum();
  const data = root.descendants();
  element("status").textContent = HINT;
  element("status").hidden = false;

  // Zooming and searching are done here because the library's own recurse, once a frame.
  function zoom(datum) {
    tip.hide();
    for (const each of data) { each.data.hide = true; each.data.fade = false; }
    for (const each of datum.descendants()) each.data.hide = false;
    for (let above = datum.parent; above; above = above.parent) { above.data.hide = false; above.data.fade = true; }
    element("reset").disabled = datum === root;
    redraw();
  }
  element("chart").addEventListener("click", (event) => {
    const frame = event.target.closest("g.frame");
    if (!frame) return;
    event.stopPropagation();
    zoom(d3.select(frame).datum());
  }, true);
  element("reset").addEventListener("click", () => zoom(root));
  element("flip").addEventListener("click", () => {
    chart.inverted(!chart.inverted());
    element("flip").textContent = chart.inverted() ? "Root at the bottom" : "Root at the top";
    redraw();
    scrollTo(0, chart.inverted() ? 0 : document.documentElement.scrollHeight);
  });

  function matcher(query) {
    const expression = /^\/(.+)\/$/s.exec(query);
    if (expression) {
      const pattern = new RegExp(expression[1], "i");
      return (frame) => pattern.test(frame.name);
    }
    const wanted = query.toLowerCase();
    return (frame) => frame.name.toLowerCase().includes(wanted) || frame.raw.toLowerCase().includes(wanted);
  }
  function search(query) {
    let matches = () => false;
    let trouble = "";
    try {
      if (query) matches = matcher(query);
    } catch (error) {
      trouble = "not a regular expression: " + visible(error.message);
    }
    const found = new Set();
    frames.forEach((frame, id) => { if (frame.kind !== "root" && matches(frame)) found.add(id); });
    let weight = 0;
    // Callers come before callees; a match inside a match has been counted with it.
    root.each((datum) => {
      datum.highlight = found.has(datum.data.frameId);
      datum.covered = datum.highlight || (datum.parent !== null && datum.parent.covered);
      if (datum.highlight && !(datum.parent !== null && datum.parent.covered)) weight += datum.data.value;
    });
    redraw();
    element("clear").disabled = !query;
    const names = found.size === 1 ? "1 name" : number(found.size) + " names";
    element("matches").textContent =
      trouble || (query ? (found.size ? `${share(weight)} matched (${amount(weight)}, ${names})` : "no frame matches") : "");
    setAddress("q", query.toWellFormed ? query.toWellFormed() : query);
  }
  const box = element("search");
  const clear = () => { box.value = ""; search(""); };
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") search(box.value);
    if (event.key === "Escape") { event.preventDefault(); clear(); }
  });
  // The cross that browsers put into a search field.
  box.addEventListener("search", () => { if (!box.value) clear(); });
  element("find").addEventListener("click", () => search(box.value));
  element("clear").addEventListener("click", clear);
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && document.activeElement !== box && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      box.focus();
    }
  });

  function fromAddress() {
    const query = address().get("q") || "";
    box.value = query;
    if (query || !element("clear").disabled) search(query);
  }
  addEventListener("hashchange", fromAddress);
  fromAddress();

  let resizing = 0;
  addEventListener("resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(() => { chart.width(room()).update(); }, 100);
  });
})();

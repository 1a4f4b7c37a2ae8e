// SPDX-License-Identifier: Apache-2.0
// Buttons, fields and keys, and what each of them does to the page.
"use strict";

const TYPING = 150;  // ms without a key, after which what was typed is searched for

function connectControls(page) {
  const { choices, profile } = page;
  const on = (id, type, act) => element(id).addEventListener(type, act);
  let typing = 0;
  const searchFor = (replace) => {
    clearTimeout(typing);
    choices.set({ q: element("search").value }, replace);
  };
  on("search", "input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => searchFor(true), TYPING);
  });
  on("search", "keydown", (event) => {
    if (event.key === "Enter") searchFor(false);
  });
  on("back", "click", () => history.back());
  on("forward", "click", () => history.forward());
  on("reset", "click", () => choices.set({ zoom: "" }));
  on("unit", "change", () => choices.set({ unit: element("unit").value }));
  on("thread", "change", () => choices.set({ thread: element("thread").value }));
  on("natives", "change", (event) => choices.set({ native: event.target.value }));
  on("sides", "change", (event) => choices.set({ side: event.target.value }));
  on("of", "change", (event) => choices.set({ of: event.target.value }));
  on("lines", "change", () => choices.set({ lines: element("lines").checked ? "1" : "" }));
  on("flip", "click", () => page.flip());
  on("theme", "click", () => page.look(page.theme.name === "dark" ? "light" : "dark", true));
  on("ask", "click", () => element("help").showModal());
  for (const unit of profile.units) element("unit").append(new Option(UNIT_NAMES[unit] || visible(unit), unit));
  element("units").hidden = profile.units.length < 2;
  element("time").hidden = profile.time.slices < 2;
  for (const id of ["sides", "of", "sides-key"]) element(id).hidden = profile.sides < 2;
  if (profile.sides > 1) element("methods-title").textContent = "Methods that changed most";
  addEventListener("beforeprint", () => page.print(true));
  addEventListener("afterprint", () => page.print(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.look(preferredTheme(), false));
  let last = 0;
  new ResizeObserver(() => {
    cancelAnimationFrame(last);
    last = requestAnimationFrame(() => page.resize());
  }).observe(element("graph"));
}

// What the controls show of the state.
function showState(page) {
  const { choices, profile } = page;
  const { state } = choices;
  element("back").disabled = choices.step === 0;
  element("forward").disabled = choices.step >= choices.steps;
  element("reset").disabled = page.zoomed === 0;
  element("unit").value = state.unit;
  element("thread").value = state.thread;
  element("threads").hidden = profile.sides > 1 || element("thread").options.length < 3;
  element("lines").checked = state.lines === "1";
  for (const name of ["native", "side", "of"]) {
    for (const radio of document.getElementsByName(name)) radio.checked = radio.value === state[name];
  }
}

function connectKeys(page) {
  const { choices } = page;
  const next = (values, value) => values[(values.indexOf(value) + 1) % values.length];
  const escape = (event) => {
    if (element("search").value || choices.state.q) {
      element("search").value = "";
      choices.set({ q: "" });
    } else if (page.zoomed > 0) choices.set({ zoom: "" });
    else return;
    event.preventDefault();
  };
  const acts = {
    "/": () => element("search").select(),
    "?": () => element("help").showModal(),
    "0": () => choices.set({ zoom: "" }),
    n: () => choices.set({ native: next(NATIVE, choices.state.native) }),
    c: () => page.details.copy(),
    f: () => page.flip(),
    t: () => element("theme").click(),
    w: () => page.profile.sides > 1 && choices.set({ side: next(SIDES, choices.state.side) }),
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || element("help").open) return;
    if (event.key === "Escape") {
      escape(event);
    } else if (acts[event.key] && !event.target.closest("input:not([type=radio]):not([type=checkbox]), select, textarea")) {
      event.preventDefault();
      acts[event.key]();
    }
  });
}

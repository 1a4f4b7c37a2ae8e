// SPDX-License-Identifier: Apache-2.0
// Kinds of frames and threads, with what each of them weighs, for the reader to choose from.
"use strict";

// Buttons that hide and show the kinds; toggle(kind) is called when one is pressed.
function kindButtons(list, view, theme, toggle) {
  const { profile, options } = view;
  const focused = document.activeElement && document.activeElement.dataset.kind;
  list.replaceChildren();
  if (profile.sides === 2) changeLegend(list, theme);
  const present = new Set(profile.frames.map((frame) => frame.kind));
  const whole = view.total[0] + view.leftOut;
  for (const [kind, label] of Object.entries(KINDS)) {
    if (!present.has(kind)) continue;
    const on = kind === "native" ? options.native !== "off" : !options.hidden.has(kind);
    const weight = kind === "incomplete" ? view.incomplete : view.kindWeights[kind] || 0;
    const button = addText(list, "button", "");
    button.type = "button";
    button.dataset.kind = kind;
    button.setAttribute("aria-pressed", String(on));
    button.title = (kind === "incomplete" ? "Stacks that did not reach their root" : "Share on top of the stack") +
      (on ? ". Press to hide." : ". Press to show.");
    // Where colours are changes, kinds have none.
    if (profile.sides === 1 || kind === "incomplete") {
      addText(button, "span", "", "swatch").style.background = theme.colour({ kind, shade: 1 }, true);
    }
    addText(button, "span", on || kind === "incomplete" ? `${label} ${percent(weight, whole)}` : label);
    button.addEventListener("click", () => toggle(kind));
    if (kind === focused) button.focus();
  }
}

// Processes with their threads, the heaviest first, and what they weigh in a unit.
function processesOf(profile, unit) {
  const sums = new Float64Array(profile.tracks.length);
  profile.weights.track.forEach((track, index) => { sums[track] += profile.weights.weight[index]; });
  const processes = new Map();
  profile.tracks.forEach((track, index) => {
    if (track.unit !== unit) return;
    const process = processes.get(track.pid) || { pid: track.pid, weight: 0, threads: [], comm: track.comm };
    processes.set(track.pid, process);
    process.weight += sums[index];
    if (track.tid === track.pid) process.comm = track.comm;
    process.threads.push({ track, weight: sums[index] });
  });
  const heaviest = (a, b) => b.weight - a.weight;
  for (const process of processes.values()) process.threads.sort(heaviest);
  return [...processes.values()].sort(heaviest);
}

function threadOptions(select, profile, { unit, thread }) {
  const processes = processesOf(profile, unit);
  const whole = processes.reduce((sum, process) => sum + process.weight, 0);
  select.replaceChildren(new Option("all", ""));
  for (const { pid, comm, weight, threads } of processes) {
    const group = document.createElement("optgroup");
    group.label = `${comm} (${pid})`;
    if (processes.length > 1) group.append(new Option(`process ${pid}, all threads: ${percent(weight, whole)}`, String(pid)));
    for (const each of threads) {
      group.append(new Option(`${each.track.comm} (${each.track.tid}): ${percent(each.weight, whole)}`, `${pid}/${each.track.tid}`));
    }
    select.append(group);
  }
  if (thread && select.querySelector(`option[value="${CSS.escape(thread)}"]`) === null) {
    select.append(new Option(visible(thread) + ": none", thread));
  }
}

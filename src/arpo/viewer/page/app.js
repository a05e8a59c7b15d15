// The page: which view is shown, the keys, and what happens when the run grows meanwhile.
"use strict";

const VIEWS = { overview, tasks, episodes, episode, group };
const TITLES = { overview: "Overview", tasks: "Tasks", episodes: "Episodes" };
const GROWING = ["overview", "tasks", "episodes"]; // views that change when something is added
const EVERY_MS = 3000;

const content = document.getElementById("content");
let names = []; // of the runs
let asked = 0; // the newest of the views that are being made: a slower one that was asked for earlier is not shown

async function render() {
  const mine = ++asked;
  const { view, at } = place();
  const run = Number(at.run ?? 0) || 0;
  let parts;
  try {
    if (!VIEWS[view] || !Object.hasOwn(VIEWS, view)) throw new Error("There is no such view.");
    parts = await VIEWS[view](at, run);
  } catch (error) {
    parts = [el("h1", {}, "This cannot be shown"), el("p", { class: "problem" }, error.message)];
  }
  if (mine !== asked) return;
  const focused = document.activeElement?.getAttribute("name") ?? document.activeElement?.getAttribute("aria-label");
  const scrolled = [...content.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  content.replaceChildren(...parts.flat(3).filter(Boolean));
  content.dataset.view = view;
  content.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = scrolled[i] ?? 0; });
  if (focused) content.querySelector(`[name="${CSS.escape(focused)}"], [aria-label="${CSS.escape(focused)}"]`)?.focus();
  const frame = content.querySelector("[aria-current=step]")?.closest("li");
  if (frame) frame.parentNode.scrollLeft = frame.offsetLeft - frame.parentNode.offsetLeft - 100; // the strip alone, not the page
  document.title = `${content.querySelector("h1")?.textContent ?? "ARPO"} – ARPO`;
  navigation(view, run);
}

function navigation(view, run) {
  const shown = view === "episode" || view === "group" ? "episodes" : view;
  document.getElementById("nav").replaceChildren(...Object.entries(TITLES).map(([name, title]) =>
    el("a", { href: link(name, name === "overview" ? {} : { run }), "aria-current": name === shown ? "page" : null }, title)));
  const pick = document.getElementById("run");
  pick.replaceChildren(...names.map((name, i) => el("option", { value: i, selected: i === run }, name)));
  document.getElementById("pick").hidden = names.length < 2 || view === "overview";
}

function step(by) {
  const { at } = place();
  const data = shownEpisode?.data;
  if (!data) return;
  const to = by === "first" ? 0 : by === "last" ? data.steps - 1 : Math.min(data.steps - 1, Number(at.step ?? 0)) + by;
  if (to >= 0 && to < data.steps) location.hash = link("episode", { ...at, step: to });
}

function other(which) {
  const number = shownEpisode?.data.neighbours[which];
  if (number && held(`${place().at.run ?? 0}/episode/${number}/0`)) location.hash = link("episode", { run: place().at.run, n: number });
}

const KEYS = {
  ArrowLeft: () => step(-1), ArrowRight: () => step(1), Home: () => step("first"), End: () => step("last"),
  "[": () => other(0), "]": () => other(1), t: () => toggleShown("thought"), m: () => toggleShown("metadata"),
  g: () => {
    const { run } = place().at;
    const n = shownEpisode?.data.group;
    if (n && held(`${run ?? 0}/group/${n}`)) location.hash = link("group", { run, n });
  },
};

document.addEventListener("keydown", (event) => {
  const busy = event.ctrlKey || event.altKey || event.metaKey || event.target.closest?.("input, select, textarea");
  if (busy || place().view !== "episode" || !Object.hasOwn(KEYS, event.key)) return;
  event.preventDefault();
  KEYS[event.key]();
});

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  content.focus();
});

document.getElementById("run").addEventListener("change", (event) => {
  const { view } = place();
  location.hash = link(view === "tasks" ? "tasks" : "episodes", { run: event.target.value });
});

let served = false; // files of a bundle answer no questions
let known = null;
async function watch() {
  const live = document.getElementById("live");
  try {
    if (document.visibilityState === "visible") {
      const now = JSON.stringify((await ask("state")).runs);
      const active = document.activeElement;
      const typing = active?.matches?.("input") && active.value !== (place().at[active.name] ?? ""); // not yet a filter
      if (known !== null && now !== known && GROWING.includes(place().view) && !typing) await render();
      if (!typing) known = now;
      live.textContent = "live";
      live.classList.remove("off");
    }
  } catch {
    live.textContent = "the server has ended";
    live.classList.add("off");
  }
  setTimeout(watch, EVERY_MS);
}

async function begin() {
  const state = await ask("overview").catch(() => ({ runs: [], live: false }));
  names = state.runs.map((run) => run.name);
  served = state.live;
  window.addEventListener("hashchange", () => { render().then(() => { if (place().view !== "episode") window.scrollTo(0, 0); }); });
  await render();
  if (state.live) watch();
}

begin();

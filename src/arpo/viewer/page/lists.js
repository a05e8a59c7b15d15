// Three of the views: the runs with their curves, the tasks with their history, and the list of episodes.
"use strict";

function table(caption, heads, rows) {
  const numeric = heads.map((head) => head.startsWith("#"));
  const cell = (value, i) => el("td", { class: numeric[i] ? "number" : null }, value instanceof Node ? value : String(value ?? "–"));
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, heads.map((head, i) => el("th", { scope: "col", class: numeric[i] ? "number" : null }, head.replace("#", ""))))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell))))));
}

async function overview() {
  const { curves, runs } = await ask("overview");
  const series = (name) => runs.map((run, i) => ({ name: run.name, color: i, points: run.curves[name] ?? [] }));
  const trained = runs.some((run) => run.updates);
  return [
    el("h1", {}, runs.length === 1 ? runs[0].name : `${runs.length} runs`),
    el("div", { class: "cards" }, runs.map(card)),
    trained && el("h2", {}, "Curves"),
    trained && el("p", { class: "quiet" }, "By update. Point at a dot for its value."),
    trained && el("div", { class: "charts" }, curves.map((curve) => chart(curve, series(curve.name)))),
    el("h2", {}, "Judged"),
    judged(runs),
    INSIDE && el("h2", {}, "Best and worst episodes"),
    INSIDE && await Promise.all(runs.map(async (run, i) => [el("p", {}, el("strong", {}, run.name)), listed((await ask(`${i}/episodes`)).episodes, i)])),
  ];
}

function card(run, i) {
  const last = (name) => run.curves[name]?.at(-1)?.[1];
  const facts = [
    ["Updates", count(run.updates)],
    ["Episodes", run.episodes === undefined ? null : count(run.episodes)],
    ["Steps", run.steps === undefined ? null : count(run.steps)],
    ["Tasks", run.tasks === undefined ? null : count(run.tasks)],
    ["Last success", last("success") === undefined ? null : percent(last("success"))],
    ["Without a score", run.unscored ? count(run.unscored) : null],
  ].filter(([, value]) => value !== null);
  const settings = Object.entries(run.settings).map(([key, value]) => `${key}=${value}`).join("  ");
  return el("section", { class: "card" },
    el("h2", {}, el("span", { class: `swatch run${i % 6}` }), " ", run.name),
    problems(run.problems),
    el("dl", { class: "facts" }, facts.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value)))),
    settings && el("p", { class: "settings" }, settings),
    el("p", {}, el("a", { href: link("tasks", { run: i }) }, "Tasks"), " ", el("a", { href: link("episodes", { run: i }) }, "Episodes")));
}

function judged(runs) {
  const rows = runs.flatMap((run, i) => (run.judged ?? []).map((one) => [
    el("span", {}, el("span", { class: `swatch run${i % 6}` }), " ", run.name),
    one.split || "–",
    one.update,
    percent(one.success),
    one.interval ? `${percent(one.interval[0])} to ${percent(one.interval[1])}` : "–",
    one.tasks,
    one.episodes,
    one.unscored,
  ]));
  if (!rows.length) return el("p", { class: "quiet" }, "There are no evaluations in it.");
  return table("Success in evaluations", ["Run", "Split", "#After update", "#Success", "#95 % interval", "#Tasks", "#Episodes", "#No score"], rows);
}

async function tasks(at, run) {
  const data = await ask(`${run}/tasks`);
  const mean = (points) => {
    const scored = points.reduce((sum, [, n]) => sum + n, 0);
    return scored ? points.reduce((sum, [, n, rate]) => sum + n * (rate ?? 0), 0) / scored : null;
  };
  const rows = data.tasks.map((task) => [
    el("div", { class: "task" }, el("a", { href: link("episodes", { run, task: task.id }) }, task.id), el("div", { class: "quiet" }, task.instruction)),
    task.split || "–",
    history(task.played),
    percent(mean(task.played)),
    task.played.reduce((sum, [, , , n]) => sum + n, 0),
    task.judged.map(([update, , rate]) => `${percent(rate)} (${update})`).join(", ") || "–",
  ]);
  return [
    el("h1", {}, "Tasks"),
    el("p", { class: "quiet" }, `${plural(rows.length, "task")}. Each cell is an update; how full it is, that much was solved. Judged: success, after which update.`),
    problems(data.problems),
    table("Tasks", ["Task", "Split", "Success by update", "#Solved", "#Episodes", "Judged"], rows),
  ];
}

const FILTERS = ["task", "score", "outcome", "source", "replayed", "least_update", "most_update", "least_steps", "most_steps", "least_time", "most_time", "order"];

// A server has chosen already; a bundle and a report have the whole list, and it is chosen here.
function chosen(data, at) {
  if (!data.whole) return data;
  const bound = (name, other) => (at[name] ? Number(at[name]) : other);
  const kept = data.episodes.filter((one) =>
    (!at.task || one.task.includes(at.task)) &&
    (!at.outcome || one.outcome === at.outcome) &&
    (!at.source || one.source === at.source) &&
    (!at.score || at.score === (one.score === null ? "none" : one.score >= 1 ? "solved" : "failed")) &&
    (!at.replayed || (at.replayed === "source" ? one.replayed.length > 0 : one.replaced)) &&
    one.update >= bound("least_update", -Infinity) && one.update <= bound("most_update", Infinity) &&
    one.steps >= bound("least_steps", 0) && one.steps <= bound("most_steps", Infinity) &&
    (one.time === null ? !at.least_time && !at.most_time : one.time >= bound("least_time", -Infinity) && one.time <= bound("most_time", Infinity)));
  const newest = (a, b) => b.number - a.number;
  const orders = { oldest: (a, b) => a.number - b.number, longest: (a, b) => b.steps - a.steps || newest(a, b), shortest: (a, b) => a.steps - b.steps || newest(a, b) };
  kept.sort(orders[at.order] ?? newest);
  const first = Number(at.page ?? 0) * data.page_size;
  return { ...data, total: kept.length, episodes: kept.slice(first, first + data.page_size) };
}

async function episodes(at, run) {
  const query = Object.fromEntries([...FILTERS, "page"].filter((name) => at[name]).map((name) => [name, at[name]]));
  const all = await ask(`${run}/episodes`, query);
  const data = chosen(all, at);
  const page = Number(at.page ?? 0);
  const pages = Math.max(1, Math.ceil(data.total / data.page_size));
  const turn = (to, text) => (to < 0 || to >= pages ? el("span", { class: "quiet" }, text) : el("a", { href: link("episodes", { ...at, run, page: to }) }, text));
  return [
    el("h1", {}, "Episodes"),
    filters(at, run, data),
    data.left_out > 0 && el("p", { class: "quiet" }, `This file holds the best and the worst of them; ${plural(data.left_out, "other")} were left out.`),
    el("p", { class: "pages" }, el("strong", { id: "total" }, plural(data.total, "episode")), el("span", {}, turn(page - 1, "‹ before"), ` page ${page + 1} of ${pages} `, turn(page + 1, "next ›"))),
    listed(data.episodes, run),
  ];
}

function listed(some, run) {
  if (!some.length) return el("p", { class: "quiet" }, "None is like that.");
  const rows = some.map((one) => [
    el("a", { href: link("episode", { run, n: one.number }) }, `${one.number}`),
    el("a", { href: link("episodes", { run, task: one.task }) }, one.task),
    badge(one), words(one.outcome), one.steps, one.update, words(one.source), short(one.reward), one.time === null ? "–" : moment(one.time),
    el("span", {}, notes(one).map((note) => el("span", { class: "note" }, note))),
  ]);
  return table("Episodes", ["#No.", "Task", "Result", "Ended by", "#Steps", "#Update", "Played for", "#Reward", "Stored", "Notes"], rows);
}

function notes(one) {
  const times = one.replayed.length;
  return [
    one.learned !== null && `learned in ${one.learned}`,
    times > 0 && (times === 1 ? `replayed in ${one.replayed[0]}` : `replayed ${times} times`),
    one.replaced && "gave way to a replay",
  ].filter(Boolean);
}

function filters(at, run, data) {
  const change = (name, value) => { location.hash = link("episodes", { ...at, run, [name]: value, page: "" }); };
  const choose = (name, label, options) => el("label", {}, label,
    el("select", { name, onchange: (event) => change(name, event.target.value) },
      options.map(([value, text]) => el("option", { value, selected: (at[name] ?? "") === value }, text))));
  const bound = (name, label) => el("label", {}, label,
    el("input", { name, type: "number", min: 0, max: 999999999, inputmode: "numeric", value: at[name] ?? "", onchange: (event) => change(name, event.target.value) }));
  // To the minute; "to 12:30" is to its last second.
  const when = (name, label, more) => el("label", { class: "when" }, label,
    el("input", { name, type: "datetime-local", value: at[name] ? local(Number(at[name])) : "", onchange: (event) => {
      const seconds = Math.floor(new Date(event.target.value).getTime() / 1000);
      change(name, seconds >= 0 ? seconds + more : "");
    } }));
  const any = (names) => [["", "any"], ...names.map((name) => [name, words(name)])];
  return el("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() },
    el("label", { class: "wide" }, "Task", el("input", { name: "task", type: "search", value: at.task ?? "", placeholder: "part of its id", onchange: (event) => change("task", event.target.value) })),
    choose("score", "Result", [["", "any"], ["solved", "solved"], ["failed", "failed"], ["none", "no score"]]),
    choose("outcome", "Ended by", any(data.outcomes)),
    choose("source", "Played for", any(data.sources)),
    choose("replayed", "Replay", [["", "any"], ["source", "was replayed later"], ["replaced", "gave way to a replay"]]),
    bound("least_update", "Update from"), bound("most_update", "to"),
    bound("least_steps", "Steps from"), bound("most_steps", "to"),
    when("least_time", "Stored from", 0), when("most_time", "to", 59),
    choose("order", "Order", [["", "newest first"], ["oldest", "oldest first"], ["longest", "longest first"], ["shortest", "shortest first"]]),
    el("a", { class: "button", href: link("episodes", { run }) }, "Clear"));
}

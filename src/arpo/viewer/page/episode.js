// One episode, step by step: the screen with what was done on it, what was said, and what was learned from each token.
"use strict";

const HEATS = {
  none: "plain",
  logprobs: "probability",
  ratios: "ratio",
  advantages: "advantage",
  clipped: "clipped",
};
const shows = { thought: true, metadata: false, heat: "logprobs" }; // what is toggled stays, from step to step

// Each as a number from -4 to 4: how strong the colour is, and which.
const heatOf = {
  logprobs: (value) => -Math.min(4, Math.round(-value * 1.6)),
  ratios: (value) => Math.max(-4, Math.min(4, Math.round(Math.log(Math.max(value, 1e-6)) * 16))),
  advantages: (value) => Math.max(-4, Math.min(4, Math.round(value * 2.5))),
  clipped: (value) => (value ? -4 : 0),
};
const LEGENDS = {
  logprobs: "the redder, the less likely the token was to the sampler",
  ratios: "green: likelier after learning, red: less likely",
  advantages: "green: pushed up, red: pushed down",
  clipped: "red: clipping took its gradient away",
};

const WINDOW = 50; // steps that are asked for at once, as in episodes.py
let shownEpisode = null; // {key, data}: stepping within a window asks for nothing

async function episode(at, run) {
  const number = Number(at.n ?? 0);
  const wanted = Math.max(0, Number(at.step ?? 0) || 0);
  const load = async (window) => {
    const path = `${run}/episode/${number}/${window}`;
    const key = `${path}/${at.again ?? ""}`;
    if (shownEpisode?.key !== key) shownEpisode = { key, data: await ask(path, { again: at.again ?? "" }) };
    return shownEpisode.data;
  };
  let data = await load(Math.floor(wanted / WINDOW)).catch((error) => { if (wanted < WINDOW) throw error; return load(0); });
  const step = Math.min(wanted, Math.max(0, data.steps - 1));
  if (step < data.first || step >= data.first + data.window) data = await load(Math.floor(step / data.window));
  const move = data.moves[step - data.first];
  const after = step === data.steps - 1 && data.end;
  return [
    el("h1", {}, data.instruction || data.task),
    header(data, run),
    problems(data.problems),
    stepping(data, run, step),
    move
      ? el("div", { class: "stage" },
          el("div", { class: "picture" }, screenOf(move, `Screen before step ${step + 1}: ${move.did || "no action"}`),
            after && el("details", {}, el("summary", {}, "The screen at the end"), screenOf({ screen: data.end }, "Screen at the end"))),
          said(move, data, run))
      : el("p", { class: "quiet" }, "It has no steps."),
    strip(data, run, step),
    el("p", { class: "quiet keys" }, "Keys: ", ...[["←", "→"], ["Home", "End"], ["[", "]"], ["t"], ["m"], ["g"]].flatMap((keys, i) => [
      ...keys.map((key) => el("kbd", {}, key)), ` ${["step", "first and last", "other episode", "thought", "metadata", "group"][i]}  `])),
  ];
}

function header(data, run) {
  const groupLink = (n, text) => (n !== null && held(`${run}/group/${n}`) ? el("a", { href: link("group", { run, n }) }, text) : text);
  const replays = data.repeats.map((one) => [groupLink(one.group, `update ${one.update}`),
    served && el("span", {}, " (", el("a", { href: link("episode", { run, n: data.number, again: one.update }), "aria-label": `Its tokens as learned in update ${one.update}` }, "its tokens then"), ")")]);
  const facts = [
    ["Task", el("a", { href: link("episodes", { run, task: data.task }) }, data.task)],
    ["Reward", short(data.reward)],
    ["Steps", count(data.steps)],
    ["Update", data.update],
    ["Played for", words(data.source)],
    ["Tokens", count(data.tokens)],
    ["Engine", seconds(data.engine_s)],
    ["Computer", seconds(data.env_s)],
    data.time !== null && ["Stored", moment(data.time)],
    data.trained && [data.again === null ? "Learned in" : "Shown as replayed in", `update ${data.trained.update}: advantage ${short(data.trained.advantage)}, mean ratio ${short(data.trained.ratio)}, clipped ${percent(data.trained.clipped)}`],
    replays.length && ["Replayed in", el("span", {}, replays.flatMap((one, i) => [i ? ", " : "", ...one]))],
    data.replaced && ["Replay", groupLink(data.group, "a stored success took its place")],
  ].filter(Boolean);
  return el("section", { class: "card", "aria-label": "The episode" },
    el("p", { class: "verdict" }, badge(data), ` ended by: ${words(data.outcome)} `, held(`${run}/group/${data.group}`) && groupLink(data.group, "its group side by side")),
    el("dl", { class: "facts" }, facts.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, value)))),
    el("p", { class: "id" }, data.id));
}

function stepping(data, run, step) {
  const to = (n) => link("episode", { run, n: data.number, step: n, again: data.again });
  const turn = (n, text, label) => (n < 0 || n >= data.steps ? el("span", { class: "button off" }, text) : el("a", { class: "button", href: to(n), "aria-label": label }, text));
  const toggle = (name, text) => el("button", { type: "button", "aria-pressed": String(shows[name]), onclick: () => toggleShown(name) }, text);
  return el("div", { class: "stepping" },
    turn(step - 1, "‹", "The step before"),
    el("strong", { id: "step" }, data.steps ? `Step ${step + 1} of ${count(data.steps)}` : "No steps"),
    turn(step + 1, "›", "The next step"),
    toggle("thought", "Thought"), toggle("metadata", "Metadata"));
}

function toggleShown(name) {
  shows[name] = !shows[name];
  render();
}

function said(move, data) {
  const heats = Object.keys(HEATS).filter((name) => name === "none" || move[name]?.length);
  const heat = heats.includes(shows.heat) ? shows.heat : "none";
  const numbers = [
    ["Engine", seconds(move.engine_s)], ["Computer", seconds(move.env_s)], ["Screen settled in", seconds(move.settle_s)],
    ["Version", move.version], ["Temperature", short(move.temperature)], ["Top-p", short(move.top_p)], ["Ended by", move.finish], ["Tokens", move.n_tokens],
    ["Mean log-probability", move.logprobs.length ? short(move.logprobs.reduce((a, b) => a + (b ?? 0), 0) / move.logprobs.length) : "–"],
    ["Environment's seed", data.env_seed], ["Attempt", data.attempt + 1], ["Run", data.run],
  ];
  return el("div", { class: "said" },
    shows.thought && el("section", { id: "thought" }, el("h2", {}, "Thought"), el("p", { class: "thought" }, move.thought || "–")),
    el("section", {}, el("h2", {}, "Action"), move.error ? el("p", { class: "problem" }, `No action: ${move.error}`) : el("p", { class: "did" }, move.did),
      move.ignored && el("p", { class: "quiet" }, `Ignored after it: ${move.ignored}`)),
    el("section", {}, el("h2", {}, "Tokens"),
      heats.length > 1 && el("div", { class: "heats", role: "group", "aria-label": "Colour of the tokens" }, heats.map((name) => el("button", {
        type: "button", "aria-pressed": String(heat === name), onclick: () => { shows.heat = name; render(); } }, HEATS[name]))),
      reply(move, heat),
      heat !== "none" && el("p", { class: "quiet" }, LEGENDS[heat]),
      !move.tokens && el("p", { class: "quiet" }, "The text as a whole: its tokenizer is not in the run.")),
    shows.metadata && el("section", { id: "metadata" }, el("h2", {}, "Metadata"),
      el("dl", { class: "facts" }, numbers.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, String(value)))))));
}

function reply(move, heat) {
  if (!move.tokens) return el("p", { class: "reply" }, move.text);
  return el("p", { class: "reply" }, move.tokens.map((piece, i) => {
    const told = Object.keys(heatOf).filter((name) => move[name]?.length).map((name) => `${HEATS[name]} ${name === "logprobs" ? short(Math.exp(move.logprobs[i])) : short(move[name][i])}`);
    const level = heat === "none" ? 0 : heatOf[heat](move[heat][i] ?? 0);
    return el("span", { class: level > 0 ? `up${level}` : level < 0 ? `down${-level}` : null, title: told.join(", ") }, piece);
  }));
}

function strip(data, run, step) {
  const windowed = data.steps > data.window;
  const to = (n) => link("episode", { run, n: data.number, step: n, again: data.again });
  const last = Math.min(data.steps, data.first + data.window);
  return el("section", { "aria-label": "All steps" },
    windowed && el("p", { class: "pages" },
      data.first > 0 ? el("a", { href: to(data.first - data.window) }, "‹ earlier steps") : el("span"),
      el("span", {}, `steps ${count(data.first + 1)} to ${count(last)} of ${count(data.steps)}`),
      last < data.steps ? el("a", { href: to(last) }, "later steps ›") : el("span")),
    el("ol", { class: "strip", start: data.first + 1 }, data.moves.map((move) => el("li", {},
      el("a", { href: to(move.index), class: "frame", "aria-current": move.index === step ? "step" : null },
        screenOf(move, "", true), el("span", { class: "label" }, `${move.index + 1}. ${move.did || "no action"}`))))));
}

async function group(at, run) {
  const data = await ask(`${run}/group/${Number(at.n ?? 0)}`);
  const film = (one) => el("ol", { class: "strip" }, one.film.map((shot, i) => el("li", {},
    el("a", { class: "frame", href: link("episode", { run, n: one.number, step: i }) }, screenOf(shot, "", true), el("span", { class: "label" }, `${i + 1}. ${shot.did || "no action"}`)))));
  const row = (one, guest) => el("section", { class: guest ? "card guest" : "card" },
    el("h2", {}, el("a", { href: link("episode", { run, n: one.number }) }, guest ? `Replayed: episode ${one.number} of update ${one.update}` : `Episode ${one.number}`), " ", badge(one)),
    el("p", { class: "quiet" }, [words(one.outcome), plural(one.steps, "step"), `reward ${short(one.reward)}`, one.advantage === null ? null : `advantage ${short(one.advantage)}`,
      one.replaced ? "gave way to the replayed success" : null, guest ? `took the place of ${one.joined}` : null].filter(Boolean).join(" · ")),
    problems(one.problem ? [one.problem] : []), film(one),
    one.steps > one.film.length && el("p", { class: "quiet" }, `The first ${one.film.length} of ${count(one.steps)} steps.`));
  return [
    el("h1", {}, data.instruction || data.task),
    el("p", { class: "quiet" }, `${plural(data.members.length, "attempt")} at ${data.task}, ${words(data.source)} for update ${data.update}${data.guests.length ? `, and ${plural(data.guests.length, "stored success", "stored successes")} that joined` : ""}.`),
    data.guests.map((one) => row(one, true)),
    data.members.map((one) => row(one, false)),
  ];
}

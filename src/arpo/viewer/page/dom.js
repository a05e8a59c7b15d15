// Elements, numbers and data. Text of a run becomes text of the page and nothing else: there is no innerHTML here.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

// el("a", {href: "#tasks", class: "on"}, "Tasks", other) makes an element; null and false among children are left out.
function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const percent = (value) => (value === null || value === undefined ? "–" : `${Math.round(100 * value)} %`);
const seconds = (value) => (value >= 60 ? `${Math.floor(value / 60)} min ${Math.round(value % 60)} s` : `${short(value)} s`);
// A moment of the viewer's own clock, as an input takes it and as people read it.
const local = (value) => new Date(1000 * value - 60000 * new Date(1000 * value).getTimezoneOffset()).toISOString().slice(0, 16);
const moment = (value) => (Math.abs(value) < 1e11 ? local(value).replace("T", " ") : "–");
const count = (value) => Number(value).toLocaleString("en");
const plural = (n, one, more = `${one}s`) => `${count(n)} ${n === 1 ? one : more}`;
const words = (name) => String(name).replaceAll("_", " ");

// Three digits, as people write them: 0.0123, 1.23, 123, 4.5e-8.
function short(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1);
  return String(Number(value.toPrecision(size >= 100 ? Math.ceil(Math.log10(size + 1)) : 3)));
}

// What the page asks for. In a report it is inside the file; else the server, or a file beside the page, has it.
const INSIDE = document.getElementById("data") ? JSON.parse(document.getElementById("data").textContent) : null;

// Whether there is an answer: a report has not all of them.
const held = (path) => !INSIDE || Object.hasOwn(INSIDE, path);

async function ask(path, query = {}) {
  if (INSIDE) {
    if (!held(path)) throw new Error("This report does not hold it: it has the best and the worst episodes only.");
    return INSIDE[path];
  }
  const asked = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  let answer;
  try {
    answer = await fetch(`api/${path}.json${asked.size ? `?${asked}` : ""}`);
  } catch {
    throw new Error("The server does not answer: is arpo view still running?");
  }
  const data = await answer.json().catch(() => null);
  if (!answer.ok || data === null || data.error) throw new Error(data?.error ?? `The server answered with status ${answer.status}.`);
  return data;
}

const problems = (lines) => (lines ?? []).map((line) => el("p", { class: "problem" }, line));

function badge(episode) {
  const { score, outcome } = episode;
  const kind = score === null ? "none" : score >= 1 ? "good" : score > 0 ? "part" : "bad";
  const word = score === null ? "no score" : score >= 1 ? "solved" : score > 0 ? `score ${short(score)}` : "failed";
  return el("span", { class: `badge ${kind}`, title: words(outcome) }, word);
}

// Where the page is: a view and its values, all of it in the part of the address after #.
function place() {
  const [view, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { view: view || "overview", at: Object.fromEntries(new URLSearchParams(query)) };
}

function link(view, at = {}) {
  const query = new URLSearchParams(Object.entries(at).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  return `#${view}${query.size ? `?${query}` : ""}`;
}

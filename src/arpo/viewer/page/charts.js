// Curves, drawn by hand: a small chart for each metric, a line for each run.
"use strict";

const CHART = { width: 360, height: 200, left: 46, right: 10, top: 10, bottom: 24 };

// Round numbers, about n of them, from at or below `low` to at or above `high`.
function ticks(low, high, n = 4) {
  const raw = Math.max(high - low, 1e-9 * Math.max(1e-6, Math.abs(low), Math.abs(high))) / n;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * [1, 2, 5, 10].find((m) => m * unit >= raw * 0.999);
  const first = Math.floor(low / step + 1e-9);
  const last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
  return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step);
}

// series: [{name, color (its number), points: [[x, y], …]}]
function chart(curve, series) {
  const { width, height, left, right, top, bottom } = CHART;
  const points = series.flatMap((one) => one.points);
  const title = el("figcaption", {}, el("strong", {}, curve.title), " ", el("span", { class: "quiet" }, curve.about));
  if (!points.length) return el("figure", { class: "chart" }, title, el("p", { class: "quiet empty" }, "Nothing was logged."));
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const yTicks = curve.share ? [0, 0.25, 0.5, 0.75, 1] : ticks(Math.min(0, ...ys), Math.max(...ys) || 1);
  const [y0, y1] = [yTicks[0], yTicks.at(-1)];
  const across = (x) => left + (x1 === x0 ? 0.5 : (x - x0) / (x1 - x0)) * (width - left - right);
  const up = (y) => height - bottom - ((Math.min(Math.max(y, y0), y1) - y0) / (y1 - y0)) * (height - top - bottom);
  const last = series.filter((one) => one.points.length).map((one) => `${one.name}: ${short(one.points.at(-1)[1])}`);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${curve.title}, at the end ${last.join(", ")}` });
  for (const y of yTicks) {
    picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: up(y), y2: up(y) }));
    picture.append(svg("text", { x: left - 6, y: up(y) + 4, "text-anchor": "end" }, curve.share ? percent(y) : short(y)));
  }
  const whole = ticks(x0, x1, 5).filter((x) => x >= x0 && x <= x1 && Number.isInteger(x));
  for (const x of whole.length ? whole : [x0]) {
    picture.append(svg("text", { x: across(x), y: height - 6, "text-anchor": "middle" }, String(x)));
  }
  for (const one of series) {
    const line = one.points.map(([x, y]) => `${across(x).toFixed(1)},${up(y).toFixed(1)}`).join(" ");
    picture.append(svg("polyline", { class: `line run${one.color % 6}`, points: line }));
    for (const [x, y] of one.points.length <= 60 ? one.points : []) {
      picture.append(svg("circle", { class: `dot run${one.color % 6}`, cx: across(x), cy: up(y), r: 3 }, svg("title", {}, `${one.name}, update ${x}: ${short(y)}`)));
    }
  }
  return el("figure", { class: "chart" }, title, picture);
}

// A task's success, update by update, as a row of cells: the fuller, the more often it was solved.
function history(points) {
  if (!points.length) return el("span", { class: "quiet" }, "–");
  const cell = 7;
  const told = points.map(([update, scored, mean]) => `update ${update}: ${percent(mean)} of ${scored}`);
  const row = svg("svg", { class: "history", viewBox: `0 0 ${points.length * cell} 20`, width: points.length * cell, height: 20, role: "img", "aria-label": `Success by update: ${told.join("; ")}` });
  points.forEach(([, , mean], i) => {
    row.append(svg("rect", { class: "cell", x: i * cell, y: 0, width: cell - 1, height: 20 }, svg("title", {}, told[i])));
    if (mean > 0) row.append(svg("rect", { class: "full", x: i * cell, y: 20 - 20 * mean, width: cell - 1, height: 20 * mean }, svg("title", {}, told[i])));
  });
  return row;
}

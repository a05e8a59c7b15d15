// A screenshot with the action drawn on it, in the screenshot's own pixels.
"use strict";

// shot: {screen: {url, width, height} or null, action, did}; small: for a strip.
function screenOf(shot, alt, small = false) {
  const { screen } = shot;
  if (!screen) return el("div", { class: "screen missing" }, el("span", {}, "The screenshot is missing in this run."));
  if (!screen.url) return el("div", { class: "screen missing" }, el("span", {}, "Left out to keep the file small."));
  const { width, height, url } = screen;
  const image = el("img", { src: url, alt, width, height, loading: small ? "lazy" : "eager", decoding: "async" });
  const box = el("div", { class: "screen" }, image, marks(shot.action, width, height, small));
  image.addEventListener("error", () => {
    box.classList.add("missing");
    box.replaceChildren(el("span", {}, "The screenshot cannot be shown."));
  });
  return box;
}

// Rings for clicks (two: double, blue: right), arrows for drags and the wheel, a caption for keys and text.
function marks(action, width, height, small) {
  const layer = svg("svg", { class: "marks", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", preserveAspectRatio: "none" });
  if (!action) return layer;
  const unit = Math.max(width, height) / (small ? 26 : 48);
  const ring = (x, y, r, kind) => [
    svg("circle", { class: "halo", cx: x, cy: y, r, "stroke-width": unit * 0.5 }),
    svg("circle", { class: kind, cx: x, cy: y, r, "stroke-width": unit * 0.25 }),
  ];
  const arrow = (x1, y1, x2, y2, kind) => {
    const length = Math.hypot(x2 - x1, y2 - y1) || 1;
    const [dx, dy] = [((x2 - x1) / length) * unit, ((y2 - y1) / length) * unit];
    const head = `${x2},${y2} ${x2 - dx - dy * 0.6},${y2 - dy + dx * 0.6} ${x2 - dx + dy * 0.6},${y2 - dy - dx * 0.6}`;
    return [
      svg("line", { class: "halo", x1, y1, x2, y2, "stroke-width": unit * 0.5 }),
      svg("line", { class: kind, x1, y1, x2, y2, "stroke-width": unit * 0.25 }),
      svg("polygon", { class: `${kind} head`, points: head }),
    ];
  };
  const { kind, x, y } = action;
  if (kind === "click") {
    const colour = action.button === "right" ? "right" : "left";
    layer.append(...ring(x, y, unit * 0.7, colour));
    if (action.count === 2) layer.append(...ring(x, y, unit * 1.3, colour));
    layer.append(svg("circle", { class: `${colour} head`, cx: x, cy: y, r: unit * 0.15 }));
  } else if (kind === "drag") {
    layer.append(...ring(x, y, unit * 0.5, "left"), ...arrow(x, y, action.to_x, action.to_y, "left"));
  } else if (kind === "scroll") {
    const [dx, dy] = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] }[action.direction] ?? [0, 0];
    layer.append(...ring(x, y, unit * 0.4, "wheel"), ...arrow(x, y, x + dx * unit * 3, y + dy * unit * 3, "wheel"));
  } else {
    layer.append(...caption(action, width, height, unit));
  }
  return layer;
}

function caption(action, width, height, unit) {
  const said = {
    type: () => `⌨ ${action.text}`,
    hotkey: () => `⌨ ${action.keys.join(" + ")}`,
    wait: () => "wait",
    finish: () => "✓ finish",
    fail: () => "✗ fail",
    call_user: () => "? call the user",
  }[action.kind]?.() ?? action.kind;
  const line = said.replace(/\s+/g, " ");
  const size = unit * 1.3;
  const most = Math.max(4, Math.floor(((width * 0.96) / size - 1.4) / 0.62)); // letters that fit
  const text = line.length > most ? `${line.slice(0, most - 1)}…` : line;
  const wide = Math.min(width * 0.96, size * (0.62 * text.length + 1.4));
  return [
    svg("rect", { class: "plate", x: (width - wide) / 2, y: height - size * 2.3, width: wide, height: size * 1.8, rx: size * 0.4 }),
    svg("text", { class: "said", x: width / 2, y: height - size * 1.1, "font-size": size, "text-anchor": "middle" }, text),
  ];
}

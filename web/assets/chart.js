// Charts as inline SVG. Labels are text beside the drawing, so that they keep their size.

import { h } from "./dom.js";

const WIDTH = 1000;
const HEIGHT = 200;

/** A round number that is at least `value`. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

function axis(max, format) {
  return h("div", { class: "chart-y", "aria-hidden": "true" },
    h("span", null, format(max)), h("span", null, format(max / 2)), h("span", null, format(0)));
}

function frame(label, max, format, labels, ...drawing) {
  const grid = [0, 0.5, 1].map((share) => h("line", {
    class: "grid", x1: 0, x2: WIDTH, y1: share * HEIGHT, y2: share * HEIGHT,
  }));
  return h("div", { class: "chart" }, axis(max, format),
    h("svg", { viewBox: `0 -4 ${WIDTH} ${HEIGHT + 8}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
      grid, drawing),
    labels.length ? h("div", { class: "chart-x", "aria-hidden": "true" }, labels.map((text) => h("span", null, text))) : null);
}

/** The parts of a series between its gaps: points without a value. */
function runs(points) {
  const parts = [[]];
  for (const point of points) {
    if (point[1] === undefined) parts.push([]);
    else parts[parts.length - 1].push(point);
  }
  return parts.filter((part) => part.length > 0);
}

/** A value that holds until the next point: a corner at each change. */
function steps(points) {
  return points.flatMap(([at, value], index) => (index === 0 ? [[at, value]] : [[at, points[index - 1][1]], [at, value]]));
}

/**
 * Curves over time. `series`: `{ class, points: [[x, y]], area, isStep }`, with a gap at each point without y;
 * `from` and `until` bound x; `now` is a vertical line, as are `marks` of the grid.
 */
export function curve({ label, series, now, from, until, format, labels, marks = [] }) {
  const values = series.flatMap((one) => one.points.map(([, y]) => y)).filter((value) => value !== undefined);
  const max = roundUp(Math.max(...values, 0));
  const x = (at) => ((at - from) / Math.max(until - from, 1e-9)) * WIDTH;
  const y = (value) => HEIGHT - (Math.max(0, value) / max) * HEIGHT;
  const drawn = series.flatMap((one) => runs(one.points).map((part) => ({ ...one, points: one.isStep ? steps(part) : part }))).flatMap((one) => {
    const path = one.points.map(([at, value]) => `${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("L");
    const [first] = one.points[0];
    const [last] = one.points[one.points.length - 1];
    const area = one.area && h("path", {
      class: `area ${one.class}`, d: `M${x(first).toFixed(1)} ${HEIGHT}L${path}L${x(last).toFixed(1)} ${HEIGHT}Z`,
    });
    return [area, h("path", { class: `line ${one.class}`, d: `M${path}` })].filter(Boolean);
  });
  const present = now === undefined ? null : h("line", { class: "present", x1: x(now), x2: x(now), y1: 0, y2: HEIGHT });
  const vertical = marks.map((at) => h("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: HEIGHT }));
  return frame(label, max, format, labels, vertical, drawn, present ?? []);
}

/** The positions of neighbours with a value: `[[first, last], value]`. */
function plateaus(values) {
  const found = [];
  values.forEach((value, index) => {
    const last = found[found.length - 1];
    if (value === undefined) return;
    if (last && last[1] === value && last[0][1] === index - 1) last[0][1] = index;
    else found.push([[index, index], value]);
  });
  return found;
}

/** Stacked bars. `bars`: `{ title, parts: [{ class, value }] }`; `lines`: `{ class, values }`, a level for each bar. */
export function bars({ label, bars: all, lines = [], format, labels }) {
  const sum = (bar) => bar.parts.reduce((total, part) => total + Math.max(0, part.value), 0);
  const levels = lines.flatMap((line) => line.values).filter((value) => value !== undefined);
  const max = roundUp(Math.max(...all.map(sum), ...levels, 0));
  const width = WIDTH / Math.max(all.length, 1);
  const drawn = all.map((bar, index) => {
    let top = HEIGHT;
    const parts = bar.parts.filter((part) => part.value > 0).map((part) => {
      const height = (part.value / max) * HEIGHT;
      top -= height;
      return h("rect", {
        class: part.class, x: (index * width + width * 0.12).toFixed(1), y: top.toFixed(1),
        width: (width * 0.76).toFixed(1), height: height.toFixed(1),
      });
    });
    return h("g", null, h("title", null, bar.title), parts);
  });
  const level = (line) => plateaus(line.values).map(([[first, last], value]) => {
    const y = (HEIGHT - (value / max) * HEIGHT).toFixed(1);
    return h("path", { class: `line ${line.class}`, d: `M${(first * width).toFixed(1)} ${y}L${((last + 1) * width).toFixed(1)} ${y}` });
  });
  return frame(label, max, format, labels, drawn, lines.map(level));
}

/**
 * A bar of a share of a limit, which may exceed it: the filled part, and a mark. The text beside it has
 * the figures. Without a known share it is an empty frame.
 */
export function gauge({ share, mark, level = "", parts }) {
  const isKnown = share !== undefined && share !== null;
  const whole = Math.max(1, ...[share, mark].filter((value) => value > 0));
  const width = (value) => Math.max(0, Math.min(100, (100 * value) / whole));
  let at = 0;
  const filled = (parts ?? [{ class: "", share }]).filter((part) => isKnown && part.share > 0).map((part) => {
    const rect = h("rect", { class: `fill ${part.class} ${level}`, x: `${at}%`, width: `${width(part.share)}%`, height: "100%" });
    at += width(part.share);
    return rect;
  });
  const limit = whole > 1 && h("rect", { class: "limit", x: `${width(1)}%`, width: 2, height: "100%" });
  const marked = mark !== undefined && h("rect", { class: "mark", x: `${Math.min(99.4, width(mark))}%`, width: 2, height: "100%" });
  return h("svg", { class: isKnown ? "gauge" : "gauge unread", "aria-hidden": "true" }, filled, limit, marked);
}

/** A legend: `[class, text]`. */
export function legend(entries) {
  return h("ul", { class: "legend" }, entries.map(([kind, text]) =>
    h("li", null, h("svg", { class: "key", "aria-hidden": "true" }, h("rect", { class: `fill ${kind}`, width: "100%", height: "100%" })), text)));
}

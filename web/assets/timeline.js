// Rows of bars over time, with an axis of round instants. Text keeps its size, because only positions are relative.

import { h } from "./dom.js";

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;
const STEPS = [1, 5, 10, 15, 30].map((step) => step * MINUTE).concat([1, 2, 3, 6, 12].map((step) => step * HOUR), [1, 2, 7, 14, 28].map((step) => step * DAY));

/** Round instants of the browser's time zone between two instants, at most `most`. */
export function ticks({ from, until }, most) {
  const step = STEPS.find((one) => (until - from) / one <= most) ?? 91 * DAY;
  const zone = -new Date(from * 1000).getTimezoneOffset() * MINUTE;
  const all = [];
  for (let at = Math.ceil((from + zone) / step) * step - zone; at <= until; at += step) all.push(at);
  return all;
}

const share = ({ from, until }, at) => Math.max(0, Math.min(1, (at - from) / Math.max(until - from, 1e-9)));
const percent = (value) => `${(100 * value).toFixed(2)}%`;

/** The axis below rows. `format` makes the text of an instant. */
export function axis(span, format) {
  const text = (at, kind) => {
    const x = share(span, at);
    const anchor = x < 0.06 ? "start" : x > 0.94 ? "end" : "middle";
    return h("text", { x: percent(x), y: 13, "text-anchor": anchor, class: kind }, format(at));
  };
  // Fewer of them on a phone.
  const few = ticks(span, 4);
  return h("svg", { class: "time-axis", "aria-hidden": "true" },
    ticks(span, 8).map((at) => text(at, "many")), few.map((at) => text(at, "few")));
}

/** The bars of a group that overlap, below each other: each gets its level, from 0, and the number of levels. */
function stacked(group) {
  const ends = [];
  const placed = group.map((bar) => {
    const found = ends.findIndex((end) => end <= bar.from);
    const level = found < 0 ? ends.length : found;
    ends[level] = bar.until;
    return { ...bar, level };
  });
  return placed.map((bar) => ({ ...bar, levels: ends.length }));
}

/** The shown bars in groups: no bar overlaps one of another group. */
function levels(span, bars) {
  const groups = [];
  let end = -Infinity;
  for (const bar of bars.filter((one) => one.until > span.from && one.from < span.until).sort((a, b) => a.from - b.from)) {
    if (bar.from >= end) groups.push([]);
    groups[groups.length - 1].push(bar);
    end = Math.max(end, bar.until);
  }
  return groups.flatMap(stacked);
}

/** A bar: solid until `solid` and planned from then on; with `share` the fuller, the more opaque. */
function drawn(span, bar, top, height) {
  const [from, until] = [share(span, bar.from), share(span, bar.until)];
  if (until <= from) return null;
  const solid = bar.solid === undefined ? 1 : Math.max(0, Math.min(1, (share(span, bar.solid) - from) / (until - from)));
  const rect = (kind, x, width) => (width <= 0 ? null : h("rect", {
    class: kind, x: percent(x), width: percent(width), height: "100%", "fill-opacity": bar.share === undefined ? null : (0.2 + 0.8 * bar.share).toFixed(2),
  }));
  const box = h("svg", { class: `bar ${bar.class}`, x: percent(from), y: percent(top), width: percent(until - from), height: percent(height) },
    bar.title ? h("title", null, bar.title) : null, rect("solid", 0, solid), rect("planned", solid, 1 - solid),
    bar.text ? h("text", { x: 4, y: "50%", "dominant-baseline": "central" }, bar.text) : null);
  // The mouse may follow it; the table beside the rows has the same link for the keyboard.
  return bar.href ? h("svg:a", { href: bar.href, tabindex: "-1" }, box) : box;
}

/**
 * Rows of bars. `rows`: `{ key, name, bars, bands }`; a bar: `{ from, until, solid, share, class, text, title, href,
 * bands }`. Bars that overlap are below each other in a higher row; `bands` of a bar or of a row lie behind it. `now` is
 * a vertical line.
 */
export function rows(span, { rows: all, now }) {
  return all.map((row) => {
    const bars = levels(span, row.bars);
    const present = now === undefined || now < span.from || now > span.until ? null
      : h("line", { class: "present", x1: percent(share(span, now)), x2: percent(share(span, now)), y1: 0, y2: "100%" });
    const each = (bar, of) => drawn(span, of, bar.level / bar.levels, 1 / bar.levels);
    return h("div", { class: `lane ${row.class ?? ""} ${bars.some((bar) => bar.levels > 1) ? "deep" : ""}`, "data-key": row.key },
      h("span", { class: "lane-name", title: row.name }, row.name),
      h("svg", { class: "lane-bars", "aria-hidden": "true" },
        (row.bands ?? []).map((band) => drawn(span, band, 0, 1)),
        bars.map((bar) => (bar.bands ?? []).map((band) => each(bar, band))), bars.map((bar) => each(bar, bar)), present));
  });
}

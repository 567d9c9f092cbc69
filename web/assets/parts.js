// Parts that several pages share.

import { h } from "./dom.js";
import { gauge } from "./chart.js";
import * as f from "./format.js";

/** A glyph for each state; the text beside it names the state. */
const GLYPHS = {
  running: "▶", starting: "▷", observed: "◉", stopping: "◁", queued: "…", finished: "✓", failed: "✕", cancelled: "–",
  ok: "✓", warning: "▲", fault: "✕",
};

export function state(text, kind = text.split(" ")[0]) {
  return h("span", { class: `state ${kind}` }, h("span", { class: "glyph", "aria-hidden": "true" }, GLYPHS[kind] ?? "•"), text);
}

/** The heading of a page; it receives the focus after navigation. */
export function heading(text, ...more) {
  return h("div", { class: "heading" }, h("h1", { tabindex: "-1" }, text), ...more);
}

export function card(title, ...content) {
  return h("section", { class: "card" }, h("h2", null, title), ...content);
}

/** A figure with its unit: `1.58 kW`, `at least 1.58 kW`. */
export function figure(text, ...more) {
  const [, bound, value, unit] = /^(at least )?(\S+)(.*)$/.exec(String(text));
  return h("p", { class: "figure" }, bound ? h("span", { class: "of" }, bound) : null, h("b", null, value), unit, ...more);
}

/** The energy of a job; of GPUs without a meter it is not known. */
export function jobEnergy(row) {
  return f.stated(f.energy(row.wh), row.wh, row.energy_missing !== undefined);
}

/**
 * A table. `columns`: `{ title, class, cell(row), head, sort }`; a column with `head` names its row, and the title of one
 * with `sort`, `{ address, order }`, orders the rows by it.
 */
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return h("p", { class: "empty" }, empty);
  const cell = (column, row) => {
    const content = column.cell(row);
    return h(column.head ? "th" : "td", { class: column.class, scope: column.head && "row" }, content);
  };
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    h("table", null, h("caption", { class: "hidden" }, caption),
      h("thead", null, h("tr", null, columns.map((column) => h("th", { scope: "col", class: column.class, "aria-sort": column.sort?.order },
        column.sort ? h("a", { href: column.sort.address }, column.title) : column.title)))),
      h("tbody", null, rows.map((row) => h("tr", { "data-key": row.key }, columns.map((column) => cell(column, row)))))));
}

function progress(row) {
  if (!f.isKnown(row.done)) return h("span", { class: "muted" }, "not reported");
  return h("span", { class: "progress" }, gauge({ share: row.done }), h("span", null, f.percent(row.done)));
}

/** An expected instant with its 90 % interval in words. */
export function between({ s: [at, from, until] }, ctx) {
  const time = (s) => f.time(s, ctx.now());
  return `${time(at)}, between ${time(from)} and ${time(until)}`;
}

/** The expected start or end of a job with its interval; without them its predicted end, remaining time or state. */
export function end(row, ctx) {
  if (row.group === 2) return row.ended_s ? f.time(row.ended_s, ctx.now()) : "–";
  const { start, end: last, unknown } = row.expected ?? {};
  const next = row.group === 1 ? start : last;
  if (next) {
    const at = f.time(next.s[0], ctx.now());
    const range = `${f.time(next.s[1], ctx.now())} to ${f.time(next.s[2], ctx.now())}`;
    return [h("span", null, row.group === 1 ? `starts ${at}` : at), " ", h("span", { class: "muted name" }, range)];
  }
  if (row.group === 1 && unknown) return unknown;
  if (f.isKnown(row.end_s)) return [h("span", null, f.time(row.end_s, ctx.now())), " ", h("span", null, `(${f.span(row.end_s - ctx.now())})`)];
  if (f.isKnown(row.rest_s)) return `${f.span(row.rest_s)} to run`;
  return "–";
}

export function jobLink(id) {
  return h("a", { href: `/jobs/${encodeURIComponent(id)}` }, id);
}

/** How long a job has waited without GPUs. */
function waited(row, ctx) {
  return f.span(row.waits_as_since_s === undefined ? row.waited_s : ctx.now() - row.waits_as_since_s);
}

/** The time of a deadline, with the time until it. */
function deadline(row, ctx) {
  if (row.deadline_s === undefined) return "–";
  const left = row.deadline_s - ctx.now();
  return [f.time(row.deadline_s, ctx.now()), row.group === 2 ? null : h("span", { class: "muted name" }, left < 0 ? `passed ${f.span(-left)} ago` : `in ${f.span(left)}`)];
}

/** The columns of a table of jobs, `brief` without those that only the list of jobs has. */
export function jobColumns(ctx, { brief = false, hasDeadline = false } = {}) {
  const columns = [
    { title: "Job", head: true, class: "job", cell: (row) => [jobLink(row.key), row.name ? h("span", { class: "muted name" }, row.name) : null] },
    { title: "State", cell: (row) => [state(row.phase), row.unsaved ? h("span", { class: "muted name" }, "lost work") : null] },
    { title: "User", class: "wide", cell: (row) => (row.user ? row.user + (row.project ? ` / ${row.project}` : "") : "–") },
    { title: "GPUs", key: "gpus", class: "number", cell: (row) => row.gpus },
    { title: "Where", class: "wide where", cell: (row) => row.where ?? "–" },
    { title: "Power W", class: "number", cell: (row) => f.watts(row.w) },
    { title: "Energy", key: "energy", class: "number wide", cell: jobEnergy },
    { title: "Done", key: "done", class: "medium", cell: progress },
    { title: "Waited", key: "waited", class: "number medium", cell: (row) => waited(row, ctx) },
    { title: "End", class: "end", cell: (row) => end(row, ctx) },
    { title: "Deadline", key: "deadline", class: "end", cell: (row) => deadline(row, ctx) },
  ];
  // Half as wide: the list of jobs has the others.
  const left = [...(brief ? ["User", "Where", "Energy", "Waited"] : []), ...(hasDeadline ? [] : ["Deadline"])];
  return columns.filter((column) => !left.includes(column.title));
}

export function jobRows({ rows, order }) {
  return order.map((key) => ({ key, ...rows[key] }));
}

/** Links to the parts of a list. */
export function pager(page, ctx) {
  if (page.pages <= 1) return null;
  const link = (number, text, isPossible) =>
    isPossible ? h("a", { href: ctx.address({ page: number }), class: "button" }, text) : h("span", { class: "button off" }, text);
  return h("nav", { class: "pager", "aria-label": "Parts of the list" },
    link(page.number - 1, "Previous", page.number > 0),
    h("span", null, `${page.number + 1} of ${page.pages}`),
    link(page.number + 1, "Next", page.number + 1 < page.pages));
}

/** A search field that filters the list while a person types. */
export function search(ctx, label, value) {
  return h("form", { class: "search", role: "search", onsubmit: (event) => event.preventDefault() },
    h("label", { for: "search" }, label),
    h("input", {
      id: "search", type: "search", value, autocomplete: "off", spellcheck: "false",
      oninput: (event) => ctx.later(() => ctx.go(ctx.address({ q: event.target.value, page: 0 }), { replace: true })),
    }));
}

export function faults(list, heading = "Needs attention") {
  if (!list || list.count === 0) return null;
  return h("section", { class: "faults" }, h("h2", null, heading),
    h("ul", null, list.shown.map((fault) => h("li", { class: fault.level },
      state(fault.level), h("span", { class: "of" }, fault.of), h("span", null, fault.text),
      h("span", { class: "muted" }, fault.remedy)))),
    list.count > list.shown.length ? h("p", { class: "muted" }, `${list.count - list.shown.length} more`) : null);
}

/** A description list: `[[term, value]]`; entries without a value are left out. */
export function facts(entries) {
  return h("dl", { class: "facts" }, entries.filter(([, value]) => value !== null && value !== undefined && value !== "–")
    .map(([term, value]) => h("div", null, h("dt", null, term), h("dd", null, value))));
}

// The GPUs over time: past and present jobs until their expected ends, and the expected starts and ends of the queue.

import { h } from "../dom.js";
import { legend } from "../chart.js";
import { axis, rows } from "../timeline.js";
import * as f from "../format.js";
import { between, card, heading, jobLink, pager, search, state, table } from "../parts.js";

const HOUR = 3600;
/** How much time is shown; the first is chosen by the expected ends. */
const RANGES = [["", "To the last end"], ["6h", "6 hours", 6 * HOUR], ["1d", "1 day", 24 * HOUR], ["7d", "7 days", 7 * 24 * HOUR]];
const AHEAD_LEAST = 600;
const AHEAD_MOST = 7 * 24 * HOUR;

export const title = () => "Schedule";

const compare = (a, b) => a.localeCompare(b, undefined, { numeric: true });

/** A colour that a job keeps on all its rows. */
function colour(job) {
  const sum = [...job].reduce((hash, letter) => (hash * 31 + letter.codePointAt(0)) % 9973, 7);
  return `w${sum % 8}`;
}

const endOf = (job) => job?.expected?.end?.s;
const startOf = (job) => job?.expected?.start?.s;

/** The time that is shown: a quarter of a fixed range is past; otherwise all until the last expected end. */
function spanOf(page, ctx, name) {
  const now = ctx.now();
  const length = RANGES.find(([key]) => key === name)?.[2];
  if (length) return { from: now - length / 4, until: now + (length * 3) / 4 };
  const jobs = [...Object.values(page.jobs), ...Object.values(page.queued.rows)];
  const ends = jobs.map((job) => (endOf(job) ?? startOf(job))?.[0]).filter(f.isKnown);
  const ahead = Math.min(AHEAD_MOST, Math.max(AHEAD_LEAST, ...ends.map((end) => (end - now) * 1.05)));
  const starts = Object.values(page.jobs).map((job) => job.from_s);
  const past = now - Math.min(page.since_s ?? now, ...starts);
  return { from: now - Math.min(ahead / 2, Math.max(past, AHEAD_LEAST / 2)), until: now + ahead };
}

/** When the page did not see which jobs had GPUs. */
function unseen(page, span) {
  const first = page.since_s === undefined ? [] : [[span.from, page.since_s]];
  return [...first, ...page.gaps].map(([from, until]) => ({
    from, until: until ?? span.until, class: "unseen", title: "The page did not see this time.",
  }));
}

function words(id, job, ctx) {
  const end = job?.expected?.end;
  const since = job ? `since ${f.time(job.from_s, ctx.now())}` : "";
  return `${id} ${since}, ${end ? `expected end ${between(end, ctx)}` : `end ${job?.expected?.unknown ?? "not known"}`}`;
}

const link = (id) => `/jobs/${encodeURIComponent(id)}`;

/** The bar of a job that has a GPU: until now, and further to its expected end; its interval is a band, or a frame if its
    end is not known. */
function present(id, page, ctx) {
  const now = ctx.now();
  const job = page.jobs[id];
  const end = endOf(job);
  const from = job?.from_s ?? now;
  const title = words(id, job, ctx);
  const until = end?.[2] ?? Infinity;
  const bands = until > now ? [{ from: Math.max(end?.[1] ?? now, now), until, class: end ? `band ${colour(id)}` : "unknown", title }] : [];
  return { from, until: Math.max(end?.[0] ?? now, now), solid: now, class: colour(id), text: id, href: link(id), title, bands };
}

function past([id, from, until], ctx) {
  return { from, until, class: `past ${colour(id)}`, text: id, href: link(id), title: `${id} from ${f.time(from, ctx.now())} to ${f.time(until, ctx.now())}` };
}

/** One GPU. */
function gpuRow(key, row, page, ctx, hidden) {
  const isFirst = row.gpu === 0;
  const note = row.state ? ` ${row.state}` : "";
  return {
    key, name: `${row.node} GPU ${row.gpu}${note}`, class: isFirst ? "first" : "",
    bars: [...row.past.map((one) => past(one, ctx)), ...row.held.map(([id]) => present(id, page, ctx))], bands: hidden,
  };
}

/** A node of a large cluster: how many of its GPUs jobs have over time. */
function nodeRow(key, row, page, ctx, hidden) {
  const now = ctx.now();
  const spans = [
    ...row.past.map(([, from, until, count]) => [from, until, count]),
    ...row.held.map(([id, count]) => [page.jobs[id]?.from_s ?? now, Math.max(endOf(page.jobs[id])?.[0] ?? now, now), count]),
  ];
  const isOpen = row.held.some(([id]) => !endOf(page.jobs[id]));
  const at = [...new Set([...spans.flatMap(([from, until]) => [from, until]), now])].sort((a, b) => a - b);
  const bars = at.slice(1).map((until, index) => {
    const from = at[index];
    // GPUs that jobs share count once for each job, and a node has no more than it has.
    const count = spans.filter((span) => span[0] <= from && span[1] >= until).reduce((sum, span) => sum + span[2], 0);
    const busy = Math.min(count, row.gpus);
    const text = `${from >= now && isOpen ? "at least " : ""}${busy} of ${row.gpus}`;
    return { from, until, busy, share: f.ratio(busy, row.gpus), class: from >= now ? "busy planned" : "busy", text, title: `${f.time(from, now)} to ${f.time(until, now)}: jobs have ${text} GPUs` };
  });
  return { key, name: `${row.node}${row.state ? ` ${row.state}` : ""}`, bars: bars.filter((bar) => bar.busy > 0), bands: hidden };
}

/** A queued job: from its expected start to its expected end, with the intervals of both. */
function queueRow(id, job, ctx) {
  const [start, end] = [startOf(job), endOf(job)];
  const unknown = job.expected?.unknown ?? "not known yet";
  if (!start) return { key: `q-${id}`, name: id, bars: [{ from: ctx.now(), until: Infinity, class: "none", text: unknown, href: link(id), title: `${id}: ${unknown}` }] };
  const title = `${id}: expected start ${between(job.expected.start, ctx)}; expected end ${end ? between(job.expected.end, ctx) : "not known"}`;
  const band = ([, from, until]) => ({ from: Math.max(from, ctx.now()), until, class: `band ${colour(id)}`, title });
  return {
    key: `q-${id}`, name: id, bands: [start, end].filter(Boolean).map(band),
    bars: [{ from: start[0], until: Math.max(end?.[0] ?? start[2], start[0] + 1), solid: start[0], class: colour(id), text: job.gpus === "1" ? "1 GPU" : `${job.gpus} GPUs`, href: link(id), title }],
  };
}

/** The same as text: each job once. */
function asTable(page, ctx) {
  const instant = (one, unknown) => (one ? between(one, ctx) : unknown ?? "not known");
  const columns = [
    { title: "Job", head: true, class: "job", cell: (row) => jobLink(row.key) },
    { title: "State", cell: (row) => state(row.phase) },
    { title: "GPUs", class: "where", cell: (row) => row.where ?? row.gpus },
    { title: "Start", cell: (row) => (row.from_s === undefined ? instant(row.expected?.start, row.expected?.unknown) : f.time(row.from_s, ctx.now())) },
    { title: "Expected end", cell: (row) => instant(row.expected?.end, row.from_s === undefined ? undefined : row.expected?.unknown) },
  ];
  const on = Object.entries(page.jobs).map(([key, job]) => ({ key, ...job })).sort((a, b) => a.from_s - b.from_s);
  const waits = page.queued.order.map((key) => ({ key, phase: "queued", ...page.queued.rows[key] }));
  return table("Jobs with GPUs and queued jobs with their expected times", columns, [...on, ...waits], "No job has GPUs and none waits.");
}

function verdict(page, ctx) {
  const ends = Object.values(page.jobs).map(endOf).filter(Boolean).map(([at]) => at);
  const starts = Object.values(page.queued.rows).map(startOf).filter(Boolean).map(([at]) => at);
  const next = (list) => f.time(Math.min(...list), ctx.now());
  return [
    `${f.count(Object.keys(page.jobs).length, "job")} on GPUs${ends.length ? `, the next expected end at ${next(ends)}` : ""}`,
    `${page.queued.total} queued${starts.length ? `, the next expected start at ${next(starts)}` : ""}`,
  ].join("; ");
}

export function draw(page, ctx) {
  const chosen = new URLSearchParams(location.search).get("range") ?? "";
  const now = ctx.now();
  const span = spanOf(page, ctx, chosen);
  const time = (at) => f.time(at, now);
  const hidden = unseen(page, span);
  const all = Object.entries(page.rows).sort(([a], [b]) => compare(a, b));
  const row = page.detailed ? gpuRow : nodeRow;
  const queue = page.queued.order.map((id) => queueRow(id, page.queued.rows[id], ctx));
  const label = `${time(span.from)} to ${time(span.until)}; the table below has the same as text`;
  const what = page.detailed ? "GPUs" : "nodes";
  return [
    heading("Schedule", h("p", { class: "verdict-line" }, verdict(page, ctx))),
    h("div", { class: "tools" },
      h("nav", { class: "choice", "aria-label": "Shown time" }, RANGES.map(([key, text]) =>
        h("a", { href: ctx.address({ range: key }), "aria-current": chosen === key && "true" }, text))),
      search(ctx, "Find by node or job", page.search)),
    card(page.detailed ? "GPUs" : "Nodes", all.length === 0 ? h("p", { class: "empty" }, page.search ? "No node matches." : "No node has reported.")
      : h("div", { class: "timeline gantt", role: "group", "aria-label": `Jobs on ${what}, ${label}` },
        rows(span, { now, rows: all.map(([key, one]) => row(key, one, page, ctx, hidden)) }), axis(span, time)),
    pager(page, ctx)),
    card(`Queue: ${f.count(page.queued.total, "job")}`, queue.length === 0 ? h("p", { class: "empty" }, "No job waits.")
      : h("div", { class: "timeline gantt", role: "group", "aria-label": `Queued jobs, ${label}` }, rows(span, { now, rows: queue }), axis(span, time)),
    page.queued.total > queue.length ? h("p", null, h("a", { href: "/jobs?show=queued" }, `All ${page.queued.total} queued jobs`)) : null),
    legend([["w2", "had or has GPUs"], ["w2 planned", "planned, to the expected end"], ["w2 band", "90 % interval"], ["unknown-end", "end not known"], ["unseen", "not seen by the page"]]),
    h("p", { class: "muted" }, "The GPUs of a queued job are not known before its start. Times are expected if no further job is submitted."),
    h("details", null, h("summary", null, "As a table"), asTable(page, ctx)),
  ];
}

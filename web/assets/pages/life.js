// The life of a job: what it did, its power against the caps, its speed, and its co-tenants, over one time axis.

import { h } from "../dom.js";
import { curve, legend } from "../chart.js";
import { axis, rows, ticks } from "../timeline.js";
import * as f from "../format.js";
import { card, jobLink, table } from "../parts.js";

const STAGES = {
  waits: "waits", "waits-or-starts": "waits or starts", starts: "starts", runs: "has GPUs", unknown: "not known",
};

const values = (entries) => Object.entries(entries).sort((a, b) => Number(a[0]) - Number(b[0])).map(([, value]) => value);

/** The points of one value: it holds over a part, and a time without a part or without a value is a gap. */
function course(parts, value) {
  const points = [];
  parts.forEach((part, index) => {
    const known = value(part) ?? undefined;
    const before = parts[index - 1];
    if (before && part[0] - before[1] > 1) points.push([before[1], undefined]);
    points.push([part[0], known], [part[1], known]);
  });
  return points;
}

const known = (points) => points.map(([, y]) => y).filter((y) => y !== undefined);

/** `mean 180 W, at most 190 W`; the mean over the time. */
function extent(points, format) {
  const all = known(points);
  if (all.length === 0) return "not known";
  const [least, most] = [Math.min(...all), Math.max(...all)];
  return least === most ? format(most) : `${format(least)} to ${format(most)}`;
}

/** A stage in words: short, and with its times. */
function stageWords({ doing, from_s: from, until_s, start }, starts, span, ctx) {
  const gpus = starts.find((one) => one.start === start)?.gpus;
  const text = doing === "runs" ? `start ${start}${f.isKnown(gpus) ? `, ${f.count(gpus, "GPU")}` : ""}` : STAGES[doing];
  const until = until_s ?? span.until;
  return { text, until, title: `${text}: ${f.time(from, ctx.now())} to ${until_s === undefined ? "now" : f.time(until, ctx.now())}, ${f.span(until - from)}` };
}

function stageRow(stages, starts, span, ctx) {
  const bars = stages.map((stage) => ({ from: stage.from_s, class: stage.doing, ...stageWords(stage, starts, span, ctx) }));
  return { key: "state", name: "State", bars };
}

const tenantRow = ({ job, spans }, ctx) => ({
  key: `with-${job}`, name: job,
  bars: spans.map(([from, until]) => ({
    from, until, class: "tenant", text: "shares its GPUs", href: `/jobs/${encodeURIComponent(job)}`,
    title: `${job} shares its GPUs from ${f.time(from, ctx.now())} to ${f.time(until, ctx.now())}`,
  })),
});

const COLUMNS = (ctx) => [
  { title: "Start", head: true, cell: (row) => row.start },
  { title: "Measured", cell: (row) => `${f.time(row.from_s, ctx.now())} to ${f.time(row.until_s, ctx.now())} (${f.span(row.until_s - row.from_s)})` },
  { title: "GPUs", class: "number", cell: (row) => row.gpus },
  { title: "Nodes", cell: (row) => row.nodes.join(", ") },
  { title: "Own power", class: "number", cell: (row) => f.power(row.w) },
  { title: "GPUs of caps", class: "number", cell: (row) => `${f.power(row.gpus_w)} / ${f.power(row.caps_w)}` },
  { title: "Steps/s", class: "number", cell: (row) => f.number(row.rate) },
  { title: "Shared with", cell: (row) => (row.with.length ? row.with.map((job, index) => [index ? ", " : "", jobLink(job)]) : "–") },
];

/** The pictures of a job's life; nothing before its windows are read. */
export function lifeOf({ row, details }, ctx) {
  const { life } = details;
  if (!life) return null;
  const until = row.ended_s ?? ctx.now();
  const span = { from: row.submitted_s, until: Math.max(until, row.submitted_s + 1) };
  const [stages, parts, starts, tenants] = [life.stages, life.parts, life.starts, life.tenants].map(values);
  const [own, gpus, caps, speed] = [2, 3, 4, 5].map((column) => course(parts, (part) => part[column]));
  const isShared = tenants.length > 0;
  const isLive = row.ended_s === undefined;
  const words = `${isLive ? "Present" : "Ended"} after ${f.span(span.until - span.from)}: ${[
    f.isKnown(life.waited_s) ? `waited ${f.span(life.waited_s)}` : null,
    f.isKnown(life.ran_s) ? `had GPUs for ${f.span(life.ran_s)}` : null,
    f.count(row.starts, "start"),
  ].filter(Boolean).join(", ")}.`;
  const plot = { from: span.from, until: span.until, labels: [], marks: ticks(span, 8) };
  const time = (at) => f.time(at, ctx.now());
  return card("Life", h("p", null, words),
    h("div", { class: "timeline", role: "group", "aria-label": `Life of the job from ${time(span.from)} to ${isLive ? "now" : time(span.until)}` },
      h("ol", { class: "hidden" }, stages.map((stage) => h("li", null, stageWords(stage, starts, span, ctx).title))),
      rows(span, { rows: [stageRow(stages, starts, span, ctx), ...tenants.map((tenant) => tenantRow(tenant, ctx))] }),
      known(gpus).length === 0 ? h("p", { class: "empty" }, "No power is measured yet: the first window closes within a minute.") : [
        h("h3", null, "Power"),
        curve({
          ...plot, format: f.power,
          label: `Power ${isShared ? "of its GPUs with all co-tenants" : "of its GPUs"}: ${extent(gpus, f.power)}; ${isShared ? `own part ${extent(own, f.power)}; ` : ""}sum of their caps ${extent(caps, f.power)}`,
          series: [
            { class: isShared ? "hosts" : "gpus", points: gpus, area: !isShared },
            ...(isShared ? [{ class: "gpus", points: own, area: true }] : []),
            { class: "limit", points: caps },
          ],
        }),
      ],
      known(speed).length === 0 ? null : [
        h("h3", null, "Speed"),
        curve({ ...plot, format: (rate) => `${f.number(rate)}/s`, label: `Steps per second: ${extent(speed, f.number)}`, series: [{ class: "speed", points: speed, area: true }] }),
      ],
      axis(span, time)),
    legend([["waits", "waits"], ["starts", "starts"], ["runs", "has GPUs"], ...(isShared ? [["tenant", "shared with"], ["hosts", "its GPUs, with co-tenants"], ["gpus", "its own power"]] : [["gpus", "its GPUs"]]), ["limit", "caps in force"], ...(known(speed).length ? [["speed", "steps per second"]] : [])]),
    life.is_inferred ? h("p", { class: "muted" }, "The job reports no steps. The rate inferred from its power is no speed, and is not drawn.") : null,
    life.tenants_more ? h("p", { class: "muted" }, `${f.count(life.tenants_more, "more co-tenant")} with less time`) : null,
    starts.length ? h("details", null, h("summary", null, "Starts as a table"),
      table("Starts of the job with their measured means", COLUMNS(ctx), starts.map((one) => ({ key: String(one.start), ...one })), "")) : null);
}

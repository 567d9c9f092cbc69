// One grid event: its target over time, what was measured, and what was delivered.

import { h } from "../dom.js";
import { curve, gauge, legend } from "../chart.js";
import * as f from "../format.js";
import { card, facts, heading, state, table } from "../parts.js";
import { send } from "../session.js";
import { GLYPH } from "./events.js";

let message = { text: "", kind: "" };
/** The request that waits for a confirmation. */
let confirming = "";

export const title = (page) => page.event;
export const leave = () => { message = { text: "", kind: "" }; confirming = ""; };

/** The curves: class, name, and position in the points of the report. */
const CURVES = [["measured", "measured", 0], ["like-days", "like days", 1], ["meter-before", "meter before", 2], ["twin", "twin", 3]];

function picture(page, ctx) {
  const { report } = page;
  const from = page.start_s;
  const until = Math.max(page.settled_s, from + 60);
  // The last limit holds until it ends.
  const limit = page.limit.map(({ s, w }, at) => [s, w ?? page.limit[at - 1]?.w]);
  const at = Object.entries(report?.points ?? {}).map(([s, values]) => [Number(s), values]).sort((a, b) => a[0] - b[0]);
  const value = (one) => (typeof one === "number" ? one : undefined);
  const curves = CURVES.map(([kind, name, position]) => ({ kind, name, points: at.map(([s, values]) => [s + 30, value(values[position])]) }))
    .filter(({ points }) => points.some(([, w]) => w !== undefined));
  const series = curves.map(({ kind, points }) => ({ class: kind, points, area: kind === "measured" }));
  series.push({ class: "target", points: limit, isStep: true });
  const now = ctx.now() >= from && ctx.now() < until ? ctx.now() : undefined;
  const entries = [["target", "target"], ...curves.map(({ kind, name }) => [kind, name])];
  return card(`Power of ${page.place}`, curve({
    label: `Target, measured power and baselines from ${f.time(from, ctx.now())} until ${f.time(until, ctx.now())}. ${report?.verdict ?? page.sentence}`,
    series, from, until, now, format: f.power, labels: [f.time(from, ctx.now()), f.time((from + until) / 2, ctx.now()), f.time(until, ctx.now())],
  }), legend(entries), h("p", { class: "muted" }, "Each point is the mean of a minute, of many minutes in a long event. A gap is a minute in which some node was not metered."));
}

const DELIVERED = [
  { title: "Baseline", head: true, cell: (row) => row.name },
  ...[["Power", "baseline"], ["Measured", "measured"], ["Less", "less"], ["Share", "share"], ["Energy", "energy"], ["Cost", "cost"], ["CO₂", "carbon"]]
    .map(([title, key]) => ({ title, class: "number", cell: (row) => row.delivered?.[key] ?? "–" })),
];

const OUTCOMES = { kept: "ok", "at risk": "warning", exceeded: "fault", "broken for the target": "fault" };

const JOBS = [
  { title: "Job", head: true, class: "job", cell: (row) => h("a", { href: `/jobs/${encodeURIComponent(row.key)}` }, row.key) },
  { title: "GPUs", class: "number", cell: (row) => row.gpus },
  { title: "Promised", class: "number", cell: (row) => row.promised ?? "–" },
  { title: "Lost", class: "number", cell: (row) => row.lost },
  { title: "Expected", class: "number", cell: (row) => row.expected },
  { title: "Promise", cell: (row) => (OUTCOMES[row.outcome] ? state(row.outcome, OUTCOMES[row.outcome]) : row.outcome) },
];

function delivery(page) {
  const { report } = page;
  if (!report) return h("p", { class: "loading" }, "Reading the power of the site…");
  if (Object.keys(report.points).length === 0) return null;
  return [
    h("div", { class: "cards two" },
      card("Within the target", h("p", null, report.target), gauge({ share: report.target_share }),
        facts([["With the shortfall", report.shortfall], ["Ramps", report.ramps], ["Return, at most the power before", report.after], ["Drawn", report.drawn]]),
        h("p", { class: "muted" }, `${report.tolerance[0].toUpperCase()}${report.tolerance.slice(1)}.`)),
      card("Announced", announced(page))),
    card("Delivered", table("What was delivered against each baseline", DELIVERED, report.baselines.map((one) => ({ key: one.name, ...one })), "No baseline."),
      report.baselines.map((one) => h("p", { class: "muted" }, h("b", null, `${one.name}: `), one.method)),
      report.bases ? h("p", { class: "muted" }, h("b", null, "bases: "), report.bases) : null,
      h("p", null, h("a", { href: `/api/event.csv?event=${encodeURIComponent(page.event)}`, download: `${page.event}.csv` }, "Minutes as CSV"))),
    card("Jobs and their promises", table("What each job promised and lost", JOBS, report.jobs, "No job ran during the event so far.")),
  ];
}

let clock = () => 0;

function announced(page) {
  const time = (s) => f.time(s, clock());
  const mean = (one) => (one ? `${one.text} from ${time(one.from_s)} to ${time(one.until_s)}` : null);
  return facts([
    ["Target", page.target], ["Less than before", page.less], ["Shortfall, so that promises hold", page.shortfall], ["Depth", page.depth], ["Feeder", page.feeder],
    ["Kind", page.kind], ["Source", page.source], ["Notice", time(page.notice_s)], ["Start", time(page.start_s)],
    ["Target reached", page.reached_s === page.start_s ? null : time(page.reached_s)], ["End of the target", time(page.end_s)],
    ["Power may be that of before", page.returned_s === page.end_s ? null : time(page.returned_s)],
    ["Closed", page.closed_s === undefined ? null : time(page.closed_s)], ["Power before the notice", mean(page.baseline)], ["Power before the start", mean(page.before)],
  ]);
}

function actions(page, ctx) {
  if (!page.can_change || !ctx.session.person?.operates) return null;
  const request = async (body, done) => {
    confirming = "";
    try {
      await send("POST", "/api/event", body);
      message = { text: done, kind: "ok" };
    } catch (error) {
      message = { text: `Not changed: ${error.message}`, kind: "fault" };
    }
    ctx.announce(message.text);
    ctx.redraw();
  };
  const ask = (what) => { confirming = what; ctx.redraw(); };
  const quiet = (text, onclick) => h("button", { type: "button", class: "quiet", onclick }, text);
  const change = (event) => {
    event.preventDefault();
    request({ do: "change", event: page.event, duration_min: Number(new FormData(event.target).get("duration_min")) }, "The duration is changed.");
  };
  const confirmed = {
    cancel: [`Cancel ${page.event}?`, "Cancel the event", "The event is cancelled."],
    decline: [`Decline ${page.event}?`, "Decline the event", "The event is declined."],
  }[confirming];
  return card("Change", h("form", { class: "fields", onsubmit: change },
    h("div", { class: "field" }, h("label", { for: "duration_min" }, "Duration at the target, minutes"),
      h("input", { id: "duration_min", name: "duration_min", type: "number", min: "1", step: "any", required: true, inputmode: "decimal", placeholder: String(page.duration_min) })),
    h("div", { class: "actions" }, h("button", { type: "submit" }, "Change"), confirmed
      ? [h("span", null, confirmed[0]), h("button", { type: "button", class: "danger", onclick: () => request({ do: confirming, event: page.event }, confirmed[2]) }, confirmed[1]), quiet("Keep it", () => ask(""))]
      : [quiet("Cancel event", () => ask("cancel")), page.can_decline ? quiet("Decline event", () => ask("decline")) : null])));
}

export function draw(page, ctx) {
  clock = () => ctx.now();
  if (!page.found) {
    return [heading(page.event), h("p", { class: "empty" }, "There is no such event, or it was over long ago. ", h("a", { href: "/grid-events" }, "All events"))];
  }
  const report = delivery(page);
  return [
    heading(page.event, h("p", { class: "verdict-line" }, state(page.state, GLYPH[page.state]), h("span", { class: "muted", "aria-hidden": "true" }, " · "), page.report?.verdict ?? page.sentence)),
    message.text ? h("p", null, state(message.text, message.kind)) : null,
    picture(page, ctx),
    report,
    Array.isArray(report) ? null : card("Announced", announced(page)),
    actions(page, ctx),
  ];
}

// One job: why here, what it costs, predicted against measured, its output.

import { h } from "../dom.js";
import * as f from "../format.js";
import { gauge } from "../chart.js";
import { between, card, end, facts, figure, heading, jobEnergy, state, table } from "../parts.js";
import { send } from "../session.js";
import { lifeOf } from "./life.js";
import * as log from "./log.js";

let message = { text: "", kind: "" };
let isConfirming = false;

export const title = (page) => page.job;

export function leave() {
  log.leave();
  message = { text: "", kind: "" };
  isConfirming = false;
}

/** A measured value beside its prediction, and whether the interval contains it. */
function against(measured, predicted, unit) {
  if (!predicted) return "–";
  const [mean, low, high] = predicted;
  if (measured === undefined) return `${f.number(mean)}${unit}`;
  const off = (measured - mean) / mean;
  const inside = measured >= low && measured <= high;
  return [`${f.number(mean)}${unit} `, h("span", { class: "muted" }, Math.abs(off) < 0.005 ? "as predicted" : `${f.percent(Math.abs(off))} ${off > 0 ? "above" : "below"} it, ${inside ? "within" : "outside"} the interval`)];
}

const MEASURED = [
  { title: "Configuration", head: true, cell: (row) => row.label },
  { title: "Time", class: "number medium", cell: (row) => f.span(row.span_s) },
  { title: "Steps/s", class: "number", cell: (row) => f.number(row.rate) },
  { title: "Predicted", cell: (row) => against(row.rate, row.rate_predicted, "") },
  { title: "W/GPU", class: "number", cell: (row) => f.number(row.gpu_w) },
  { title: "Predicted", cell: (row) => against(row.gpu_w, row.gpu_w_predicted, " W") },
];

function costs(details, price, currency) {
  const [placed] = details.costs;
  const compare = (row) => {
    if (row === placed || row.key === "0") return "its placement";
    const time = row.time_s - placed.time_s;
    const energy = row.wh !== undefined && placed.wh ? `, ${f.change((row.wh - placed.wh) / placed.wh)} energy` : "";
    return `${Math.abs(time) < 0.005 * placed.time_s ? "as fast" : `${f.span(Math.abs(time))} ${time > 0 ? "later" : "sooner"}`}${energy}`;
  };
  const columns = [
    { title: "Configuration", head: true, cell: (row) => row.label },
    { title: "Time", class: "number", cell: (row) => f.span(row.time_s) },
    { title: "Energy", class: "number", cell: (row) => f.energy(row.wh) },
    ...(price === undefined ? [] : [{ title: `Cost at ${f.price(price, currency)}`, class: "number", cell: (row) => f.money((row.wh / 1000) * price, currency) }]),
    { title: "Steps/s", class: "number wide", cell: (row) => f.number(row.rate) },
    { title: "W/GPU", class: "number wide", cell: (row) => f.number(row.gpu_w) },
    { title: "Against", cell: compare },
  ];
  const rows = details.costs.map((cost, index) => ({ key: String(index), ...cost }));
  return card(`What it costs: ${details.work}`,
    details.predictor ? h("p", { class: "muted" }, `Predicted by ${details.predictor}${details.basis ? `: ${details.basis}` : ""}`) : null,
    table("Predicted time and energy of the placement and of alternatives", columns, rows, "No prediction of the placement."));
}

function reasons(details, ctx) {
  if (!details.reasons.length) return card("Why here", h("p", { class: "empty" }, "No decision yet: the job waits."));
  return card("Why here", h("ol", { class: "reasons" }, details.reasons.map((one) =>
    h("li", null,
      h("p", null, h("b", null, one.decision), h("span", { class: "muted" }, ` ${f.time(one.at_s, ctx.now())}`)),
      one.consequence ? h("p", null, one.consequence) : null,
      h("p", { class: "muted" }, `${one.by}: ${one.reason}`),
      one.details ? h("details", null, h("summary", null, "Details"), h("p", { class: "muted" }, one.details)) : null))));
}

function cancel(page, ctx) {
  if (page.final || !ctx.session.person?.changes) return null;
  const send_it = async () => {
    isConfirming = false;
    try {
      await send("POST", "/api/cancel", { job: page.job });
      message = { text: "The job is being cancelled.", kind: "ok" };
    } catch (error) {
      message = { text: `Not cancelled: ${error.message}`, kind: "fault" };
    }
    ctx.announce(message.text);
    ctx.redraw();
  };
  const confirm = (value) => { isConfirming = value; ctx.redraw(); };
  return h("div", { class: "actions" }, isConfirming
    ? [h("span", null, `Cancel ${page.job}?`), h("button", { type: "button", class: "danger", onclick: send_it }, "Cancel the job"), h("button", { type: "button", class: "quiet", onclick: () => confirm(false) }, "Keep it")]
    : h("button", { type: "button", class: "quiet", onclick: () => confirm(true) }, "Cancel"));
}

function verdict({ row, steps_total: total, step, exit_code: code }, ctx) {
  const parts = [];
  if (row.where) parts.push(`on ${row.where}${row.setting ? `, set to ${row.setting}` : ""}`);
  if (row.w !== undefined) parts.push(`draws ${f.power(row.w)}`);
  const ends = row.expected?.end?.s[0] ?? row.end_s;
  if (row.group === 0 && ends !== undefined) parts.push(`ends about ${f.time(ends, ctx.now())}, in ${f.span(ends - ctx.now())}`);
  if (row.group === 1) parts.push(`waits since ${f.time(row.submitted_s, ctx.now())}`);
  if (row.group === 2) {
    // A program that ended before its launcher reported it as running has no start.
    parts.push(row.ran_s !== undefined ? `ran ${f.span(row.ran_s)}` : row.starts > 0 ? "ended during its start" : "never started");
    if (code) parts.push(`exit code ${code}`);
    parts.push(`ended ${f.time(row.ended_s, ctx.now())}`);
  }
  if (total === undefined && step === undefined && row.group === 0) parts.push("reports no steps");
  return parts.join(", ");
}

/** The expected start and end with their intervals and the basis of these, or why they are not known. */
function expected(row, ctx) {
  const { start, end: last, unknown } = row.expected ?? {};
  if (row.group === 2 || !(start || last || unknown)) return [[row.group === 2 ? "Ended" : "End", end(row, ctx)]];
  const next = row.group === 1 ? start : last;
  return [
    ["Expected start", start ? between(start, ctx) : row.group === 1 ? unknown ?? null : null],
    ["Expected end", last ? between(last, ctx) : row.group === 0 ? unknown ?? null : null],
    ["Interval of 90 %", (next ?? last)?.basis ?? null],
  ];
}

export function draw(page, ctx) {
  if (!page.found) {
    return [heading(page.job), h("p", { class: "empty" }, "There is no such job, or it ended long ago. ", h("a", { href: "/jobs" }, "All jobs"))];
  }
  const { row, details } = page;
  const { compared } = page;
  const words = verdict(page, ctx);
  const carbon = page.intensity_g_per_kwh === undefined || row.wh === undefined ? undefined : (row.wh / 1000) * page.intensity_g_per_kwh;
  const { price_per_kwh: price, currency } = page;
  return [
    heading(page.job, h("p", { class: "verdict-line" }, state(row.phase), words ? [h("span", { class: "muted", "aria-hidden": "true" }, " · "), words] : null)),
    page.error ? h("p", null, state(page.error, "fault")) : null,
    row.unsaved ? h("p", null, state(row.unsaved, "warning")) : null,
    page.observing ? h("p", { class: "muted" }, "Under observation: the placement may still be undone.") : null,
    message.text ? h("p", null, state(message.text, message.kind)) : null,
    cancel(page, ctx),
    h("div", { class: "cards three" },
      card("Progress", figure(f.percent(row.done), page.steps_total !== undefined ? h("span", { class: "of" }, ` of ${page.steps_total} steps`) : null),
        gauge({ share: row.done }),
        facts([["Speed", page.rate === undefined ? null : `${f.number(page.rate)} steps/s`], ["Epochs", page.epoch], ...expected(row, ctx), ["Deadline", row.deadline_s ? f.time(row.deadline_s, ctx.now()) : null]])),
      card("Energy", figure(jobEnergy(row)),
        facts([["Not measured", row.energy_missing], ["Power", f.power(row.w)], ["CO₂ at the intensity now", f.carbon(carbon)],
          price === undefined || row.wh === undefined ? ["Cost", null] : [`Cost at ${f.price(price, currency)}`, f.money((row.wh / 1000) * price, currency)],
          ["Compared with default settings", compared ? f.energy(compared.used_wh) : null],
          ["At default settings", compared ? f.energy(compared.default_wh) : null],
          ["Below default settings", compared ? `${f.energy(compared.saved_wh)} (${f.percent(compared.share, 1)})` : null],
          ["Run time against default settings", compared && f.isKnown(compared.slowdown) ? `${f.percent(Math.abs(compared.slowdown), 1)} ${compared.slowdown < 0 ? "shorter" : "longer"}` : null]])),
      card("Request", facts([["GPUs", page.requested.gpus + (page.requested.gpu_type ? ` ${page.requested.gpu_type}` : "") + (page.requested.exclusive ? ", exclusive" : "")],
        ["User", row.user ? row.user + (row.proven ? "" : " (not proven)") : null], ["Project", row.project], ["Workload", row.workload],
        ["Submitted", f.time(row.submitted_s, ctx.now())], ["Started", row.started_s ? f.time(row.started_s, ctx.now()) : null], ["Starts", row.starts],
        ["Cost of a restart", details?.restart_cost_s === undefined ? null : f.span(details.restart_cost_s)], ["Priority", row.priority]]))),
    details ? [
      lifeOf(page, ctx), reasons(details, ctx), costs(details, price, currency),
      card("Measured and predicted", table("Measured speed and power by configuration, with the prediction at the placement", MEASURED, details.measured.map((one, index) => ({ key: String(index), ...one })), `No complete measurement window${page.final ? "" : " yet"}.`)),
      card("Output", log.section(page.job, details.log_nodes, row.starts > 0, ctx)),
    ] : h("p", { class: "loading" }, "Reading the details…"),
  ];
}

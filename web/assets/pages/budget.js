// The budget, its burn-down and its forecast.

import { h } from "../dom.js";
import { curve, gauge, legend } from "../chart.js";
import * as f from "../format.js";
import { card, facts, figure, heading, state, table } from "../parts.js";
import { send } from "../session.js";

let message = { text: "", kind: "" };
/** What the entered limits would allow; null: nothing is entered. */
let allows = null;
/** The limits that are to be confirmed; null: none. */
let pending = null;

export const title = () => "Budget";
export const leave = () => { message = { text: "", kind: "" }; allows = null; pending = null; };

/** The remaining energy of the budget over the window, with a forecast. */
function burnDown(page, ctx) {
  const { limits, window, power } = page;
  const budget = limits?.energy_wh;
  if (!window || budget === undefined) return null;
  const [from, until, now] = [window.from_s, window.until_s, Math.min(Math.max(ctx.now(), window.from_s), window.until_s)];
  const spent = Object.entries(window.burned).map(([at, wh]) => [Number(at), wh]).filter(([at]) => at >= from && at <= now).sort((a, b) => a[0] - b[0]);
  const left = [[from, budget], ...spent.map(([at, wh]) => [at, budget - wh]), [now, budget - window.energy_wh]];
  const rest = budget - window.energy_wh;
  const draw = power.expected_w || power.now_w;
  const series = [{ class: "even", points: [[from, budget], [until, 0]] }, { class: "gpus", points: left, area: true }];
  const entries = [["gpus", `measured until ${f.time(now, ctx.now())}`], ["even", "even spending"]];
  let words = "The expected power is not known, so there is no forecast.";
  if (draw) {
    const end = rest - (draw * (until - now)) / 3600;
    const zero = now + (rest * 3600) / draw;
    words = `At ${f.power(draw)} ${end >= 0 ? `${f.energy(end)} are left at its end` : `it is used up in ${f.span(zero - now)}`}.`;
    series.push({ class: "forecast", points: [[now, rest], end >= 0 ? [until, end] : [zero, 0]] });
    entries.splice(1, 0, ["forecast", `forecast at ${f.power(draw)}`]);
  }
  return card("Remaining energy", curve({
    label: `${f.energy(rest)} of ${f.energy(budget)} are left. ${words}`, series,
    from, until, format: f.energy, now, labels: [f.time(from, ctx.now()), f.time(until, ctx.now())],
  }), legend(entries), h("p", null, words));
}

/** What the present jobs would use and when they would complete at other settings. */
function tradeCard(trade) {
  if (!trade) return null;
  const last = trade.points[trade.points.length - 1];
  const until = Math.max(last[0], trade.planned[0], 1);
  const percent = (value) => `${f.number(value)} %`;
  return card("What if", trade.points.length < 2 ? null : [
    curve({
      label: `Energy that is saved over the share by which jobs complete later. ${trade.words}.`,
      series: [{ class: "gpus", points: trade.points, area: true }], from: 0, until, now: Math.max(trade.planned[0], 0),
      format: percent, labels: ["as early as at the default setting", `${percent(until)} later`],
    }),
    legend([["gpus", "energy saved"]]),
    h("p", null, `The vertical line is the plan: ${trade.of_plan}.`),
  ], h("p", null, `${trade.jobs}: ${trade.words}.`),
  h("p", { class: "muted" }, "Relative to the default settings, with the present sizes and order; neither a budget nor a power limit is considered."));
}

function limitCards(page, ctx) {
  const { limits, window, course, power } = page;
  const cards = [];
  if (window && limits.energy_wh !== undefined) {
    cards.push(card("Energy of the window", figure(f.energy(window.energy_wh), h("span", { class: "of" }, ` of ${f.energy(limits.energy_wh)}`)),
      gauge({ share: window.energy_wh / limits.energy_wh, mark: course?.passed }),
      window.missing ? h("p", null, state(`${window.missing}: not counted`, "warning")) : null,
      h("p", { class: "muted" }, `The mark is the passed part of the window; it ends in ${f.span(window.until_s - ctx.now())}.`)));
  }
  if (window && limits.carbon_g !== undefined) {
    cards.push(card("Carbon of the window", figure(f.carbon(window.carbon_g), h("span", { class: "of" }, ` of ${f.carbon(limits.carbon_g)}`)),
      gauge({ share: f.ratio(window.carbon_g, limits.carbon_g), mark: course?.passed }),
      h("p", { class: "muted" }, page.intensity_g_per_kwh === undefined ? "intensity not known" : `now ${page.intensity_g_per_kwh} g/kWh (${page.series})`)));
  }
  if (power.event !== undefined) cards.push(card("Grid event", h("p", null, sentence(power.event))));
  if (limits?.power_w !== undefined) {
    cards.push(card("Power limit", figure(f.stated(f.power(power.now_w), power.now_w, power.is_partial), h("span", { class: "of" }, ` of ${f.power(limits.power_w)}`)),
      gauge({ share: f.ratio(power.now_w, limits.power_w), level: power.now_w > limits.power_w ? "over" : "" }),
      limits.power_next === undefined ? null : h("p", { class: "muted" }, `${f.power(limits.power_next.w)} from ${f.time(limits.power_next.at_s, ctx.now())} on`),
      h("p", { class: "muted" }, `expected ${f.power(power.expected_w)}`),
      power.limit_cost === undefined ? null : h("p", { class: "muted" }, sentence(power.limit_cost)),
      power.margin === undefined ? null : h("p", { class: "muted" }, sentence(power.margin)),
      power.unused === undefined ? null : h("p", { class: "muted" }, `${power.unused}.`)));
  }
  return cards;
}

/** A provider without its own value now, with the cause. */
function fallback(signal, what) {
  return signal?.fallback ? h("p", null, state(`${what}: ${signal.source}`, "warning"), signal.error ? ` ${signal.error}` : "") : null;
}

/** A statement as a sentence. */
function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

/** The feeders as a tree, with power against their limits. */
function feederCard(feeders, margin) {
  if (!feeders) return null;
  const columns = [
    { title: "Feeder", head: true, cell: (row) => `${"\u2003".repeat(row.depth)}${row.key}` },
    { title: "Limit", class: "number", cell: (row) => f.power(row.limit_w) },
    { title: "Measured of limit", class: "share", cell: (row) => h("span", { class: "progress" }, gauge({ share: f.ratio(row.measured_w, row.limit_w), level: row.measured_w > row.limit_w ? "over" : "" }), h("span", null, f.stated(f.power(row.measured_w), row.measured_w, row.is_partial))) },
    { title: "Expected", class: "number", cell: (row) => f.power(row.expected_w) },
    { title: "Worst", class: "number", cell: (row) => f.power(row.worst_w) },
    { title: "If lost", cell: (row) => row.lost ?? "" },
    { title: "Nodes", class: "number", cell: (row) => row.nodes },
  ];
  return card("Feeders", table("Feeders", columns, feeders, "no feeder"),
    margin === undefined ? null : h("p", { class: "muted" }, sentence(margin)),
    feeders.filter((row) => row.fault).map((row) => h("p", null, state(row.fault, "fault"))),
    h("p", { class: "muted" }, "Worst is the highest expected power if any single feeder is lost."));
}

/** The entered limits; an empty field is none. */
function entered(form) {
  return Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== "").map(([key, value]) => [key, Number(value)]));
}

/** Whether the entered limits allow the present draw. */
function allowed({ mean_w: mean, limit_w: limit, now_w: now, is_partial: isPartial, below_idle: belowIdle, lacks_intensity: lacks, error }) {
  if (error) return state(error, "warning");
  if (lacks) return state("The placer refuses it: the carbon intensity of the grid is not known.", "fault");
  if (belowIdle) return state(sentence(belowIdle), "fault");
  const known = [mean, limit].filter(f.isKnown);
  if (known.length === 0) return "What it allows on average depends on the forecast of the carbon intensity.";
  if (!f.isKnown(now)) return state("The present draw is not known.", "warning");
  if (Math.min(...known) < now) return state("Less than the present draw: jobs run slower or wait.", "warning");
  return isPartial ? state("At least the known part of the present draw.", "warning") : state("At least the present draw.", "ok");
}

/** What the entered limits allow, against the present and the idle draw. */
function preview() {
  if (!allows) return null;
  const { mean_w: mean, limit_w: limit, now_w: now, idle_w: idle } = allows;
  const least = [mean, limit].filter(f.isKnown);
  const most = least.length ? Math.min(...least) : undefined;
  const scale = Math.max(...[most, now, idle].filter(f.isKnown).map((watts) => watts * 1.1), 1);
  const quiet = f.isKnown(idle) && f.isKnown(now) ? Math.min(idle, now) : undefined;
  return h("div", { class: "preview" },
    h("p", null, allowed(allows)),
    allows.error ? null : [
      gauge({ share: f.ratio(now, scale), mark: f.ratio(most, scale), parts: [{ class: "idle-gpus", share: f.ratio(quiet, scale) }, { class: "gpus", share: f.ratio(quiet === undefined ? now : now - quiet, scale) }] }),
      facts([
        [`Sustained on average over ${f.span(allows.window_s)}`, f.isKnown(mean) ? f.power(mean) : null],
        ["Power limit", f.isKnown(limit) ? f.power(limit) : null],
        ["Drawn now", f.stated(f.power(now), now, allows.is_partial)],
        ["Without jobs", f.isKnown(idle) ? f.power(idle) : "not known before a budget is in force"],
      ]),
      most === undefined ? null : h("p", { class: "muted" }, "The bar is the present draw, without jobs and for jobs; the mark is what the limits allow."),
    ]);
}

async function review(form, ctx) {
  const limits = entered(form);
  try {
    allows = Object.keys(limits).some((key) => key !== "window_h") ? await send("POST", "/api/budget/review", limits) : null;
  } catch (error) {
    allows = { error: error.message };
  }
  ctx.redraw();
}

/** Limits in words: `120 kWh and 40 kg CO₂ per 1 d, at most 9.5 kW`. */
function words({ energy_kwh: energy, carbon_kg: carbon, power_kw: power, window_h: window }) {
  const spent = [f.isKnown(energy) ? f.energy(1000 * energy) : null, f.isKnown(carbon) ? `${f.carbon(1000 * carbon)} CO₂` : null].filter(Boolean);
  const parts = spent.length ? [`${spent.join(" and ")} per ${f.span(3600 * (window ?? 24))}`] : [];
  if (f.isKnown(power)) parts.push(`at most ${f.power(1000 * power)}`);
  return parts.join(", ");
}

/** The limits in force, in the units of the form. */
function inForce({ limits = {} }) {
  const of = (value, scale) => (f.isKnown(value) ? String(Number((value / scale).toPrecision(6))) : undefined);
  return {
    energy_kwh: of(limits.energy_wh, 1000), carbon_kg: of(limits.carbon_g, 1000),
    // A limit that changes by a schedule is no number.
    power_kw: limits.power_next ? undefined : of(limits.power_w, 1000),
    window_h: f.isKnown(limits.energy_wh) || f.isKnown(limits.carbon_g) ? of(limits.window_s, 3600) : undefined,
  };
}

function form(page, ctx) {
  if (!ctx.session.person?.operates) {
    return h("p", { class: "muted" }, "Signed-in operators can set the budget here.");
  }
  const values = inForce(page);
  const field = (name, label) => h("div", { class: "field" }, h("label", { for: name }, label), h("input", { id: name, name, type: "number", min: "0", step: "any", inputmode: "decimal", value: values[name] }));
  const ask = (limits) => { pending = limits; ctx.redraw(); };
  const set = async () => {
    try {
      await send("POST", "/api/budget", pending);
      message = { text: "The budget is stored.", kind: "ok" };
    } catch (error) {
      message = { text: `Not set: ${error.message}`, kind: "fault" };
    }
    ctx.announce(message.text);
    ask(null);
  };
  const submit = (event) => {
    event.preventDefault();
    ask(entered(event.target));
  };
  const input = (event) => {
    const { form: changed } = event.target;
    pending = null;
    ctx.later(() => review(changed, ctx));
  };
  const text = pending && words(pending);
  return h("form", { class: "fields", onsubmit: submit, oninput: input },
    field("energy_kwh", "Energy, kWh"), field("carbon_kg", "Carbon, kg CO₂"), field("power_kw", "Power, kW"), field("window_h", "Window, hours"),
    h("div", { class: "whole", role: "status", "aria-label": "What the entered limits allow" }, preview()),
    pending
      ? h("div", { class: "actions", "data-key": "confirm" }, h("span", null, text ? `Set ${text}?` : "Remove the budget?", page.limits?.power_next ? " The schedule of the power limit ends then." : null),
        h("button", { type: "button", class: text ? "" : "danger", onclick: set }, text ? "Set it" : "Remove it"),
        h("button", { type: "button", class: "quiet", onclick: () => ask(null) }, "Change nothing"))
      : h("div", { class: "actions", "data-key": "set" }, h("button", { type: "submit" }, "Set"),
        h("button", { type: "button", class: "quiet", onclick: () => ask({}) }, "Remove the budget")),
    message.text ? h("p", null, state(message.text, message.kind)) : null);
}

export function draw(page, ctx) {
  const { course, aim, power } = page;
  const words = course ? course.words : page.limits ? "only power is limited" : "no budget is set";
  return [
    heading("Budget", h("p", { class: "verdict-line" }, course ? state(course.words, course.over ? "warning" : "ok") : words)),
    page.limits || power.event ? h("div", { class: "cards three" }, limitCards(page, ctx)) : null,
    burnDown(page, ctx),
    tradeCard(page.what_if),
    feederCard(page.feeders, page.limits?.power_w === undefined ? page.power.margin : undefined),
    h("div", { class: "cards two" },
      card("Control", facts([
        ["Energy price", page.price === undefined ? null : `${f.number(page.price)} of 1`],
        ["Aim", aim ? `least energy while ${aim.bound}` : null],
        ["Estimated slowdown", aim?.slowdown === undefined ? null : aim.breached ? state(`${f.percent(aim.slowdown, 1)}: above the aim`, "warning") : f.percent(aim.slowdown, 1)],
        ["Latest project", aim?.latest_project ? `${aim.latest_project.project}: estimated ${f.percent(Math.abs(aim.latest_project.slowdown), 1)} ${aim.latest_project.slowdown < 0 ? "earlier" : "later"}` : null],
        ["Price of the aim", aim ? `${f.number(aim.price)} of 1${aim.nothing_to_save ? `: ${aim.nothing_to_save}` : ""}` : null],
        ["Power now", f.stated(f.power(power.now_w), power.now_w, power.is_partial)], ["Expected power", f.power(power.expected_w)], ["Power without jobs", f.power(power.baseline_w)],
        ["Even spending", f.power(power.budget_mean_w)],
        ["Overrun of the last window", page.window?.overrun_previous === undefined ? null : f.percent(page.window.overrun_previous, 1)],
        ["Grid", page.intensity_g_per_kwh === undefined ? null : `${page.intensity_g_per_kwh} g/kWh (${page.series})`],
        ["Electricity price", page.grid?.per_kwh === undefined ? null : `${f.price(page.grid.per_kwh, page.grid.currency)} (${page.grid.price.source})`],
      ]), fallback(page.grid?.carbon, "Carbon intensity"), fallback(page.grid?.price, "Electricity price"), h("p", { class: "muted" }, "The price is the weight of energy against completion time: at 0 jobs run as if energy were free, at 1 at their lowest energy.")),
      card("Set the budget", form(page, ctx))),
  ];
}

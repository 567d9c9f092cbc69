// Energy, carbon and cost by user and project, and by day.

import { h } from "../dom.js";
import { bars, curve, gauge, legend } from "../chart.js";
import * as f from "../format.js";
import { card, figure, heading, state, table } from "../parts.js";

const PERIODS = [["day", "Today"], ["week", "7 days"], ["month", "30 days"]];
/** Class, name, energy, and whether it is a lower bound. */
const USES = [["jobs", "jobs", "jobs_wh", "jobs_partial"], ["idle-gpus", "idle GPUs", "idle_wh", "idle_partial"], ["unknown", "unknown", "unknown_wh"], ["hosts", "hosts", "hosts_wh"]];

const total = (sums) => f.stated(f.energy(sums.total_wh), sums.total_wh, sums.is_partial);

export const title = () => "Energy";

function owners(titleText, none, { rows, hidden }, hasCarbon, currency) {
  const columns = [
    { title: titleText, head: true, cell: (row) => row.name ?? none },
    { title: "Energy", class: "number", cell: (row) => f.stated(f.energy(row.wh), row.wh, row.is_partial) },
    ...(hasCarbon ? [{ title: "CO₂", class: "number", cell: (row) => f.carbon(row.carbon_g) }] : []),
    ...(currency ? [{ title: "Cost", class: "number", cell: (row) => f.money(row.cost, currency) }] : []),
    { title: "Share of all", class: "share", cell: (row) => h("span", { class: "progress" }, gauge({ share: row.share }), h("span", null, f.percent(row.share))) },
  ];
  return card(`By ${titleText.toLowerCase()}`, table(`Energy by ${titleText.toLowerCase()}`, columns, rows.map((row) => ({ key: `k${row.name ?? ""}`, ...row })), "No energy of jobs in this time."),
    hidden ? h("p", { class: "muted" }, `${hidden} more with less energy`) : null);
}

const CAUSES = [
  { title: "Cause", head: true, cell: (row) => row.cause },
  { title: "Energy", class: "number", cell: (row) => f.energy(row.wh) },
  { title: "GPU time missing", class: "number", cell: (row) => f.span(row.missing_gpu_s) },
  { title: "Estimate", class: "number medium", cell: (row) => f.energy(row.estimate_wh) },
];

/** Energy without a known owner, and time in which energy may be missing. */
function causes(rows) {
  if (rows.length === 0) return null;
  return card("Not attributed or not measured",
    table("Energy without a known owner and time without a measurement, by cause", CAUSES, rows.map((row) => ({ key: row.cause, ...row })), ""),
    h("p", { class: "muted" }, "The energy is part of the sums as unknown. Over the time that is not measured energy may be missing; an estimate is part of no sum."));
}

export function dayBars(label, days, parts, describe) {
  const all = Object.entries(days).map(([day, sums]) => [Number(day), sums]).sort((a, b) => a[0] - b[0]);
  return bars({
    label, format: f.energy,
    bars: all.map(([day, sums]) => ({ title: `${f.day(day)}: ${describe(sums)}`, parts: parts(sums) })),
    labels: [f.day(all[0][0], true), f.day(all[Math.floor(all.length / 2)][0], true), "today"],
  });
}

const HOUR = 3600;
const RANGES = { day: "24 hours", week: "7 days", month: "30 days" };

/** The power of the site over the period, against its limits and the former scheduler. */
function powerCard({ period, power, baseline }, ctx) {
  const name = `Power of the last ${RANGES[period]}`;
  if (!power) return card(name, h("p", { class: "muted" }, "The records of the site's power are being read."));
  const points = Object.entries(power.points).map(([at, point]) => ({ at: Number(at), ...point })).sort((a, b) => a.at - b.at);
  const known = points.filter((point) => point.w !== undefined);
  if (known.length < 2) return card(name, h("p", { class: "muted" }, "There are no records of the site's power for most of this time."));
  const until = Math.max(ctx.now(), points[points.length - 1].at + power.step_s);
  // A gap where minutes are missing.
  const of = (key) => points.flatMap((point, index) => {
    const gap = index > 0 && point.at - points[index - 1].at > power.step_s ? [[point.at - power.step_s, undefined]] : [];
    return [...gap, [point.at, point[key]]];
  });
  const most = known.reduce((a, b) => (b.w > a.w ? b : a));
  const mean = known.reduce((sum, point) => sum + point.w, 0) / known.length;
  const has = (key) => points.some((point) => point[key] !== undefined);
  const words = `${f.power(mean)} on average, at most ${f.power(most.w)} at ${f.time(most.at, ctx.now())}`;
  const time = (at) => f.time(at, ctx.now());
  return card(name, curve({
    label: `${name}: ${words}`,
    series: [
      { class: "gpus", points: of("w"), area: true },
      ...(has("before_w") ? [{ class: "even", points: of("before_w") }] : []),
      ...(has("limit_w") ? [{ class: "limit", points: of("limit_w"), isStep: true }] : []),
    ],
    from: power.from_s, until, format: f.power, labels: [time(power.from_s), time((power.from_s + until) / 2), "now"],
  }), legend([["gpus", "measured"], ...(has("before_w") ? [["even", `under ${baseline}, by prediction`]] : []), ...(has("limit_w") ? [["limit", "limit"]] : [])]),
  h("p", null, `${words}.`),
  h("p", { class: "muted" }, `Means over ${f.span(power.step_s)} of entire nodes. A gap is time in which a node was not metered.`));
}

/** The energy of each of the last hours by use, with the limits that held in it. */
function byHour({ hours: { first, last, uses, limits } }, ctx) {
  const numbers = Array.from({ length: last - first + 1 }, (_, index) => first + index);
  const time = (hour) => f.time(hour * HOUR, ctx.now());
  const limit = (key) => numbers.map((hour) => limits[hour]?.[key]);
  const kinds = [["limit", "power limit over an hour", "power_wh"], ["even", "even spending of the energy budget", "even_wh"]]
    .filter(([, , key]) => limit(key).some(f.isKnown));
  const known = numbers.filter((hour) => uses[hour]);
  const words = (hour) => (uses[hour] ? total(uses[hour]) : "not known");
  const columns = [
    { title: "Hour from", head: true, cell: ({ hour }) => time(hour) },
    { title: "Energy", class: "number", cell: ({ hour }) => words(hour) },
    ...USES.map(([, text, key, isPartial]) => ({ title: text[0].toUpperCase() + text.slice(1), class: "number", cell: ({ hour }) => f.stated(f.energy(uses[hour][key]), uses[hour][key], uses[hour][isPartial]) })),
    ...kinds.map(([, text, key]) => ({ title: text[0].toUpperCase() + text.slice(1), class: "number", cell: ({ hour }) => f.energy(limits[hour]?.[key]) })),
  ];
  const over = known.filter((hour) => uses[hour].total_wh > limits[hour]?.power_wh).length;
  const label = `Energy of each of the last ${numbers.length} hours by use, ${f.count(known.length, "hour")} known; now ${words(last)}${kinds.map(([, text, key]) => `, ${text} ${f.energy(limits[last]?.[key])}`).join("")}`;
  return card("By hour", bars({
    label, format: f.energy,
    bars: numbers.map((hour) => ({
      title: `${time(hour)}: ${words(hour)}`,
      parts: uses[hour] ? USES.filter(([, , key]) => f.isKnown(uses[hour][key])).map(([kind, , key]) => ({ class: kind, value: uses[hour][key] })) : [],
    })),
    lines: kinds.map(([kind, , key]) => ({ class: kind, values: limit(key) })),
    labels: [time(first), time(first + Math.floor(numbers.length / 2)), "now"],
  }), legend([...USES.map(([kind, text]) => [kind, text]), ...kinds.map(([kind, text]) => [kind, text])]),
  over ? h("p", null, state(`${f.count(over, "hour")} above the power limit`, "fault")) : null,
  h("p", { class: "muted" }, "An hour without an entry of the ledger is empty. Limits are those of the budget in force, in the whole hours since it was set."),
  known.length ? h("details", null, h("summary", null, "As a table"), table("Energy of each hour by use", columns, known.toReversed().map((hour) => ({ key: String(hour), hour })), "")) : null);
}

export function draw(page, ctx) {
  const { sums } = page;
  const hasCarbon = sums.carbon_g !== undefined;
  const currency = sums.cost === undefined ? undefined : page.currency;
  const share = (wh) => f.ratio(wh, sums.total_wh);
  return [
    heading("Energy", h("p", { class: "verdict-line" }, page.ledger_read ? `${total(sums)} ${page.period === "day" ? "today" : `in ${page.period === "week" ? 7 : 30} days`}${hasCarbon ? `, ${f.carbon(sums.carbon_g)} CO₂` : ""}${currency ? `, ${f.money(sums.cost, currency)}` : ""}` : "The ledger is being read.")),
    h("div", { class: "tools" }, h("nav", { class: "choice", "aria-label": "Period" }, PERIODS.map(([kind, text]) =>
      h("a", { href: ctx.address({ period: kind === "day" ? "" : kind }), "aria-current": page.period === kind && "true" }, text)))),
    h("div", { class: "cards two" },
      card("By use", figure(total(sums)),
        gauge({ share: sums.total_wh && 1, parts: USES.map(([kind, , key]) => ({ class: kind, share: share(sums[key]) })) }),
        legend(USES.map(([kind, text, key, isPartial]) => [kind, `${text} ${f.stated(f.energy(sums[key]), sums[key], sums[isPartial])}${f.isKnown(sums[key]) ? ` (${f.percent(share(sums[key]))})` : ""}`])),
        page.missing ? h("p", null, state(page.missing, "warning")) : null,
        page.until_s ? h("p", { class: "muted" }, `Measured until ${f.time(page.until_s, ctx.now())}; days are in UTC.`) : null,
        sums.carbon_is_partial ? h("p", { class: "muted" }, "The carbon intensity of a part of the time is not known; that part is left out of CO₂.") : null,
        sums.cost_is_partial ? h("p", { class: "muted" }, "The electricity price of a part of the time is not known; that part is left out of the cost.") : null,
        currency && page.grid?.price ? h("p", { class: "muted" }, `Electricity price now: ${f.price(page.grid.per_kwh, currency)}, ${page.grid.price.source}.`) : null,
        hasCarbon && page.series ? h("p", { class: "muted" }, `Carbon intensity now: ${page.series}.`, page.static_share > 0 ? ` In ${f.percent(page.static_share)} of the time no provider had a value, and the static one counts.` : "") : null,
        !hasCarbon ? h("p", { class: "muted" }, "No carbon intensity is set: ", h("code", null, "wattle budget set --carbon FILE"), " sets one.") : null),
      card("By day", dayBars("Energy of each of the last 30 days by use", page.days,
        (one) => USES.filter(([, , key]) => f.isKnown(one[key])).map(([kind, , key]) => ({ class: kind, value: one[key] })), total), legend(USES.map(([kind, text]) => [kind, text])))),
    powerCard(page, ctx),
    byHour(page, ctx),
    causes(page.causes),
    h("div", { class: "cards two" }, owners("User", "(not known)", page.users, hasCarbon, currency), owners("Project", "(none)", page.projects, hasCarbon, currency)),
  ];
}

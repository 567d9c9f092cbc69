// What was saved against the former scheduler.

import { h } from "../dom.js";
import { gauge } from "../chart.js";
import * as f from "../format.js";
import { card, figure, heading, table } from "../parts.js";
import { dayBars } from "./energy.js";

const PERIODS = [["day", "Today"], ["week", "Last 7 days"], ["month", "Last 30 days"]];

export const title = () => "Saving";

/** The saved energy with its share, and the completion times beside it. */
export function saved(row) {
  if (!f.isKnown(row?.share)) return "no saving known yet";
  const energy = `${row.saved_wh >= 0 ? "saved" : "used more:"} ${f.energy(Math.abs(row.saved_wh))} (${f.percent(Math.abs(row.share), 1)})`;
  return row.later_text ? `${energy}, jobs completed ${row.later_text}` : energy;
}

function periodCard([key, text], page) {
  const row = page.periods[key];
  if (!f.isKnown(row.share)) return card(text, figure("–"), h("p", { class: "muted" }, "No energy is compared yet."));
  const used = row.before_wh - row.saved_wh;
  return card(text, figure(f.energy(row.saved_wh), h("span", { class: "of" }, ` saved, ${f.percent(row.share, 1)}`)),
    gauge({ share: f.ratio(used, row.before_wh) }),
    h("p", { class: "muted" }, `${f.energy(used)} in place of ${f.energy(row.before_wh)} under ${page.baseline}; 90 % interval ${f.percent(row.share_low, 1)} to ${f.percent(row.share_high, 1)}`),
    row.later_text ? h("p", null, `${f.count(row.jobs, "job")} completed ${row.later_text} on average`) : null,
    h("p", { class: "muted" }, [f.isKnown(row.carbon_g) ? `${f.carbon(row.carbon_g)} CO₂` : null, f.isKnown(row.cost) ? f.money(row.cost, page.currency) : null].filter(Boolean).map((one, at) => `${at ? ", " : ""}${one} saved`)));
}

const owners = (page) => (name, none, rows) => card(`By ${name.toLowerCase()}`, table(`Saving by ${name.toLowerCase()} in the last 30 days`, [
  { title: name, head: true, cell: (row) => row.name ?? none },
  { title: "Jobs", class: "number", cell: (row) => String(row.jobs) },
  { title: "Saved", class: "number", cell: (row) => f.energy(row.saved_wh) },
  { title: "Share", class: "number", cell: (row) => f.percent(row.share, 1) },
  { title: `Completed, against ${page.baseline}`, cell: (row) => row.later_text ?? "" },
], rows.map((row) => ({ key: `k${row.name ?? ""}`, ...row })), "No job has completed in both schedules."));

function times(row, baseline) {
  const line = (name, own, before) => (f.isKnown(own) ? h("p", null, `${name}: ${f.span(own)}, under ${baseline} ${f.span(before)}`) : null);
  return [line("Mean completion time", row.completion_s, row.completion_s_before), line("Mean waiting time", row.wait_s, row.wait_s_before)];
}

export function draw(page, ctx) {
  if (!page.periods) {
    return [heading("Saving", h("p", { class: "verdict-line" }, "The placer has not stored figures yet; it does so five minutes after its start."))];
  }
  const month = page.periods.month;
  const columns = owners(page);
  return [
    heading("Saving", h("p", { class: "verdict-line" }, `Last 30 days: ${page.verdict}`)),
    h("div", { class: "cards three" }, PERIODS.map((period) => periodCard(period, page))),
    card("Saved by day", dayBars(`Saved energy of each of the last 30 days; today ${f.energy(page.periods.day.saved_wh)}`, page.days,
      (one) => (f.isKnown(one.saved_wh) ? [{ class: "saved", value: Math.max(one.saved_wh, 0) }] : []), saved)),
    h("div", { class: "cards two" },
      card("Times and parts", times(month, page.baseline),
        month.parts.filter((part) => part.wh !== 0).map((part) => h("p", { class: "muted" }, `${part.name}: ${f.energy(part.wh)}`)),
        month.awake ? h("p", { class: "muted" }, `nodes awake: ${month.awake}`) : null),
      card("How it is computed",
        h("p", null, `The placer runs ${page.baseline}, the site's former scheduler, in a model beside the cluster, on the same jobs at default caps and clocks with all nodes awake. Completion times and energy of the cluster are measured; those of the model follow from the measured work of each job and its predicted speed and power.`),
        h("p", { class: "muted" }, `Since ${f.time(page.since_s, ctx.now())}, until ${f.time(page.until_s, ctx.now())}; days are in UTC.`),
        page.absences.map(([from, until]) => h("p", { class: "muted" }, `No placer ran from ${f.time(from, ctx.now())} to ${f.time(until, ctx.now())}; sleep is not counted there.`)),
        f.isKnown(page.replayed_s) ? h("p", { class: "muted" }, `Computed again on ${f.time(page.replayed_s, ctx.now())} from the records of jobs, with the nodes of then.`) : null)),
    columns("User", "no user", page.users),
    columns("Project", "no project", page.projects),
  ];
}

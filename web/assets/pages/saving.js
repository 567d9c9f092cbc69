// Energy saved so far.

import { h } from "../dom.js";
import { gauge } from "../chart.js";
import * as f from "../format.js";
import { card, figure, heading } from "../parts.js";
import { dayBars } from "./energy.js";

const PERIODS = [["day", "Today"], ["week", "Last 7 days"], ["month", "Last 30 days"]];

export const title = () => "Saving";

function words({ saved_wh: saved, share }) {
  if (share === undefined) return "no job is compared yet";
  return `${f.energy(Math.abs(saved))} ${saved >= 0 ? "saved" : "more than the baseline"}, ${f.percent(Math.abs(share), 1)}`;
}

function periodCard([key, text], page) {
  const one = page.periods[key];
  if (one.share === undefined) return card(text, figure("–"), h("p", { class: "muted" }, "No energy of a job is compared yet."));
  return card(text, figure(f.energy(one.saved_wh), h("span", { class: "of" }, ` saved, ${f.percent(one.share, 1)}`)),
    gauge({ share: f.ratio(one.used_wh, one.baseline_wh) }),
    h("p", { class: "muted" }, `${f.energy(one.used_wh)} used, ${f.energy(one.baseline_wh)} for the baseline`),
    h("p", { class: "muted" }, one.slowdown === undefined ? null : `jobs run ${f.percent(one.slowdown, 1)} longer`, [one.carbon_g === undefined ? null : `${f.carbon(one.carbon_g)} CO₂`, one.cost === undefined ? null : f.money(one.cost, page.currency)].filter(Boolean).map((text) => `, ${text} saved`)),
    one.carbon_is_partial ? h("p", { class: "muted" }, "The carbon intensity of a part of the time is not known; that part is left out of CO₂.") : null,
    one.cost_is_partial ? h("p", { class: "muted" }, "The electricity price of a part of the time is not known; that part is left out of the saved cost.") : null,
    h("p", { class: "muted" }, `compared: ${f.percent(one.coverage)} of the jobs' energy`));
}

export function draw(page) {
  return [
    heading("Saving", h("p", { class: "verdict-line" }, page.ledger_read ? `Last 30 days: ${words(page.periods.month)}` : "The ledger is being read.")),
    h("div", { class: "cards three" }, PERIODS.map((period) => periodCard(period, page))),
    card("Saved by day", dayBars(`Saved energy of each of the last 30 days; today ${f.energy(page.periods.day.saved_wh)}`, page.days,
      (one) => [{ class: "saved", value: one.saved_wh }], words)),
    card("How it is estimated",
      h("p", null, "The baseline runs the same jobs on the same GPUs at their default cap and clock. The predictor of a job has the speed and power of both settings; the baseline is the measured energy times the predicted ratio of the energies per step."),
      h("p", null, "A job without such a prediction, or on shared GPUs, counts as no saving. Sleeping nodes, shared GPUs and the order of jobs are not part of the estimate. ", h("code", null, "wattle saving"), " simulates a whole schedule with all of them.")),
  ];
}

// The contest of the predictors.

import { h } from "../dom.js";
import * as f from "../format.js";
import { gauge } from "../chart.js";
import { card, heading, state, table } from "../parts.js";

const KINDS = [["prior", "Before any window"], ["new", "New configuration"], ["same", "Known configuration"]];
// The error that fills a bar, per cent.
const FULL = 50;

export const title = () => "Predictors";

function error(score) {
  if (!score) return "–";
  return h("span", { class: "progress" }, gauge({ share: Math.min(1, score.error / FULL) }),
    h("span", { title: `${score.covered} % of ${f.count(score.windows, "window")} within the 90 % interval` }, `${score.error} %`));
}

function covered(scores) {
  const known = KINDS.map(([key]) => scores[key]).filter(Boolean);
  const windows = known.reduce((sum, score) => sum + score.windows, 0);
  if (!windows) return "–";
  return `${Math.round(known.reduce((sum, score) => sum + score.windows * score.covered, 0) / windows)} %`;
}

function contest(of, quantity, rows) {
  const columns = [
    { title: "Predictor", head: true, cell: (row) => row.key + (row.champion ? " ★" : "") },
    ...KINDS.map(([key, text]) => ({ title: text, cell: (row) => error(row[of][key]) })),
    { title: "In 90 % interval", class: "number", cell: (row) => covered(row[of]) },
  ];
  return card(`Error of predicted ${quantity}`, table(`Error of predicted ${quantity}`, columns, rows, "No predictor has reported."));
}

export function draw(page, ctx) {
  const rows = page.order.map((key) => ({ key, ...page.rows[key] }));
  const champion = rows.find((row) => row.champion);
  const kinds = { champion: "ok", challenger: "ok", silent: "fault", failing: "fault" };
  const columns = [
    { title: "Predictor", head: true, cell: (row) => row.key + (row.champion ? " ★" : "") },
    { title: "State", cell: (row) => [state(row.state, kinds[row.state]), row.error ? h("span", { class: "muted" }, ` ${row.error}`) : null] },
    { title: "Surfaces", class: "number", cell: (row) => `${row.proposals}${row.refused ? `, ${row.refused} refused` : ""}` },
    { title: "Latency", class: "number medium", cell: (row) => (row.latency_ms ? `${f.span(row.latency_ms[0] / 1000)}` : "–") },
    { title: "Active", class: "medium", cell: (row) => (row.active_s ? `${f.span(ctx.now() - row.active_s)} ago` : "never") },
    { title: "Version", class: "wide", cell: (row) => row.version ?? "–" },
  ];
  return [
    heading("Predictors", h("p", { class: "verdict-line" }, champion ? `${champion.key} is champion among ${rows.length}` : "no champion")),
    contest("speed", "speed", rows),
    contest("power", "power", rows),
    card("State", table("State of the predictors", columns, rows, "No predictor has reported.")),
    h("p", { class: "muted" }, "★ marks the champion, whose predictions are used; the others are only scored. An error is the mean of |predicted − measured| / measured over the newest windows. ", h("code", null, "wattle predictors promote NAME"), " changes the champion."),
  ];
}

// The cluster at a glance.

import { h } from "../dom.js";
import { curve, gauge, legend } from "../chart.js";
import * as f from "../format.js";
import { saved } from "./saving.js";
import { card, faults, figure, jobColumns, jobRows, state, table } from "../parts.js";

const LEVELS = { ok: "In order", warning: "Attention", fault: "Fault" };

export const title = (page) => page.verdict;

/** The nodes without a complete reading. */
function unread({ unread: names, unread_count: count }) {
  return count > names.length ? `${f.count(count, "node")}, ${names.slice(0, 3).join(", ")} and others` : names.join(", ");
}

function powerCard({ power }) {
  const limit = power.limit_w ?? power.caps_w;
  const of = power.limit_w !== undefined ? "power limit" : "sum of caps";
  const share = (watts) => f.ratio(watts, limit);
  const stated = (text, watts) => f.stated(text, watts, power.is_partial);
  return card("Power", figure(stated(f.power(power.now_w), power.now_w), h("span", { class: "of" }, limit ? ` of ${f.power(limit)}` : "")),
    gauge({
      share: share(power.now_w), parts: [{ class: "gpus", share: share(power.gpus_w) }, { class: "hosts", share: share(power.hosts_w) }],
      level: share(power.now_w) > 1 ? "over" : "",
    }),
    legend([["gpus", `GPUs ${stated(f.power(power.gpus_w), power.gpus_w)}`], ...(power.hosts_w === undefined ? [] : [["hosts", `hosts ${f.power(power.hosts_w)}`]])]),
    h("p", { class: "muted" }, limit ? `${stated(f.percent(share(power.now_w)), power.now_w)} of the ${of}` : "the caps are not known"),
    power.missing ? h("p", null, state(power.missing, "warning")) : null,
    power.unread_count > 0 ? h("p", null, state(`no readings of ${unread(power)}`, "warning")) : null);
}

function jobsCard({ jobs, gpus }) {
  const away = [[gpus.asleep, "asleep"], [gpus.closed, "without new jobs"], [gpus.lost, "lost"], [gpus.silent, "silent"]].filter(([count]) => count > 0);
  const [first, ...others] = jobs.words.split(", ");
  return card("Jobs", figure(first, h("span", { class: "of" }, `, ${others.join(", ")}`)),
    gauge({ share: f.ratio(gpus.busy, gpus.total) }),
    h("p", { class: "muted" }, `${gpus.busy} of ${f.count(gpus.total, "GPU")} busy, ${gpus.idle} idle`,
      away.map(([count, text]) => `, ${count} ${text}`)),
    h("p", { class: "muted" }, `${jobs.finished} finished, ${jobs.failed} failed, ${jobs.cancelled} cancelled`));
}

function todayCard({ today, intensity_g_per_kwh: intensity, ledger_read: isRead }) {
  if (!isRead) return card("Today", h("p", { class: "muted" }, "The ledger is being read."));
  const { energy } = today;
  return card("Today (UTC)", figure(f.stated(f.energy(energy.total_wh), energy.total_wh, energy.is_partial), h("span", { class: "of" }, today.carbon_g === undefined ? null : `, ${f.carbon(today.carbon_g)} CO₂`, today.cost === undefined ? null : `, ${f.money(today.cost, today.currency)}`)),
    gauge({ share: f.ratio(energy.jobs_wh, energy.total_wh) }),
    h("p", { class: "muted" }, `for jobs: ${f.stated(f.energy(energy.jobs_wh), energy.jobs_wh, energy.jobs_partial)}`),
    today.missing.map((text) => h("p", null, state(text, "warning"))),
    h("p", { class: "muted" }, h("a", { href: "/saving" }, saved(today.saving)),
      intensity !== undefined ? `, grid ${intensity} g/kWh` : null));
}

function budgetCard({ budget }, ctx) {
  if (!budget) {
    return card("Budget", figure("none"), h("p", { class: "muted" }, "No window of energy or carbon is limited. ", h("a", { href: "/budget" }, "Details")));
  }
  return card("Budget", figure(f.percent(budget.spent), h("span", { class: "of" }, ` of the ${budget.of} spent`)),
    gauge({ share: budget.spent, mark: budget.expected, parts: [{ class: budget.spent > 1 ? "over" : budget.over ? "unknown" : "", share: budget.spent }] }),
    h("p", null, state(budget.words, budget.over ? "warning" : "ok")),
    budget.missing ? h("p", null, state(`${budget.missing}: not counted`, "warning")) : null,
    h("p", { class: "muted" }, `expected ${f.percent(budget.expected)} at its end in ${f.span(budget.until_s - ctx.now())}`));
}

/** The power of the last time: a gap where a node sent no readings, with the sum of the others as a thin line. */
function history(page, ctx) {
  const all = Object.entries(page.history).map(([at, point]) => ({ at: Number(at), ...point })).sort((a, b) => a.at - b.at);
  const known = all.filter((point) => point.w !== undefined);
  if (known.length < 2) return null;
  const [from, until] = [all[0].at, all[all.length - 1].at];
  const most = Math.max(...known.map((point) => point.w));
  const of = (value) => all.map((point) => [point.at, value(point)]);
  const hasGap = all.some((point) => point.at_least || point.w === undefined);
  const hasLimit = all.some((point) => point.limit !== undefined);
  const words = `Power from ${f.time(from, ctx.now())} to ${f.time(until, ctx.now())}: now ${f.stated(f.power(page.power.now_w), page.power.now_w, page.power.is_partial)}, at most ${f.power(most)}`;
  return card("Power over time", curve({
    label: `${words}${hasLimit ? `, limit ${page.power.limit_w === undefined ? "none now" : f.power(page.power.limit_w)}` : ""}${hasGap ? ", with gaps without readings" : ""}`,
    series: [
      { class: "gpus", points: of((point) => (point.at_least ? undefined : point.w)), area: true },
      { class: "partial", points: of((point) => (point.at_least ? point.w : undefined)) },
      { class: "limit", points: of((point) => point.limit), isStep: true },
    ],
    from, until, format: f.power, labels: [f.time(from, ctx.now()), f.time(until, ctx.now())],
  }), hasLimit || hasGap ? legend([["gpus", "measured"], ...(hasLimit ? [["limit", "limit in force"]] : []), ...(hasGap ? [["partial", "at least: readings are missing"]] : [])]) : null);
}

function tile(id, node, isDetailed) {
  const share = f.ratio(node.w, node.cap);
  const words = `${node.w === undefined || node.cap === undefined ? "" : ` of ${f.power(node.cap)}`}, ${node.s}, ${node.busy} of ${node.n} GPUs busy`;
  const cells = (node.g ?? []).map(([watts, cap, kind], index) => {
    const share = f.ratio(watts, cap);
    return h("svg", { class: `cell ${kind}`, "aria-hidden": "true" },
      h("title", null, `GPU ${index}: ${f.watts(watts)} W of ${f.watts(cap)} W, ${kind}`),
      share === undefined ? null : h("rect", { class: "fill", y: `${100 - Math.min(100, 100 * share)}%`, width: "100%", height: `${Math.min(100, 100 * share)}%` }),
      kind === "lost" || kind === "closed" ? h("path", { class: "cross", d: "M3 3L13 13M13 3L3 13" }) : null);
  });
  const power = node.w === undefined ? "no readings" : f.stated(f.power(node.w), node.w, node.is_partial);
  const shown = node.s === "busy" || node.s === "idle" ? power : node.s;
  return h("li", { "data-key": id }, h("a", { class: `tile ${node.s.replace(" ", "-")}`, href: `/nodes?q=${encodeURIComponent(id)}` },
    isDetailed
      ? [h("span", { class: "tile-head" }, h("b", null, id), h("span", { class: "muted" }, shown)), h("span", { class: "hidden" }, words),
        h("span", { class: "cells" }, cells)]
      : [h("b", null, id), h("span", { class: "hidden" }, ` ${power}${words}`), gauge({ share })]));
}

function map(page) {
  const nodes = Object.entries(page.nodes).sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }));
  if (nodes.length === 0) return card("Cluster", h("p", { class: "empty" }, "No node has reported."));
  const entries = [["busy", "with jobs"], ["idle", "idle"]];
  const also = [["asleep", page.gpus.asleep], ["silent", page.gpus.silent], ["fault", page.gpus.lost + page.gpus.closed]].filter(([, count]) => count > 0);
  return card(`Cluster: ${f.count(nodes.length, "node")}, ${f.count(page.gpus.total, "GPU")}`,
    h("ul", { class: page.detailed ? "map" : "map dense" }, nodes.map(([id, node]) => tile(id, node, page.detailed))),
    legend([...entries, ...also.map(([kind]) => [kind, kind === "fault" ? "lost or closed" : kind])]),
    h("p", { class: "muted" }, page.detailed ? "The height of a bar is the power of a GPU against its cap." : "The length of a bar is the power of a node's GPUs against their caps."));
}

export function draw(page, ctx) {
  const brief = jobColumns(ctx, { brief: true });
  return [
    h("div", { class: `verdict ${page.level}` },
      h("span", { class: "badge" }, state(LEVELS[page.level], page.level)), h("h1", { tabindex: "-1" }, page.verdict)),
    faults(page.faults),
    h("div", { class: "cards four" }, powerCard(page), jobsCard(page), todayCard(page), budgetCard(page, ctx)),
    h("div", { class: "cards two" }, map(page), history(page, ctx) ?? card("Power over time", h("p", { class: "empty" }, "The curve begins with the second reading."))),
    h("div", { class: "cards two" },
      card("On GPUs", table("Jobs on GPUs", brief, jobRows(page.running), "No job has GPUs."),
        page.jobs.on_gpus > page.running.order.length ? h("p", null, h("a", { href: "/jobs?show=running" }, `All ${page.jobs.on_gpus} jobs on GPUs`)) : null),
      card("Queue", table("Queued jobs", brief.filter((column) => column.title !== "Power W"), jobRows(page.queued), "No job waits."),
        page.jobs.queued > page.queued.order.length ? h("p", null, h("a", { href: "/jobs?show=queued" }, `All ${page.jobs.queued} queued jobs`)) : null)),
  ];
}


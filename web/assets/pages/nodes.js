// The nodes with every GPU.

import { h } from "../dom.js";
import { gauge, legend, roundUp } from "../chart.js";
import * as f from "../format.js";
import { card, heading, jobLink, pager, search, state, table } from "../parts.js";

export const title = () => "Nodes";

function gpuState(text) {
  return text === "ok" ? state("ok") : state(text, ["lost", "driver", "memory", "ECC", "silent"].includes(text) ? "fault" : "warning");
}

const COLUMNS = [
  { title: "GPU", head: true, cell: (gpu) => gpu.key },
  { title: "Type", class: "wide", cell: (gpu) => gpu.type },
  { title: "State", cell: (gpu) => gpuState(gpu.state) },
  { title: "Power of cap", class: "power", cell: (gpu) => h("span", { class: "progress" }, gauge({ share: f.ratio(gpu.w, gpu.cap_w) }), h("span", null, `${f.watts(gpu.w)} / ${f.watts(gpu.cap_w)} W`)) },
  { title: "Clock MHz", class: "number wide", cell: (gpu) => (gpu.clock_mhz ?? "–") + (gpu.clock_max_mhz ? ` (at most ${gpu.clock_max_mhz})` : "") },
  { title: "Busy", class: "number", cell: (gpu) => (gpu.busy === undefined ? "–" : `${gpu.busy} %`) },
  { title: "Memory GiB", class: "number medium", cell: (gpu) => `${gpu.memory_gib ?? "–"} / ${gpu.memory_total_gib ?? "–"}` },
  { title: "Temp.", class: "number wide", cell: (gpu) => (gpu.temperature_c === undefined ? "–" : `${gpu.temperature_c} °C`) },
  { title: "Jobs", class: "jobs", cell: (gpu) => (gpu.jobs.length ? gpu.jobs.map((job, index) => [index ? ", " : "", jobLink(job)]) : "–") },
];

function words(node) {
  const gpus = Object.values(node.gpus);
  const read = gpus.filter((gpu) => gpu.w !== undefined);
  const drawn = read.reduce((sum, gpu) => sum + gpu.w, 0);
  const power = read.length === 0 ? "no readings" : `GPUs ${read.length < gpus.length ? "at least " : ""}${f.power(drawn)}`;
  const parts = [node.sleep ?? power];
  if (node.host_w !== undefined) parts.push(`host ${f.power(node.host_w)}`);
  if (node.switch) parts.push(`switch ${node.switch}`);
  if (node.advise_only) parts.push("advised only");
  if (!node.leased && !node.sleep && !node.silent.length) parts.push("no lease: safe caps");
  return parts.join(", ");
}

/** GPUs and host of a node; undefined without a reading of a GPU. */
const drawn = ({ gpus_w: gpus, host_w: host }) => (gpus === undefined ? undefined : gpus + (f.isKnown(host) ? host : 0));

/** The most that the GPUs of a node may draw: by their caps, and by the limit of the node. */
function most({ caps_w: caps, limit_w: limit }) {
  const known = [caps, limit].filter(f.isKnown);
  return known.length ? Math.min(...known) : undefined;
}

/** Power by node on one scale, against what holds there. */
function powerCard(page) {
  const rows = page.order.map((key) => ({ key, ...page.rows[key].power }));
  const whole = (row) => (f.isKnown(row.host_w) && f.isKnown(most(row)) ? most(row) + row.host_w : most(row));
  const scale = roundUp(Math.max(...rows.flatMap((row) => [drawn(row), whole(row)]).filter(f.isKnown), 0));
  const feeders = Object.fromEntries((page.feeders ?? []).map((feeder) => [feeder.key, feeder]));
  const feed = (key) => {
    const feeder = feeders[key];
    const text = `${key} ${feeder ? `${f.stated(f.power(feeder.measured_w), feeder.measured_w, feeder.is_partial)} of ${f.power(feeder.limit_w)}` : ""}`;
    return h("span", { class: "name" }, feeder?.fault ? state(text, "fault") : text);
  };
  const columns = [
    { title: "Node", head: true, cell: (row) => row.key },
    { title: `Power, scale to ${f.power(scale)}`, class: "share", cell: (row) => h("span", { class: "progress long" },
      gauge({
        share: f.ratio(drawn(row), scale), mark: f.ratio(whole(row), scale),
        parts: [{ class: drawn(row) > whole(row) ? "over" : "gpus", share: f.ratio(row.gpus_w, scale) }, { class: "hosts", share: f.ratio(row.host_w, scale) }],
      }), h("span", null, f.stated(f.power(drawn(row)), drawn(row), row.is_partial))) },
    { title: "GPUs", class: "number medium", cell: (row) => f.stated(f.power(row.gpus_w), row.gpus_w, row.is_partial) },
    { title: "Caps in force", class: "number", cell: (row) => f.power(row.caps_w) },
    ...(rows.some((row) => row.limit_w !== undefined) ? [{ title: "Node limit", class: "number", cell: (row) => f.power(row.limit_w) }] : []),
    { title: "Host", class: "number medium", cell: (row) => f.power(row.host_w) },
    ...(page.feeders ? [{ title: "Feeders", cell: (row) => (row.feeds.length ? row.feeds.map(feed) : "–") }] : []),
  ];
  return card("Power by node", table("Power of each node against the limits that hold there", columns, rows, "No node is shown."),
    legend([["gpus", "GPUs"], ["hosts", "host"]]),
    h("p", { class: "muted" }, "The mark is the most that a node may draw: the sum of the caps of its GPUs, at most the limit of the node, and its host."));
}

function section(id, node) {
  const gpus = Object.entries(node.gpus).map(([key, gpu]) => ({ key, ...gpu }));
  return h("section", { class: "card", "data-key": id },
    h("h2", null, id, h("span", { class: "muted" }, ` ${words(node)}`)),
    node.silent.length ? h("p", null, state(`silent: ${node.silent.join(", ")}`, "fault")) : null,
    table(`GPUs of ${id}`, COLUMNS, gpus, "Its power agent has reported no GPU."));
}

/** The nodes of the list in numbers. */
function totals({ total, totals: sums }) {
  const parts = [f.count(total, "node"), `${sums.busy} of ${f.count(sums.gpus, "GPU")} busy`];
  if (sums.asleep) parts.splice(1, 0, `${sums.asleep} asleep`);
  if (f.isKnown(sums.gpus_w)) {
    const power = f.stated(f.power(sums.gpus_w), sums.gpus_w, sums.is_partial);
    parts.push(`GPUs ${power}${f.isKnown(sums.caps_w) ? ` of ${f.power(sums.caps_w)} by caps` : ""}`);
  }
  if (f.isKnown(sums.hosts_w)) parts.push(`hosts ${f.power(sums.hosts_w)}`);
  return parts.join(", ");
}

export function draw(page, ctx) {
  return [
    heading("Nodes", h("p", { class: "verdict-line" }, totals(page))),
    h("div", { class: "tools" }, search(ctx, "Find by name", page.search)),
    page.order.length ? powerCard(page) : null,
    page.order.length ? page.order.map((id) => section(id, page.rows[id])) : h("p", { class: "empty" }, page.search ? "No node matches." : "No node has reported."),
    pager(page, ctx),
  ];
}

// The nodes with every GPU.

import { h } from "../dom.js";
import { gauge } from "../chart.js";
import * as f from "../format.js";
import { heading, jobLink, pager, search, state, table } from "../parts.js";

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

function section(id, node) {
  const gpus = Object.entries(node.gpus).map(([key, gpu]) => ({ key, ...gpu }));
  return h("section", { class: "card", "data-key": id },
    h("h2", null, id, h("span", { class: "muted" }, ` ${words(node)}`)),
    node.silent.length ? h("p", null, state(`silent: ${node.silent.join(", ")}`, "fault")) : null,
    table(`GPUs of ${id}`, COLUMNS, gpus, "Its power agent has reported no GPU."));
}

export function draw(page, ctx) {
  return [
    heading("Nodes", h("p", { class: "verdict-line" }, f.count(page.total, "node"))),
    h("div", { class: "tools" }, search(ctx, "Find by name", page.search)),
    page.order.length ? page.order.map((id) => section(id, page.rows[id])) : h("p", { class: "empty" }, page.search ? "No node matches." : "No node has reported."),
    pager(page, ctx),
  ];
}

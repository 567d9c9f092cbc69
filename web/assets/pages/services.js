// The health of the services.

import { h } from "../dom.js";
import * as f from "../format.js";
import { card, faults, heading, state, table } from "../parts.js";

export const title = () => "Services";

export function draw(page, ctx) {
  const leases = Object.entries(page.leases).map(([key, lease]) => ({ key, ...lease }))
    .sort((a, b) => a.key.includes(".") - b.key.includes(".") || a.key.localeCompare(b.key, undefined, { numeric: true }));
  const processes = (page.processes ?? []).map((process, index) => ({ key: `${process.service} ${process.of} ${process.pid} ${index}`, ...process }));
  const grave = page.faults.shown.filter((fault) => fault.level === "fault").length;
  const words = page.faults.count === 0 ? "all in order" : grave ? f.count(grave, "fault") : f.count(page.faults.count, "warning");
  return [
    heading("Services", h("p", { class: "verdict-line" }, state(words, page.faults.count === 0 ? "ok" : grave ? "fault" : "warning"))),
    faults(page.faults),
    card("Active processes by lease", table("Leases", [
      { title: "Service", head: true, cell: (row) => row.label },
      { title: "State", cell: (row) => (row.active ? state("active", "ok") : state("gone", "fault")) },
      { title: "Since", cell: (row) => f.time(row.since_s, ctx.now()) },
      { title: "Process", class: "medium", cell: (row) => h("code", null, row.holder.replace(/, started \d+$/, "")) },
    ], leases, "No service holds a lease.")),
    card("Processes that answer", page.processes === undefined ? h("p", { class: "empty" }, "Waiting for answers.") : [
      h("p", { class: "muted" }, Object.entries(page.counts).map(([service, count]) => `${count} ${service}`).join(", ")),
      table("Processes", [
        { title: "Service", head: true, cell: (row) => row.service },
        { title: "Of", cell: (row) => row.of || "cluster" },
        { title: "State", cell: (row) => state(row.state, row.state === "active" ? "ok" : "queued") },
        { title: "Host", class: "medium", cell: (row) => row.host },
        { title: "Process", class: "number wide", cell: (row) => row.pid },
        { title: "Version", class: "wide", cell: (row) => row.version },
      ], processes, "No process answers."),
      page.hidden ? h("p", { class: "muted" }, `${page.hidden} more`) : null,
    ]),
  ];
}

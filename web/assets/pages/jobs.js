// The list of jobs.

import { h } from "../dom.js";
import * as f from "../format.js";
import { heading, jobColumns, jobRows, pager, search, table } from "../parts.js";

const SHOWN = [["active", "Active"], ["running", "On GPUs"], ["queued", "Queued"], ["ended", "Ended"], ["failed", "Failed"], ["all", "All"]];

function number(kind, { on_gpus: running, queued, finished, failed, cancelled }) {
  const ended = finished + failed + cancelled;
  return { active: running + queued, running, queued, ended, failed, all: running + queued + ended }[kind];
}

/** The columns with their links: the most first, of deadlines the earliest. */
function columns(page, ctx) {
  const hasDeadline = Object.values(page.rows).some((row) => row.deadline_s !== undefined);
  return jobColumns(ctx, { hasDeadline }).map((column) => {
    if (!column.key) return column;
    const isIt = page.sort === column.key;
    const order = isIt ? (column.key === "deadline" ? "ascending" : "descending") : undefined;
    return { ...column, sort: { address: ctx.address({ sort: isIt ? "" : column.key, page: 0 }), order } };
  });
}

export const title = () => "Jobs";

export function draw(page, ctx) {
  const maySubmit = ctx.session.person?.changes;
  const none = maySubmit ? "There is no such job." : "There is no such job. Sign in to submit one here, or use `wattle submit`.";
  return [
    h("div", { class: "tools" },
      heading("Jobs", h("p", { class: "verdict-line" }, page.counts.words)),
      maySubmit ? h("a", { href: "/submit", class: "button main" }, "Submit a job") : null),
    h("div", { class: "tools" },
      h("nav", { class: "choice", "aria-label": "Which jobs" }, SHOWN.map(([kind, text]) =>
        h("a", { href: ctx.address({ show: kind === "active" ? "" : kind, page: 0 }), "aria-current": page.show === kind && "true" },
          text, h("span", { class: "muted" }, ` ${number(kind, page.counts)}`)))),
      search(ctx, "Find by job, user, project, workload or node", page.search)),
    table("Jobs", columns(page, ctx), jobRows(page), page.search ? "No job matches." : none),
    h("p", { class: "muted" }, `${f.count(page.total, "job")} in this list`),
    pager(page, ctx),
  ];
}

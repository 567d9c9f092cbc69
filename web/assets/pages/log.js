// The output of a job, read from the launchers of its nodes while it is shown.

import { h } from "../dom.js";
import { send } from "../session.js";

const READ_EVERY_MS = 1500;
// Characters that are kept; earlier ones are dropped, so that the page's memory is bounded.
const TEXT_MAX = 200000;

let timer = 0;
let following = null;

function stop() {
  clearTimeout(timer);
  following = null;
}

async function read(job, node, offset, box, status) {
  const mark = following;
  let next = offset;
  try {
    const answer = await send("GET", `/api/log?${new URLSearchParams({ job, node, offset })}`);
    if (mark !== following) return;
    if (answer.text) {
      const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
      box.textContent = (box.textContent + answer.text).slice(-TEXT_MAX);
      if (atEnd) box.scrollTop = box.scrollHeight;
    }
    next = answer.next;
    status.textContent = answer.bytes === 0 ? "no output yet" : `${answer.next} of ${answer.bytes} bytes`;
    if (answer.next < answer.bytes) {
      read(job, node, next, box, status);
      return;
    }
  } catch (error) {
    if (mark !== following) return;
    status.textContent = error.message;
  }
  timer = setTimeout(() => read(job, node, next, box, status), READ_EVERY_MS);
}

/** A section that shows the output of a node once it is opened. */
export function section(job, nodes, hasStarted, ctx) {
  if (!ctx.session.person) return h("p", { class: "muted" }, "Sign in to read the output.");
  if (!nodes?.length) {
    return h("p", { class: "empty" }, hasStarted
      ? ["The nodes of its output are not known here; ", h("code", null, `wattle logs ${job}`), " looks for it."] : "The job has not started.");
  }
  const choose = (node) => {
    stop();
    following = {};
    const box = document.getElementById("log");
    const status = document.getElementById("log-status");
    box.textContent = "";
    status.textContent = `reading from ${node}`;
    read(job, node, 0, box, status);
  };
  return h("div", null,
    h("div", { class: "actions" }, nodes.map((node) => h("button", { type: "button", class: "quiet", onclick: () => choose(node) }, `Show output on ${node}`))),
    h("p", { class: "muted", id: "log-status", role: "status", "data-own": "" }),
    h("pre", { id: "log", tabindex: "0", "aria-label": `Output of ${job}`, "data-own": "" }));
}

export const leave = stop;

// The grid events, and the form that announces one.

import { h } from "../dom.js";
import * as f from "../format.js";
import { card, facts, heading, state, table } from "../parts.js";
import { send } from "../session.js";

let message = { text: "", kind: "" };
/** What the entered event would be; null: nothing is entered. */
let entered = null;

export const title = () => "Events";
export const leave = () => { message = { text: "", kind: "" }; entered = null; };

/** The glyph of a state. */
export const GLYPH = { planned: "queued", "ramping down": "starting", active: "running", "ramping up": "stopping", ended: "finished", cancelled: "cancelled", declined: "cancelled" };

export const link = (id) => h("a", { href: `/grid-events/${encodeURIComponent(id)}` }, id);

/** A statement as a sentence. */
export function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

const columns = (ctx, rows) => [
  { title: "Event", head: true, class: "job", cell: (row) => link(row.key) },
  { title: "State", cell: (row) => state(row.state, GLYPH[row.state]) },
  { title: "Start", cell: (row) => f.time(row.start_s, ctx.now()) },
  { title: "End of target", cell: (row) => f.time(row.end_s, ctx.now()) },
  { title: "Target", class: "number", cell: (row) => row.target },
  { title: "Less than before", class: "number", cell: (row) => row.less ?? "–" },
  ...(rows.some((row) => row.feeder) ? [{ title: "Feeder", cell: (row) => row.feeder ?? "–" }] : []),
  { title: "Kind", class: "wide", cell: (row) => row.kind },
  { title: "Source", class: "wide", cell: (row) => row.source },
];

/** The content of the form: absent fields are empty ones. */
function values(form) {
  const data = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
  const event = { depth_by: data.depth_by };
  for (const key of ["ramp_down_min", "ramp_up_min", "duration_min", "depth"]) {
    if (data[key] !== undefined) event[key] = Number(data[key]);
  }
  if (data.id !== undefined) event.id = data.id;
  if (data.source !== undefined) event.source = data.source;
  if (data.feeder !== undefined) event.feeder = data.feeder;
  if (data.start !== undefined) event.start_s = Math.round(new Date(data.start).getTime() / 1000);
  if (data.mandatory !== undefined) event.mandatory = true;
  return event;
}

async function review(form, ctx) {
  const event = values(form);
  try {
    entered = event.depth === undefined && event.duration_min === undefined ? null : await send("POST", "/api/event/review", event);
  } catch (error) {
    entered = { error: error.message };
  }
  ctx.redraw();
}

function preview(ctx) {
  if (!entered) return null;
  if (entered.error) return h("p", null, state(sentence(entered.error), "warning"));
  const { target_w: target, now_w: now, less_w: less } = entered;
  const judged = () => {
    if (entered.unknown_feeder) return state(`Refused: ${entered.unknown_feeder}.`, "fault");
    if (entered.below_idle) return state(`Refused: ${entered.below_idle}.`, "fault");
    if (entered.no_reduction) return state(`${entered.place[0].toUpperCase()}${entered.place.slice(1)} draws no more than this now.`, "warning");
    return f.isKnown(now) ? state("Accepted with the present draw.", "ok") : state("The present draw is not known.", "warning");
  };
  return h("div", { class: "preview" }, h("p", null, judged()), facts([
    ["Event", entered.event],
    ["Limits", entered.place],
    ["Target", f.isKnown(target) ? f.power(target) : null],
    ["Less than now", f.isKnown(less) ? f.power(less) : null],
    ["Drawn now", f.isKnown(now) ? f.power(now) : null],
    ["Start", f.time(entered.start_s, ctx.now())],
    ["End of the target", f.time(entered.end_s, ctx.now())],
  ]));
}

function form(page, ctx) {
  if (!ctx.session.person?.operates) {
    return h("p", { class: "muted" }, "Signed-in operators can announce an event here.");
  }
  const field = (name, label, attributes, hint) => h("div", { class: "field" }, h("label", { for: name }, label),
    h("input", { id: name, name, ...attributes }), hint ? h("p", { class: "hint" }, hint) : null);
  const minutes = { type: "number", min: "0", step: "any", inputmode: "decimal" };
  const submit = async (event) => {
    event.preventDefault();
    const form = event.target;
    try {
      const { event: id } = await send("POST", "/api/event", { do: "add", event: values(form) });
      ctx.announce(`The event ${id} is stored.`);
      ctx.go(`/grid-events/${encodeURIComponent(id)}`);
    } catch (error) {
      message = { text: `Not announced: ${error.message}`, kind: "fault" };
      ctx.announce(message.text);
      ctx.redraw();
    }
  };
  const input = (event) => {
    const { form: changed } = event.target;
    ctx.later(() => review(changed, ctx));
  };
  const range = [f.isKnown(page.idle_w) ? `above ${f.power(page.idle_w)} without jobs` : null, f.isKnown(page.now_w) ? `below ${f.power(page.now_w)} drawn now` : null].filter(Boolean).join(", ");
  return h("form", { class: "fields", onsubmit: submit, oninput: input },
    field("depth", "Depth", { ...minutes, required: true }, range ? `The target is accepted ${range}.` : null),
    h("div", { class: "field" }, h("label", { for: "depth_by" }, "Depth is"), h("select", { id: "depth_by", name: "depth_by" },
      h("option", { value: "percent-less" }, "% less than before"), h("option", { value: "kw-less" }, "kW less than before"), h("option", { value: "kw-most" }, "kW at most"))),
    page.feeders.length > 0 ? h("div", { class: "field" }, h("label", { for: "feeder" }, "Limits"), h("select", { id: "feeder", name: "feeder" },
      h("option", { value: "" }, "the whole site"), page.feeders.map((name) => h("option", { value: name }, `feeder ${name}`)))) : null,
    field("start", "Start", { type: "datetime-local" }, "Empty: now."),
    field("duration_min", "Duration at the target, minutes", { ...minutes, required: true }, "1 minute to 7 days."),
    field("ramp_down_min", "Ramp down, minutes", minutes, "At most the duration."),
    field("ramp_up_min", "Ramp up, minutes", minutes, "At most the duration."),
    field("id", "Name", { type: "text", maxlength: "64", autocomplete: "off", spellcheck: "false" }, "Empty: from its start."),
    field("source", "Source", { type: "text", maxlength: "128", autocomplete: "off" }, "Empty: operator."),
    h("div", { class: "whole" }, h("label", { class: "check" }, h("input", { type: "checkbox", name: "mandatory", id: "mandatory" }), " Mandatory: it may not be declined, and its target precedes promises")),
    h("div", { class: "whole", role: "status", "aria-label": "What the entered event is" }, preview(ctx)),
    h("div", { class: "actions" }, h("button", { type: "submit" }, "Announce")),
    message.text ? h("p", null, state(message.text, message.kind)) : null);
}

export function draw(page, ctx) {
  const rows = page.order.map((key) => ({ key, ...page.rows[key] }));
  return [
    heading("Events", page.verdict.split("\n").map((line) => h("p", { class: "verdict-line" }, sentence(line)))),
    page.in_force ? page.in_force.map((line) => h("p", null, sentence(line))) : null,
    card("Grid events", table("Grid events", columns(ctx, rows), rows, "No grid event is known.")),
    card("Announce an event", form(page, ctx)),
  ];
}

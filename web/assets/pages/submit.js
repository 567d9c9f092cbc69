// The form that submits a job. The server parses the fields, so their errors are those of `wattle submit`.

import { h } from "../dom.js";
import { heading } from "../parts.js";
import { send } from "../session.js";

const EMPTY = {
  command: "", shell: false, name: "", working_dir: "", gpus: "1", gpu_type: "", sharing: "site", memory_mib: "", workload: "",
  project: "", estimate: "", deadline: "", slack: "", max_slowdown: "", flexibility: "", event_pause: false, event_resize: false, priority: "", checkpoint_signal: "", environment: "",
};
const CHECKED = { errors: {}, words: [], name: "" };

// What is typed stays when the page is left, and goes when the job is accepted.
let draft = { ...EMPTY };
let reviewed = CHECKED;
let reviews = 0;
/** The fields whose errors are shown: those that were left, and all after an attempt. */
let touched = new Set();
let isAttempted = false;
let isSending = false;
/** The last form that was sent and its number: the same form has the same number until a reply has arrived, so that no job is submitted twice. */
let sent = null;
/** The person whose form this is. */
let owner = null;
let refusal = "";

export const title = () => "Submit a job";
export const leave = () => { refusal = ""; };

function reset() {
  [draft, reviewed, touched, isAttempted, sent, refusal] = [{ ...EMPTY }, CHECKED, new Set(), false, null, ""];
  // A review of the former form is not shown.
  reviews += 1;
}

async function review(ctx) {
  reviews += 1;
  const turn = reviews;
  try {
    const found = await send("POST", "/api/submit/review", draft);
    if (turn !== reviews) return;
    reviewed = found;
    ctx.redraw();
  } catch {
    // Submitting states the cause.
  }
}

function changed(ctx, name, value) {
  draft[name] = value;
  ctx.later(() => review(ctx));
}

/** Shows the errors of a field when it is left. */
function left(ctx, name) {
  touched.add(name);
  review(ctx);
}

/** Leads to the first field with an error, in the order of the page. */
function showFirst(errors) {
  const [first] = [...document.querySelectorAll("main form [name]")].filter((field) => field.name in errors);
  first?.closest("details")?.setAttribute("open", "");
  first?.focus();
}

const isRefused = ({ status }) => status >= 400 && status < 500;

/** Why a submission has no job. */
function cause(error, fields) {
  if (fields > 0) return `Not submitted: ${fields === 1 ? "a field is" : `${fields} fields are`} not valid.`;
  if (error.status === 413) return "Not submitted: the form is too long. Put the command into a script.";
  if (isRefused(error)) return `Not submitted: ${error.message}`;
  if (error.answer?.error) return error.message;
  return "It is unknown whether the job was submitted: the server of this page did not answer. Submitting the same form again does not make a second job.";
}

async function submit(event, ctx) {
  event.preventDefault();
  if (isSending) return;
  isSending = true;
  isAttempted = true;
  refusal = "";
  ctx.redraw();
  // Milliseconds and a random part, in microseconds as in the ids of `wattle submit`.
  const content = JSON.stringify(draft);
  if (sent?.content !== content) {
    sent = { content, number: (Math.floor(ctx.now() * 1000) * 1000 + Math.floor(Math.random() * 1000)).toString(16) };
  }
  const isHere = () => location.pathname === "/submit";
  try {
    const { job } = await send("POST", "/api/submit", { form: draft, number: sent.number, person: ctx.session.person.name });
    isSending = false;
    // What was typed meanwhile is kept.
    if (JSON.stringify(draft) === content) reset();
    else sent = null;
    ctx.announce(`The job ${job} is submitted.`);
    if (isHere()) ctx.go(`/jobs/${encodeURIComponent(job)}`);
  } catch (error) {
    isSending = false;
    const errors = error.answer?.errors ?? {};
    reviews += 1;
    reviewed = { ...reviewed, errors };
    // Otherwise the job may have been accepted, and a repetition needs the same number.
    if (isRefused(error)) sent = null;
    if (error.status === 401 || error.status === 409) await ctx.session.read();
    refusal = error.status === 401 ? "" : cause(error, Object.keys(errors).length);
    if (!isHere()) return;
    ctx.redraw();
    showFirst(errors);
  }
}

/** A field with its label, hint and error; `control(attributes)` is its element. */
function field(ctx, name, label, { hint, whole, control, more = {} }) {
  const id = `job-${name}`;
  const error = isAttempted || touched.has(name) ? reviewed.errors[name] : undefined;
  const described = [hint && `${id}-hint`, error && `${id}-error`, more["aria-describedby"]].filter(Boolean).join(" ");
  const attributes = {
    id, name, "aria-invalid": error && "true", ...more, "aria-describedby": described || null,
    oninput: (event) => changed(ctx, name, event.target.value), onchange: () => left(ctx, name),
  };
  return h("div", { class: whole ? "field whole" : "field", "data-key": name },
    h("label", { for: id }, label), control(attributes),
    hint ? h("p", { class: "hint", id: `${id}-hint` }, hint) : null,
    error ? h("p", { class: "error", id: `${id}-error` }, error) : null);
}

function text(ctx, name, label, { hint, whole, options, more } = {}) {
  const list = options?.length ? `job-${name}-known` : null;
  const control = (attributes) => [
    h("input", { ...attributes, type: "text", value: draft[name], autocomplete: "off", autocapitalize: "none", spellcheck: "false", list }),
    list ? h("datalist", { id: list }, options.map((value) => h("option", { value }))) : null,
  ];
  return field(ctx, name, label, { hint, whole, control, more });
}

function lines(ctx, name, label, { hint, rows, more }) {
  const control = (attributes) => h("textarea", { ...attributes, rows, autocomplete: "off", autocapitalize: "none", spellcheck: "false" }, draft[name]);
  return field(ctx, name, label, { hint, whole: true, control, more });
}

/** A choice: `[[value, text]]`. */
function choice(ctx, name, label, options, hint) {
  const control = (attributes) => h("select", attributes,
    options.map(([value, words]) => h("option", { value, selected: draft[name] === value }, words)));
  return field(ctx, name, label, { hint, control });
}

/** Yes or no. */
function check(ctx, name, label) {
  const set = (event) => changed(ctx, name, event.target.checked);
  return h("label", { class: "check" }, h("input", { type: "checkbox", id: `job-${name}`, checked: draft[name], onchange: set }), label);
}

/** The words of the command, each in its own box. */
function command(ctx) {
  const { words, uninterpreted } = reviewed;
  const runs = words.length === 0 ? h("span", { class: "muted" }, "The words of the command are shown here.") : ["Runs ", words.map((word) => [h("code", null, word === "" ? "''" : word), " "])];
  const set = (event) => { changed(ctx, "shell", event.target.checked); };
  return [
    lines(ctx, "command", "Command (required)", {
      rows: "2", more: { required: true, "aria-describedby": "job-words" },
      hint: ["The program and its arguments, as after ", h("code", null, "wattle submit --"), ". Quotation marks keep spaces."],
    }),
    h("div", { class: "whole" },
      h("label", { class: "check" }, h("input", { type: "checkbox", id: "job-shell", checked: draft.shell, onchange: set }), "Run the line with a shell (sh -c), which interprets pipes, variables and &&"),
      h("p", { class: "words", id: "job-words" }, runs),
      uninterpreted ? h("p", { class: "state warning" }, h("span", { class: "glyph", "aria-hidden": "true" }, "▲"),
        `Only a shell interprets ${uninterpreted}. Without one, the program receives it unchanged.`) : null),
  ];
}

function group(name, ...fields) {
  const id = `job-group-${name.toLowerCase().replaceAll(" ", "-")}`;
  return h("section", { class: "card", role: "group", "aria-labelledby": id }, h("h2", { id }, name), h("div", { class: "form-grid" }, fields));
}

function form(page, ctx) {
  const types = page.gpu_types.map(({ type, gpus }) => [type, `${type} (${gpus} in the cluster)`]);
  if (draft.gpu_type && !types.some(([type]) => type === draft.gpu_type)) types.push([draft.gpu_type, draft.gpu_type]);
  const span = "90s, 45m, 12h or 3d";
  return h("form", { class: "submission", novalidate: true, onsubmit: (event) => submit(event, ctx) },
    group("What runs", command(ctx),
      text(ctx, "name", "Name", { hint: `If empty: ${draft.name.trim() || !reviewed.name ? "that of the program" : reviewed.name}` }),
      text(ctx, "working_dir", "Working directory", { hint: "On the nodes. If empty: the checkpoint folder of the job" }),
      text(ctx, "workload", "Workload", { hint: "Measurements of the same class improve its predictions", options: page.workloads }),
      text(ctx, "project", "Project", { hint: "The job counts towards its quota and fair share", options: page.projects })),
    group("GPUs",
      text(ctx, "gpus", "Number of GPUs", { hint: "A number, or a range for an elastic job: 1..8" }),
      choice(ctx, "gpu_type", "GPU type", [["", "any"], ...types]),
      choice(ctx, "sharing", "Sharing of its GPUs", [["site", "as the site decides"], ["share", "allowed: I consent to sharing"], ["exclusive", "never"]]),
      choice(ctx, "checkpoint_signal", "Checkpoint signal", [["", "none: the job is never moved"], ...page.signals.map((signal) => [signal, signal])], "On this signal the job writes a checkpoint and exits with 0")),
    group("Time and energy",
      text(ctx, "estimate", "Estimated run time", { hint: `With exclusive GPUs: ${span}` }),
      text(ctx, "deadline", "Deadline", { hint: `From now: ${span}` }),
      text(ctx, "slack", "Slack", { hint: "Total time it may wait for cleaner energy: 2h" }),
      text(ctx, "max_slowdown", "Accepted slowdown", { hint: "Against the default cap and clock: 2% or 0.02" }),
      text(ctx, "flexibility", "Flexibility", { hint: "Share of its throughput that it gives up during a grid event: 25%. If empty: the site's default" }),
      check(ctx, "event_pause", "May be paused during a grid event"),
      check(ctx, "event_resize", "May get another number of GPUs during a grid event")),
    h("details", { class: "card" }, h("summary", null, "Priority, memory and environment"),
      h("div", { class: "form-grid" },
        text(ctx, "priority", "Priority", { hint: "From 0 to 100, higher first. If empty: 0" }),
        text(ctx, "memory_mib", "Device memory, MiB", { hint: "Peak on each GPU" }),
        lines(ctx, "environment", "Environment variables", { rows: "3", hint: "KEY=VALUE, one on each line. Keep passwords out: every node can read them." }))),
    h("div", { class: "submit" },
      h("p", { class: "error", role: "alert" }, refusal),
      h("button", { type: "submit", "aria-disabled": isSending && "true" }, isSending ? "Submitting…" : "Submit the job")));
}

export function draw(page, ctx) {
  const { person } = ctx.session;
  if (!ctx.session.isRead) return [heading("Submit a job"), h("p", { class: "loading" }, "Loading…")];
  if (!person) {
    const kept = draft.command ? " The form keeps its content." : "";
    return [heading("Submit a job"), h("p", null, `Sign in to submit a job.${kept}`),
      h("div", { class: "actions" }, h("button", { type: "button", onclick: () => ctx.session.ask() }, "Sign in"))];
  }
  // The next person in this tab does not see the form of the one before.
  if (owner !== null && owner !== person.name) reset();
  owner = person.name;
  if (!person.changes) return [heading("Submit a job"), h("p", null, "A monitor may not submit jobs. Sign in with the key of a user.")];
  return [heading("Submit a job", h("p", { class: "verdict-line" }, `The job will belong to ${person.name}.`)), form(page, ctx)];
}

// Chooses the page by the address, follows its content and shows it.

import { h, show } from "./dom.js";
import { span } from "./format.js";
import { Session } from "./session.js";
import { Stream } from "./stream.js";
import * as budget from "./pages/budget.js";
import * as energy from "./pages/energy.js";
import * as event from "./pages/event.js";
import * as events from "./pages/events.js";
import * as job from "./pages/job.js";
import * as jobs from "./pages/jobs.js";
import * as nodes from "./pages/nodes.js";
import * as overview from "./pages/overview.js";
import * as predictors from "./pages/predictors.js";
import * as saving from "./pages/saving.js";
import * as schedule from "./pages/schedule.js";
import * as services from "./pages/services.js";
import * as submit from "./pages/submit.js";

const PAGES = [
  ["/", "Overview", overview], ["/jobs", "Jobs", jobs], ["/nodes", "Nodes", nodes], ["/schedule", "Schedule", schedule], ["/energy", "Energy", energy],
  ["/saving", "Saving", saving], ["/budget", "Budget", budget], ["/grid-events", "Events", events], ["/predictors", "Predictors", predictors],
  ["/services", "Services", services],
];

const place = (id) => document.getElementById(id);
let page = overview;
let isNew = true;
let timer = 0;
let announced = "";

const stream = new Stream(draw);
const session = new Session(draw);

function parameters() {
  return Object.fromEntries(new URLSearchParams(location.search));
}

/** What pages need besides their content. */
const ctx = {
  session,
  now: () => stream.now(),
  redraw: () => draw(),
  go,
  /** The address of this page with other parameters. */
  address(changes) {
    const query = new URLSearchParams();
    for (const [key, value] of Object.entries({ ...parameters(), ...changes })) {
      if (value !== "" && value !== 0 && value !== "0") query.set(key, value);
    }
    const text = query.toString();
    return location.pathname + (text ? `?${text}` : "");
  },
  /** Runs the last of several calls, after a pause. */
  later(work) {
    clearTimeout(timer);
    timer = setTimeout(work, 250);
  },
  announce(text) {
    place("announce").textContent = text;
  },
};

function route() {
  const path = location.pathname;
  const inJob = path.match(/^\/jobs\/([^/]+)$/);
  page.leave?.();
  if (inJob) {
    page = job;
    return { topic: "job", job: decodeURIComponent(inJob[1]) };
  }
  const inEvent = path.match(/^\/grid-events\/([^/]+)$/);
  if (inEvent) {
    page = event;
    return { topic: "event", event: decodeURIComponent(inEvent[1]) };
  }
  if (path === "/submit") {
    page = submit;
    return { topic: "submit" };
  }
  const found = PAGES.find(([address]) => address === path) ?? PAGES[0];
  page = found[2];
  return { ...parameters(), topic: found[1].toLowerCase() };
}

/** Shows an address of this page. */
function go(address, { replace = false } = {}) {
  const before = location.pathname;
  history[replace ? "replaceState" : "pushState"](null, "", address);
  enter(location.pathname !== before);
}

function enter(isOther) {
  isNew = isOther;
  stream.follow(route());
  if (isOther) {
    show(place("main"), h("p", { class: "loading" }, "Loading…"));
    window.scrollTo(0, 0);
  }
  drawNav();
}

function drawNav() {
  const path = location.pathname;
  const isCurrent = (address) => address === path || (address === "/grid-events" && path.startsWith("/grid-events/")) || (address === "/jobs" && (path.startsWith("/jobs/") || path === "/submit"));
  show(place("nav"), h("ul", null, PAGES.map(([address, title]) =>
    h("li", null, h("a", { href: address, "aria-current": isCurrent(address) && "page" }, title)))));
}

function connection(content) {
  if (stream.ended === "displaced") {
    return ["lost", "Not updated: too many pages are open", "This page is no longer updated: too many pages are open. Reload it to continue."];
  }
  if (session.locks) return ["waiting", "Not signed in", ""];
  if (stream.lost) {
    return ["lost", `Server lost ${span(stream.silence())} ago, reconnecting`, "The server of this page is lost. The figures are old."];
  }
  if (!content) return ["waiting", "Connecting", ""];
  if (content.bus_lost_s !== undefined) {
    return ["lost", `Bus lost ${span(content.bus_lost_s)} ago`, "The NATS server is away. The figures are old."];
  }
  return ["live", "Live", "Live again."];
}

/** Follows the page as long as the person may, and again after a session has ended or begun. */
function followPerson() {
  if (stream.ended === "signed-out") {
    stream.ended = "waits";
    session.isRead = false;
    session.read();
  } else if (session.locks) {
    if (stream.ended !== "waits") stream.end(stream.source, "waits");
    stream.content = null;
  } else if (stream.ended === "waits" && session.isRead) {
    stream.open();
  }
}

function draw() {
  followPerson();
  const { content } = stream;
  const [kind, text, words] = connection(content);
  show(place("connection"), h("span", { class: `live ${kind}` }, h("span", { class: "dot", "aria-hidden": "true" }, kind === "live" ? "●" : "✕"), text));
  document.body.classList.toggle("stale", kind === "lost");
  if (kind !== announced && kind !== "waiting") {
    if (announced !== "") ctx.announce(words);
    announced = kind;
  }
  session.draw(place("person"));
  if (session.locks) {
    show(place("main"), h("h1", { tabindex: "-1" }, "Sign in"), session.keys ? h("p", null, "This page is shown to people with a key.") : session.address());
    return;
  }
  if (!content) return;
  place("cluster").textContent = content.cluster ?? "";
  const shown = page.draw(content.page, ctx);
  show(place("main"), ...[shown].flat());
  if (performance.getEntriesByName("first-view").length === 0) performance.mark("first-view");
  const heading = document.querySelector("main h1");
  document.title = `${page.title?.(content.page) ?? heading?.textContent ?? ""} · Wattle ${content.cluster ?? ""}`;
  if (isNew) {
    isNew = false;
    heading?.focus({ preventScroll: true });
  }
}

/** Light, dark, or as the system has it. */
function theme(next) {
  const kinds = ["auto", "light", "dark"];
  const kind = next ?? localStorage.getItem("theme") ?? "auto";
  localStorage.setItem("theme", kind);
  document.documentElement.dataset.theme = kind;
  const button = place("theme");
  button.textContent = `Theme: ${kind}`;
  button.onclick = () => theme(kinds[(kinds.indexOf(kind) + 1) % kinds.length]);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  const isPlain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
  // A link in a drawing has no `origin`.
  const origin = link && new URL(link.getAttribute("href"), location.href).origin;
  if (!link || !isPlain || link.hasAttribute("download") || origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  go(link.getAttribute("href"));
});
window.addEventListener("popstate", () => enter(true));

theme();
enter(true);
// A document that is loaded begins at its start.
isNew = false;
session.read();

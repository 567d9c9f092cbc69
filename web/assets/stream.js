// Follows one page over server-sent events, and notices when the server is lost.

// Wall time without an event after which the server counts as lost; it sends one a second, for a large cluster one in three seconds.
const SILENCE_MS = 7500;
const RETRY_MS = 2000;

/** Applies a merge patch (RFC 7396). */
export function merge(target, change) {
  if (change === null || typeof change !== "object" || Array.isArray(change)) return change;
  const result = target !== null && typeof target === "object" && !Array.isArray(target) ? target : {};
  for (const [key, value] of Object.entries(change)) {
    if (value === null) delete result[key];
    else result[key] = merge(result[key], value);
  }
  return result;
}

export class Stream {
  constructor(onChange) {
    this.onChange = onChange;
    this.source = null;
    this.query = "";
    this.content = null;
    this.lost = false;
    /** Why the server has ended the stream: "displaced" or "signed-out"; null: it has not. */
    this.ended = null;
    this.receivedAt = performance.now();
    this.clock = { system: Date.now() / 1000, at: performance.now(), rate: 1 };
    setInterval(() => this.check(), 1000);
    // A browser keeps a page that it left, with its connection, and has at most six connections to a host.
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => { if (event.persisted) this.open(); });
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  /** Follows the page with these parameters instead of the last one. */
  follow(parameters) {
    this.query = new URLSearchParams(parameters).toString();
    this.content = null;
    this.open();
  }

  /** The server ends the stream: it is not opened again before the person acts. */
  end(source, why) {
    if (source !== this.source) return;
    this.close();
    this.ended = why;
    if (why !== "waits") this.onChange();
  }

  open() {
    this.source?.close();
    this.ended = null;
    const source = new EventSource(`/events?${this.query}`);
    this.source = source;
    this.opened = performance.now();
    source.addEventListener("all", (event) => this.receive(source, event, (data) => { this.content = data.all; }));
    source.addEventListener("change", (event) =>
      this.receive(source, event, (data) => { if (data.change) this.content = merge(this.content, data.change); }));
    source.addEventListener("ended", (event) => this.end(source, JSON.parse(event.data)));
    source.onerror = () => { if (source === this.source && !this.lost) { this.lost = true; this.onChange(); } };
  }

  receive(source, event, apply) {
    if (source !== this.source) return;
    const data = JSON.parse(event.data);
    apply(data);
    this.receivedAt = performance.now();
    this.clock = { system: data.now_s, at: this.receivedAt, rate: data.rate };
    this.lost = false;
    this.onChange();
  }

  check() {
    if (this.ended) return;
    const silent = performance.now() - this.receivedAt > SILENCE_MS;
    if (silent && !this.lost) this.lost = true;
    const isDead = this.source?.readyState === EventSource.CLOSED || (silent && this.lost);
    if (this.source && isDead && performance.now() - this.opened > RETRY_MS) this.open();
    if (this.lost) this.onChange();
  }

  /** Wall time since the last event, seconds. */
  silence() {
    return (performance.now() - this.receivedAt) / 1000;
  }

  /** The system's time, seconds since the Unix epoch. */
  now() {
    return this.clock.system + ((performance.now() - this.clock.at) / 1000) * this.clock.rate;
  }
}

// The signed-in person, and requests that change something.

import { h, show } from "./dom.js";

/** Sends a request; an error has the server's words, `status` and `answer`. */
export async function send(method, path, body) {
  const options = { method, headers: { "x-wattle": "1" }, body: typeof body === "string" ? body : JSON.stringify(body) };
  if (method === "GET") delete options.body;
  const response = await fetch(path, options);
  const answer = await response.json().catch(() => ({}));
  if (!response.ok) {
    const error = new Error(answer.error ?? `the server answers ${response.status}`);
    throw Object.assign(error, { status: response.status, answer });
  }
  return answer;
}

export class Session {
  constructor(onChange) {
    this.onChange = onChange;
    this.person = null;
    /** Whether people have keys; otherwise the address of the page signs in. */
    this.keys = true;
    /** Whether pages are shown to a signed-in person only. */
    this.required = false;
    /** Whether it is known which person has signed in. */
    this.isRead = false;
  }

  async read() {
    try {
      const { person, keys, required } = await send("GET", "/api/session");
      Object.assign(this, { person, keys, required });
    } catch {
      // The stream shows a lost server.
    }
    this.isRead = true;
    this.onChange();
  }

  /** Shows the person of the session. */
  draw(place) {
    if (this.person) {
      show(place, h("span", null, `${this.person.name} (${this.person.rank})`),
        h("button", { type: "button", class: "quiet", onclick: () => this.signOut() }, "Sign out"));
    } else {
      show(place, h("button", { type: "button", class: "quiet", onclick: () => this.ask() }, "Sign in"));
    }
  }

  /** Whether nothing is shown before signing in. */
  get locks() {
    return this.isRead && this.required && !this.person;
  }

  /** How a person signs in where people have no keys. */
  address() {
    return h("p", null, "Run ", h("code", null, "wattle page"), " as the user of ", h("code", null, "wattle up"),
      ", and open the address that it prints.");
  }

  async signOut() {
    await send("DELETE", "/api/session").catch(() => {});
    this.person = null;
    await this.read();
  }

  ask() {
    const dialog = document.getElementById("sign-in");
    if (!this.keys) {
      dialog.replaceChildren(h("h2", { id: "sign-in-title" }, "Sign in"), this.address(),
        h("div", { class: "actions" }, h("button", { type: "button", onclick: () => dialog.close() }, "Close")));
      dialog.showModal();
      return;
    }
    const message = h("p", { class: "error", role: "alert" });
    const field = h("textarea", { id: "key", rows: "5", autocomplete: "off", spellcheck: "false", required: true });
    const submit = async (event) => {
      event.preventDefault();
      message.textContent = "";
      try {
        const { person } = await send("POST", "/api/session", field.value);
        field.value = "";
        this.person = person;
        dialog.close();
        this.onChange();
      } catch (error) {
        message.textContent = error.message;
      }
    };
    dialog.replaceChildren(h("form", { onsubmit: submit },
      h("h2", { id: "sign-in-title" }, "Sign in"),
      h("p", null, "Paste your whole key file, as ", h("code", null, "wattle keys add user NAME"), " wrote it."),
      h("label", { for: "key" }, "Key file"), field, message,
      h("p", { class: "muted" }, "The key stays in the memory of this page's server until you sign out, and is stored nowhere."),
      h("div", { class: "actions" }, h("button", { type: "submit" }, "Sign in"),
        h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"))));
    dialog.showModal();
    field.focus();
  }
}

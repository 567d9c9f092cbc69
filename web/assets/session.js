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
    this.keys = true;
    /** Whether it is known which person has signed in. */
    this.isRead = false;
  }

  async read() {
    try {
      const { person, keys } = await send("GET", "/api/session");
      this.person = person;
      this.keys = keys;
    } catch {
      // The stream shows a lost server.
    }
    this.isRead = true;
    this.onChange();
  }

  /** Shows the person of the session. */
  draw(place) {
    if (this.person && !this.keys) {
      show(place, h("span", { class: "muted", title: "The server has no keys: every user of this machine may act" }, "no keys"));
    } else if (this.person) {
      show(place, h("span", null, `${this.person.name} (${this.person.rank})`),
        h("button", { type: "button", class: "quiet", onclick: () => this.signOut() }, "Sign out"));
    } else {
      show(place, h("button", { type: "button", class: "quiet", onclick: () => this.ask() }, "Sign in"));
    }
  }

  async signOut() {
    await send("DELETE", "/api/session").catch(() => {});
    this.person = null;
    await this.read();
  }

  ask() {
    const dialog = document.getElementById("sign-in");
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

/** API keys: create, list, revoke. A new key is shown once. */

import { html, nothing } from "../vendor/lit.js";
import { ApiError, get, hasKey, post, remove, segment, signIn } from "./api.js";
import { dateTime, safeText } from "./format.js";
import { ask, badge, empty, errorState, idText, loading, notify, PageElement } from "./ui.js";

class KeysPage extends PageElement {
  constructor() {
    super();
    /** @type {any[] | null} */
    this.keys = null;
    /** @type {any} */
    this.created = null;
    this.isCreating = false;
  }

  connectedCallback() {
    super.connectedCallback();
    void this.load();
  }

  load() {
    return this.inOrder(this.read);
  }

  read = () => this.attempt(async () => {
    this.keys = (await get("/v1/keys")).data;
  });

  /** @param {any} event */
  async create(event) {
    event.preventDefault();
    if (this.isCreating) return;
    this.isCreating = true;
    const form = event.target;
    const fields = new FormData(form);
    await this.inOrder(() => this.attempt(async () => {
      const isFirst = !this.keys?.length && !hasKey();
      this.created = await post("/v1/keys", { tenant: fields.get("tenant") || "default", name: fields.get("name") ?? "", admin: isFirst || fields.get("admin") !== null });
      // From the first key on every request needs one: go on with this one.
      if (isFirst) signIn(this.created.key, false);
      form.reset();
      this.keys = (await get("/v1/keys")).data;
    }));
    this.isCreating = false;
  }

  /** @param {any} key */
  async revoke(key) {
    const text = `Requests with “${safeText(key.name) || key.id}” are refused from now on. It cannot be taken back.`;
    if ((await ask({ title: "Revoke this key?", text, action: "Revoke", isDangerous: true })) === null) return;
    try {
      await remove(`/v1/keys/${segment(key.id)}`);
      notify("The key was revoked");
      await this.load();
    } catch (error) {
      notify(error instanceof Error ? error.message : String(error));
    }
  }

  render() {
    if (this.failure instanceof ApiError && this.failure.status === 403) {
      return html`<h1 tabindex="-1">API keys</h1>${empty("Only for admins", "Sign in with an admin key to manage keys.")}`;
    }
    const isFirst = this.keys !== null && !this.keys.length && !hasKey();
    return html`<div class="page-head"><h1 tabindex="-1">API keys</h1></div>
      ${errorState(this.failure)}
      ${this.created ? html`<div class="proof good" role="status"><strong>Save this key now; it is not shown again.</strong>
        <div class="row"><code class="break new-key">${this.created.key}</code><span class="spacer"></span>
          <button type="button" class="button small" @click=${() => navigator.clipboard?.writeText(this.created.key).then(() => notify("Copied"), () => {})}>Copy</button>
          <button type="button" class="button small" @click=${() => { this.created = null; this.requestUpdate(); }}>Done</button></div></div>` : nothing}
      <form class="card" @submit=${this.create}><h2>Create a key</h2>
        ${isFirst ? html`<p class="muted">There is no key yet: the gateway serves this machine only, without keys. From the first key on every request needs one. The first key is an admin key.</p>` : nothing}
        <div class="row wrap"><label class="field"><span>Tenant</span><input name="tenant" value="default" required maxlength="64"></label>
          <label class="field grow"><span>Name</span><input name="name" maxlength="128" placeholder="What it is for"></label>
          <label class="check"><input type="checkbox" name="admin" ?checked=${isFirst} ?disabled=${isFirst}> Admin</label>
          <button type="submit" class="button primary">Create</button></div></form>
      ${this.keys === null ? (this.failure ? nothing : loading()) : this.keys.length ? this.table(this.keys) : empty("No keys yet")}`;
  }

  /** @param {any[]} keys */
  table(keys) {
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="API keys"><table class="list">
      <thead><tr><th scope="col">Name</th><th scope="col">Tenant</th><th scope="col">Kind</th><th scope="col">Created</th><th scope="col">State</th><th scope="col"><span class="visually-hidden">Actions</span></th></tr></thead>
      <tbody>${keys.map((key) => html`<tr><th scope="row">${safeText(key.name) || html`<span class="muted">unnamed</span>`}<div class="muted small">${idText(key.id)}</div></th>
        <td>${safeText(key.tenant)}</td><td>${key.admin ? badge("admin", "info") : "tenant"}</td><td>${dateTime(key.created_at)}</td>
        <td>${badge(key.revoked_at === null ? "live" : "revoked")}</td>
        <td class="num">${key.revoked_at === null ? html`<button type="button" class="button small danger" @click=${() => this.revoke(key)}>Revoke</button>` : nothing}</td></tr>`)}</tbody></table></div>`;
  }
}
customElements.define("hf-keys", KeysPage);

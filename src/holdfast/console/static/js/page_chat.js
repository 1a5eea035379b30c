/** Talk to a session: streamed answers, stop, regenerate, edit, attachments, a choice of models. */

import { html, nothing } from "../vendor/lit.js";
import { get, post, segment, serves } from "./api.js";
import { randomId, safeText, size } from "./format.js";
import { subscribe } from "./live.js";
import { all } from "./page_session.js";
import { followAnswer, LiveAnswer } from "./response_stream.js";
import { ask, badge, errorState, notify, PageElement } from "./ui.js";
import "./transcript.js";

const MODEL = "holdfast.model";
const MAX_FILE_BYTES = 10 * 1024 * 1024;
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** @typedef {{name: string, type: string, url: string, size: number}} Attachment */

class ChatPage extends PageElement {
  static properties = { sessionId: { attribute: false } };

  constructor() {
    super();
    this.sessionId = "";
    /** @type {any} */
    this.session = null;
    /** @type {string[]} */
    this.models = [];
    this.model = localStorage.getItem(MODEL) ?? "";
    this.key = "";
    this.draft = "";
    /** @type {Attachment[]} */
    this.attachments = [];
    /** @type {any[]} */
    this.pending = [];
    /** @type {LiveAnswer | null} */
    this.answer = null;
    /** @type {any[]} */
    this.approvals = [];
    this.hasApprovals = false;
    this.aborter = new AbortController();
    /** A session that this page created is shown without loading the page again. */
    this.ownSession = "";
  }

  connectedCallback() {
    super.connectedCallback();
    this.aborter = new AbortController();
    this.cleanups.push(() => this.aborter.abort());
    this.cleanups.push(subscribe((fact) => {
      if (fact.session_id === this.sessionId && this.hasApprovals && fact.type.startsWith("turn.")) void this.loadApprovals();
    }));
    void this.loadModels();
    void serves("/v1/approvals").then((is) => { this.hasApprovals = is; if (is) void this.loadApprovals(); });
  }

  get transcript() {
    return /** @type {any} */ (this.querySelector("hf-transcript"));
  }

  /** Show the end of the conversation, unless the person reads further up. @param {boolean} isForced */
  toEnd(isForced) {
    const page = document.documentElement;
    const isNear = page.scrollHeight - window.scrollY - window.innerHeight < 240;
    if (!isForced && !isNear) return;
    requestAnimationFrame(() => window.scrollTo(0, page.scrollHeight));
    // Blocks near the screen are drawn only now, and change the height once more.
    if (isForced) setTimeout(() => window.scrollTo(0, page.scrollHeight), 120);
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (!changed.has("sessionId") || this.sessionId === this.ownSession) return;
    this.session = null;
    this.pending = [];
    this.answer = null;
    this.failure = null;
    if (this.sessionId) void this.attempt(async () => { this.session = await get(`/v1/sessions/${segment(this.sessionId)}`); });
  }

  async loadModels() {
    try {
      this.models = (await get("/v1/models")).data.map((/** @type {any} */ model) => model.id);
    } catch {
      this.models = [];
    }
    if (!this.model || (this.models.length && !this.models.includes(this.model))) this.model = this.models[0] ?? "";
    this.requestUpdate();
  }

  async loadApprovals() {
    try {
      const listed = await get("/v1/approvals");
      this.approvals = listed.data.filter((/** @type {any} */ one) => !one.session_id || one.session_id === this.sessionId);
    } catch {
      this.approvals = [];
    }
    this.requestUpdate();
  }

  /**
   * @param {any} approval
   * @param {boolean} approve
   */
  async decide(approval, approve) {
    try {
      const answered = await post(`/v1/approvals/${segment(approval.id)}`, { approve });
      // The turn goes on in the background; show what it says.
      if (answered.response_id) void this.transcript?.attach(answered.response_id);
    } catch (error) {
      notify(error instanceof Error ? error.message : String(error));
    }
    await this.loadApprovals();
  }

  /** @param {FileList | null} files */
  async attach(files) {
    // The list empties itself when its field is cleared.
    for (const file of Array.from(files ?? [])) {
      if (file.size > MAX_FILE_BYTES) {
        notify(`${file.name} has ${size(file.size)}; at most ${size(MAX_FILE_BYTES)} can be attached.`);
        continue;
      }
      this.attachments = [...this.attachments, { name: file.name, type: file.type, url: await dataUrl(file), size: file.size }];
    }
    this.requestUpdate();
  }

  /** The message as an item: text first, then the attachments. */
  message() {
    const parts = this.attachments.map((one) => IMAGES.has(one.type)
      ? { type: "input_image", image_url: one.url, detail: "auto" }
      : { type: "input_file", filename: one.name, file_data: one.url });
    const text = this.draft.trim();
    return { type: "message", role: "user", content: [...(text ? [{ type: "input_text", text }] : []), ...parts] };
  }

  async send() {
    if (this.answer || (!this.draft.trim() && !this.attachments.length)) return;
    const item = this.message();
    const { draft, attachments } = this;
    this.draft = "";
    this.attachments = [];
    this.pending = [item];
    if (!(await this.ask([item], "new")) && !this.draft) {
      this.draft = draft;
      this.attachments = attachments;
    }
    this.requestUpdate();
  }

  /**
   * Run a turn. It is sent once: a lost connection attaches to the same turn again.
   * @param {any[]} input
   * @param {"new" | "whole"} history
   */
  async ask(input, history) {
    /** @type {Record<string, string>} */
    const headers = { "Idempotency-Key": `console-${randomId()}`, "X-Session-History": history };
    if (this.sessionId) headers["X-Session-Id"] = this.sessionId;
    else headers["X-Session-Key"] = this.key.trim() || `console:${randomId().slice(0, 12)}`;
    const json = { model: this.model, input, stream: true, background: true, store: true };
    const answer = new LiveAnswer();
    this.answer = answer;
    this.failure = null;
    this.requestUpdate();
    void this.updateComplete.then(() => this.toEnd(true));
    const onChange = () => {
      if (answer.sessionId && !this.sessionId) this.adopt(answer.sessionId);
      const shown = this.transcript;
      shown?.show(answer);
      this.requestUpdate();
      this.toEnd(false);
    };
    let isSent = true;
    try {
      await followAnswer(answer, { json, headers }, { signal: this.aborter.signal, onChange });
      if (answer.error) notify(answer.error);
    } catch (error) {
      this.failure = error;
      isSent = answer.turnId !== null;
    }
    await this.settle(history === "whole");
    return isSent;
  }

  /** Show what the log has in place of what was streamed. @param {boolean} isRewritten */
  async settle(isRewritten) {
    const shown = this.transcript;
    if (shown && this.sessionId) {
      if (isRewritten) await shown.reload();
      else await shown.readNewer();
      shown.live = null;
      shown.requestUpdate();
    }
    this.pending = [];
    this.answer = null;
    this.requestUpdate();
  }

  /** @param {string} sessionId */
  adopt(sessionId) {
    this.ownSession = sessionId;
    this.sessionId = sessionId;
    history.replaceState(null, "", `#/chat/${segment(sessionId)}`);
    void get(`/v1/sessions/${segment(sessionId)}`).then((session) => { this.session = session; this.requestUpdate(); }, () => {});
  }

  async stop() {
    const id = this.answer?.turnId;
    if (!id) return;
    try {
      await post(`/v1/turns/${segment(id)}/cancel`);
    } catch (error) {
      notify(error instanceof Error ? error.message : String(error));
    }
  }

  /** What the model may be shown, up to before an item, as the API lists it. @param {any} entry */
  async historyBefore(entry) {
    const listed = await all(`/v1/sessions/${segment(this.sessionId)}/items`, { order: "asc" });
    const at = listed.findIndex((item) => item.id === entry.id);
    if (at < 0) throw new Error("This message is no longer part of the conversation.");
    return listed.slice(0, at);
  }

  /** Ask again for the answer behind a message. @param {any} entry */
  async regenerate(entry) {
    await this.rewrite(entry, (/** @type {any} */ item) => item);
  }

  /** @param {any} entry */
  async edit(entry) {
    const before = textOf(entry.item);
    const text = await ask({ title: "Edit this message", text: "What came after it is kept in the log, and no longer shown to the model.", action: "Send", field: "Message", value: before });
    if (text === null || !text.trim()) return;
    await this.rewrite(entry, () => ({ type: "message", role: "user", content: [{ type: "input_text", text }] }));
  }

  /**
   * @param {any} entry
   * @param {(item: any) => any} change
   */
  async rewrite(entry, change) {
    if (this.answer) return;
    try {
      const before = await this.historyBefore(entry);
      await this.ask([...before, change(entry.item)], "whole");
    } catch (error) {
      this.failure = error;
      this.requestUpdate();
    }
  }

  entryActions = (/** @type {any} */ entry) => {
    if (entry.item?.role !== "user" || entry.session_id !== this.sessionId || this.answer) return nothing;
    return html`<button type="button" class="button small" @click=${() => this.edit(entry)}>Edit</button>
      <button type="button" class="button small" @click=${() => this.regenerate(entry)}>Regenerate</button>`;
  };

  render() {
    const title = this.session ? this.session.key ?? "Chat with a session" : this.sessionId ? "Chat" : "New chat";
    return html`
      <div class="page-head"><h1 tabindex="-1" class="break">${safeText(title)}</h1>
        ${this.session?.status === "retired" ? badge("retired") : nothing}<span class="spacer"></span>
        ${this.sessionId ? html`<a class="button" href=${`#/sessions/${segment(this.sessionId)}`}>Inspect</a> <a class="button" href="#/chat">New chat</a>` : nothing}</div>
      ${this.sessionId ? nothing : html`<label class="field key-field"><span>Session key (optional)</span>
        <input .value=${this.key} maxlength="512" placeholder="console:…" @input=${(/** @type {any} */ event) => { this.key = event.target.value; }}></label>`}
      <hf-transcript .sessionId=${this.sessionId} .isChat=${true} .pending=${this.pending} .entryActions=${this.entryActions} @loaded=${() => this.toEnd(true)}></hf-transcript>
      ${errorState(this.failure)}
      ${this.approvals.map((one) => html`<div class="card" role="group" aria-label="Approval">
        <p>${badge("approval needed", "warn")} <strong>${safeText(one.name ?? one.tool)}</strong> ${safeText(one.server_label ?? one.server ?? "")}</p>
        <pre class="code" tabindex="0" aria-label="Arguments"><code>${safeText(one.arguments)}</code></pre>
        <div class="row end"><button type="button" class="button" @click=${() => this.decide(one, false)}>Deny</button>
          <button type="button" class="button primary" @click=${() => this.decide(one, true)}>Allow</button></div></div>`)}
      ${this.composer()}`;
  }

  composer() {
    const isBusy = this.answer !== null;
    const isRetired = this.session?.status === "retired";
    const onKey = (/** @type {KeyboardEvent} */ event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        void this.send();
      }
    };
    return html`<form class="composer" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void this.send(); }}>
      ${this.attachments.length ? html`<ul class="chips" aria-label="Attachments">${this.attachments.map((one, index) => html`<li>${safeText(one.name)} <span class="muted">${size(one.size)}</span>
        <button type="button" class="link" aria-label=${`Remove ${safeText(one.name)}`} @click=${() => { this.attachments = this.attachments.filter((_, at) => at !== index); this.requestUpdate(); }}>✕</button></li>`)}</ul>` : nothing}
      <label><span class="visually-hidden">Message</span>
        <textarea rows="2" placeholder=${isRetired ? "This generation is retired" : "Write a message"} ?disabled=${isRetired} .value=${this.draft} @keydown=${onKey}
          @input=${(/** @type {any} */ event) => { this.draft = event.target.value; this.requestUpdate(); }}></textarea></label>
      <div class="row">
        <label class="model"><span class="visually-hidden">Model</span><select @change=${(/** @type {any} */ event) => { this.model = event.target.value; localStorage.setItem(MODEL, this.model); }}>
          ${this.models.length ? this.models.map((name) => html`<option value=${name} ?selected=${name === this.model}>${safeText(name)}</option>`) : html`<option value="">No models</option>`}</select></label>
        <label class="button small file">Attach<input type="file" multiple class="visually-hidden" @change=${(/** @type {any} */ event) => { void this.attach(event.target.files); event.target.value = ""; }}></label>
        <span class="spacer"></span>
        ${isBusy ? html`<button type="button" class="button danger" ?disabled=${!this.answer?.turnId} @click=${this.stop}>Stop</button>`
          : html`<button type="submit" class="button primary" ?disabled=${isRetired || (!this.draft.trim() && !this.attachments.length)}>Send</button>`}
      </div></form>`;
  }
}
customElements.define("hf-chat", ChatPage);

/** @param {any} item */
function textOf(item) {
  if (typeof item.content === "string") return item.content;
  return (item.content ?? []).map((/** @type {any} */ part) => part.text ?? "").join("\n");
}

/**
 * @param {File} file
 * @returns {Promise<string>}
 */
function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(String(reader.result));
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

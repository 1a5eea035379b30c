/** Talk to a session: streamed answers, stop, regenerate, edit, attachments, a choice of models. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { get, hasKey, post, segment } from "./api.js";
import { ago, randomId, safeText, size } from "./format.js";
import { textOf } from "./items.js";
import { onOpen, subscribe } from "./live.js";
import { all } from "./page_session.js";
import { LiveAnswer } from "./response_stream.js";
import { ask, badge, closeOnEscape, errorState, notify, PageElement, scrollToEnd } from "./ui.js";
import "./approvals.js";
import "./transcript.js";

const MODEL = "holdfast.model";
const OTHER_MODEL = " other";
const MAX_FILE_BYTES = 10 * 1024 * 1024;
const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

/** @typedef {{name: string, type: string, url: string, size: number}} Attachment */

/** Messages that were written and not sent, by their session; "" is a new chat. @type {Map<string, {draft: string, attachments: Attachment[]}>} */
const drafts = new Map();
const MAX_DRAFTS = 20;
const LISTED = 30;
const LIST_MS = 600;
/** What is sent with the messages of each session, until the page is left. @type {Map<string, {instructions: string, temperature: string}>} */
const chatSettings = new Map();
/** @param {string} sessionId */
const settingsOf = (sessionId) => chatSettings.get(sessionId) ?? { instructions: "", temperature: "" };
// Whoever signs in next does not see them.
window.addEventListener("holdfast:key", () => {
  if (hasKey()) return;
  drafts.clear();
  chatSettings.clear();
});

class ChatPage extends PageElement {
  static properties = { sessionId: { attribute: false } };

  constructor() {
    super();
    this.sessionId = "";
    /** @type {any} */
    this.session = null;
    /** @type {string[]} */
    this.models = [];
    /** Why the models could not be listed. @type {unknown} */
    this.modelsFailure = null;
    this.model = localStorage.getItem(MODEL) ?? "";
    /** Whether the person chose the model, here and now: then the session's last one does not count. */
    this.isModelChosen = false;
    this.key = "";
    this.draft = "";
    /** @type {Attachment[]} */
    this.attachments = [];
    /** The answer that this page asked for, until it is in the log. @type {LiveAnswer | null} */
    this.answer = null;
    /** What is sent with every message of this conversation. @type {{instructions: string, temperature: string}} */
    this.settings = { instructions: "", temperature: "" };
    /** The latest conversations, beside this one. @type {any[]} */
    this.conversations = [];
    this.listTimer = 0;
    this.hadKey = false;
    /** A session that this page created is shown without loading the page again. @type {string | null} */
    this.ownSession = null;
    this.shownSession = "";
    /** Counts conversations: each one has a transcript of its own, and late answers to another change nothing. */
    this.conversation = 0;
    /** @type {Promise<void>} */
    this.modelsLoaded = Promise.resolve();
  }

  connectedCallback() {
    super.connectedCallback();
    this.cleanups.push(subscribe((fact) => {
      if (fact.session_id === this.sessionId && fact.type.startsWith("session.")) void this.loadSession();
      clearTimeout(this.listTimer);
      this.listTimer = window.setTimeout(() => void this.loadConversations(), LIST_MS);
    }));
    this.cleanups.push(onOpen(() => void this.loadConversations()), () => clearTimeout(this.listTimer));
    void this.loadConversations();
    this.cleanups.push(() => hasKey() === this.hadKey && this.keepDraft(this.sessionId));
    this.hadKey = hasKey();
    this.modelsLoaded = this.loadModels();
  }

  get transcript() {
    return /** @type {any} */ (this.querySelector("hf-transcript"));
  }

  /** Show the end of the conversation, unless the person reads further up. @param {boolean} isForced */
  toEnd(isForced) {
    const page = document.documentElement;
    const isNear = page.scrollHeight - window.scrollY - window.innerHeight < 240;
    if (isForced) scrollToEnd();
    else if (isNear) requestAnimationFrame(() => window.scrollTo(0, page.scrollHeight));
  }

  /** Show the end once; later changes of the log leave the place where one reads. */
  onLoaded() {
    const isFirst = this.shownSession !== this.sessionId;
    this.shownSession = this.sessionId;
    this.toEnd(isFirst);
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (!changed.has("sessionId") || this.sessionId === this.ownSession) return;
    if (changed.get("sessionId") !== undefined) this.keepDraft(/** @type {string} */ (changed.get("sessionId")));
    ({ draft: this.draft, attachments: this.attachments } = drafts.get(this.sessionId) ?? { draft: "", attachments: [] });
    drafts.delete(this.sessionId);
    this.ownSession = null;
    this.conversation += 1;
    this.isModelChosen = false;
    this.session = null;
    this.answer = null;
    this.failure = null;
    this.settings = settingsOf(this.sessionId);
    void this.loadSession();
  }

  /** What was written in one session is not sent in another. @param {string} sessionId */
  keepDraft(sessionId) {
    const { draft, attachments } = this;
    drafts.delete(sessionId);
    if (!draft.trim() && !attachments.length) return;
    drafts.set(sessionId, { draft, attachments });
    for (const [oldest] of drafts) if (drafts.size > MAX_DRAFTS) drafts.delete(oldest);
  }

  async loadSession() {
    const { sessionId } = this;
    if (!sessionId) return;
    // A session that cannot be read is reported by its transcript.
    const session = await get(`/v1/sessions/${segment(sessionId)}`).catch(() => null);
    const isFirst = this.session === null;
    const model = isFirst && session ? await this.lastModel(session) : null;
    if (sessionId !== this.sessionId) return;
    this.session = session;
    if (isFirst && !this.isModelChosen && model) this.model = model;
    this.requestUpdate();
  }

  /** The model of a session's last turn that has ended, or of its newest while none has. @param {any} session */
  async lastModel(session) {
    if (session.last_turn || !session.turn_count) return session.last_turn?.model ?? null;
    const turns = await get(`/v1/sessions/${segment(session.id)}/turns?order=desc&limit=1`).catch(() => null);
    return turns?.data[0]?.model ?? null;
  }

  async loadModels() {
    try {
      this.models = (await get("/v1/models")).data.map((/** @type {any} */ model) => model.id);
      this.modelsFailure = null;
    } catch (error) {
      this.models = [];
      this.modelsFailure = error;
    }
    if (!this.model) this.model = this.models[0] ?? "";
    this.requestUpdate();
  }

  /** @param {string} name */
  async chooseModel(name) {
    if (name === OTHER_MODEL) {
      const typed = await ask({ title: "Which model?", text: "The name as the provider knows it.", action: "Choose", field: "Model name", value: this.model });
      name = typed?.trim() || this.model;
    }
    this.model = name;
    this.isModelChosen = true;
    localStorage.setItem(MODEL, name);
    this.requestUpdate();
  }

  async loadConversations() {
    const listed = await get("/v1/sessions", { limit: LISTED, sort: "activity", preview: true }).catch(() => null);
    if (listed === null) return;
    this.conversations = listed.data;
    this.requestUpdate();
  }

  /** @param {Partial<ChatPage["settings"]>} changed */
  changeSettings(changed) {
    this.settings = { ...this.settings, ...changed };
    chatSettings.set(this.sessionId, this.settings);
    this.requestUpdate();
  }

  /** The fields of a request that the person chose. */
  chosenFields() {
    const { instructions, temperature } = this.settings;
    const degree = Number(temperature);
    return {
      ...(instructions.trim() ? { instructions: instructions.trim() } : {}),
      ...(temperature !== "" && Number.isFinite(degree) ? { temperature: degree } : {}),
    };
  }

  /** @param {FileList | null} files */
  async attach(files) {
    const { conversation } = this;
    // The list empties itself when its field is cleared.
    for (const file of Array.from(files ?? [])) {
      if (file.size > MAX_FILE_BYTES) {
        notify(`${file.name} has ${size(file.size)}; at most ${size(MAX_FILE_BYTES)} can be attached.`);
        continue;
      }
      const url = await dataUrl(file);
      if (conversation !== this.conversation) return;
      this.attachments = [...this.attachments, { name: file.name, type: file.type, url, size: file.size }];
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
    const { draft, attachments, sessionId } = this;
    this.draft = "";
    this.attachments = [];
    if (await this.ask([item], { history: "new", shown: [item] })) return;
    if (sessionId !== this.sessionId || !this.isConnected) drafts.set(sessionId, { draft, attachments });
    else if (!this.draft) Object.assign(this, { draft, attachments });
    this.requestUpdate();
  }

  /**
   * Run a turn. It is sent once: a lost connection attaches to the same turn again.
   * Return false if it was not accepted.
   * @param {any[]} input
   * @param {{history: "new" | "whole", shown: any[]}} options
   */
  async ask(input, { history, shown }) {
    /** @type {Record<string, string>} */
    const headers = { "Idempotency-Key": `console-${randomId()}`, "X-Session-History": history, "X-Session-Source": "console" };
    if (this.sessionId) headers["X-Session-Id"] = this.sessionId;
    else headers["X-Session-Key"] = this.key.trim() || `console:${randomId().slice(0, 12)}`;
    const answer = new LiveAnswer();
    answer.input = shown;
    answer.rewrites = history === "whole";
    this.answer = answer;
    this.failure = null;
    this.requestUpdate();
    await this.updateComplete;
    this.toEnd(true);
    // Whoever is faster than the list of models means the first of them.
    await this.modelsLoaded;
    if (!this.model) await this.loadModels();
    // Whoever left the session meanwhile has not sent anything.
    if (this.answer !== answer) return false;
    if (!this.model) {
      this.answer = null;
      this.failure = this.modelsFailure ?? new Error("The gateway lists no model: choose “Other model…” and name one.");
      this.requestUpdate();
      return false;
    }
    const json = { model: this.model, input, ...this.chosenFields(), stream: true, background: true, store: true };
    let isSent = true;
    try {
      await this.transcript.follow(answer, { json, headers });
    } catch (error) {
      isSent = answer.turnId !== null;
      if (this.answer === answer) this.failure = error;
    }
    if (this.answer === answer) this.answer = null;
    this.requestUpdate();
    return isSent;
  }

  /** @param {LiveAnswer} answer */
  onProgress(answer) {
    if (answer === this.answer && answer.sessionId && !this.sessionId) this.adopt(answer.sessionId);
    this.requestUpdate();
    this.toEnd(false);
  }

  /** @param {string} sessionId */
  adopt(sessionId) {
    this.ownSession = sessionId;
    this.sessionId = sessionId;
    chatSettings.set(sessionId, this.settings);
    history.replaceState(null, "", `#/chat/${segment(sessionId)}`);
    window.dispatchEvent(new CustomEvent("holdfast:address"));
    void this.loadSession();
  }

  /** The turn that Stop cancels: one's own, or the one that runs. */
  get stoppable() {
    const answers = /** @type {LiveAnswer[]} */ (this.transcript?.answers ?? []);
    return this.answer?.turnId ?? answers.find((answer) => answer.turnId && !answer.isEnded)?.turnId ?? null;
  }

  async stop() {
    const id = this.stoppable;
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
    await this.rewrite(entry, (/** @type {any} */ item) => item, []);
  }

  /** @param {any} entry */
  async edit(entry) {
    const before = textOf(entry.item);
    const parts = attachmentsOf(entry.item);
    const kept = parts.length ? ` ${parts.length === 1 ? "Its attachment stays." : `Its ${parts.length} attachments stay.`}` : "";
    const text = await ask({ title: "Edit this message", text: `What came after it is kept in the log, and no longer shown to the model.${kept}`, action: "Send", field: "Message", value: before, isLong: true });
    if (text === null || !text.trim()) return;
    const item = { type: "message", role: "user", content: [{ type: "input_text", text }, ...parts] };
    await this.rewrite(entry, () => item, [item]);
  }

  /**
   * @param {any} entry
   * @param {(item: any) => any} change
   * @param {any[]} shown
   */
  async rewrite(entry, change, shown) {
    if (this.answer) return;
    try {
      const before = await this.historyBefore(entry);
      await this.ask([...before, change(entry.item)], { history: "whole", shown });
    } catch (error) {
      this.failure = error;
      this.requestUpdate();
    }
  }

  entryActions = (/** @type {any} */ entry) => {
    if (entry.item?.role !== "user" || entry.session_id !== this.sessionId || this.answer) return nothing;
    return html`<button type="button" class="button small quiet" @click=${() => this.edit(entry)}>Edit</button>
      <button type="button" class="button small quiet" @click=${() => this.regenerate(entry)}>Regenerate</button>`;
  };

  updated() {
    if (this.sessionId && this.isConnected) document.title = `Chat: ${safeText(this.session?.key ?? this.sessionId)} · Holdfast`;
  }

  render() {
    const title = this.session ? this.session.key ?? "Chat with a session" : this.sessionId ? "Chat" : "New chat";
    return html`
      <aside class="conversations" aria-label="Conversations">
        <a class="button small new-chat" href="#/chat" aria-label="Start a new chat">New chat</a>
        <ul>${repeat(this.conversations, (one) => one.id, (one) => this.conversationRow(one))}</ul></aside>
      <div class="chat-main">
        <div class="page-head"><h1 tabindex="-1" class="break">${safeText(title)}</h1>
          ${this.session?.status === "retired" ? badge("retired") : nothing}<span class="spacer"></span>
          ${this.sessionId ? html`<a class="button small" href=${`#/sessions/${segment(this.sessionId)}`}>Inspect</a> <a class="button small only-narrow" href="#/chat">New chat</a>` : nothing}</div>
        ${this.sessionId ? nothing : html`<label class="field key-field"><span>Session key (optional)</span>
          <input .value=${this.key} maxlength="512" placeholder="console:…" @input=${(/** @type {any} */ event) => { this.key = event.target.value; }}></label>`}
        <div class="chat-items">${repeat([this.conversation], (one) => one, () => html`<hf-transcript .sessionId=${this.sessionId} .isChat=${true} .entryActions=${this.entryActions}
          @loaded=${() => this.onLoaded()} @progress=${(/** @type {CustomEvent} */ event) => this.onProgress(event.detail)}></hf-transcript>`)}</div>
        ${errorState(this.failure)}
        <hf-approvals .sessionId=${this.sessionId} @answered=${(/** @type {CustomEvent} */ event) => event.detail.response_id && this.transcript?.attach(event.detail.response_id, event.detail.turn_id)}></hf-approvals>
        ${this.composer()}
      </div>`;
  }

  /** @param {any} session */
  conversationRow(session) {
    const words = session.preview?.first?.text ?? "";
    return html`<li><a href=${`#/chat/${segment(session.id)}`} aria-current=${session.id === this.sessionId ? "page" : "false"}>
      <span class="conversation-title">${words ? html`<span dir="auto">${safeText(words)}</span>` : safeText(session.key ?? session.id)}</span>
      <span class="muted small conversation-key">${session.waits_for === "approval" ? badge("approval", "warn") : session.status === "running" ? badge("running") : nothing} ${safeText(session.key ?? "fork")} · ${ago(session.last_user_activity_at ?? session.created_at)}</span></a></li>`;
  }

  composer() {
    const isBusy = this.answer !== null;
    const models = [...new Set([...this.models, ...(this.model ? [this.model] : [])])];
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
        <label class="model"><span class="visually-hidden">Model</span><select .value=${this.model} @change=${(/** @type {any} */ event) => void this.chooseModel(event.target.value)}>
          ${this.model ? nothing : html`<option value="" disabled selected>Choose a model</option>`}
          ${models.map((name) => html`<option value=${name} ?selected=${name === this.model}>${safeText(name)}</option>`)}
          <option value=${OTHER_MODEL}>Other model…</option></select></label>
        <label class="button small file">Attach<input type="file" multiple class="visually-hidden" @change=${(/** @type {any} */ event) => { void this.attach(event.target.files); event.target.value = ""; }}></label>
        <details class="menu-fold settings-fold" @keydown=${closeOnEscape}><summary class="button small" aria-label="Settings of this chat">${Object.keys(this.chosenFields()).length ? html`Settings ${badge(String(Object.keys(this.chosenFields()).length), "info")}` : "Settings"}</summary>
          <div class="menu-list up">
            <label class="field"><span>System prompt</span><textarea rows="4" .value=${this.settings.instructions} @input=${(/** @type {any} */ event) => this.changeSettings({ instructions: event.target.value })}></textarea></label>
            <label class="field"><span>Temperature (0 to 2)</span><input type="number" min="0" max="2" step="0.1" placeholder="the model's own" .value=${this.settings.temperature} @input=${(/** @type {any} */ event) => this.changeSettings({ temperature: event.target.value })}></label>
            <p class="muted small">Sent with each message from this page.</p></div></details>
        <span class="spacer"></span>
        ${isBusy || this.stoppable ? html`<button type="button" class="button danger" ?disabled=${!this.stoppable} @click=${this.stop}>Stop</button>` : nothing}
        ${isBusy ? nothing : html`<button type="submit" class="button primary" ?disabled=${isRetired || (!this.draft.trim() && !this.attachments.length)}>Send</button>`}
      </div></form>`;
  }
}
customElements.define("hf-chat", ChatPage);

/** @param {any} item */
function attachmentsOf(item) {
  if (!Array.isArray(item.content)) return [];
  return item.content.filter((/** @type {any} */ part) => part?.text === undefined);
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

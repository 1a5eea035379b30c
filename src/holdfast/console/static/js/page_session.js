/** One session: transcript, time line, generations and forks, compactions, metadata, actions. */

import { html, nothing } from "../vendor/lit.js";
import { ApiError, get, post, remove, segment } from "./api.js";
import { blocks } from "./blocks.js";
import { ago, dateTime, number, safeText } from "./format.js";
import { lineage } from "./graph.js";
import { logEntry, longText } from "./items.js";
import { onOpen, subscribe } from "./live.js";
import { timeline } from "./timeline.js";
import { ask, badge, closeOnEscape, empty, errorState, loading, notify, PageElement } from "./ui.js";
import "./approvals.js";
import "./transcript.js";

/** @type {[string, string][]} */
const TABS = [["transcript", "Transcript"], ["timeline", "Time line"], ["generations", "Generations and forks"], ["compactions", "Compactions"], ["metadata", "Metadata"]];
/** @type {Record<string, string>} */
const STARTED_BY = { console: "user (console)" };
const REFRESH_MS = 300;
const MAX_EXPORT_PAGES = 1000;
const CHECK_MS = 15_000;
/** Sessions of the tree whose forks are read. */
const MAX_TREE = 60;
const MAX_ANCESTORS = 20;
const MAX_REPLACED_PAGES = 50;

class SessionPage extends PageElement {
  static properties = { sessionId: { attribute: false }, tab: { attribute: false } };

  constructor() {
    super();
    this.sessionId = "";
    this.tab = "transcript";
    this.revealedTab = "";
    /** @type {any} */
    this.session = null;
    /** The newest turns first, and whether there are older ones. @type {any[]} */
    this.turns = [];
    this.hasOlderTurns = false;
    /** @type {any[]} */
    this.generations = [];
    /** The sessions that this one was forked from, the first one first. @type {any[]} */
    this.ancestors = [];
    /** Forks by the session that they were forked from. @type {Map<string, any[]>} */
    this.forks = new Map();
    /** @type {any[]} */
    this.compactions = [];
    /** Items that compactions replaced, as far as somebody asked for them. @type {Map<string, any[]>} */
    this.replaced = new Map();
    this.showsHidden = false;
    this.isActing = false;
    this.timer = 0;
    /** @type {[string, string][] | null} */
    this.editedMetadata = null;
  }

  connectedCallback() {
    super.connectedCallback();
    this.cleanups.push(subscribe((fact) => {
      if (fact.session_id !== this.sessionId) return;
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.load(), REFRESH_MS);
    }));
    this.cleanups.push(() => clearTimeout(this.timer));
    this.cleanups.push(onOpen(() => void this.load()));
    // The feed has no fact about a session that was erased.
    this.every(() => this.load(), CHECK_MS);
  }

  get path() {
    return `/v1/sessions/${segment(this.sessionId)}`;
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("sessionId") || changed.has("tab")) void this.load();
  }

  load() {
    return this.inOrder(this.read);
  }

  read = () => this.attempt(async () => {
    const session = await get(this.path).catch((error) => {
      // An erased session does not stay on the screen.
      if (error instanceof ApiError && error.status === 404) this.session = null;
      throw error;
    });
    this.session = session;
    if (this.tab === "timeline") await this.loadTurns();
    if (this.tab === "compactions") this.compactions = (await get(`${this.path}/compactions`, { limit: 100 })).data;
    if (this.tab === "generations") await this.loadLineage(session);
  });

  /** Read the newest turns again; older ones that were loaded have ended and stay as they are. */
  async loadTurns() {
    const page = await get(`${this.path}/turns`, { order: "desc", limit: 100 });
    const oldest = page.data[page.data.length - 1]?.number ?? 0;
    const older = this.turns.filter((turn) => turn.number < oldest);
    this.turns = [...page.data, ...older];
    if (!older.length) this.hasOlderTurns = page.has_more;
  }

  loadOlderTurns() {
    return this.attempt(async () => {
      const page = await get(`${this.path}/turns`, { order: "desc", limit: 100, after: this.turns[this.turns.length - 1]?.id });
      this.turns = [...this.turns, ...page.data];
      this.hasOlderTurns = page.has_more;
    });
  }

  /** Read the sessions that this one comes from, its generations, and the forks of all of them. @param {any} session */
  async loadLineage(session) {
    this.ancestors = [];
    for (let parent = session.parent_session_id; parent && this.ancestors.length < MAX_ANCESTORS;) {
      const found = await get(`/v1/sessions/${segment(parent)}`).catch(() => null);
      if (!found) break;
      this.ancestors.unshift(found);
      parent = found.parent_session_id;
    }
    this.generations = session.key === null ? [session] : (await get("/v1/sessions", { key: session.key, generations: true, limit: 100, order: "asc" })).data
      .sort((/** @type {any} */ one, /** @type {any} */ other) => one.generation - other.generation);
    /** @type {Map<string, any[]>} */
    const forks = new Map();
    const waiting = [session, ...this.ancestors, ...[...this.generations].reverse()];
    for (const one of waiting) {
      if (forks.has(one.id) || forks.size >= MAX_TREE) continue;
      const { data } = await get(`/v1/sessions/${segment(one.id)}/forks`);
      forks.set(one.id, data);
      waiting.push(...data);
    }
    this.forks = forks;
  }

  /** @param {any} compaction */
  async loadReplaced(compaction) {
    if (this.replaced.has(compaction.id)) return;
    await this.attempt(async () => {
      /** @type {any[]} */
      const found = [];
      let after;
      for (let read = 0; read < MAX_REPLACED_PAGES; read += 1) {
        const page = await get(`${this.path}/items`, { view: "log", order: "asc", limit: 100, after });
        const kept = new Set(compaction.kept_sequences ?? []);
        found.push(...page.data.filter((/** @type {any} */ entry) => entry.sequence >= compaction.first_sequence && entry.sequence <= compaction.last_sequence && !kept.has(entry.sequence)));
        after = page.last_id;
        if (!page.has_more || page.data[page.data.length - 1].sequence >= compaction.last_sequence) break;
      }
      this.replaced.set(compaction.id, found);
    });
  }

  /**
   * Do something once, however often it is pressed meanwhile.
   * @param {string} label
   * @param {() => Promise<unknown>} work
   */
  async act(label, work) {
    if (this.isActing) return;
    this.isActing = true;
    try {
      await work();
      notify(label);
    } catch (error) {
      notify(`That did not work: ${error instanceof Error ? error.message : error}`);
    }
    this.isActing = false;
    if (this.isConnected) void this.load();
  }

  async reset() {
    const text = "The next message starts with an empty history. This generation stays listed and can be restored. A running turn is cancelled.";
    if ((await ask({ title: "Reset this session?", text, action: "Reset" })) === null) return;
    await this.act("The session was reset", async () => {
      const next = await post(`${this.path}/reset`, { expected_session_id: this.sessionId, reason: "console" });
      location.hash = `#/sessions/${segment(next.id)}`;
    });
  }

  /** @param {any} session */
  async restore(session) {
    const text = `Generation ${session.generation} becomes live again, with its whole history. The current one is retired.`;
    if ((await ask({ title: `Restore generation ${session.generation}?`, text, action: "Restore" })) === null) return;
    await this.act(`Generation ${session.generation} was restored`, async () => {
      await post(`/v1/sessions/${segment(session.id)}/restore`);
      location.hash = `#/sessions/${segment(session.id)}`;
    });
  }

  /** @param {any} [entry] */
  async fork(entry) {
    await this.act("A fork was created", async () => {
      const fork = await post(`${this.path}/fork`, entry ? { after_item: entry.sequence } : {});
      location.hash = `#/sessions/${segment(fork.id)}`;
    });
  }

  async compact() {
    const text = "From now on the model is sent one summary in place of the history so far. Nothing is deleted, and it can be undone.";
    if ((await ask({ title: "Compact this session?", text, action: "Compact" })) === null) return;
    await this.act("The session was compacted", () => post(`${this.path}/compact`));
  }

  async erase() {
    const name = this.session.key ?? this.sessionId;
    const text = html`<p>Everything in this session is erased for good: items, turns, results. It cannot be undone.</p>
      <p>${this.session.key === null ? "" : "Other generations of the key stay."} Forks keep a session from being erased, unless they go with it.</p>`;
    if ((await ask({ title: "Erase this session?", text, action: "Erase for good", isDangerous: true, typed: name })) === null) return;
    try {
      await remove(`${this.path}?cascade=false`);
      notify("The session was erased");
      location.hash = "#/sessions";
    } catch (error) {
      const code = /** @type {any} */ (error).code;
      if (code !== "session_has_forks") return notify(`It was not erased: ${/** @type {any} */ (error).message}`);
      const answer = await ask({ title: "Erase its forks as well?", text: "Other sessions share this one's history. They are erased with it.", action: "Erase all of them", isDangerous: true });
      if (answer === null) return;
      await this.act("The session and its forks were erased", () => remove(`${this.path}?cascade=true`));
      location.hash = "#/sessions";
    }
  }

  /** @param {any} entry */
  async deleteItem(entry) {
    const text = "The model is not shown this item any more. It stays in the log and in exports, marked as hidden.";
    if ((await ask({ title: `Delete item ${entry.sequence}?`, text, action: "Delete item", isDangerous: true })) === null) return;
    await this.act("The item was deleted", () => remove(this.itemPath(entry)));
  }

  /** @param {any} entry */
  itemPath(entry) {
    return `/v1/conversations/${segment(this.sessionId.replace(/^ses_/, "conv_"))}/items/${segment(entry.id)}`;
  }

  /** @param {any} entry */
  async eraseItem(entry) {
    const text = "The content of this item is removed for good, here and in every fork that shows it. Its place in the log stays.";
    if ((await ask({ title: `Erase item ${entry.sequence}?`, text, action: "Erase item", isDangerous: true })) === null) return;
    await this.act("The item was erased", () => remove(`${this.itemPath(entry)}?erase=true`));
  }

  /** Collect everything over the API and hand it to the person as a file. */
  async exportJson() {
    await this.act("The export is ready", async () => {
      const items = await all(`${this.path}/items`, { view: "log", order: "asc" });
      const turns = await all(`${this.path}/turns`, { order: "asc" });
      const compactions = await all(`${this.path}/compactions`, { order: "asc" });
      const body = JSON.stringify({ object: "session.export", session: this.session, items, turns, compactions }, null, 2);
      const anchor = document.createElement("a");
      anchor.href = URL.createObjectURL(new Blob([body], { type: "application/json" }));
      anchor.download = `${this.sessionId}.json`;
      anchor.click();
      URL.revokeObjectURL(anchor.href);
    });
  }

  async saveMetadata() {
    const pairs = (this.editedMetadata ?? []).filter(([name]) => name !== "");
    const names = pairs.map(([name]) => name);
    const twice = names.find((name, index) => names.indexOf(name) !== index);
    if (twice !== undefined) return notify(`Not saved: the name “${safeText(twice)}” is used twice.`);
    const metadata = Object.fromEntries(pairs);
    await this.act("The metadata was saved", async () => {
      await post(this.path, { metadata });
      this.editedMetadata = null;
    });
  }

  updated() {
    this.revealTab();
    if (this.session && this.isConnected) document.title = `${safeText(this.session.key ?? this.session.id)} · Holdfast`;
  }

  /** On a narrow screen the tabs scroll: bring the chosen one into sight, once. */
  revealTab() {
    const chosen = this.querySelector(".tabs [aria-current=page]");
    const tabs = chosen?.parentElement;
    if (!chosen || !tabs || this.revealedTab === this.tab) return;
    this.revealedTab = this.tab;
    const [inner, outer] = [chosen.getBoundingClientRect(), tabs.getBoundingClientRect()];
    tabs.scrollLeft += inner.left - outer.left - (outer.width - inner.width) / 2;
  }

  render() {
    const session = this.session;
    if (!session) return html`<h1 tabindex="-1">Session</h1>${this.failure ? errorState(this.failure) : loading("Loading the session…")}`;
    return html`
      <div class="session-bar">
        <div class="page-head"><nav class="crumbs" aria-label="Breadcrumb"><a href="#/sessions">Sessions</a> <span aria-hidden="true">/</span></nav>
          <h1 tabindex="-1" class="break">${safeText(session.key ?? "Session without a key")}</h1> ${badge(session.status)}
          ${session.waits_for === "approval" ? badge("waits for approval", "warn") : nothing}<span class="spacer"></span>
          ${this.tab === "transcript" ? html`<button type="button" class="button small" @click=${() => this.transcript?.jumpToFailure()}>Last failure</button>` : nothing}
          ${session.status === "retired" ? nothing : html`<a class="button small primary" href=${`#/chat/${segment(session.id)}`}>Chat</a>`}</div>
        <nav class="tabs" aria-label="Views of this session">${TABS.map(([name, label]) => html`
          <a href=${`#/sessions/${segment(session.id)}/${name}`} aria-current=${this.tab === name ? "page" : "false"}>${label}</a>`)}</nav>
      </div>
      ${errorState(this.failure)}
      <dl class="facts">
        <div><dt>Id</dt><dd><code class="break">${safeText(session.id)}</code></dd></div>
        <div><dt>Started by</dt><dd>${STARTED_BY[session.source] ?? safeText(session.source)}</dd></div>
        <div><dt>Generation</dt><dd>${session.generation}</dd></div>
        <div><dt>Items</dt><dd>${number(session.item_count)}</dd></div>
        <div><dt>Turns</dt><dd>${number(session.turn_count)}${session.queued_turns ? html` <span class="muted">+ ${session.queued_turns} waiting</span>` : nothing}</dd></div>
        <div><dt>Tokens</dt><dd title="input and output">${number(session.usage.input_tokens)} in · ${number(session.usage.output_tokens)} out</dd></div>
        <div><dt>Last activity</dt><dd title=${dateTime(session.last_user_activity_at)}>${ago(session.last_user_activity_at)}</dd></div>
        ${session.last_turn ? html`<div><dt>Last turn</dt><dd><a href=${`#/turns/${segment(session.last_turn.id)}`}>${session.last_turn.status}</a></dd></div>` : nothing}
      </dl>
      <div class="toolbar" role="group" aria-label="Actions">
        ${session.status === "retired" ? html`<button type="button" class="button small" @click=${() => this.restore(session)}>Restore</button>`
          : session.key === null ? nothing : html`<button type="button" class="button small" @click=${this.reset}>Reset</button>`}
        <button type="button" class="button small" @click=${() => this.fork()}>Fork</button>
        ${session.status === "retired" ? nothing : html`<button type="button" class="button small" @click=${this.compact}>Compact</button>`}
        <button type="button" class="button small" @click=${this.exportJson}>Export</button>
        ${session.parent_session_id ? html`<a class="button small" href=${`#/compare/${segment(session.parent_session_id)}/${segment(session.id)}`}>Compare with its parent</a>` : nothing}
        <span class="spacer"></span>
        <button type="button" class="button small danger" @click=${this.erase}>Erase…</button>
      </div>
      ${this.view()}`;
  }

  get transcript() {
    return /** @type {any} */ (this.querySelector("hf-transcript"));
  }

  view() {
    switch (this.tab) {
      case "timeline":
        return html`${this.turns.length ? timeline(this.turns) : this.isLoading ? loading() : empty("No turns yet")}
          ${this.hasOlderTurns ? html`<div class="older"><button type="button" class="button" ?disabled=${this.isLoading} @click=${this.loadOlderTurns}>Load older turns</button></div>` : nothing}`;
      case "generations":
        return lineage(this.session, this.ancestors, this.generations, this.forks, (one) => one.status === "retired" && one.key !== null
          ? html`<button type="button" class="button small" @click=${() => this.restore(one)}>Restore</button>` : nothing);
      case "compactions":
        return this.compactionList();
      case "metadata":
        return this.metadata();
      default:
        return html`<label class="check"><input type="checkbox" .checked=${this.showsHidden} @change=${(/** @type {any} */ event) => { this.showsHidden = event.target.checked; this.requestUpdate(); }}> Show hidden items</label>
          <hf-transcript .sessionId=${this.sessionId} .showsHidden=${this.showsHidden} .entryActions=${this.entryActions} .firstSequence=${askedItem()}></hf-transcript>
          <hf-approvals .sessionId=${this.sessionId} @answered=${(/** @type {CustomEvent} */ event) => event.detail.response_id && this.transcript?.attach(event.detail.response_id, event.detail.turn_id)}></hf-approvals>`;
    }
  }

  entryActions = (/** @type {any} */ entry) => html`<details class="menu-fold" @keydown=${closeOnEscape}><summary class="button small quiet" aria-label=${`Actions for item ${entry.sequence}`}>⋯</summary><div class="menu-list">
    <button type="button" class="button small" @click=${() => this.fork(entry)}>Fork behind this item</button>
    ${entry.hidden_by ? nothing : html`<button type="button" class="button small danger" @click=${() => this.deleteItem(entry)}>Delete for the model…</button>`}
    ${entry.session_id === this.sessionId && !entry.hidden_by ? html`<button type="button" class="button small danger" @click=${() => this.eraseItem(entry)}>Erase content…</button>` : nothing}</div></details>`;

  compactionList() {
    if (!this.compactions.length) return this.isLoading ? loading() : empty("Nothing was compacted", "A compaction puts a summary in place of old items, for the model only.");
    return this.compactions.map((one) => html`<article class="card">
      <div class="row"><h2>${one.first_sequence === null ? "Shortened outputs" : `Items ${one.first_sequence} to ${one.last_sequence}`}</h2> ${badge(one.status)} ${badge(one.reason, "quiet")}<span class="spacer"></span>
        ${one.status === "in_force" ? html`<button type="button" class="button small" @click=${() => this.act("The compaction was undone", () => post(`${this.path}/compactions/${segment(one.id)}/undo`))}>Undo</button>` : nothing}</div>
      <p class="muted small">${dateTime(one.created_at)} · ${number(one.tokens_before)} → ${number(one.tokens_after)} tokens · ${one.assumed_window ? html`the model's window is not known, ${number(one.assumed_window)} tokens are assumed · ` : nothing}kept unchanged: ${one.kept_sequences?.length ? safeText(one.kept_sequences.join(", ")) : "none"} ${one.turn_id ? html`· <a href=${`#/turns/${segment(one.turn_id)}`}>turn</a>` : nothing}</p>
      ${one.summary ? html`<h3>Sent to the model instead</h3>${longText(one.summary, true)}` : nothing}
      ${one.first_sequence === null ? nothing : html`<details class="fold" @toggle=${(/** @type {any} */ event) => event.target.open && void this.loadReplaced(one)}>
        <summary>What it replaced</summary>${blocks(this.replaced.get(one.id) ?? [], (entry) => logEntry(entry))}</details>`}</article>`);
  }

  metadata() {
    const stored = /** @type {[string, string][]} */ (Object.entries(this.session.metadata ?? {}));
    const edited = this.editedMetadata ?? stored;
    const change = (/** @type {number} */ index, /** @type {number} */ part, /** @type {string} */ value) => {
      this.editedMetadata = edited.map((pair, at) => (at === index ? /** @type {[string, string]} */ (pair.map((one, place) => (place === part ? value : one))) : pair));
      this.requestUpdate();
    };
    return html`<form class="card" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void this.saveMetadata(); }}>
      <h2>Metadata</h2>
      ${edited.length ? nothing : html`<p class="muted">This session has no metadata.</p>`}
      ${edited.map(([name, value], index) => html`<div class="row pair">
        <label class="field"><span>Name</span><input maxlength="64" .value=${name} @input=${(/** @type {any} */ event) => change(index, 0, event.target.value)}></label>
        <label class="field grow"><span>Value</span><input maxlength="512" .value=${value} @input=${(/** @type {any} */ event) => change(index, 1, event.target.value)}></label>
        <button type="button" class="button small" aria-label=${`Remove ${safeText(name)}`} @click=${() => { this.editedMetadata = edited.filter((_, at) => at !== index); this.requestUpdate(); }}>Remove</button></div>`)}
      <div class="row"><button type="button" class="button" ?disabled=${edited.length >= 16} @click=${() => { this.editedMetadata = [...edited, ["", ""]]; this.requestUpdate(); }}>Add</button>
        <span class="spacer"></span><button type="submit" class="button primary" ?disabled=${this.editedMetadata === null}>Save</button></div></form>`;
  }
}
customElements.define("hf-session", SessionPage);

/** The item that the address names. */
function askedItem() {
  const asked = new URLSearchParams(location.hash.split("?")[1] ?? "").get("item") ?? "";
  return /^\d{1,9}$/.test(asked) ? Number(asked) : null;
}

/**
 * Return every entry of a list.
 * @param {string} path
 * @param {Record<string, string>} query
 */
export async function all(path, query) {
  /** @type {any[]} */
  const found = [];
  let after;
  for (let page = 0; page < MAX_EXPORT_PAGES; page += 1) {
    const listed = await get(path, { ...query, limit: 100, after });
    found.push(...listed.data);
    if (!listed.has_more) return found;
    after = listed.last_id;
  }
  throw new Error("This session is too long for the console; use `holdfast sessions export`.");
}

/** The transcript of a session, as it grows: the newest items first, older ones as one scrolls up. */

import { html, nothing } from "../vendor/lit.js";
import { get, segment } from "./api.js";
import { blocks } from "./blocks.js";
import { duration, safeText } from "./format.js";
import { itemBody, kindOf, logEntry } from "./items.js";
import { subscribe } from "./live.js";
import { followAnswer, LiveAnswer } from "./response_stream.js";
import { badge, empty, errorState, loading, PageElement } from "./ui.js";

const PAGE = 50;
const ENDS = new Set(["turn.completed", "turn.failed", "turn.cancelled", "turn.interrupted"]);

class Transcript extends PageElement {
  static properties = {
    sessionId: { attribute: false }, showsHidden: { attribute: false }, entryActions: { attribute: false },
    isChat: { attribute: false }, pending: { attribute: false },
  };

  constructor() {
    super();
    this.sessionId = "";
    this.showsHidden = false;
    this.isChat = false;
    /** @type {((entry: any) => unknown) | null} */
    this.entryActions = null;
    /** What the person has just sent, until it is in the log. @type {any[]} */
    this.pending = [];
    this.reset();
    /** @type {Map<number, any>} */
    this.turns = new Map();
    /** @type {LiveAnswer | null} */
    this.live = null;
    this.attached = "";
    /** The last item before the answer that streams: what is behind it is shown once, not twice. */
    this.lastBefore = 0;
    /** @type {AbortController} */
    this.aborter = new AbortController();
    /** @type {Promise<void>} */
    this.queue = Promise.resolve();
  }

  reset() {
    /** @type {any[]} */
    this.entries = [];
    this.hasOlder = false;
    this.isLoaded = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.aborter = new AbortController();
    this.cleanups.push(subscribe((fact) => fact.session_id === this.sessionId && this.onFact(fact)));
    this.cleanups.push(() => this.aborter.abort());
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("sessionId")) {
      this.reset();
      this.turns.clear();
      this.live = null;
      this.attached = "";
      if (this.sessionId) void this.reload();
    }
  }

  get path() {
    return `/v1/sessions/${segment(this.sessionId)}`;
  }

  /** Read the newest items again: records may have hidden some of those that are shown. */
  reload() {
    const sessionId = this.sessionId;
    return this.attempt(async () => {
      const page = await get(`${this.path}/items`, { view: "log", order: "desc", limit: PAGE });
      const turns = await get(`${this.path}/turns`, { order: "desc", limit: 100 });
      if (sessionId !== this.sessionId) return;
      this.entries = page.data.reverse();
      this.hasOlder = page.has_more;
      this.isLoaded = true;
      this.keepTurns(turns.data);
      this.attachRunning(turns.data);
      this.dispatchEvent(new CustomEvent("loaded", { bubbles: true }));
    });
  }

  /** @param {any[]} turns */
  keepTurns(turns) {
    for (const turn of turns) this.turns.set(turn.number, turn);
  }

  /** @param {any[]} turns */
  attachRunning(turns) {
    const running = turns.find((turn) => turn.status === "running" && turn.response_id);
    if (running && !this.live && this.attached !== running.response_id) void this.attach(running.response_id);
  }

  /**
   * Show an answer that somebody else asked for, as it streams.
   * @param {string} responseId
   */
  async attach(responseId) {
    this.attached = responseId;
    const answer = new LiveAnswer();
    answer.responseId = responseId;
    this.show(answer);
    try {
      await followAnswer(answer, null, { signal: this.aborter.signal, onChange: () => this.requestUpdate() });
    } catch {
      // The transcript shows what the log has.
    }
    if (this.live === answer) this.live = null;
    this.requestUpdate();
  }

  /**
   * Show an answer behind what the log has now.
   * @param {LiveAnswer} answer
   */
  show(answer) {
    if (this.live !== answer) this.lastBefore = this.entries[this.entries.length - 1]?.sequence ?? 0;
    this.live = answer;
    this.requestUpdate();
  }

  /** @param {import("./live.js").Fact} fact */
  onFact(fact) {
    if (fact.type === "turn.started") this.queue = this.queue.then(() => this.readNewer());
    if (fact.type === "items.hidden" || fact.type === "session.compacted") void this.reload();
    else if (ENDS.has(fact.type) || fact.type.startsWith("items.") || fact.type === "turn.requires_action") this.queue = this.queue.then(() => this.readNewer());
  }

  async refreshTurns() {
    try {
      const turns = await get(`${this.path}/turns`, { order: "desc", limit: 20 });
      this.keepTurns(turns.data);
      this.attachRunning(turns.data);
      this.requestUpdate();
    } catch {
      // The next fact asks again.
    }
  }

  async readNewer() {
    const last = this.entries[this.entries.length - 1];
    if (!last) return void (await this.reload());
    try {
      let after = last.id;
      let hasMore = true;
      while (hasMore) {
        const page = await get(`${this.path}/items`, { view: "log", order: "asc", limit: 100, after });
        const known = this.entries[this.entries.length - 1]?.sequence ?? 0;
        const fresh = page.data.filter((/** @type {any} */ entry) => entry.sequence > known);
        this.entries = [...this.entries, ...fresh];
        hasMore = page.has_more;
        after = page.last_id;
      }
      await this.refreshTurns();
    } catch (error) {
      this.failure = error;
    }
    this.requestUpdate();
  }

  async readOlder() {
    const first = this.entries[0];
    if (!first || this.isLoading) return;
    await this.attempt(async () => {
      const page = await get(`${this.path}/items`, { view: "log", order: "desc", limit: 100, after: first.id });
      this.entries = [...page.data.reverse(), ...this.entries];
      this.hasOlder = page.has_more;
    });
  }

  /** @param {number} turnNumber */
  async turnId(turnNumber) {
    if (!this.turns.has(turnNumber)) {
      const numbers = [...this.turns.keys()];
      let after = this.turns.get(Math.min(...numbers))?.id;
      while (after && !this.turns.has(turnNumber)) {
        const page = await get(`${this.path}/turns`, { order: "desc", limit: 100, after });
        this.keepTurns(page.data);
        after = page.has_more ? page.last_id : undefined;
      }
    }
    return this.turns.get(turnNumber)?.id;
  }

  /** @param {any} entry */
  async openProjection(entry) {
    const id = await this.turnId(entry.turn_number);
    if (id) location.hash = `#/turns/${segment(id)}`;
  }

  /** @param {any} entry */
  entry(entry) {
    const turn = this.turns.get(entry.turn_number);
    const isFirst = this.firstOfTurn.has(entry.sequence) && entry.session_id === this.sessionId;
    const head = isFirst && !this.isChat ? html`<div class="turn-rule">
      <span>Turn ${entry.turn_number}</span>
      ${turn ? html`${badge(turn.status)} <span class="muted">${duration(turn.duration_ms)}${turn.model ? ` · ${safeText(turn.model)}` : ""}</span>` : nothing}
      <button type="button" class="link" @click=${() => this.openProjection(entry)}>What the model was shown</button>
    </div>` : nothing;
    return html`${head}${logEntry(entry, { actions: this.entryActions?.(entry) })}`;
  }

  get shown() {
    const isStreaming = this.live !== null && !this.live.isEnded;
    return this.entries.filter((entry) => (this.showsHidden || !entry.hidden_by)
      && !(isStreaming && entry.sequence > this.lastBefore && entry.item?.role !== "user"));
  }

  /** What was sent and is not in the log yet. */
  get unstored() {
    const isStored = this.entries.some((entry) => entry.sequence > this.lastBefore && entry.item?.role === "user");
    return isStored ? [] : this.pending;
  }

  /** Whether the answer is in the log, so that the streamed one has served. */
  get isAnswered() {
    return this.live?.isEnded && this.entries.some((entry) => entry.sequence > this.lastBefore && entry.item?.role !== "user");
  }

  render() {
    const shown = this.shown;
    /** @type {Set<number>} */
    this.firstOfTurn = new Set();
    let last = -1;
    for (const entry of shown) {
      if (entry.turn_number !== last) this.firstOfTurn.add(entry.sequence);
      last = entry.turn_number;
    }
    if (!this.isLoaded && this.failure) return errorState(this.failure);
    if (!this.isLoaded && this.sessionId) return loading("Loading the transcript…");
    const isEmpty = !shown.length && !this.live && !this.pending.length;
    return html`
      ${errorState(this.failure)}
      ${this.hasOlder ? html`<div class="older"><button type="button" class="button" ?disabled=${this.isLoading} @click=${this.readOlder}>
        ${this.isLoading ? "Loading…" : "Load older items"}</button></div>` : nothing}
      ${isEmpty ? empty("Nothing was said yet", this.isChat ? "Write the first message below." : "Items appear here as they are stored.") : nothing}
      <div class="items">${blocks(shown, (entry) => this.entry(entry))}</div>
      ${this.unstored.map((item) => html`<article class="item user is-pending" aria-label="Your message, being sent">
        <header class="item-head"><span class="item-kind">user</span> <span class="muted">sending…</span></header>
        <div class="item-body">${itemBody(item)}</div></article>`)}
      ${this.live && !this.isAnswered ? this.liveItems(this.live) : nothing}`;
  }

  /** @param {LiveAnswer} live */
  liveItems(live) {
    const state = { waiting: "waiting for the model…", streaming: "streaming…", reconnecting: "connection lost, reconnecting…", ended: "saving…" }[live.state];
    return html`<div class="live" aria-busy="true">
      ${live.output.map((item) => html`<article class="item ${kindOf(item).replaceAll(" ", "-")} is-live" aria-label="Answer, streaming">
        <header class="item-head"><span class="item-kind">${kindOf(item)}</span></header>
        <div class="item-body">${itemBody(item)}</div></article>`)}
      <p class="live-state" role="status">${state}</p></div>`;
  }
}
customElements.define("hf-transcript", Transcript);

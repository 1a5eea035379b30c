/** The transcript of a session as it grows: the newest items first, older ones as one scrolls up. */

import { html, nothing } from "../vendor/lit.js";
import { ApiError, get, segment, sleep } from "./api.js";
import { blockOf, blocks } from "./blocks.js";
import { duration, safeText } from "./format.js";
import { itemBody, kindOf, logEntry } from "./items.js";
import { onOpen, subscribe } from "./live.js";
import { followAnswer, LiveAnswer } from "./response_stream.js";
import { badge, empty, errorState, loading, notify, PageElement, scrollToEnd } from "./ui.js";

const PAGE = 50;
const RETRY_MS = 1000;
const MAX_FRAMES = 60;
const ENDS = new Set(["turn.completed", "turn.failed", "turn.cancelled", "turn.interrupted"]);
const UNFINISHED = new Set(["failed", "cancelled", "interrupted"]);
/** @type {Record<string, string>} */
const STATES = { waiting: "waiting for the model…", streaming: "streaming…", reconnecting: "connection lost, reconnecting…", ended: "saving…" };

class Transcript extends PageElement {
  static properties = {
    sessionId: { attribute: false }, showsHidden: { attribute: false }, entryActions: { attribute: false },
    isChat: { attribute: false }, firstSequence: { attribute: false },
  };

  constructor() {
    super();
    this.sessionId = "";
    this.showsHidden = false;
    this.isChat = false;
    /** The item to begin at; without one the end is shown. @type {number | null} */
    this.firstSequence = null;
    /** @type {((entry: any) => unknown) | null} */
    this.entryActions = null;
    /** Answers that stream or are being saved, in the order of their turns. @type {LiveAnswer[]} */
    this.answers = [];
    /** Responses that were followed to their end. @type {Set<string>} */
    this.followed = new Set();
    /** Turns by their number. @type {Map<number, any>} */
    this.turns = new Map();
    /** Turns that were not searched for a running one, because an answer had no turn yet. @type {any[]} */
    this.unattached = [];
    this.isDrawing = false;
    /** @type {Promise<void> | null} */
    this.older = null;
    this.hasScrolled = false;
    /** @type {IntersectionObserver | null} */
    this.topObserver = null;
    this.reset();
  }

  reset() {
    /** @type {any[]} */
    this.entries = [];
    this.hasOlder = false;
    this.isLoaded = false;
    this.turns.clear();
    this.followed.clear();
    this.hasScrolled = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.cleanups.push(subscribe((fact) => fact.session_id === this.sessionId && this.onFact(fact)));
    this.cleanups.push(onOpen(() => { if (this.sessionId) void this.refresh(this.readNewer); }));
    this.cleanups.push(() => this.abandon(this.answers));
    this.watchTop();
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (!changed.has("sessionId")) return;
    const isNewChat = !changed.get("sessionId");
    // The answer that created this session goes on; those of another session do not belong here.
    this.abandon(this.answers.filter((answer) => !isNewChat || answer.sessionId !== this.sessionId));
    this.reset();
    if (this.sessionId) void this.refresh(this.reload);
  }

  get path() {
    return `/v1/sessions/${segment(this.sessionId)}`;
  }

  // ── reading the log ────────────────────────────────────────────────────────────────────────

  /** Read in order; the next fact tries again what fails. @param {() => Promise<unknown>} read */
  refresh(read) {
    return this.inOrder(read).catch(() => {});
  }

  /** Read the newest items again: records may have hidden some of those that are shown. */
  reload = () => {
    const { sessionId, path } = this;
    return this.attempt(async () => {
      const turns = await get(`${path}/turns`, { order: "desc", limit: 100 });
      // Keep as much as was loaded, so that the place where one reads does not move.
      const wanted = Math.max(PAGE, this.entries.length);
      const [entries, hasOlder] = await readBack(`${path}/items`, wanted);
      if (sessionId !== this.sessionId) return;
      this.keepTurns(turns.data);
      const isFirst = !this.isLoaded;
      this.entries = entries;
      this.hasOlder = hasOlder;
      this.isLoaded = true;
      await this.loadTurns();
      this.attachRunning(turns.data);
      if (isFirst) void this.begin();
      this.dispatchEvent(new CustomEvent("loaded", { bubbles: true }));
    });
  };

  /** Show the end of the transcript, or the item that was asked for. */
  async begin() {
    if (this.isChat) return;
    this.requestUpdate();
    await this.updateComplete;
    if (this.firstSequence === null) scrollToEnd();
    else await this.jumpTo(this.firstSequence);
  }

  /** Show an item, however old it is. @param {number} sequence */
  async jumpTo(sequence) {
    while (this.hasOlder && this.entries[0]?.sequence > sequence) {
      const before = this.entries.length;
      await this.readOlder();
      if (this.entries.length === before) break;
    }
    await this.updateComplete;
    const target = this.entries.find((entry) => entry.sequence >= sequence && (this.showsHidden || !entry.hidden_by));
    if (!target) return;
    // The blocks on the way are drawn when they come near, which moves the item once more.
    for (let frame = 0, seen = 0; frame < MAX_FRAMES && seen < 5; frame += 1) {
      const item = this.querySelector(`[data-sequence="${target.sequence}"]`);
      (item ?? this.querySelector(`hf-block[data-name="${blockOf(target.sequence)}"]`))?.scrollIntoView({ block: "center" });
      item?.classList.add("is-found");
      if (item) seen += 1;
      await new Promise(requestAnimationFrame);
    }
  }

  /** Show the end of the last turn that failed. */
  async jumpToFailure() {
    const turn = await this.lastFailure();
    if (!turn) notify("No turn of this session has failed.");
    else if (turn.last_sequence ?? turn.first_sequence) await this.jumpTo(turn.last_sequence ?? turn.first_sequence);
    else location.hash = `#/turns/${segment(turn.id)}`;
  }

  async lastFailure() {
    const isFailed = (/** @type {any} */ turn) => turn.status === "failed";
    let found = [...this.turns.values()].filter(isFailed).sort((one, other) => other.number - one.number)[0];
    let after = this.turns.get(Math.min(...this.turns.keys()))?.id;
    while (!found && after) {
      const page = await get(`${this.path}/turns`, { order: "desc", limit: 100, after });
      this.keepTurns(page.data);
      found = page.data.find(isFailed);
      after = page.has_more ? page.last_id : undefined;
    }
    return found;
  }

  /** Read what was added since; throw if that does not work. */
  readNewer = async () => {
    const { sessionId, path } = this;
    const last = this.entries[this.entries.length - 1];
    if (!last) {
      await this.reload();
      if (this.failure) throw this.failure;
      return;
    }
    const turns = await get(`${path}/turns`, { order: "desc", limit: 20 });
    /** @type {any[]} */
    const fresh = [];
    let after = last.id;
    let hasMore = true;
    while (hasMore) {
      const page = await get(`${path}/items`, { view: "log", order: "asc", limit: 100, after });
      fresh.push(...page.data);
      hasMore = page.has_more;
      after = page.last_id;
    }
    if (sessionId !== this.sessionId) return;
    const known = this.entries[this.entries.length - 1]?.sequence ?? 0;
    this.entries = [...this.entries, ...fresh.filter((entry) => entry.sequence > known)];
    this.failure = null;
    this.keepTurns(turns.data);
    this.attachRunning(turns.data);
    this.requestUpdate();
  };

  /** Read the page before the oldest item; whoever asks meanwhile waits for the same page. */
  readOlder() {
    this.older ??= this.loadOlder().finally(() => { this.older = null; });
    return this.older;
  }

  async loadOlder() {
    const first = this.entries[0];
    if (!first) return;
    const { sessionId, path } = this;
    await this.attempt(async () => {
      const page = await get(`${path}/items`, { view: "log", order: "desc", limit: 100, after: first.id });
      if (sessionId !== this.sessionId || first !== this.entries[0]) return;
      const before = document.documentElement.scrollHeight;
      const isAtTop = window.scrollY === 0;
      this.entries = [...page.data.reverse(), ...this.entries];
      this.hasOlder = page.has_more;
      this.requestUpdate();
      await this.updateComplete;
      // Browsers keep the place where one reads, but not at the very top.
      if (isAtTop) window.scrollTo(0, document.documentElement.scrollHeight - before);
      await this.loadTurns();
    });
  }

  /** Read older items before their place is scrolled into view. */
  watchTop() {
    const observer = new IntersectionObserver((seen) => {
      if (this.hasOlder && seen.some((one) => one.isIntersecting)) void this.readOlder();
    }, { rootMargin: "800px 0px 0px 0px" });
    const onScroll = () => {
      if (!this.hasScrolled) this.requestUpdate();
      this.hasScrolled = true;
    };
    window.addEventListener("scroll", onScroll, { passive: true });
    this.topObserver = observer;
    this.cleanups.push(() => observer.disconnect(), () => window.removeEventListener("scroll", onScroll));
  }

  updated() {
    const button = this.querySelector(".older");
    this.topObserver?.disconnect();
    // Observed anew after each page: what stays in view would not be reported again.
    if (button && !this.isLoading && this.hasScrolled) this.topObserver?.observe(button);
  }

  /** @param {any[]} turns */
  keepTurns(turns) {
    for (const turn of turns) this.turns.set(turn.number, turn);
  }

  /** Read the turns of all items that are shown. */
  async loadTurns() {
    const own = this.entries.find((entry) => entry.session_id === this.sessionId);
    if (own) await this.findTurn(own.turn_number);
  }

  /** @param {number} turnNumber */
  async findTurn(turnNumber) {
    if (this.turns.has(turnNumber)) return this.turns.get(turnNumber);
    let after = this.turns.get(Math.min(...this.turns.keys()))?.id;
    while (after && !this.turns.has(turnNumber)) {
      const page = await get(`${this.path}/turns`, { order: "desc", limit: 100, after });
      this.keepTurns(page.data);
      after = page.has_more ? page.last_id : undefined;
    }
    return this.turns.get(turnNumber);
  }

  /** @param {import("./live.js").Fact} fact */
  onFact(fact) {
    const { type } = fact;
    if (type === "items.hidden" || type === "session.compacted" || type === "session.compaction_undone") void this.refresh(this.reload);
    else if (ENDS.has(type) || type.startsWith("items.") || type === "turn.started" || type === "turn.requires_action") void this.refresh(this.readNewer);
  }

  // ── answers that stream ────────────────────────────────────────────────────────────────────

  /** @param {any[]} turns */
  attachRunning(turns) {
    // It may be the turn of an answer that was just asked for: wait until that one knows its turn.
    this.unattached = this.answers.some((answer) => answer.turnId === null) ? turns : [];
    if (this.unattached.length) return;
    const running = turns.find((turn) => turn.status === "running" && turn.response_id);
    if (running) void this.attach(running.response_id, running.id);
  }

  /**
   * Show an answer that somebody else asked for, or that goes on after an approval.
   * @param {string} responseId
   * @param {string} turnId
   */
  async attach(responseId, turnId) {
    const isKnown = this.answers.some((answer) => answer.responseId === responseId || answer.turnId === turnId);
    if (isKnown || this.followed.has(responseId)) return;
    const answer = new LiveAnswer();
    answer.responseId = responseId;
    answer.turnId = turnId;
    // It runs now; what the person sent meanwhile waits behind it.
    this.answers = [answer, ...this.answers];
    await this.follow(answer, null).catch(() => {});
  }

  /**
   * Show an answer until it is in the log; return false if the page went elsewhere before.
   * @param {LiveAnswer} answer
   * @param {{json: unknown, headers: Record<string, string>} | null} request
   */
  async follow(answer, request) {
    const { signal } = answer.aborter;
    if (!this.answers.includes(answer)) this.answers = [...this.answers, answer];
    const onChange = () => {
      if (signal.aborted) return;
      if (this.unattached.length) this.attachRunning(this.unattached);
      this.dispatchEvent(new CustomEvent("progress", { bubbles: true, detail: answer }));
      this.draw();
    };
    onChange();
    try {
      await followAnswer(answer, request, { signal, onChange });
      await this.save(answer);
    } finally {
      if (answer.responseId) this.followed.add(answer.responseId);
      this.answers = this.answers.filter((one) => one !== answer);
      if (!signal.aborted) onChange();
      this.requestUpdate();
    }
    return !signal.aborted;
  }

  /** Replace a streamed answer by what the log has, however long the gateway is away. @param {LiveAnswer} answer */
  async save(answer) {
    while (!answer.aborter.signal.aborted && this.sessionId) {
      try {
        await this.inOrder(answer.rewrites ? this.reload : this.readNewer);
        if (!this.failure) return;
        throw this.failure;
      } catch (error) {
        if (error instanceof ApiError && error.status > 0 && error.status < 500 && error.status !== 429) return;
        await sleep(RETRY_MS);
      }
    }
  }

  /** @param {LiveAnswer[]} answers */
  abandon(answers) {
    for (const answer of answers) answer.aborter.abort();
    this.answers = this.answers.filter((answer) => !answers.includes(answer));
  }

  /** Draw at most once a frame: a fast model sends hundreds of events a second. */
  draw() {
    if (this.isDrawing) return;
    this.isDrawing = true;
    requestAnimationFrame(() => { this.isDrawing = false; this.requestUpdate(); });
  }

  // ── showing ────────────────────────────────────────────────────────────────────────────────

  /** @param {any} entry */
  turnOf(entry) {
    return entry.session_id === this.sessionId ? this.turns.get(entry.turn_number) : undefined;
  }

  /** Items of the log that a streamed answer already shows. */
  get streamed() {
    /** @type {Set<number>} */
    const found = new Set();
    for (const answer of this.answers) {
      const own = this.entries.filter((entry) => answer.turnId !== null && this.turnOf(entry)?.id === answer.turnId);
      const lastInput = own.findLast((entry) => isInput(entry.item))?.sequence ?? 0;
      for (const entry of own) if (entry.sequence > lastInput) found.add(entry.sequence);
    }
    return found;
  }

  /** @param {any} entry */
  async openProjection(entry) {
    const turn = await this.findTurn(entry.turn_number);
    if (turn) location.hash = `#/turns/${segment(turn.id)}`;
  }

  /**
   * @param {any} entry
   * @param {{first: Set<number>, last: Set<number>}} ends
   */
  entry(entry, ends) {
    const turn = this.turnOf(entry);
    const isOwn = entry.session_id === this.sessionId;
    const head = isOwn && ends.first.has(entry.sequence) && !this.isChat ? html`<div class="turn-rule">
      <span>Turn ${entry.turn_number}</span>
      ${turn ? html`${badge(turn.status)} <span class="muted">${duration(turn.duration_ms)}${turn.model ? ` · ${safeText(turn.model)}` : ""}</span>` : nothing}
      <button type="button" class="link" @click=${() => this.openProjection(entry)}>What the model was shown</button>
    </div>` : nothing;
    const end = turn && ends.last.has(entry.sequence) ? turnEnd(turn) : nothing;
    return html`${head}${logEntry(entry, { actions: this.entryActions?.(entry) })}${end}`;
  }

  render() {
    if (!this.isLoaded && this.sessionId && !this.answers.length) return this.failure ? errorState(this.failure) : loading("Loading the transcript…");
    const streamed = this.streamed;
    const shown = this.entries.filter((entry) => (this.showsHidden || !entry.hidden_by) && !streamed.has(entry.sequence));
    const ends = endsOfTurns(shown);
    return html`
      ${errorState(this.failure)}
      ${this.hasOlder ? html`<div class="older"><button type="button" class="button" ?disabled=${this.isLoading} @click=${this.readOlder}>
        ${this.isLoading ? "Loading…" : "Load older items"}</button></div>` : nothing}
      ${shown.length || this.answers.length ? nothing : empty("Nothing was said yet", this.isChat ? "Write the first message below." : "Items appear here as they are stored.")}
      <div class="items">${blocks(shown, (entry) => this.entry(entry, ends))}</div>
      ${this.answers.map((answer) => this.liveAnswer(answer))}`;
  }

  /** @param {LiveAnswer} answer */
  liveAnswer(answer) {
    const isStored = answer.turnId !== null && this.entries.some((entry) => this.turnOf(entry)?.id === answer.turnId);
    return html`
      ${(isStored ? [] : answer.input).map((item) => html`<article class="item user is-pending" aria-label="Your message, being sent">
        <header class="item-head"><span class="item-kind">user</span> <span class="muted">sending…</span></header>
        <div class="item-body">${itemBody(item)}</div></article>`)}
      <div class="live" aria-busy="true">
        ${answer.output.map((item) => html`<article class="item ${kindOf(item).replaceAll(" ", "-")} is-live" aria-label="Answer, streaming">
          <header class="item-head"><span class="item-kind">${kindOf(item)}</span></header>
          <div class="item-body">${itemBody(item)}</div></article>`)}
        <p class="live-state" role="status">${STATES[answer.state]}</p></div>`;
  }
}
customElements.define("hf-transcript", Transcript);

/**
 * Return the newest entries of a log, oldest first, and whether there are more.
 * @param {string} path
 * @param {number} wanted
 * @returns {Promise<[any[], boolean]>}
 */
async function readBack(path, wanted) {
  /** @type {any[]} */
  const found = [];
  let after;
  while (true) {
    const page = await get(path, { view: "log", order: "desc", limit: Math.min(100, wanted - found.length), after });
    found.push(...page.data);
    after = page.last_id;
    if (!page.has_more || found.length >= wanted) return [found.reverse(), page.has_more];
  }
}

/**
 * Return the first and the last entry of each turn among those that are shown.
 * @param {any[]} shown
 */
function endsOfTurns(shown) {
  /** @type {{first: Set<number>, last: Set<number>}} */
  const ends = { first: new Set(), last: new Set() };
  shown.forEach((entry, index) => {
    if (shown[index - 1]?.turn_number !== entry.turn_number) ends.first.add(entry.sequence);
    if (shown[index + 1]?.turn_number !== entry.turn_number) ends.last.add(entry.sequence);
  });
  return ends;
}

/**
 * Say why a turn has no complete answer.
 * @param {any} turn
 */
function turnEnd(turn) {
  if (!UNFINISHED.has(turn.status)) return nothing;
  const { code, message } = turn.error ?? {};
  if (code === "turn_cancelled") return html`<p class="turn-end is-stopped">${badge("stopped", "warn")} <span class="muted">The answer was stopped.</span></p>`;
  return html`<p class="turn-end">${badge(turn.status)} ${code ? html`<code>${safeText(code)}</code>` : nothing}
    ${message && message !== code ? html`<span class="break">${safeText(message)}</span>` : nothing}</p>`;
}

/** Whether an item was given to the model, not answered by it. @param {any} item */
function isInput(item) {
  const type = item?.type ?? "message";
  if (type === "message") return item.role !== "assistant";
  return type.endsWith("_output") || type === "mcp_approval_response";
}

/** The list of sessions: live, filtered, searched. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { ApiError, get, segment, serves } from "./api.js";
import { ago, compactNumber, dateTime, number, safeText } from "./format.js";
import { subscribe } from "./live.js";
import { badge, empty, errorState, idText, loading, PageElement } from "./ui.js";

const PAGE = 50;
const REFRESH_MS = 400;

class SessionsPage extends PageElement {
  constructor() {
    super();
    /** @type {any[]} */
    this.sessions = [];
    this.hasMore = false;
    this.status = "";
    this.generations = false;
    this.query = "";
    /** @type {{sessions: any[], hits: any[]} | null} */
    this.found = null;
    this.searchesContent = false;
    /** Model and heals of each session's last turn. @type {Map<string, {model: string, heals: number}>} */
    this.details = new Map();
    /** @type {Set<string>} */
    this.stale = new Set();
    this.timer = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    this.cleanups.push(subscribe((fact) => this.onFact(fact)));
    this.cleanups.push(() => clearTimeout(this.timer));
    this.every(() => this.requestUpdate(), 10_000);
    void this.load();
    void serves("/v1/search").then((is) => { this.searchesContent = is; this.requestUpdate(); });
  }

  load() {
    return this.attempt(async () => {
      const page = await get("/v1/sessions", { limit: PAGE, status: this.status, generations: this.generations || undefined });
      this.sessions = page.data;
      this.hasMore = page.has_more;
      void this.loadDetails(page.data);
    });
  }

  loadMore() {
    return this.attempt(async () => {
      const after = this.sessions[this.sessions.length - 1]?.id;
      const page = await get("/v1/sessions", { limit: PAGE, status: this.status, generations: this.generations || undefined, after });
      this.sessions = [...this.sessions, ...page.data];
      this.hasMore = page.has_more;
      void this.loadDetails(page.data);
    });
  }

  /** @param {any[]} sessions */
  async loadDetails(sessions) {
    for (const session of sessions) {
      if (!session.turn_count || !this.isConnected) continue;
      try {
        const page = await get(`/v1/sessions/${segment(session.id)}/turns`, { order: "desc", limit: 10 });
        const heals = page.data.flatMap((/** @type {any} */ turn) => turn.runs).reduce((/** @type {number} */ sum, /** @type {any} */ run) => sum + (run.heals?.length ?? 0), 0);
        this.details.set(session.id, { model: page.data[0]?.model ?? "", heals });
        this.requestUpdate();
      } catch {
        return;
      }
    }
  }

  /** @param {import("./live.js").Fact} fact */
  onFact(fact) {
    this.stale.add(fact.session_id);
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.refresh(), REFRESH_MS);
  }

  /** Read what changed again: rows in place, a new session by reading the first page. */
  async refresh() {
    const changed = [...this.stale].filter((id) => this.sessions.some((session) => session.id === id));
    const isNew = changed.length < this.stale.size;
    this.stale.clear();
    try {
      if (isNew) {
        const page = await get("/v1/sessions", { limit: PAGE, status: this.status, generations: this.generations || undefined });
        const fresh = new Map(page.data.map((/** @type {any} */ session) => [session.id, session]));
        this.sessions = [...page.data, ...this.sessions.filter((session) => !fresh.has(session.id))];
      }
      for (const id of changed.slice(0, 20)) await this.refreshRow(id);
      void this.loadDetails(this.sessions.filter((session) => changed.includes(session.id) || !this.details.has(session.id)).slice(0, 20));
    } catch {
      // The next fact asks again.
    }
    this.requestUpdate();
  }

  /** @param {string} id */
  async refreshRow(id) {
    try {
      const session = await get(`/v1/sessions/${segment(id)}`);
      this.sessions = this.sessions.map((one) => (one.id === id ? session : one));
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) this.sessions = this.sessions.filter((one) => one.id !== id);
    }
  }

  async search() {
    const query = this.query.trim();
    if (!query) {
      this.found = null;
      this.requestUpdate();
      return;
    }
    await this.attempt(async () => {
      /** @type {Map<string, any>} */
      const found = new Map();
      const byId = await get(`/v1/sessions/${segment(query)}`).catch(ignoreMissing);
      if (byId) found.set(byId.id, byId);
      const byKey = await get("/v1/sessions", { key: query, generations: true, limit: 100 }).catch(ignoreMissing);
      for (const session of byKey?.data ?? []) found.set(session.id, session);
      for (const session of this.sessions) if (matches(session, query)) found.set(session.id, session);
      let hits = [];
      if (this.searchesContent) hits = (await get("/v1/search", { q: query, limit: 20 }).catch(ignoreMissing))?.data ?? [];
      this.found = { sessions: [...found.values()], hits };
    });
  }

  render() {
    const listed = this.found ? this.found.sessions : this.sessions;
    return html`
      <div class="page-head"><h1 tabindex="-1">Sessions</h1><span class="spacer"></span>
        <a class="button primary" href="#/chat">New chat</a></div>
      <form class="toolbar" role="search" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); void this.search(); }}>
        <label class="grow"><span class="visually-hidden">Search sessions</span>
          <input type="search" placeholder=${this.searchesContent ? "Search by key, id, metadata or content" : "Search by key, id or metadata"}
            .value=${this.query} @input=${(/** @type {any} */ event) => { this.query = event.target.value; if (!this.query) void this.search(); }}></label>
        <button class="button" type="submit">Search</button>
        <label><span class="visually-hidden">Status</span>
          <select @change=${(/** @type {any} */ event) => { this.status = event.target.value; void this.load(); }}>
            <option value="">Any status</option><option value="running">Running</option><option value="idle">Idle</option><option value="retired">Retired</option>
          </select></label>
        <label class="check"><input type="checkbox" @change=${(/** @type {any} */ event) => { this.generations = event.target.checked; void this.load(); }}> Old generations</label>
      </form>
      ${errorState(this.failure)}
      ${this.found?.hits.length ? this.hits(this.found.hits) : nothing}
      ${listed.length ? this.table(listed) : this.isLoading ? loading("Loading sessions…") : this.failure ? nothing
        : this.found ? empty("Nothing found", "Keys and ids must match exactly; metadata and parts of keys are searched among the sessions in the list.")
        : empty("No sessions yet", html`A session starts with the first request that has an <code>X-Session-Key</code>. Or <a href="#/chat">start a chat</a>.`)}
      ${!this.found && this.hasMore ? html`<div class="older"><button type="button" class="button" @click=${this.loadMore}>Load more</button></div>` : nothing}`;
  }

  /** @param {any[]} hits */
  hits(hits) {
    return html`<h2>Found in transcripts</h2><ul class="plain-list">${hits.map((hit) => html`<li>
      <a href=${`#/sessions/${segment(hit.session_id)}`}>${safeText(hit.key ?? hit.session_id)}</a>
      <span class="muted small">${hit.role ?? ""} #${hit.seq}, ${ago(hit.created_at)}</span> ${hit.hidden ? badge("hidden") : nothing}
      <div dir="auto">${highlighted(hit.snippet)}</div></li>`)}</ul>`;
  }

  /** @param {any[]} sessions */
  table(sessions) {
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Sessions"><table class="list sessions">
      <thead><tr><th scope="col">Session</th><th scope="col">Status</th><th scope="col" class="num">Queue</th><th scope="col">Last activity</th>
        <th scope="col">Model</th><th scope="col" class="num">Turns</th><th scope="col" class="num">Tokens</th><th scope="col" class="num">Heals</th></tr></thead>
      <tbody>${repeat(sessions, (session) => session.id, (session) => this.row(session))}</tbody></table></div>`;
  }

  /** @param {any} session */
  row(session) {
    const detail = this.details.get(session.id);
    const last = session.last_turn;
    return html`<tr>
      <th scope="row"><a class="strong" href=${`#/sessions/${segment(session.id)}`}>${safeText(session.key ?? (session.parent_session_id ? "Fork" : "No key"))}</a>
        <div class="muted small">${idText(session.id)} ${session.generation > 1 || session.status === "retired" ? `generation ${session.generation}` : ""}</div></th>
      <td>${badge(session.status)} ${last?.status === "failed" && session.status === "idle" ? badge("last turn failed", "bad") : nothing}</td>
      <td class="num">${session.queued_turns || html`<span class="muted">0</span>`}</td>
      <td title=${dateTime(session.last_user_activity_at)}>${ago(session.last_user_activity_at ?? session.created_at)}</td>
      <td>${safeText(detail?.model ?? "") || html`<span class="muted">–</span>`}</td>
      <td class="num">${number(session.turn_count)}</td>
      <td class="num" title=${number(session.usage.total_tokens)}>${compactNumber(session.usage.total_tokens)}</td>
      <td class="num">${detail?.heals ? badge(String(detail.heals), "warn") : html`<span class="muted">0</span>`}</td></tr>`;
  }
}
customElements.define("hf-sessions", SessionsPage);

/** @param {unknown} error */
function ignoreMissing(error) {
  if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 401) return null;
  throw error;
}

/**
 * @param {any} session
 * @param {string} query
 */
function matches(session, query) {
  const wanted = query.toLowerCase();
  const texts = [session.id, session.key ?? "", ...Object.entries(session.metadata ?? {}).flat()];
  return texts.some((text) => String(text).toLowerCase().includes(wanted));
}

/**
 * Return a snippet with its matches marked; they are counted in characters, not in UTF-16 units.
 * @param {{text: string, highlights: [number, number][]}} snippet
 */
function highlighted(snippet) {
  const characters = Array.from(snippet.text);
  const part = (/** @type {number} */ from, /** @type {number} */ to) => safeText(characters.slice(from, to).join(""));
  /** @type {unknown[]} */
  const shown = [];
  let last = 0;
  for (const [from, to] of snippet.highlights) {
    shown.push(part(last, from), html`<mark>${part(from, to)}</mark>`);
    last = to;
  }
  return [...shown, part(last, characters.length)];
}

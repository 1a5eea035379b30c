/** The list of sessions: live, filtered, searched. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { ApiError, get, segment, serves } from "./api.js";
import { ago, compactNumber, dateTime, number, safeText } from "./format.js";
import { onOpen, subscribe } from "./live.js";
import { badge, empty, errorState, idText, loading, PageElement } from "./ui.js";

const PAGE = 50;
const REFRESH_MS = 400;
/** Sessions that one search compares with the query; the next ones on request. */
const SEARCHED = 2000;
const RECENT_TURNS = 10;

class SessionsPage extends PageElement {
  constructor() {
    super();
    /** @type {any[]} */
    this.sessions = [];
    this.hasMore = false;
    this.status = "";
    this.generations = false;
    this.query = "";
    /** What a search found, and where it goes on. @type {{query: string, sessions: any[], hits: any[], searched: number, after: string | null} | null} */
    this.found = null;
    this.searchesContent = false;
    /** Heals in the last turns of each session. @type {Map<string, number>} */
    this.heals = new Map();
    /** The last model of sessions whose last turn had none. @type {Map<string, string>} */
    this.models = new Map();
    /** @type {Set<string>} */
    this.stale = new Set();
    this.timer = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    this.cleanups.push(subscribe((fact) => this.onFact(fact)));
    this.cleanups.push(onOpen(() => void this.load()));
    this.cleanups.push(() => clearTimeout(this.timer));
    this.every(() => this.requestUpdate(), 10_000);
    void this.load();
    void serves("/v1/search").then((is) => { this.searchesContent = is; this.requestUpdate(); });
  }

  /**
   * Read a page, again if the filter changed meanwhile.
   * @param {Record<string, string | number | undefined>} [more]
   * @returns {Promise<any>}
   */
  async readPage(more = {}) {
    const { status, generations } = this;
    const page = await get("/v1/sessions", { limit: PAGE, sort: "activity", status, generations: generations || undefined, ...more });
    return status === this.status && generations === this.generations ? page : this.readPage(more);
  }

  load() {
    return this.inOrder(this.read);
  }

  read = () => this.attempt(async () => {
    const page = await this.readPage();
    this.sessions = page.data;
    this.hasMore = page.has_more;
    void this.loadHeals(page.data);
  });

  loadMore() {
    return this.inOrder(this.readMore);
  }

  readMore = () => this.attempt(async () => {
    const after = this.sessions[this.sessions.length - 1]?.id;
    const page = await this.readPage({ after });
    this.sessions = [...this.sessions, ...page.data];
    this.hasMore = page.has_more;
    void this.loadHeals(page.data);
  });

  /** @param {any[]} sessions */
  async loadHeals(sessions) {
    for (const session of sessions) {
      if (!session.turn_count || !this.isConnected) continue;
      try {
        const page = await get(`/v1/sessions/${segment(session.id)}/turns`, { order: "desc", limit: RECENT_TURNS });
        const heals = page.data.flatMap((/** @type {any} */ turn) => turn.runs).reduce((/** @type {number} */ sum, /** @type {any} */ run) => sum + (run.heals?.length ?? 0), 0);
        this.heals.set(session.id, heals);
        this.models.set(session.id, page.data.find((/** @type {any} */ turn) => turn.model)?.model ?? "");
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
    this.timer = window.setTimeout(() => void this.inOrder(this.refresh), REFRESH_MS);
  }

  /** Read what changed again: rows in place, a new order by reading the first page. */
  refresh = async () => {
    const changed = [...this.stale];
    this.stale.clear();
    try {
      const page = await this.readPage();
      const fresh = new Set(page.data.map((/** @type {any} */ session) => session.id));
      const rest = this.sessions.filter((session) => !fresh.has(session.id));
      // Behind the first page rows stay where they are.
      this.sessions = [...page.data, ...(page.has_more ? rest : [])];
      if (this.sessions.length <= PAGE) this.hasMore = page.has_more;
      const listed = [...this.sessions, ...(this.found?.sessions ?? [])];
      for (const id of changed.slice(0, 20)) if (!fresh.has(id) && listed.some((session) => session.id === id)) await this.refreshRow(id);
      if (this.found) this.found.sessions = this.found.sessions.map((session) => page.data.find((/** @type {any} */ one) => one.id === session.id) ?? session);
      void this.loadHeals(this.sessions.filter((session) => changed.includes(session.id) || !this.heals.has(session.id)).slice(0, 20));
    } catch {
      // The next fact asks again.
    }
    this.requestUpdate();
  };

  /** @param {string} id */
  async refreshRow(id) {
    const replace = (/** @type {any[]} */ sessions, /** @type {any} */ session) => sessions.flatMap((one) => (one.id !== id ? [one] : session ? [session] : []));
    const session = await get(`/v1/sessions/${segment(id)}`).catch(ignoreMissing);
    const isListed = session && (!this.status || session.status === this.status);
    this.sessions = replace(this.sessions, isListed ? session : null);
    if (this.found) this.found.sessions = replace(this.found.sessions, session);
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
      if (/^ses_\w+$/.test(query)) {
        const byId = await get(`/v1/sessions/${segment(query)}`).catch(ignoreMissing);
        if (byId) found.set(byId.id, byId);
      }
      const byKey = await get("/v1/sessions", { key: query, generations: true, limit: 100 }).catch(ignoreMissing);
      for (const session of byKey?.data ?? []) found.set(session.id, session);
      let hits = [];
      if (await serves("/v1/search")) hits = (await get("/v1/search", { q: query, limit: 20 }).catch(ignoreMissing))?.data ?? [];
      // Another search may have been faster.
      if (query !== this.query.trim()) return;
      this.found = { query, sessions: [...found.values()], hits, searched: 0, after: null };
      await this.searchList(this.found);
    });
  }

  /**
   * Compare the next sessions with the query: parts of keys, ids and metadata.
   * @param {NonNullable<SessionsPage["found"]>} found
   */
  async searchList(found) {
    for (let read = 0; read < SEARCHED; read += 100) {
      const page = await this.readPage({ limit: 100, after: found.after ?? undefined });
      const known = new Set(found.sessions.map((session) => session.id));
      found.sessions = [...found.sessions, ...page.data.filter((/** @type {any} */ session) => !known.has(session.id) && matches(session, found.query))];
      found.searched += page.data.length;
      found.after = page.has_more ? page.last_id : null;
      if (this.found !== found || found.after === null) return;
      this.requestUpdate();
    }
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
          <select @change=${(/** @type {any} */ event) => { this.status = event.target.value; void this.load(); if (this.found) void this.search(); }}>
            <option value="">Any status</option><option value="running">Running</option><option value="idle">Idle</option><option value="retired">Retired</option>
          </select></label>
        <label class="check"><input type="checkbox" @change=${(/** @type {any} */ event) => { this.generations = event.target.checked; void this.load(); if (this.found) void this.search(); }}> Old generations</label>
      </form>
      ${errorState(this.failure)}
      ${this.found?.hits.length ? this.hits(this.found.hits) : nothing}
      ${listed.length ? this.table(listed) : this.isLoading ? loading("Loading sessions…") : this.failure ? nothing
        : this.found ? empty("Nothing found", `Neither a key, an id nor metadata of ${number(this.found.searched)} sessions contains it.`)
        : empty("No sessions yet", html`A session starts with the first request that has an <code>X-Session-Key</code>. Or <a href="#/chat">start a chat</a>.`)}
      ${this.found?.after && !this.isLoading ? html`<div class="older"><p class="muted">The ${number(this.found.searched)} latest sessions were searched.</p>
        <button type="button" class="button" @click=${() => this.attempt(() => this.searchList(/** @type {any} */ (this.found)))}>Search older ones</button></div>` : nothing}
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
        <th scope="col" class="model">Model</th><th scope="col" class="num">Turns</th><th scope="col" class="num">Tokens</th><th scope="col" class="num" title="Provider failures that were healed in the last ${RECENT_TURNS} turns">Recent heals</th></tr></thead>
      <tbody>${repeat(sessions, (session) => session.id, (session) => this.row(session))}</tbody></table></div>`;
  }

  /** @param {any} session */
  row(session) {
    const heals = this.heals.get(session.id);
    const last = session.last_turn;
    return html`<tr>
      <th scope="row"><a class="strong" href=${`#/sessions/${segment(session.id)}`}>${safeText(session.key ?? (session.parent_session_id ? "Fork" : "No key"))}</a>
        <div class="muted small">${idText(session.id)} ${session.generation > 1 || session.status === "retired" ? `generation ${session.generation}` : ""} ${["channel", "cron"].includes(session.source) ? badge(session.source, "quiet") : nothing}</div></th>
      <td>${badge(session.status)} ${last?.status === "failed" && session.status === "idle" ? badge("last turn failed", "bad") : nothing}</td>
      <td class="num">${session.queued_turns || html`<span class="muted">0</span>`}</td>
      <td title=${dateTime(session.last_user_activity_at)}>${ago(session.last_user_activity_at ?? session.created_at)}</td>
      <td class="model">${safeText(last?.model ?? this.models.get(session.id) ?? "") || html`<span class="muted">–</span>`}</td>
      <td class="num">${number(session.turn_count)}</td>
      <td class="num" title=${number(session.usage.total_tokens)}>${compactNumber(session.usage.total_tokens)}</td>
      <td class="num">${heals ? badge(String(heals), "warn") : html`<span class="muted">0</span>`}</td></tr>`;
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

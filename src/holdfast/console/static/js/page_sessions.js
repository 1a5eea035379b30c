/** The list of sessions: live, filtered, searched. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { ApiError, get, segment } from "./api.js";
import { ago, compactNumber, dateTime, number, safeText } from "./format.js";
import { onOpen, subscribe } from "./live.js";
import { badge, empty, errorState, loading, PageElement } from "./ui.js";

const PAGE = 50;
const REFRESH_MS = 400;
/** Sessions whose metadata one search compares with the query; the next ones on request. */
const SEARCHED = 2000;
const FOUND = 50;
const TYPING_MS = 350;
/** What the list may be reduced to: a status, or what sessions want from somebody. @type {[string, string][]} */
const SHOWN = [["", "All sessions"], ["running", "Running"], ["approval", "Waiting for approval"], ["failed", "Failed"], ["idle", "Idle"], ["retired", "Retired"]];
const TURN_ID = /^(turn|resp)_\w+$/;
const RECENT_TURNS = 10;

class SessionsPage extends PageElement {
  constructor() {
    super();
    /** @type {any[]} */
    this.sessions = [];
    this.hasMore = false;
    /** The last session that was read: few of many may be listed. @type {string | null} */
    this.lastRead = null;
    /** One of `SHOWN`. */
    this.shown = "";
    this.generations = false;
    this.query = "";
    /** What a search found, and where it goes on. @type {{query: string, sessions: any[], hasMore: boolean, turns: any[], hits: any[], searched: number, after: string | null} | null} */
    this.found = null;
    /** Heals in the last turns of each session. @type {Map<string, number>} */
    this.heals = new Map();
    /** The last model of sessions whose last turn had none. @type {Map<string, string>} */
    this.models = new Map();
    /** @type {Set<string>} */
    this.stale = new Set();
    this.timer = 0;
    this.typing = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    const changed = () => { if (isThisPage()) this.readAddress(); };
    window.addEventListener("hashchange", changed);
    this.cleanups.push(() => window.removeEventListener("hashchange", changed), () => clearTimeout(this.typing));
    this.readAddress();
    this.cleanups.push(subscribe((fact) => this.onFact(fact)));
    this.cleanups.push(onOpen(() => void this.load()));
    this.cleanups.push(() => clearTimeout(this.timer));
    this.every(() => this.requestUpdate(), 10_000);
  }

  /** The search and the filters are in the address: Back and reload keep them. */
  readAddress() {
    const given = new URLSearchParams(location.hash.split("?")[1] ?? "");
    this.query = given.get("q") ?? "";
    this.shown = SHOWN.some(([name]) => name === given.get("show")) ? given.get("show") ?? "" : "";
    this.generations = given.get("generations") === "true";
    void this.load();
    void this.search();
    this.requestUpdate();
  }

  writeAddress() {
    const given = new URLSearchParams();
    if (this.query.trim()) given.set("q", this.query.trim());
    if (this.shown) given.set("show", this.shown);
    if (this.generations) given.set("generations", "true");
    const address = given.size ? `#/sessions?${given}` : "#/sessions";
    if (location.hash !== address) history.replaceState(null, "", address);
  }

  get filter() {
    const isWish = this.shown === "approval" || this.shown === "failed";
    return { status: isWish ? undefined : this.shown || undefined, wants: isWish ? this.shown : undefined };
  }

  change() {
    this.writeAddress();
    void this.load();
    if (this.found) void this.search();
  }

  /** Search while one types, not with every letter. */
  type() {
    clearTimeout(this.typing);
    this.typing = window.setTimeout(() => { this.writeAddress(); void this.search(); }, this.query.trim() ? TYPING_MS : 0);
  }

  /**
   * Read a page, again if the filter changed meanwhile.
   * @param {Record<string, string | number | undefined>} [more]
   * @returns {Promise<any>}
   */
  async readPage(more = {}) {
    const { shown, generations } = this;
    const page = await get("/v1/sessions", { limit: PAGE, sort: "activity", ...this.filter, generations: generations || undefined, preview: true, ...more });
    return shown === this.shown && generations === this.generations ? page : this.readPage(more);
  }

  load() {
    return this.inOrder(this.read);
  }

  read = () => this.attempt(async () => {
    const page = await this.readPage();
    this.sessions = page.data;
    this.hasMore = page.has_more;
    this.lastRead = page.last_id;
    void this.loadHeals(page.data);
  });

  loadMore() {
    return this.inOrder(this.readMore);
  }

  readMore = () => this.attempt(async () => {
    const page = await this.readPage({ after: this.lastRead ?? undefined });
    this.sessions = [...this.sessions, ...page.data];
    this.hasMore = page.has_more;
    this.lastRead = page.last_id;
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
      if (this.sessions.length <= PAGE) {
        this.hasMore = page.has_more;
        this.lastRead = page.last_id;
      }
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
    const isListed = session && isShown(session, this.shown);
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
      const generations = this.generations || undefined;
      const [sessions, hits, turn] = await Promise.all([
        get("/v1/sessions", { search: query, limit: FOUND, generations, preview: true }).catch(ignoreMissing),
        get("/v1/search", { q: query, limit: 20 }).catch(ignoreMissing),
        TURN_ID.test(query) ? get(`/v1/turns/${segment(query)}`).catch(ignoreMissing) : null,
      ]);
      // Another search may have been faster.
      if (query !== this.query.trim()) return;
      const listed = (sessions?.data ?? []).filter((/** @type {any} */ session) => isShown(session, this.shown));
      const found = { query, sessions: listed, hasMore: sessions?.has_more ?? false, turns: turn ? [turn] : [], hits: hits?.data ?? [], searched: 0, after: null };
      this.found = found;
      if (!listed.length && !found.hits.length && !turn) await this.searchList(found);
      void this.loadHeals(found.sessions.slice(0, 20));
    });
  }

  /**
   * Compare the next sessions with the query: metadata is in no index.
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
      <form class="toolbar" role="search" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); clearTimeout(this.typing); this.writeAddress(); void this.search(); }}>
        <label class="grow search-box"><span class="visually-hidden">Search sessions</span>
          <input type="search" autocomplete="off" spellcheck="false" placeholder="Search keys, text, ids of sessions, turns and responses" .value=${this.query}
            @input=${(/** @type {any} */ event) => { this.query = event.target.value; this.type(); }}><kbd aria-hidden="true">/</kbd></label>
        <button class="button visually-hidden-focusable" type="submit">Search</button>
        <select aria-label="Show" @change=${(/** @type {any} */ event) => { this.shown = event.target.value; this.change(); }}>
            ${SHOWN.map(([name, label]) => html`<option value=${name} ?selected=${name === this.shown}>${label}</option>`)}</select>
        <label class="check"><input type="checkbox" .checked=${this.generations} @change=${(/** @type {any} */ event) => { this.generations = event.target.checked; this.change(); }}> Old generations</label>
      </form>
      ${errorState(this.failure)}
      ${this.found?.turns.length ? this.turns(this.found.turns) : nothing}
      ${this.found?.hits.length && listed.length ? html`<h2>Sessions</h2>` : nothing}
      ${listed.length ? this.table(listed) : this.isLoading ? loading("Loading sessions…") : this.failure ? nothing : this.none()}
      ${this.found?.hits.length ? this.hits(this.found.hits) : nothing}
      ${this.found?.hasMore ? html`<p class="muted">More keys match; type more of the one that you look for.</p>` : nothing}
      ${this.found?.after && !this.isLoading ? html`<div class="older"><p class="muted">The metadata of the ${number(this.found.searched)} latest sessions was searched.</p>
        <button type="button" class="button" @click=${() => this.attempt(() => this.searchList(/** @type {any} */ (this.found)))}>Search older ones</button></div>` : nothing}
      ${!this.found && this.hasMore ? html`<div class="older"><button type="button" class="button" @click=${this.loadMore}>Load more</button></div>` : nothing}`;
  }

  none() {
    if (this.found?.hits.length || this.found?.turns.length) return nothing;
    if (this.found) return empty("Nothing found", "No key, id or text has it. The index of words follows with some seconds.");
    if (this.shown === "approval") return empty("Nothing waits for you", "Sessions appear here while a call of a tool waits for an approval.");
    if (this.shown) return empty("No such sessions", this.hasMore ? "Among the latest; older ones may match." : nothing);
    return empty("No sessions yet", html`A session starts with the first request that has an <code>X-Session-Key</code>. Or <a href="#/chat">start a chat</a>.`);
  }

  /** @param {any[]} turns */
  turns(turns) {
    return html`<ul class="plain-list">${turns.map((turn) => html`<li class="card row"><a class="strong" href=${`#/turns/${segment(turn.id)}`}>Turn ${turn.number}</a> ${badge(turn.status)}
      <span class="muted small">${ago(turn.accepted_at)}</span> <a href=${`#/sessions/${segment(turn.session_id)}`}>its session</a></li>`)}</ul>`;
  }

  /** @param {any[]} hits */
  hits(hits) {
    return html`<h2>Found in transcripts</h2><ul class="plain-list hits">${hits.map((hit) => html`<li>
      <a href=${`#/sessions/${segment(hit.session_id)}/transcript?item=${hit.seq}`}>${safeText(hit.key ?? hit.session_id)}</a>
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
    const { first, last: words } = session.preview ?? {};
    return html`<tr>
      <th scope="row"><a class="strong" href=${`#/sessions/${segment(session.id)}`} title=${safeText(session.id)}>${safeText(session.key ?? (session.parent_session_id ? "Fork" : "No key"))}</a>
        ${session.generation > 1 || session.status === "retired" ? html`<span class="muted small">generation ${session.generation}</span>` : nothing} ${["channel", "cron"].includes(session.source) ? badge(session.source, "quiet") : nothing}
        ${first || words ? html`<div class="preview small"><span dir="auto">${safeText(first?.text ?? "")}</span>${words && words.text !== first?.text ? html`<span dir="auto"><span aria-hidden="true">…</span> ${safeText(words.text)}</span>` : nothing}</div>` : nothing}</th>
      <td>${session.waits_for === "approval" ? badge("waits for approval", "warn") : last?.status === "failed" && session.status === "idle" ? html`<span title=${safeText(last.error?.message ?? last.error?.code ?? "")}>${badge("last turn failed", "bad")}</span>` : badge(session.status)}</td>
      <td class="num">${session.queued_turns || html`<span class="muted">0</span>`}</td>
      <td class="keep" title=${dateTime(session.last_user_activity_at)}>${ago(session.last_user_activity_at ?? session.created_at)}</td>
      <td class="model">${safeText(last?.model ?? this.models.get(session.id) ?? "") || html`<span class="muted">–</span>`}</td>
      <td class="num">${number(session.turn_count)}</td>
      <td class="num" title=${number(session.usage.total_tokens)}>${compactNumber(session.usage.total_tokens)}</td>
      <td class="num">${heals ? badge(String(heals), "warn") : html`<span class="muted">0</span>`}</td></tr>`;
  }
}
customElements.define("hf-sessions", SessionsPage);

/** Whether the address is that of the list. */
function isThisPage() {
  return /^#\/?(sessions\/?)?(\?.*)?$/.test(location.hash);
}

/**
 * @param {any} session
 * @param {string} shown
 */
function isShown(session, shown) {
  if (shown === "approval") return session.waits_for === "approval";
  if (shown === "failed") return session.last_turn?.status === "failed";
  return !shown || session.status === shown;
}

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

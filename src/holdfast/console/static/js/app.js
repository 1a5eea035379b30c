/** The shell: navigation, sign-in, theme, and the page that the address names. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { ApiError, get, hasKey, signIn, signOut } from "./api.js";
import { isConnected, restart, stop } from "./live.js";
import { errorState, PageElement } from "./ui.js";
import "./page_sessions.js";
import "./page_session.js";
import "./page_turn.js";
import "./page_chat.js";
import "./page_operations.js";
import "./page_usage.js";
import "./page_keys.js";
import "./page_compare.js";
import "./approvals.js";

const THEME = "holdfast.theme";
const RETRY_MS = 3000;
/** @type {[string, string][]} */
const NAVIGATION = [
  ["sessions", "Sessions"], ["chat", "Chat"], ["operations", "Operations"], ["usage", "Usage"], ["keys", "API keys"],
];

class App extends PageElement {
  constructor() {
    super();
    this.route = readRoute();
    /** @type {"checking" | "open" | "locked"} */
    this.access = "checking";
    this.theme = localStorage.getItem(THEME) ?? "auto";
    this.isMenuOpen = false;
    /** How often the access was checked: only the last check counts. */
    this.checks = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    this.textContent = "";
    this.listen("hashchange", () => this.navigate());
    this.listen("holdfast:address", () => { this.route = readRoute(); this.requestUpdate(); });
    this.listen("holdfast:unauthorized", () => this.refuse());
    this.listen("holdfast:key", () => void this.check());
    this.listen("keydown", (event) => this.onKey(/** @type {KeyboardEvent} */ (event)));
    this.listen("holdfast:live", () => this.requestUpdate());
    this.applyTheme();
    void this.check();
  }

  /**
   * @param {string} name
   * @param {EventListener} listener
   */
  listen(name, listener) {
    window.addEventListener(name, listener);
    this.cleanups.push(() => window.removeEventListener(name, listener));
  }

  /** "/" searches, wherever one is. @param {KeyboardEvent} event */
  onKey(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const isTyping = target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || isTyping || this.access !== "open") return;
    if (document.querySelector("dialog[open]")) return;
    event.preventDefault();
    if (this.route[0] !== "sessions" || this.route[1]) location.hash = "#/sessions";
    void this.focusSearch();
  }

  async focusSearch() {
    for (let frame = 0; frame < 30; frame += 1) {
      const box = /** @type {HTMLInputElement | null} */ (this.querySelector("input[type=search]"));
      // The page that the address names takes the focus first.
      if (frame > 2 && box) {
        box.focus();
        return box.select();
      }
      await new Promise(requestAnimationFrame);
    }
  }

  /** Ask for something small: does this gateway want a key, and is ours good? */
  async check() {
    const number = (this.checks += 1);
    try {
      await get("/v1/sessions", { limit: 1 });
      if (number !== this.checks) return;
      this.access = "open";
      this.failure = null;
      restart();
    } catch (error) {
      if (number !== this.checks) return;
      const isRefused = error instanceof ApiError && error.status === 401;
      if (isRefused) this.lock();
      else {
        this.access = "open";
        setTimeout(() => number === this.checks && void this.check(), RETRY_MS);
      }
      this.failure = isRefused && !hasKey() ? null : error;
    }
    this.requestUpdate();
  }

  /** A key that worked until now was refused: say so, a person who did nothing wonders. */
  refuse() {
    if (this.access === "open" && hasKey()) this.failure = new ApiError(401, "invalid_api_key", "Your API key is no longer accepted.");
    this.lock();
  }

  lock() {
    this.access = "locked";
    stop();
    this.requestUpdate();
  }

  navigate() {
    const before = this.route.join("/");
    this.route = readRoute();
    this.isMenuOpen = false;
    this.requestUpdate();
    // Another search on the same page leaves the place and the focus.
    if (before === this.route.join("/")) return;
    requestAnimationFrame(() => {
      window.scrollTo(0, 0);
      /** @type {HTMLElement | null} */ (this.querySelector("main h1"))?.focus({ preventScroll: true });
    });
  }

  applyTheme() {
    if (this.theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = this.theme;
  }

  nextTheme() {
    const themes = ["auto", "light", "dark"];
    this.theme = themes[(themes.indexOf(this.theme) + 1) % themes.length];
    localStorage.setItem(THEME, this.theme);
    this.applyTheme();
    window.dispatchEvent(new CustomEvent("holdfast:theme"));
    this.requestUpdate();
  }

  render() {
    if (this.access === "checking") return html`<p class="boot" role="status">Connecting to the gateway…</p>`;
    if (this.access === "locked") return html`<hf-sign-in .failure=${this.failure}></hf-sign-in>`;
    const [name] = this.route;
    const current = name === "turns" || name === "compare" ? "sessions" : name;
    // The page of a session or a turn has a title of its own.
    if (!this.route[1]) document.title = `${NAVIGATION.find(([one]) => one === current)?.[1] ?? "Sessions"} · Holdfast`;
    return html`
      <a class="skip" href="#main" @click=${(/** @type {Event} */ event) => { event.preventDefault(); /** @type {HTMLElement | null} */ (this.querySelector("main h1") ?? this.querySelector("main"))?.focus(); }}>Skip to content</a>
      <header class="top">
        <a class="brand" href="#/sessions"><img src="/console/icon.svg" alt="" width="22" height="22"> Holdfast</a>
        <button type="button" class="button small menu" aria-expanded=${this.isMenuOpen} aria-controls="nav" @click=${() => { this.isMenuOpen = !this.isMenuOpen; this.requestUpdate(); }}>Menu</button>
        <nav id="nav" class=${this.isMenuOpen ? "open" : ""} aria-label="Pages">${NAVIGATION.map(([page, label]) => html`
          <a href=${`#/${page}`} aria-current=${current === page ? "page" : "false"}>${label}</a>`)}</nav>
        <span class="spacer"></span>
        <hf-approval-badge></hf-approval-badge>
        <span class="live-dot ${isConnected ? "on" : ""}" role="status">${isConnected ? "Live" : "Reconnecting…"}</span>
        <button type="button" class="button small" @click=${this.nextTheme} aria-label=${`Theme: ${this.theme}. Change it.`}>${{ auto: "Auto", light: "Light", dark: "Dark" }[this.theme]}</button>
        ${hasKey() ? html`<button type="button" class="button small" @click=${signOut}>Sign out</button>` : nothing}
      </header>
      <main id="main" tabindex="-1">${this.failure ? errorState(this.failure) : nothing}${page(this.route)}</main>
      <hf-ask></hf-ask><hf-notices></hf-notices>`;
  }
}
customElements.define("hf-app", App);

/** @param {string[]} route */
function page(route) {
  const [name, id, tab] = route;
  if (name === "compare" && id && tab) return forOne(`${id}/${tab}`, html`<hf-compare .left=${id} .right=${tab}></hf-compare>`);
  if (name === "sessions" && id) return forOne(id, html`<hf-session .sessionId=${id} .tab=${tab ?? "transcript"}></hf-session>`);
  if (name === "turns" && id) return forOne(id, html`<hf-turn .turnId=${id}></hf-turn>`);
  if (name === "chat") return html`<hf-chat .sessionId=${id ?? ""}></hf-chat>`;
  if (name === "operations") return html`<hf-operations></hf-operations>`;
  if (name === "usage") return html`<hf-usage></hf-usage>`;
  if (name === "keys") return html`<hf-keys></hf-keys>`;
  return html`<hf-sessions></hf-sessions>`;
}

/**
 * Give each id an element of its own: a late answer about another one changes nothing that is shown.
 * @param {string} id
 * @param {unknown} element
 */
function forOne(id, element) {
  return repeat([id], (key) => key, () => element);
}

function readRoute() {
  try {
    const parts = location.hash.replace(/^#\/?/, "").replace(/\?.*$/, "").split("/").map(decodeURIComponent);
    // A browser would take dots for a way up in a request's path.
    return parts.filter((part) => part && part !== "." && part !== "..");
  } catch {
    return [];
  }
}

class SignIn extends PageElement {
  static properties = { failure: { attribute: false } };

  render() {
    const submit = (/** @type {any} */ event) => {
      event.preventDefault();
      const form = new FormData(event.target);
      signIn(String(form.get("key") ?? ""), form.get("remember") !== null);
    };
    return html`<main class="sign-in"><form class="card" @submit=${submit}>
      <h1 tabindex="-1">Sign in to Holdfast</h1>
      <p class="muted">This gateway needs an API key. Create one with <code>holdfast keys create</code>.</p>
      ${errorState(this.failure)}
      <label class="field"><span>API key</span><input name="key" type="password" autocomplete="off" required spellcheck="false"></label>
      <label class="check"><input name="remember" type="checkbox"> Keep it until this tab is closed</label>
      <button class="button primary" type="submit">Sign in</button>
    </form></main>`;
  }
}
customElements.define("hf-sign-in", SignIn);

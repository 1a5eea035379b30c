/** Parts that every page uses: badges, states, dialogs, notices, and the base of all elements. */

import { html, LitElement, nothing } from "../vendor/lit.js";
import { ApiError } from "./api.js";
import { safeText, shortId } from "./format.js";

const SETTLED_MS = 800;

/** An element without a shadow: one style sheet, one tree for assistive technology. */
export class PageElement extends LitElement {
  constructor() {
    super();
    /** @type {unknown} */
    this.failure = null;
    /** How many attempts run now. */
    this.openAttempts = 0;
    /** @type {(() => void)[]} */
    this.cleanups = [];
    /** Ends when everything that was asked for in order is done. @type {Promise<unknown>} */
    this.queue = Promise.resolve();
    /** What waits in the queue. @type {Map<() => Promise<unknown>, Promise<unknown>>} */
    this.waiting = new Map();
  }

  get isLoading() {
    return this.openAttempts > 0;
  }

  createRenderRoot() {
    return this;
  }

  /** Keep the focus on the heading when a page replaces its first one. @param {Map<string, unknown>} changed */
  update(changed) {
    const before = this.querySelector("h1");
    const isFocused = before !== null && before === document.activeElement;
    super.update(changed);
    const after = this.querySelector("h1");
    if (isFocused && after !== before) after?.focus({ preventScroll: true });
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    for (const cleanup of this.cleanups.splice(0)) cleanup();
  }

  /**
   * Run something that may fail and show the failure in its place.
   * @template T
   * @param {() => Promise<T>} work
   * @returns {Promise<T | undefined>}
   */
  async attempt(work) {
    this.openAttempts += 1;
    this.requestUpdate();
    try {
      const result = await work();
      this.failure = null;
      return result;
    } catch (error) {
      this.failure = error;
      return undefined;
    } finally {
      this.openAttempts -= 1;
      this.requestUpdate();
    }
  }

  /**
   * Read something after everything that is being read: an older answer never replaces a newer one.
   * A read that still waits serves everyone who asks for it.
   * @param {() => Promise<unknown>} read
   * @returns {Promise<unknown>}
   */
  inOrder(read) {
    let waiting = this.waiting.get(read);
    if (!waiting) {
      waiting = this.queue.then(() => {
        this.waiting.delete(read);
        return this.isConnected ? read() : undefined;
      });
      this.waiting.set(read, waiting);
      this.queue = waiting.catch(() => {});
    }
    return waiting;
  }

  /**
   * Call something at an interval, as long as the page is shown.
   * @param {() => unknown} work
   * @param {number} ms
   */
  every(work, ms) {
    const timer = setInterval(() => document.visibilityState === "visible" && work(), ms);
    this.cleanups.push(() => clearInterval(timer));
  }
}

/**
 * Show the end of the page, and keep it in sight while blocks near it are drawn and change its
 * height, until the person scrolls or goes to another page.
 */
export function scrollToEnd() {
  const ended = new AbortController();
  const end = () => window.scrollTo(0, document.documentElement.scrollHeight);
  for (const name of ["wheel", "touchstart", "keydown", "pointerdown", "hashchange"]) window.addEventListener(name, () => ended.abort(), { signal: ended.signal, passive: true });
  const observer = new ResizeObserver(() => ended.signal.aborted || end());
  observer.observe(document.body);
  ended.signal.addEventListener("abort", () => observer.disconnect());
  setTimeout(() => ended.abort(), SETTLED_MS);
  requestAnimationFrame(end);
}

/** Close a menu with Escape. @param {KeyboardEvent} event */
export function closeOnEscape(event) {
  const menu = /** @type {HTMLDetailsElement} */ (event.currentTarget);
  if (event.key !== "Escape" || !menu.open) return;
  menu.open = false;
  /** @type {HTMLElement} */ (menu.firstElementChild).focus();
}

/** @type {Record<string, string>} */
const TONES = {
  running: "info", completed: "good", idle: "quiet", retired: "quiet", queued: "quiet", failed: "bad",
  cancelled: "warn", interrupted: "warn", requires_action: "warn", problem: "bad", warning: "warn",
  note: "info", live: "good", revoked: "quiet", added: "good", hidden: "warn", compacted: "info",
  placeholder: "warn", shortened: "info", changed: "info", left_out: "warn", in_force: "good",
  superseded: "quiet", void: "quiet", undone: "quiet",
};

/**
 * @param {string} text
 * @param {string} [tone]
 */
export function badge(text, tone) {
  return html`<span class="badge ${tone ?? TONES[text] ?? "quiet"}">${safeText(text).replaceAll("_", " ")}</span>`;
}

/**
 * @param {string} title
 * @param {unknown} hint
 */
export function empty(title, hint = nothing) {
  return html`<div class="state"><p class="state-title">${title}</p><p>${hint}</p></div>`;
}

/** @param {unknown} failure */
export function errorState(failure) {
  if (!failure) return nothing;
  const isApi = failure instanceof ApiError;
  const message = failure instanceof Error ? failure.message : String(failure);
  const title = isApi && failure.status === 0 ? "The gateway cannot be reached" : "This did not work";
  return html`<div class="state error" role="alert">
    <p class="state-title">${title}</p>
    ${message === `${title}.` ? nothing : html`<p>${safeText(message)}</p>`}
    ${isApi && failure.code ? html`<p class="muted">Code: <code>${safeText(failure.code)}</code></p>` : nothing}
  </div>`;
}

/** @param {string} label */
export function loading(label = "Loading…") {
  return html`<p class="state loading" role="status">${label}</p>`;
}

/**
 * An id in full for copying, short for reading.
 * @param {string | null | undefined} id
 */
export function idText(id) {
  return id ? html`<code class="id" title=${safeText(id)}>${shortId(id)}</code>` : html`<span class="muted">–</span>`;
}

/**
 * Show a short notice at the edge of the page.
 * @param {string} text
 */
export function notify(text) {
  window.dispatchEvent(new CustomEvent("holdfast:notice", { detail: text }));
}

/**
 * Ask before something that cannot be taken back, or for some text.
 * @param {{title: string, text: unknown, action: string, isDangerous?: boolean, typed?: string,
 *          field?: string, value?: string, isLong?: boolean}} question
 * @returns {Promise<string | null>} the text of the field, or null if it was cancelled
 */
export function ask(question) {
  return new Promise((resolve) => {
    window.dispatchEvent(new CustomEvent("holdfast:ask", { detail: { ...question, resolve } }));
  });
}

/** The dialog that `ask` opens. */
class AskDialog extends PageElement {
  constructor() {
    super();
    /** @type {any} */
    this.question = null;
    this.typed = "";
  }

  connectedCallback() {
    super.connectedCallback();
    const open = (/** @type {any} */ event) => {
      this.question?.resolve(null);
      this.question = event.detail;
      this.typed = this.question.value ?? "";
      this.requestUpdate();
      void this.updateComplete.then(() => this.querySelector("dialog")?.showModal());
    };
    // A question is about the page that asked it.
    const leave = () => this.question && this.close(null);
    window.addEventListener("holdfast:ask", open);
    window.addEventListener("hashchange", leave);
    this.cleanups.push(() => window.removeEventListener("holdfast:ask", open), () => window.removeEventListener("hashchange", leave), leave);
  }

  /** @param {string | null} answer */
  close(answer) {
    const question = this.question;
    this.question = null;
    this.querySelector("dialog")?.close();
    this.requestUpdate();
    question?.resolve(answer);
  }

  render() {
    const question = this.question;
    if (!question) return nothing;
    const mustType = question.typed;
    const isReady = !mustType || this.typed === mustType;
    const type = (/** @type {any} */ event) => { this.typed = event.target.value; this.requestUpdate(); };
    return html`<dialog aria-labelledby="ask-title" @cancel=${(/** @type {Event} */ event) => { event.preventDefault(); this.close(null); }}>
      <form method="dialog" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); if (isReady) this.close(this.typed); }}>
        <h2 id="ask-title">${question.title}</h2>
        <div class="dialog-text">${question.text}</div>
        ${mustType || question.field ? html`<label class="field">
          <span>${question.field ?? html`Type <code>${safeText(mustType)}</code> to confirm`}</span>
          ${question.isLong ? html`<textarea rows="8" .value=${this.typed} @input=${type}></textarea>` : html`<input autocomplete="off" .value=${this.typed} @input=${type}>`}
        </label>` : nothing}
        <div class="row end">
          <button type="button" class="button" @click=${() => this.close(null)}>Cancel</button>
          <button type="submit" class="button ${question.isDangerous ? "danger" : "primary"}" ?disabled=${!isReady}>${question.action}</button>
        </div>
      </form>
    </dialog>`;
  }
}
customElements.define("hf-ask", AskDialog);

/** Notices, one after another, read out politely. */
class Notices extends PageElement {
  constructor() {
    super();
    this.text = "";
    this.timer = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    const show = (/** @type {any} */ event) => {
      this.text = event.detail;
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => { this.text = ""; this.requestUpdate(); }, 6000);
      this.requestUpdate();
    };
    window.addEventListener("holdfast:notice", show);
    this.cleanups.push(() => window.removeEventListener("holdfast:notice", show));
  }

  render() {
    return html`<div class="notice ${this.text ? "shown" : ""}" role="status" aria-live="polite">${safeText(this.text)}</div>`;
  }
}
customElements.define("hf-notices", Notices);

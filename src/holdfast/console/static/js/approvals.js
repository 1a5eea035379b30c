/** Calls that wait for a person: those of one session as cards, and how many there are in all. */

import { html, nothing } from "../vendor/lit.js";
import { answerApproval, get, serves } from "./api.js";
import { dateTime, safeText } from "./format.js";
import { longText } from "./items.js";
import { onOpen, subscribe } from "./live.js";
import { badge, notify, PageElement } from "./ui.js";

const REFRESH_MS = 300;
const COUNTED = 100;

class Approvals extends PageElement {
  static properties = { sessionId: { attribute: false } };

  constructor() {
    super();
    this.sessionId = "";
    /** @type {any[]} */
    this.approvals = [];
    /** Approvals whose answer is on its way. @type {Set<string>} */
    this.answered = new Set();
    this.timer = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    this.cleanups.push(subscribe((fact) => {
      if (fact.session_id !== this.sessionId || !fact.type.startsWith("turn.")) return;
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.load(), REFRESH_MS);
    }));
    this.cleanups.push(onOpen(() => void this.load()), () => clearTimeout(this.timer));
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (!changed.has("sessionId")) return;
    this.approvals = [];
    void this.load();
  }

  async load() {
    const { sessionId } = this;
    if (!sessionId) return;
    const listed = await get("/v1/approvals", { session_id: sessionId }).catch(() => null);
    // What cannot be read is read again with the next fact; what is shown stays until then.
    if (listed === null || sessionId !== this.sessionId) return;
    this.approvals = listed.data;
    this.requestUpdate();
  }

  /**
   * @param {any} approval
   * @param {boolean} approve
   */
  async decide(approval, approve) {
    this.answered.add(approval.id);
    this.requestUpdate();
    try {
      const detail = await answerApproval(approval.id, approve);
      this.dispatchEvent(new CustomEvent("answered", { bubbles: true, detail }));
    } catch (error) {
      notify(error instanceof Error ? error.message : String(error));
    }
    await this.load();
    this.answered.delete(approval.id);
    this.requestUpdate();
  }

  render() {
    return html`<p class="visually-hidden" role="status">${this.approvals.length ? `Calls that wait for your approval: ${this.approvals.length}` : ""}</p>
      ${this.approvals.map((one) => html`<div class="card approval-card" role="group" aria-label="Approval">
        <p>${badge("approval needed", "warn")} <strong class="call-name">${safeText(one.name)}</strong> <span class="muted">${safeText(one.server_label ?? "")}</span></p>
        <div class="code" role="group" aria-label="Arguments">${longText(one.arguments)}</div>
        <div class="row"><span class="muted small">${one.expires_at === null ? nothing : `until ${dateTime(one.expires_at)}`}</span><span class="spacer"></span>
          <button type="button" class="button" ?disabled=${this.answered.has(one.id)} @click=${() => this.decide(one, false)}>Deny</button>
          <button type="button" class="button primary" ?disabled=${this.answered.has(one.id)} @click=${() => this.decide(one, true)}>Allow</button></div></div>`)}`;
  }
}
customElements.define("hf-approvals", Approvals);

/** How many approvals wait in all; a link in the bar. */
class ApprovalBadge extends PageElement {
  constructor() {
    super();
    this.count = 0;
    this.hasMore = false;
    this.timer = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    this.cleanups.push(subscribe((fact) => {
      if (!fact.type.startsWith("turn.")) return;
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.load(), REFRESH_MS);
    }));
    this.cleanups.push(onOpen(() => void this.load()), () => clearTimeout(this.timer));
  }

  async load() {
    if (!(await serves("/v1/approvals"))) return;
    const listed = await get("/v1/approvals", { limit: COUNTED }).catch(() => null);
    if (listed === null) return;
    this.count = listed.data.length;
    this.hasMore = listed.has_more;
    this.requestUpdate();
  }

  render() {
    if (!this.count) return nothing;
    const text = `${this.count}${this.hasMore ? "+" : ""}`;
    return html`<a class="bar-badge" href="#/sessions?show=approval" aria-label=${`Approvals that wait: ${text}`}><span aria-hidden="true">${text}</span><span class="bar-badge-text" aria-hidden="true">${this.count === 1 ? "approval" : "approvals"}</span></a>`;
  }
}
customElements.define("hf-approval-badge", ApprovalBadge);

/** What runs without a client: approvals that wait, channels, the outbox and schedules. */

import { html, nothing } from "../vendor/lit.js";
import { answerApproval, get, post, remove, segment, serves } from "./api.js";
import { ago, dateTime, number, safeText } from "./format.js";
import { longText } from "./items.js";
import { onOpen, subscribe } from "./live.js";
import { ask, badge, empty, errorState, idText, notify, PageElement } from "./ui.js";

const REFRESH_MS = 5000;
const OUTBOX_PAGE = 50;
const WORKING = new Set(["receiving", "webhook", "another worker receives"]);
/** @type {Record<string, string>} */
const TONES = { sent: "good", pending: "info", sending: "info", dead: "bad", dropped: "quiet" };

class Automation extends PageElement {
  constructor() {
    super();
    /** @type {any[] | null} */
    this.approvals = null;
    this.hasMoreApprovals = false;
    /** Approvals whose answer is on its way. @type {Set<string>} */
    this.answered = new Set();
    /** Channels, each with its pairings. @type {any[] | null} */
    this.channels = null;
    /** @type {any[] | null} */
    this.outbox = null;
    this.outboxState = "";
    this.hasMoreOutbox = false;
    /** Schedules, each with its last runs. @type {any[] | null} */
    this.schedules = null;
    this.timer = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    void this.load();
    this.every(() => this.load(), REFRESH_MS);
    this.cleanups.push(onOpen(() => void this.load()));
    this.cleanups.push(subscribe((fact) => {
      if (!fact.type.startsWith("turn.")) return;
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.load(), 300);
    }));
    this.cleanups.push(() => clearTimeout(this.timer));
  }

  /** Read what this gateway has; one list that cannot be read does not keep the others away. */
  load() {
    return this.inOrder(this.read);
  }

  read = () => this.attempt(() => Promise.all([
    this.loadApprovals(), this.loadChannels(), this.loadOutbox(), this.loadSchedules(),
  ]));

  async loadApprovals() {
    if (!(await serves("/v1/approvals"))) return;
    const page = await get("/v1/approvals", { limit: 100 });
    this.approvals = page.data;
    this.hasMoreApprovals = page.has_more;
  }

  async loadChannels() {
    if (!(await serves("/v1/channels"))) return;
    const { data } = await get("/v1/channels");
    const pairings = await Promise.all(data.map((/** @type {any} */ channel) => get(`/v1/channels/${segment(channel.name)}/pairings`).then((listed) => listed.data, () => [])));
    this.channels = data.map((/** @type {any} */ channel, /** @type {number} */ index) => ({ ...channel, pairings: pairings[index] }));
  }

  async loadOutbox() {
    if (!(await serves("/v1/outbox"))) return;
    const page = await get("/v1/outbox", { limit: OUTBOX_PAGE, state: this.outboxState });
    this.outbox = page.data;
    this.hasMoreOutbox = page.has_more;
  }

  async loadSchedules() {
    if (!(await serves("/v1/schedules"))) return;
    const { data } = await get("/v1/schedules", { limit: 100 });
    this.schedules = await Promise.all(data.map((/** @type {any} */ schedule) => get(`/v1/schedules/${segment(schedule.name)}`)));
  }

  /**
   * @param {string} label
   * @param {() => Promise<unknown>} work
   */
  async act(label, work) {
    try {
      await work();
      notify(label);
    } catch (error) {
      notify(`That did not work: ${error instanceof Error ? error.message : error}`);
    }
    await this.load();
  }

  render() {
    return html`${errorState(this.failure)}
      ${this.approvals ? html`<section><h2>Approvals</h2>${this.approvalTable(this.approvals)}</section>` : nothing}
      ${this.channels ? html`<section><h2>Channels</h2>${this.channelTable(this.channels)}${this.pairingTable(this.channels)}</section>` : nothing}
      ${this.outbox ? html`<section><div class="row"><h2>Outbox</h2><span class="spacer"></span>
        <label><span class="visually-hidden">State of messages</span><select @change=${(/** @type {any} */ event) => { this.outboxState = event.target.value; void this.load(); }}>
          <option value="">Any state</option><option value="open">Not sent</option><option value="dead">Dead</option><option value="sent">Sent</option><option value="dropped">Dropped</option></select></label></div>
        ${this.outboxTable(this.outbox)}</section>` : nothing}
      ${this.schedules ? html`<section><h2>Schedules</h2>${this.scheduleTable(this.schedules)}</section>` : nothing}`;
  }

  /** @param {any[]} approvals */
  approvalTable(approvals) {
    if (!approvals.length) return empty("No approvals wait", "Calls of tools that need an approval appear here until somebody answers.");
    const decide = async (/** @type {any} */ one, /** @type {boolean} */ approve) => {
      this.answered.add(one.id);
      this.requestUpdate();
      await this.act(approve ? "The call was allowed" : "The call was denied", () => answerApproval(one.id, approve));
      this.answered.delete(one.id);
      this.requestUpdate();
    };
    return html`${table("Approvals", ["Tool", "Arguments", "Session", "Until", ""], approvals.map((one) => html`<tr>
      <th scope="row"><span class="call-name">${safeText(one.name)}</span><div class="muted small">${safeText(one.server_label)}</div></th>
      <td class="arguments">${longText(one.arguments)}</td>
      <td><a href=${`#/chat/${segment(one.session_id)}`}>${safeText(one.key ?? one.session_id)}</a><div class="muted small">${safeText(one.source)}${one.sender ? `, ${safeText(one.sender)}` : ""}</div></td>
      <td class="keep">${one.expires_at === null ? "–" : dateTime(one.expires_at)}</td>
      <td><div class="row end"><button type="button" class="button small" ?disabled=${this.answered.has(one.id)} @click=${() => decide(one, false)}>Deny</button>
        <button type="button" class="button small primary" ?disabled=${this.answered.has(one.id)} @click=${() => decide(one, true)}>Allow</button></div></td></tr>`))}
      ${this.hasMoreApprovals ? html`<p class="muted small">More wait; <code>holdfast approvals list</code> has all.</p>` : nothing}`;
  }

  /** @param {any[]} channels */
  channelTable(channels) {
    if (!channels.length) return empty("No channels");
    const counts = (/** @type {Record<string, number>} */ found) => Object.entries(found ?? {}).map(([name, count]) => `${safeText(name)} ${number(count)}`).join(", ") || "–";
    return table("Channels", ["Channel", "State", "Received", "Outbox"], channels.map((one) => html`<tr>
      <th scope="row" class="strong">${safeText(one.name)}<div class="muted small">${safeText(one.kind)}, tenant ${safeText(one.tenant)}</div></th>
      <td>${WORKING.has(one.state) ? badge(one.state, "good") : html`<span class="error-text">${safeText(one.state)}</span>`}</td>
      <td>${counts(one.received)}</td><td>${counts(one.outbox)}</td></tr>`));
  }

  /** @param {any[]} channels */
  pairingTable(channels) {
    const pairings = channels.flatMap((channel) => channel.pairings);
    if (!pairings.length) return nothing;
    const path = (/** @type {any} */ one) => `/v1/channels/${segment(one.channel)}/pairings`;
    return html`<h3>Pairings</h3>${table("Pairings", ["Sender", "Channel", "State", ""], pairings.map((one) => html`<tr>
      <th scope="row">${safeText(one.name || one.sender)}<div class="muted small">${safeText(one.sender)}</div></th><td>${safeText(one.channel)}</td>
      <td>${one.approved_at === null ? html`${badge("waits", "warn")} <span class="muted small">until ${dateTime(one.expires_at)}</span>` : badge("approved", "good")}</td>
      <td><div class="row end">${one.approved_at === null
        ? html`<button type="button" class="button small primary" @click=${() => this.act("The sender may write now", () => post(`${path(one)}/${segment(one.code)}/approve`))}>Approve</button>`
        : html`<button type="button" class="button small danger" @click=${() => this.act("The pairing was revoked", () => remove(`${path(one)}/${segment(one.sender)}`))}>Revoke</button>`}</div></td></tr>`))}`;
  }

  /** @param {any[]} messages */
  outboxTable(messages) {
    if (!messages.length) return empty("No messages", "What the gateway sends to chats and webhooks passes through here.");
    return html`${table("Outbox", ["Message", "State", "Problem", "Written", ""], messages.map((one) => html`<tr>
      <th scope="row">${safeText(one.channel)} to ${safeText(one.chat)}<div class="muted small">${idText(one.id)}${one.session_id ? html` <a href=${`#/sessions/${segment(one.session_id)}`}>session</a>` : nothing}</div></th>
      <td>${badge(one.state, TONES[one.state])} ${one.is_maybe_duplicate ? badge("maybe twice", "warn") : nothing}</td>
      <td>${one.error ? html`<span class="break">${safeText(one.error)}</span>${one.state === "pending" ? html`<div class="muted small">next try ${dateTime(one.next_at)}</div>` : nothing}` : html`<span class="muted">–</span>`}</td>
      <td title=${dateTime(one.created_at)}>${ago(one.created_at)}</td>
      <td><div class="row end">${one.state === "dead" ? html`<button type="button" class="button small" @click=${() => this.act("The message is sent again", () => post(`/v1/outbox/${segment(one.id)}/retry`))}>Retry</button>` : nothing}
        ${one.state === "dead" || one.state === "pending" ? html`<button type="button" class="button small danger" @click=${() => this.drop(one)}>Drop</button>` : nothing}</div></td></tr>`))}
      ${this.hasMoreOutbox ? html`<p class="muted small">The newest ${OUTBOX_PAGE} are shown; <code>holdfast outbox list</code> has all.</p>` : nothing}`;
  }

  /** @param {any} message */
  async drop(message) {
    if ((await ask({ title: "Drop this message?", text: "It is never sent. Its text stays in the transcript.", action: "Drop", isDangerous: true })) === null) return;
    await this.act("The message was dropped", () => post(`/v1/outbox/${segment(message.id)}/drop`));
  }

  /** @param {any[]} schedules */
  scheduleTable(schedules) {
    if (!schedules.length) return empty("No schedules", html`Create one with <code>holdfast schedules add</code>.`);
    const change = (/** @type {any} */ one, /** @type {string} */ verb, /** @type {string} */ label) => this.act(label, () => post(`/v1/schedules/${segment(one.name)}/${verb}`));
    return table("Schedules", ["Schedule", "When", "Next run", "Last runs", ""], schedules.map((one) => html`<tr>
      <th scope="row" class="strong">${safeText(one.name)} ${one.is_paused ? badge("paused", "warn") : nothing}<div class="muted small">${safeText(one.reason ?? "")}</div></th>
      <td>${safeText(one.cron ?? one.every ?? one.at ?? "")}<div class="muted small">${safeText(one.timezone ?? "")}</div></td>
      <td>${one.is_paused || one.next_run_at === null ? html`<span class="muted">–</span>` : dateTime(one.next_run_at)}</td>
      <td>${one.running_turn ? html`<a href=${`#/turns/${segment(one.running_turn)}`}>${badge("running")}</a>` : nothing}
        ${(one.runs ?? []).slice(0, 5).map((/** @type {any} */ run) => html`<a href=${run.turn_id ? `#/turns/${segment(run.turn_id)}` : "#/operations"} title=${dateTime(run.scheduled_at)}>${badge(run.outcome || "started")}</a> `)}</td>
      <td><div class="row end"><button type="button" class="button small" @click=${() => change(one, "run", "The schedule is due now")}>Run now</button>
        ${one.is_paused ? html`<button type="button" class="button small" @click=${() => change(one, "resume", "The schedule goes on")}>Resume</button>`
          : html`<button type="button" class="button small" @click=${() => change(one, "pause", "The schedule is paused")}>Pause</button>`}</div></td></tr>`));
  }
}
customElements.define("hf-automation", Automation);

/**
 * @param {string} label
 * @param {string[]} columns
 * @param {unknown[]} rows
 */
function table(label, columns, rows) {
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label=${label}><table class="list">
    <thead><tr>${columns.map((name) => html`<th scope="col">${name || html`<span class="visually-hidden">Actions</span>`}</th>`)}</tr></thead>
    <tbody>${rows}</tbody></table></div>`;
}

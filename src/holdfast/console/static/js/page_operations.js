/** What runs and whether it is well: health, findings, workers and lanes. */

import { html, nothing } from "../vendor/lit.js";
import { ApiError, get, segment } from "./api.js";
import { ago, dateTime, number, safeText } from "./format.js";
import { subscribe } from "./live.js";
import { badge, empty, errorState, idText, loading, PageElement } from "./ui.js";
import "./automation.js";

const REFRESH_MS = 5000;
class OperationsPage extends PageElement {
  constructor() {
    super();
    /** @type {any} */
    this.workers = null;
    /** @type {any} */
    this.findings = null;
    this.isReady = false;
    this.readiness = "";
    this.timer = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    void this.load();
    void this.loadFindings();
    this.every(() => this.load(), REFRESH_MS);
    this.cleanups.push(subscribe(() => {
      clearTimeout(this.timer);
      this.timer = window.setTimeout(() => void this.load(), 300);
    }));
    this.cleanups.push(() => clearTimeout(this.timer));
  }

  load() {
    return this.inOrder(this.read);
  }

  read = () => this.attempt(async () => {
    const ready = await get("/readyz").then(() => "", (/** @type {Error} */ error) => error.message);
    this.isReady = ready === "";
    this.readiness = ready;
    this.workers = await get("/v1/workers");
  });

  async loadFindings() {
    try {
      this.findings = await get("/v1/doctor");
    } catch (error) {
      this.findings = { data: [], error };
    }
    this.requestUpdate();
  }

  render() {
    if (this.failure instanceof ApiError && this.failure.status === 403) {
      return html`<h1 tabindex="-1">Operations</h1>${empty("Only for admins", "Your API key is not an admin key. Sign in with one to see workers, lanes and findings.")}`;
    }
    return html`
      <div class="page-head"><h1 tabindex="-1">Operations</h1></div>
      ${errorState(this.failure)}
      <div class="columns">
        <section class="card"><h2>Health</h2>
          <p>${badge(this.isReady ? "ready" : "not ready", this.isReady ? "good" : "bad")} ${this.isReady ? "The store accepts writes." : safeText(this.readiness)}</p>
          ${this.workers ? html`<p class="muted">Workers: ${this.workers.workers.length} · lanes in use: ${this.workers.lanes.length}${this.workers.has_more_lanes ? "+" : ""} ·
            turns waiting: ${number(this.workers.lanes.reduce((/** @type {number} */ sum, /** @type {any} */ lane) => sum + lane.waiting_turns, 0))}</p>` : loading()}</section>
        <section class="card"><div class="row"><h2>Doctor's findings</h2><span class="spacer"></span><button type="button" class="button small" @click=${this.loadFindings}>Check again</button></div>${this.findingList()}</section>
      </div>
      <section><h2>Lanes in use</h2>${this.lanes()}</section>
      <section><h2>Workers</h2>${this.workerTable()}</section>
      <hf-automation></hf-automation>`;
  }

  findingList() {
    if (!this.findings) return loading("Checking the store…");
    if (this.findings.error) return errorState(this.findings.error);
    const found = this.findings.data;
    if (!found.length) return html`<p>${badge("all well", "good")} No problems found.</p>${this.coverage()}`;
    return html`<ul class="plain-list findings">${found.slice(0, 100).map((/** @type {any} */ finding) => html`<li>
      ${badge(finding.severity)} <strong>${safeText(finding.code).replaceAll("_", " ")}</strong>
      <div>${safeText(finding.detail)}</div>
      <details class="fold"><summary>Meaning and remedy</summary><p>${safeText(finding.meaning)}</p><p>${safeText(finding.remedy)}</p></details></li>`)}</ul>
      ${found.length > 100 ? html`<p class="muted">${found.length - 100} more; run <code>holdfast doctor</code>.</p>` : nothing}${this.coverage()}`;
  }

  /** Say what was looked at, if that was not the whole store. */
  coverage() {
    const { coverage, deep_check: deep } = this.findings;
    if (coverage.is_whole) return nothing;
    const last = deep?.finished_at ? html` The last deep check of this gateway: ${dateTime(deep.finished_at)}, ${number(deep.findings)} findings.` : nothing;
    return html`<p class="muted small">Looked at the newest ${number(coverage.entries)} entries of the log (since ${dateTime(coverage.since)}) and ${number(coverage.sessions)} sessions. <code>holdfast doctor --deep</code> looks at everything.${last}</p>`;
  }

  lanes() {
    const lanes = this.workers?.lanes ?? [];
    if (!lanes.length) return this.workers ? empty("Nothing is running", "Lanes appear here while a turn runs or waits for tools.") : loading();
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Lanes"><table class="list">
      <thead><tr><th scope="col">Session</th><th scope="col">State</th><th scope="col">Turn</th><th scope="col" class="num">Waiting</th><th scope="col">Since</th><th scope="col">Worker</th></tr></thead>
      <tbody>${lanes.map((/** @type {any} */ lane) => html`<tr>
        <th scope="row"><a href=${`#/sessions/${segment(lane.session_id)}`}>${safeText(lane.key ?? lane.session_id)}</a> <span class="muted small">${safeText(lane.tenant)}</span></th>
        <td>${badge(lane.state)}</td><td><a href=${`#/turns/${segment(lane.turn_id)}`}>${idText(lane.turn_id)}</a></td>
        <td class="num">${lane.waiting_turns}</td><td title=${dateTime(lane.since)}>${ago(lane.since)}</td><td>${idText(lane.worker)}</td></tr>`)}</tbody></table></div>`;
  }

  workerTable() {
    if (!this.workers) return loading();
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Workers"><table class="list">
      <thead><tr><th scope="col">Worker</th><th scope="col">State</th><th scope="col" class="num">Runs</th><th scope="col" class="num">Waiting turns</th><th scope="col">Started</th><th scope="col">Lease until</th></tr></thead>
      <tbody>${this.workers.workers.map((/** @type {any} */ worker) => html`<tr><th scope="row">${idText(worker.id)}</th>
        <td>${badge(worker.is_alive ? "alive" : "gone", worker.is_alive ? "good" : "bad")}</td><td class="num">${worker.runs}</td><td class="num">${worker.waiting_turns}</td>
        <td title=${dateTime(worker.started_at)}>${ago(worker.started_at)}</td><td>${dateTime(worker.alive_until)}</td></tr>`)}</tbody></table></div>`;
  }
}
customElements.define("hf-operations", OperationsPage);

/** What runs and whether it is well: health, findings, workers and lanes. */

import { html, nothing } from "../vendor/lit.js";
import { ApiError, get, segment, serves } from "./api.js";
import { ago, dateTime, number, safeText, shortId } from "./format.js";
import { subscribe } from "./live.js";
import { badge, empty, errorState, idText, loading, PageElement } from "./ui.js";
import "./automation.js";

const REFRESH_MS = 5000;
/** Findings of one kind that are shown at once, and in all. */
const SHOWN_OF_KIND = 5;
const MAX_SHOWN = 100;
const MAX_NAMED = 40;
/** @type {Record<string, string>} */
const UPSTREAM_TONES = { answers: "good", fails: "bad", unused: "quiet" };

class OperationsPage extends PageElement {
  constructor() {
    super();
    /** @type {any} */
    this.workers = null;
    /** @type {any} */
    this.findings = null;
    /** @type {any[] | null} */
    this.upstreams = null;
    /** The tools of the gateway and the state of their servers. @type {any[] | null} */
    this.tools = null;
    /** Keys of sessions that findings name; null while they are read. @type {Map<string, string | null>} */
    this.keys = new Map();
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
    const [workers, upstreams, tools] = await Promise.all([
      get("/v1/workers"), get("/v1/upstreams"), serves("/v1/tools").then((is) => (is ? get("/v1/tools") : null)),
    ]);
    this.workers = workers;
    this.upstreams = upstreams.data;
    this.tools = tools?.data ?? null;
  });

  async loadFindings() {
    try {
      this.findings = await get("/v1/doctor");
      void this.loadKeys();
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
      <div class="page-head"><h1 tabindex="-1">Operations</h1><span class="spacer"></span>
        ${badge(this.isReady ? "ready" : "not ready", this.isReady ? "good" : "bad")}</div>
      ${errorState(this.failure)}
      <section><h2 class="visually-hidden">Health</h2>${this.health()}</section>
      <section class="card"><div class="row"><h2>Doctor's findings</h2>${this.findings?.checked_at ? html`<span class="muted small">checked ${ago(this.findings.checked_at)}</span>` : nothing}
        <span class="spacer"></span><button type="button" class="button small" @click=${this.loadFindings}>Check again</button></div>${this.findingList()}</section>
      <section><h2>Upstreams</h2>${this.upstreamTable()}</section>
      ${this.tools?.length ? html`<section><h2>Tools</h2>${this.toolTable(this.tools)}</section>` : nothing}
      <section><h2>Lanes in use</h2>${this.lanes()}</section>
      <section><h2>Workers</h2>${this.workerTable()}</section>
      <hf-automation></hf-automation>`;
  }

  health() {
    const lanes = this.workers?.lanes ?? [];
    const waiting = lanes.reduce((/** @type {number} */ sum, /** @type {any} */ lane) => sum + lane.waiting_turns, 0);
    const alive = this.workers?.workers.filter((/** @type {any} */ worker) => worker.is_alive).length ?? 0;
    const longest = Math.min(...lanes.map((/** @type {any} */ lane) => lane.since ?? Infinity));
    const value = (/** @type {number} */ count) => (this.workers ? number(count) : "–");
    return html`<dl class="numbers">
      <div><dt>Store</dt><dd class="small">${this.isReady ? "The store accepts writes." : safeText(this.readiness || "…")}</dd></div>
      <div><dt>Workers alive</dt><dd>${value(alive)}</dd></div>
      <div><dt>Lanes in use</dt><dd>${value(lanes.length)}${this.workers?.has_more_lanes ? "+" : ""}</dd></div>
      <div><dt>Turns waiting</dt><dd>${value(waiting)}</dd></div>
      <div><dt>Longest since</dt><dd class="small">${Number.isFinite(longest) ? ago(longest) : "nothing runs"}</dd></div>
      <div><dt>Upstreams that fail</dt><dd>${this.upstreams ? number(this.upstreams.filter((one) => one.state === "fails").length) : "–"}</dd></div></dl>`;
  }

  /** Read the keys of the sessions that findings name: people know keys. */
  async loadKeys() {
    const named = new Set((this.findings?.data ?? []).flatMap((/** @type {any} */ finding) => finding.detail.match(/\bses_\w+/g) ?? []));
    for (const id of [...named].slice(0, MAX_NAMED)) {
      if (this.keys.has(id)) continue;
      this.keys.set(id, null);
      const session = await get(`/v1/sessions/${segment(id)}`).catch(() => null);
      this.keys.set(id, session?.key ?? null);
      this.requestUpdate();
    }
  }

  /** A text whose ids of sessions and turns lead to them. @param {string} detail */
  linked(detail) {
    return detail.split(/\b((?:ses|turn)_[0-9A-Za-z]{8,64})\b/).map((part, index) => {
      if (index % 2 === 0) return safeText(part);
      const page = part.startsWith("ses_") ? "sessions" : "turns";
      return html`<a href=${`#/${page}/${segment(part)}`} title=${part}>${safeText(this.keys.get(part) ?? shortId(part))}</a>`;
    });
  }

  findingList() {
    if (!this.findings) return loading("Checking the store…");
    if (this.findings.error) return errorState(this.findings.error);
    const found = this.findings.data;
    if (!found.length) return html`<p>${badge("all well", "good")} No problems found.</p>${this.coverage()}`;
    /** @type {Map<string, any[]>} */
    const groups = new Map();
    for (const finding of found) groups.set(finding.code, [...(groups.get(finding.code) ?? []), finding]);
    const order = ["problem", "warning", "note"];
    const sorted = [...groups.values()].sort((one, other) => order.indexOf(one[0].severity) - order.indexOf(other[0].severity));
    return html`<ul class="plain-list findings">${sorted.map((group) => html`<li>
      ${badge(group[0].severity)} <strong>${safeText(group[0].code).replaceAll("_", " ")}</strong> ${group.length > 1 ? html`<span class="muted">${number(group.length)} times</span>` : nothing}
      <p class="muted">${sentence(group[0].meaning)} ${sentence(group[0].remedy)}</p>
      <ul>${group.slice(0, SHOWN_OF_KIND).map((finding) => html`<li>${this.linked(finding.detail)}</li>`)}</ul>
      ${group.length > SHOWN_OF_KIND ? html`<details class="fold"><summary>${number(group.length - SHOWN_OF_KIND)} more</summary><ul>${group.slice(SHOWN_OF_KIND, MAX_SHOWN).map((finding) => html`<li>${this.linked(finding.detail)}</li>`)}</ul>
        ${group.length > MAX_SHOWN ? html`<p>All are listed by <code>holdfast doctor</code>.</p>` : nothing}</details>` : nothing}</li>`)}</ul>${this.coverage()}`;
  }

  /** Say what was looked at, if that was not the whole store. */
  coverage() {
    const { coverage, deep_check: deep } = this.findings;
    if (coverage.is_whole) return nothing;
    const last = deep?.finished_at ? html` The last deep check of this gateway: ${dateTime(deep.finished_at)}, ${number(deep.findings)} findings.` : nothing;
    return html`<p class="muted small">Looked at the newest ${number(coverage.entries)} entries of the log (since ${dateTime(coverage.since)}) and ${number(coverage.sessions)} sessions. <code>holdfast doctor --deep</code> looks at everything.${last}</p>`;
  }

  upstreamTable() {
    if (!this.upstreams) return this.failure ? nothing : loading();
    if (!this.upstreams.length) return empty("No upstreams", "The demo model answers: it calls no server.");
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Upstreams"><table class="list">
      <thead><tr><th scope="col">Upstream</th><th scope="col">State</th><th scope="col">Models</th><th scope="col">Last answer</th><th scope="col">Last error</th></tr></thead>
      <tbody>${this.upstreams.map((one) => html`<tr><th scope="row" class="strong">${safeText(one.name)}<div class="muted small">${safeText(one.kind)}</div></th>
        <td>${badge(one.state, UPSTREAM_TONES[one.state])} ${one.failures > 1 ? html`<span class="muted small">${number(one.failures)} times in a row</span>` : nothing}</td>
        <td class="break">${safeText(one.models.join(", "))}</td>
        <td class="keep" title=${dateTime(one.answered_at)}>${one.answered_at === null ? html`<span class="muted">–</span>` : ago(one.answered_at)}</td>
        <td>${one.last_failure ? html`<span title=${dateTime(one.last_failure.at)}>${ago(one.last_failure.at)}</span>: ${safeText(one.last_failure.failure_class).replaceAll("_", " ")}${one.last_failure.status ? ` (${one.last_failure.status})` : ""}
          ${one.last_failure.turn_id ? html` <a href=${`#/turns/${segment(one.last_failure.turn_id)}`}>turn</a>` : nothing}<div class="small break">${safeText(one.last_failure.message)}</div>` : html`<span class="muted">none since the start</span>`}</td></tr>`)}</tbody></table></div>`;
  }

  /** @param {any[]} tools */
  toolTable(tools) {
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Tools"><table class="list">
      <thead><tr><th scope="col">Server</th><th scope="col">State</th><th scope="col" class="num">Tools</th><th scope="col">Last error</th></tr></thead>
      <tbody>${tools.map((one) => html`<tr><th scope="row" class="strong">${safeText(one.name)}</th>
        <td>${badge(one.state, one.state === "failed" ? "bad" : one.state === "ready" ? "good" : "quiet")}</td><td class="num">${number(one.tools)}</td>
        <td class="break">${one.error ? safeText(one.error) : html`<span class="muted">–</span>`}${one.left_out?.length ? html`<div class="muted small">left out: ${safeText(one.left_out.join(", "))}</div>` : nothing}</td></tr>`)}</tbody></table></div>`;
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

/** @param {string} text */
function sentence(text) {
  return safeText(`${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`);
}

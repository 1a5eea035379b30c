/** Usage over time: tokens, turns, latency, heals, by day or hour, and by model. */

import { html } from "../vendor/lit.js";
import { ApiError, get } from "./api.js";
import { barChart } from "./charts.js";
import { compactNumber, dateTime, duration, number, safeText } from "./format.js";
import { empty, errorState, loading, PageElement } from "./ui.js";

/** @type {[string, string, number][]} */
const RANGES = [["24 hours", "hour", 1], ["7 days", "day", 7], ["30 days", "day", 30], ["90 days", "day", 90]];

class UsagePage extends PageElement {
  constructor() {
    super();
    this.range = 2;
    /** @type {any} */
    this.report = null;
    this.tenant = "";
  }

  connectedCallback() {
    super.connectedCallback();
    void this.load();
  }

  load() {
    const { range } = this;
    const [, interval, days] = RANGES[range];
    const to = Math.floor(Date.now() / 1000) + 1;
    return this.attempt(async () => {
      const report = await get("/v1/usage", { from: to - days * 86_400, to, interval });
      if (range === this.range) this.report = report;
    });
  }

  /** Sum the rows up by interval; intervals without a row are zero. */
  columns() {
    const { from, to, interval } = this.report;
    const seconds = interval === "hour" ? 3600 : 86_400;
    const rows = this.report.data.filter((/** @type {any} */ row) => !this.tenant || row.tenant === this.tenant);
    const columns = [];
    for (let start = Math.floor(from / seconds) * seconds; start < to; start += seconds) {
      const date = new Date(start * 1000);
      const label = interval === "hour" ? `${String(date.getUTCHours()).padStart(2, "0")}:00` : `${date.getUTCMonth() + 1}/${date.getUTCDate()}`;
      columns.push({ label, start, rows: rows.filter((/** @type {any} */ row) => row.start === start) });
    }
    return columns;
  }

  render() {
    if (this.failure instanceof ApiError && this.failure.status === 403) {
      return html`<h1 tabindex="-1">Usage</h1>${empty("Only for admins", "Usage counts all tenants. Sign in with an admin key to see it.")}`;
    }
    return html`<div class="page-head"><h1 tabindex="-1">Usage</h1><span class="spacer"></span>
      <div class="row" role="group" aria-label="Range">${RANGES.map(([label], index) => html`<button type="button" class="button small" aria-pressed=${this.range === index} @click=${() => { this.range = index; void this.load(); }}>${label}</button>`)}</div></div>
      ${errorState(this.failure)}
      ${this.report ? this.charts() : this.failure ? "" : loading("Counting…")}`;
  }

  charts() {
    if (!this.report.data.length) return empty("No turns in this range", "Choose a longer range, or come back after the first turns.");
    const columns = this.columns();
    const sum = (/** @type {any[]} */ rows, /** @type {string} */ name) => rows.reduce((total, row) => total + row[name], 0);
    const worst = (/** @type {any[]} */ rows, /** @type {string} */ name) => Math.max(0, ...rows.map((row) => row.latency_ms[name] ?? 0));
    const tenants = [...new Set(this.report.data.map((/** @type {any} */ row) => row.tenant))];
    return html`
      ${this.report.is_complete ? "" : html`<p class="state">Turns are still being counted. Complete until ${dateTime(this.report.complete_until)}.</p>`}
      ${tenants.length > 1 ? html`<label class="field"><span>Tenant</span><select @change=${(/** @type {any} */ event) => { this.tenant = event.target.value; this.requestUpdate(); }}>
        <option value="">All tenants</option>${tenants.map((tenant) => html`<option value=${tenant}>${safeText(tenant)}</option>`)}</select></label>` : ""}
      <div class="columns">
        ${barChart({ interval: this.report.interval, title: "Tokens", series: ["input", "output"], columns: columns.map(({ label, start, rows }) => ({ label, start, values: [sum(rows, "input_tokens"), sum(rows, "output_tokens")] })) })}
        ${barChart({ interval: this.report.interval, title: "Turns", series: ["completed", "failed", "cancelled or interrupted"], columns: columns.map(({ label, start, rows }) => ({ label, start, values: [sum(rows, "completed"), sum(rows, "failed"), sum(rows, "cancelled") + sum(rows, "interrupted")] })) })}
        ${barChart({ interval: this.report.interval, title: "Latency (p95)", series: ["p95"], format: duration, columns: columns.map(({ label, start, rows }) => ({ label, start, values: [worst(rows, "p95")] })) })}
        ${barChart({ interval: this.report.interval, title: "Heals", series: ["heals"], columns: columns.map(({ label, start, rows }) => ({ label, start, values: [sum(rows, "heals")] })) })}
      </div>
      <section><h2>By model</h2>${this.byModel()}</section>`;
  }

  byModel() {
    /** @type {Map<string, any>} */
    const models = new Map();
    for (const row of this.report.data) {
      if (this.tenant && row.tenant !== this.tenant) continue;
      const total = models.get(row.model) ?? { turns: 0, failed: 0, heals: 0, input_tokens: 0, cached_tokens: 0, output_tokens: 0 };
      for (const name of Object.keys(total)) total[name] += row[name];
      models.set(row.model, total);
    }
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Usage by model"><table class="list">
      <thead><tr><th scope="col">Model</th><th scope="col" class="num">Turns</th><th scope="col" class="num">Failed</th><th scope="col" class="num">Heals</th><th scope="col" class="num">Input</th><th scope="col" class="num">Cached</th><th scope="col" class="num">Output</th></tr></thead>
      <tbody>${[...models].map(([model, total]) => html`<tr><th scope="row">${safeText(model) || html`<span class="muted">compactions and added items, without a model of a request</span>`}</th><td class="num">${number(total.turns)}</td><td class="num">${number(total.failed)}</td><td class="num">${number(total.heals)}</td>
        <td class="num">${compactNumber(total.input_tokens)}</td><td class="num">${compactNumber(total.cached_tokens)}</td><td class="num">${compactNumber(total.output_tokens)}</td></tr>`)}</tbody></table></div>`;
  }
}
customElements.define("hf-usage", UsagePage);

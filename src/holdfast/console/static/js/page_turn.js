/** What the model was shown at one turn, whether that is proven, and what changed since before. */

import { html, nothing } from "../vendor/lit.js";
import { ApiError, get, post, segment } from "./api.js";
import { dateTime, duration, number, prettyJson, safeText } from "./format.js";
import { itemBody, kindOf } from "./items.js";
import { onOpen, subscribe } from "./live.js";
import { timeline } from "./timeline.js";
import { badge, empty, errorState, idText, loading, notify, PageElement } from "./ui.js";

/** @type {Record<string, string>} */
const CHANGES = {
  added: "added since the request before", compacted: "replaced by a summary", hidden: "no longer shown",
  placeholder: "replaced by a placeholder", shortened: "cut short", changed: "written differently",
  left_out: "left out", unchanged: "as before",
};
/** @type {Record<string, string>} */
const ORIGINS = {
  summary: "summary of earlier items", placeholder: "placeholder: the provider refused the item",
  synthetic_output: "made up: the call never got an output", shortened: "output cut short",
};
const MIN_FOLDED = 3;
const OPEN = new Set(["queued", "running", "requires_action"]);

class TurnPage extends PageElement {
  static properties = { turnId: { attribute: false } };

  constructor() {
    super();
    this.turnId = "";
    /** @type {any} */
    this.turn = null;
    /** @type {any} */
    this.shown = null;
    /** The attempt that was chosen; null for the last one. @type {number | null} */
    this.attemptNumber = null;
    this.isRaw = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.cleanups.push(subscribe((fact) => fact.turn_id === this.turnId && void this.load()));
    this.cleanups.push(onOpen(() => void this.load()));
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("turnId")) void this.load();
  }

  load() {
    return this.inOrder(this.read);
  }

  read = () => this.attempt(async () => {
    this.turn = await get(`/v1/turns/${segment(this.turnId)}`);
    const { attemptNumber } = this;
    const shown = await get(`/v1/turns/${segment(this.turnId)}/projection`, { attempt: attemptNumber, limit: 200 }).catch((error) => {
      if (!(error instanceof ApiError && error.code === "projection_not_found")) throw error;
      return null;
    });
    // Another request may have been chosen meanwhile.
    if (attemptNumber === this.attemptNumber) this.shown = shown;
  });

  async showEarlier() {
    const offset = Math.max(0, this.shown.input_offset - 200);
    const count = this.shown.input_offset - offset;
    await this.attempt(async () => {
      const page = await get(`/v1/turns/${segment(this.turnId)}/projection`, { attempt: this.attemptNumber, offset, limit: count });
      this.shown.request.input = [...page.request.input, ...this.shown.request.input];
      this.shown.items = [...page.items, ...this.shown.items];
      this.shown.input_offset = offset;
    });
  }

  async cancel() {
    try {
      await post(`/v1/turns/${segment(this.turnId)}/cancel`);
      notify("The turn was cancelled");
    } catch (error) {
      notify(error instanceof Error ? error.message : String(error));
    }
    void this.load();
  }

  updated() {
    if (this.turn && this.isConnected) document.title = `Turn ${this.turn.number} · Holdfast`;
  }

  render() {
    const turn = this.turn;
    if (!turn) return html`<h1 tabindex="-1">Turn</h1>${this.failure ? errorState(this.failure) : loading("Rebuilding the request from the log…")}`;
    return html`
      <nav class="crumbs" aria-label="Breadcrumb"><a href="#/sessions">Sessions</a> <span aria-hidden="true">/</span> <a href=${`#/sessions/${segment(turn.session_id)}`}>${idText(turn.session_id)}</a> <span aria-hidden="true">/</span></nav>
      <div class="page-head"><h1 tabindex="-1">Turn ${turn.number}: what the model was shown</h1> ${badge(turn.status)}
        <span class="spacer"></span>${OPEN.has(turn.status) ? html`<button type="button" class="button danger" @click=${this.cancel}>Cancel turn</button>` : nothing}</div>
      ${errorState(this.failure)}
      <dl class="facts">
        <div><dt>Accepted</dt><dd>${dateTime(turn.accepted_at)}</dd></div>
        <div><dt>Took</dt><dd>${duration(turn.duration_ms)}</dd></div>
        <div><dt>Source</dt><dd>${turn.source}</dd></div>
        <div><dt>Tokens</dt><dd>${number(turn.usage.input_tokens)} in · ${number(turn.usage.output_tokens)} out</dd></div>
        <div><dt>Cached</dt><dd>${number(turn.usage.cached_tokens)}</dd></div>
        <div><dt>Id</dt><dd><code class="break">${safeText(turn.id)}</code></dd></div>
      </dl>
      ${this.shown ? this.projection(this.shown) : empty("No request was sent to a model", "The turn waits, was cancelled before it ran, or only stored items.")}
      <section><h2>Runs</h2>${timeline([turn])}</section>`;
  }

  /** @param {any} shown */
  projection(shown) {
    const numbers = shown.attempts.map((/** @type {any} */ one) => one.number);
    return html`
      ${numbers.length > 1 ? html`<div class="toolbar"><div class="toolbar" role="group" aria-label="Request">${numbers.map((/** @type {number} */ one) => html`
        <button type="button" class="button small" aria-pressed=${shown.attempt === one} @click=${() => { this.attemptNumber = one; void this.load(); }}>Request ${one}</button>`)}</div>
        <a class="button small" href=${`#/compare/${segment(`${this.turnId}:${numbers[numbers.length - 2]}`)}/${segment(`${this.turnId}:${numbers[numbers.length - 1]}`)}`}>Compare the last two</a></div>` : nothing}
      <div class="columns">
        <section class="card"><h2>Change to the request before</h2>${this.difference(shown.difference)}</section>
        <section class="card"><h2>Provider state</h2>${this.state(shown.provider_state)}</section>
      </div>
      ${this.proof(shown)}
      <section><div class="row"><h2>The request</h2> <span class="muted">${number(shown.input_count)} items to ${safeText(shown.model)}${shown.upstream ? ` at ${safeText(shown.upstream)}` : ""}</span><span class="spacer"></span>
        <button type="button" class="button small" aria-pressed=${this.isRaw} @click=${() => { this.isRaw = !this.isRaw; this.requestUpdate(); }}>JSON</button></div>
        ${this.isRaw ? html`<div class="code"><hf-text .text=${prettyJson(shown.request)}></hf-text></div>` : this.request(shown)}</section>
      <section><h2>Attempts</h2>${this.attempts(shown.attempts)}</section>`;
  }

  /** @param {any} shown */
  proof(shown) {
    const { is_same: isSame, recorded, rebuilt } = shown.proof;
    const [tone, title, text] = isSame
      ? ["good", "Proven", "The request below was rebuilt from the log, and its digest is the one that was stored when it was sent. It is shown as the upstream's adapter got it; the API shows the body itself with wire=true."]
      : isSame === null
        ? ["quiet", "Not proven", "No digest was stored: the run still works, or it was cut off. The request below is what the log says."]
        : ["bad", "Not the same", "The log no longer holds what was sent: something was erased since, or the request was shortened for this call alone."];
    return html`<div class="proof ${tone}" role="note"><strong>${title}.</strong> ${text}
      <div class="small">stored <code>${recorded ?? "–"}</code> · rebuilt <code>${rebuilt}</code></div></div>`;
  }

  /** @param {any} difference */
  difference(difference) {
    const counts = /** @type {[string, number][]} */ (Object.entries(difference.counts));
    const causes = difference.changes.filter((/** @type {any} */ change) => change.cause);
    return html`
      ${difference.previous_turn_id ? nothing : html`<p class="muted">This is the first request of the session.</p>`}
      <ul class="plain-list">${counts.map(([name, count]) => html`<li>${badge(name)} <strong>${number(count)}</strong> ${CHANGES[name] ?? ""}</li>`)}</ul>
      ${difference.strips_encrypted_content ? html`<p>${badge("stripped", "warn")} Encrypted reasoning was left out: the provider had refused it.</p>` : nothing}
      ${difference.is_plain ? html`<p>${badge("plain", "warn")} Every item was sent in its plainest form.</p>` : nothing}
      ${causes.length ? html`<details class="fold"><summary>Why</summary><ul class="plain-list">${causes.slice(0, 200).map((/** @type {any} */ change) => html`<li>Item ${change.sequence}: ${safeText(change.change)} by record ${change.cause.record} (${safeText(change.cause.kind)}), ${dateTime(change.cause.created_at)}</li>`)}</ul></details>` : nothing}
      ${difference.previous_turn_id && difference.previous_turn_id !== this.turnId ? html`<p class="row"><a href=${`#/compare/${segment(difference.previous_turn_id)}/${segment(this.turnId)}`}>Compare with the request before</a> <a href=${`#/turns/${segment(difference.previous_turn_id)}`}>Show the request before</a></p>` : nothing}`;
  }

  /** @param {any} state */
  state(state) {
    return html`
      <p>${state.is_used ? html`${badge("used", "info")} The provider continued from its own memory up to item ${state.covers_sequence}; ${number(state.sent_items)} new items were sent.`
        : html`${badge("not used", "quiet")} The whole history was sent: ${number(state.sent_items)} items.`}</p>
      ${state.was_dropped ? html`<p>${badge("dropped", "warn")} An earlier attempt used state that the provider had lost. It was dropped, and the whole history was sent instead.</p>` : nothing}
      ${state.stored_now.length ? html`<p class="muted small">Stored now: ${state.stored_now.map((/** @type {any} */ one) => `${safeText(one.provider)} / ${safeText(one.model)} up to item ${one.covers_sequence}`).join("; ")}</p>` : html`<p class="muted small">Nothing is stored with a provider now.</p>`}`;
  }

  /** @param {any[]} attempts */
  attempts(attempts) {
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Attempts"><table class="list">
      <thead><tr><th scope="col" class="num">No.</th><th scope="col">Outcome</th><th scope="col">Model</th><th scope="col">Error</th><th scope="col">What was done</th></tr></thead>
      <tbody>${attempts.map((one) => html`<tr><td class="num">${one.number}</td><td>${badge(one.outcome)}</td>
        <td class="keep">${safeText(one.model)}<div class="muted small">${safeText(one.upstream ?? "")}</div></td>
        <td>${one.error ? html`<code>${safeText(one.error.code ?? one.error.failure_class)}</code> <span class="small">${safeText(one.error.message ?? "")}</span>` : html`<span class="muted">–</span>`}</td>
        <td>${one.action ? html`${safeText(one.action.kind).replaceAll("_", " ")}${one.action.next_model ? ` to ${safeText(one.action.next_model)}` : ""}${one.action.pause_seconds ? ` after ${one.action.pause_seconds} s` : ""}` : html`<span class="muted">–</span>`}</td></tr>`)}</tbody></table></div>`;
  }

  /** @param {any} shown */
  request(shown) {
    const { input, model, instructions, ...rest } = shown.request;
    const changed = new Map(shown.difference.changes.map((/** @type {any} */ change) => [change.sequence, change.change]));
    const parameters = Object.entries(rest);
    return html`
      ${instructions ? html`<article class="item system"><header class="item-head"><span class="item-kind">instructions</span></header><div class="item-body"><hf-text .text=${instructions}></hf-text></div></article>` : nothing}
      ${parameters.length ? html`<details class="fold"><summary>${parameters.length} other parameters</summary><pre class="code" tabindex="0" aria-label="Parameters"><code>${safeText(prettyJson(rest))}</code></pre></details>` : nothing}
      ${shown.input_offset > 0 ? html`<div class="older"><button type="button" class="button" @click=${this.showEarlier}>Show earlier items (${shown.input_offset} more)</button></div>` : nothing}
      ${this.requestItems(input.map((/** @type {any} */ item, /** @type {number} */ index) => ({ item, source: shown.items[index], change: changed.get(shown.items[index].sequence) })))}`;
  }

  /**
   * The items of a request, with those that are as before put together: the change comes first.
   * @param {{item: any, source: any, change: string | undefined}[]} listed
   */
  requestItems(listed) {
    /** @type {(typeof listed)[]} */
    const groups = [];
    for (const one of listed) {
      const last = groups[groups.length - 1];
      if (last && isAsBefore(last[0]) && isAsBefore(one)) last.push(one);
      else groups.push([one]);
    }
    return groups.map((group) => (group.length < MIN_FOLDED ? group.map(requestItem)
      : html`<details class="fold same-items"><summary>${number(group.length)} items as before</summary>${group.map(requestItem)}</details>`));
  }
}
customElements.define("hf-turn", TurnPage);

/** @param {{change: string | undefined}} one */
function isAsBefore({ change }) {
  return change === undefined || change === "unchanged";
}

/** @param {{item: any, source: any, change: string | undefined}} one */
function requestItem({ item, source, change }) {
  const origin = ORIGINS[source.origin];
  return html`<article class="item ${kindOf(item).replaceAll(" ", "-")} ${change === "added" ? "is-added" : ""}" aria-label=${kindOf(item)}>
    <header class="item-head"><span class="item-kind">${kindOf(item)}</span> <span class="muted">${source.sequence === null ? "not in the log" : `#${source.sequence}`}</span>
      ${change && change !== "unchanged" ? badge(change) : nothing} ${origin ? badge(origin, "info") : nothing}</header>
    <div class="item-body">${itemBody(item)}</div></article>`;
}

/** Two requests, or two sessions, side by side in one list: what is new, what is gone. */

import { html, nothing } from "../vendor/lit.js";
import { get, segment } from "./api.js";
import { difference, runs, wordDifference } from "./diff.js";
import { number, prettyJson, safeText, shortId } from "./format.js";
import { itemBody, kindOf, textOf } from "./items.js";
import { badge, empty, errorState, loading, PageElement } from "./ui.js";

const MAX_PAGES = 50;
const MIN_FOLDED = 3;
/** Fields of an item that say where it is stored, not what it says. */
const PLACES = new Set(["id", "status", "created_at"]);

/** @typedef {{title: string, href: string, items: any[], fields: Record<string, unknown> | null, isWhole: boolean}} Side */

class ComparePage extends PageElement {
  static properties = { left: { attribute: false }, right: { attribute: false } };

  constructor() {
    super();
    /** A turn, with ":" and the number of an attempt or without, or a session. */
    this.left = "";
    this.right = "";
    /** @type {Side[] | null} */
    this.sides = null;
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("left") || changed.has("right")) void this.load();
  }

  load() {
    return this.attempt(async () => {
      this.sides = await Promise.all([readSide(this.left), readSide(this.right)]);
    });
  }

  /** @param {any} event */
  choose(event) {
    event.preventDefault();
    const form = new FormData(event.target);
    const [left, right] = ["left", "right"].map((name) => String(form.get(name) ?? "").trim());
    if (left && right) location.hash = `#/compare/${segment(left)}/${segment(right)}`;
  }

  updated() {
    if (this.isConnected) document.title = "Compare · Holdfast";
  }

  render() {
    return html`<nav class="crumbs" aria-label="Breadcrumb"><a href="#/sessions">Sessions</a> <span aria-hidden="true">/</span></nav>
      <div class="page-head"><h1 tabindex="-1">Compare</h1></div>
      <form class="toolbar" @submit=${this.choose}>
        <label class="field grow"><span>Before: a turn, <code>turn_…:2</code> for its second request, or a session</span><input name="left" spellcheck="false" autocomplete="off" .value=${this.left}></label>
        <label class="field grow"><span>After</span><input name="right" spellcheck="false" autocomplete="off" .value=${this.right}></label>
        <button class="button" type="submit">Compare</button></form>
      ${errorState(this.failure)}
      ${this.sides && !this.failure ? this.comparison(this.sides) : this.failure ? nothing : loading("Reading both…")}`;
  }

  /** @param {Side[]} sides */
  comparison([left, right]) {
    const parts = difference(left.items, right.items, said);
    const count = (/** @type {string} */ kind) => parts.filter((part) => part.kind === kind).length;
    const link = (/** @type {Side} */ side) => html`<a href=${side.href}>${side.title}</a>`;
    return html`<p>From ${link(left)} to ${link(right)}: ${badge("added")} <strong>${number(count("added"))}</strong>
        ${badge("removed", "bad")} <strong>${number(count("removed"))}</strong> ${badge("the same", "quiet")} <strong>${number(count("same"))}</strong></p>
      ${left.isWhole && right.isWhole ? nothing : html`<p class="state">Only the newest items are compared: there are too many for one page.</p>`}
      ${this.fields(left.fields, right.fields)}
      ${parts.length ? html`<div class="compared">${paired(runs(parts)).map(changed)}</div>` : empty("Both are empty")}`;
  }

  /**
   * @param {Record<string, unknown> | null} left
   * @param {Record<string, unknown> | null} right
   */
  fields(left, right) {
    if (!left || !right) return nothing;
    const names = [...new Set([...Object.keys(left), ...Object.keys(right)])].filter((name) => JSON.stringify(left[name]) !== JSON.stringify(right[name]));
    if (!names.length) return html`<p class="muted">All other fields of the request are the same.</p>`;
    const cell = (/** @type {unknown} */ value) => (value === undefined ? html`<span class="muted">–</span>` : safeText(prettyJson(value).slice(0, 2000)));
    return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Fields that differ"><table class="list">
      <thead><tr><th scope="col">Field</th><th scope="col">Before</th><th scope="col">After</th></tr></thead>
      <tbody>${names.map((name) => html`<tr><th scope="row"><code>${safeText(name)}</code></th><td class="break">${cell(left[name])}</td><td class="break">${cell(right[name])}</td></tr>`)}</tbody></table></div>`;
  }
}
customElements.define("hf-compare", ComparePage);

/** What an item says, whatever its id. @param {any} item */
function said(item) {
  return JSON.stringify(item, (name, value) => (PLACES.has(name) ? undefined : value));
}

/**
 * @param {string} name
 * @returns {Promise<Side>}
 */
async function readSide(name) {
  return /^(turn|resp)_/.test(name) ? readRequest(name) : readSession(name);
}

/** @param {string} name */
async function readRequest(name) {
  const [id, attempt] = name.split(":");
  const shown = await get(`/v1/turns/${segment(id)}/projection`, { attempt });
  const { input, ...fields } = shown.request;
  const number_ = attempt ? `, request ${attempt}` : "";
  return { title: `turn ${shortId(id)}${number_}`, href: `#/turns/${segment(id)}`, items: input, fields, isWhole: shown.input_offset === 0 };
}

/** @param {string} id */
async function readSession(id) {
  const path = `/v1/sessions/${segment(id)}`;
  const session = await get(path);
  /** @type {any[]} */
  const items = [];
  let after;
  let hasMore = true;
  for (let page = 0; hasMore && page < MAX_PAGES; page += 1) {
    const listed = await get(`${path}/items`, { order: "desc", limit: 100, after });
    items.push(...listed.data);
    after = listed.last_id;
    hasMore = listed.has_more;
  }
  const title = session.key ?? `session ${shortId(id)}`;
  return { title: safeText(title), href: `#/sessions/${segment(id)}`, items: items.reverse(), fields: null, isWhole: !hasMore };
}

/** @typedef {{kind: string, values: any[], instead?: any[]}} Run */

/**
 * Put what was removed and what was added in its place together.
 * @param {Run[]} found
 */
function paired(found) {
  return found.flatMap((run, index) => {
    const [before, next] = [found[index - 1], found[index + 1]];
    if (run.kind === "removed" && next?.kind === "added") return [{ ...run, kind: "replaced", instead: next.values }];
    return run.kind === "added" && before?.kind === "removed" ? [] : [run];
  });
}

/** @param {Run} run */
function changed(run) {
  if (run.kind === "same" && run.values.length >= MIN_FOLDED) {
    return html`<details class="fold same-items"><summary>${number(run.values.length)} items are the same</summary>${run.values.map((item) => shown(item, "same"))}</details>`;
  }
  if (run.kind !== "replaced") return run.values.map((item) => shown(item, run.kind));
  const instead = run.instead ?? [];
  const isPair = run.values.length === instead.length;
  if (isPair) return run.values.map((item, index) => (kindOf(item) === kindOf(instead[index]) && textOf(item) ? inWords(item, instead[index]) : [shown(item, "removed"), shown(instead[index], "added")]));
  return [...run.values.map((item) => shown(item, "removed")), ...instead.map((item) => shown(item, "added"))];
}

/** @type {Record<string, [string, string]>} */
const MARKS = { same: ["", "quiet"], removed: ["removed", "bad"], added: ["added", "good"] };

/**
 * @param {any} item
 * @param {string} kind
 */
function shown(item, kind) {
  const [mark, tone] = MARKS[kind];
  return html`<article class="item ${kindOf(item).replaceAll(" ", "-")} is-${kind}" aria-label=${`${kindOf(item)}, ${mark || "the same"}`}>
    <header class="item-head"><span class="item-kind">${kindOf(item)}</span> ${mark ? badge(mark, tone) : nothing}</header>
    <div class="item-body">${itemBody(item)}</div></article>`;
}

/**
 * A message that says something else, word by word.
 * @param {any} before
 * @param {any} after
 */
function inWords(before, after) {
  const words = wordDifference(textOf(before), textOf(after));
  if (words === null) return [shown(before, "removed"), shown(after, "added")];
  const part = (/** @type {{kind: string, values: any[]}} */ run) => {
    const text = safeText(run.values.join(""));
    return run.kind === "added" ? html`<ins>${text}</ins>` : run.kind === "removed" ? html`<del>${text}</del>` : text;
  };
  return html`<article class="item ${kindOf(after)} is-changed" aria-label=${`${kindOf(after)}, changed`}>
    <header class="item-head"><span class="item-kind">${kindOf(after)}</span> ${badge("changed")}</header>
    <div class="item-body"><div class="plain" dir="auto">${runs(words).map(part)}</div></div></article>`;
}

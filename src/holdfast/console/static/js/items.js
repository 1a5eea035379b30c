/** Items of a transcript: what was said, called, answered and thought, and what became of it. */

import { html, nothing } from "../vendor/lit.js";
import { codeBlock, copyButton } from "./code.js";
import { dateTime, prettyJson, safeText, size } from "./format.js";
import { isMarkdownLoaded, link, loadMarkdown, markdown } from "./markdown.js";
import { badge, PageElement } from "./ui.js";

const FIRST_SHOWN = 20_000;
const SHOWN_STEP = 200_000;
const RASTER = /^data:image\/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+$/;

/** Text of any length: the beginning at once, the rest in steps. */
class LongText extends PageElement {
  static properties = { text: { attribute: false }, isMarkdown: { attribute: false } };

  constructor() {
    super();
    this.text = "";
    this.isMarkdown = false;
    this.shown = FIRST_SHOWN;
  }

  willUpdate() {
    if (this.isMarkdown && !isMarkdownLoaded()) void loadMarkdown().then(() => this.requestUpdate());
  }

  render() {
    const text = String(this.text ?? "");
    const part = text.slice(0, this.shown);
    // Only a short beginning is formatted: the work grows with what can be seen.
    const body = this.isMarkdown && isMarkdownLoaded() && this.shown === FIRST_SHOWN
      ? html`<div class="markdown" dir="auto">${markdown(part)}</div>`
      : html`<div class="plain" dir="auto">${safeText(part)}</div>`;
    if (text.length <= this.shown) return body;
    return html`${body}<button type="button" class="button small" @click=${this.more}>
      Show more (${size(text.length - this.shown)} left)</button>`;
  }

  more() {
    this.shown += SHOWN_STEP;
    this.requestUpdate();
  }
}
customElements.define("hf-text", LongText);

/**
 * @param {string} text
 * @param {boolean} [isMarkdown]
 */
export const longText = (text, isMarkdown = false) => html`<hf-text .text=${text} .isMarkdown=${isMarkdown}></hf-text>`;

/**
 * @param {any} value
 * @param {string} label
 */
function jsonBlock(value, label) {
  const text = prettyJson(value);
  if (text.length > FIRST_SHOWN) return html`<div class="code">${longText(text)}</div>`;
  return codeBlock(text, /^[[{]/.test(text) ? "json" : "", label);
}

/**
 * @param {any} part
 * @param {boolean} isMarkdown
 */
function contentPart(part, isMarkdown) {
  if (typeof part === "string") return longText(part, isMarkdown);
  switch (part?.type) {
    case "input_text":
    case "output_text":
    case "text":
      return longText(part.text ?? "", isMarkdown);
    case "refusal":
      return html`<p class="refusal">${badge("refusal", "warn")} ${safeText(part.refusal)}</p>`;
    case "input_image": {
      const url = typeof part.image_url === "string" ? part.image_url : part.image_url?.url ?? "";
      if (RASTER.test(url)) return html`<img class="attachment" src=${url} alt="Attached image" loading="lazy">`;
      return html`<p>${badge("image", "quiet")} ${url.startsWith("data:") ? "An image that cannot be shown" : link(url, safeText(url).slice(0, 200))}</p>`;
    }
    case "input_file":
      return html`<p>${badge("file", "quiet")} ${safeText(part.filename ?? part.file_id ?? "unnamed")}</p>`;
    default:
      return jsonBlock(part, "Content");
  }
}

/** @param {any} item */
function messageBody(item) {
  const isMarkdown = item.role === "assistant";
  const content = Array.isArray(item.content) ? item.content : [item.content];
  return content.map((/** @type {any} */ part) => contentPart(part, isMarkdown));
}

/** The text of a message, for copying. @param {any} item */
export function textOf(item) {
  if ((item?.type ?? "message") !== "message") return "";
  if (typeof item.content === "string") return item.content;
  return (item.content ?? []).filter((/** @type {any} */ part) => part?.text !== undefined).map((/** @type {any} */ part) => part.text).join("\n");
}

/** @param {any} item */
function reasoningBody(item) {
  const parts = [...(item.summary ?? []), ...(item.content ?? [])].map((part) => part.text ?? "").filter(Boolean);
  return html`<details class="fold"><summary>Reasoning ${item.encrypted_content ? badge("encrypted", "quiet") : nothing}</summary>
    ${parts.length ? parts.map((text) => longText(text, true)) : html`<p class="muted">The provider shows no text of it.</p>`}</details>`;
}

/** @param {any} item */
function callBody(item) {
  const { arguments: given, input, action, ...rest } = item;
  const name = item.name ?? item.server_label ?? item.type;
  return html`<details class="fold"><summary><span class="call-name">${safeText(name)}</span> ${item.status && item.status !== "completed" ? badge(item.status) : nothing}</summary>
    ${jsonBlock(given ?? input ?? action ?? rest, "Arguments")}</details>`;
}

/** A call that the gateway or the provider ran itself: with its output or its error. @param {any} item */
function ranCallBody(item) {
  const failure = item.error && (typeof item.error === "string" ? item.error : item.error.message ?? prettyJson(item.error));
  return html`${callBody(item)}
    ${failure ? html`<p>${badge("failed")} ${safeText(failure)}</p>` : nothing}
    ${item.output == null ? nothing : outputBody(item)}`;
}

/** @param {any} item */
function toolListBody(item) {
  const tools = item.tools ?? [];
  return html`<details class="fold"><summary>${tools.length === 1 ? "1 tool" : `${tools.length} tools`} of <span class="call-name">${safeText(item.server_label)}</span>
    ${item.error ? badge("failed") : nothing}</summary>
    ${item.error ? jsonBlock(item.error, "Error") : nothing}
    <ul>${tools.slice(0, 200).map((/** @type {any} */ tool) => html`<li><span class="call-name">${safeText(tool?.name)}</span> ${safeText(String(tool?.description ?? "").slice(0, 300))}</li>`)}</ul></details>`;
}

/** @param {any} item */
function approvalBody(item) {
  return html`<p>${item.approve ? badge("allowed", "good") : badge("denied", "warn")} ${safeText(item.reason ?? "")}</p>`;
}

/** @param {any} item */
function outputBody(item) {
  const output = item.output ?? item;
  const text = typeof output === "string" ? output : prettyJson(output);
  return html`<details class="fold" ?open=${text.length < 400}><summary>Output <span class="muted">${size(text.length)}</span></summary>
    <div class="code">${longText(text)}</div></details>`;
}

/**
 * Return who or what an item is from.
 * @param {any} item
 */
export function kindOf(item) {
  const type = item?.type ?? "message";
  if (type === "message") return item.role ?? "message";
  if (type.endsWith("_output")) return "tool output";
  if (type.endsWith("_call")) return "tool call";
  if (type === "mcp_list_tools") return "tools";
  if (type === "mcp_approval_request") return "approval needed";
  if (type === "mcp_approval_response") return "approval";
  return safeText(type).replaceAll("_", " ");
}

/** @param {any} item */
export function itemBody(item) {
  const type = item?.type ?? "message";
  if (type === "message") return messageBody(item);
  if (type === "reasoning") return reasoningBody(item);
  if (type === "mcp_list_tools") return toolListBody(item);
  if (type === "mcp_approval_request") return callBody(item);
  if (type === "mcp_approval_response") return approvalBody(item);
  if (type === "mcp_call") return ranCallBody(item);
  if (type.endsWith("_output")) return outputBody(item);
  if (type.endsWith("_call")) return callBody(item);
  if (type === "compaction") return html`<p class="muted">A summary that stands for earlier items.</p>`;
  return jsonBlock(item, "Item");
}

/** @type {Record<string, string>} */
const HIDDEN_BY = {
  rewind: "replaced by an edit or a regenerate", rollback: "rolled back", retry: "replaced by another attempt",
  hide: "hidden", pop: "taken back", move: "moved", replace: "replaced",
};

/**
 * One entry of the log.
 * @param {any} entry
 * @param {{actions?: unknown}} [options]
 */
export function logEntry(entry, options = {}) {
  const item = entry.item;
  const kind = kindOf(item);
  const hidden = entry.hidden_by;
  return html`<article class="item ${kind.replaceAll(" ", "-")} ${hidden ? "is-hidden" : ""}" data-sequence=${entry.sequence} aria-label=${`${kind}, item ${entry.sequence}`}>
    <header class="item-head">
      <span class="item-kind">${kind}</span>
      <span class="muted">#${entry.sequence}</span>
      ${entry.is_partial ? badge("torn: the answer broke off", "warn") : nothing}
      ${hidden ? html`<span title=${dateTime(hidden.created_at)}>${badge(`hidden: ${HIDDEN_BY[hidden.kind] ?? hidden.kind}`, "warn")}</span>` : nothing}
      <span class="spacer"></span>${textOf(item) ? copyButton(`Copy item ${entry.sequence}`, () => textOf(item)) : nothing}${options.actions ?? nothing}
    </header>
    <div class="item-body">${itemBody(item)}</div>
  </article>`;
}

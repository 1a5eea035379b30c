/**
 * Markdown as Lit templates. A library reads it; there is no HTML in between: what a model writes
 * becomes text nodes and a small set of elements, and links go to the web or to mail only.
 */

import { html, nothing } from "../vendor/lit.js";
import { codeBlock } from "./code.js";
import { safeText } from "./format.js";

const MAX_NESTING = 20;

/** @type {import("../vendor/markdown.js").MarkdownIt | null} */
let parser = null;
/** @type {Promise<void> | undefined} */
let loading;

/** Load the library; what is shown before is plain text. */
export function loadMarkdown() {
  loading ??= import("../vendor/markdown.js").then(({ MarkdownIt }) => {
    const found = new MarkdownIt("default", { html: false, linkify: true, maxNesting: MAX_NESTING });
    // Only addresses with a scheme: "readme.md" is a name of a file.
    found.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
    found.validateLink = (address) => safeHref(address) !== null;
    parser = found;
  });
  return loading;
}

export const isMarkdownLoaded = () => parser !== null;

/**
 * Return an address that a link may have; null for any other scheme.
 * @param {string} address
 */
export function safeHref(address) {
  try {
    const url = new URL(address);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * @param {string} address
 * @param {unknown} label
 */
export function link(address, label) {
  const href = safeHref(address);
  if (href === null) return html`<span class="dead-link" title="This link was not made clickable">${label}</span>`;
  return html`<a href=${href} target="_blank" rel="noopener noreferrer nofollow">${label}</a>`;
}

/**
 * Return text as templates.
 * @param {string} text
 * @returns {unknown}
 */
export function markdown(text) {
  return parser === null ? safeText(text) : nested(parser.parse(text, {}));
}

/** @typedef {import("../vendor/markdown.js").Token} Token */

/**
 * Return a flat list of tokens, of which some open and close elements, as templates.
 * @param {Token[]} tokens
 */
function nested(tokens) {
  /** @type {{token: Token | null, inner: unknown[]}[]} */
  const open = [{ token: null, inner: [] }];
  for (const token of tokens) {
    if (token.nesting === 1) open.push({ token, inner: [] });
    else if (token.nesting === 0) open[open.length - 1].inner.push(leaf(token));
    else {
      const { token: opened, inner } = /** @type {{token: Token, inner: unknown[]}} */ (open.pop());
      open[open.length - 1].inner.push(element(opened, inner));
    }
  }
  return open[0].inner;
}

/** @param {Token} token */
function leaf(token) {
  switch (token.type) {
    case "inline":
      return nested(token.children ?? []);
    case "softbreak":
      return "\n";
    case "hardbreak":
      return html`<br>`;
    case "hr":
      return html`<hr>`;
    case "code_inline":
      return html`<code>${safeText(token.content)}</code>`;
    case "fence":
    case "code_block":
      return codeBlock(token.content.replace(/\n$/, ""), token.info.trim().split(/\s/)[0]);
    case "image":
      return link(token.attrGet("src") ?? "", `Image: ${safeText(token.content) || safeText(token.attrGet("src"))}`);
    default:
      return safeText(token.content);
  }
}

/**
 * @param {Token} token
 * @param {unknown} inner
 */
function element(token, inner) {
  switch (token.tag) {
    case "p":
      return token.hidden ? inner : html`<p dir="auto">${inner}</p>`;
    case "ul":
      return html`<ul dir="auto">${inner}</ul>`;
    case "ol":
      return html`<ol dir="auto" start=${token.attrGet("start") ?? nothing}>${inner}</ol>`;
    case "li":
      return html`<li>${inner}</li>`;
    case "blockquote":
      return html`<blockquote dir="auto">${inner}</blockquote>`;
    case "strong":
      return html`<strong>${inner}</strong>`;
    case "em":
      return html`<em>${inner}</em>`;
    case "s":
      return html`<s>${inner}</s>`;
    case "a":
      return link(token.attrGet("href") ?? "", inner);
    case "table":
      return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Table"><table dir="auto">${inner}</table></div>`;
    case "thead":
      return html`<thead>${inner}</thead>`;
    case "tbody":
      return html`<tbody>${inner}</tbody>`;
    case "tr":
      return html`<tr>${inner}</tr>`;
    case "th":
      return html`<th scope="col" class=${alignment(token)}>${inner}</th>`;
    case "td":
      return html`<td class=${alignment(token)}>${inner}</td>`;
    default:
      // A heading of a message is not one of the page: it only looks like one.
      return /^h[1-6]$/.test(token.tag) ? html`<p dir="auto" class="md-heading level-${token.tag[1]}">${inner}</p>` : inner;
  }
}

/** @param {Token} token */
function alignment(token) {
  const side = /text-align:(left|center|right)/.exec(token.attrGet("style") ?? "");
  return side ? `align-${side[1]}` : "";
}

/**
 * Markdown as Lit templates. There is no HTML in between: what a model writes becomes text nodes
 * and a small set of elements, and links go to the web or to mail only.
 */

import { html, nothing } from "../vendor/lit.js";
import { safeText } from "./format.js";

const MAX_DEPTH = 8;
const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)\s*$/;
const LIST = /^( {0,9})([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const INLINE = new RegExp(
  [
    "(?<code>`+)(?<codeText>[^`][\\s\\S]{0,4000}?)\\k<code>(?!`)",
    "!\\[(?<alt>[^\\]\\n]{0,400})\\]\\((?<src>[^)\\s]{1,1000})(?:\\s+\"[^\"\\n]*\")?\\)",
    "\\[(?<label>[^\\]\\n]{1,800})\\]\\((?<href>[^)\\s]{1,1000})(?:\\s+\"[^\"\\n]*\")?\\)",
    "\\*\\*(?<strong>[^\\s*](?:[^\\n]{0,2000}?[^\\s*])?)\\*\\*",
    "~~(?<strike>[^~\\n]{1,2000})~~",
    "(?<![\\w*])\\*(?<em>[^\\s*](?:[^*\\n]{0,1000}?[^\\s*])?)\\*(?![\\w*])",
    "(?<![\\w_])_(?<em2>[^\\s_](?:[^_\\n]{0,1000}?[^\\s_])?)_(?![\\w_])",
    "(?<url>https?://[^\\s<>()\\[\\]\"']{1,2000}[^\\s<>()\\[\\]\"'.,;:!?])",
  ].join("|"),
  "gu",
);

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
 * @param {number} [depth]
 * @returns {unknown[]}
 */
export function markdown(text, depth = 0) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  /** @type {unknown[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const [block, next] = readBlock(lines, at, depth);
    if (block !== nothing) blocks.push(block);
    at = next;
  }
  return blocks;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {[unknown, number]}
 */
function readBlock(lines, at, depth) {
  const line = lines[at];
  if (!line.trim()) return [nothing, at + 1];
  const fence = FENCE.exec(line);
  if (fence) return readFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return [headingOf(heading[1].length, inline(heading[2])), at + 1];
  if (RULE.test(line)) return [html`<hr>`, at + 1];
  if (depth < MAX_DEPTH && /^ {0,3}>/.test(line)) return readQuote(lines, at, depth);
  if (depth < MAX_DEPTH && LIST.test(line)) return readList(lines, at, depth);
  if (line.includes("|") && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1])) return readTable(lines, at);
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !startsBlock(lines[end])) end += 1;
  return [html`<p>${inline(lines.slice(at, end).join("\n"))}</p>`, end];
}

/** @param {string} line */
function startsBlock(line) {
  return FENCE.test(line) || HEADING.test(line) || /^ {0,3}>/.test(line) || LIST.test(line);
}

/**
 * A heading of a message is not one of the page: it only looks like one.
 * @param {number} level
 * @param {unknown} content
 */
function headingOf(level, content) {
  return html`<p class="md-heading level-${level}">${content}</p>`;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {RegExpExecArray} fence
 * @returns {[unknown, number]}
 */
function readFence(lines, at, fence) {
  const mark = fence[1];
  let end = at + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(mark) && !lines[end].trim().slice(mark.length).trim())) end += 1;
  const code = lines.slice(at + 1, end).join("\n");
  const block = html`<pre class="code" tabindex="0" aria-label=${fence[2] ? `Code, ${fence[2]}` : "Code"}><code>${safeText(code)}</code></pre>`;
  return [block, end + 1];
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {[unknown, number]}
 */
function readQuote(lines, at, depth) {
  let end = at;
  const inner = [];
  while (end < lines.length && /^ {0,3}>/.test(lines[end])) inner.push(lines[end++].replace(/^ {0,3}> ?/, ""));
  return [html`<blockquote>${markdown(inner.join("\n"), depth + 1)}</blockquote>`, end];
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {[unknown, number]}
 */
function readList(lines, at, depth) {
  const first = /** @type {RegExpExecArray} */ (LIST.exec(lines[at]));
  const isOrdered = /\d/.test(first[2]);
  const indent = first[1].length;
  /** @type {string[][]} */
  const entries = [];
  let end = at;
  while (end < lines.length) {
    const found = LIST.exec(lines[end]);
    if (found && found[1].length <= indent + 1 && /\d/.test(found[2]) === isOrdered) entries.push([found[3]]);
    else if (lines[end].trim() && /^\s{2,}/.test(lines[end])) entries[entries.length - 1].push(lines[end].slice(indent + 2));
    else if (!lines[end].trim() && end + 1 < lines.length && (LIST.test(lines[end + 1]) || /^\s{2,}\S/.test(lines[end + 1]))) entries[entries.length - 1].push("");
    else break;
    end += 1;
  }
  const items = entries.map((entry) =>
    entry.length === 1 ? html`<li>${inline(entry[0])}</li>` : html`<li>${markdown(entry.join("\n"), depth + 1)}</li>`);
  return [isOrdered ? html`<ol>${items}</ol>` : html`<ul>${items}</ul>`, end];
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @returns {[unknown, number]}
 */
function readTable(lines, at) {
  const cells = (/** @type {string} */ line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const head = cells(lines[at]);
  let end = at + 2;
  const rows = [];
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) rows.push(cells(lines[end++]));
  const table = html`<div class="table-scroll" tabindex="0" role="region" aria-label="Table"><table>
    <thead><tr>${head.map((cell) => html`<th scope="col">${inline(cell)}</th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr>${head.map((_, index) => html`<td>${inline(row[index] ?? "")}</td>`)}</tr>`)}</tbody>
  </table></div>`;
  return [table, end];
}

/**
 * @param {string} text
 * @param {number} [depth]
 * @returns {unknown[]}
 */
function inline(text, depth = 0) {
  /** @type {unknown[]} */
  const found = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    const groups = match.groups ?? {};
    if (match.index > last) found.push(safeText(text.slice(last, match.index)));
    last = match.index + match[0].length;
    found.push(inlineOf(groups, depth) ?? safeText(match[0]));
  }
  if (last < text.length) found.push(safeText(text.slice(last)));
  return found;
}

/**
 * @param {Record<string, string>} groups
 * @param {number} depth
 */
function inlineOf(groups, depth) {
  const inner = (/** @type {string} */ part) => (depth < 4 ? inline(part, depth + 1) : safeText(part));
  if (groups.codeText !== undefined) return html`<code>${safeText(groups.codeText)}</code>`;
  if (groups.src !== undefined) return link(groups.src, `Image: ${safeText(groups.alt) || safeText(groups.src)}`);
  if (groups.href !== undefined) return link(groups.href, safeText(groups.label));
  if (groups.strong !== undefined) return html`<strong>${inner(groups.strong)}</strong>`;
  if (groups.strike !== undefined) return html`<s>${inner(groups.strike)}</s>`;
  if (groups.em !== undefined) return html`<em>${inner(groups.em)}</em>`;
  if (groups.em2 !== undefined) return html`<em>${inner(groups.em2)}</em>`;
  if (groups.url !== undefined) return link(groups.url, safeText(groups.url));
  return null;
}

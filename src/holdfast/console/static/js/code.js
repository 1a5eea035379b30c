/** Code with its colours and a button that copies it. */

import { html, nothing } from "../vendor/lit.js";
import { safeText } from "./format.js";
import { notify, PageElement } from "./ui.js";

const MAX_COLOURED = 20_000;

/** @type {typeof import("../vendor/highlight.js").highlight | null} */
let highlighter = null;
/** @type {Promise<void> | undefined} */
let loading;

function load() {
  loading ??= import("../vendor/highlight.js").then(({ highlight }) => { highlighter = highlight; });
  return loading;
}

/**
 * Copy a text; pages without a secure context have no clipboard.
 * @param {string} text
 */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify("Copied");
  } catch {
    notify("The browser did not allow to copy; select the text instead.");
  }
}

/**
 * @param {string} label
 * @param {() => string} text
 */
export function copyButton(label, text) {
  return html`<button type="button" class="button small quiet copy" aria-label=${label} @click=${() => copy(text())}>Copy</button>`;
}

class Code extends PageElement {
  static properties = { text: { attribute: false }, language: { attribute: false }, label: { attribute: false } };

  constructor() {
    super();
    this.text = "";
    this.language = "";
    this.label = "";
  }

  get isColoured() {
    return this.language !== "" && this.text.length <= MAX_COLOURED;
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("language") && this.isColoured && highlighter === null) void load().then(() => this.requestUpdate());
  }

  render() {
    const label = this.label || (this.language ? `Code, ${safeText(this.language)}` : "Code");
    return html`<div class="code-box"><div class="code-head">${this.label ? nothing : html`<span>${safeText(this.language)}</span>`}<span class="spacer"></span>
        ${copyButton(`Copy ${label.toLowerCase()}`, () => this.text)}</div>
      <pre class="code" dir="ltr" tabindex="0" role="region" aria-label=${label}><code>${this.coloured()}</code></pre></div>`;
  }

  coloured() {
    if (!this.isColoured || !highlighter?.getLanguage(this.language)) return safeText(this.text);
    const { _emitter: { rootNode } } = highlighter.highlight(this.text, { language: this.language, ignoreIllegals: true });
    return spans(rootNode);
  }
}
customElements.define("hf-code", Code);

/** The parts of a highlighted text, without HTML in between. @param {import("../vendor/highlight.js").Scope} node */
function spans(node) {
  /** @type {unknown[]} */
  const shown = node.children.map((one) => {
    if (typeof one === "string") return safeText(one);
    return one.scope ? html`<span class="hl-${one.scope.split(".")[0]}">${spans(one)}</span>` : spans(one);
  });
  return shown;
}

/**
 * @param {string} text
 * @param {string} [language]
 * @param {string} [label]
 */
export const codeBlock = (text, language = "", label = "") => html`<hf-code .text=${text} .language=${language} .label=${label}></hf-code>`;

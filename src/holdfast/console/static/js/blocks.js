/** A long list in blocks: a block far from the screen is an empty box of its own height. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { PageElement } from "./ui.js";

const NEAR = "1200px";
const ENTRY_HEIGHT = 96;

/** @type {IntersectionObserver | undefined} */
let observer;

function nearScreen() {
  observer ??= new IntersectionObserver((seen) => {
    for (const entry of seen) /** @type {Block} */ (entry.target).setNear(entry.isIntersecting, entry.boundingClientRect.height);
  }, { rootMargin: `${NEAR} 0px` });
  return observer;
}

class Block extends PageElement {
  static properties = { entries: { attribute: false }, template: { attribute: false } };

  constructor() {
    super();
    /** @type {any[]} */
    this.entries = [];
    /** @type {(entry: any) => unknown} */
    this.template = () => nothing;
    this.isNear = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.style.minHeight = `${this.entries.length * ENTRY_HEIGHT}px`;
    nearScreen().observe(this);
    this.cleanups.push(() => nearScreen().unobserve(this));
  }

  /**
   * @param {boolean} isNear
   * @param {number} height
   */
  setNear(isNear, height) {
    if (isNear === this.isNear) return;
    this.isNear = isNear;
    this.style.minHeight = isNear ? "0" : `${height}px`;
    this.requestUpdate();
  }

  render() {
    return this.isNear ? repeat(this.entries, (entry) => entry.id, this.template) : nothing;
  }
}
customElements.define("hf-block", Block);

const BLOCK_SIZE = 25;

/** The name of the block of an entry. @param {number} sequence */
export const blockOf = (sequence) => Math.floor(sequence / BLOCK_SIZE);

/**
 * Return a long list. Entries are in the order of their `sequence`, which names their block.
 * @param {any[]} entries
 * @param {(entry: any) => unknown} template
 */
export function blocks(entries, template) {
  /** @type {Map<number, any[]>} */
  const found = new Map();
  for (const entry of entries) {
    const name = blockOf(entry.sequence);
    const block = found.get(name);
    if (block) block.push(entry);
    else found.set(name, [entry]);
  }
  return repeat(found, ([name]) => name, ([name, block]) => html`<hf-block data-name=${name} .entries=${block} .template=${template}></hf-block>`);
}

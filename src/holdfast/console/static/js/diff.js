/** What two lists have in common and what not; and, in words, two texts. */

const MAX_CELLS = 4_000_000;
const MAX_WORDS = 1500;

/** @typedef {{kind: "same" | "removed" | "added", value: any}} Part */

/**
 * Return the shortest way from one list to another. Very different, very long lists are replaced
 * as a whole between their common ends.
 * @param {any[]} left
 * @param {any[]} right
 * @param {(value: any) => string} key
 * @returns {Part[]}
 */
export function difference(left, right, key) {
  const names = [left.map(key), right.map(key)];
  let head = 0;
  while (head < left.length && head < right.length && names[0][head] === names[1][head]) head += 1;
  let tail = 0;
  while (tail < left.length - head && tail < right.length - head && names[0][left.length - 1 - tail] === names[1][right.length - 1 - tail]) tail += 1;
  /** @param {any[]} values @returns {Part[]} */
  const same = (values) => values.map((value) => ({ kind: "same", value }));
  const [a, b] = [left.slice(head, left.length - tail), right.slice(head, right.length - tail)];
  return [...same(right.slice(0, head)), ...middle(a, b, key), ...same(right.slice(right.length - tail))];
}

/**
 * @param {any[]} left
 * @param {any[]} right
 * @param {(value: any) => string} key
 * @returns {Part[]}
 */
function middle(left, right, key) {
  /** @type {Part[]} */
  const removed = left.map((value) => ({ kind: "removed", value }));
  /** @type {Part[]} */
  const added = right.map((value) => ({ kind: "added", value }));
  if (!left.length || !right.length || left.length * right.length > MAX_CELLS) return [...removed, ...added];
  const [a, b] = [left.map(key), right.map(key)];
  const width = b.length + 1;
  // The length of the longest common part of what begins at each pair of places.
  const common = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = a[i] === b[j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
    }
  }
  /** @type {Part[]} */
  const parts = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) parts.push({ kind: "same", value: right[(i += 1, j++)] });
    else if (i < a.length && (j === b.length || common[(i + 1) * width + j] >= common[i * width + j + 1])) parts.push(removed[i++]);
    else parts.push(added[j++]);
  }
  return parts;
}

/**
 * Return the words of two texts, or null if they are too long to be compared.
 * @param {string} left
 * @param {string} right
 */
export function wordDifference(left, right) {
  const [a, b] = [left, right].map((text) => text.match(/\s+|[^\s]+/g) ?? []);
  return a.length > MAX_WORDS || b.length > MAX_WORDS ? null : difference(a, b, String);
}

/**
 * Put parts of one kind together.
 * @param {Part[]} parts
 * @returns {{kind: Part["kind"], values: any[]}[]}
 */
export function runs(parts) {
  /** @type {{kind: Part["kind"], values: any[]}[]} */
  const found = [];
  for (const { kind, value } of parts) {
    const last = found[found.length - 1];
    if (last?.kind === kind) last.values.push(value);
    else found.push({ kind, values: [value] });
  }
  return found;
}

/** Text, numbers and times as people read them. Text of others is never trusted. */

/** Controls, marks of direction, characters without a shape, and the invisible copy of ASCII (tags). */
const UNSAFE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
/** More marks on one letter than any script writes; they would be drawn over what is above and below. */
const STACKED = /(\p{M}{6})(\p{M}+)/gu;

/**
 * Return text with invisible and direction-changing characters made visible.
 * @param {unknown} value
 */
export function safeText(value) {
  const text = typeof value === "string" ? value : value == null ? "" : JSON.stringify(value);
  return text.replace(STACKED, (_, kept, more) => `${kept}[+${[...more].length} marks]`).replace(UNSAFE, (one) => {
    const code = one.codePointAt(0) ?? 0;
    return `[U+${code.toString(16).toUpperCase().padStart(4, "0")}]`;
  });
}

/**
 * Return a short form of an id: its prefix and its end.
 * @param {string | null | undefined} id
 */
export function shortId(id) {
  const text = safeText(id ?? "");
  return text.length > 16 ? `${text.slice(0, 4)}…${text.slice(-6)}` : text;
}

const WHOLE = new Intl.NumberFormat("en");
const COMPACT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** @param {number | null | undefined} value */
export function number(value) {
  return value == null ? "–" : WHOLE.format(value);
}

/** @param {number | null | undefined} value */
export function compactNumber(value) {
  return value == null ? "–" : COMPACT.format(value);
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1024) return `${bytes} B`;
  if (bytes < 1024 * 1024) return `${(bytes / 1024).toFixed(1)} KB`;
  return `${(bytes / 1024 / 1024).toFixed(1)} MB`;
}

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms == null) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.round((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.round((ms % 3_600_000) / 60_000)} min`;
}

/** @param {number | null | undefined} seconds */
export function dateTime(seconds) {
  if (seconds == null) return "–";
  const date = new Date(seconds * 1000);
  return date.toLocaleString(undefined, {
    year: "numeric", month: "short", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
}

/** @param {number | null | undefined} seconds */
export function ago(seconds) {
  if (seconds == null) return "never";
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  if (passed < 10) return "just now";
  if (passed < 60) return `${Math.floor(passed)} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return `${Math.floor(passed / 86_400)} d ago`;
}

/** Return a random id; `randomUUID` exists in secure contexts only. */
export function randomId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {unknown} value */
export function prettyJson(value) {
  if (typeof value === "string") {
    try {
      return JSON.stringify(JSON.parse(value), null, 2);
    } catch {
      return value;
    }
  }
  return JSON.stringify(value, null, 2) ?? "";
}

/** The client of the public API: requests, event streams, and the API key of this tab. */

const KEY = "holdfast.api-key";
/** What a header may carry; a browser refuses to send the rest. */
const SENDABLE = /^[\x21-\x7e]*$/;

export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} code
   * @param {string} message
   */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }

  /** Whether the gateway does not have the endpoint at all. */
  get isMissing() {
    return this.code === "unknown_url" || this.status === 405;
  }
}

/** The key is kept in memory; in session storage only if its owner asked for that. */
let apiKey = sessionStorage.getItem(KEY) ?? "";

/**
 * @param {string} key
 * @param {boolean} remember
 */
export function signIn(key, remember) {
  apiKey = key.trim();
  if (remember) sessionStorage.setItem(KEY, apiKey);
  else sessionStorage.removeItem(KEY);
  window.dispatchEvent(new CustomEvent("holdfast:key"));
}

export function signOut() {
  apiKey = "";
  sessionStorage.removeItem(KEY);
  window.dispatchEvent(new CustomEvent("holdfast:key"));
}

export function hasKey() {
  return apiKey !== "";
}

/**
 * @param {string} path
 * @param {RequestInit & {json?: unknown}} [options]
 */
async function send(path, options = {}) {
  const { json, ...init } = options;
  const headers = new Headers(init.headers);
  const key = apiKey;
  if (!SENDABLE.test(key)) throw new ApiError(401, "invalid_api_key", "This is no API key: it has characters that no key has.");
  if (key) headers.set("Authorization", `Bearer ${key}`);
  if (json !== undefined) {
    headers.set("Content-Type", "application/json");
    init.body = JSON.stringify(json);
  }
  let answer;
  try {
    answer = await fetch(path, { ...init, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The gateway cannot be reached.");
  }
  if (answer.ok) return answer;
  const failure = await readFailure(answer);
  // A late refusal of an earlier key says nothing about this one.
  if (answer.status === 401 && key === apiKey) window.dispatchEvent(new CustomEvent("holdfast:unauthorized"));
  throw failure;
}

/** @param {Response} answer */
async function readFailure(answer) {
  try {
    const { error } = await answer.json();
    return new ApiError(answer.status, error.code ?? "", error.message ?? answer.statusText);
  } catch {
    return new ApiError(answer.status, "", `${answer.status} ${answer.statusText}`);
  }
}

/**
 * Return the JSON that a GET answers.
 * @param {string} path
 * @param {Record<string, string | number | boolean | null | undefined>} [query]
 * @returns {Promise<any>}
 */
export async function get(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return (await send(given.length ? `${path}?${search}` : path)).json();
}

/**
 * @param {string} path
 * @param {unknown} [json]
 * @param {Record<string, string>} [headers]
 * @returns {Promise<any>}
 */
export async function post(path, json, headers = {}) {
  return (await send(path, { method: "POST", json: json ?? {}, headers })).json();
}

/**
 * Allow or deny a tool call; its first answer counts.
 * @param {string} id
 * @param {boolean} approve
 * @returns {Promise<any>}
 */
export function answerApproval(id, approve) {
  return post(`/v1/approvals/${segment(id)}`, { approve }).catch((error) => {
    if (error.code === "approval_not_found") throw new Error("This call was answered before, or does not wait any more.");
    throw error;
  });
}

/**
 * @param {string} path
 * @returns {Promise<any>}
 */
export async function remove(path) {
  return (await send(path, { method: "DELETE" })).json();
}

/** @param {string} path */
export const segment = (path) => encodeURIComponent(path);

/**
 * Yield the events of a stream as they arrive.
 * @param {string} path
 * @param {{method?: string, json?: unknown, headers?: Record<string, string>, signal?: AbortSignal,
 *          onOpen?: (answer: Response) => void}} [options]
 * @returns {AsyncGenerator<{id: string, type: string, data: any}>}
 */
export async function* events(path, options = {}) {
  const { onOpen, ...init } = options;
  const answer = await send(path, init);
  onOpen?.(answer);
  if (!answer.body) return;
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    while (true) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      let end;
      while ((end = buffer.indexOf("\n\n")) >= 0) {
        const event = parseEvent(buffer.slice(0, end));
        buffer = buffer.slice(end + 2);
        if (event) yield event;
      }
    }
  } catch (error) {
    if (init.signal?.aborted) return;
    throw error instanceof ApiError ? error : new ApiError(0, "unreachable", "The stream broke off.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** @param {string} text */
function parseEvent(text) {
  let id = "";
  let type = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
    else if (line.startsWith("event:")) type = line.slice(6).trim();
    else if (line.startsWith("id:")) id = line.slice(3).trim();
  }
  if (!data.length) return null;
  const joined = data.join("\n");
  if (joined === "[DONE]") return { id, type: "done", data: null };
  try {
    return { id, type, data: JSON.parse(joined) };
  } catch {
    return null;
  }
}

/** @param {number} ms */
export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** @type {Promise<Set<string>> | undefined} */
let known;

/**
 * Return whether the gateway serves a path; pages that need a missing one are not shown.
 * @param {string} path
 */
export async function serves(path) {
  known ??= get("/openapi.json").then((document) => new Set(Object.keys(document.paths)));
  try {
    return (await known).has(path);
  } catch {
    known = undefined;
    return false;
  }
}

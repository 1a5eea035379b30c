/**
 * The stream of one answer. It survives a lost connection and a restarted gateway: the answer is
 * read again from its beginning, and the request is sent again under its own idempotency key.
 */

import { ApiError, events, segment, sleep } from "./api.js";

const TERMINAL = new Set(["response.completed", "response.failed", "response.incomplete", "response.cancelled", "error"]);
const MAX_PAUSE = 4000;

/** An answer as far as it has arrived. */
export class LiveAnswer {
  constructor() {
    /** @type {string | null} */
    this.responseId = null;
    /** @type {string | null} */
    this.turnId = null;
    /** @type {string | null} */
    this.sessionId = null;
    /** @type {Map<number, any>} */
    this.items = new Map();
    /** @type {"waiting" | "streaming" | "reconnecting" | "ended"} */
    this.state = "waiting";
    /** @type {string | null} */
    this.error = null;
    /** What the person sent, to be shown until it is in the log. @type {any[]} */
    this.input = [];
    /** Whether it takes the place of items that are shown. */
    this.rewrites = false;
    /** Ends the following of this answer; its turn goes on. */
    this.aborter = new AbortController();
  }

  get isEnded() {
    return this.state === "ended";
  }

  get output() {
    return [...this.items.entries()].sort(([one], [other]) => one - other).map(([, item]) => item);
  }

  /** @param {any} event */
  read(event) {
    const { type } = event;
    if (event.response?.id) this.responseId = event.response.id;
    if (type === "response.created" || type === "response.in_progress") {
      // Another run starts over: what the first one said is not part of the answer.
      if (type === "response.created") this.items.clear();
      return;
    }
    this.state = "streaming";
    const index = event.output_index;
    if (type === "response.output_item.added") this.items.set(index, structuredClone(event.item));
    else if (type === "response.output_item.done") this.items.set(index, event.item);
    else if (type === "response.output_text.delta") this.addText(index, event.content_index ?? 0, event.delta);
    else if (type === "response.function_call_arguments.delta") this.addArguments(index, event.delta);
    else if (type === "response.reasoning_summary_text.delta") this.addSummary(index, event.summary_index ?? 0, event.delta);
    else if (TERMINAL.has(type)) this.end(event);
  }

  /** @param {any} event */
  end(event) {
    this.state = "ended";
    const error = event.response?.error ?? (event.type === "error" ? event : null);
    if (error) this.error = error.message ?? "The turn failed.";
    else if (event.type === "response.incomplete") this.error = "The answer is incomplete.";
  }

  /**
   * @param {number} index
   * @param {number} part
   * @param {string} delta
   */
  addText(index, part, delta) {
    const item = this.items.get(index) ?? { type: "message", role: "assistant", content: [] };
    item.content ??= [];
    while (item.content.length <= part) item.content.push({ type: "output_text", text: "" });
    item.content[part] = { ...item.content[part], text: (item.content[part].text ?? "") + delta };
    this.items.set(index, { ...item });
  }

  /**
   * @param {number} index
   * @param {string} delta
   */
  addArguments(index, delta) {
    const item = this.items.get(index);
    if (item) this.items.set(index, { ...item, arguments: (item.arguments ?? "") + delta });
  }

  /**
   * @param {number} index
   * @param {number} part
   * @param {string} delta
   */
  addSummary(index, part, delta) {
    const item = this.items.get(index);
    if (!item) return;
    const summary = [...(item.summary ?? [])];
    while (summary.length <= part) summary.push({ type: "summary_text", text: "" });
    summary[part] = { ...summary[part], text: summary[part].text + delta };
    this.items.set(index, { ...item, summary });
  }
}

/**
 * Follow an answer to its end; `request` starts it, without one `answer.responseId` names it.
 * @param {LiveAnswer} answer
 * @param {{json: unknown, headers: Record<string, string>} | null} request
 * @param {{signal: AbortSignal, onChange: () => void}} options
 */
export async function followAnswer(answer, request, { signal, onChange }) {
  let pause = 250;
  const onOpen = (/** @type {Response} */ reply) => {
    answer.turnId = reply.headers.get("x-turn-id") ?? answer.turnId;
    answer.sessionId = reply.headers.get("x-session-id") ?? answer.sessionId;
    pause = 250;
    onChange();
  };
  while (!answer.isEnded && !signal.aborted) {
    try {
      const stream = answer.responseId === null && request !== null
        ? events("/v1/responses", { method: "POST", ...request, signal, onOpen })
        : events(`/v1/responses/${segment(answer.responseId ?? "")}?stream=true`, { signal, onOpen });
      let isFirst = true;
      for await (const event of stream) {
        if (isFirst) answer.items.clear();
        isFirst = false;
        if (event.data) answer.read(event.data);
        onChange();
        if (answer.isEnded) break;
      }
    } catch (error) {
      const isFinal = error instanceof ApiError && error.status > 0 && error.status < 500 && error.status !== 429;
      if (isFinal) throw error;
    }
    if (answer.isEnded || signal.aborted) break;
    answer.state = "reconnecting";
    onChange();
    await sleep(pause);
    pause = Math.min(pause * 2, MAX_PAUSE);
  }
  onChange();
}

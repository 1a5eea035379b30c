/** Turns and their runs as a picture: waiting, working, waiting for tools, healing, ending. */

import { html, nothing, svg } from "../vendor/lit.js";
import { segment } from "./api.js";
import { dateTime, duration, safeText } from "./format.js";
import { badge } from "./ui.js";

const WIDTH = 1000;
const HEIGHT = 18;
const SHORTEST_WAIT = 50;

/** @typedef {{kind: string, ms: number, label: string}} Piece */

/**
 * Return the pieces of a turn, in order.
 * @param {any} turn
 * @returns {Piece[]}
 */
export function pieces(turn) {
  /** @type {Piece[]} */
  const found = [];
  const waitedUntil = turn.ended_at ?? Date.now() / 1000;
  const queued = turn.queued_ms ?? Math.max(0, waitedUntil - turn.accepted_at) * 1000;
  if (queued >= SHORTEST_WAIT || turn.status === "queued") found.push({ kind: "queued", ms: Math.max(queued, 1), label: `waited ${duration(queued)} for its lane` });
  /** @type {any} */
  let before = null;
  for (const run of turn.runs) {
    if (before?.ended_at && run.step > before.step) {
      const wait = Math.max(0, run.started_at - before.ended_at) * 1000;
      found.push({ kind: "tools", ms: Math.max(wait, 1), label: `waited ${duration(wait)} for tools or an approval` });
    }
    const heals = run.heals ?? [];
    for (const heal of heals) {
      const kind = heal.action === "fell_back" ? "fallback" : heal.action === "retried" || heal.action === "waited" ? "retry" : "heal";
      found.push({ kind, ms: Math.max((heal.pause_seconds ?? 0) * 1000, 1), label: healText(heal) });
    }
    const now = Date.now() / 1000;
    const ms = run.duration_ms ?? Math.max(0, (now - run.started_at) * 1000);
    found.push({ kind: `run-${run.status}`, ms: Math.max(ms, 1), label: `run ${run.status} after ${duration(ms)}` });
    before = run;
  }
  if (turn.status === "requires_action" && before?.ended_at) {
    const wait = Math.max(0, Date.now() / 1000 - before.ended_at) * 1000;
    found.push({ kind: "tools", ms: Math.max(wait, 1), label: `waits for tools or an approval since ${duration(wait)}` });
  }
  if (turn.ended_at !== null && turn.runs.length) found.push({ kind: "commit", ms: 0, label: `committed ${dateTime(turn.ended_at)}` });
  return found;
}

/** @param {any} heal */
export function healText(heal) {
  const what = `${heal.failure_class}: ${heal.action}`.replaceAll("_", " ");
  const model = heal.next_model ? ` to ${heal.next_model}` : "";
  return safeText(`${what}${model}${heal.message ? ` (${heal.message})` : ""}`);
}

/** @param {any[]} turns */
export function timeline(turns) {
  const longest = Math.max(1, ...turns.map((turn) => pieces(turn).reduce((sum, piece) => sum + piece.ms, 0)));
  return html`
    <p class="legend" aria-hidden="true">${[["queued", "queued"], ["run-completed", "run"], ["tools", "tool wait"], ["heal", "heal"], ["retry", "retry"], ["fallback", "fall-back"], ["run-failed", "failed"], ["run-cancelled", "cut off"], ["commit", "commit"]].map(([kind, label]) => html`
      <span><svg width="12" height="12"><rect class="piece ${kind}" width="12" height="12" rx="3"></rect></svg>${label}</span>`)}</p>
    <ol class="timeline">${turns.map((turn) => turnRow(turn, longest))}</ol>`;
}

/**
 * @param {any} turn
 * @param {number} longest
 */
function turnRow(turn, longest) {
  const listed = pieces(turn);
  const text = listed.map((piece) => piece.label).join(", ");
  const late = turn.runs.filter((/** @type {any} */ run) => run.late);
  return html`<li>
    <div class="timeline-head"><a href=${`#/turns/${segment(turn.id)}`}>Turn ${turn.number}</a> ${badge(turn.status)}
      <span class="muted small">${dateTime(turn.accepted_at)} · ${turn.source} · ${duration(turn.duration_ms)}${turn.model ? ` · ${safeText(turn.model)}` : ""}</span></div>
    <svg class="timeline-bar" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${`Turn ${turn.number}: ${text || turn.status}`}>
      ${bars(listed, longest)}</svg>
    ${turn.error ? html`<p class="small error-text">${safeText(turn.error.code)}${turn.error.message && turn.error.message !== turn.error.code ? `: ${safeText(turn.error.message)}` : ""}</p>` : nothing}
    ${listed.filter((piece) => ["heal", "retry", "fallback"].includes(piece.kind)).map((piece) => html`<p class="small">${badge(piece.kind, "warn")} ${piece.label}</p>`)}
    ${late.map((/** @type {any} */ run) => html`<p class="small">${badge("late write refused", "warn")} A run that had lost this session tried: ${safeText(run.late.tried)}</p>`)}
  </li>`;
}

/**
 * @param {Piece[]} listed
 * @param {number} longest
 */
function bars(listed, longest) {
  let x = 0;
  // A short piece stays visible beside a long one.
  const room = WIDTH - listed.length * 8;
  return listed.map((piece) => {
    const width = 8 + (piece.ms / longest) * room;
    const bar = svg`<rect class="piece ${piece.kind}" x=${x.toFixed(1)} width=${Math.max(width - 2, 4).toFixed(1)} height=${HEIGHT} rx="3"><title>${piece.label}</title></rect>`;
    x += width;
    return bar;
  });
}

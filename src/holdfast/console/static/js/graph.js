/** Generations of a key and forks of a session, as a graph. */

import { html, nothing, svg } from "../vendor/lit.js";
import { segment } from "./api.js";
import { dateTime, number, safeText, shortId } from "./format.js";
import { badge } from "./ui.js";

const STEP = 46;
const LANE = 22;

/**
 * @param {any} session the session of the page
 * @param {any[]} generations all sessions of its key, oldest first
 * @param {Map<string, any[]>} forks the sessions that were forked from each
 * @param {(session: any) => unknown} actions
 */
export function lineage(session, generations, forks, actions) {
  /** @type {any[]} */
  const rows = [];
  if (session.parent_session_id) rows.push({ session: null, id: session.parent_session_id, lane: 0, note: `parent; forked behind item ${session.parent_sequence}` });
  for (const one of generations.length ? generations : [session]) {
    rows.push({ session: one, id: one.id, lane: session.parent_session_id ? 1 : 0, note: "" });
    for (const fork of forks.get(one.id) ?? []) rows.push({ session: fork, id: fork.id, lane: 1, note: `fork behind item ${fork.parent_sequence}` });
  }
  const height = rows.length * STEP;
  return html`<div class="graph">
    <svg width=${LANE * 2 + 16} height=${height} aria-hidden="true">${rows.map((row, index) => node(rows, row, index))}</svg>
    <ol class="graph-rows">${rows.map((row) => html`<li class=${row.id === session.id ? "is-current" : ""}>
      <div class="grow"><a href=${`#/sessions/${segment(row.id)}`}>${row.session?.key ? `Generation ${row.session.generation}` : shortId(row.id)}</a>
        ${row.session ? badge(row.session.status === "retired" ? "retired" : row.session.key ? "live" : row.session.status) : nothing}
        <span class="muted small">${row.note || (row.session ? `${number(row.session.item_count)} items · ${dateTime(row.session.created_at)}` : "")}</span></div>
      ${row.session ? actions(row.session) : nothing}</li>`)}</ol></div>`;
}

/**
 * @param {any[]} rows
 * @param {any} row
 * @param {number} index
 */
function node(rows, row, index) {
  const x = 10 + row.lane * LANE;
  const y = index * STEP + STEP / 2;
  let from = index - 1;
  while (from > 0 && row.lane <= rows[from].lane && rows[from].lane !== row.lane) from -= 1;
  while (row.lane === 1 && from > 0 && rows[from].lane === 1 && rows[from].note && row.note) from -= 1;
  const before = from >= 0 ? rows[from] : null;
  const line = before ? svg`<path class="graph-line" d="M ${10 + before.lane * LANE} ${from * STEP + STEP / 2} C ${10 + before.lane * LANE} ${y}, ${x} ${from * STEP + STEP / 2}, ${x} ${y}" />` : nothing;
  return svg`${line}<circle class="graph-node ${row.session?.status ?? "retired"}" cx=${x} cy=${y} r="6"><title>${safeText(row.id)}</title></circle>`;
}

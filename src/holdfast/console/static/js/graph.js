/** Generations of a key and the tree of their forks. */

import { html, nothing, repeat } from "../vendor/lit.js";
import { segment } from "./api.js";
import { dateTime, number, safeText, shortId } from "./format.js";
import { badge } from "./ui.js";

const MAX_DEPTH = 8;

/** @typedef {{session: any, depth: number, note: string}} TreeRow */

/**
 * @param {any} session the session of the page
 * @param {any[]} ancestors the sessions that it was forked from, the first one first
 * @param {any[]} generations all sessions of its key, oldest first
 * @param {Map<string, any[]>} forks the sessions that were forked from each
 * @param {(session: any) => unknown} actions
 */
export function lineage(session, ancestors, generations, forks, actions) {
  const rows = rowsOf(ancestors[0] ? [ancestors[0]] : generations.length ? generations : [session], forks);
  // The generations of a fork that got a key of its own.
  const known = new Set(rows.map((row) => row.session.id));
  rows.push(...rowsOf(generations.filter((one) => !known.has(one.id)), forks).filter((row) => !known.has(row.session.id)));
  return html`<ol class="graph graph-rows">${repeat(rows, (row) => row.session.id, (row) => treeRow(row, session, actions))}</ol>`;
}

/**
 * Return sessions with their forks below them.
 * @param {any[]} roots
 * @param {Map<string, any[]>} forks
 * @param {number} [depth]
 * @returns {TreeRow[]}
 */
function rowsOf(roots, forks, depth = 0) {
  return roots.flatMap((one) => [
    { session: one, depth: Math.min(depth, MAX_DEPTH), note: one.parent_session_id ? `fork behind item ${one.parent_sequence}` : "" },
    ...rowsOf(forks.get(one.id) ?? [], forks, depth + 1),
  ]);
}

/**
 * @param {TreeRow} row
 * @param {any} current
 * @param {(session: any) => unknown} actions
 */
function treeRow({ session, depth, note }, current, actions) {
  const first = session.preview?.first?.text;
  return html`<li class="depth-${depth} ${session.id === current.id ? "is-current" : ""} ${session.status}">
    <div class="grow"><a href=${`#/sessions/${segment(session.id)}`} aria-current=${session.id === current.id ? "true" : "false"}>${session.key ? `Generation ${session.generation}` : `Fork ${shortId(session.id)}`}</a>
      ${badge(session.status === "retired" ? "retired" : session.key ? "live" : session.status)}
      <span class="muted small">${note ? `${note} · ` : ""}${number(session.item_count)} items · ${dateTime(session.created_at)}${first ? ` · ${safeText(first)}` : ""}</span></div>
    ${session.parent_session_id ? html`<a class="small" href=${`#/compare/${segment(session.parent_session_id)}/${segment(session.id)}`}>Compare with parent</a>` : nothing}
    ${actions(session)}</li>`;
}

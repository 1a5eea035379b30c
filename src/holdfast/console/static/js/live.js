/** One feed of facts for the whole page: whoever shows something is told when it changed. */

import { events, sleep } from "./api.js";

/** @typedef {{type: string, session_id: string, turn_id: string | null, data: any}} Fact */

/** @type {Set<(fact: Fact) => void>} */
const listeners = new Set();
/** @type {AbortController | undefined} */
let running;
export let isConnected = false;

/**
 * Call `listener` with every new fact; return what ends that.
 * @param {(fact: Fact) => void} listener
 */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** @type {Set<() => void>} */
const openListeners = new Set();

/**
 * Call `listener` when the feed opens, at first and after each break: what was read before may be
 * older than the first fact of the feed.
 * @param {() => void} listener
 */
export function onOpen(listener) {
  openListeners.add(listener);
  return () => openListeners.delete(listener);
}

/** Follow no gateway any more. */
export function stop() {
  running?.abort();
  setConnected(false);
}

/** Start to follow the gateway, or start again with another key. */
export function restart() {
  running?.abort();
  running = new AbortController();
  void follow(running.signal);
}

/** @param {AbortSignal} signal */
async function follow(signal) {
  let after = "latest";
  let pause = 500;
  while (!signal.aborted) {
    try {
      const path = `/v1/events?after=${encodeURIComponent(after)}`;
      const opened = () => {
        pause = 500;
        setConnected(true);
        for (const listener of openListeners) listener();
      };
      for await (const event of events(path, { signal, onOpen: opened })) {
        if (event.id) after = event.id;
        for (const listener of listeners) listener(event.data);
      }
    } catch {
      // Shown as "reconnecting"; pages show the errors of their own requests.
    }
    if (signal.aborted) return;
    setConnected(false);
    await sleep(pause);
    pause = Math.min(pause * 2, 8000);
  }
}

/** @param {boolean} connected */
function setConnected(connected) {
  if (connected === isConnected) return;
  isConnected = connected;
  window.dispatchEvent(new CustomEvent("holdfast:live"));
}

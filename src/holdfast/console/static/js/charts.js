/** Charts over time: stacked bars on a canvas, with a table for those who cannot see them. */

import { html, nothing } from "../vendor/lit.js";
import { compactNumber } from "./format.js";
import { PageElement } from "./ui.js";

const HEIGHT = 190;
const FONT = "12px system-ui, sans-serif";

/** @typedef {{label: string, start: number, values: number[]}} Column */
/** @typedef {{title: string, series: string[], columns: Column[], interval: string, format?: (value: number) => string}} Chart */

class BarChart extends PageElement {
  static properties = { chart: { attribute: false } };

  constructor() {
    super();
    /** @type {Chart | null} */
    this.chart = null;
    /** @type {any} */
    this.plot = null;
    this.drawing = 0;
    this.pointed = "";
  }

  connectedCallback() {
    super.connectedCallback();
    const observer = new ResizeObserver(() => this.plot?.setSize({ width: this.width, height: HEIGHT }));
    observer.observe(this);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => void this.draw();
    dark.addEventListener("change", redraw);
    window.addEventListener("holdfast:theme", redraw);
    this.cleanups.push(() => observer.disconnect(), () => dark.removeEventListener("change", redraw), () => window.removeEventListener("holdfast:theme", redraw), () => this.plot?.destroy());
  }

  get width() {
    return Math.max(200, this.querySelector(".plot")?.clientWidth ?? 0);
  }

  /** @param {Map<string, unknown>} changed */
  updated(changed) {
    if (changed.has("chart")) void this.draw();
  }

  async draw() {
    const number = (this.drawing += 1);
    const { uPlot } = await import("../vendor/uplot.js");
    const target = /** @type {HTMLElement | null} */ (this.querySelector(".plot"));
    if (!target || !this.chart || number !== this.drawing) return;
    this.plot?.destroy();
    this.plot = new uPlot(options(uPlot, this.chart, this.width, (index) => this.point(index)), stacked(this.chart), target);
  }

  /** Say in words what the pointer is over. @param {number | null} index */
  point(index) {
    const column = index === null ? undefined : this.chart?.columns[index];
    const format = this.chart?.format ?? compactNumber;
    const text = column ? `${column.label}: ${column.values.map((value, place) => `${this.chart?.series[place]} ${format(value)}`).join(", ")}` : "";
    if (text === this.pointed) return;
    this.pointed = text;
    this.requestUpdate();
  }

  render() {
    if (!this.chart) return nothing;
    const { title, series, columns, format = compactNumber } = this.chart;
    const top = Math.max(0, ...columns.map((column) => column.values.reduce((sum, value) => sum + value, 0)));
    return html`<figure class="chart card">
      <figcaption><h2>${title}</h2>${series.length > 1 ? html`<p class="legend">${series.map((name, index) => html`<span><i class="swatch series-${index}" aria-hidden="true"></i>${name}</span>`)}</p>` : nothing}
        <p class="muted small pointed" aria-hidden="true">${this.pointed}</p></figcaption>
      <div class="plot" role="img" aria-label=${`${title}: ${columns.length} intervals, at most ${format(top)}`}></div>
      <details class="fold"><summary>As a table</summary><div class="table-scroll" tabindex="0" role="region" aria-label=${`${title} as a table`}><table class="list">
        <thead><tr><th scope="col">Interval</th>${series.map((name) => html`<th scope="col" class="num">${name}</th>`)}</tr></thead>
        <tbody>${columns.map((column) => html`<tr><th scope="row">${column.label}</th>${column.values.map((value) => html`<td class="num">${format(value)}</td>`)}</tr>`)}</tbody></table></div></details>
    </figure>`;
  }
}
customElements.define("hf-bars", BarChart);

/** @param {Chart} chart */
export const barChart = (chart) => html`<hf-bars .chart=${chart}></hf-bars>`;

/** Places and sums from below; the highest sum is drawn first, the others over it. @param {Chart} chart */
function stacked({ series, columns }) {
  const sums = series.map((_, place) => columns.map((column) => column.values.slice(0, place + 1).reduce((sum, value) => sum + value, 0)));
  return [columns.map((_, index) => index), ...sums.reverse()];
}

/** @param {string} name */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * @param {typeof import("../vendor/uplot.js").uPlot} uPlot
 * @param {Chart} chart
 * @param {number} width
 * @param {(index: number | null) => void} onPoint
 */
function options(uPlot, { series, columns, format = compactNumber }, width, onPoint) {
  const bars = uPlot.paths.bars({ size: [0.72, 60], radius: 0.12 });
  const last = series.length - 1;
  const axis = { stroke: colour("--muted"), font: FONT, ticks: { show: false } };
  return {
    width, height: HEIGHT, legend: { show: false },
    cursor: { points: { show: false }, drag: { x: false, y: false }, y: false },
    hooks: { setCursor: [(/** @type {any} */ plot) => onPoint(plot.cursor.left >= 0 ? plot.cursor.idx : null)] },
    scales: {
      x: { time: false, range: () => [-0.6, columns.length - 0.4] },
      y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ top) => [0, Math.max(1, top * 1.08)] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 30, incrs: [1, 2, 3, 4, 6, 7, 12, 14, 30], space: 56, values: (/** @type {any} */ _, /** @type {number[]} */ places) => places.map((place) => columns[place]?.label ?? "") },
      { ...axis, size: 56, space: 44, grid: { stroke: colour("--line"), width: 1 }, values: (/** @type {any} */ _, /** @type {number[]} */ places) => places.map((place) => (format === compactNumber && place % 1 ? "" : format(place))) },
    ],
    series: [{}, ...series.map((label, index) => ({ label, fill: colour(`--series-${last - index}`), width: 0, paths: bars, points: { show: false } }))],
  };
}

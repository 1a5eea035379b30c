/** Small charts as SVG: bars over time, stacked by kind, with a table for those who cannot see them. */

import { html, nothing, svg } from "../vendor/lit.js";
import { compactNumber } from "./format.js";

const WIDTH = 460;
const HEIGHT = 180;
const LEFT = 56;
const BOTTOM = 22;

/** @typedef {{label: string, values: number[]}} Column */

/**
 * @param {{title: string, series: string[], columns: Column[], format?: (value: number) => string}} chart
 */
export function barChart({ title, series, columns, format = compactNumber }) {
  const totals = columns.map((column) => column.values.reduce((sum, value) => sum + value, 0));
  const top = niceTop(Math.max(1, ...totals));
  const width = (WIDTH - LEFT) / Math.max(columns.length, 1);
  const scale = (HEIGHT - BOTTOM - 8) / top;
  const labelled = Math.max(1, Math.ceil(columns.length / 6));
  return html`<figure class="chart card">
    <figcaption><h2>${title}</h2>${series.length > 1 ? html`<p class="legend">${series.map((name, index) => html`<span><svg width="12" height="12" aria-hidden="true"><rect class="series-${index}" width="12" height="12" rx="3"></rect></svg>${name}</span>`)}</p>` : nothing}</figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${`${title}: ${columns.length} intervals, at most ${format(Math.max(0, ...totals))}`}>
      ${[0, 0.5, 1].map((share) => {
        const y = HEIGHT - BOTTOM - share * top * scale;
        return svg`<line class="grid" x1=${LEFT} x2=${WIDTH} y1=${y} y2=${y}></line><text class="axis" x=${LEFT - 6} y=${y + 4} text-anchor="end">${format(share * top)}</text>`;
      })}
      ${columns.map((column, index) => {
        let y = HEIGHT - BOTTOM;
        const x = LEFT + index * width;
        return svg`<g>${column.values.map((value, place) => {
          const height = value * scale;
          y -= height;
          return height > 0 ? svg`<rect class="series-${place}" x=${(x + width * 0.12).toFixed(1)} y=${y.toFixed(1)} width=${Math.max(width * 0.76, 1).toFixed(1)} height=${Math.max(height, 0.5).toFixed(1)}><title>${column.label}, ${series[place]}: ${format(value)}</title></rect>` : nothing;
        })}${index % labelled === 0 ? svg`<text class="axis" x=${Math.min(x + width / 2, WIDTH - 18)} y=${HEIGHT - 6} text-anchor="middle">${column.label}</text>` : nothing}</g>`;
      })}
    </svg>
    <details class="fold"><summary>As a table</summary><div class="table-scroll" tabindex="0" role="region" aria-label=${`${title} as a table`}><table class="list">
      <thead><tr><th scope="col">Interval</th>${series.map((name) => html`<th scope="col" class="num">${name}</th>`)}</tr></thead>
      <tbody>${columns.map((column) => html`<tr><th scope="row">${column.label}</th>${column.values.map((value) => html`<td class="num">${format(value)}</td>`)}</tr>`)}</tbody></table></div></details>
  </figure>`;
}

/** @param {number} value */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 2, 4, 5, 10]) if (step * power >= value) return step * power;
  return value;
}

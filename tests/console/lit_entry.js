export { LitElement, html, svg, nothing } from "lit";
export { repeat } from "lit/directives/repeat.js";
export { styleMap } from "lit/directives/style-map.js";
export { ref } from "lit/directives/ref.js";

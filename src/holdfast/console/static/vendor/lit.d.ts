// Types of the parts of Lit that the console uses.
export type Template = unknown;
export function html(strings: TemplateStringsArray, ...values: unknown[]): Template;
export function svg(strings: TemplateStringsArray, ...values: unknown[]): Template;
export const nothing: unique symbol;
export function repeat<T>(
  items: Iterable<T>, key: (item: T, index: number) => unknown,
  template: (item: T, index: number) => unknown,
): Template;
export function styleMap(styles: Record<string, string>): Template;
export function ref(callback: (element: Element | undefined) => void): Template;
export class LitElement extends HTMLElement {
  static properties: Record<string, object>;
  protected createRenderRoot(): HTMLElement | DocumentFragment;
  connectedCallback(): void;
  disconnectedCallback(): void;
  requestUpdate(): void;
  updateComplete: Promise<boolean>;
  protected render(): unknown;
  protected updated(changed: Map<string, unknown>): void;
  protected update(changed: Map<string, unknown>): void;
  protected willUpdate(changed: Map<string, unknown>): void;
  protected firstUpdated(changed: Map<string, unknown>): void;
}

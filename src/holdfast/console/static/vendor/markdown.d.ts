// Types of the parts of markdown-it that the console uses.
export interface Token {
  type: string; tag: string; nesting: -1 | 0 | 1; content: string; info: string; hidden: boolean;
  children: Token[] | null;
  attrGet(name: string): string | null;
}
export class MarkdownIt {
  constructor(preset: string, options: Record<string, unknown>);
  parse(text: string, environment: object): Token[];
  linkify: { set(options: Record<string, boolean>): void };
  validateLink: (address: string) => boolean;
}

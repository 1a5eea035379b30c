// Types of the parts of highlight.js that the console uses.
export interface Scope { scope?: string; children: (Scope | string)[] }
export const highlight: {
  getLanguage(name: string): unknown;
  highlight(text: string, options: { language: string; ignoreIllegals: boolean }): { _emitter: { rootNode: Scope } };
};

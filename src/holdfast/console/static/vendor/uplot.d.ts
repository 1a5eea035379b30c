// Types of the parts of uPlot that the console uses.
export class uPlot {
  constructor(options: object, data: (number | null)[][], target: HTMLElement);
  static paths: { bars(options: object): unknown };
  setSize(size: { width: number; height: number }): void;
  destroy(): void;
  valToPos(value: number, scale: string): number;
  cursor: { idx: number | null; left: number; top: number };
}

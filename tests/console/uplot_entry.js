import uPlot from "uplot";
export { uPlot };

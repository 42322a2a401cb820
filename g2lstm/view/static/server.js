// Questions to the server. Refused: it answered with an error. Gone: it did not answer.

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export class Gone extends Error {}

export const runs = () => ask("api/runs", {});
export const read = (question, signal) => post("api/read", question, signal);
export const units = (question, signal) => post("api/units", question, signal);
export const histograms = (run, signal) => post("api/histograms", { run }, signal);

const post = (path, body, signal) =>
  ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", credentials: "omit", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone("the server doesn’t answer");
  }
  let answer;
  try {
    answer = await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Gone("the server's answer was cut short");
  }
  if (!response.ok) throw new Refused(response.status, answer.error ?? `error ${response.status}`);
  return answer;
}

let plotly = null;

// Plotly is large, so it is loaded when the first drawing needs it.
export function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = "plotly/plotly.min.js";
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      plotly = null;
      script.remove();
      reject(new Gone("the drawing library could not be loaded"));
    };
    document.head.append(script);
  });
  return plotly;
}

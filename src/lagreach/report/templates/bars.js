/* The figure that pages open with: one bar a lag with the share that will be recovered, coloured by what binds. */
"use strict";

const Bars = (() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 640;
  const COLOURS = {
    readable: "--c3", reachable: "--c1", "few sequences": "--c5", "few steps": "--c4", blended: "--c2", unseen: "--faint",
    "none found": "--line", unknown: "--line",
  };

  const layout = (more) => ({ font: { size: narrow() ? 12 : 13, color: css("--ink") }, ...more });

  /* Every lag has a place of the same width. */
  const lagAxis = (names) => ({
    title: { text: "lag (steps back)" }, tickvals: names.map((_, i) => i), ticktext: names, range: [-0.7, names.length - 0.3], bare: true,
  });

  /* `rows` hold name, share (value, low, high), word and text; `marks` are places with a value of their own. */
  function figure(looks, rows, marks, marked) {
    const traces = looks.flatMap(({ word, name, learned }) => {
      const chosen = rows.map((_, i) => i).filter((i) => rows[i].word === word && !Number.isNaN(rows[i].share[0]));
      if (!chosen.length) return [];
      const part = (k, sign) => chosen.map((i) => Math.max(0, sign * (rows[i].share[k] - rows[i].share[0])) || 0);
      return [{
        type: "bar", x: chosen, y: chosen.map((i) => rows[i].share[0]), width: 0.78, name,
        marker: { color: css(COLOURS[word]), hatch: !learned }, text: chosen.map((i) => rows[i].text),
        error_y: { array: part(2, 1), arrayminus: part(1, -1), color: css("--ink"), thickness: 1.2, width: narrow() ? 1.5 : 3 },
      }];
    });
    const shown = marks.filter(({ value }) => !Number.isNaN(value));
    if (shown.length) traces.push({
      x: shown.map(({ at }) => at), y: shown.map(({ value }) => value), mode: "markers", name: marked, text: shown.map(({ text }) => text),
      marker: { color: css("--ink"), size: 9, symbol: "diamond", line: { color: css("--paper"), width: 2 } },
    });
    const half = { type: "line", xref: "paper", x0: 0, x1: 1, y0: 0.5, y1: 0.5, line: { color: css("--faint"), width: 1, dash: "dash" } };
    const y = { title: { text: "share recovered" }, range: [0, 1.04], tickvals: [0, 0.25, 0.5, 0.75, 1], ticktext: ["0 %", "25 %", "50 %", "75 %", "100 %"] };
    return [traces, layout({ height: narrow() ? 300 : 340, showlegend: true, xaxis: lagAxis(rows.map(({ name }) => name)), yaxis: y, shapes: [half] })];
  }

  return { figure, layout, lagAxis, COLOURS };
})();

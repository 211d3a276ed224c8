/* The figures: each function takes a layer (and the numbers of the sliders) and gives traces and a layout. */
"use strict";

const Charts = (() => {
  const FAINT_BAND = 0.2;
  const MOST_ABOVE = 1e6; // numbers this far above the budget are not drawn
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const colours = () => [1, 2, 3, 4, 5, 6].map((i) => style(`--c${i}`));
  const dashes = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];
  const narrow = () => window.innerWidth < 640;

  function alpha(colour, opacity) {
    const n = parseInt(colour.slice(1), 16);
    return `rgba(${n >> 16},${(n >> 8) & 255},${n & 255},${opacity})`;
  }

  function count(n) {
    if (Number.isNaN(n)) return "unknown";
    if (n === Infinity) return "no number suffices";
    if (n < 1) return "less than one";
    return n < 1e6 ? Math.ceil(n).toLocaleString("en") : n.toExponential(1).replace("e+", "e");
  }

  const axis = (title, more = {}) => ({ title: { text: title }, ...more });

  function layout(x, y, more = {}) {
    return { font: { size: narrow() ? 12 : 13, color: style("--ink") }, height: narrow() ? 340 : 400, xaxis: x, yaxis: y, ...more };
  }

  /* Lags stand at log(1 + lag), so that lag 0 has a place and short lags have room. */
  const place = (lag) => Math.log2(1 + lag);
  function lagAxis(lags, title = "lag (steps back)") {
    const last = Math.max(...lags);
    const nice = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 65536];
    const shown = nice.filter((lag) => lag <= last);
    return axis(title, { tickvals: shown.map(place), ticktext: shown.map(String), range: [-0.15, place(last) + 0.2] });
  }

  /* Decades with readable names. */
  function decades(title, more = {}) {
    return axis(title, { type: "log", ...more });
  }

  function band(x, low, high, colour, more = {}) {
    const kept = x.map((_, i) => i).filter((i) => Number.isFinite(low[i]) && Number.isFinite(high[i]));
    return {
      x: [...kept.map((i) => x[i]), ...kept.map((i) => x[i]).reverse()],
      y: [...kept.map((i) => high[i]), ...kept.map((i) => low[i]).reverse()],
      fill: "toself", fillcolor: alpha(colour, FAINT_BAND), line: { width: 0 }, hoverinfo: "skip", type: "scatter",
      mode: "lines", name: "95 % interval", ...more,
    };
  }

  const finite = (numbers) => numbers.filter((n) => Number.isFinite(n) && n > 0);
  const drawable = (numbers) => numbers.map((n) => (Number.isFinite(n) ? n : null));

  /* What each lag needs, with the budget and the dependences found in the data. */
  function needed(layer, result, setting) {
    const [blue, vermilion, green] = colours();
    const x = layer.lags.map(place);
    const seen = layer.lags.map((_, i) => i).filter((i) => layer.dependence.significant[i]);
    const { n, low, high } = result.planted;
    const all = finite([...n, ...low, ...high, ...seen.flatMap((i) => [result.inData.n[i], result.inData.low[i]]), setting.sequences]);
    const top = Math.min(Math.max(...all), Math.max(Math.min(...all), setting.sequences) * MOST_ABOVE) * 3;
    const bottom = Math.max(Math.min(...all), 0.3) / 2;
    const words = (numbers) => layer.lags.map((_, i) =>
      `lag ${layer.spans[i]}<br>${count(numbers.n[i])} sequences<br>` +
      `${count(numbers.low[i])} to ${count(numbers.high[i])}<br>${layer.limits[i]}`);
    const traces = [
      band(x, result.planted.low, result.planted.high, blue, { legendgroup: "planted", showlegend: false }),
      {
        x, y: drawable(result.planted.n), mode: "lines+markers", name: "if present", legendgroup: "planted",
        line: { color: blue, width: 2.5 }, marker: { size: 6 }, text: words(result.planted),
      },
      {
        x, y: drawable(result.planted.robust), mode: "lines", name: "if present, with clipping", visible: "legendonly",
        line: { color: green, width: 2, dash: "dot" }, text: result.planted.robust.map((n) => `${count(n)} sequences with clipping`),
      },
    ];
    const arm = (ends, i) => (Number.isFinite(ends[i]) ? Math.abs(ends[i] - result.inData.n[i]) : 0);
    if (seen.length) traces.push({
      x: seen.map((i) => x[i]), y: seen.map((i) => drawable(result.inData.n)[i]), mode: "markers", name: "found in the data",
      marker: { color: vermilion, size: 11, symbol: "diamond", line: { color: style("--paper"), width: 1.5 } },
      error_y: {
        type: "data", symmetric: false, color: vermilion, thickness: 1.5, width: 4,
        array: seen.map((i) => arm(result.inData.high, i)), arrayminus: seen.map((i) => arm(result.inData.low, i)),
      },
      text: seen.map((i) => words(result.inData)[i]),
    });
    const lost = layer.lags.map((_, i) => i).filter((i) => !Number.isFinite(result.planted.n[i]));
    if (lost.length) traces.push({
      x: lost.map((i) => x[i]), y: lost.map(() => top / 1.5), mode: "markers", name: "no number, or unknown",
      marker: { color: style("--bad"), size: 11, symbol: "x" },
      text: lost.map((i) => `lag ${layer.spans[i]}: ${count(result.planted.n[i])}<br>${result.planted.status[i]}`),
    });
    const budget = {
      type: "line", xref: "paper", x0: 0, x1: 1, y0: setting.sequences, y1: setting.sequences,
      line: { color: style("--ink"), width: 1.5, dash: "dash" },
    };
    const under = {
      type: "rect", xref: "paper", x0: 0, x1: 1, y0: bottom, y1: setting.sequences, layer: "below",
      fillcolor: style("--within"), line: { width: 0 },
    };
    const name = {
      xref: "paper", x: 0.01, y: Math.log10(setting.sequences), yanchor: "bottom", xanchor: "left", showarrow: false,
      text: `${count(setting.sequences)} sequences`, font: { size: 12 },
    };
    const y = decades("sequences needed", { range: [Math.log10(bottom), Math.log10(top)] });
    return [traces, layout(lagAxis(layer.lags), y, { shapes: [under, budget], annotations: [name] })];
  }

  /* The window against the number of sequences. */
  function reach(layer, result, setting) {
    const [blue] = colours();
    const known = finite(result.planted.n), budget = setting.sequences;
    const [first, last] = [Math.max(1, Math.min(...known, budget) / 3), 3 * Math.max(Math.min(Math.max(...known, 10), budget * MOST_ABOVE), budget)];
    const grid = Array.from({ length: 241 }, (_, i) => first * (last / first) ** (i / 240));
    const at = (numbers) => grid.map((n) => WhatIf.reach(layer.lags, numbers, n));
    const lags = (reached) => reached.map((lag) => (lag === null ? null : place(lag)));
    const [middle, low, high] = [result.planted.n, result.planted.high, result.planted.low].map(at);
    const step = { line: { color: blue, width: 0, shape: "hv" }, mode: "lines", hoverinfo: "skip", showlegend: false };
    const floor = (reached) => lags(reached).map((value) => value ?? -0.15);
    const traces = [
      { x: grid, y: floor(low), ...step },
      { x: grid, y: floor(high), ...step, fill: "tonexty", fillcolor: alpha(blue, FAINT_BAND) },
      {
        x: grid, y: lags(middle), mode: "lines", name: "window H_N", line: { color: blue, width: 2.5, shape: "hv" },
        text: grid.map((n, i) => `${count(n)} sequences<br>lag ${middle[i] ?? "none"} (${low[i] ?? "none"} to ${high[i] ?? "none"})`),
       
      },
    ];
    if (result.lag !== null) traces.push({
      x: [setting.sequences], y: [place(result.lag)], mode: "markers", name: "your setting", hoverinfo: "skip",
      marker: { color: style("--ink"), size: 11 },
    });
    const y = lagAxis(layer.lags, "longest lag within reach");
    const budgetLine = { type: "line", yref: "paper", y0: 0, y1: 1, x0: setting.sequences, x1: setting.sequences,
      line: { color: style("--ink"), width: 1, dash: "dash" } };
    return [traces, layout(decades("sequences"), y, { shapes: [budgetLine], showlegend: false })];
  }

  /* Logarithms on each other, with the laws fitted to them, on the scales of the switch. */
  function overlaid(picture, scale) {
    const palette = colours();
    const linear = scale === "linear";
    const y = (log10) => log10.map((v) => (Number.isFinite(v) ? (linear ? 10 ** v : v) : null));
    const keep = scale === "loglog" ? (lag) => lag > 0 : () => true;
    const line = (lags, log10, name, colour, dash, more = {}) => {
      const chosen = lags.map((_, i) => i).filter((i) => keep(lags[i]));
      return {
        x: chosen.map((i) => lags[i]), y: y(chosen.map((i) => log10[i])), name, mode: "lines+markers",
        line: { color: colour, width: 2.5, dash }, marker: { size: 5 },
        text: chosen.map((i) => `lag ${lags[i]}<br>10^${log10[i].toFixed(2)}`), ...more,
      };
    };
    const shown = picture.curves.flatMap(({ lags, lines }) => lines.map((one) => ({ lags, ...one })))
      .filter(({ values }) => values.some(Number.isFinite));
    if (!shown.length) return null;
    const traces = shown.map(({ lags, values, label }, i) => line(lags, values, label, palette[i % 6], dashes[i % 6]));
    picture.curves.filter(({ fits }) => fits).forEach(({ fits }) => fits.laws.forEach((fit, i) => traces.push({
      ...line(fits.lags, fit.log10, fit.label, style("--faint"), dashes[i % 4]), mode: "lines",
      line: { color: style("--faint"), width: 1.5, dash: dashes[(i + 1) % 4] }, visible: i ? "legendonly" : true,
    })));
    const x = axis("lag (steps back)", scale === "loglog" ? { type: "log" } : {});
    const drawn = shown.flatMap(({ values }) => values).filter(Number.isFinite);
    const [bottom, top] = [Math.min(...drawn, 0), Math.max(...drawn, 0)];
    const step = Math.max(1, Math.ceil((top - bottom) / 8));
    const whole = Array.from({ length: 60 }, (_, i) => (i - 55) * step);
    const part = [3, 2, 1, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01];
    const ticks = top - bottom > 1.5 ? { tickvals: whole, ticktext: whole.map((k) => (k ? `10${Draw.power(k)}` : "1")) }
      : { tickvals: part.map(Math.log10), ticktext: part.map(String) };
    const vertical = axis(picture.curves[0].unit || "relative size", linear ? {} : { ...ticks, range: [1.05 * bottom - 0.1 * step, top + 0.1 * step] });
    return [traces, layout(x, vertical, { height: narrow() ? 460 : 440 })];
  }

  /* First order over exact, with the factor 3 that the verdict uses. */
  function fidelity(layer) {
    const [blue] = colours();
    const { lags, log10, status } = layer.fidelity;
    if (!log10.some(Number.isFinite)) return null;
    const trace = {
      x: lags.map(place), y: drawable(log10.map((v) => 10 ** v)), mode: "lines+markers", line: { color: blue, width: 2.5 },
      text: lags.map((lag, i) => `lag ${lag}: ${Number.isFinite(log10[i]) ? (10 ** log10[i]).toPrecision(3) : "missing"}<br>${status[i]}`),
    };
    const logs = [...log10.filter(Number.isFinite), Math.log10(1 / 3), Math.log10(3)];
    const close = { type: "rect", xref: "paper", x0: 0, x1: 1, y0: 1 / 3, y1: 3, layer: "below",
      fillcolor: style("--within"), line: { width: 0 } };
    return [[trace], layout(lagAxis(layer.lags), decades("first order / exact", { range: [Math.min(...logs) - 0.1, Math.max(...logs) + 0.1] }), { shapes: [close], height: 300 })];
  }

  /* Small pictures over the same lags, one row for each curve: diamonds where the data depend on a lag, bars, or a line. */
  function stacked(layer, picture) {
    const [blue, vermilion, green] = colours();
    const rows = picture.curves.filter(({ lines }) => lines.some(({ values }) => values.some(Number.isFinite)));
    if (!rows.length) return null;
    const { significant, p } = layer.dependence;
    const gap = 0.08, height = (1 - gap * (rows.length - 1)) / rows.length;
    const traces = [], axes = {};
    rows.forEach(({ lags, lines, mark, unit, ends }, row) => {
      const name = row ? `y${row + 1}` : "y";
      const top = 1 - row * (height + gap), percent = unit.startsWith("share");
      const number = (v) => (percent ? `${(100 * v).toPrecision(3)} %` : Number(v.toPrecision(3)));
      lines.forEach(({ label, values }, i) => {
        const shared = { x: lags.map(place), name: label, xaxis: "x", yaxis: name, showlegend: false };
        const said = lags.map((lag, k) => `lag ${lag}: ${Number.isFinite(values[k]) ? number(values[k]) : "unknown"}`);
        if (mark === "diamond") traces.push({
          ...shared, y: values.map((v) => (v > 0 ? v : null)), mode: "markers",
          marker: {
            color: significant.map((yes) => (yes ? vermilion : style("--faint"))), size: significant.map((yes) => (yes ? 11 : 8)),
            symbol: significant.map((yes) => (yes ? "diamond" : "circle-open")),
          },
          text: layer.lags.map((_, k) => `lag ${layer.spans[k]}: ${Number.isFinite(p[k]) ? `${significant[k] ? "found" : "not found"}, p = ${p[k].toPrecision(2)}` : "cannot be told"}`),
        });
        else if (mark === "bar") traces.push({
          ...shared, y: drawable(values), type: "bar", width: 0.12, marker: { color: row % 2 ? blue : green }, text: said,
          ...(ends && !i ? { error_y: { type: "data", array: values.map((v, k) => (Number.isFinite(ends[1][k]) ? ends[1][k] - v : 0)), color: style("--ink"), thickness: 1 } } : {}),
        });
        else traces.push({ ...shared, y: drawable(values), mode: "lines+markers", line: { color: blue, width: 2.5 }, text: said });
      });
      const where = { domain: [Math.max(0, top - height), top], nticks: 4 };
      axes[row ? `yaxis${row + 1}` : "yaxis"] = mark === "diamond" ? decades(lines[0].label, where)
        : axis(lines[0].label, { ...where, rangemode: "tozero", ...(percent ? { tickformat: ".2~%" } : {}) });
    });
    const { yaxis, ...others } = axes;
    return [traces, layout(lagAxis(layer.lags), yaxis, { ...others, height: 60 + 155 * rows.length })];
  }

  function picture(layer, title, scale) {
    const shown = layer.pictures[title];
    if (!shown) return null;
    return shown.logarithmic ? overlaid(shown, scale) : stacked(layer, shown);
  }

  /* Any number per lag with its interval; what spans decades stands on a logarithmic axis. */
  function curve(layer, index) {
    const [blue] = colours();
    const c = layer.curves[index];
    const shown = finite(c.value);
    if (!shown.length) return null;
    const log = Math.min(...shown) > 0 && Math.max(...shown) > 30 * Math.min(...shown);
    const x = c.lags.map(place);
    const point = {
      x, y: c.value.map((v) => (Number.isFinite(v) ? v : null)), mode: "lines+markers", line: { color: blue, width: 2.5 },
      text: c.lags.map((lag, i) => `lag ${lag}: ${Number(c.value[i].toPrecision(4))}${c.status ? `<br>${c.status[i]}` : ""}`),
    };
    const y = log ? decades(c.unit) : axis(c.unit);
    return [[...(c.ends ? [band(x, ...c.ends, blue)] : []), point], layout(lagAxis(layer.lags), y, { showlegend: false, height: 320 })];
  }

  /* Time scales of the units in octaves. */
  function scales(layer) {
    const [blue] = colours();
    const tau = layer.scales.tau;
    if (!tau.length) return null;
    const octaves = tau.map((t) => Math.floor(Math.log2(t)));
    const low = Math.min(...octaves) - 1, high = Math.max(...octaves) + 1;
    const bins = Array.from({ length: high - low + 1 }, (_, i) => low + i);
    const name = (k) => (k < 0 ? `1/${2 ** -k}` : `${2 ** k}`);
    const bars = {
      type: "bar", x: bins.map((k) => k + 0.5), y: bins.map((k) => octaves.filter((o) => o === k).length), width: 0.9,
      marker: { color: alpha(blue, 0.75) }, text: bins.map((k) => `${octaves.filter((o) => o === k).length} units`), showlegend: false,
    };
    const rug = {
      x: tau.map(Math.log2), y: tau.map(() => 0), mode: "markers", showlegend: false,
      marker: { symbol: "line-ns", size: 12, line: { color: style("--ink"), width: 1.2 } },
      text: tau.map((t) => `${t.toPrecision(3)} steps`),
    };
    const edges = [...bins, high + 1];
    const x = axis("time scale (steps)", { tickvals: edges, ticktext: edges.map(name) });
    return [[bars, rug], layout(x, axis("units", { rangemode: "tozero" }), { height: 300 })];
  }

  const squash = Math.asinh;
  const squashed = [-1e4, -1000, -100, -10, -3, -1, 0, 1, 3, 10, 100, 1000, 1e4];

  /* Order statistics of the noise against the quantiles of the fitted law. */
  function quantiles(layer) {
    const [blue] = colours();
    const noise = layer.noise;
    if (!noise || !noise.fitted) return null;
    const x = noise.fitted.map(squash), y = noise.values.map(squash);
    const ends = [Math.min(...x, ...y), Math.max(...x, ...y)];
    const ticks = squashed.filter((t) => squash(t) >= ends[0] && squash(t) <= ends[1]);
    const scale = { tickvals: ticks.map(squash), ticktext: ticks.map(String) };
    const traces = [
      { x: ends, y: ends, mode: "lines", line: { color: style("--faint"), width: 1.5, dash: "dash" }, hoverinfo: "skip", name: "equal" },
      {
        x, y, mode: "markers", marker: { color: blue, size: 5, opacity: 0.75 }, name: "sequences",
        text: noise.values.map((v, i) => `measured ${v.toPrecision(3)}<br>fitted ${noise.fitted[i].toPrecision(3)}`),
      },
    ];
    return [traces, layout(axis("fitted stable law", scale), axis("measured noise", scale), { showlegend: false })];
  }

  /* How often the noise exceeds a multiple of its scale, measured and fitted. */
  function tail(layer) {
    const [blue, vermilion] = colours();
    const noise = layer.noise;
    if (!noise || !noise.fitted) return null;
    const side = (values, chance, name, colour, symbol) => {
      const kept = values.map((_, i) => i).filter((i) => values[i] > 0.1);
      return { x: kept.map((i) => values[i]), y: kept.map((i) => chance[i]), mode: "markers", name,
        marker: { color: colour, size: 5, symbol }, text: kept.map((i) => `beyond ${values[i].toPrecision(3)}: ${chance[i].toPrecision(3)}`) };
    };
    const above = noise.levels.map((p) => 1 - p);
    const fit = noise.fitted.map((_, i) => i).filter((i) => noise.fitted[i] > 0.1);
    const traces = [
      side(noise.values, above, "upper tail", blue, "circle"),
      side(noise.values.map((v) => -v), noise.levels, "lower tail", vermilion, "diamond-open"),
      { x: fit.map((i) => noise.fitted[i]), y: fit.map((i) => above[i]), mode: "lines", name: "fitted stable law",
        line: { color: style("--ink"), width: 2 }, hoverinfo: "skip" },
    ];
    return [traces, layout(
      decades("distance from the median, in scales"), decades("share of sequences beyond"))];
  }

  /* Several models: what each lag needs. */
  function together(results, setting) {
    const palette = colours();
    const traces = results.flatMap(({ model, layer, planted }, i) => {
      const colour = palette[i % 6];
      const line = {
        x: layer.lags.map(place), y: drawable(planted.n), name: model.name, mode: "lines+markers", marker: { size: 5, symbol: i },
        line: { color: colour, width: 2.2, dash: dashes[i % 6] }, legendgroup: model.name,
        text: layer.lags.map((_, k) => `${model.name}<br>lag ${layer.spans[k]}: ${count(planted.n[k])} sequences`),
      };
      const interval = band(line.x, planted.low, planted.high, colour, { legendgroup: model.name, showlegend: false });
      return results.length <= 4 ? [interval, line] : [line];
    });
    const budget = { type: "line", xref: "paper", x0: 0, x1: 1, y0: setting.sequences, y1: setting.sequences,
      line: { color: style("--ink"), width: 1.5, dash: "dash" } };
    const all = finite(results.flatMap(({ planted }) => planted.n));
    const top = Math.min(Math.max(setting.sequences, ...all), Math.max(Math.min(...all), setting.sequences) * MOST_ABOVE) * 3;
    const bottom = Math.min(setting.sequences, ...all) / 2;
    const y = decades("sequences needed", { range: [Math.log10(bottom), Math.log10(top)] });
    return [traces, layout(lagAxis(results.flatMap(({ layer }) => layer.lags)), y, { shapes: [budget] })];
  }

  /* Several models: their windows with intervals. */
  function windows(results) {
    const [blue] = colours();
    const shown = [...results].reverse();
    const reached = shown.map(({ lag }) => lag ?? NaN);
    const traces = shown.filter(({ interval }) => interval[1] !== null).map(({ model, interval }) => ({
      x: [place(interval[0] ?? 0), place(interval[1])], y: [model.name, model.name], mode: "lines", hoverinfo: "skip",
      line: { color: blue, width: 5 }, opacity: 0.4,
    }));
    traces.push({
      x: drawable(reached.map(place)), y: shown.map(({ model }) => model.name), mode: "markers",
      marker: { color: blue, size: 12 },
      text: shown.map(({ model, lag, interval }) =>
        `${model.name}: ${lag === null ? "no lag" : `lag ${lag}`} (${interval[0] ?? "none"} to ${interval[1] ?? "none"})`),
    });
    const names = axis("", { type: "category", categoryorder: "array", categoryarray: shown.map(({ model }) => model.name) });
    return [traces, layout(lagAxis(results.flatMap(({ layer }) => layer.lags), "longest lag within reach"), names,
      { showlegend: false, height: 110 + 34 * results.length })];
  }

  /* The window over training, one line for each run. */
  function training(results, clock) {
    const palette = colours();
    const named = (model) => Object.entries(model.labels).filter(([key]) => key !== clock).map(([, v]) => v).join(", ");
    const runs = [...new Set(results.map(({ model }) => named(model)))];
    const traces = runs.flatMap((run, i) => {
      const history = results.filter(({ model }) => named(model) === run).sort((a, b) => a.model.labels[clock] - b.model.labels[clock]);
      const x = history.map(({ model }) => model.labels[clock]);
      const interval = band(x, history.map((r) => place(r.interval[0] ?? 0)), history.map((r) => place(r.interval[1] ?? 0)),
        palette[i % 6], { legendgroup: run, showlegend: false });
      return [interval, {
        x, y: history.map((r) => (r.lag === null ? null : place(r.lag))), name: run || "window", legendgroup: run,
        mode: "lines+markers", line: { color: palette[i % 6], width: 2.5, dash: dashes[i % 6] }, marker: { size: 7 },
        text: history.map((r) => `${clock} ${r.model.labels[clock]}: ${r.lag === null ? r.status : `lag ${r.lag}`}`),
      }];
    });
    return [traces, layout(axis(clock), lagAxis(results.flatMap(({ layer }) => layer.lags), "longest lag within reach"),
      { showlegend: runs.length > 1 })];
  }

  return { needed, reach, picture, fidelity, curve, scales, quantiles, tail, together, windows, training, count };
})();

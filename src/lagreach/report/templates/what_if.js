/* N(l) and the window for the settings of the sliders: line by line the rule of lagreach/advice/what_if.py, by the law of N in lagreach/detection/law.py. */
"use strict";

const WhatIf = (() => {
  const fmin = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.min(a, b));
  const fmax = (a, b) => (Number.isNaN(a) ? b : Number.isNaN(b) ? a : Math.max(a, b));

  /* Numbers that are not finite are written as words starting with @ in the page's data. */
  function revive(key, value) {
    if (typeof value !== "string" || !value.startsWith("@")) return value;
    return { "@inf": Infinity, "@-inf": -Infinity, "@nan": NaN }[value] ?? value.slice(1);
  }

  function values(page, name) {
    return page.sliders.find((slider) => slider.name === name).values;
  }

  /* How far log(R_m / delta) moves when noise and error change: a ratio of quantiles of a stable law. */
  function shift(page, table, layer, setting) {
    const errors = values(page, "error").slice(1);
    const now = errors.indexOf(setting.error ?? layer.error);
    return Math.log(setting.noise) + table[now] - table[errors.indexOf(layer.error)];
  }

  function rescaled(base, layer, kappa, moved, normal) {
    const { start, kappa: measured, kappaEnds: ends } = layer;
    const numbers = { n: [], low: [], high: [], robust: [], status: base.status, usable: base.usable };
    base.n.forEach((needed, i) => {
      const logN = Math.log(needed), logLow = Math.log(base.low[i]), logHigh = Math.log(base.high[i]);
      let n, low, high;
      if (kappa === null) {
        const shifts = ends.map((end) => end * moved);
        n = logN + measured * moved;
        low = logLow + Math.min(...shifts);
        high = logHigh + Math.max(...shifts);
      } else {
        const turn = kappa / measured;
        n = start + turn * (logN - start) + kappa * moved;
        if (logN === Infinity) {
          low = start + turn * (logLow - start) + kappa * moved;
          high = Infinity;
        } else {
          const ratio = (logN - start) / measured;
          const fastest = fmin(ends[0] * ratio, ends[1] * ratio), slowest = fmax(ends[0] * ratio, ends[1] * ratio);
          const below = fmax(start + fastest - logLow, 0);
          low = n - turn * below;
          high = n + turn * (ends[0] === measured && measured < ends[1] ? below : fmax(logHigh - start - slowest, 0));
        }
      }
      numbers.n.push(Math.exp(n));
      numbers.low.push(Math.exp(low));
      numbers.high.push(Math.exp(high));
      numbers.robust.push(base.robust[i] * Math.exp(2 * normal));
    });
    return numbers;
  }

  /* The largest lag that `sequences` sequences are enough for; null if there is none. */
  function reach(lags, numbers, sequences) {
    const visible = lags.filter((lag, i) => numbers[i] <= sequences);
    return visible.length ? Math.max(...visible) : null;
  }

  function whatIf(page, layer, setting) {
    const kappas = values(page, "kappa").slice(1);
    const table = setting.kappa === null ? layer.logQuantiles : page.logQuantiles[kappas.indexOf(setting.kappa)];
    const moved = shift(page, table, layer, setting);
    const normal = shift(page, page.logQuantiles[0], layer, setting);
    const share = 0.5 * Math.log(setting.strength);
    const planted = rescaled(layer.planted, layer, setting.kappa, moved - share, normal - share);
    const inData = rescaled(layer.inData, layer, setting.kappa, moved, normal);
    const lag = reach(layer.lags, planted.n, setting.sequences);
    let status = page.status.ok;
    if (lag === null) {
      const bad = planted.usable.indexOf(false);
      status = bad < 0 ? page.status.empty : planted.status[bad];
    } else if (lag === layer.lags[layer.lags.length - 1]) {
      status = page.status.censored;
    }
    return {
      planted, inData, lag, status,
      interval: [reach(layer.lags, planted.high, setting.sequences), reach(layer.lags, planted.low, setting.sequences)],
      detectable: layer.dependence.lags.filter((_, i) => inData.n[i] <= setting.sequences).flat(),
    };
  }

  /* Of several layers, the one that reaches farthest answers for the model. */
  function best(page, model, setting) {
    const all = model.layers.map((layer) => ({ layer, ...whatIf(page, layer, setting) }));
    return all.reduce((a, b) => ((b.lag ?? -1) > (a.lag ?? -1) ? b : a));
  }

  return { revive, values, whatIf, best, reach };
})();

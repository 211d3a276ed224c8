/* Shares recovered, sequences needed and what binds, for any number of sequences and any strength: line by line the rules of
   lagreach/statistics/linear_share/curves.py, forecasting/limits.py and forecasting/words.py. */
"use strict";

const Shares = (() => {
  /* Points between the amounts of shrinkage: a cubic spline through evenly spaced values whose ends are not knots. */
  function finer(values, between) {
    const n = values.length - 1;
    const bend = (i) => 6 * (values[i - 1] - 2 * values[i] + values[i + 1]);
    const second = new Float64Array(n + 1);
    second[1] = bend(1) / 6;
    second[n - 1] = bend(n - 1) / 6;
    const rest = new Float64Array(n + 1), share = new Float64Array(n + 1); // elimination of the middle ones
    for (let i = 2; i <= n - 2; i += 1) {
      const right = bend(i) - (i === 2 ? second[1] : 0) - (i === n - 2 ? second[n - 1] : 0);
      const pivot = 4 - (i > 2 ? share[i - 1] : 0);
      share[i] = 1 / pivot;
      rest[i] = (right - (i > 2 ? rest[i - 1] : 0)) / pivot;
    }
    for (let i = n - 2; i >= 2; i -= 1) second[i] = rest[i] - (i < n - 2 ? share[i] * second[i + 1] : 0);
    second[0] = 2 * second[1] - second[2];
    second[n] = 2 * second[n - 1] - second[n - 2];
    const finerValues = new Float64Array(between * n + 1);
    for (let k = 0; k < finerValues.length; k += 1) {
      const i = Math.min(Math.floor(k / between), n - 1), b = k / between - i, a = 1 - b;
      finerValues[k] = a * values[i] + b * values[i + 1] + ((a ** 3 - a) * second[i] + (b ** 3 - b) * second[i + 1]) / 6;
    }
    return finerValues;
  }

  /* Whole numbers, written as differences along the last axis and from the first fit, as they were. */
  function undo(fits, digits) {
    const sums = fits.map((steps) => { let sum = 0; return Float64Array.from(steps, (step) => (sum += step)); });
    return sums.map((sum, fit) => sum.map((v, k) => (fit ? v + sums[0][k] : v) / digits));
  }

  /* Curves of the page's data, made ready: each is (fit, lag, point). */
  function prepare(curves, rules) {
    if (!curves) return null;
    const smooth = (row) => finer(row, rules.finer);
    const rows = (fits) => undo(fits, rules.digits).map(smooth);
    const exact = (cube) => { // (fit, lag, amount) by lag and back
      const byLag = cube[0].map((_, lag) => rows(cube.map((fit) => fit[lag])));
      return cube.map((_, fit) => byLag.map((fits) => fits[fit]));
    };
    return {
      share: exact(curves.share), fitted: exact(curves.fitted), noise: curves.noise.map(smooth), present: curves.present,
      gained: rows(curves.gained), inData: exact(curves.inData), seen: curves.seen,
    };
  }

  /* Standard error from leave-one-block-out values; NaN where one of them is not finite. */
  function spread(values) {
    if (!values.every(Number.isFinite)) return NaN;
    const mean = values.reduce((a, b) => a + b, 0) / values.length;
    const squares = values.reduce((sum, v) => sum + (v - mean) ** 2, 0);
    return Math.sqrt(((values.length - 1) / values.length) * squares);
  }

  const clip = (v) => Math.min(1, Math.max(0, v));

  function gain(explained, noise, count) {
    const held = new Float64Array(explained.length);
    for (let k = 0; k < held.length; k += 1) {
      const byChance = noise[k] / count;
      held[k] = byChance < 1 ? 1 - (1 - explained[k]) / (1 - byChance) : -Infinity;
    }
    return held;
  }

  function largest(values) {
    let best = 0;
    for (let k = 1; k < values.length; k += 1) if (values[k] > values[best]) best = k;
    return best;
  }

  /* Share at the amount of shrinkage that gains most, with its interval: `share` and `gains` by fit. */
  function best(share, gains, quantile) {
    const places = gains.map(largest);
    const values = places.map((place, fit) => share[fit][place]);
    const half = quantile * spread(values.slice(1));
    const chosen = places[0], behind = gains.map((ofFit) => {
      const top = ofFit[chosen];
      return ofFit.map((v) => { const apart = top - v; return Number.isFinite(apart) ? apart : Infinity; });
    });
    let low = Infinity, high = -Infinity;
    for (let k = 0; k < share[0].length; k += 1) {
      const doubt = spread(behind.slice(1).map((ofFit) => ofFit[k]));
      if (behind[0][k] <= quantile * (Number.isNaN(doubt) ? 0 : doubt)) {
        low = Math.min(low, share[0][k]);
        high = Math.max(high, share[0][k]);
      }
    }
    return [values[0], Math.min(values[0] - half, low), Math.max(values[0] + half, high)].map(clip);
  }

  const unknown = [NaN, NaN, NaN];

  /* Share of a planted dependency at one lag: value, low, high. */
  function planted(curves, rules, lag, count, strength) {
    if (curves.present[lag] <= 0) return unknown;
    const part = strength * curves.present[lag];
    const share = curves.share.map((fit) => fit[lag]);
    const gains = share.map((row, fit) => {
      const fitted = curves.fitted[fit][lag];
      return gain(row.map((a, k) => part * (2 * a - fitted[k])), curves.noise[fit], count);
    });
    return best(share, gains, rules.quantile);
  }

  /* The same without its interval, which most numbers of sequences do not need. */
  function plantedValue(curves, lag, count, strength) {
    if (curves.present[lag] <= 0) return NaN;
    const part = strength * curves.present[lag], row = curves.share[0][lag], fitted = curves.fitted[0][lag];
    return clip(row[largest(gain(row.map((a, k) => part * (2 * a - fitted[k])), curves.noise[0], count))]);
  }

  /* Share of the dependency in the data at one of the lags it was found at. */
  function data(curves, rules, place, lag, count) {
    if (curves.present[lag] <= 0) return unknown;
    const gains = curves.gained.map((row, fit) => gain(row, curves.noise[fit], count));
    return best(curves.inData.map((fit) => fit[place]), gains, rules.quantile);
  }

  /* Sequences from which half is recovered. */
  function needed(curves, rules, lag, strength) {
    const { grid, half } = rules;
    const shares = grid.map((count) => plantedValue(curves, lag, count, strength));
    if (shares.some(Number.isNaN)) return NaN;
    const first = shares.findIndex((v) => v >= half);
    if (first < 0) return Infinity;
    if (first === 0) return grid[0];
    const [low, high] = [shares[first - 1], shares[first]];
    const part = high > low ? (half - low) / (high - low) : 1;
    return Math.exp(Math.log(grid[first - 1]) + part * (Math.log(grid[first]) - Math.log(grid[first - 1])));
  }

  /* Sequences from which the gradient stands out. */
  const visible = (curves, rules, lag, strength) => (curves.seen[0][lag] * rules.standsOut) / strength;

  /* The factor within which that number is known. */
  function visibleWithin(curves, rules, lag) {
    const off = spread(curves.seen.slice(1).map((fit) => Math.log(fit[lag])));
    return Number.isFinite(off) ? Math.exp(rules.quantile * off) : Infinity;
  }

  const larger = (parts) => parts.reduce((a, b) => (Number.isNaN(a[0]) || b[0] > a[0] ? b : a));
  const smaller = (parts) => parts.reduce((a, b) => (Number.isNaN(a[0]) || b[0] < a[0] ? b : a));

  /* What binds at a lag. */
  function limit(rules, { read, reach, ample, within, withinAmple, shown, rising }) {
    const bestShare = Number.isNaN(read) ? reach : Number.isNaN(reach) ? read : Math.max(read, reach);
    if (Number.isNaN(bestShare)) return "unknown";
    if (bestShare >= rules.half && within < rules.half) return "few steps";
    if (read >= rules.half) return "readable";
    if (bestShare >= rules.half) return "reachable";
    if (ample >= rules.half) return withinAmple < rules.half ? "few steps" : "few sequences";
    if (ample + rising >= rules.half) return "unknown";
    return shown ? "blended" : "unseen";
  }

  /* What depends on the strength alone: kept until that changes. */
  function unmoved(page, strength) {
    if (page.kept?.strength === strength) return page.kept.rows;
    const { rules, read, reach, within } = page;
    const both = [read, reach].filter(Boolean), main = reach ?? read, counts = page.readoutCounts;
    const rows = page.lags.map((_, i) => {
      const ample = both.map((curves) => planted(curves, rules, i, rules.ample, strength));
      const halves = { readable: needed(read, rules, i, strength), reachable: reach ? needed(reach, rules, i, strength) : NaN };
      const parts = [counts ? halves.readable : NaN, halves.reachable].filter((n) => !Number.isNaN(n));
      const half = parts.length ? Math.min(...parts) : NaN, most = larger(counts ? ample : ample.slice(1))[0];
      const known = half === Infinity && most + page.rising[i] >= rules.half ? NaN : half;
      const inSteps = within ? needed(within, rules, i, strength) : known;
      return {
        ample: most, withinAmple: within ? planted(within, rules, i, rules.ample, strength)[0] : NaN,
        tells: Math.max(...ample.map((part) => (Number.isNaN(part[1]) ? -Infinity : part[1]))),
        numbers: {
          seen: visible(main, rules, i, strength), seenWithin: visibleWithin(main, rules, i), ...halves,
          needed: known, enough: Math.max(known, inSteps),
        },
      };
    });
    page.kept = { strength, rows };
    return rows;
  }

  /* Everything about every lag at a setting of the sliders. */
  function forecast(page, { sequences, strength }) {
    const { rules, read, reach, within } = page;
    const still = unmoved(page, strength);
    return page.lags.map((lag, i) => {
      const at = (curves) => (curves ? planted(curves, rules, i, sequences, strength) : unknown);
      const [byReadout, all, budget] = [page.readoutCounts ? at(read) : unknown, at(reach), at(within)];
      let share = larger(reach ? [byReadout, all] : [byReadout]);
      if (within) share = smaller([share, budget]);
      const { ample, withinAmple, tells, numbers } = still[i];
      const shown = numbers.seen <= sequences || tells >= rules.aLittle;
      const word = limit(rules, { read: byReadout[0], reach: all[0], ample, within: budget[0], withinAmple, shown, rising: page.rising[i] });
      return { lag, share, word, ...numbers, ...inData(page, i, sequences, shown) };
    });
  }

  /* Share of the dependency in the data, and what binds there. */
  function inData(page, i, sequences, shown) {
    const place = page.dependences.indexOf(i);
    if (place < 0) return { inData: unknown, wordInData: page.untested.includes(i) ? "unknown" : "none found" };
    const { rules, read, reach, within } = page;
    const at = (curves, count) => (curves ? data(curves, rules, place, i, count) : unknown);
    const [byReadout, all, budget] = [page.readoutCounts ? at(read, sequences) : unknown, at(reach, sequences), at(within, sequences)];
    let share = larger(reach ? [byReadout, all] : [byReadout]);
    if (within) share = smaller([share, budget]);
    const ample = larger([page.readoutCounts ? read : null, reach].filter(Boolean).map((curves) => at(curves, rules.ample)))[0];
    const withinAmple = at(within, rules.ample)[0];
    return { inData: share, wordInData: limit(rules, { read: byReadout[0], reach: all[0], ample, within: budget[0], withinAmple, shown, rising: page.rising[i] }) };
  }

  /* Neighbours among the lags together: "0 to 2, 8 and 20". */
  function spans(lags, chosen, neighbours) {
    const runs = [];
    let before = false;
    lags.forEach((lag, i) => {
      const last = runs.at(-1)?.at(-1);
      if (chosen[i] && before && lag <= last + Math.max(1, neighbours * lag)) runs.at(-1).push(lag);
      else if (chosen[i]) runs.push([lag]);
      before = chosen[i];
    });
    const texts = runs.map((run) => (run.length === 1 ? String(run[0]) : `${run[0]} to ${run.at(-1)}`));
    return texts.length === 1 ? texts[0] : `${texts.slice(0, -1).join(", ")} and ${texts.at(-1)}`;
  }

  /* Lags by what binds them: "lags 0 to 2 will be learned; 24 is blended with its neighbours". */
  function sentence(lags, words, said, neighbours) {
    const parts = [];
    said.forEach(([kinds, one, many]) => {
      const chosen = words.map((word) => kinds.includes(word));
      const count = chosen.filter(Boolean).length;
      if (!count) return;
      const named = spans(lags, chosen, neighbours);
      parts.push(`${parts.length ? "" : count > 1 ? "lags " : "lag "}${named} ${count > 1 ? many : one}`);
    });
    return parts.join("; ") || "nothing can be said of these lags";
  }

  /* Numbers that are not finite are written as words starting with @ in the page's data. */
  function revive(key, value) {
    if (typeof value !== "string" || !value.startsWith("@")) return value;
    return { "@inf": Infinity, "@-inf": -Infinity, "@nan": NaN }[value] ?? value.slice(1);
  }

  /* A page's data, packed: gzip in base64. */
  async function unpack(text) {
    const bytes = Uint8Array.from(atob(text), (sign) => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  return { forecast, prepare, sentence, spans, unpack, revive, finer };
})();

/* The page: sliders, choice of layer, scales, theme. State lives in one object and everything is drawn from it. */
"use strict";

const Report = (() => {
  const page = JSON.parse(document.getElementById("data").textContent, WhatIf.revive);
  const safe = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;");
  page.models.forEach((model) => {
    model.plainName = model.name;
    model.name = safe(model.name); // figures read a little HTML; names are shown as they are
    Object.keys(model.labels).forEach((key) => {
      if (typeof model.labels[key] === "string") model.labels[key] = safe(model.labels[key]);
    });
  });
  const clock = ["epoch", "step"].find((name) => page.models.filter((model) => name in model.labels).length > 1);
  const element = (id) => document.getElementById(id);
  const state = { model: 0, layer: 0, scales: [], setting: {}, result: null, results: [] };
  function say(name, value, layer) {
    if (name === "sequences") return Charts.count(value);
    if (name === "strength") return `${Number((100 * value).toPrecision(3))} %`;
    if (name === "error") return value === null ? `as measured (${layer.error})` : String(value);
    if (name === "kappa") return value === null ? `as measured (${Number(layer.kappa.toPrecision(3))})` : String(value);
    return `× ${Number(value.toPrecision(3))}`;
  }

  function read() {
    page.sliders.forEach(({ name, values }) => { state.setting[name] = values[Number(element(`s-${name}`).value)]; });
    const exact = Number(element("exact-sequences").value);
    if (exact > 0) state.setting.sequences = exact;
  }

  function chosen() {
    return page.models[state.model].layers[state.layer];
  }

  function draw(id, figure) {
    const target = element(id);
    if (!target) return;
    const missing = target.parentElement.querySelector(".missing");
    if (missing) missing.hidden = figure !== null;
    target.hidden = figure === null;
    if (figure !== null) Draw.react(target, ...figure);
  }

  function sentence(result) {
    const { sequences, strength } = state.setting;
    const start = `With ${Charts.count(sequences)} sequences,`;
    const what = `a dependency explaining ${say("strength", strength)} of the target would be noticed`;
    const detectable = result.detectable.length ? result.detectable.join(", ") : "none";
    const tail = ` Lags found in the data and within reach: ${detectable}.`;
    if (result.lag === null) {
      const empty = result.status === page.status.empty;
      return `${start} ${empty ? `${what} at no examined lag` : `how far back ${what} cannot be said`}: ${result.status}.${tail}`;
    }
    const ends = result.interval.map((lag) => lag ?? "none").join(" to ");
    const note = result.status === page.status.censored ? `, the longest examined` : "";
    return `${start} ${what} up to lag ${result.lag}${note} (${ends}).${tail}`;
  }

  function update() {
    const layer = chosen();
    read();
    const { setting } = state;
    state.result = WhatIf.whatIf(page, layer, setting);
    page.sliders.forEach(({ name }) => {
      const words = say(name, setting[name], layer);
      element(`o-${name}`).textContent = words;
      element(`s-${name}`).setAttribute("aria-valuetext", words);
    });
    element("readout").textContent = sentence(state.result);
    draw("needed", Charts.needed(layer, state.result, setting));
    draw("reach", Charts.reach(layer, state.result, setting));
    if (page.models.length > 1) compare();
  }

  function compare() {
    state.results = page.models.map((model) => ({ model, ...WhatIf.best(page, model, state.setting) }));
    draw("together", Charts.together(state.results, state.setting));
    draw("windows", Charts.windows(state.results));
    if (clock) draw("training", Charts.training(state.results, clock));
    state.results.forEach((result, i) => {
      element(`reach-${i}`).textContent = result.lag === null ? "no lag" : `lag ${result.lag}`;
      element(`ends-${i}`).textContent = result.interval.map((lag) => lag ?? "none").join(" to ");
      element(`detectable-${i}`).textContent = result.detectable.join(", ") || "none";
      element(`status-${i}`).textContent = result.status;
    });
  }

  function drawPicture(i) {
    draw(`picture-${i}`, Charts.picture(chosen(), page.pictures[i], state.scales[i] ?? "semilog"));
  }

  function drawLayer() {
    const layer = chosen();
    page.pictures.forEach((_, i) => drawPicture(i));
    draw("fidelity", Charts.fidelity(layer));
    const curves = element("curve");
    const before = Math.max(curves.selectedIndex, 0);
    curves.replaceChildren(...layer.curves.map((one, i) => new Option(one.title, i)));
    curves.selectedIndex = Math.min(before, layer.curves.length - 1);
    draw("any-curve", Charts.curve(layer, curves.selectedIndex));
    draw("scales", Charts.scales(layer));
    draw("quantiles", Charts.quantiles(layer));
    draw("tail", Charts.tail(layer));
    document.querySelectorAll("[data-view]").forEach((part) => {
      part.hidden = part.dataset.view !== `${state.model}-${state.layer}`;
    });
  }

  /* What will be recovered, as measured; diamonds stand where the data depend on a lag. */
  function drawBars(bars) {
    const whole = (share) => `${Math.round(100 * share)} %`;
    const rows = bars.lags.map((name, i) => ({
      name, share: [bars.share[i], bars.low[i], bars.high[i]], word: bars.words[i],
      text: `lag ${name}: ${whole(bars.share[i])}<br>${bars.looks.find(({ word }) => word === bars.words[i]).name}${bars.inData[i] ? "<br>your data depend on it" : ""}`,
    }));
    const marks = bars.lags.map((_, i) => i).filter((i) => bars.inData[i]).map((i) => ({ at: i, value: bars.share[i], text: rows[i].text }));
    draw(bars.id, Bars.figure(bars.looks, rows, marks, "your data depend on it"));
  }

  function drawAll() {
    page.bars.forEach(drawBars);
    update();
    drawLayer();
  }

  function listen() {
    page.sliders.forEach(({ name }) => element(`s-${name}`).addEventListener("input", () => {
      if (name === "sequences") element("exact-sequences").value = "";
      update();
    }));
    element("exact-sequences").addEventListener("input", update);
    element("reset").addEventListener("click", () => {
      page.sliders.forEach(({ name, start }) => { element(`s-${name}`).value = start; });
      element("exact-sequences").value = "";
      update();
    });
    element("curve").addEventListener("change", (event) => draw("any-curve", Charts.curve(chosen(), event.target.selectedIndex)));
    const view = element("view");
    view?.addEventListener("change", () => {
      [state.model, state.layer] = view.value.split("-").map(Number);
      drawAll();
    });
    page.pictures.forEach((_, i) => {
      document.querySelectorAll(`input[name=scale-${i}]`).forEach((button) => button.addEventListener("change", () => {
        state.scales[i] = button.value;
        drawPicture(i);
      }));
    });
    Theme.listen(drawAll);
  }

  listen();
  drawAll();
  document.documentElement.dataset.drawn = "yes";
  return { page, state, update };
})();

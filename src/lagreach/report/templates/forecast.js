/* The page of a forecast: bars, curves, sentence, advice and table follow the sliders. */
"use strict";

const ForecastPage = (() => {
  const element = (id) => document.getElementById(id);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 640;
  const state = { page: null, setting: {}, result: [] };

  /* A number of sequences to two digits, as people write it. */
  function count(n) {
    if (Number.isNaN(n)) return "-";
    if (n === Infinity) return "never";
    if (n < 1) return "less than one";
    if (n >= 1e6) return n.toExponential(0).replace(/e\+(\d)$/, "e+0$1");
    const unit = 10 ** Math.max(0, String(Math.floor(n)).length - 2);
    return (Math.round(n / unit) * unit).toLocaleString("en");
  }

  const percent = (share) => (Number.isNaN(share) ? "unknown" : `${Math.round(100 * share)} %`);
  const range = (low, high) => (Number.isNaN(low) ? "" : `(${Math.round(100 * low)} to ${Math.round(100 * high)})`);
  const whole = (n) => Number(n).toLocaleString("en");

  function words(row) {
    const { looks } = state.page;
    const name = looks.find(({ word }) => word === row.word).name;
    const data = Number.isNaN(row.inData[0]) ? "" : `<br>in the data: ${percent(row.inData[0])} ${range(row.inData[1], row.inData[2])}`;
    return `lag ${row.lag}: ${percent(row.share[0])} ${range(row.share[1], row.share[2])}<br>${name}${data}`;
  }

  /* One bar a lag, coloured by what binds. */
  function bars() {
    const { result, page } = state;
    return Bars.figure(page.looks, result.map((row) => ({ name: String(row.lag), share: row.share, word: row.word, text: words(row) })),
      page.dependences.map((i) => ({ at: i, value: result[i].inData[0], text: words(result[i]) })), "in your data");
  }

  /* Sequences from which a lag is seen, half of it readable, half of it reachable. */
  function takes() {
    const { result, setting } = state;
    const top = 10 * Math.max(1e4, setting.sequences), place = result.map((_, i) => i);
    const sure = (row, key) => Number.isFinite(row[key]) && (key !== "seen" || row.seenWithin <= state.page.rules.sure);
    const line = (key, name, colour, dash, symbol) => ({
      x: place, y: result.map((row) => (sure(row, key) ? Math.max(row[key], 1) : null)), name, mode: "lines+markers",
      line: { color: css(colour), width: 2.4, dash }, marker: { size: 6, symbol, color: css(colour) },
      text: result.map((row) => `lag ${row.lag}<br>${name}: ${count(row[key])} sequences`),
    });
    const traces = [line("seen", "seen", "--faint", "dot", "square"), line("readable", "half of it readable", "--c3", "solid", "circle")];
    if (state.page.reach) traces.push(line("reachable", "half of it reachable", "--c1", "dash", "diamond"));
    const numbers = traces.flatMap(({ y }) => y).filter((n) => n !== null && n <= top);
    const range = [-0.15, Math.log10(Math.max(3 * setting.sequences, 1.5 * Math.max(1, ...numbers)))];
    const have = { type: "line", xref: "paper", x0: 0, x1: 1, y0: setting.sequences, y1: setting.sequences, line: { color: css("--ink"), width: 1.5, dash: "dash" } };
    const under = { type: "rect", xref: "paper", x0: 0, x1: 1, y0: 0.5, y1: setting.sequences, layer: "below", fillcolor: css("--within"), line: { width: 0 } };
    const name = { xref: "paper", x: 0.01, y: Math.log10(setting.sequences), text: `${whole(setting.sequences)} sequences` };
    return [traces, Bars.layout({ height: narrow() ? 280 : 300, xaxis: Bars.lagAxis(state.page.lags.map(String)), yaxis: { title: { text: "sequences" }, type: "log", range }, shapes: [under, have], annotations: [name] })];
  }

  function advice() {
    const { page, setting, result } = state;
    const inData = page.dependences.length > 0, lines = [];
    page.remedies.forEach(([word, remedy, counted]) => {
      const chosen = result.map((row) => (inData ? row.wordInData : row.word) === word);
      if (!chosen.some(Boolean)) return;
      const rows = result.filter((row, i) => chosen[i] && (counted || row.needed > setting.sequences));
      const most = rows.length ? Math.max(...rows.map((row) => (counted ? row.enough : row.needed))) : Infinity;
      const besides = counted ? ", " : word === "few steps" ? ", and with more sequences, " : "";
      const few = count(most) === count(setting.sequences) || count(most) === whole(setting.sequences);
      const much = few ? `a few more than ${whole(setting.sequences)}` : `about ${count(most)}`;
      const enough = besides && Number.isFinite(most) ? besides + much : "";
      lines.push(`${chosen.filter(Boolean).length > 1 ? "Lags" : "Lag"} ${Shares.spans(page.lags, chosen, page.neighbours)}: ${remedy}${enough}.`);
    });
    return lines.length ? lines : [page.nothingToDo];
  }

  function fill() {
    const { page, setting, result } = state;
    const said = (key) => Shares.sentence(page.lags, result.map((row) => row[key]), page.said, page.neighbours);
    element("answer").textContent = `From ${whole(setting.sequences)} sequences, ${said("word")}.`;
    if (page.dependences.length) {
      const there = result.map((_, i) => page.dependences.includes(i));
      const lags = `${page.dependences.length > 1 ? "lags" : "lag"} ${Shares.spans(page.lags, there, page.neighbours)}`;
      element("in-data").textContent = `Your targets depend on ${lags} (diamonds): ${said("wordInData")}.`;
    }
    element("to-do").replaceChildren(...advice().map((line) => { const item = document.createElement("li"); item.textContent = line; return item; }));
    result.forEach((row, i) => {
      const cell = (name) => element(`${name}-${i}`);
      cell("share").textContent = percent(row.share[0]);
      cell("range").textContent = range(row.share[1], row.share[2]);
      cell("data").textContent = page.dependences.includes(i) ? percent(row.inData[0]) : page.untested.includes(i) ? page.notTested : row.wordInData;
      cell("seen").textContent = row.seen === Infinity ? page.notSeen : count(row.seen);
      cell("needed").textContent = count(row.needed);
      cell("word").textContent = row.word;
      cell("word").className = `light ${page.looks.find(({ word }) => word === row.word).learned ? "good" : "bad"}`;
    });
    const cut = page.sliders.map(({ name }) => [name, name === "sequences" ? whole(setting.sequences) : `${Number((100 * setting.strength).toPrecision(3))} %`]);
    cut.forEach(([name, text]) => {
      element(`o-${name}`).textContent = text;
      element(`s-${name}`).setAttribute("aria-valuetext", text);
    });
    element("at").textContent = `With ${cut[0][1]} sequences; a dependency that explains ${cut[1][1]} of the target.`;
  }

  function draw() {
    Draw.react(element("bars"), ...bars());
    Draw.react(element("takes"), ...takes());
  }

  function update() {
    const { page } = state;
    page.sliders.forEach(({ name, values }) => { state.setting[name] = values[Number(element(`s-${name}`).value)]; });
    const exact = Number(element("exact-sequences").value);
    if (exact > 0) state.setting.sequences = exact;
    state.result = Shares.forecast(page, state.setting);
    fill();
    draw();
  }

  function listen() {
    const { page } = state;
    let asked = null; // many moves of a slider are one drawing
    const updateWithNextFrame = () => { asked ??= requestAnimationFrame(() => { asked = null; update(); }); };
    page.sliders.forEach(({ name }) => element(`s-${name}`).addEventListener("input", () => {
      if (name === "sequences") element("exact-sequences").value = "";
      updateWithNextFrame();
    }));
    element("exact-sequences").addEventListener("input", updateWithNextFrame);
    element("reset").addEventListener("click", () => {
      page.sliders.forEach(({ name, start }) => { element(`s-${name}`).value = start; });
      element("exact-sequences").value = "";
      update();
    });
    Theme.listen(draw);
  }

  async function start() {
    const text = await Shares.unpack(element("data").textContent);
    const page = JSON.parse(text, Shares.revive);
    ["read", "reach", "within"].forEach((name) => { page[name] = Shares.prepare(page[name], page.rules); });
    state.page = page;
    listen();
    update();
    document.documentElement.dataset.drawn = "yes";
  }

  start();
  return { state, update, count };
})();

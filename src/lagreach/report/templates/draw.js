/* A small drawing in SVG: lines, bands, bars and markers on linear, logarithmic or named axes.
   A figure is a list of traces and a layout; a legend of buttons switches traces, and the nearest point tells its text. */
"use strict";

const Draw = (() => {
  const NS = "http://www.w3.org/2000/svg";
  const DASHES = { dash: "8 5", dot: "2 4", dashdot: "8 4 2 4", longdash: "13 5", longdashdot: "13 4 2 4" };
  const SYMBOLS = ["circle", "diamond", "square", "triangle", "cross"];
  const NEAR = 32; // pixels from the pointer to a point that is told
  const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const power = (k) => (k < 0 ? "⁻" : "") + [...String(Math.abs(k))].map((digit) => RAISED[digit]).join("");

  function node(name, attributes = {}, ...children) {
    const made = document.createElementNS(NS, name);
    Object.entries(attributes).forEach(([key, value]) => { if (value !== undefined && value !== null) made.setAttribute(key, value); });
    made.append(...children);
    return made;
  }

  const among = (values, i) => (Array.isArray(values) ? values[i] : values);
  const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

  /* Name of a decade: 100, 1,000, 10⁵. */
  function decade(k) {
    return k >= 0 && k < 5 ? (10 ** k).toLocaleString("en") : k < 0 && k > -3 ? String(Number((10 ** k).toFixed(-k))) : `10${power(k)}`;
  }

  function logTicks(low, high, count) {
    const first = Math.ceil(low - 1e-9), last = Math.floor(high + 1e-9);
    if (last - first >= 1) {
      const step = Math.max(1, Math.ceil((last - first + 1) / count));
      return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => first + i * step).map((k) => [k, decade(k)]);
    }
    const parts = [1, 2, 3, 5, 7].flatMap((m) => [Math.floor(low), Math.floor(low) + 1].map((k) => m * 10 ** k));
    return parts.filter((v) => Math.log10(v) >= low && Math.log10(v) <= high).sort((a, b) => a - b)
      .map((v) => [Math.log10(v), String(Number(v.toPrecision(2)))]);
  }

  function evenTicks(low, high, count, percent) {
    const rough = (high - low) / count, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= rough - 1e-12 * unit);
    const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
    const word = (v) => (percent ? `${Number((100 * v).toPrecision(6))} %` : Number(v.toPrecision(6)).toLocaleString("en", { maximumFractionDigits: 12 }));
    return Array.from({ length: last - first + 1 }, (_, i) => (first + i) * step).map((v) => [v, word(v)]);
  }

  /* Where values stand on an axis between two pixels, and its ticks. */
  function makeScale(axis, values, from, to, count) {
    const names = axis.type === "category" ? axis.categoryarray : null;
    const turn = names ? (v) => names.indexOf(v) : axis.type === "log" ? (v) => (v > 0 ? Math.log10(v) : NaN) : (v) => v;
    const turned = values.filter(known).map(turn).filter(Number.isFinite);
    let [low, high] = names ? [-0.6, names.length - 0.4] : axis.range ?? [NaN, NaN];
    if (!Number.isFinite(low) || !Number.isFinite(high)) {
      if (axis.rangemode === "tozero") turned.push(0);
      [low, high] = turned.length ? [Math.min(...turned), Math.max(...turned)] : [0, 1];
      const room = high > low ? 0.05 * (high - low) : 0.5;
      if (!(axis.rangemode === "tozero" && low === 0)) low -= room;
      high += room;
    }
    const at = (v) => from + ((turn(v) - low) / (high - low)) * (to - from);
    let ticks = names ? names.map((name, i) => [i, plainText(name)])
      : axis.tickvals ? axis.tickvals.map((v, i) => [axis.type === "log" ? Math.log10(v) : v, axis.ticktext?.[i] ?? String(v)])
        : axis.type === "log" ? logTicks(low, high, count) : evenTicks(low, high, count, (axis.tickformat ?? "").endsWith("%"));
    const slack = 1e-9 * (high - low);
    ticks = ticks.filter(([v]) => v >= low - slack && v <= high + slack);
    return { at, low, high, ticks: ticks.map(([v, text]) => [from + ((v - low) / (high - low)) * (to - from), text]) };
  }

  /* Values that an axis has to show. */
  function shownOn(traces, key, name, which) {
    return traces.filter((trace) => (trace[which] ?? key) === name).flatMap((trace) => {
      const numbers = [...trace[key]];
      if (key === "x" && trace.type === "bar") return trace.x.flatMap((v) => [v - trace.width / 2, v + trace.width / 2]);
      if (key !== "y") return numbers;
      if (trace.type === "bar") numbers.push(0);
      if (trace.error_y) numbers.push(...ends(trace).flat());
      return numbers;
    });
  }

  /* Ends of the error bars. */
  function ends(trace) {
    const { array, arrayminus = array } = trace.error_y;
    return trace.y.map((v, i) => (known(v) ? [v - among(arrayminus, i), v + among(array, i)] : [null, null]));
  }

  function path(points, shape) {
    let text = "", before = null;
    points.forEach((point) => {
      if (!point || !point.every(Number.isFinite)) { before = null; return; }
      const [x, y] = point.map((v) => v.toFixed(2));
      text += before === null ? `M${x},${y}` : shape === "hv" ? `H${x}V${y}` : `L${x},${y}`;
      before = point;
    });
    return text;
  }

  function symbol(kind, x, y, size, fill, line) {
    const r = size / 2, open = kind.endsWith("-open"), name = kind.replace("-open", "");
    const looks = { fill: open ? "none" : fill, stroke: open ? fill : line?.color, "stroke-width": open ? 1.5 : line?.width };
    if (name === "diamond") return node("path", { d: `M${x},${y - r * 1.2}l${r * 1.2},${r * 1.2}l${-r * 1.2},${r * 1.2}l${-r * 1.2},${-r * 1.2}z`, ...looks });
    if (name === "square") return node("rect", { x: x - r, y: y - r, width: size, height: size, ...looks });
    if (name === "triangle") return node("path", { d: `M${x},${y - r}l${r},${2 * r}h${-2 * r}z`, ...looks });
    if (name === "x" || name === "cross") return node("path", { d: `M${x - r},${y - r}l${size},${size}M${x + r},${y - r}l${-size},${size}`, fill: "none", stroke: fill, "stroke-width": 2.5 });
    if (name === "line-ns") return node("path", { d: `M${x},${y - r}v${size}`, stroke: line?.color ?? fill, "stroke-width": line?.width ?? 1, fill: "none" });
    return node("circle", { cx: x, cy: y, r, ...looks });
  }

  const plainText = (text) => String(text ?? "").replaceAll("<br>", "\n").replaceAll("&lt;", "<").replaceAll("&amp;", "&");

  /* Slanted lines in a colour: bars that are told apart without it. */
  function hatched(defs, colour, id) {
    const lines = node("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      node("rect", { width: 6, height: 6, fill: colour, "fill-opacity": 0.28 }), node("rect", { width: 2.4, height: 6, fill: colour }));
    defs.append(lines);
    return `url(#${id})`;
  }

  function drawTrace(trace, x, y, group, defs, points, id, before) {
    const place = trace.x.map((v, i) => (known(v) && known(trace.y[i]) ? [x.at(v), y.at(trace.y[i])] : null));
    const line = trace.line ?? {}, marker = trace.marker ?? {}, mode = trace.mode ?? "lines";
    const colour = (i) => among(marker.color, i) ?? line.color;
    if (trace.type === "bar") {
      const zero = y.at(0), fill = marker.hatch ? hatched(defs, marker.color, id) : marker.color;
      place.forEach((at, i) => {
        if (!at) return;
        const half = Math.abs(x.at(trace.x[i] + trace.width / 2) - at[0]);
        const top = Math.min(at[1], zero), height = Math.max(Math.abs(zero - at[1]), 1.5);
        group.append(node("rect", { class: "bar", x: at[0] - half, y: top, width: 2 * half, height, fill, stroke: marker.hatch ? marker.color : null, rx: Math.min(2, half) }));
      });
    } else if (trace.fill) {
      const beyond = trace.fill === "tonexty" && before ? before : [];
      const outline = path(place, line.shape) + [...beyond].reverse().filter(Boolean).map((p, k) => `${line.shape === "hv" && k ? `V${p[1].toFixed(2)}H${p[0].toFixed(2)}` : `L${p[0].toFixed(2)},${p[1].toFixed(2)}`}`).join("");
      if (outline) group.append(node("path", { d: `${outline}Z`, fill: trace.fillcolor, stroke: "none" }));
    } else if (mode.includes("lines") && line.width !== 0) {
      group.append(node("path", { d: path(place, line.shape), fill: "none", stroke: line.color, "stroke-width": line.width ?? 2, "stroke-dasharray": DASHES[line.dash], "stroke-linejoin": "round", opacity: trace.opacity }));
    }
    if (trace.error_y) ends(trace).forEach(([low, high], i) => {
      if (!place[i] || !known(low)) return;
      const [bottom, top] = [low, high].map((v) => y.at(v)), at = place[i][0], cap = (trace.error_y.width ?? 4);
      if (![bottom, top].every(Number.isFinite) || bottom === top) return;
      group.append(node("path", { class: "whisker", d: `M${at},${bottom}V${top}M${at - cap},${top}h${2 * cap}M${at - cap},${bottom}h${2 * cap}`, stroke: trace.error_y.color, "stroke-width": trace.error_y.thickness ?? 1.5, fill: "none" }));
    });
    if (mode.includes("markers") && trace.type !== "bar") place.forEach((at, i) => {
      if (!at || !at.every(Number.isFinite)) return;
      const kind = among(marker.symbol, i) ?? "circle";
      const mark = symbol(typeof kind === "number" ? SYMBOLS[kind % SYMBOLS.length] : kind, at[0], at[1], among(marker.size, i) ?? 6, colour(i), marker.line);
      if (marker.opacity) mark.setAttribute("opacity", marker.opacity);
      group.append(mark);
    });
    if (trace.text && trace.hoverinfo !== "skip") place.forEach((at, i) => { if (at) points.push([...at, plainText(among(trace.text, i))]); });
    return place;
  }

  function drawShape(shape, x, y, box) {
    const across = shape.xref === "paper" ? (v) => box.left + v * (box.right - box.left) : x.at;
    const up = shape.yref === "paper" ? (v) => box.bottom + v * (box.top - box.bottom) : y.at;
    const [x0, x1, y0, y1] = [across(shape.x0), across(shape.x1), up(shape.y0), up(shape.y1)];
    if (shape.type === "line") return node("path", { d: `M${x0},${y0}L${x1},${y1}`, stroke: shape.line.color, "stroke-width": shape.line.width, "stroke-dasharray": DASHES[shape.line.dash] });
    return node("rect", { x: Math.min(x0, x1), y: Math.min(y0, y1), width: Math.abs(x1 - x0), height: Math.abs(y1 - y0), fill: shape.fillcolor });
  }

  /* Labels that do not run into each other: every one, or every second, third, ... */
  function thinned(ticks, room) {
    if (ticks.length < 2) return ticks;
    const gap = Math.min(...ticks.slice(1).map(([at], i) => Math.abs(at - ticks[i][0])));
    const widest = Math.max(...ticks.map(([, text]) => room(text)));
    const every = Math.max(1, Math.ceil(widest / Math.max(gap, 1e-6)));
    let last = -Infinity;
    if (every === 1) return ticks;
    return ticks.filter(([at, text]) => {
      const wanted = at - last >= room(text) || last === -Infinity;
      if (wanted) last = at;
      return wanted;
    });
  }

  function drawAxes(svg, axes, x, ys, box, size, line, faint, ink) {
    const front = node("g", { class: "axes" });
    const label = (text, attributes) => node("text", { "font-size": size - 1, fill: ink, ...attributes }, text);
    thinned(x.ticks, (text) => text.length * size * 0.6 + 8).forEach(([at, text]) => {
      if (!axes.x.bare) front.append(node("path", { d: `M${at},${box.bottom}V${box.top}`, stroke: line }));
      front.append(label(text, { x: at, y: box.bottom + size + 4, "text-anchor": "middle" }));
    });
    ys.forEach(({ scale, top, bottom, axis }) => {
      thinned(scale.ticks, () => size + 3).forEach(([at, text]) => front.append(
        node("path", { d: `M${box.left},${at}H${box.right}`, stroke: line }),
        label(text, { x: box.left - 6, y: at + size * 0.34, "text-anchor": "end" })));
      front.append(label(axis.title?.text ?? "", { class: "title", "text-anchor": "middle", transform: `translate(${size},${(top + bottom) / 2}) rotate(-90)` }));
      front.append(node("path", { d: `M${box.left},${bottom}H${box.right}`, stroke: faint }));
    });
    front.append(label(axes.x.title?.text ?? "", { class: "title", x: (box.left + box.right) / 2, y: box.bottom + 2 * size + 12, "text-anchor": "middle" }));
    svg.append(front);
  }

  function legend(target, traces, figure) {
    const list = document.createElement("div");
    list.className = "legend";
    const named = traces.filter((trace) => trace.name && trace.showlegend !== false && trace.fill === undefined);
    if (figure.layout.showlegend === false || (named.length < 2 && !figure.layout.showlegend)) return null;
    named.forEach((trace) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", String(trace.visible !== "legendonly"));
      const key = node("svg", { width: 26, height: 14, "aria-hidden": "true" }), defs = node("defs");
      key.append(defs);
      const scale = { at: (v) => v };
      const short = trace.type === "bar" ? { ...trace, x: [13], y: [2], width: 20, error_y: null }
        : { ...trace, x: [1, 25], y: [7, 7], error_y: null, mode: (trace.mode ?? "lines").replace("+markers", "") };
      if (trace.type === "bar") drawTrace(short, scale, { at: (v) => (v ? 2 : 13) }, key, defs, [], `key-${Math.random().toString(36).slice(2)}`);
      else if (short.mode === "markers") key.append(symbol(String(among(trace.marker.symbol, 0) ?? "circle"), 13, 7, 9, among(trace.marker.color, 0)));
      else drawTrace(short, scale, scale, key, defs, [], "");
      const text = document.createElement("span");
      text.className = "legendtext";
      text.textContent = plainText(trace.name);
      button.append(key, text);
      button.addEventListener("click", () => {
        const hidden = trace.visible === "legendonly" ? undefined : "legendonly";
        traces.filter((other) => other === trace || (trace.legendgroup && other.legendgroup === trace.legendgroup))
          .forEach((other) => { figure.hidden.set(other.name, hidden); other.visible = hidden; });
        paint(target, figure);
        [...target.querySelectorAll(".legend button")].find((b) => b.textContent === button.textContent)?.focus();
      });
      list.append(button);
    });
    return list;
  }

  /* The nearest point with a text, told beside the pointer. */
  function telling(target, svg, points) {
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect(), [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
      let best = null, nearest = NEAR;
      points.forEach((point) => {
        const far = Math.hypot(point[0] - px, point[1] - py);
        if (far < nearest) { nearest = far; best = point; }
      });
      tip.hidden = best === null;
      if (best === null) return;
      tip.textContent = best[2];
      const left = Math.min(best[0] + 12, frame.width - tip.offsetWidth - 4);
      tip.style.left = `${Math.max(0, left)}px`;
      tip.style.top = `${Math.max(0, best[1] - tip.offsetHeight - 10)}px`;
    });
    svg.addEventListener("pointerleave", () => { tip.hidden = true; });
    return tip;
  }

  let figures = 0;

  function paint(target, figure) {
    const { traces, layout } = figure;
    const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const width = Math.max(target.clientWidth, 200), height = layout.height ?? 400, size = layout.font?.size ?? 13;
    const shown = traces.filter((trace) => trace.visible !== "legendonly");
    const vertical = Object.keys(layout).filter((key) => key.startsWith("yaxis")).map((key) => ({ axis: layout[key], name: key.replace("axis", "") }));
    const box = { top: 12, bottom: height - 2 * size - 20 };
    const rows = vertical.map(({ axis, name }) => {
      const [low, high] = axis.domain ?? [0, 1];
      const [bottom, top] = [low, high].map((part) => box.bottom + part * (box.top - box.bottom));
      return { axis, top, bottom, scale: makeScale(axis, shownOn(shown, "y", name, "yaxis"), bottom, top, axis.nticks ?? Math.max(3, Math.round((bottom - top) / 60))) };
    });
    const longest = Math.max(3, ...rows.flatMap(({ scale }) => scale.ticks.map(([, text]) => String(text).length)));
    box.left = Math.min(size * 2 + longest * size * 0.56 + 10, 0.4 * width);
    box.right = width - 14;
    const x = makeScale(layout.xaxis, shownOn(shown, "x", "x", "xaxis"), box.left, box.right, Math.max(3, Math.round((box.right - box.left) / 80)));
    const label = target.parentElement?.querySelector("figcaption")?.textContent ?? "";
    const svg = node("svg", { class: "main-svg", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
    const defs = node("defs"), id = `clip-${(figures += 1)}`;
    defs.append(node("clipPath", { id }, node("rect", { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 8 })));
    svg.append(defs);
    const y = rows[0].scale, points = [];
    const shapes = (layout.shapes ?? []).map((shape) => [shape.layer === "below", drawShape(shape, x, y, box)]);
    const layer = (...parts) => { const group = node("g", { "clip-path": `url(#${id})` }); group.append(...parts); svg.append(group); };
    layer(...shapes.filter(([below]) => below).map(([, drawn]) => drawn));
    drawAxes(svg, { x: layout.xaxis }, x, rows, box, size, css("--line"), css("--faint"), css("--ink"));
    layer(...shapes.filter(([below]) => !below).map(([, drawn]) => drawn));
    const group = node("g", { "clip-path": `url(#${id})` });
    svg.append(group);
    let before = null;
    shown.forEach((trace, i) => {
      const row = rows[vertical.findIndex(({ name }) => name === (trace.yaxis ?? "y"))];
      before = drawTrace(trace, x, row.scale, group, defs, points, `${id}-${i}`, before);
    });
    (layout.annotations ?? []).forEach((note) => {
      const at = note.xref === "paper" ? box.left + note.x * (box.right - box.left) : x.at(note.x);
      const up = box.bottom + ((note.y - y.low) / (y.high - y.low)) * (box.top - box.bottom);
      svg.append(node("text", { x: at, y: up - 5, "font-size": size - 1, fill: css("--ink"), "text-anchor": note.xanchor === "right" ? "end" : "start" }, note.text));
    });
    target.replaceChildren(svg, telling(target, svg, points));
    const named = legend(target, traces, figure);
    if (named) target.append(named);
    target.data = traces;
    target.layout = layout;
  }

  const drawn = new Map();
  const watcher = new ResizeObserver((entries) => entries.forEach(({ target, contentRect }) => {
    const figure = drawn.get(target);
    if (figure && contentRect.width > 0 && Math.abs(contentRect.width - figure.width) > 1) {
      figure.width = contentRect.width;
      paint(target, figure);
    }
  }));

  /* Draw, or draw again; what was switched off in the legend stays so. */
  function react(target, traces, layout) {
    const hidden = drawn.get(target)?.hidden ?? new Map();
    traces.forEach((trace) => { if (hidden.has(trace.name)) trace.visible = hidden.get(trace.name); });
    const figure = { traces, layout, hidden, width: target.clientWidth };
    if (!drawn.has(target)) watcher.observe(target);
    drawn.set(target, figure);
    if (target.clientWidth > 0) paint(target, figure);
    else { target.data = traces; target.layout = layout; } // folded away: drawn once it has a width
  }

  return { react, power, decade };
})();

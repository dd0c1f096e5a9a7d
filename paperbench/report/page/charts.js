// Draws every figure.chart from the JSON in it: training loss dashed, test error solid, as the paper prints its curves.
"use strict";
(() => {
  const SHAPES = ["M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z", "M-3.6,-3.6h7.2v7.2h-7.2z", "M0,-4.8L4.4,3.6H-4.4z",
    "M0,-5.2L5.2,0L0,5.2L-5.2,0z", "M0,4.8L4.4,-3.6H-4.4z", "M-1.6,-4.8h3.2v3.2h3.2v3.2h-3.2v3.2h-3.2v-3.2h-3.2v-3.2h3.2z",
    "M-4.4,-4.4H4.4L-4.4,4.4H4.4z"];
  const OPEN = "M-3.5,0a3.5,3.5 0 1,0 7,0a3.5,3.5 0 1,0 -7,0z", CROSS = "M-4,-4L4,4M-4,4L4,-4", REPORTED = "M-1,0L-9,-4V4z";

  /** Make an element; strings among the children become text, so that no data can become markup. */
  function make(tag, attributes, ...children) {
    const isSvg = /^(svg|g|path|rect|line|circle|text|clipPath|defs)$/.test(tag);
    const element = isSvg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }
  const whole = (number) => Math.round(number).toLocaleString("en-US");
  const short = (number) => String(Number(number.toPrecision(3)));
  const symbol = (...children) => make("svg", {viewBox: "-8 -8 16 16", "aria-hidden": "true"}, ...children);

  function ticks(low, high, wanted) {
    const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const first = Math.ceil(low / step - 1e-6);
    return Array.from({length: Math.floor(high / step + 1e-6) - first + 1}, (_, i) => Number(((first + i) * step).toPrecision(9)));
  }

  /** Ticks of a logarithmic axis: the paper's 0.002, 0.02, 0.2, 2 where they are dense enough. */
  function logTicks(low, high) {
    for (const factors of [[2], [1, 2, 5]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
        for (const factor of factors) found.push(Number(`${factor}e${power}`));
      }
      const inside = found.filter((tick) => tick >= low && tick <= high);
      if (inside.length > 2) return inside.filter((_, i) => i % Math.ceil(inside.length / 9) === 0);
    }
    return ticks(low, high, 4).filter((tick) => tick > 0);
  }

  /** The index of the last x that is not beyond a position; -1 if there is none. */
  function indexAt(xs, position) {
    let low = 0, high = xs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= position) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  /** An SVG path through the points from first to last, broken where a value is missing. */
  function pathOf({x, y}, scale, first, last, xOf, yOf) {
    let path = "", pen = "M";
    for (let i = first; i <= last; i++) {
      if (y[i] !== null) path += `${pen}${xOf(x[i] * scale).toFixed(1)},${yOf(y[i]).toFixed(1)}`;
      pen = y[i] === null ? "M" : "L";
    }
    return path;
  }

  function draw(figure, number) {
    const data = JSON.parse(figure.querySelector("script").textContent);
    const expand = ({x, y}) => {
      const from = data.xs[x];
      return {x: Array.isArray(from) ? from.slice(0, y.length) : y.map((_, i) => from.first + i * from.step), y};
    };
    const curves = data.curves.map((curve, index) => ({
      ...curve, index, shown: true, groups: [], loss: expand(curve.loss), error: expand(curve.error),
      diverged: curve.runs.some((run) => run.status === "diverged"),
      runs: curve.runs.map((run) => ({...run, loss: expand(run.loss), error: expand(run.error)})),
    }));
    const drawn = curves.filter((curve) => curve.runs.some((run) => run.loss.y.length));
    for (const {run, seed, problem} of curves.flatMap((curve) => curve.runs)) {
      if (problem) figure.append(make("p", {class: "problem"}, `Run ${run} (seed ${seed}) is not drawn: ${problem}`));
    }
    for (const curve of curves.filter((one) => !drawn.includes(one) && !one.runs.some((run) => run.problem))) {
      figure.append(make("p", {class: "problem"}, `${curve.label} (${curve.state}) has no line of history to draw.`));
    }
    if (!drawn.length) return figure.append(make("p", {class: "problem"}, "No run has a history."));

    const hasEpochs = drawn.every((curve) => curve.epochs !== null);
    const state = {unit: "iterations", seeds: true, view: null, cursor: Infinity, allErrors: false, width: 0};
    const scaleOf = (curve) => (state.unit === "epochs" ? curve.epochs : 1);
    const shown = () => drawn.filter((curve) => curve.shown);
    let grid = [], full = [0, 1], place = null, xOf = null, atX = null;

    // What there is to operate
    const button = (name, label, act) => {
      const one = make("button", {type: "button", "aria-label": label, title: label}, name);
      one.addEventListener("click", act);
      return one;
    };
    const option = (type, label, checked, act, group = {}) => {
      const input = make("input", {type, ...group});
      input.checked = checked;
      input.addEventListener("change", () => { act(input.checked); render(); });
      return make("label", {}, input, label);
    };
    const plot = make("div", {class: "plot"});
    const slider = make("input", {type: "range", min: "0", step: "1", "aria-label": `Position in the curves of ${data.title}`});
    const output = make("output", {"aria-live": "off"});
    const units = ["iterations", "epochs"].map((unit, i) => option("radio", unit, !i, () => setUnit(unit), {name: `chart-unit-${number}`}));
    const controls = make("div", {class: "controls"},
      make("span", {class: "controls", role: "group", "aria-label": "zoom"},
        button("+", "zoom in", () => zoom(0.5)), button("−", "zoom out", () => zoom(2)), button("reset", "reset the zoom", () => setView(null))),
      ...(hasEpochs ? [make("span", {class: "controls", role: "radiogroup", "aria-label": "horizontal axis"}, ...units)] : []),
      option("checkbox", "all seeds", true, (checked) => { state.seeds = checked; }),
      option("checkbox", "errors to 100 %", false, (checked) => { state.allErrors = checked; }),
      make("label", {class: "cursor-slider"}, make("span", {"aria-hidden": "true"}, "position"), slider));
    const sample = (kind) => symbol(make("path", {class: kind, d: "M-15,0H15", "stroke-width": "2"}));
    const key = make("div", {class: "key"},
      make("span", {}, sample("loss"), "training loss (left axis)"), make("span", {}, sample("error"), "test error, by moving averages of BN (right axis)"),
      make("span", {}, "bold: median, faint: each seed"));
    for (const [status, word, d] of [["partial", "prefix", OPEN], ["diverged", "diverged", CROSS]]) {
      if (drawn.some((curve) => curve.runs.some((run) => run.status === status))) key.append(make("span", {}, symbol(make("path", {class: "end", d})), word));
    }
    if (drawn.some((curve) => curve.reported !== null)) {
      key.append(make("span", {}, symbol(make("path", {class: "end", d: REPORTED, transform: "translate(5)"})), "reported error (BN re-estimated)"));
    }
    const cut = make("p", {class: "note"});
    const isMixed = new Set(drawn.map((curve) => curve.conditions)).size > 1;
    if (!isMixed) key.append(make("span", {}, drawn[0].conditions));
    const note = (curve) => curve.state + (curve.reported === null ? "" : `, reported ${curve.reported.toFixed(2)}\u00a0%`) + (isMixed ? `, ${curve.conditions}` : "");
    const rows = drawn.map((curve) => {
      const box = make("input", {type: "checkbox"}), cells = [make("td", {}), make("td", {})];
      box.checked = true;
      box.addEventListener("change", () => { curve.shown = box.checked; render(); });
      const name = make("span", {}, curve.label, " ", make("span", {class: "note"}, note(curve)));
      const row = make("tr", {class: `k${curve.index % 8}`},
        make("th", {scope: "row", title: curve.cell}, make("label", {}, box, symbol(make("path", {class: "shape", d: SHAPES[curve.index % 7]})), name)), ...cells);
      for (const [event, lit] of [["mouseenter", true], ["focusin", true], ["mouseleave", false], ["focusout", false]]) {
        row.addEventListener(event, () => {
          curve.groups.forEach((group) => group.classList.toggle("lit", lit));
          plot.firstChild.classList.toggle("dim", lit && curve.shown);
        });
      }
      return {curve, row, cells};
    });
    const legend = make("table", {class: "legend"},
      make("thead", {}, make("tr", {}, make("th", {scope: "col"}, "median of"), make("th", {scope: "col"}, "training loss"), make("th", {scope: "col"}, "test error"))),
      make("tbody", {}, ...rows.map(({row}) => row)));
    figure.append(plot, key, cut, controls, output, legend);

    /** The median of a curve at a position on the axis: text. */
    function valueAt(curve, measure, position) {
      const series = curve[measure], iteration = position / scaleOf(curve) - 0.01, i = indexAt(series.x, iteration + 0.02);
      const isBeyond = iteration > Math.max(curve.loss.x.at(-1), curve.error.x.at(-1) ?? 0);
      if (i < 0 || iteration > curve.iterations || (isBeyond && curve.prefix)) return "–";
      if (isBeyond || series.y[i] === null) return curve.diverged ? "diverged" : "–";
      return measure === "loss" ? series.y[i].toPrecision(3) : `${series.y[i].toFixed(2)} %`;
    }
    function rateAt(curve, position) {
      const stage = curve.rates.findIndex(([last]) => last >= position / scaleOf(curve) - 0.01);
      if (stage < 0) return null;
      const name = curve.rates.length > curve.drops.length + 2 ? "" : ` (stage ${stage + 1})`;  // else it rises or falls
      return short(curve.rates[stage][1]) + name;
    }
    function describe(position) {
      const chosen = shown().length ? shown() : drawn, first = chosen[0], iteration = position / scaleOf(first);
      const rates = new Set(chosen.map((curve) => rateAt(curve, position)).filter(Boolean));
      return [`iteration ${whole(iteration)}`, ...(hasEpochs ? [`epoch ${(iteration * first.epochs).toFixed(1)}`] : []),
        ...(rates.size ? [`learning rate ${[...rates].slice(0, 3).join(" or ")}`] : [])].join(", ");
    }
    // Axes
    /** The lowest and the highest value of the shown curves in view. */
    function rangeOf(measure, [from, to]) {
      let low = Infinity, high = -Infinity;
      for (const curve of shown()) {
        const scale = scaleOf(curve);
        for (const {x, y} of [curve[measure], ...(state.seeds ? curve.runs.map((run) => run[measure]) : [])]) {
          if (x.at(-1) * scale < from) continue;
          for (let i = Math.max(0, indexAt(x, from / scale)); i < x.length && (!i || x[i - 1] * scale < to); i++) {
            if (y[i] === null || (measure === "loss" && y[i] < data.limits.loss[0])) continue;
            low = Math.min(low, y[i]);
            high = Math.max(high, y[i]);
          }
        }
      }
      return [low, high];
    }
    function lossAxis() {
      const [low, high] = state.view ? rangeOf("loss", state.view) : data.limits.loss;
      return low <= high ? [low / 1.1, Math.min(Math.max(high, low * 1.2), Math.max(10, low * 10)) * 1.1] : [0.02, 2];
    }
    function errorAxis() {
      if (state.allErrors) return [0, 100];
      const [low, high] = state.view ? rangeOf("error", state.view) : [Infinity, 0], margin = 0.05 * (high - low) + 0.1;
      return low <= high ? [Math.max(0, low - margin), Math.min(100, high + margin)] : data.limits.error;
    }

    function render() {
      const width = Math.max(280, Math.round(plot.clientWidth)), height = Math.round(Math.min(440, Math.max(260, width * 0.5)));
      const left = 54, right = width - 50, top = 8, bottom = height - 40;
      full = [0, Math.max(...drawn.map((curve) => curve.farthest * scaleOf(curve)))];
      const view = state.view ?? full;
      grid = [...new Set(shown().flatMap((curve) => [...curve.loss.x, ...curve.error.x].map((x) => x * scaleOf(curve))))].sort((a, b) => a - b);
      const [lossLow, lossHigh] = lossAxis(), [errorLow, errorHigh] = errorAxis();
      const beyond = [["training losses", lossHigh, rangeOf("loss", view)[1], ""], ["test errors", errorHigh, Math.max(rangeOf("error", view)[1], ...shown().map((curve) => curve.reported ?? 0)), " %"]];
      cut.textContent = beyond.filter(([, limit, high]) => high > limit).map(([name, , high, unit]) => `Cut off above: ${name} up to ${short(high)}${unit}.`).join(" ");
      xOf = (x) => left + ((x - view[0]) / (view[1] - view[0])) * (right - left);
      atX = (pixel) => view[0] + ((pixel - left) / (right - left)) * (view[1] - view[0]);
      const yOf = {
        loss: (value) => bottom - (Math.log(Math.max(value, lossLow / 10)) - Math.log(lossLow)) / Math.log(lossHigh / lossLow) * (bottom - top),
        error: (value) => bottom - ((value - errorLow) / (errorHigh - errorLow)) * (bottom - top),
      };
      const text = (content, x, y, anchor, more = {}) => make("text", {x, y, "text-anchor": anchor, ...more}, content);
      const axes = make("g", {});
      for (const tick of logTicks(lossLow, lossHigh)) {
        axes.append(make("line", {class: "grid", x1: left, x2: right, y1: yOf.loss(tick), y2: yOf.loss(tick)}), text(short(tick), left - 6, yOf.loss(tick) + 4, "end"));
      }
      for (const tick of ticks(errorLow, errorHigh, 5)) {
        axes.append(make("line", {class: "frame", x1: right, x2: right + 4, y1: yOf.error(tick), y2: yOf.error(tick)}), text(short(tick), right + 7, yOf.error(tick) + 4, "start"));
      }
      for (const tick of ticks(...view, Math.max(2, Math.floor(width / 80)))) {
        axes.append(make("line", {class: "frame", x1: xOf(tick), x2: xOf(tick), y1: bottom, y2: bottom + 4}), text(tick.toLocaleString("en-US"), xOf(tick), bottom + 17, "middle"));
      }
      axes.append(text(state.unit, (left + right) / 2, height - 6, "middle"),
        text("training loss (dashed)", 0, 0, "middle", {transform: `translate(12,${(top + bottom) / 2}) rotate(-90)`}),
        text("test error in % (solid)", 0, 0, "middle", {transform: `translate(${width - 6},${(top + bottom) / 2}) rotate(-90)`}));
      for (const drop of new Set(shown().flatMap((curve) => curve.drops.map((one) => one * scaleOf(curve))))) {
        if (drop > view[0] && drop < view[1]) axes.append(make("line", {class: "drop", x1: xOf(drop), x2: xOf(drop), y1: top, y2: bottom}));
      }
      const seeds = make("g", {class: "seeds"}), medians = make("g", {class: "medians"});
      for (const curve of shown()) drawCurve(curve, view, yOf, seeds, medians, {left, right, top});
      const clip = `chart-clip-${number}`;
      const area = make("g", {"clip-path": `url(#${clip})`}, ...(state.seeds ? [seeds] : []), medians);
      place = {cursor: make("g", {class: "cursor"}), selection: make("rect", {class: "selection", y: top, height: bottom - top, width: 0}), left, right, top, bottom, yOf};
      const names = shown().map((curve) => `${curve.label} (${note(curve)})`).join("; ");
      plot.replaceChildren(make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
        "aria-label": `Training curves, ${data.title}: training loss and test error over ${state.unit} ${whole(view[0])} to ${whole(view[1])}. ${names || "No curve is chosen"}.`},
        make("defs", {}, make("clipPath", {id: clip}, make("rect", {x: left, y: top, width: right - left, height: bottom - top}))),
        axes, make("rect", {class: "frame", x: left, y: top, width: right - left, height: bottom - top}), area, place.selection, place.cursor));
      state.width = plot.clientWidth;
      slider.max = Math.max(0, grid.length - 1);
      setCursor(state.cursor);
    }

    function drawCurve(curve, view, yOf, seeds, medians, {left, right, top}) {
      const scale = scaleOf(curve), colour = `k${curve.index % 8}`;
      const faint = make("g", {class: `curve ${colour}`}), bold = make("g", {class: `curve ${colour}`});
      curve.groups = [faint, bold];
      const path = (measure, series) => pathOf(series, scale, Math.max(0, indexAt(series.x, view[0] / scale)), Math.min(series.x.length - 1, indexAt(series.x, view[1] / scale) + 1), xOf, yOf[measure]);
      const mark = (group, d, measure, series, kind) => {
        const last = series.y.findLastIndex((value) => value !== null);
        if (last >= 0) group.append(make("path", {class: kind, d, transform: `translate(${xOf(series.x[last] * scale).toFixed(1)},${yOf[measure](series.y[last]).toFixed(1)})`}));
      };
      for (const measure of ["loss", "error"]) {
        faint.append(make("path", {class: measure, d: curve.runs.map((run) => path(measure, run[measure])).join("")}));
        bold.append(make("path", {class: measure, d: path(measure, curve[measure])}));
        for (const run of curve.runs) {
          if (run.status !== "finished") mark(faint, run.status === "partial" ? OPEN : CROSS, measure, run[measure], "end");
        }
        if (curve.prefix) mark(bold, OPEN, measure, curve[measure], "end");
        else if (curve.diverged && curve[measure].y.at(-1) === null) mark(bold, CROSS, measure, curve[measure], "end");
      }
      if (curve.reported !== null) bold.append(make("path", {class: "end", d: REPORTED, transform: `translate(${xOf(curve.iterations * scale)},${yOf.error(curve.reported)})`}));
      for (let i = 0; i < 5; i++) {  // shapes on the error, at other places for each curve
        const at = indexAt(curve.error.x, (view[0] + ((i + 0.15 + (0.7 * curve.index) / drawn.length) / 5) * (view[1] - view[0])) / scale);
        if (at < 0 || curve.error.y[at] === null) continue;
        const y = yOf.error(curve.error.y[at]), x = xOf(curve.error.x[at] * scale), isAbove = yOf.error(curve.error.y.at(-1) ?? 100) < top;
        if (x >= left && x <= right && (y > top || isAbove)) bold.append(make("path", {class: "shape", d: SHAPES[curve.index % 7], transform: `translate(${x.toFixed(1)},${Math.max(y, top + 5).toFixed(1)})`}));
      }
      seeds.append(faint);
      medians.append(bold);
    }

    // What the pointer and the keyboard do
    function setCursor(position) {
      const i = Math.max(0, indexAt(grid, position)), next = Math.min(grid.length - 1, i + 1);
      const nearest = grid[next] - position < position - grid[i] ? next : i;
      if (!grid.length) { place.cursor.replaceChildren(); return; }
      state.cursor = position === Infinity ? Infinity : grid[nearest];
      slider.value = nearest;
      const at = grid[nearest], words = describe(at), spoken = [words], isShort = shown().length <= 6;
      output.textContent = `At ${words}`;
      const dots = [make("line", {x1: xOf(at), x2: xOf(at), y1: place.top, y2: place.bottom})];
      for (const {curve, cells, row} of rows) {
        ["loss", "error"].forEach((measure, k) => {
          const value = curve.shown ? valueAt(curve, measure, at) : "";
          cells[k].textContent = value;
          const series = curve[measure], y = place.yOf[measure](series.y[indexAt(series.x, at / scaleOf(curve) + 0.01)] ?? NaN);
          if (/\d/.test(value) && y >= place.top && y <= place.bottom) dots.push(make("circle", {class: row.className, r: 3.5, cx: xOf(at), cy: y}));
        });
        if (curve.shown && isShort) spoken.push(`${curve.label}: loss ${cells[0].textContent}, error ${cells[1].textContent}`);
      }
      slider.setAttribute("aria-valuetext", spoken.join("; "));
      place.cursor.replaceChildren(...(state.cursor !== Infinity && at >= atX(place.left) - 1e-9 && at <= atX(place.right) + 1e-9 ? dots : []));
    }
    function setView(view) {
      if (view) {
        const span = Math.min(full[1], Math.max(view[1] - view[0], full[1] / 200)), from = Math.min(Math.max(0, view[0]), full[1] - span);
        view = span >= full[1] * 0.999 ? null : [from, from + span];
      }
      state.view = view;
      render();
    }
    function zoom(factor) {
      const [from, to] = state.view ?? full, middle = Math.min(Math.max(grid[Number(slider.value)] ?? full[1] / 2, from), to);
      setView([middle - (middle - from) * factor, middle + (to - middle) * factor]);
    }
    function setUnit(unit) {
      const before = scaleOf(drawn[0]);
      state.unit = unit;
      const factor = scaleOf(drawn[0]) / before;
      state.view = state.view && state.view.map((one) => one * factor);
      state.cursor *= factor;
    }
    slider.addEventListener("input", () => {
      const at = grid[Number(slider.value)], [from, to] = state.view ?? full;
      state.cursor = at;
      if (at < from || at > to) setView([at - (to - from) / 2, at + (to - from) / 2]); else setCursor(at);
    });
    let start = null;
    const pixel = (event) => {
      const box = plot.getBoundingClientRect();
      return Math.min(place.right, Math.max(place.left, ((event.clientX - box.left) * plot.firstChild.viewBox.baseVal.width) / box.width));
    };
    plot.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse") return setCursor(atX(pixel(event)));
      plot.setPointerCapture(event.pointerId);
      if (event.button === 0) start = pixel(event);
    });
    plot.addEventListener("pointermove", (event) => {
      const x = pixel(event);
      if (start === null) return setCursor(atX(x));
      place.selection.setAttribute("x", Math.min(start, x));
      place.selection.setAttribute("width", Math.abs(x - start));
    });
    plot.addEventListener("pointerup", (event) => {
      const from = start, x = pixel(event);
      start = null;
      place.selection.setAttribute("width", 0);
      if (from !== null && Math.abs(x - from) > 8) setView([atX(Math.min(from, x)), atX(Math.max(from, x))]);
    });
    plot.addEventListener("dblclick", () => setView(null));
    render();
    new ResizeObserver(() => { if (plot.clientWidth !== state.width) render(); }).observe(plot);
  }

  const waiting = new Map([...document.querySelectorAll("figure.chart")].map((figure, number) => [figure, number]));
  const drawOnce = (figure) => {
    const number = waiting.get(figure);
    if (waiting.delete(figure)) draw(figure, number);
  };
  const observer = new IntersectionObserver((entries) => {
    for (const {isIntersecting, target} of entries) if (isIntersecting) drawOnce(target);
  }, {rootMargin: "400px"});
  for (const figure of waiting.keys()) observer.observe(figure);
  addEventListener("beforeprint", () => { for (const figure of [...waiting.keys()]) drawOnce(figure); });
})();

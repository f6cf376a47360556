"use strict";
// The page: figures with their controls, tables and downloads, from the data in the file. Texts of the data are
// only ever written as text. What the reader chooses is kept in the address (after #), so that a reload keeps it.

(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const ROWS_AT_ONCE = 200;
  const drawn = [];  // functions that draw each figure again

  // --- state ---

  const state = new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : "");

  function keep(key, value, usual) {
    if (value === usual || value === null) state.delete(key); else state.set(key, value);
    const hash = state.toString();
    history.replaceState(null, "", hash ? "#" + hash : location.pathname + location.search);
  }

  // --- elements ---

  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  }

  function chooser(label, options, value, onchange) {
    const select = make("select", { "aria-label": label, onchange: () => onchange(select.value) },
      ...options.map(([key, text]) => make("option", { value: key }, text)));
    select.value = value;
    return make("label", {}, make("span", {}, label), select);
  }

  function toggle(text, isOn, onclick, icon, look) {
    const button = make("button", { type: "button", "aria-pressed": String(isOn), class: look, onclick: () => {
      const now = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(now));
      onclick(now);
    } }, icon, text);
    return button;
  }

  function icon(source, kind) {
    const space = "http://www.w3.org/2000/svg", svg = document.createElementNS(space, "svg");
    const draw = (tag, attributes) => {
      const shape = document.createElementNS(space, tag);
      for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, value);
      svg.append(shape);
    };
    const ink = `var(--${source})`, paint = Charts.isHollow(source) ? { fill: "none", stroke: ink } : { fill: ink };
    svg.setAttribute("width", "18");
    svg.setAttribute("height", "14");
    svg.setAttribute("aria-hidden", "true");
    const dashes = source === "predicted" || kind === "dashed" ? "4 3" : "none";
    if (kind === "Line" || kind === "Steps" || kind === "dashed") {
      draw("path", { d: "M0 7H18", stroke: ink, "stroke-width": 2.5, "stroke-dasharray": dashes });
    } else if (kind === "Band") draw("rect", { x: 0, y: 1, width: 18, height: 12, fill: ink, opacity: 0.3 });
    else if (kind === "Bar") draw("rect", { x: 1, y: 3, width: 16, height: 8, "stroke-width": 1.5, "stroke-dasharray": dashes, ...paint });
    else if (source === "predicted") draw("path", { d: "M9 1L15 7L9 13L3 7Z", "stroke-width": 1.5, ...paint });
    else if (source === "vendor") draw("rect", { x: 4, y: 2, width: 10, height: 10, ...paint });
    else draw("circle", { cx: 9, cy: 7, r: 5, "stroke-width": 1.5, ...paint });
    return svg;
  }

  // --- columns ---

  for (const table of Object.values(page.tables)) {
    for (const column of Object.values(table.columns)) {
      column.at = column.texts
        ? (row) => (column.codes[row] === null ? null : column.texts[column.codes[row]])
        : (row) => column.values[row];
      column.heading = column.title + (column.unit ? `, ${column.unit}` : "");
    }
    table.parameters = Object.keys(table.columns).filter((key) => table.columns[key].parameter);
    table.shown = () => {
      const wanted = table.parameters.map((key) => [table.columns[key], state.get("only " + key)]).filter(([, v]) => v !== null);
      const rows = [];
      for (let row = 0; row < table.length; row++) {
        if (wanted.every(([column, value]) => String(column.at(row)) === value)) rows.push(row);
      }
      return rows;
    };
  }

  // The different values of a column among rows, numbers by size, then texts.
  function labels(column, rows) {
    const found = new Set();
    for (const row of rows) found.add(column.at(row));
    found.delete(null);
    return [...found].sort((a, b) => (typeof a === "number" && typeof b === "number" ? a - b
      : String(a).localeCompare(String(b), "en", { numeric: true })));
  }

  // The first of `bars` that has a value in a row: [value, source].
  function preferred(table, bars, row) {
    for (const bar of bars) {
      const value = table.columns[bar.value].at(row);
      if (value !== null && value !== undefined) return [value, bar.source];
    }
    return null;
  }

  // --- what a figure draws: each function turns its chart and rows into plain arrays ---

  const hasNumber = (value) => typeof value === "number";

  function planeOf(figure, table, chart, rows, hidden) {
    const isLog = (name) => (state.get(`${figure.key} ${name}`) || (chart[name].is_log ? "log" : "linear")) === "log";
    const log = { x: isLog("x"), y: isLog("y") };
    const layers = chart.layers.filter((layer) => !hidden.has(layer.name)).map((layer) => {
      const { kind, name, source } = layer;
      if (kind === "Line") return { kind, name, source, dashed: layer.is_dashed, x: layer.points.map((p) => p[0]), y: layer.points.map((p) => p[1]) };
      if (kind === "Band") return { kind, name, source, x: layer.points.map((p) => p[0]), low: layer.points.map((p) => p[1]), high: layer.points.map((p) => p[2]) };
      const x = table.columns[layer.x], y = table.columns[layer.y], unless = layer.unless && table.columns[layer.unless];
      const chosen = rows.filter((row) => hasNumber(x.at(row)) && hasNumber(y.at(row)) && !(unless && unless.at(row) !== null)
        && !(log.x && x.at(row) <= 0) && !(log.y && y.at(row) <= 0));
      if (kind === "Steps") chosen.sort((a, b) => x.at(a) - x.at(b) || y.at(b) - y.at(a));
      const error = layer.error && table.columns[layer.error], label = layer.label && table.columns[layer.label];
      return {
        kind, name, source, row: chosen, x: chosen.map(x.at), y: chosen.map(y.at),
        error: error ? chosen.map(error.at) : null, label: label ? chosen.map((row) => String(label.at(row))) : null,
      };
    });
    const title = (name) => chart[name].title + (chart[name].unit ? `, ${chart[name].unit}` : "") + (log[name] ? " (log)" : "");
    return ["plane", { x: { title: title("x"), log: log.x }, y: { title: title("y"), log: log.y }, layers }];
  }

  function barsOf(figure, table, chart, rows, hidden) {
    const groups = new Map();
    const label = table.columns[chart.label];
    for (const row of rows) {
      const name = String(label.at(row));
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(row);
    }
    const bars = [];
    const series = chart.series.filter((one) => !hidden.has(one.name));
    [...groups.values()].forEach((members, group) => {
      for (const one of series) {
        const known = members.filter((row) => hasNumber(table.columns[one.value].at(row)));
        if (!known.length) continue;
        const of = (key) => (key && known.length === 1 ? table.columns[key].at(known[0]) : null);
        const value = known.reduce((sum, row) => sum + table.columns[one.value].at(row), 0);
        bars.push({ group, source: one.source, value, low: of(one.low), high: of(one.high), row: known[0] });
      }
    });
    const most = Math.max(1, ...[...groups.keys()].map((_, group) => bars.filter((bar) => bar.group === group).length));
    const title = chart.axis.title + (chart.axis.unit ? `, ${chart.axis.unit}` : "");
    return ["bars", { axis: { title }, labels: [...groups.keys()], bars, series: most }];
  }

  const chosen = (figure, name, keys, place) => {
    const wanted = state.get(`${figure.key} ${name}`);
    return keys.includes(wanted) ? wanted : keys[Math.min(place, keys.length - 1)];
  };

  function matrixOf(figure, table, chart, rows) {
    const rowKey = chosen(figure, "rows", chart.rows, 0), columnKey = chosen(figure, "columns", chart.columns, 1);
    const [down, across] = [table.columns[rowKey], table.columns[columnKey]];
    const known = rows.filter((row) => preferred(table, chart.values, row) && !(table.columns.failure && table.columns.failure.at(row) !== null));
    const [rowLabels, columnLabels] = [labels(down, known), labels(across, known)];
    const places = [new Map(rowLabels.map((v, i) => [v, i])), new Map(columnLabels.map((v, i) => [v, i]))];
    const best = new Map();
    for (const row of known) {
      if (!places[0].has(down.at(row)) || !places[1].has(across.at(row))) continue;
      const [value, source] = preferred(table, chart.values, row);
      const cell = { row: places[0].get(down.at(row)), column: places[1].get(across.at(row)), value, source, place: row };
      const key = `${cell.row} ${cell.column}`, other = best.get(key);
      const order = (one) => chart.values.findIndex((bar) => bar.source === one.source);
      if (!other || order(cell) < order(other) || (order(cell) === order(other) && value < other.value)) best.set(key, cell);
    }
    const cells = [...best.values()].map((cell) => ({ ...cell, hatched: cell.source === "predicted" }));
    return ["matrix", {
      rows: rowLabels.map(String), columns: columnLabels.map(String), rowTitle: down.title, columnTitle: across.title,
      cells, leastIsBest: chart.is_least_best, log: chart.is_least_best,
    }];
  }

  function parallelOf(figure, table, chart, rows) {
    const known = rows.filter((row) => preferred(table, chart.values, row) && !(table.columns.failure && table.columns.failure.at(row) !== null));
    const axes = chart.axes.map((key) => ({ column: table.columns[key], title: table.columns[key].title, labels: labels(table.columns[key], known) }));
    const places = axes.map((axis) => new Map(axis.labels.map((value, i) => [value, axis.labels.length > 1 ? i / (axis.labels.length - 1) : 0.5])));
    const lines = known.map((row) => {
      const [value, source] = preferred(table, chart.values, row);
      return { at: axes.map((axis, i) => (places[i].has(axis.column.at(row)) ? places[i].get(axis.column.at(row)) : null)), value, source, row };
    }).sort((a, b) => b.value - a.value);
    const title = chart.title + (chart.unit ? `, ${chart.unit}` : "");
    return ["parallel", { axes: axes.map((axis) => ({ title: axis.title, labels: axis.labels.map(String) })), lines, title, log: true }];
  }

  function lanesOf(figure, table, chart, rows, hidden) {
    const [lane, start] = [table.columns[chart.lane], table.columns[chart.start]];
    const part = chart.part ? table.columns[chart.part] : null;
    const series = [...chart.series, ...chart.waits].filter((one) => !hidden.has(one.name));
    const places = new Map(), spans = [];
    for (const row of rows) {
      if (part && part.at(row) !== chart.of) continue;
      const name = String(lane.at(row));
      if (!places.has(name)) places.set(name, places.size);
      for (const one of series) {
        const length = table.columns[one.value].at(row);
        if (!hasNumber(length)) continue;
        const text = String(table.columns[chart.label].at(row));
        spans.push({ lane: places.get(name), start: start.at(row), length, source: one.source, isWait: chart.waits.includes(one), text, row });
      }
    }
    const title = chart.axis.title + (chart.axis.unit ? `, ${chart.axis.unit}` : "");
    return ["lanes", { axis: { title, unit: chart.axis.unit }, labels: [...places.keys()], spans }];
  }

  const READERS = { Plane: planeOf, BarChart: barsOf, Matrix: matrixOf, Parallel: parallelOf, Lanes: lanesOf };

  function legendOf(chart) {
    if (chart.kind === "Plane") return chart.layers.map((l) => [l.name, l.source, l.is_dashed ? "dashed" : l.kind]);
    if (chart.kind === "BarChart" && chart.series.length > 1) return chart.series.map((one) => [one.name, one.source, "Bar"]);
    if (chart.kind === "Lanes") {
      return [...chart.series.map((one) => [one.name, one.source, "Bar"]), ...chart.waits.map((one) => [one.name, one.source, "dashed"])];
    }
    return [];
  }

  // --- drawing ---

  function colours() {
    const style = getComputedStyle(document.documentElement), found = { isDark: document.documentElement.dataset.theme === "dark" };
    for (const name of ["surface", "text", "muted", "grid", "measured", "noisy", "predicted", "vendor", "limit", "plain"]) {
      found[name] = style.getPropertyValue("--" + name).trim();
    }
    return found;
  }

  function heightOf(kind, what, width) {
    if (kind === "bars") return 56 + Math.max(1, what.labels.length) * Math.min(64, 14 + 18 * what.series);
    if (kind === "matrix") return 74 + Math.max(2, what.rows.length) * (what.rows.length > 20 ? 16 : 26);
    if (kind === "lanes") return 56 + Math.max(1, what.labels.length) * Charts.LANE;
    return width < 560 ? 320 : 400;
  }

  function paint(canvas, kind, what, width, height, colour) {
    const ratio = Math.max(1, Math.min(3, window.devicePixelRatio || 1));
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.fillStyle = colour.surface;
    context.fillRect(0, 0, width, height);
    return Charts[kind]({ context, width, height, colour, compact: width < 560 }, what);
  }

  // --- figures ---

  function build(figure, section) {
    const table = page.tables[figure.table], names = Object.keys(figure.charts);
    const of = (name) => `${figure.key} ${name}`;
    const current = () => {
      const wanted = state.get(of("view"));
      return figure.charts[names.includes(wanted) ? wanted : names[0]];
    };
    const hidden = () => new Set((state.get(of("hidden")) || "").split("\n").filter(Boolean));
    const canvas = make("canvas", { "aria-hidden": "true" });
    const hint = make("div", { class: "hint", hidden: "" });
    const spoken = make("div", { class: "quiet", role: "status" });
    const plot = make("div", {
      class: "plot", tabindex: "0", role: "group",
      "aria-label": `Plot: ${section.querySelector("h2").textContent}. Arrow keys go from point to point; the table below has all values.`,
    }, canvas, hint);
    const controls = make("div", { class: "bar" }), legend = make("div", { class: "bar legend" });
    const empty = make("p", { class: "note", hidden: "" });
    let spots = [], place = -1, width = 0, copy = null;

    function draw() {
      const chart = current(), rows = table.shown();
      const [kind, what] = READERS[chart.kind](figure, table, chart, rows, hidden());
      width = Math.max(240, plot.clientWidth);
      spots = paint(canvas, kind, what, width, heightOf(kind, what, width), colours());
      spots.sort((a, b) => a.x - b.x || a.y - b.y);
      place = -1;
      copy = null;
      hint.hidden = true;
      const left = table.length === rows.length ? "" : `Filtered: ${rows.length} of ${table.length} ${table.rows}. `;
      empty.textContent = left + (spots.length ? "" : "Nothing to draw with these choices.");
      empty.hidden = !empty.textContent;
    }

    function show(index, isSpoken) {
      place = index;
      const spot = spots[index];
      if (!spot) { hint.hidden = true; return; }
      const lines = hintLines(figure, table, spot.row);
      hint.replaceChildren(...lines.map((line) => make("div", {}, line)));
      hint.hidden = false;
      const room = plot.clientWidth, wide = hint.offsetWidth;
      hint.style.left = Math.max(0, Math.min(room - wide, spot.x + 12 + wide > room ? spot.x - wide - 12 : spot.x + 12)) + "px";
      hint.style.top = Math.max(0, Math.min(plot.clientHeight - hint.offsetHeight, spot.y - hint.offsetHeight / 2)) + "px";
      if (isSpoken) spoken.textContent = lines.join(", ");
      redraw();
      const context = canvas.getContext("2d");
      context.strokeStyle = colours().text;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(spot.x, spot.y, 8, 0, 2 * Math.PI);
      context.stroke();
    }

    // The picture without the ring, from a copy: drawing thousands of points for each movement would be slow.
    function redraw() {
      if (!copy) return;
      const context = canvas.getContext("2d");
      context.save();
      context.setTransform(1, 0, 0, 1, 0, 0);
      context.drawImage(copy, 0, 0);
      context.restore();
    }
    const remember = () => {
      if (copy) return;
      copy = make("canvas", {});
      copy.width = canvas.width;
      copy.height = canvas.height;
      copy.getContext("2d").drawImage(canvas, 0, 0);
    };

    const point = (event) => {
      remember();
      const edge = plot.getBoundingClientRect(), x = event.clientX - edge.left, y = event.clientY - edge.top;
      let best = -1, least = event.pointerType === "touch" ? 1600 : 700;
      spots.forEach((spot, index) => {
        const aside = spot.wide ? Math.max(0, Math.abs(spot.x - x) - spot.wide / 2) : spot.x - x;
        const distance = aside ** 2 + (spot.y - y) ** 2;
        if (distance < least) [best, least] = [index, distance];
      });
      if (best !== place) { if (best < 0) redraw(); show(best, false); }
    };
    plot.addEventListener("pointermove", point);
    plot.addEventListener("pointerdown", point);
    plot.addEventListener("pointerleave", () => { redraw(); show(-1, false); });
    plot.addEventListener("blur", () => { redraw(); show(-1, false); });
    plot.addEventListener("keydown", (event) => {
      const last = spots.length - 1;
      const next = { ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1, Home: 0, End: last }[event.key];
      if (event.key === "Escape") { redraw(); show(-1, false); return; }
      if (next === undefined || last < 0) return;
      event.preventDefault();
      remember();
      show(Math.max(0, Math.min(last, next)), true);
    });

    function fillControls() {
      const chart = current();
      controls.replaceChildren();
      if (names.length > 1) {
        controls.append(chooser(figure.choice, names.map((name) => [name, name]), names.find((n) => figure.charts[n] === chart), (value) => {
          keep(of("view"), value, names[0]);
          fillControls();
          draw();
        }));
      }
      if (chart.kind === "Matrix") {
        [["rows", "down"], ["columns", "across"]].forEach(([name, text], index) => {
          if (chart[name].length < 2) return;
          const options = chart[name].map((key) => [key, table.columns[key].title]);
          controls.append(chooser(text, options, chosen(figure, name, chart[name], index), (value) => { keep(of(name), value); draw(); }));
        });
      }
      if (chart.kind === "Plane") {
        for (const name of ["x", "y"]) {
          const usual = chart[name].is_log ? "log" : "linear", is = state.get(of(name)) || usual;
          controls.append(toggle(`${name} logarithmic`, is === "log", (isOn) => { keep(of(name), isOn ? "log" : "linear", usual); draw(); }, null, "switch"));
        }
      }
      controls.append(
        make("button", { type: "button", onclick: () => savePicture(figure, section, canvas, legendOf(current()), hidden()), "aria-label": `Download ${figure.key} as PNG` }, "PNG"),
        make("button", { type: "button", onclick: () => saveTable(figure, table), "aria-label": `Download ${figure.key} as CSV` }, "CSV"),
      );
      legend.replaceChildren(...legendOf(chart).map(([name, source, kind]) =>
        toggle(name, !hidden().has(name), (isOn) => {
          const now = hidden();
          if (isOn) now.delete(name); else now.add(name);
          keep(of("hidden"), [...now].join("\n"), "");
          draw();
        }, icon(source, kind))));
      legend.hidden = !legend.childNodes.length;
    }

    section.append(controls, legend, empty, plot, spoken);
    if (figure.charts[names[0]].kind === "Parallel") section.append(filters(table));
    section.append(tableOf(figure, table));
    fillControls();
    draw();
    drawn.push(draw);
    // in the next frame: a new height within the observation would count as an error
    new ResizeObserver(() => requestAnimationFrame(() => {
      if (Math.abs(Math.max(240, plot.clientWidth) - width) > 1) draw();
    })).observe(plot);
  }

  function hintLines(figure, table, row) {
    const shown = figure.columns.filter((key) => !table.columns[key].parameter);
    const lines = [];
    for (const key of shown) {
      const column = table.columns[key], value = column.at(row);
      if (value === null || value === undefined) continue;
      const text = typeof value === "number" ? Charts.number(value) : String(value).slice(0, 300);
      const from = column.source === "predicted" && !column.title.includes("predicted") ? " (predicted)" : "";
      lines.push(`${column.title}${from}: ${text}${column.unit ? " " + column.unit : ""}`);
    }
    const config = table.parameters.filter((key) => figure.columns.includes(key) && table.columns[key].at(row) !== null)
      .map((key) => `${table.columns[key].title}=${table.columns[key].at(row)}`);
    if (config.length) lines.push(config.join(", "));
    return lines;
  }

  function filters(table) {
    const box = make("div", { class: "filters" });
    for (const key of table.parameters) {
      const column = table.columns[key], values = labels(column, [...Array(table.length).keys()]).map(String);
      if (values.length < 2) continue;
      box.append(chooser(column.title, [["", "all"], ...values.map((value) => ["=" + value, value])],
        state.has("only " + key) ? "=" + state.get("only " + key) : "", (value) => {
          keep("only " + key, value ? value.slice(1) : null);
          drawn.forEach((draw) => draw());
          tables.forEach((fill) => fill());
        }));
    }
    return make("fieldset", {}, make("legend", {}, `Filter the ${table.rows}`), box);
  }

  // --- tables ---

  const tables = [];

  function sorted(figure, table) {
    const rows = table.shown(), wanted = state.get(`${figure.key} sort`);
    if (!wanted) return rows;
    const column = table.columns[wanted.slice(1)], sign = wanted[0] === "-" ? -1 : 1;
    if (!column) return rows;
    const isEmpty = (value) => value === null || value === undefined;
    return rows.sort((a, b) => {
      const [x, y] = [column.at(a), column.at(b)];
      if (isEmpty(x) || isEmpty(y)) return isEmpty(x) - isEmpty(y);  // empty cells stay last
      return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true }));
    });
  }

  function tableOf(figure, table) {
    const body = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `Table of ${figure.key}` });
    const more = make("p", { class: "note" });
    const key = `${figure.key} table`;
    const details = make("details", {}, make("summary", {}, `Table: ${table.length} ${table.rows}`), body, more);
    let limit = ROWS_AT_ONCE;
    const fill = () => {
      if (!details.open) return;
      const rows = sorted(figure, table), now = state.get(`${figure.key} sort`) || "";
      const head = figure.columns.map((name) => {
        const column = table.columns[name], isSorted = now.slice(1) === name;
        const button = make("button", { type: "button", onclick: () => {
          keep(`${figure.key} sort`, (now === "+" + name ? "-" : "+") + name);
          fill();
          const again = [...body.querySelectorAll("th button")][figure.columns.indexOf(name)];
          again.focus();
        } }, headingOf(column) + (isSorted ? (now[0] === "-" ? " ▼" : " ▲") : ""));
        return make("th", { scope: "col", "aria-sort": isSorted ? (now[0] === "-" ? "descending" : "ascending") : "none" }, button);
      });
      const lines = rows.slice(0, limit).map((row) => make("tr", {}, ...figure.columns.map((name) => {
        const column = table.columns[name], value = column.at(row), isNumber = typeof value === "number";
        const look = [isNumber ? "number" : String(value).length > 60 ? "long" : "", column.source].filter(Boolean).join(" ");
        return make("td", { class: look }, isNumber ? Charts.number(value) : value === null || value === undefined ? "" : String(value));
      })));
      body.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines)));
      more.replaceChildren();
      if (rows.length > limit) {
        more.append(`The first ${limit} of ${rows.length} rows. `, make("button", { type: "button", onclick: () => { limit = rows.length; fill(); } }, "Show all"));
      }
    };
    details.open = state.get(key) === "open";
    details.addEventListener("toggle", () => { keep(key, details.open ? "open" : "", ""); fill(); });
    tables.push(fill);
    fill();
    return details;
  }

  // --- downloads ---

  function save(name, blob) {
    const link = make("a", { href: URL.createObjectURL(blob), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function saveTable(figure, table) {
    // a spreadsheet would run a text that begins like a formula
    const cell = (value) => {
      const text = value === null || value === undefined ? "" : String(value);
      const safe = typeof value === "string" && /^[=+\-@\t\r]/.test(text) ? "'" + text : text;
      return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    const lines = [figure.columns.map((name) => cell(headingOf(table.columns[name])))];
    for (const row of sorted(figure, table)) lines.push(figure.columns.map((name) => cell(table.columns[name].at(row))));
    save(`${figure.key}.csv`, new Blob([lines.map((line) => line.join(",")).join("\r\n") + "\r\n"], { type: "text/csv" }));
  }

  function headingOf(column) {
    return column.source === "predicted" && !column.title.includes("predicted") ? `${column.heading} (predicted)` : column.heading;
  }

  // The plot with its title and legend, since a picture leaves the page.
  function savePicture(figure, section, canvas, legend, hidden) {
    const colour = colours(), ratio = canvas.width / canvas.clientWidth;
    const shown = legend.filter(([name]) => !hidden.has(name)), head = 34 + 20 * shown.length;
    const picture = make("canvas", {});
    picture.width = canvas.width;
    picture.height = canvas.height + Math.round(head * ratio);
    const context = picture.getContext("2d");
    context.fillStyle = colour.surface;
    context.fillRect(0, 0, picture.width, picture.height);
    context.scale(ratio, ratio);
    context.fillStyle = colour.text;
    context.font = "bold 14px system-ui, sans-serif";
    context.fillText(`${section.querySelector("h2").textContent}: ${page.title}`, 8, 20, canvas.clientWidth - 16);
    context.font = "12px system-ui, sans-serif";
    shown.forEach(([name, source, kind], index) => {
      const y = 38 + 20 * index;
      context.fillStyle = context.strokeStyle = colour[source];
      context.beginPath();
      if (kind === "Points" || kind === "Bar") Charts.mark(context, source, 14, y, 4); else context.rect(6, y - 1.5, 16, 3);
      if (Charts.isHollow(source)) context.stroke(); else context.fill();
      context.fillStyle = colour.text;
      context.fillText(name, 30, y + 4, canvas.clientWidth - 40);
    });
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.drawImage(canvas, 0, Math.round(head * ratio));
    picture.toBlob((blob) => save(`${figure.key}.png`, blob), "image/png");
  }

  // --- the page ---

  function setTheme(theme) {
    document.documentElement.dataset.theme = theme;
  }

  const media = matchMedia("(prefers-color-scheme: dark)"), usual = () => (media.matches ? "dark" : "light");
  setTheme(state.get("theme") || usual());
  media.addEventListener("change", () => { if (!state.has("theme")) { setTheme(usual()); drawn.forEach((draw) => draw()); } });
  document.getElementById("page-controls").append(
    toggle("Dark", document.documentElement.dataset.theme === "dark", (isOn) => {
      const theme = isOn ? "dark" : "light";
      keep("theme", theme, usual());
      setTheme(theme);
      drawn.forEach((draw) => draw());
    }, null, "switch"),
  );
  // links within the page keep the state in the address
  document.querySelectorAll('a[href^="#"]').forEach((link) => link.addEventListener("click", (event) => {
    event.preventDefault();
    const goal = document.querySelector(link.getAttribute("href"));
    goal.scrollIntoView();
    goal.setAttribute("tabindex", "-1");
    goal.focus({ preventScroll: true });
  }));
  for (const figure of page.figures) build(figure, document.querySelector(`[data-figure="${figure.key}"]`));
  document.documentElement.dataset.drawn = String(Math.round(performance.now()));
})();

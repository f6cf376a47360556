"use strict";
// Draws charts on a canvas. A chart function gets a frame { context, width, height, colour, compact } and what
// to draw, as plain arrays. It returns the spots that can be pointed at: { x, y, row } in pixels, with { wide },
// their width, if they are more than a point. It knows neither the page nor its tables.

const Charts = (() => {
  const FONT = "system-ui, -apple-system, 'Segoe UI', sans-serif";
  const LANE = 38;  // height of a row of spans with its name
  const CIVIDIS = ["#00224e", "#2a3f6d", "#575d6d", "#7d7c78", "#a59c74", "#d2c060", "#fee838"];

  // --- numbers and ticks ---

  function number(value) {
    if (value === null || value === undefined) return "";
    if (typeof value !== "number") return String(value);
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(2);
    return String(Number(value.toPrecision(5)));
  }

  function linearTicks(low, high, most) {
    const rough = (high - low) / Math.max(1, most);
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((found) => found >= rough * 0.999);
    const ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
    return ticks;
  }

  function logTicks(low, high, most) {
    const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const of = (factors) => {
      const ticks = [];
      for (let power = first; power <= last; power++) {
        for (const factor of factors) {
          const tick = factor * 10 ** power;
          if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
        }
      }
      return ticks;
    };
    const choices = [of([1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9]), of([1, 2, 3, 5, 7]), of([1, 2, 5]), of([1, 3]), of([1])];
    let found = choices.find((ticks) => ticks.length <= most) || choices[choices.length - 1];
    if (found.length < 2) found = linearTicks(low, high, most).filter((tick) => tick > 0);
    while (found.length > most && found.length > 2) found = found.filter((_, index) => index % 2 === 0);
    return found;
  }

  // A scale maps values to pixels; it is made from the values that it must hold.
  function scale(values, isLog, from, to, room) {
    let low = Infinity, high = -Infinity;
    for (const value of values) {
      if (value === null || value === undefined || (isLog && value <= 0)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) [low, high] = isLog ? [1, 10] : [0, 1];
    if (isLog) {
      const pad = Math.max(1.02, (high / low) ** 0.04);
      [low, high] = [low / pad, high * pad];
    } else {
      const pad = (high - low || Math.abs(high) || 1) * 0.04;
      if (low >= 0 && low - pad < 0) low = 0; else low -= pad;
      high += pad;
    }
    const most = Math.max(3, Math.floor(Math.abs(to - from) / room));
    const place = isLog ? Math.log : (value) => value;
    const start = place(low), factor = (to - from) / (place(high) - start);
    return {
      at: (value) => from + (place(value) - start) * factor,
      low, high, isLog,
      ticks: isLog ? logTicks(low, high, most) : linearTicks(low, high, most),
    };
  }

  // --- texts, marks and colours ---

  function font(frame, size, weight) {
    frame.context.font = `${weight || "normal"} ${size || 12}px ${FONT}`;
  }

  function fitted(context, text, room) {
    if (context.measureText(text).width <= room) return text;
    let length = text.length;
    while (length > 1 && context.measureText(text.slice(0, length) + "…").width > room) length--;
    return text.slice(0, length) + "…";
  }

  function sequential(share) {
    const place = Math.max(0, Math.min(1, share)) * (CIVIDIS.length - 1);
    const index = Math.min(CIVIDIS.length - 2, Math.floor(place)), part = place - index;
    const [a, b] = [CIVIDIS[index], CIVIDIS[index + 1]].map((hex) =>
      [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16)));
    return a.map((value, i) => Math.round(value + (b[i] - value) * part));
  }

  const css = (rgb, alpha) => `rgba(${rgb.join(",")},${alpha === undefined ? 1 : alpha})`;
  const isDark = (rgb) => 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] < 130;

  // Adds one mark of a source to the path of a context.
  function mark(context, source, x, y, size) {
    if (source === "predicted") {
      context.moveTo(x, y - size * 1.25);
      context.lineTo(x + size * 1.25, y);
      context.lineTo(x, y + size * 1.25);
      context.lineTo(x - size * 1.25, y);
      context.closePath();
    } else if (source === "vendor") {
      context.rect(x - size, y - size, 2 * size, 2 * size);
    } else {
      context.moveTo(x + size, y);
      context.arc(x, y, size, 0, 2 * Math.PI);
    }
  }

  const isHollow = (source) => source === "predicted" || source === "noisy";

  // A mark drawn once, to be copied: thousands of paths would take long.
  function stampOf(frame, source, size, alpha) {
    const across = Math.ceil(size * 3.4), ratio = frame.context.getTransform().a, canvas = document.createElement("canvas");
    canvas.width = canvas.height = Math.ceil(across * ratio);
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.globalAlpha = alpha;
    context.strokeStyle = context.fillStyle = frame.colour[source];
    context.lineWidth = 1.3;
    context.beginPath();
    mark(context, source, across / 2, across / 2, size);
    if (isHollow(source)) context.stroke(); else context.fill();
    return { canvas, across };
  }

  function hatch(context, x, y, width, height, colour) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.beginPath();
    for (let start = -height; start < width; start += 7) {
      context.moveTo(x + start, y + height);
      context.lineTo(x + start + height, y);
    }
    context.strokeStyle = colour;
    context.lineWidth = 1;
    context.stroke();
    context.restore();
  }

  function axes(frame, box, x, y, titles) {
    const { context, colour } = frame;
    font(frame);
    context.lineWidth = 1;
    context.strokeStyle = colour.grid;
    context.beginPath();
    for (const tick of x ? x.ticks : []) {
      const place = Math.round(x.at(tick)) + 0.5;
      context.moveTo(place, box.top);
      context.lineTo(place, box.bottom);
    }
    for (const tick of y ? y.ticks : []) {
      const place = Math.round(y.at(tick)) + 0.5;
      context.moveTo(box.left, place);
      context.lineTo(box.right, place);
    }
    context.stroke();
    context.fillStyle = colour.muted;
    context.textBaseline = "top";
    context.textAlign = "center";
    let free = -Infinity;
    for (const tick of x ? x.ticks : []) {
      const text = number(tick), half = context.measureText(text).width / 2;
      const place = Math.min(Math.max(x.at(tick), half + 1), frame.width - half - 1);
      if (place - half < free) continue;
      context.fillText(text, place, box.bottom + 6);
      free = place + half + 6;
    }
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const tick of y ? y.ticks : []) context.fillText(number(tick), box.left - 6, y.at(tick));
    context.fillStyle = colour.text;
    context.textAlign = "center";
    context.textBaseline = "bottom";
    context.fillText(fitted(context, titles.x, frame.width - 8), Math.max((box.left + box.right) / 2,
      Math.min(frame.width - 4, context.measureText(titles.x).width) / 2 + 4), frame.height - 2);
    if (titles.y) {
      context.textAlign = "left";
      context.textBaseline = "top";
      context.fillText(fitted(context, titles.y, frame.width - 8), 4, 2);
    }
  }

  function leftRoom(frame, texts, most) {
    font(frame);
    const widths = texts.map((text) => frame.context.measureText(text).width);
    return Math.ceil(Math.min(most, Math.max(0, ...widths)));
  }

  // --- charts ---

  // layers: { kind, name, source, x, y, row, low, high, error, label, dashed } with arrays of one length
  function plane(frame, { x: xAxis, y: yAxis, layers }) {
    const { context, colour } = frame;
    const all = (key) => layers.flatMap((layer) => layer[key] || []);
    const whole = { top: 26, bottom: frame.height - 44, right: frame.width - 12 };
    const y = scale([...all("y"), ...all("low"), ...all("high")], yAxis.log, whole.bottom, whole.top, 34);
    const left = leftRoom(frame, y.ticks.map(number), 80) + 14;
    const x = scale(all("x"), xAxis.log, left, whole.right, frame.compact ? 46 : 64);
    const box = { ...whole, left };
    axes(frame, box, x, y, { x: xAxis.title, y: yAxis.title });
    const spots = [];
    context.save();
    context.beginPath();
    context.rect(box.left - 5, box.top - 5, box.right - box.left + 10, box.bottom - box.top + 10);
    context.clip();
    for (const layer of layers) {
      const ink = colour[layer.source];
      context.strokeStyle = context.fillStyle = ink;
      context.setLineDash([]);
      context.globalAlpha = 1;
      if (layer.kind === "Band") band(context, layer, x, y);
      else if (layer.kind === "Line" || layer.kind === "Steps") line(context, layer, x, y);
      else points(context, layer, x, y, spots, frame);
    }
    context.restore();
    return spots;
  }

  function band(context, layer, x, y) {
    context.globalAlpha = 0.16;
    context.beginPath();
    layer.x.forEach((value, i) => context.lineTo(x.at(value), y.at(layer.high[i])));
    for (let i = layer.x.length - 1; i >= 0; i--) context.lineTo(x.at(layer.x[i]), y.at(layer.low[i]));
    context.fill();
    context.globalAlpha = 1;
  }

  function line(context, layer, x, y) {
    context.lineWidth = 2;
    if (layer.dashed || layer.source === "predicted") context.setLineDash([6, 4]);
    context.beginPath();
    layer.x.forEach((value, i) => {
      if (layer.kind === "Steps" && i) context.lineTo(x.at(value), y.at(layer.y[i - 1]));
      context.lineTo(x.at(value), y.at(layer.y[i]));
    });
    context.stroke();
    context.setLineDash([]);
  }

  function points(context, layer, x, y, spots, frame) {
    const count = layer.x.length, size = count > 1500 ? 2.4 : count > 200 ? 3 : 4;
    if (layer.error && count <= 400) {
      context.globalAlpha = 0.45;
      context.lineWidth = 1;
      context.beginPath();
      for (let i = 0; i < count; i++) {
        const at = x.at(layer.x[i]), sigma = layer.error[i] || 0;
        context.moveTo(at, y.at(layer.y[i] * (1 + sigma)));
        context.lineTo(at, y.at(layer.y[i] / (1 + sigma)));
      }
      context.stroke();
      context.globalAlpha = 1;
    }
    const stamp = stampOf(frame, layer.source, size, count > 1500 ? 0.6 : 0.85), half = stamp.across / 2;
    for (let i = 0; i < count; i++) {
      const at = x.at(layer.x[i]), height = y.at(layer.y[i]);
      context.drawImage(stamp.canvas, at - half, height - half, stamp.across, stamp.across);
      spots.push({ x: at, y: height, row: layer.row[i] });
    }
    if (layer.label && count <= 60) {
      font(frame, 11);
      context.fillStyle = frame.colour.text;
      context.textBaseline = "bottom";
      context.textAlign = "center";
      for (let i = 0; i < count; i++) context.fillText(layer.label[i], x.at(layer.x[i]), y.at(layer.y[i]) - 6);
    }
  }

  // labels: of groups; bars: { group, source, value, low, high, row }
  function bars(frame, { axis, labels, bars: found, series }) {
    const { context, colour } = frame;
    const room = leftRoom(frame, labels, frame.width * (frame.compact ? 0.34 : 0.4));
    const box = { left: room + 12, right: frame.width - 62, top: 8, bottom: frame.height - 44 };
    const x = scale([0, ...found.flatMap((bar) => [bar.value, bar.high])], false, box.left, box.right,
      frame.compact ? 52 : 70);
    const zero = x.at(0);
    if (found.every((bar) => Number.isInteger(bar.value))) x.ticks = x.ticks.filter(Number.isInteger);
    axes(frame, box, x, null, { x: axis.title });
    const band = (box.bottom - box.top) / Math.max(1, labels.length);
    const size = Math.min(26, (band * 0.78) / Math.max(1, series));
    const filled = labels.map(() => 0), totals = labels.map(() => 0);
    for (const bar of found) totals[bar.group]++;
    const spots = [];
    labels.forEach((label, group) => {
      context.fillStyle = colour.text;
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillText(fitted(context, label, room), box.left - 8, box.top + band * (group + 0.5));
    });
    for (const bar of found) {
      const middle = box.top + band * (bar.group + 0.5);
      const top = middle + (filled[bar.group]++ - totals[bar.group] / 2) * size + 1;
      const end = x.at(bar.value), start = Math.min(zero, end), length = Math.max(1, Math.abs(end - zero)), height = size - 2;
      if (isHollow(bar.source)) {
        hatch(context, start, top, length, height, colour[bar.source]);
        context.lineWidth = 1;
        context.strokeStyle = colour[bar.source];
        context.strokeRect(start + 0.5, top + 0.5, Math.max(1, length - 1), height - 1);
      } else {
        context.fillStyle = colour[bar.source];
        context.fillRect(start, top, length, height);
      }
      let edge = Math.max(zero, end);
      if (bar.low !== null && bar.high !== null && bar.low !== undefined && bar.high !== undefined) {
        const at = top + height / 2;
        context.strokeStyle = colour.text;
        context.lineWidth = 1.5;
        context.beginPath();
        context.moveTo(x.at(bar.low), at);
        context.lineTo(x.at(bar.high), at);
        for (const whisker of [bar.low, bar.high]) {
          context.moveTo(x.at(whisker), at - 4);
          context.lineTo(x.at(whisker), at + 4);
        }
        context.stroke();
        edge = Math.max(edge, x.at(bar.high));
      }
      context.fillStyle = colour.text;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText(number(Number(bar.value.toPrecision(4))), edge + 5, top + height / 2 + 0.5);
      spots.push({ x: end, y: top + height / 2, row: bar.row });
    }
    return spots;
  }

  // cells: { row, column, value, source, place }: indices of labels, and the row of the table
  function matrix(frame, { rows, columns, rowTitle, columnTitle, cells, leastIsBest, log }) {
    const { context, colour } = frame;
    const left = leftRoom(frame, rows, frame.width * 0.3) + 14;
    const box = { left, right: frame.width - 8, top: 26, bottom: frame.height - 44 };
    const wide = (box.right - box.left) / Math.max(1, columns.length);
    const high = (box.bottom - box.top) / Math.max(1, rows.length);
    axes(frame, box, null, null, { x: columnTitle, y: rowTitle });
    font(frame);
    context.fillStyle = colour.muted;
    context.textBaseline = "middle";
    context.textAlign = "right";
    const every = (size, need) => Math.max(1, Math.ceil(need / size));
    rows.forEach((label, i) => {
      if (i % every(high, 14) === 0) context.fillText(fitted(context, label, left - 12), left - 7, box.top + high * (i + 0.5));
    });
    context.textAlign = "center";
    context.textBaseline = "top";
    const widest = leftRoom(frame, columns, 90) + 6;
    columns.forEach((label, i) => {
      if (i % every(wide, widest) === 0) {
        context.fillText(fitted(context, label, Math.max(wide, widest) - 4), box.left + wide * (i + 0.5), box.bottom + 6);
      }
    });
    const place = (value) => (log && value > 0 ? Math.log(value) : value);
    const values = cells.map((cell) => place(cell.value));
    const low = Math.min(...values), span = Math.max(...values) - low || 1;
    const spots = [];
    for (const cell of cells) {
      const share = (place(cell.value) - low) / span, rgb = sequential(leastIsBest ? 1 - share : share);
      const x = box.left + wide * cell.column, y = box.top + high * cell.row;
      context.fillStyle = css(rgb);
      context.fillRect(x + 1, y + 1, wide - 2, high - 2);
      const ink = isDark(rgb) ? "#ffffff" : "#000000";
      if (cell.hatched) hatch(context, x + 1, y + 1, wide - 2, high - 2, isDark(rgb) ? "#ffffff40" : "#00000040");
      const text = (cell.hatched ? "~" : "") + number(Number(cell.value.toPrecision(3)));
      font(frame, 11);
      if (high > 13 && context.measureText(text).width < wide - 4) {
        const half = context.measureText(text).width / 2;
        context.fillStyle = css(rgb);
        if (cell.hatched) context.fillRect(x + wide / 2 - half - 2, y + high / 2 - 7, 2 * half + 4, 14);
        context.fillStyle = ink;
        context.textAlign = "center";
        context.textBaseline = "middle";
        context.fillText(text, x + wide / 2, y + high / 2);
      }
      spots.push({ x: x + wide / 2, y: y + high / 2, row: cell.place });
    }
    return spots;
  }

  // axes: { title, labels }; lines: { at: place of the value on each axis, 0 .. 1, value, source, row }
  function parallel(frame, { axes: found, lines, title, log }) {
    const { context, colour } = frame;
    const box = { left: 14, right: frame.width - (frame.compact ? 44 : 60), top: 48, bottom: frame.height - 14 };
    const values = lines.map((line) => line.value);
    const time = scale(values, log, box.bottom, box.top, 30);
    const gap = (box.right - box.left) / found.length;
    const at = (axis) => box.left + gap * axis;
    const low = log ? Math.log(time.low) : time.low, high = log ? Math.log(time.high) : time.high;
    const spots = [];
    const inkOf = (value) => {
      const share = ((log ? Math.log(value) : value) - low) / (high - low || 1);
      return css(sequential(colour.isDark ? 1 - 0.85 * share : 0.8 * share));
    };
    const ways = lines.map((line) => {
      const way = line.at.map((place, axis) => [at(axis), place === null ? null : box.bottom - place * (box.bottom - box.top)]);
      return [...way.filter(([, y]) => y !== null), [box.right, time.at(line.value)]];
    });
    const isCrowded = lines.length > 800, parts = new Map();
    for (const isMeasured of [false, true]) {
      context.globalAlpha = isMeasured ? 0.9 : 0.55;
      context.lineWidth = isMeasured ? 1.6 : 1;
      context.setLineDash(isMeasured || isCrowded ? [] : [5, 3]);
      lines.forEach((line, i) => {
        if ((line.source !== "predicted") !== isMeasured) return;
        const way = ways[i], ink = inkOf(line.value);
        spots.push({ x: box.right, y: time.at(line.value), row: line.row });
        if (isCrowded && !isMeasured) {
          // most parts lie on each other: each is drawn once, in the colour of the best line, which comes last
          way.slice(1).forEach((end, n) => {
            const key = [...way[n], ...end].map(Math.round).join(" ");
            parts.delete(key);
            parts.set(key, [way[n], end, ink]);
          });
          return;
        }
        context.strokeStyle = ink;
        context.beginPath();
        way.forEach(([x, y]) => context.lineTo(x, y));
        context.stroke();
      });
      for (const [start, end, ink] of parts.values()) {
        context.strokeStyle = ink;
        context.beginPath();
        context.moveTo(...start);
        context.lineTo(...end);
        context.stroke();
      }
      parts.clear();
    }
    context.setLineDash([]);
    context.globalAlpha = 1;
    font(frame, frame.compact ? 10 : 12);
    context.lineWidth = 1;
    context.textBaseline = "middle";
    found.forEach((axis, i) => {
      const x = at(i), count = axis.labels.length;
      context.strokeStyle = colour.muted;
      context.beginPath();
      context.moveTo(x, box.top);
      context.lineTo(x, box.bottom);
      context.stroke();
      context.fillStyle = colour.text;
      context.textAlign = i ? "center" : "left";
      const lift = i % 2 ? 34 : 18;
      context.fillText(fitted(context, axis.title, gap * 1.8), i ? x : x - 8, box.top - lift);
      context.textAlign = "left";
      const every = Math.ceil((count * 15) / (box.bottom - box.top));
      axis.labels.forEach((label, place) => {
        if (place % every) return;
        const y = box.bottom - (count > 1 ? place / (count - 1) : 0.5) * (box.bottom - box.top);
        const text = fitted(context, label, gap - 6), width = context.measureText(text).width;
        context.fillStyle = colour.surface;
        context.globalAlpha = 0.8;
        context.fillRect(x + 3, y - 7, width + 3, 14);
        context.globalAlpha = 1;
        context.fillStyle = colour.text;
        context.fillText(text, x + 4, y);
      });
    });
    context.strokeStyle = colour.text;
    context.beginPath();
    context.moveTo(box.right, box.top);
    context.lineTo(box.right, box.bottom);
    context.stroke();
    context.fillStyle = colour.text;
    context.textAlign = "right";
    context.fillText(title, frame.width - 2, box.top - (found.length % 2 ? 34 : 18));
    context.textAlign = "left";
    for (const tick of time.ticks) context.fillText(number(tick), box.right + 5, time.at(tick));
    return spots;
  }

  // labels: of rows; spans: { lane, start, length, source, isWait, text, row }. The name of a row stands above it.
  function lanes(frame, { axis, labels, spans: found }) {
    const { context, colour } = frame;
    const box = { left: 8, right: frame.width - 8, top: 4, bottom: frame.height - 44 };
    const end = found.reduce((most, span) => Math.max(most, span.start + span.length), 0);
    const x = scale([0, end || 1], false, box.left, box.right, frame.compact ? 52 : 80);
    axes(frame, box, x, null, { x: axis.title });
    const spots = [];
    labels.forEach((label, lane) => {
      const top = box.top + LANE * lane;
      const text = fitted(context, label, box.right - box.left - 4);
      context.fillStyle = colour.surface;
      context.fillRect(box.left, top + 1, context.measureText(text).width + 4, 15);
      context.fillStyle = colour.text;
      context.textAlign = "left";
      context.textBaseline = "middle";
      context.fillText(text, box.left + 2, top + 9);
    });
    font(frame, 11);
    for (const span of found) {
      const top = box.top + LANE * span.lane + 17, height = LANE - 21, middle = top + height / 2;
      const left = x.at(span.start), width = Math.max(1, x.at(span.start + span.length) - left), ink = colour[span.source];
      context.lineWidth = 1;
      context.strokeStyle = context.fillStyle = ink;
      if (span.isWait) {
        context.beginPath();
        context.setLineDash([4, 3]);
        context.moveTo(left, middle);
        context.lineTo(left + width, middle);
        context.stroke();
        context.setLineDash([]);
        context.fillRect(left, middle - 5, 1, 10);
        context.fillRect(left + width - 1, middle - 5, 1, 10);
      } else if (isHollow(span.source)) {
        if (width > 3) hatch(context, left, top, width, height, ink);
        context.strokeRect(left + 0.5, top + 0.5, Math.max(0, width - 1), height - 1);
      } else {
        context.fillRect(left, top, width > 3 ? width - 1 : width, height);
      }
      if (span.text && width > 34) {
        const whole = `${span.text}, ${number(Number(span.length.toPrecision(3)))} ${axis.unit}`;
        const text = context.measureText(whole).width < width - 14 ? whole : fitted(context, span.text, width - 14);
        const wide = context.measureText(text).width;
        if (text.length > span.text.length / 2) {
          context.fillStyle = colour.surface;
          context.fillRect(left + width / 2 - wide / 2 - 3, middle - 7, wide + 6, 14);
          context.fillStyle = colour.text;
          context.textAlign = "center";
          context.textBaseline = "middle";
          context.fillText(text, left + width / 2, middle + 0.5);
        }
      }
      spots.push({ x: left + width / 2, y: middle, wide: width, row: span.row });
    }
    return spots;
  }

  return { plane, bars, matrix, parallel, lanes, number, mark, isHollow, LANE };
})();

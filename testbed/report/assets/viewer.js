"use strict";
// The timeline and the queues of one run, drawn on canvases that share one span of time.
(() => {
  const source = document.getElementById("run-data");
  if (!source) return;
  const run = JSON.parse(source.textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const doubles = (text) => new Float64Array(bytes(text).buffer);
  for (const lane of run.lanes) {
    lane.start = doubles(lane.start);
    lane.length = doubles(lane.length);
    lane.dark = bytes(lane.dark);
    lane.first = new Int32Array(bytes(lane.first).buffer);
    lane.second = doubles(lane.second);
    lane.far = new Int32Array(bytes(lane.far).buffer);
  }
  for (const node of run.queues) for (const line of node) {
    line.t = doubles(line.t);
    line.bytes = doubles(line.bytes);
  }

  const [BEGIN, END] = run.span; // what is drawn; shorter than the run where that is very long
  const PLANES = ["#e69f00", "#009e73", "#cc79a7", "#b5a800"];
  const LIGHT = ["#fbe3b3", "#b5e3d6", "#efd3e2", "#f6f0a8"];
  const LINES = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#444"];
  const THIN = 1.2, ROW = 17, GAP = 12, HEAD = 22, LEFT = 148, AXIS = 30, RIGHT = 12;
  const axis = document.getElementById("axis");
  const chart = document.getElementById("queues"), tip = document.getElementById("tip");
  const select = document.getElementById("node");
  const boards = ["ranks", "planes"].map((name) => { // ranks over planes, each scrolls on its own
    const lanes = run.lanes.filter((lane) => (lane.kind === "circuit") === (name === "planes"));
    let group = "", height = 0;
    for (const lane of lanes) {
      if (lane.group !== group) { height += group ? GAP : 4; lane.head = height; height += HEAD; }
      group = lane.group;
      lane.y = height;
      height += ROW;
    }
    const canvas = document.getElementById(name), scroller = canvas.parentElement, whole = height + 8;
    const tall = Math.min(whole, parseFloat(getComputedStyle(scroller).maxHeight) || whole);
    const rest = document.createElement("div"); // the canvas shows a part and stays; this scrolls
    rest.style.height = `${whole - tall}px`;
    scroller.append(rest);
    return { canvas, scroller, lanes, tall };
  });

  const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
  const unitOf = (span) => UNITS.find(([size]) => span >= 2 * size) || UNITS[3];
  const digits = (value) => String(Number(value.toPrecision(6)));
  const time = (ns) => { const [size, name] = UNITS.find(([s]) => Math.abs(ns) >= s) || UNITS[3];
    return `${digits(ns / size)} ${name}`; };
  const SIZES = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
  const size = (count) => { const [s, name] = SIZES.find(([s]) => count >= s) || SIZES[3];
    return `${digits(count / s)} ${name}`; };
  const ticks = (from, to, wanted) => {
    const rough = (to - from) / wanted, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((m) => m * power >= rough), list = [];
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) list.push(t);
    return list;
  };

  const steady = () => {
    const k = Math.min(Math.max(run.skip, 0), run.ends.length - 1);
    let from = k > 0 ? run.ends[k - 1] : 0, to = k >= 0 ? run.ends[k] : END;
    if (from < BEGIN || from >= END) [from, to] = [BEGIN, run.ends.find((end) => end > BEGIN) ?? END];
    to = Math.min(to, END);
    const margin = 0.01 * (to - from);
    return [from - margin, to + margin];
  };
  let view = steady(), pending = false, hover = null;
  const limit = (from, to) => {
    const margin = 0.01 * (END - BEGIN), whole = END - BEGIN + 2 * margin + 1;
    const span = Math.min(Math.max(to - from, 20), whole);
    from = Math.min(Math.max(from, BEGIN - margin), BEGIN - margin + whole - span);
    view = [from, from + span];
    draw();
  };
  const fit = (element, tall) => {
    const ratio = window.devicePixelRatio || 1, wide = element.clientWidth;
    if (element.width !== Math.round(wide * ratio) || element.height !== Math.round(tall * ratio)) {
      element.style.height = `${tall}px`;
      element.width = Math.round(wide * ratio);
      element.height = Math.round(tall * ratio);
    }
    const pen = element.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, tall);
    pen.font = "12px system-ui, 'Liberation Sans', 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    return [pen, wide];
  };
  const scaleOf = (wide) => (wide - LEFT - RIGHT) / (view[1] - view[0]);
  const firstIn = (lane) => { // the first interval that ends after the view begins
    let low = 0, high = lane.count;
    while (low < high) { const mid = (low + high) >> 1;
      if (lane.start[mid] + lane.length[mid] <= view[0]) low = mid + 1; else high = mid; }
    return low;
  };
  const hatch = (() => {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 6;
    const pen = tile.getContext("2d");
    pen.fillStyle = "#8a929a"; pen.fillRect(0, 0, 6, 6);
    pen.strokeStyle = "#22262b"; pen.lineWidth = 2.2;
    for (const d of [-6, 0, 6]) { pen.beginPath(); pen.moveTo(d - 1, 7); pen.lineTo(d + 7, -1); pen.stroke(); }
    return tile;
  })();

  const drawAxis = () => {
    const [pen, wide] = fit(axis, AXIS), scale = scaleOf(wide), [unit, name] = unitOf(view[1] - view[0]);
    pen.fillStyle = "#5b6875";
    pen.textAlign = "left";
    pen.fillText(`virtual time [${name}]`, 10, AXIS / 2);
    pen.textAlign = "center";
    for (const t of ticks(view[0] / unit, view[1] / unit, wide / 130)) {
      const x = LEFT + (t * unit - view[0]) * scale;
      if (x > wide - 24) continue;
      pen.fillText(digits(t), x, AXIS / 2 - 2);
      pen.fillRect(x, AXIS - 6, 1, 6);
    }
    pen.fillRect(LEFT, AXIS - 1, wide - LEFT - RIGHT, 1);
  };
  const guides = (pen, wide, top, tall) => {
    const scale = scaleOf(wide), [unit] = unitOf(view[1] - view[0]);
    pen.fillStyle = "#edf0f3";
    for (const t of ticks(view[0] / unit, view[1] / unit, wide / 130)) {
      pen.fillRect(LEFT + (t * unit - view[0]) * scale, top, 1, tall);
    }
    pen.fillStyle = "#9aa6b2";
    for (const end of run.ends) {
      const x = LEFT + (end - view[0]) * scale;
      if (x > LEFT && x < wide - RIGHT) for (let y = top; y < top + tall; y += 6) pen.fillRect(x, y, 1, 3);
    }
  };
  const drawLanes = ({ canvas, scroller, lanes, tall }) => {
    const [pen, wide] = fit(canvas, tall), scale = scaleOf(wide), right = wide - RIGHT;
    const top = scroller.scrollTop;
    const shown = lanes.filter((lane) => lane.y > top - 2 * ROW && lane.y < top + tall + HEAD);
    pen.translate(0, -top);
    guides(pen, wide, top, tall);
    pen.textAlign = "left";
    for (const lane of shown) {
      if (lane.head !== undefined) {
        pen.fillStyle = "#16202b";
        pen.font = "600 13px system-ui, 'Liberation Sans', 'DejaVu Sans', sans-serif";
        pen.fillText(lane.group, 10, lane.head + HEAD / 2);
        pen.font = "12px system-ui, 'Liberation Sans', 'DejaVu Sans', sans-serif";
      }
      pen.fillStyle = "#5b6875";
      pen.fillText(lane.name, 22, lane.y + ROW / 2);
      pen.fillStyle = "#f7f9fa";
      pen.fillRect(LEFT, lane.y + 1, right - LEFT, ROW - 2);
    }
    const first = shown.find((lane) => lane.y >= top);
    if (first && first.kind === "circuit" && first.head === undefined) { // its heading is scrolled away
      pen.fillStyle = "#16202b";
      pen.font = "600 12px system-ui, 'Liberation Sans', 'DejaVu Sans', sans-serif";
      pen.textAlign = "right";
      pen.fillText(first.group, LEFT - 8, first.y + ROW / 2);
      pen.textAlign = "left";
      pen.font = "12px system-ui, 'Liberation Sans', 'DejaVu Sans', sans-serif";
    }
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, top, right - LEFT, tall);
    pen.clip();
    const pattern = pen.createPattern(hatch, "repeat");
    for (const lane of shown) {
      const normal = lane.kind === "compute" ? (lane.name === "reduce" ? "#56b4e9" : "#0072b2")
        : lane.kind === "wait" ? "#d55e00"
        : lane.kind === "send" ? PLANES[lane.plane % 4] : LIGHT[lane.plane % 4];
      const thin = lane.kind === "wait" ? 5 : 2;
      const y = lane.y + thin, high = ROW - 2 * thin;
      let drawn = -1, colour = null, begun = 0, until = 0;
      const flush = () => { // what is narrow and of one colour is painted in one go
        if (colour === null) return;
        pen.fillStyle = colour;
        pen.fillRect(begun, y, until - begun, high);
        colour = null;
      };
      for (let k = firstIn(lane); k < lane.count && lane.start[k] < view[1]; k++) {
        const x = LEFT + (lane.start[k] - view[0]) * scale, w = lane.length[k] * scale;
        if (x + w <= drawn) continue; // already covered at this magnification
        const from = Math.max(x, drawn, LEFT - 2), to = Math.min(Math.max(x + w, x + THIN), right + 2);
        drawn = Math.max(drawn, w < THIN ? from + THIN : from);
        const paint = lane.dark[k] ? (w > 4 ? pattern : "#4a5158") : normal;
        if (w <= 3) {
          if (colour === paint && from <= until + 0.4) { until = Math.max(until, to); continue; }
          flush();
          [colour, begun, until] = [paint, from, to];
          continue;
        }
        flush();
        pen.fillStyle = paint;
        pen.fillRect(from, y, to - from, high);
        if (lane.kind !== "wait") {
          pen.fillStyle = "#ffffffb0";
          pen.fillRect(to - 1, y, 1, high);
        }
        if (lane.far[k] >= 0 && !lane.dark[k] && to - from > 30) {
          pen.fillStyle = "#16202b";
          pen.fillText(`→${lane.far[k]}`, from + 4, lane.y + ROW / 2 + 0.5);
        }
      }
      flush();
    }
    pen.restore();
  };
  const TALL = 230, TOP = 14, BOTTOM = 34;
  const valueAt = (line, t) => {
    let low = 0, high = line.t.length;
    while (low < high) { const mid = (low + high) >> 1; if (line.t[mid] <= t) low = mid + 1; else high = mid; }
    if (low === 0 || low === line.t.length) return low ? line.bytes[low - 1] : 0;
    const [a, b] = [line.t[low - 1], line.t[low]];
    return line.bytes[low - 1] + (line.bytes[low] - line.bytes[low - 1]) * (t - a) / (b - a || 1);
  };
  const drawQueues = () => {
    const [pen, wide] = fit(chart, TALL), scale = scaleOf(wide), lines = run.queues[+select.value] || [];
    const floor = TALL - BOTTOM;
    let most = 0;
    for (const line of lines) {
      most = Math.max(most, valueAt(line, view[0]), valueAt(line, view[1]));
      for (let k = 0; k < line.t.length; k++) {
        if (line.t[k] >= view[0] && line.t[k] <= view[1]) most = Math.max(most, line.bytes[k]);
      }
    }
    const [unit, name] = SIZES.find(([s]) => most >= 2 * s) || SIZES[3], tallest = most || 1;
    guides(pen, wide, TOP, floor - TOP);
    pen.textAlign = "right";
    for (const v of ticks(0, tallest / unit, 5)) {
      const y = floor - (v * unit) / tallest * (floor - TOP - 6);
      pen.fillStyle = "#edf0f3"; pen.fillRect(LEFT, y, wide - LEFT - RIGHT, 1);
      pen.fillStyle = "#5b6875"; pen.fillText(digits(v), LEFT - 8, y);
    }
    pen.textAlign = "left";
    pen.fillText(`waiting [${name}]`, 10, TOP + 4);
    const [tUnit, tName] = unitOf(view[1] - view[0]);
    pen.textAlign = "center";
    for (const t of ticks(view[0] / tUnit, view[1] / tUnit, wide / 130)) {
      pen.fillText(digits(t), LEFT + (t * tUnit - view[0]) * scale, floor + 14);
    }
    pen.textAlign = "left";
    pen.fillText(`virtual time [${tName}]`, 10, floor + 14);
    pen.save();
    pen.beginPath(); pen.rect(LEFT, 0, wide - LEFT - RIGHT, floor + 2); pen.clip();
    pen.lineWidth = 1.7;
    lines.forEach((line, index) => {
      pen.strokeStyle = LINES[index % LINES.length];
      pen.setLineDash(index < LINES.length ? [] : [5, 3]);
      pen.beginPath();
      const y = (v) => floor - v / tallest * (floor - TOP - 6);
      pen.moveTo(LEFT, y(valueAt(line, view[0])));
      let low = 0, high = line.t.length;
      while (low < high) { const mid = (low + high) >> 1; if (line.t[mid] < view[0]) low = mid + 1; else high = mid; }
      let column = -1, least = 0, most = 0; // of points in one column of pixels, two are enough
      const flush = () => { if (column >= 0) { pen.lineTo(column, y(least)); pen.lineTo(column, y(most)); } };
      for (let k = low; k < line.t.length && line.t[k] <= view[1]; k++) {
        const x = LEFT + (line.t[k] - view[0]) * scale, value = line.bytes[k];
        if (x - column < 1) { least = Math.min(least, value); most = Math.max(most, value); continue; }
        flush();
        [column, least, most] = [x, value, value];
      }
      flush();
      pen.lineTo(wide - RIGHT, y(valueAt(line, view[1])));
      pen.stroke();
    });
    pen.restore();
    pen.fillStyle = "#9aa6b2"; pen.fillRect(LEFT, floor, wide - LEFT - RIGHT, 1);
  };
  const key = () => {
    document.getElementById("queue-legend").innerHTML = (run.queues[+select.value] || [])
      .map((line, k) => `<span style="--c:${LINES[k % LINES.length]}">to node ${line.dst}</span>`).join("")
      || "nothing ever waits at this node";
  };
  const align = () => { // leave room beside the others for the boards' scroll bars
    const bar = boards[0].scroller.offsetWidth - boards[0].canvas.clientWidth;
    for (const element of [axis, chart]) element.style.width = `calc(100% - ${bar}px)`;
  };
  const paint = () => { pending = false; const began = performance.now();
    align(); drawAxis(); boards.forEach(drawLanes); drawQueues();
    document.body.dataset.drawMs = (performance.now() - began).toFixed(1); };
  const draw = () => { if (!pending) { pending = true; requestAnimationFrame(paint); } };

  const at = (event) => view[0] + (event.offsetX - LEFT) / scaleOf(event.target.clientWidth);
  const say = (lane, k) => {
    const [from, length] = [lane.start[k], lane.length[k]];
    const span = `${time(from)} to ${time(from + length)} (${time(length)})`;
    const what = lane.kind === "compute" ? `${lane.group}: compute, operation ${lane.first[k]}`
      : lane.kind === "wait" ? `${lane.group} waits: a message outstanding, no compute`
      : lane.kind === "send" ? `${lane.group} sends message ${lane.first[k]} to node ${lane.far[k]}, ${size(lane.second[k])}`
      : lane.dark[k] ? `${lane.group} ${lane.name}: dark, then to port ${lane.far[k]}`
      : `${lane.group} ${lane.name} to port ${lane.far[k]}: circuit ${lane.first[k]} is up`;
    return `${what}\n${span}`;
  };
  const show = (event, text) => {
    tip.textContent = text;
    tip.style.display = text ? "block" : "none";
    tip.style.left = `${Math.min(event.clientX + 14, window.innerWidth - 450)}px`;
    tip.style.top = `${event.clientY + 16}px`;
  };
  const find = (event, board) => {
    const y = event.offsetY + board.scroller.scrollTop;
    const lane = board.lanes.find((l) => y >= l.y && y < l.y + ROW);
    if (!lane || event.offsetX < LEFT) return "";
    const t = at(event), reach = 1.5 / scaleOf(board.canvas.clientWidth);
    for (let k = firstIn(lane); k < lane.count && lane.start[k] <= t + reach; k++) {
      if (lane.start[k] + lane.length[k] >= t - reach) return say(lane, k);
    }
    return "";
  };
  let grabbed = null;
  for (const element of [...boards.map((board) => board.canvas), axis, chart]) {
    const board = boards.find((each) => each.canvas === element);
    element.addEventListener("wheel", (event) => {
      if (board && event.offsetX < LEFT) return; // over the names the lanes scroll
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        const by = event.deltaX / scaleOf(element.clientWidth);
        return limit(view[0] + by, view[1] + by);
      }
      const t = at(event), factor = Math.exp(Math.max(-240, Math.min(240, event.deltaY)) * 0.0022);
      limit(t - (t - view[0]) * factor, t + (view[1] - t) * factor);
    }, { passive: false });
    element.addEventListener("pointerdown", (event) => {
      grabbed = { x: event.clientX, view: [...view] };
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener("pointerup", () => { grabbed = null; });
    element.addEventListener("pointermove", (event) => {
      if (grabbed) {
        const by = (grabbed.x - event.clientX) / scaleOf(element.clientWidth);
        show(event, "");
        return limit(grabbed.view[0] + by, grabbed.view[1] + by);
      }
      if (board) show(event, find(event, board));
      else if (element === chart && event.offsetX > LEFT) {
        const t = at(event), lines = run.queues[+select.value] || [];
        show(event, [`${time(t)}, node ${select.value}`,
          ...lines.map((line) => `to node ${line.dst}: ${size(Math.round(valueAt(line, t)))}`)].join("\n"));
      }
    });
    element.addEventListener("pointerleave", (event) => show(event, ""));
    element.addEventListener("dblclick", () => limit(...steady()));
  }
  for (const board of boards) board.scroller.addEventListener("scroll", draw);
  const zoom = (factor) => { const mid = (view[0] + view[1]) / 2, half = (view[1] - view[0]) / 2 * factor;
    limit(mid - half, mid + half); };
  const pan = (part) => { const by = (view[1] - view[0]) * part; limit(view[0] + by, view[1] + by); };
  const actions = { in: () => zoom(0.5), out: () => zoom(2), left: () => pan(-0.5), right: () => pan(0.5),
    one: () => limit(...steady()), all: () => limit(BEGIN, END) };
  for (const button of document.querySelectorAll("[data-do]")) {
    button.addEventListener("click", actions[button.dataset.do]);
  }
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "one" };
  document.addEventListener("keydown", (event) => {
    if (keys[event.key] && event.target.tagName !== "SELECT") { event.preventDefault(); actions[keys[event.key]](); }
  });
  run.queues.forEach((_, node) => select.add(new Option(`node ${node}`, String(node))));
  select.value = String(run.busiest);
  select.addEventListener("change", () => { key(); draw(); });
  window.addEventListener("resize", draw);
  key();
  paint();
  window.fluxbedViewer = { view: () => view, zoomTo: (from, to) => { view = [from, to]; paint(); },
    intervals: run.lanes.reduce((sum, lane) => sum + lane.count, 0) };
})();

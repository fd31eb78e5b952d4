"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const policies = data.policies;
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 46, RIGHT = 10, PHONE = 520;
  const HOLDS = ["#adb5bd", "#868e96", "#d3d9de", "#8fa3b5", "#c5bdb0", "#6c7680"];
  const TERMS = ["#1c7ed6", "#37b24d", "#ae3ec9", "#f59f00", "#12b886", "#e64980", "#4c6ef5", "#82c91e", "#a0522d", "#15aabf"];
  const byId = (id) => document.getElementById(id);
  const node = (name, attributes = {}, text) => {
    const made = document.createElementNS(SVG, name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const tag = (name, className, text) => {
    const made = document.createElement(name);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const endS = Math.max(1, ...policies.map((policy) => policy.lines.at_s.at(-1) || 0));
  const state = { chosen: 0, beside: -1, from: 0, until: endS };

  // Numbers and times, for people.
  const number = (value) => {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return String(+value.toPrecision(size >= 10 ? 3 : 2));
  };
  const seconds = (value) => {
    if (value === null || value === undefined) return "–";
    if (value === 0) return "0";
    if (value < 0.0995) return `${+(value * 1000).toPrecision(2)} ms`;
    if (value < 1) return `${Math.round(value * 1000)} ms`;
    return value < 100 ? `${+value.toPrecision(2)} s` : `${Math.round(value / 60)} min`;
  };
  const percent = (value) => (value === null || value === undefined ? "–" : `${+(value * 100).toFixed(value > 0.9 ? 2 : 1)} %`);
  const dollars = (value) => (value === null || value === undefined ? "–" : (value < 0 ? "−$" : "$") + number(Math.abs(value)));
  const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
  const two = (value) => String(value).padStart(2, "0");
  // The zone's own clock, as if it were UTC's.
  const aheadAt = (at) => data.offsets.findLast(([from]) => from <= at + 1e-6)?.[1] ?? data.offsets[0][1];
  const faceOf = (at) => new Date((data.start_wall_s + at + aheadAt(at)) * 1000);
  const moment = (at, withDay = true) => {
    if (!data.start_wall_s) {
      const minutes = Math.round(at / 60);
      return `${Math.floor(minutes / 60)}:${two(minutes % 60)} h`;
    }
    const date = faceOf(at);
    const clock = `${two(date.getUTCHours())}:${two(date.getUTCMinutes())}`;
    return withDay ? `${DAYS[date.getUTCDay()]} ${clock}` : clock;
  };
  const zoned = data.start_wall_s ? ` (${data.zone})` : "";
  const timeTicks = (from, until, most) => {
    const steps = [60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600, 2419200];
    const step = steps.find((each) => (until - from) / each <= most) || 4838400;
    const ticks = [];
    data.offsets.forEach(([since, ahead], index) => {
      const offset = (data.start_wall_s + ahead) % step;
      const begin = index ? Math.max(from, since) : from, end = Math.min(until, (data.offsets[index + 1] || [Infinity])[0] - 1e-6);
      for (let at = Math.ceil((begin + offset) / step) * step - offset; at <= end; at += step) ticks.push(at);
    });
    return ticks.map((at) => {
      if (!data.start_wall_s) return [at, step >= 86400 ? `day ${Math.floor(at / 86400)}` : moment(at)];
      const date = faceOf(at);
      const day = `${DAYS[date.getUTCDay()]} ${date.getUTCDate()}`;
      return [at, step >= 86400 ? day : date.getUTCHours() + date.getUTCMinutes() === 0 ? day : moment(at, false)];
    });
  };
  const niceTicks = (top, most) => {
    const raw = top / most;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = power * ([1, 2, 2.5, 5, 10].find((each) => each * power >= raw) || 10);
    const ticks = [];
    for (let value = 0; value <= top * 1.0001; value += step) ticks.push(+value.toPrecision(12));
    return ticks;
  };

  // Colours of terms: what holds is grey, what is urgent is warm, the rest takes what is left.
  const termColours = {};
  let taken = 0, held = 0;
  const termColour = (name) => {
    if (termColours[name]) return termColours[name];
    if (/^hold|^keep|stabil|^between/.test(name)) termColours[name] = name === "hold_unknown" ? "#343a40" : HOLDS[held++ % HOLDS.length];
    else if (/^(queue|kv|tokens|ttft|itl|breach)/.test(name)) termColours[name] = name.startsWith("queue") ? "#f76707" : "#ffa94d";
    else if (/^(max|cap|budget)/.test(name)) termColours[name] = "#c92a2a";
    else termColours[name] = TERMS[taken++ % TERMS.length];
    return termColours[name];
  };

  // One chart: a frame with axes, areas and lines over the time that is looked at.
  const frames = [];
  const POINT = "Point at a time to read why there were so many replicas.";
  const chart = (options) => {
    const row = tag("div", "row");
    const head = tag("div", "head");
    head.append(tag("b", "", options.title));
    const holder = tag("div", "chart");
    row.append(head, holder);
    byId("charts").append(row);
    const frame = { ...options, head, holder, keys: [] };
    if (options.band) row.append((frame.why = tag("p", "why", POINT)));
    frames.push(frame);
    return frame;
  };
  const visible = (lines) => {
    const at = lines.at_s;
    let first = at.findIndex((each) => each >= state.from);
    if (first < 0) first = at.length;
    let last = first;
    while (last < at.length && at[last] <= state.until) last++;
    return [Math.max(0, first - 1), Math.min(at.length, last + 1)];
  };
  const draw = (frame) => {
    const policy = policies[state.chosen];
    const beside = policies[state.beside];
    const width = frame.holder.clientWidth || 800;
    const height = frame.height;
    const foot = frame.last ? 18 : 4;
    const inner = width - LEFT - RIGHT;
    const x = (at) => LEFT + ((at - state.from) / (state.until - state.from)) * inner;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height + foot}`, height: height + foot, role: "img", "aria-label": frame.title });
    const clip = `clip-${frame.id}`;
    const defs = node("defs");
    defs.append(node("clipPath", { id: clip }));
    defs.firstChild.append(node("rect", { x: LEFT, y: 0, width: Math.max(1, inner), height }));
    svg.append(defs);
    const plot = node("g", { "clip-path": `url(#${clip})` });
    for (const [from, until] of policy.breaches) {
      if (until < state.from || from > state.until) continue;
      plot.append(node("rect", { x: x(from), y: 0, width: Math.max(1, x(until) - x(from)), height, fill: "var(--band)" }));
    }
    faults(plot, x, height);
    const series = frame.series(policy, beside);
    const y = scale(frame, series, policy, height);
    for (const [value, label] of y.ticks) {
      svg.append(node("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      svg.append(node("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, label));
    }
    for (const [at, label] of timeTicks(state.from, state.until, Math.max(3, inner / 90))) {
      svg.append(node("line", { class: "grid", x1: x(at), x2: x(at), y1: 0, y2: height }));
      if (frame.last) svg.append(node("text", { x: x(at), y: height + 14, "text-anchor": x(at) > width - 40 ? "end" : "middle" }, label));
    }
    svg.append(plot);
    if (frame.band) {
      band(plot, policy, x, height);
      blind(plot, defs, x, height);
    }
    for (const each of series) plot.append(each.area ? areaOf(each, x, y) : lineOf(each, x, y));
    if (frame === frames[0]) faultNames(plot, x);
    if (frame.promise) {
      plot.append(node("line", { x1: LEFT, x2: width - RIGHT, y1: y(frame.promise), y2: y(frame.promise), stroke: "var(--bad)", "stroke-dasharray": "6 4", "stroke-width": 1.3 }));
    }
    frame.cross = node("line", { class: "cross", y1: 0, y2: height, visibility: "hidden" });
    svg.append(frame.cross);
    frame.holder.replaceChildren(svg);
    frame.x = x;
    frame.inner = inner;
    keysOf(frame, series, policy);
    pointing(frame, svg, inner);
  };
  const scale = (frame, series, policy, height) => {
    if (frame.band) return Object.assign(() => 0, { ticks: [] });
    if (frame.misses) {
      // What is missed on a logarithmic scale, upside down: 99 % lies as far above 90 % as 90 % above nothing.
      const promised = Math.max(1 - frame.promise, 1e-4), least = promised / 20;
      const seen = series.flatMap((each) => each.values.slice(...visible(each.lines)).filter((value) => value !== null));
      const most = Math.min(1, Math.max(10 * promised, ...seen.map((value) => 1 - value)));
      const at = (value) => (height * Math.log(Math.max(1 - value, least) / least)) / Math.log(most / least);
      const ticks = [0, 0.7, 0.9, 0.97, 0.99, 0.997, 0.999].filter((value) => 1 - value > least * 1.3 && 1 - value <= most * 1.001).map((value) => [value, percent(value)]);
      return Object.assign(at, { ticks: ticks.length > 4 ? ticks.filter(([value]) => value !== 0.7 && value !== 0.97 && value !== 0.997) : ticks });
    }
    let top = frame.promise ? frame.promise * 1.25 : 0;
    let low = Infinity;
    for (const each of series) {
      const [first, last] = visible(each.lines);
      for (let index = first; index < last; index++) {
        const value = each.values[index];
        if (value === null || value === undefined) continue;
        top = Math.max(top, value);
        if (value > 0) low = Math.min(low, value);
      }
    }
    if (frame.top) top = frame.top;
    if (frame.least) top = Math.max(top, frame.least);
    if (!(top > 0)) top = 1;
    if (frame.log && top / frame.promise > 8) {
      const least = Math.min(low, frame.promise / 4);
      const from = Math.log10(least), until = Math.log10(top * 1.15);
      const at = (value) => height - ((Math.log10(Math.max(value, least)) - from) / (until - from)) * height;
      const ticks = [];
      for (let power = Math.ceil(from); power <= until; power++) ticks.push([10 ** power, frame.write(10 ** power)]);
      return Object.assign(at, { ticks });
    }
    const ticks = niceTicks(top, Math.max(2, Math.floor(height / 34))).map((value) => [value, frame.write(value)]);
    return Object.assign((value) => height - (value / (top * 1.04)) * height, { ticks });
  };
  const pieces = (each, x, y, values) => {
    const [first, last] = visible(each.lines);
    const runs = [];
    let run = [];
    for (let index = first; index < last; index++) {
      const value = values[index];
      if (value === null || value === undefined) {
        if (run.length) runs.push(run);
        run = [];
        continue;
      }
      // A value stands for the time since the point before it.
      const began = index ? each.lines.at_s[index - 1] : 0;
      run.push([x(began), y(value)], [x(each.lines.at_s[index]), y(value)]);
    }
    if (run.length) runs.push(run);
    return runs;
  };
  const write = (points) => points.map(([px, py]) => `${px.toFixed(1)} ${py.toFixed(1)}`).join("L");
  const lineOf = (each, x, y) =>
    node("path", {
      d: pieces(each, x, y, each.values).map((run) => `M${write(run)}`).join(""),
      fill: "none", stroke: each.colour, "stroke-width": each.width || 1.5, "stroke-linejoin": "round",
      ...(each.dash ? { "stroke-dasharray": each.dash } : {}),
    });
  const areaOf = (each, x, y) => {
    const floor = each.floor || each.values.map((value) => (value === null ? null : 0));
    const over = pieces(each, x, y, each.values), under = pieces(each, x, y, floor);
    const d = over.map((run, index) => `M${write(run)}L${write((under[index] || []).slice().reverse())}Z`).join("");
    return node("path", { d, fill: each.colour, "fill-opacity": each.opacity || 0.85 });
  };
  const band = (plot, policy, x, height) => {
    const lines = policy.lines;
    const [first, last] = visible(lines);
    let began = first;
    for (let index = first + 1; index <= last; index++) {
      if (index < last && lines.reason[index] === lines.reason[began]) continue;
      const from = x(began ? lines.at_s[began - 1] : 0), until = x(lines.at_s[Math.min(index, lines.at_s.length) - 1]);
      plot.append(node("rect", { x: from, y: 0, width: Math.max(0.6, until - from + 0.3), height, fill: termColour(lines.reasons[lines.reason[began]]) }));
      began = index;
    }
  };
  // What went wrong: spans shaded, instants marked; their names stand over the first picture.
  const faults = (plot, x, height) => {
    for (const [name, from, until] of data.faults) {
      if (until < state.from || from > state.until) continue;
      const left = x(Math.max(from, state.from));
      plot.append(node("rect", { class: "fault", x: left, y: 0, width: Math.max(1, x(Math.min(until, state.until)) - left), height }));
      plot.append(node("line", { class: "fault-at", x1: left, x2: left, y1: 0, y2: height }));
    }
  };
  const faultNames = (plot, x) => {
    const free = [-Infinity, -Infinity];
    for (const [name, from, until] of data.faults) {
      if (until < state.from || from > state.until) continue;
      const left = x(Math.max(from, state.from));
      // Two lines of names; where both are taken a name is left out, and pointing tells it.
      const line = free.findIndex((end) => end < left);
      if (line < 0) continue;
      plot.append(node("text", { class: "fault-name", x: left + 4, y: 12 + 13 * line }, name));
      free[line] = left + 10 + name.length * 6.4;
    }
  };
  const blind = (plot, defs, x, height) => {
    const hatch = node("pattern", { id: "blind", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" });
    hatch.append(node("rect", { width: 3, height: 6, fill: "#212529" }));
    defs.append(hatch);
    for (const [, from, until, isBlind] of data.faults) {
      if (!isBlind || until < state.from || from > state.until) continue;
      plot.append(node("rect", { x: x(from), y: 0, width: Math.max(1, x(until) - x(from)), height, fill: "url(#blind)" }));
    }
  };
  const wrong = (at) => data.faults.filter(([, from, until]) => from - 60 <= at && at <= Math.max(until, from + 60)).map(([name]) => name);
  const keysOf = (frame, series, policy) => {
    frame.head.querySelectorAll(".key").forEach((each) => each.remove());
    frame.keys = [];
    const add = (name, colour, style, read) => {
      const key = tag("span", "key");
      const mark = tag("i", style);
      mark.style.background = colour;
      mark.style.borderColor = colour;
      const value = tag("b", "", "");
      key.append(mark, `${name} `, value);
      frame.head.append(key);
      frame.keys.push({ value, read });
    };
    if (frame.band) {
      policy.lines.reasons.slice(0, 9).forEach((name, index) => add(`${name} ${percent(policy.lines.reason_share[index])}`, termColour(name), "", null));
      if (data.faults.some((fault) => fault[3])) add("metrics wrong", "repeating-linear-gradient(45deg, #212529 0 2px, transparent 2px 4px)", "", null);
      frame.reading = add("", "transparent", "thin", (index) => policy.lines.reasons[policy.lines.reason[index]]);
      return;
    }
    for (const each of series) {
      if (each.name) add(each.name, each.colour, each.area ? "" : each.dash ? "thin dash" : "thin", (index) => frame.write((each.own || each.values)[index]));
    }
    if (frame.promise) add(`promise ${frame.write(frame.promise)}`, "var(--bad)", "thin dash", null);
    if (frame.misses && policy.breaches.length) add("under the promise", "var(--band)", "", null);
  };

  // Pointing: one cross over all charts, its values in their heads; a drag looks closer.
  const show = (at) => {
    const lines = policies[state.chosen].lines;
    let index = lines.at_s.findIndex((each) => each >= at);
    if (index < 0) index = lines.at_s.length - 1;
    byId("time-title").textContent = at === null ? `Timeline${zoned}` : `${moment(lines.at_s[index])}${zoned}`;
    if (at === null) index = -1;
    for (const frame of frames) {
      if (frame.cross) {
        frame.cross.setAttribute("visibility", at === null ? "hidden" : "visible");
        if (at !== null) {
          frame.cross.setAttribute("x1", frame.x(at));
          frame.cross.setAttribute("x2", frame.x(at));
        }
      }
      if (frame.why) frame.why.textContent = index < 0 ? POINT : why(policies[state.chosen], index) + (policies[state.beside] ? ` — ${why(policies[state.beside], index)}` : "") + (wrong(lines.at_s[index]).length ? ` (${wrong(lines.at_s[index]).join(", ")})` : "");
      for (const key of frame.keys) key.value.textContent = at === null || !key.read ? "" : key.read(index);
    }
  };
  // The sentence of a point: its form with its own numbers put in; 0 is that of the point before.
  const why = (policy, index) => {
    const lines = policy.lines;
    let from = Math.min(index, lines.because.length - 1);
    while (from > 0 && !lines.because[from]) from--;
    const [form, ...numbers] = lines.because[from] || [];
    if (form === undefined) return "";
    const said = lines.forms[form].replace(/#/g, () => numbers.shift());
    return `${policies.length > 1 ? `${policy.name}, ` : ""}${number(lines.desired[index])} wanted: ${lines.reasons[lines.reason[index]]}${said ? `: ${said}` : ""}`;
  };
  const pointing = (frame, svg, inner) => {
    let began = null, shade = null;
    const atOf = (event) => {
      const left = event.clientX - svg.getBoundingClientRect().left - LEFT;
      return state.from + Math.min(1, Math.max(0, left / inner)) * (state.until - state.from);
    };
    svg.addEventListener("pointermove", (event) => {
      const at = atOf(event);
      show(at);
      if (began === null) return;
      shade = shade || svg.appendChild(node("rect", { y: 0, height: frame.height, fill: "var(--soft)", "fill-opacity": 0.2 }));
      shade.setAttribute("x", frame.x(Math.min(began, at)));
      shade.setAttribute("width", Math.abs(frame.x(at) - frame.x(began)));
    });
    svg.addEventListener("pointerdown", (event) => {
      if (event.pointerType !== "mouse") return;
      began = atOf(event);
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointerup", (event) => {
      if (began === null) return;
      const at = atOf(event);
      const from = Math.min(began, at), until = Math.max(began, at);
      began = null;
      if (frame.x(until) - frame.x(from) > 8) look(from, until);
      else if (shade) shade.remove();
      shade = null;
    });
    svg.addEventListener("pointerleave", () => began === null && show(null));
    svg.addEventListener("dblclick", () => look(0, endS));
  };
  const look = (from, until) => {
    const span = Math.min(endS, Math.max(300, until - from));
    state.from = Math.min(Math.max(0, from), endS - span);
    state.until = state.from + span;
    frames.forEach(draw);
    show(null);
  };

  // What is drawn.
  const sum = (...columns) => columns[0].map((_, index) => columns.reduce((total, column) => total + (column[index] || 0), 0));
  const layered = (lines, parts) => {
    let under = null;
    return parts.map(([name, colour, column, opacity]) => {
      const values = under ? sum(under, column) : column;
      const made = { name, colour, values, own: column, floor: under, lines, area: true, opacity };
      under = values;
      return made;
    });
  };
  const paid = (lines) => sum(lines.ready, lines.draining, lines.starting);
  const another = (beside, read) => (beside ? [{ name: beside.name, colour: "var(--beside)", values: read(beside), lines: beside.lines, width: 1.3 }] : []);
  const makeCharts = () => {
    chart({ id: "demand", title: "Demand, requests/s", height: 84, write: number, series: ({ lines }) => [{ name: "arrivals", colour: "var(--demand)", values: lines.rate, lines, area: true, opacity: 0.55 }] });
    chart({
      id: "replicas", title: "Replicas", height: 190, write: number, least: 4,
      series: (policy, beside) => [
        ...layered(policy.lines, [["ready", "var(--ready)", policy.lines.ready, 0.5], ["draining", "var(--draining)", policy.lines.draining], ["starting", "var(--starting)", policy.lines.starting]]),
        ...(policy.bound.length ? [{ name: "clairvoyant", colour: "var(--bound)", values: policy.bound, lines: policy.lines, width: 1.6, dash: "5 3" }] : []),
        ...another(beside, (other) => paid(other.lines)),
      ],
    });
    chart({ id: "band", title: "Binding term", height: 22, band: true, write: String, series: () => [] });
    chart({
      id: "queue", title: "Requests waiting", height: 84, write: number, least: 10,
      series: (policy, beside) => [...layered(policy.lines, [["in lanes", "var(--queue)", policy.lines.lanes], ["in engines", "var(--engine)", policy.lines.engines]]), ...another(beside, (other) => sum(other.lines.lanes, other.lines.engines))],
    });
    chart({ id: "kept", title: "Requests with both promises kept", height: 92, write: percent, misses: true, promise: data.attainment, series: ({ name, lines }, beside) => [...another(beside, (other) => other.lines.kept), { name: beside ? name : "kept", colour: "var(--good)", values: lines.kept, lines, width: 1.4 }] });
    chart({ id: "ttft", title: "Time to first token, p95", height: 120, write: seconds, log: true, promise: data.ttft_s, series: ({ name, lines }, beside) => [...another(beside, (other) => other.lines.ttft), { name: beside ? name : "p95", colour: "var(--time)", values: lines.ttft, lines, width: 1.4 }] });
    chart({ id: "itl", title: "Between tokens, p95", height: 92, write: seconds, log: true, promise: data.itl_s, series: ({ name, lines }, beside) => [...another(beside, (other) => other.lines.itl), { name: beside ? name : "p95", colour: "var(--time)", values: lines.itl, lines, width: 1.4 }] });
    chart({ id: "usage", title: "What meters say", height: 76, write: percent, top: 1, series: ({ lines }) => [{ name: "GPU utilisation", colour: "var(--gpu)", values: lines.gpu, lines, width: 1.4 }, { name: "KV cache", colour: "var(--kv)", values: lines.kv, lines, width: 1.4 }] });
    if (data.gpu_hour_usd) {
      chart({
        id: "cost", title: "Cost so far", height: 92, write: dollars,
        series: (policy, beside) => [{ name: policy.name, colour: "var(--money)", values: policy.usd, lines: policy.lines, area: true, opacity: 0.35 }, ...another(beside, (other) => other.usd)],
      });
    }
    frames.at(-1).last = true;
  };
  const tiles = () => {
    const policy = policies[state.chosen];
    const missed = policy.breaches.reduce((total, [from, until]) => total + until - from, 0);
    const made = [
      ["GPU-hours", number(policy.gpu_hours), policy.vs_clairvoyant ? `${policy.vs_clairvoyant} × clairvoyant` : ""],
      ["promises kept", percent(policy.attained), policy.holds ? "holds" : `under ${percent(data.attainment)}`, policy.holds ? "" : "miss"],
      ["minutes in breach", number(missed / 60), policy.breaches.length === 1 ? "in one stretch" : `in ${policy.breaches.length} stretches`],
    ];
    if (data.gpu_hour_usd) made.push(["cost", dollars(policy.cost_usd), policy.saved_usd === null || !policy.holds ? "" : policy.saved_usd < 0 ? `${dollars(-policy.saved_usd)} more than static` : `${dollars(policy.saved_usd)} saved vs static`]);
    byId("tiles").replaceChildren(...made.map(([name, value, note, mood]) => {
      const tile = tag("div", "tile");
      tile.append(tag("span", "", name), tag("b", mood || "", value), tag("small", "", note));
      return tile;
    }));
  };

  // The scatter: GPU-hours against broken promises, both on scales that part what is close.
  const pareto = () => {
    const holder = byId("pareto");
    if (policies.length < 2) {
      byId("pareto-card")?.remove();
      return;
    }
    const width = holder.clientWidth || 800;
    const height = width < PHONE ? 280 : 340;
    const svg = node("svg", { viewBox: `0 0 ${width} ${height + 36}`, height: height + 36, role: "img", "aria-label": "GPU-hours against promises kept" });
    const hours = policies.map((policy) => policy.gpu_hours);
    const least = Math.min(...hours, data.bound_gpu_hours || Infinity), most = Math.max(...hours);
    const wide = most / least > 4;
    const from = wide ? Math.log(least * 0.93) : least - (most - least) * 0.06 - least * 0.01, until = wide ? Math.log(most * 1.1) : most + (most - least) * 0.1 + least * 0.01;
    const x = (value) => LEFT + (((wide ? Math.log(value) : value) - from) / (until - from)) * (width - LEFT - RIGHT);
    const missed = (policy) => Math.max(1e-4, 1 - policy.attained);
    const top = Math.log10(Math.min(...policies.map(missed), (1 - data.attainment) / 3)) - 0.1, bottom = Math.log10(Math.max(...policies.map(missed), (1 - data.attainment) * 3)) + 0.1;
    const y = (value) => ((Math.log10(value) - top) / (bottom - top)) * height;
    for (const value of [0.0001, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1]) {
      if (Math.log10(value) < top || Math.log10(value) > bottom) continue;
      svg.append(node("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      svg.append(node("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, `${+((1 - value) * 100).toFixed(2)} %`));
    }
    const decades = [-3, -2, -1, 0, 1, 2, 3, 4, 5, 6].flatMap((power) => (width < PHONE ? [1, 3] : [1, 2, 3, 5, 7]).map((each) => each * 10 ** power));
    const shown = (values) => values.filter((value) => x(value) >= LEFT && x(value) <= width - RIGHT - 16);
    let places = shown(wide ? decades : niceTicks(most * 1.1, Math.max(3, width / 110)));
    // Dots that lie close together leave few round numbers between them: steps of their own then.
    if (places.length < 3) {
      const [low, high] = wide ? [Math.exp(from), Math.exp(until)] : [from, until];
      for (let power = Math.floor(Math.log10(high - low)) + 1; places.length < 3; power--) {
        for (const step of [5, 2, 1].map((each) => each * 10 ** power)) {
          places = shown(Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, index) => +((Math.ceil(low / step) + index) * step).toPrecision(12)));
          if (places.length >= 3) break;
        }
      }
    }
    for (const value of places) {
      svg.append(node("line", { class: "grid", x1: x(value), x2: x(value), y1: 0, y2: height }));
      svg.append(node("text", { x: x(value), y: height + 15, "text-anchor": "middle" }, value < 1000 ? String(+value.toPrecision(5)) : number(value)));
    }
    svg.append(node("text", { x: width - RIGHT, y: height + 32, "text-anchor": "end" }, wide ? "GPU-hours (logarithmic)" : "GPU-hours"));
    svg.append(node("text", { x: 4, y: height + 32 }, "↑ promises kept (what is missed on a logarithmic scale)"));
    const promised = 1 - data.attainment;
    svg.append(node("line", { x1: LEFT, x2: width - RIGHT, y1: y(promised), y2: y(promised), stroke: "var(--good)", "stroke-width": 1.5, "stroke-dasharray": "6 4" }));
    svg.append(node("text", { x: LEFT + 6, y: y(promised) - 5 }, `promised: ${percent(data.attainment)}`));
    const boxes = [[LEFT, y(promised) - 18, LEFT + 100, y(promised)], [LEFT, y(promised) - 1, width - RIGHT, y(promised) + 1]];
    if (data.bound_gpu_hours) {
      svg.append(node("line", { x1: x(data.bound_gpu_hours), x2: x(data.bound_gpu_hours), y1: 0, y2: height, stroke: "var(--bound)", "stroke-width": 1.5, "stroke-dasharray": "5 3" }));
      svg.append(node("text", { x: x(data.bound_gpu_hours) + 5, y: height - 6 }, "clairvoyant"));
      boxes.push([x(data.bound_gpu_hours), height - 20, x(data.bound_gpu_hours) + 70, height], [x(data.bound_gpu_hours) - 1, 0, x(data.bound_gpu_hours) + 1, height]);
    }
    policies.forEach((policy) => boxes.push([x(policy.gpu_hours) - 6, y(missed(policy)) - 6, x(policy.gpu_hours) + 6, y(missed(policy)) + 6]));
    holder.replaceChildren(svg);  // names are measured as they are drawn
    const order = policies.map((_, index) => index).sort((a, b) => (b === state.chosen) - (a === state.chosen) || policies[b].holds - policies[a].holds);
    for (const index of order) {
      const policy = policies[index];
      const px = x(policy.gpu_hours), py = y(missed(policy)), chosen = index === state.chosen;
      const dot = node("circle", { class: "dot", cx: px, cy: py, r: chosen ? 7 : 5, fill: policy.holds ? "var(--good)" : "var(--card)", stroke: policy.holds ? (chosen ? "var(--ink)" : "var(--good)") : "var(--bad)", "stroke-width": 2, tabindex: 0 });
      dot.append(node("title", {}, `${policy.name}: ${number(policy.gpu_hours)} GPU-hours, ${percent(policy.attained)} kept`));
      dot.addEventListener("click", () => choose(index));
      svg.append(dot);
      const name = node("text", { class: "name", ...(chosen ? { "font-weight": 700 } : {}) }, policy.name);
      svg.append(name);
      const length = name.getComputedTextLength() || policy.name.length * 7;
      const spots = [[px + 10, py + 4], [px - 10 - length, py + 4], [px - length / 2, py - 10], [px - length / 2, py + 19], [px + 8, py - 8], [px + 8, py + 16], [px - 8 - length, py - 8], [px - 8 - length, py + 16]];
      // Where it is crowded a name stands off, and a thin line leads to its dot.
      const near = spots.length;
      for (const away of [28, 42, 56, 70]) for (const side of [0, -length, -length / 2]) spots.push([px + side, py - away + 4], [px + side, py + away + 4]);
      const free = ([left, base]) => {
        const box = [left - 2, base - 11, left + length + 2, base + 3];
        const out = box[0] < LEFT || box[2] > width || box[1] < 0 || box[3] > height;
        return !out && !boxes.some((each) => box[0] < each[2] && box[2] > each[0] && box[1] < each[3] && box[3] > each[1] && !(each[0] === px - 6 && each[1] === py - 6));
      };
      const place = spots.findIndex(free);
      if (place < 0 && !chosen) {
        name.remove();
        continue;
      }
      const [left, base] = spots[Math.max(0, place)];
      boxes.push([left - 2, base - 11, left + length + 2, base + 3]);
      name.setAttribute("x", left);
      name.setAttribute("y", base);
      if (place < near) continue;
      boxes.push([px - 2, Math.min(py, base), px + 2, Math.max(py, base - 11)]);
      svg.insertBefore(node("line", { class: "lead", x1: px, y1: py + (base > py ? 6 : -6), x2: Math.min(Math.max(px, left), left + length), y2: base > py ? base - 11 : base + 3 }), name);
    }
  };

  const choose = (index) => {
    state.chosen = index;
    if (state.beside === index) state.beside = -1;
    if (policies.length > 1) {
      byId("policy").value = index;
      byId("beside").value = state.beside;
    }
    document.querySelectorAll("tbody tr[data-policy]").forEach((row) => row.classList.toggle("chosen", Number(row.dataset.policy) === index));
    tiles();
    frames.forEach(draw);
    show(null);
    pareto();
  };
  const option = (value, text) => Object.assign(document.createElement("option"), { value, textContent: text });
  byId("policy").append(...policies.map((policy, index) => option(index, policy.name)));
  byId("beside").append(option(-1, "nothing"), ...policies.map((policy, index) => option(index, policy.name)));
  if (policies.length < 2) document.querySelectorAll(".bar label").forEach((label) => label.remove());
  byId("policy")?.addEventListener("change", (event) => choose(Number(event.target.value)));
  byId("beside")?.addEventListener("change", (event) => {
    state.beside = Number(event.target.value);
    frames.forEach(draw);
  });
  document.querySelectorAll("tbody tr[data-policy]").forEach((row) => row.addEventListener("click", () => choose(Number(row.dataset.policy))));
  document.querySelectorAll("[data-zoom]").forEach((button) => button.addEventListener("click", () => {
    const span = state.until - state.from, middle = (state.from + state.until) / 2;
    const moves = { back: [-span / 2, -span / 2], on: [span / 2, span / 2], in: [span / 4, -span / 4], out: [-span / 2, span / 2] };
    const [from, until] = moves[button.dataset.zoom] || [-middle, endS];
    look(button.dataset.zoom === "all" ? 0 : state.from + from, button.dataset.zoom === "all" ? endS : state.until + until);
  }));
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const paint = (isDark) => document.documentElement.setAttribute("data-theme", isDark ? "dark" : "light");
  paint(dark.matches);
  dark.addEventListener("change", (event) => paint(event.matches));
  byId("theme").addEventListener("click", () => paint(document.documentElement.getAttribute("data-theme") !== "dark"));
  makeCharts();
  if (data.faults.length) document.querySelector(".legend").append(" Violet: what went wrong, from its beginning (dotted) to its end.");
  let drawnWidth = 0;
  const redraw = () => {
    if (Math.abs(document.body.clientWidth - drawnWidth) < 2) return;
    drawnWidth = document.body.clientWidth;
    frames.forEach(draw);
    if (byId("pareto")) pareto();
  };
  window.addEventListener("resize", redraw);
  const named = policies.findIndex((policy) => policy.name === decodeURIComponent(window.location.hash.slice(1)));
  const favourite = policies.findIndex((policy) => policy.name === "forebay");
  drawnWidth = document.body.clientWidth;
  choose(named >= 0 ? named : Math.max(0, favourite));
})();

// Draw the charts of the live view with uPlot; `data-chart` has their values as JSON.
"use strict";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const clock = (at, end) => new Date(at * 1000).toISOString().slice(11, end);

// Bands for faults, drains, rebalances and rescales, each with its name at it, in up to four rows.
const kinds = { fault: "bad", drain: "slow", rescale: "d" };
const drawMarks = (plot, marks) => {
  const { ctx, bbox: { left, top, width, height } } = plot, right = left + width, dot = devicePixelRatio, free = [left, left, left, left];
  ctx.save();
  Object.assign(ctx, { textBaseline: "top", textAlign: "left", font: `${11 * dot}px system-ui` });
  for (const [at, until, what, kind] of marks) {
    if (until < plot.scales.x.min) continue;
    const from = Math.max(plot.valToPos(at, "x", true), left), to = Math.min(plot.valToPos(until, "x", true), right);
    let name = what;
    while (name.length > 9 && ctx.measureText(name).width > width - 8 * dot) name = `${name.slice(0, -2)}…`;
    const needed = ctx.measureText(name).width, start = Math.max(Math.min(from + 4 * dot, right - needed - 4 * dot), left), row = free.findIndex((end) => start >= end);
    ctx.fillStyle = colour(kinds[kind]);
    ctx.globalAlpha = 0.2;
    ctx.fillRect(from, top, Math.max(to - from, 3 * dot), height);
    if (row < 0) continue;
    const y = top + (2 + 14 * row) * dot;
    free[row] = start + needed + 8 * dot;
    ctx.fillStyle = colour("paper");
    ctx.globalAlpha = 0.85;
    ctx.fillRect(start - 2 * dot, y - dot, needed + 4 * dot, 14 * dot);
    ctx.fillStyle = colour(kinds[kind]);
    ctx.globalAlpha = 1;
    ctx.fillText(name, start, y);
  }
  ctx.restore();
};

const tableOf = (chart) => [chart.times, ...chart.lines.map((line) => line.values)];
const axis = (more) => ({ stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui", ...more });

// Points without a neighbour, which no line shows.
const alone = (plot, at) => plot.data[at].flatMap((value, n, all) => ((value ?? null) !== null && (all[n - 1] ?? all[n + 1] ?? null) === null ? [n] : []));

const makePlot = (place, chart) => {
  const number = (value) => (value === null || value === undefined ? "–" : `${value.toLocaleString("en")}${chart.unit}`);
  const room = chart.marks.length ? 1.5 : 1.1; // for names above lines
  return new uPlot({
    width: place.clientWidth, height: 200,
    tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "Etc/UTC"),
    cursor: { drag: { x: false, y: false } },
    scales: { x: { range: (_, low, high) => [Math.min(low, high - 120), high] }, y: { range: (_, low, high) => [0, chart.unit ? Math.min(100, Math.max(high * room, 10)) : Math.max(high * room, 1)] } },
    axes: [axis({ space: 70, size: 28, values: (_, all, __, ___, step) => all.map((at) => clock(at, step < 60 ? 19 : 16)) }), axis({ size: 58, values: (_, all) => all.map(number) })],
    series: [{ label: "UTC", value: (_, at) => (at ? clock(at, 19) : "now") },
      ...chart.lines.map((line, at) => ({ label: line.name, stroke: colour("abcdefgh"[at]), width: 2, points: { show: true, size: 4, filter: alone }, value: (_, each, __, index) => number(index === null ? line.values.at(-1) : each) }))],
    hooks: { draw: [(drawn) => drawMarks(drawn, place.chart.marks)] },
  }, tableOf(chart), place);
};

const namesOf = (chart) => chart.lines.map((line) => line.name).join("\n");
window.drawCharts = (root) => {
  for (const place of root.querySelectorAll("[data-chart]")) {
    if (place.plot) continue;
    place.chart ??= JSON.parse(place.dataset.chart);
    place.plot = makePlot(place, place.chart);
  }
};

// Charts stay where the rest of the view is replaced, so that a cursor over them stays too.
window.keepCharts = (live, fresh) => {
  for (const place of fresh.querySelectorAll("[data-chart]")) {
    const old = document.getElementById(place.id);
    place.chart = JSON.parse(place.dataset.chart);
    if (!old?.plot || namesOf(old.chart) !== namesOf(place.chart)) continue;
    old.chart = place.chart;
    old.plot.setData(tableOf(place.chart));
    place.replaceWith(old);
  }
};

const everywhere = (act) => document.querySelectorAll("[data-chart]").forEach((place) => place.plot && act(place));
addEventListener("resize", () => everywhere((place) => place.plot.setSize({ width: place.clientWidth, height: 200 })));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  everywhere((place) => { place.plot.destroy(); place.plot = undefined; });
  drawCharts(document);
});
drawCharts(document);

'use strict';

const PALETTE = {
  light: ['#4f5bd5', '#14a3a0', '#d9822b', '#b04fc4', '#3478d4', '#7a8a2e', '#c9485b', '#6b7690'],
  dark: ['#8b95ff', '#3ed0c6', '#f2b04a', '#d98bea', '#6cabff', '#b6cc5a', '#ff8a98', '#a5b1cc'],
};
let plots = [];

// With several work directories a line is named by both.
function linesOf(chart) {
  const several = data.works.length > 1;
  return data.works.flatMap((work, index) =>
    work.charts[chart].slice(0, several ? 2 : 8).map((line) => ({
      ...line, work: index,
      title: (several ? work.name + ' · ' : '') + named('series_', line.label),
    })));
}

function chartCard(id, options = {}) {
  const lines = linesOf(id).filter((line) => line.x.length);
  if (!lines.some((line) => !line.dotted)) return null;
  const box = h('div', {class: 'plot'});
  const card = h('div', {class: 'card chart', 'data-chart': id},
    h('h3', null, t('chart_' + id), h('small', null, t('chart_' + id + '_note'))), box);
  card.draw = () => plots.push(draw(box, id, lines, options));
  return card;
}

// One spike must not flatten all the rest.
function needsLog(lines) {
  const values = lines.filter((line) => !line.own_axis && !line.dotted).flatMap((line) => line.y).filter((value) => value !== null);
  if (values.length < 8 || values.some((value) => value <= 0)) return false;
  values.sort((a, b) => a - b);
  return values[values.length - 1] > 12 * values[values.length >> 1];
}

// Of ten; the lines between them are too many.
const wholePower = (value) => (Math.abs(Math.log10(value) % 1) < 1e-9 ? value : null);

function draw(box, id, lines, options) {
  const log = options.log || (options.auto && needsLog(lines) ? 10 : 0);
  const tables = lines.map(fromEndToEnd);
  const tops = lines.filter((line) => !line.dotted && !line.own_axis).flatMap((line) => line.y).filter((value) => value !== null);
  const top = tops.reduce((high, value) => Math.max(high, value), 0);
  const joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
  const axis = {stroke: color('dim'), grid: {stroke: color('line'), width: 1}, ticks: {stroke: color('line'), width: 1}, font: '11px system-ui'};
  const hasOwn = lines.some((line) => line.own_axis);
  const plot = new uPlot({
    width: Math.max(240, box.clientWidth), height: 230,
    cursor: {sync: {key: 'iterations', setSeries: false}, points: {size: 7}, drag: {x: true, y: false}},
    // Amounts are drawn from zero, so that a small change does not look like a
    // large one, and a limit that is far away does not flatten them.
    scales: {x: {time: false}, y: log ? {distr: 3, log} : options.zero ? {range: (u, low) => [Math.min(0, low), 1.05 * top || 1]} : {}, ...(hasOwn ? {factor: {range: [0, 1.05]}} : {})},
    axes: [
      {...axis, size: 30, values: (u, ticks) => ticks.map(short)},
      {...axis, grid: {...axis.grid, filter: (u, splits) => (log === 10 ? splits.map(wholePower) : splits)}, size: 58, values: (u, ticks) => ticks.map((tick) => (tick === null ? '' : short(tick)))},
      ...(hasOwn ? [{...axis, scale: 'factor', side: 1, grid: {show: false}}] : []),
    ],
    series: [{label: t('iteration'), value: (u, x) => short(x)}, ...lines.map((line, index) => style(line, index, options))],
    hooks: {draw: [(u) => marks(u, id)]},
    legend: {live: true},
  }, joined, box);
  return {plot, box};
}

// All charts show the iterations of the whole run.
function fromEndToEnd(line) {
  const first = Math.min(...data.works.map((work) => work.starts[0] ? work.starts[0][2] : 0));
  const last = Math.max(...data.works.map((work) => work.figures.iterations));
  const x = line.x.slice(), y = line.y.slice();
  if (x[0] > first) { x.unshift(first); y.unshift(null); }
  if (x[x.length - 1] < last) { x.push(last); y.push(null); }
  return [x, y];
}

function style(line, index, options) {
  const several = data.works.length > 1;
  const palette = PALETTE[view.theme];
  const stroke = line.dotted ? color('error') : palette[(several ? line.work : index) % palette.length];
  return {
    label: line.title, stroke, width: index === 0 || several ? 2 : 1.4,
    scale: line.own_axis ? 'factor' : 'y',
    dash: line.dotted ? [2, 5] : line.dashed ? [7, 4] : undefined,
    fill: index === 0 && !several && options.fill ? stroke + '1c' : undefined,
    paths: line.stepped ? uPlot.paths.stepped({align: 1}) : undefined,
    spanGaps: true, points: {show: line.x.length < 3},
    value: (u, value) => short(value),
  };
}

// Bad steps below the loss; rollbacks through all charts.
function marks(u, id) {
  const {left, top, width, height} = u.bbox;
  const context = u.ctx;
  context.save();
  context.beginPath();
  context.rect(left, top, width, height);
  context.clip();
  data.works.forEach((work) => {
    for (const entry of work.story.entries) {
      if (entry.kind !== 'intervention' || entry.data.action !== 'rollback') continue;
      const x = u.valToPos(entry.it, 'x', true);
      context.strokeStyle = color('warning') + '99';
      context.setLineDash([4, 4]);
      context.beginPath();
      context.moveTo(x, top);
      context.lineTo(x, top + height);
      context.stroke();
    }
    if (id !== 'loss') return;
    context.setLineDash([]);
    const tall = 16 * devicePixelRatio;
    work.skips[0].forEach((iteration, index) => {
      const x = u.valToPos(iteration, 'x', true);
      context.fillStyle = color(work.skips[1][index] ? 'error' : 'warning');
      context.fillRect(x - 1.2 * devicePixelRatio, top + height - tall, 2.4 * devicePixelRatio, tall);
    });
  });
  context.restore();
}


function heatCard(work) {
  const heat = work.heat;
  const title = h('h3', null, t('chart_modules') + (data.works.length > 1 ? ' · ' + work.name : ''), h('small', null, t('chart_modules_note')));
  if (!heat) return null;
  const canvas = h('canvas', {height: String(heat.labels.length * 22)});
  const tip = h('div', {class: 'tip'});
  const names = h('div', {class: 'names'}, heat.labels.map((name) => h('span', {title: name}, name || t('module'))));
  canvas.style.height = heat.labels.length * 22 + 'px';
  canvas.addEventListener('mousemove', (event) => {
    const column = Math.min(heat.x.length - 1, Math.floor(event.offsetX / canvas.clientWidth * heat.x.length));
    const row = Math.min(heat.labels.length - 1, Math.floor(event.offsetY / 22));
    if (column < 0 || row < 0) return;
    tip.textContent = heat.labels[row] + ' · ' + t('iteration') + ' ' + short(heat.x[column]) + ' · ' + short(heat.rows[row][column]);
  });
  const card = h('div', {class: 'card chart wide', 'data-chart': 'modules'}, title, h('div', {class: 'heat'}, names, canvas), tip);
  card.draw = () => paintHeat(canvas, heat);
  return card;
}

function paintHeat(canvas, heat) {
  const context = canvas.getContext('2d');
  canvas.width = heat.x.length;
  canvas.height = heat.labels.length;
  canvas.style.imageRendering = 'pixelated';
  heat.rows.forEach((row, y) => {
    const known = row.filter((value) => value > 0).map(Math.log);
    const low = Math.min(...known), high = Math.max(...known);
    row.forEach((value, x) => {
      if (value === null) return;
      const share = value > 0 && high > low ? (Math.log(value) - low) / (high - low) : 0.35;
      context.fillStyle = heatColor(share);
      context.fillRect(x, y, 1, 1);
    });
  });
}

// From deep blue over teal to yellow.
const HEAT = [[43, 45, 110], [46, 92, 158], [31, 148, 150], [92, 190, 108], [250, 220, 90]];
function heatColor(share) {
  const place = Math.max(0, Math.min(0.9999, share)) * (HEAT.length - 1);
  const index = Math.floor(place), rest = place - index;
  const mixed = HEAT[index].map((value, i) => Math.round(value + rest * (HEAT[index + 1][i] - value)));
  return 'rgb(' + mixed.join(',') + ')';
}

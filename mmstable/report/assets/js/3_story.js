'use strict';

const TONES = {
  step_fault: 'error', poisoned: 'error', fault_explained: 'error', replicas_diverged: 'error',
  intervention: 'warning', live_change: 'warning', out_of_memory: 'warning', memory_alarm: 'warning', hang: 'error', checkpoint_failed: 'error', low_headroom: 'warning',
  checkpoint: 'good', start: 'accent', resume: 'accent', restart: 'accent', end: 'accent', injected_fault: 'dim',
};
const toneOf = (entry) => (Object.hasOwn(TONES, entry.kind) ? TONES[entry.kind] : 'hint');
const kindOf = (entry) => named('kind_', entry.kind);
const firstText = (record) => Object.values(record).find((value) => typeof value === 'string') || '';

function whatOf(entry) {
  const d = entry.data;
  switch (entry.kind) {
    case 'step_fault':
      return [named('fault_', d.fault || ''), named('action_', d.outcome === 'skipped' ? 'skip' : String(d.outcome)),
        d.next_loss_scale !== undefined && d.next_loss_scale !== d.loss_scale ? 'loss_scale ' + short(d.loss_scale) + ' → ' + short(d.next_loss_scale) : '']
        .filter(Boolean).join(' · ');
    case 'fault_explained': return named('fault_', d.fault || '') + ' · ' + named('verdict_', d.verdict || '');
    case 'intervention': return named('action_', d.action || '') + ' · ' + (d.reason || '');
    case 'live_change': return [d.what, d.after === undefined ? '' : short(d.before) + ' → ' + short(d.after), d.text].filter(Boolean).join(' · ');
    case 'out_of_memory': return [d.phase, d.rung].filter(Boolean).join(' → ');
    case 'injected_fault': return [d.kind, d.value, d.target].filter(Boolean).join(' · ');
    case 'hang': return [d.phase, d.part, d.seconds ? short(d.seconds) + ' s' : ''].filter(Boolean).join(' · ');
    case 'checkpoint_failed': return [d.name, d.reason].filter(Boolean).join(' · ');
    case 'memory_alarm': return [d.resource, d.action].filter(Boolean).join(' · ');
    case 'low_headroom': return [d.problem, d.module].filter(Boolean).join(' · ');
    case 'checkpoint': return String(d.file || '').split('/').pop();
    case 'end': return named('state_', entry.word || '');
    case 'start': case 'resume': case 'restart': return [d.host, d.pid, d.reason].filter(Boolean).join(' · ');
    default: return d.text || d.verdict || firstText(d);
  }
}

function allEntries() {
  return data.works.flatMap((work, index) => work.story.entries.map((entry) => ({...entry, work: index})));
}

function timelineCard(work, index) {
  const box = h('div', {class: 'card timeline'});
  box.draw = () => { box.textContent = ''; box.append(drawTimeline(work, index, box.clientWidth - 36)); };
  return box;
}

// Time goes on evenly while a run is on; a pause takes a fixed width.
function timeScale(starts, left, width) {
  const pause = Math.min(36, width / (2 * starts.length));
  const total = starts.reduce((sum, [a, b]) => sum + Math.max(1, b - a), 0);
  const room = width - pause * (starts.length - 1);
  const parts = [];
  let at = left;
  for (const [begin, end] of starts) {
    const wide = room * Math.max(1, end - begin) / total;
    parts.push({begin, end: Math.max(end, begin + 1), x: at, wide});
    at += wide + pause;
  }
  const place = (time) => {
    let part = parts[0];
    for (const one of parts) if (time >= one.begin) part = one;
    const share = Math.max(0, (time - part.begin) / (part.end - part.begin));
    return part.x + Math.min(part.wide + (share > 1 ? pause / 2 : 0), part.wide * share);
  };
  return {parts, place};
}

function drawTimeline(work, index, width) {
  const lanes = ['runs', 'faults', 'actions', 'machine', 'checkpoints', 'injected', 'other']
    .filter((lane) => lane === 'runs' || work.story.entries.some((entry) => entry.lane === lane));
  const left = width < 560 ? 68 : 108, rowHeight = 34;
  const high = lanes.length * rowHeight + 30;
  const picture = svg('svg', {viewBox: '0 0 ' + width + ' ' + high, height: high, role: 'img', 'aria-label': t('timeline')});
  const {parts, place} = timeScale(work.starts, left, width - left - 14);
  lanes.forEach((lane, row) => {
    const y = row * rowHeight + 20;
    picture.append(svg('text', {x: 0, y: y + 4}, t('lane_' + lane)),
      svg('line', {class: 'lane', x1: left, x2: width - 6, y1: y, y2: y}));
    if (lane === 'runs') for (const part of parts) {
      picture.append(svg('rect', {class: 'run', x: part.x, y: y - 7, width: Math.max(3, part.wide), height: 14, rx: 7}));
    }
    for (const group of clusters(work, lane, place)) picture.append(mark(group, y, index));
  });
  const y = high - 6;
  parts.forEach((part, i) => {
    if (part.wide > 90 || i === 0) picture.append(svg('text', {x: part.x, y}, clock(part.begin)));
  });
  return picture;
}

function clusters(work, lane, place) {
  const found = [];
  for (const entry of work.story.entries) {
    if (entry.lane !== lane || entry.kind === 'end' && entry.word === 'running') continue;
    const x = place(entry.t), last = found[found.length - 1];
    if (last && x - last.x < 13) last.entries.push(entry);
    else found.push({x, entries: [entry]});
  }
  return found;
}

function mark(group, y, work) {
  const [entry] = group.entries, count = group.entries.length;
  const group_ = svg('g', {class: 'mark', tabindex: '0', role: 'button', 'data-kind': entry.kind,
    'aria-label': kindOf(entry) + ' ' + entry.it},
    svg('title', null, group.entries.slice(0, 6).map((one) => kindOf(one) + ' ' + one.it + ': ' + whatOf(one)).join('\n')),
    svg('circle', {cx: group.x, cy: y, r: count > 1 ? 9 : 6, fill: color(toneOf(entry))}),
    count > 1 ? svg('text', {x: group.x, y: y + 3.5}, count > 99 ? '99+' : count) : null);
  const open = () => openDrawer(group.entries.map((one) => ({...one, work})), 0);
  group_.addEventListener('click', open);
  group_.addEventListener('keydown', (event) => { if (event.key === 'Enter' || event.key === ' ') { event.preventDefault(); open(); } });
  return group_;
}

function incidentList() {
  const entries = allEntries().filter((entry) => entry.kind !== 'injected_fault' || view.filter === 'injected_fault');
  const kinds = [...new Set(allEntries().map((entry) => entry.kind))];
  const chips = h('div', {class: 'chips'}, ['all', ...kinds].map((kind) => h('button', {
    type: 'button', class: 'chip' + (view.filter === kind ? ' on' : ''), 'data-filter': kind,
    click: () => { view.filter = kind; view.rows = 100; render(); },
  }, kind === 'all' ? t('all') : named('kind_', kind))));
  const shown = entries.filter((entry) => view.filter === 'all' || entry.kind === view.filter);
  const rows = shown.slice(0, view.rows).map((entry, index) => h('tr', {class: 'row', 'data-kind': entry.kind, tabindex: '0', click: () => openDrawer(shown, index)},
    h('td', {class: 'num'}, short(entry.it)),
    h('td', {class: 'num hide-small'}, clock(entry.t)),
    h('td', {class: 'num'}, dot(entry), kindOf(entry), data.works.length > 1 ? ' · ' + data.works[entry.work].name : ''),
    h('td', null, shortened(whatOf(entry)), entry.cause ? h('div', null, h('span', {class: 'pill error'}, named('verdict_', entry.cause.verdict)), ' ', entry.cause.module || entry.cause.name || '') : null)));
  const left = shown.length - rows.length;
  return [chips, h('div', {class: 'card scroll'}, h('table', null,
    h('thead', null, h('tr', null, h('th', null, t('iteration')), h('th', {class: 'hide-small'}, t('when')), h('th', null, t('kind')), h('th', null, t('what')))),
    h('tbody', null, rows)),
    left > 0 ? h('button', {type: 'button', class: 'tool', click: () => { view.rows += 300; render(); }}, '+ ' + left) : null,
    leftOut())];
}

function leftOut() {
  const count = data.works.reduce((sum, work) => sum + work.story.left_out, 0);
  return count ? h('p', {class: 'tip'}, short(count) + ' ' + t('more')) : null;
}

function dot(entry) {
  const element = h('span', {class: 'dot'});
  element.style.background = 'var(--' + toneOf(entry) + ')';
  return element;
}

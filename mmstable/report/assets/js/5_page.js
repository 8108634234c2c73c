'use strict';

function bar() {
  const other = view.lang === 'en' ? 'zh_cn' : 'en';
  return h('div', {class: 'bar'},
    h('div', {class: 'logo'}, 'mm', h('i', null, 'stable')),
    h('div', {class: 'where mono'}, data.works.map((work) => work.path).join('  ·  ')),
    h('button', {type: 'button', class: 'tool', 'data-switch': 'lang', 'aria-label': t('language'), click: () => { view.lang = other; remember('lang', other); render(); }},
      view.lang === 'en' ? '中文' : 'English'),
    h('button', {type: 'button', class: 'tool', 'data-switch': 'theme', 'aria-label': t('theme'), click: () => setTheme(view.theme === 'dark' ? 'light' : 'dark', true)},
      view.theme === 'dark' ? '☀' : '☾'));
}

const STATES = {finished: 'good', stopped: 'warning', exception: 'error', restarting: 'warning', running: 'hint', killed: 'error', silent: 'warning'};

function hero(work) {
  const words = work.words[view.lang], f = work.figures;
  const tile = (key, value, small, meter) => {
    const line = meter === undefined ? null : h('div', {class: 'meter'}, h('i'));
    if (line) line.firstChild.style.width = Math.min(100, 100 * meter) + '%';
    return h('div', {class: 'tile', 'data-tile': key}, h('b', {title: String(value)}, value, small ? h('small', null, small) : null), h('span', null, t(key)), line);
  };
  const percent = (part, whole) => (whole ? (100 * part / whole).toFixed(1) + ' %' : '');
  return h('section', {class: 'hero ' + words.worst},
    h('h1', null, words.headline),
    h('p', {class: 'sub'}, h('span', {class: 'pill ' + (STATES[f.state] || '')}, named('state_', f.state)), '  ', work.name, work.setup.device ? ' · ' + work.setup.device : ''),
    h('div', {class: 'tiles'},
      tile('iterations', short(f.iterations), f.most && f.iterations < f.most ? '/ ' + short(f.most) : '', f.most ? f.iterations / f.most : undefined),
      tile('skipped', short(f.skipped), percent(f.skipped, f.steps)),
      tile('rollbacks', short(f.rollbacks)),
      tile('wasted', short(f.wasted), percent(f.wasted, f.iterations)),
      tile('starts', short(f.starts)),
      tile('last_loss', short(f.last_loss)),
      f.loss_scale === null ? null : tile('loss_scale', short(f.loss_scale)),
      tile('seconds', f.seconds === null ? '–' : String(Number(f.seconds.toPrecision(3)))),
      tile('duration', span(f.duration)),
      f.goodput === null ? null : tile('goodput', percent(f.goodput, 1), '', f.goodput)),
    words.notes.length ? h('div', null, h('div', {class: 'label'}, t('left_out')), words.notes.map((note) => h('div', {class: 'notes'}, note))) : null);
}

function findings(work) {
  const found = work.words[view.lang].findings;
  if (!found.length) return h('div', {class: 'card good-card'}, '✓ ', work.words[view.lang].headline);
  return h('div', {class: 'cards'}, found.map((one) => {
    const why = one.why ? h('p', {class: 'clamp'}, h('b', null, t('why') + ': '), one.why.replaceAll('\\n', '\n')) : null;
    if (why) why.addEventListener('click', () => why.classList.toggle('clamp'));
    return h('article', {class: 'card finding ' + one.severity, 'data-finding': one.id},
      h('span', {class: 'pill ' + one.severity}, t('severity_' + one.severity)),
      h('h3', null, one.what), why,
      one.source ? h('div', {class: 'code mono'}, one.source) : null,
      one.fix ? h('p', null, h('b', null, t('fix') + ': '), one.fix) : null,
      one.config ? [h('div', {class: 'label'}, t('config')), code(one.config)] : null);
  }));
}

// Names of figures, and whether less is better; null where neither is.
const COMPARED = {state: null, iterations: false, steps: null, skipped: true, faults: true, rollbacks: true, wasted: true, starts: true,
  last_loss: true, best_loss: true, loss_scale: null, seconds: true, duration: null, goodput: false};

function comparison() {
  const rows = Object.entries(COMPARED).filter(([key]) => key !== 'steps').map(([key, less]) => {
    const values = data.works.map((work) => work.figures[key]);
    const known = values.filter((value) => typeof value === 'number');
    const best = less === null || new Set(known).size < 2 ? null : less ? Math.min(...known) : Math.max(...known);
    return h('tr', null, h('td', null, t(key)), values.map((value) => h('td', {class: 'num' + (best !== null && value === best ? ' best' : '')},
      key === 'state' ? named('state_', value) : key === 'duration' ? span(value) : short(value))));
  });
  const setup = Object.keys(data.works[0].setup).filter((key) => new Set(data.works.map((work) => String(work.setup[key]))).size > 1)
    .map((key) => h('tr', null, h('td', null, t(key)), data.works.map((work) => h('td', null, String(work.setup[key] ?? '–')))));
  const palette = PALETTE[view.theme];
  return h('div', {class: 'card scroll', id: 'comparison'}, h('table', null,
    h('thead', null, h('tr', null, h('th', null, t('metric')), data.works.map((work, index) => {
      const spot = h('span', {class: 'dot'});
      spot.style.background = palette[index % palette.length];
      return h('th', null, spot, work.name);
    }))), h('tbody', null, rows, setup)));
}

function render() {
  const several = data.works.length > 1;
  for (const {plot} of plots) plot.destroy();
  plots = [];
  document.documentElement.lang = view.lang === 'zh_cn' ? 'zh-CN' : 'en';
  document.documentElement.dataset.theme = view.theme;
  document.title = data.works.map((work) => work.name).join(' · ') + ' · mmstable';
  const drawn = [];
  const later = (card) => { if (card && card.draw) drawn.push(card); return card; };
  const wide = (card) => { if (card) card.classList.add('wide'); return card; };
  const charts = h('div', {class: 'charts'},
    later(chartCard('loss', {fill: true, auto: true})), later(chartCard('scale', {log: 2, fill: true})),
    later(chartCard('norm', {auto: true, zero: true})), later(chartCard('lr', {fill: true, zero: true})),
    later(chartCard('time', {zero: true})), later(chartCard('memory', {zero: true})),
    data.works.map((work) => later(heatCard(work))), later(wide(chartCard('validation'))));
  const page = document.getElementById('page');
  const scroll = window.scrollY;
  page.textContent = '';
  fill(page, null, [bar(),
    several ? [h('h2', null, t('comparison')), comparison()] : null,
    data.works.map((work) => [several ? h('h2', null, work.name) : null, hero(work), h('h2', null, t('diagnosis')), findings(work)]),
    h('h2', null, t('charts'), h('small', null, t('drag'))), charts,
    h('h2', null, t('timeline'), h('small', null, t('click'))),
    data.works.map((work, index) => [several ? h('div', {class: 'label'}, work.name) : null, later(timelineCard(work, index))]),
    h('h2', null, t('incidents'), h('small', null, t('pick'))), incidentList(),
    h('h2', null, t('setup')),
    data.works.map((work) => h('div', {class: 'card scroll'}, h('table', null, h('tbody', null, Object.entries(work.setup)
      .filter(([, value]) => value !== null && value !== '').map(([key, value]) => h('tr', null, h('td', null, t(key)), h('td', {class: 'mono'}, String(value)))))))),
    h('footer', null, 'mmstable ' + data.version + ' · ' + t('generated') + ' ' + clock(data.generated)),
  ]);
  for (const card of drawn) card.draw();
  window.scrollTo(0, scroll);
  showDrawer();
}

function setTheme(theme, keep) {
  view.theme = theme;
  if (keep) remember('theme', theme);
  render();
}

view.lang = recall('lang', data.languages, data.language);
const dark = window.matchMedia('(prefers-color-scheme: dark)');
dark.addEventListener('change', () => setTheme(recall('theme', ['light', 'dark'], dark.matches ? 'dark' : 'light')));
setTheme(recall('theme', ['light', 'dark'], dark.matches ? 'dark' : 'light'));
document.addEventListener('keydown', (event) => { if (event.key === 'Escape') closeDrawer(); });
let pending = 0;
let wide = window.innerWidth;
window.addEventListener('resize', () => {
  clearTimeout(pending);
  pending = setTimeout(() => { if (window.innerWidth !== wide) { wide = window.innerWidth; render(); } }, 150);
});

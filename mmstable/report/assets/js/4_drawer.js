'use strict';

function openDrawer(entries, index) {
  view.open = {entries, index};
  showDrawer();
}

function closeDrawer() {
  view.open = null;
  showDrawer();
}

function showDrawer() {
  const old = document.querySelector('.drawer');
  if (old) old.remove();
  if (!view.open) return;
  const {entries, index} = view.open;
  const entry = entries[index];
  const step = (by) => h('button', {type: 'button', class: 'tool', 'aria-label': by < 0 ? '‹' : '›',
    click: () => openDrawer(entries, (index + by + entries.length) % entries.length)}, by < 0 ? '‹' : '›');
  const drawer = h('aside', {class: 'drawer', role: 'dialog', 'aria-label': kindOf(entry)},
    h('header', null, h('h3', null, dot(entry), kindOf(entry)),
      entries.length > 1 ? [step(-1), step(1)] : null,
      h('button', {type: 'button', class: 'tool', 'data-close': '1', click: closeDrawer}, t('close'))),
    h('p', {class: 'tip'}, t('iteration') + ' ' + short(entry.it) + ' · ' + clock(entry.t)
      + (entries.length > 1 ? ' · ' + (index + 1) + ' / ' + entries.length : '')),
    h('div', {class: 'text'}, whatOf(entry)),
    details(entry));
  document.body.append(drawer);
}

function details(entry) {
  const d = entry.data, cause = entry.cause || (entry.kind === 'fault_explained' ? d : {});
  const parts = [];
  const add = (name, element) => { if (element) parts.push(h('div', {class: 'label'}, t(name)), element); };
  const text = (value) => (value ? h('div', {class: 'text'}, String(value)) : null);
  const pre = (value) => (value && value.length ? h('pre', {class: 'mono'}, Array.isArray(value) ? value.join('\n') : String(value)) : null);
  const tags = (values) => (Array.isArray(values) && values.length ? h('div', {class: 'tags'}, values.map((one) => h('span', {class: 'tag mono'}, one))) : null);
  if (cause.verdict) add('verdict', h('span', {class: 'pill error'}, named('verdict_', cause.verdict)));
  add('story', text(cause.text || d.text || d.reason));
  add('source_line', pre(cause.lines || d.line));
  add('module', text(cause.module || d.module));
  add('operation', text([cause.op, cause.node].filter(Boolean).join(' · ')));
  add('culprits', tags(listOf(d.culprits).map((one) => (one.name || '') + (one.kind ? ' · ' + one.kind : ''))));
  add('samples', tags(cause.sample_names || d.samples));
  add('replay', entry.replay ? code(entry.replay) : null);
  add('loss_terms', tags(d.loss_terms));
  add('origins', tags(listOf(d.origins).map((one) => 'rank ' + one.rank + ' · ' + one.node + ' · ' + one.device)));
  add('restored', d.restored === undefined ? null : text(short(d.restored)));
  add('lr_factor', d.lr_factor === undefined || d.lr_factor === 1 ? null : text(short(d.lr_factor)));
  add('chain', pre(cause.chain));
  add('notes', pre(cause.notes));
  add('shapes', pre(d.shapes));
  add('file', text(d.file || d.report));
  add('reason', pre(d.traceback));
  parts.push(h('details', null, h('summary', {class: 'label'}, t('other')), pre(JSON.stringify(d, null, 1))));
  return parts;
}

const listOf = (value) => (Array.isArray(value) ? value.filter((one) => one && typeof one === 'object') : []);

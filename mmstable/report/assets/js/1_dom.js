'use strict';

// Everything out of the data becomes text, never markup.
const data = JSON.parse(document.getElementById('data').textContent);
const view = {lang: data.language, theme: 'light', filter: 'all', open: null, rows: 100};

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  fill(element, attributes, children);
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS('http://www.w3.org/2000/svg', tag);
  fill(element, attributes, children);
  return element;
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === 'click') element.addEventListener('click', value);
    else if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === '') continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

// Own properties only: a record may call something 'constructor'.
function label(key) {
  const texts = data.texts[view.lang];
  return Object.hasOwn(texts, key) ? texts[key] : null;
}
const t = (key) => label(key) ?? key;
const named = (prefix, word) => label(prefix + word) ?? word;

function remember(name, value) {
  try { localStorage.setItem('mmstable.' + name, value); } catch (error) { /* not allowed here */ }
}

function recall(name, allowed, otherwise) {
  try {
    const value = localStorage.getItem('mmstable.' + name);
    return allowed.includes(value) ? value : otherwise;
  } catch (error) { return otherwise; }
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name).trim();

function short(value) {
  if (value === null || value === undefined) return '–';
  if (typeof value !== 'number') return String(value);
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2).replace('e+', 'e');
  if (Number.isInteger(value)) return value.toLocaleString('en');
  return String(Number(value.toPrecision(4)));
}

function span(seconds) {
  if (seconds < 60) return seconds.toFixed(0) + ' s';
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? minutes + ' min' : Math.floor(minutes / 60) + ' h ' + String(minutes % 60).padStart(2, '0') + ' min';
}

const locale = () => (view.lang === 'zh_cn' ? 'zh-CN' : 'en-GB');
const clock = (seconds) => new Date(seconds * 1000).toLocaleString(locale(),
  {month: 'short', day: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit'});

function code(text) {
  const button = h('button', {type: 'button'}, t('copy'));
  const box = h('div', {class: 'code mono'}, text, button);
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = t('copied');
    } catch (error) {
      getSelection().selectAllChildren(box);
    }
  });
  return box;
}

function shortened(text, most = 200) {
  return text.length > most ? text.slice(0, most) + '…' : text;
}

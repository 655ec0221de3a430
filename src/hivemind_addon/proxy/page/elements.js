// Elements: made, and made to look like others. What is told only ever becomes text, never markup.

export function h(tag, attributes, ...children) {
  const at = tag.split("."), made = document.createElement(at[0]);
  if (at.length > 1) made.className = at.slice(1).join(" ");
  return filled(made, attributes, children);
}
export function svg(tag, attributes, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}
function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) if (value != null && value !== false) made.setAttribute(name, value === true ? "" : value);
  for (const child of children.flat(9)) if (child != null && child !== "" && child !== false) made.append(child);
  return made;
}
const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
// Makes `old` look like `fresh` and keeps what is the same, so that a selection or a focus stays. What has a `data-key`
// is the same wherever it goes: a button must not become another request's while somebody presses it.
function morph(old, fresh) {
  const wanted = new Set([...fresh.childNodes].map(keyOf).filter(Boolean)), keyed = new Map();
  for (const node of [...old.childNodes]) {
    const key = keyOf(node);
    if (key == null) continue;
    if (wanted.has(key) && !keyed.has(key)) keyed.set(key, node);
    else node.remove();
  }
  let here = old.firstChild;
  for (const node of [...fresh.childNodes]) {
    const key = keyOf(node);
    let stood = key == null ? here : keyed.get(key);
    if (key == null && stood && keyOf(stood) != null) stood = null;
    if (!stood) { old.insertBefore(node, here); continue; }
    if (stood !== here) old.insertBefore(stood, here);
    here = stood.nextSibling;
    update(stood, node);
  }
  while (here) { const next = here.nextSibling; here.remove(); here = next; }
}
function update(stood, node) {
  if (stood.nodeType !== node.nodeType || stood.nodeName !== node.nodeName) stood.replaceWith(node);
  else if (node.nodeType === Node.TEXT_NODE) { if (stood.data !== node.data) stood.data = node.data; }
  else {
    for (const { name } of [...stood.attributes]) if (!node.hasAttribute(name) && name !== "style" && !(name === "open" && stood.nodeName === "DETAILS")) stood.removeAttribute(name);
    for (const { name, value } of node.attributes) if (name !== "style" && stood.getAttribute(name) !== value) stood.setAttribute(name, value);
    if (stood.style && node.style.width !== stood.style.width) stood.style.width = node.style.width;
    morph(stood, node);
  }
}
export function show(selector, ...children) { morph(document.querySelector(selector), h("div", null, children)); }
export function reveal(id, wanted) { document.getElementById(id).hidden = !wanted; }
// A table that a narrow window folds into one block for each row; `heads`: [heading, kind].
export function table(heads, rows, more) {
  return [h("table", null, h("thead", null, h("tr", null, heads.map(([name, kind]) => h("th", { class: kind, scope: "col" }, name)))), h("tbody", null, rows)),
    more > 0 && h("p.more", null, `and ${Math.round(more).toLocaleString("en-US")} more`)].filter(Boolean);
}
export const cell = (content, label, kind) => h("td", { "data-label": label, class: kind }, content);
export const pill = (text, kind) => h("span", { class: "pill " + (kind || "") }, text);
// What a press has done: a command's JSON stands on its button, and steering.js hears of every press. `what` it is of is
// said to who cannot see where it stands.
export const button = (text, act, what, kind) => h("button", { type: "button", class: kind, "data-act": JSON.stringify(act), "aria-label": what ? `${text.replace("…", "")} ${what}` : null }, text);

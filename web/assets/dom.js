// Builds elements, and updates the shown ones in place, so that focus, selection and scroll position stay.

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "path", "rect", "line", "circle", "title", "polyline", "text"]);

/**
 * An element; `svg:a` is a link in a drawing. Properties that begin with `on` are handlers; `false`, `null` and
 * `undefined` are left out.
 */
export function h(tag, properties, ...children) {
  const element = tag === "svg:a" ? document.createElementNS(SVG, "a") : SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  element.handlers = {};
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) {
      element.handlers[name] = value;
      element[name] = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return element;
}

function sameKind(old, fresh) {
  return old.nodeType === fresh.nodeType && old.nodeName === fresh.nodeName &&
    (old.nodeType !== Node.ELEMENT_NODE || old.getAttribute("data-key") === fresh.getAttribute("data-key"));
}

function updateElement(old, fresh) {
  for (const { name } of [...old.attributes]) {
    // A section that a person has opened stays open.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (name === "open" || (name === "value" && old === document.activeElement)) continue;
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const name of Object.keys(old.handlers ?? {})) {
    if (!(name in fresh.handlers)) old[name] = null;
  }
  for (const [name, handler] of Object.entries(fresh.handlers ?? {})) old[name] = handler;
  old.handlers = fresh.handlers;
  if (!old.hasAttribute("data-own")) updateChildren(old, [...fresh.childNodes]);
}

function updateChildren(parent, fresh) {
  const keyed = new Map();
  for (const child of parent.children) {
    const key = child.getAttribute("data-key");
    if (key !== null) keyed.set(key, child);
  }
  let at = parent.firstChild;
  for (const node of fresh) {
    const key = node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null;
    const known = key === null ? null : keyed.get(key);
    if (known && known !== at && sameKind(known, node)) {
      parent.insertBefore(known, at);
      at = known;
    }
    if (at && sameKind(at, node)) {
      if (node.nodeType === Node.ELEMENT_NODE) updateElement(at, node);
      else if (at.nodeValue !== node.nodeValue) at.nodeValue = node.nodeValue;
      at = at.nextSibling;
    } else {
      parent.insertBefore(node, at);
    }
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

/** Makes `parent` contain these elements. An element with `data-own` keeps its content. */
export function show(parent, ...fresh) {
  updateChildren(parent, [h("div", null, ...fresh)].flatMap((box) => [...box.childNodes]));
}

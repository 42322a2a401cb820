// Builds elements. Text goes in as text, never as HTML.

export const find = (id) => document.getElementById(id);

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element && name !== "list") element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

// Leaves an open list alone if its options have not changed. options: pairs of a value and its text.
export function setOptions(select, options) {
  const signature = JSON.stringify(options);
  if (select.dataset.options === signature) return;
  select.replaceChildren(...options.map(([value, textContent]) => make("option", { value, textContent })));
  select.dataset.options = signature;
}

export const say = (text) => { find("said").textContent = text; };

// A colour from the style sheets, as the current theme has it.
export function colour(name) {
  const box = find("tip");
  box.style.outlineColor = `var(--${name})`;
  return getComputedStyle(box).outlineColor;
}

export const isDark = () => {
  const theme = document.documentElement.dataset.theme;
  return theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
};

// One small box that follows what the pointer or the focus is on.
export const tip = {
  show(anchor, lines) {
    const box = find("tip");
    box.replaceChildren(...lines.map((line, index) => make(index ? "div" : "strong", { textContent: line })));
    box.hidden = false;
    const { left, top, bottom, width } = anchor;
    const x = Math.min(Math.max(left + width / 2 - box.offsetWidth / 2, 6), innerWidth - box.offsetWidth - 6);
    const above = top - box.offsetHeight - 8;
    box.style.left = `${x + scrollX}px`;
    box.style.top = `${(above > 4 ? above : bottom + 8) + scrollY}px`;
  },
  hide() { find("tip").hidden = true; },
};

// What every part of the page is made with: elements whose text is text, sizes in words, what was packed, unpacked.
(function (M) {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  const BIG = 1 << 30, UNITS = [[BIG, "GiB"], [1 << 20, "MiB"], [1 << 10, "KiB"]];
  const SAID = new Set(["aria-label", "placeholder"]);
  let serial = 0, exact = new Map(), templates = [], kept = new Map();

  // Another language: texts for English texts. Those of the page itself may have fields in braces, which hold any text.
  M.speak = function (own, said) {
    exact = new Map([...Object.entries(own || {}), ...Object.entries(said || {})]);
    kept = new Map();
    templates = Object.entries(own || {}).filter(([english]) => english.includes("{")).map(([english, other]) => {
      const fixed = english.split(/\{(\w+)\}/), names = fixed.filter((_, n) => n % 2);
      const pattern = fixed.map((part, n) => n % 2 ? "([^]+?)" : part.replace(/[.*+?^$()|[\]\\]/g, "\\$&")).join("");
      return { pattern: new RegExp(`^${pattern}$`), names, other, fixed: english.replace(/\{\w+\}/g, "").length };
    }).sort((a, b) => b.fixed - a.fixed);
  };
  function filled(text) {
    for (const { pattern, names, other } of templates) {
      const found = pattern.exec(text);
      if (found) return other.replace(/\{(\w+)\}/g, (_, name) => M.spoken(found[names.indexOf(name) + 1]));
    }
    return text;
  }
  M.spoken = function (text) {
    const bare = text.trim();
    if (!exact.size || !/[A-Za-z]/.test(bare)) return text;
    if (!kept.has(bare)) kept.set(bare, exact.get(bare) ?? filled(bare));
    return text.replace(bare, () => kept.get(bare));
  };
  // A name: text that is the same in every language.
  M.name = (text) => document.createTextNode(String(text));

  // An element: strings among its children become text nodes, never markup; attributes with on… are listeners.
  function make(name, space, attributes, children) {
    const made = space ? document.createElementNS(space, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (typeof value === "function") made.addEventListener(key, value);
      else made.setAttribute(key, value === true ? "" : SAID.has(key) ? M.spoken(String(value)) : String(value));
    }
    for (const child of children.flat(2)) {
      if (child === null || child === undefined || child === false) continue;
      made.append(child instanceof Node ? child : document.createTextNode(name === "code" ? String(child) : M.spoken(String(child))));
    }
    return made;
  }
  M.el = (name, attributes, ...children) => make(name, null, attributes, children);
  M.svg = (name, attributes, ...children) => make(name, SVG, attributes, children);
  M.id = (stem) => `memplan-${stem}-${++serial}`;

  // Some four round levels from low to high, [value, text]: in one unit of bytes, or plain counts.
  M.levels = function (low, high, bytes) {
    const power = bytes ? [40, 30, 20, 10].find((each) => high >= 2 ** (each + 1)) || 0 : 0, unit = 2 ** power;
    const about = (high - low) / unit / 5, tens = 10 ** Math.floor(Math.log10(about)), step = [1, 2, 5, 10].find((each) => each * tens >= about) * tens;
    const found = [];
    for (let n = Math.ceil(low / unit / step); n * step * unit <= high; n++) {
      const level = Number((n * step).toPrecision(9));
      found.push([level * unit, bytes ? `${level} ${["B", "KiB", "MiB", "GiB", "TiB"][power / 10]}` : M.count(level).replace(".00", "")]);
    }
    return found;
  };

  // "12.34 GiB", as memplan.units.format_bytes writes it.
  M.bytes = function (n, digits = 2) {
    if (typeof n !== "number" || !isFinite(n)) return "unknown";
    for (const [unit, name] of UNITS) if (Math.abs(n) >= unit) return `${(n / unit).toFixed(digits)} ${name}`;
    return `${n.toFixed(0)} B`;
  };
  M.exact = (n) => `${Number(n).toLocaleString("en-US")} bytes`;
  M.words = (name) => String(name).replace(/_/g, " ");
  M.plain = function (value) {
    if (value === null || value === undefined) return "none";
    if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(5)));
    return typeof value === "object" ? JSON.stringify(value) : String(value);
  };

  // A payload as memplan.page.packing wrote it: [shape, values…] is an object, [-1, items…] a list, [-2, n] a text.
  M.unpack = function (packed) {
    const { shapes, texts } = packed;
    function open(value) {
      if (!Array.isArray(value)) return value;
      if (value[0] === -2) return texts[value[1]];
      if (value[0] === -1) return value.slice(1).map(open);
      const found = {};
      shapes[value[0]].forEach((key, n) => Object.defineProperty(found, key,
        { value: open(value[n + 1]), enumerable: true, configurable: true, writable: true }));
      return found;
    }
    return open(packed.root);
  };

  M.section = (title, ...children) => M.el("section", {}, M.el("h2", {}, title), ...children);
  M.list = (texts, name) => texts.length ? M.el("ul", { class: name || null }, texts.map((text) => M.el("li", {}, text))) : null;
  M.pairs = (rows) => M.el("dl", { class: "pairs" }, rows.filter((row) => row && row[1] !== null && row[1] !== undefined)
    .map(([name, value]) => M.el("div", {}, M.el("dt", {}, name), M.el("dd", {}, value))));

  // A table of few rows; what is a number stands right. A scrolling box takes the keyboard, so that one can scroll it.
  M.table = function (caption, titles, rows) {
    const head = titles.map((title) => M.el("th", { scope: "col", class: title.right ? "right" : null }, title.text || title));
    const body = rows.map((row) => M.el("tr", {}, row.map((cell, n) =>
      M.el(n ? "td" : "th", { scope: n ? null : "row", class: titles[n].right ? "right" : null }, cell))));
    const table = M.el("table", {}, M.el("caption", {}, caption), M.el("thead", {}, M.el("tr", {}, head)), M.el("tbody", {}, body));
    return M.scrolls(caption, table);
  };
  M.scrolls = (label, child) => M.el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, child);
  M.right = (text) => ({ text, right: true });
  M.fits = (word) => M.el("span", { class: `fits ${["yes", "tight", "no"].includes(word) ? word : "unclear"}` }, word);
  M.fold = (title, open, ...children) => M.el("details", { open: open || null }, M.el("summary", {}, title), ...children);

  // A text and a button that copies it; where the clipboard is refused, the text is marked for the reader's own keys.
  // Of "train.yaml, line 5: key: value" the place is said, and what to write there is copied.
  M.copied = function (line) {
    const found = /^(environment|or|[^:\n]+\.\w+(?:, line \d+)?): ([^]+)$/.exec(line), text = found ? found[2] : line;
    const code = M.el("code", {}, text);
    const button = M.el("button", { type: "button", class: "copy", "aria-label": `Copy ${text}` }, "Copy");
    const said = M.el("span", { class: "said", role: "status" });
    const say = (word) => { said.textContent = M.spoken(word); setTimeout(() => { said.textContent = ""; }, 2000); };
    const mark = () => {
      const range = document.createRange();
      range.selectNodeContents(code);
      const chosen = getSelection();
      chosen.removeAllRanges();
      chosen.addRange(range);
      let done = false;
      try { done = document.execCommand("copy"); } catch (error) { done = false; }
      say(done ? "Copied" : "Press Ctrl-C");
    };
    button.addEventListener("click", () => {
      if (!navigator.clipboard || !window.isSecureContext) mark();
      else navigator.clipboard.writeText(text).then(() => say("Copied"), mark);
    });
    return M.el("div", { class: "copied" }, found ? M.el("span", { class: "faint" }, found[1]) : null, code, button, said);
  };

  // Pixels a picture may take, drawn again when they change: one drawing for each width.
  M.fluid = function (drawn) {
    const box = M.el("div", { class: "fluid" });
    let width = 0;
    const again = () => {
      const now = Math.max(280, Math.floor(box.clientWidth) || 720);
      if (now === width) return;
      width = now;
      const kept = box.contains(document.activeElement);
      box.replaceChildren(...drawn(width));
      if (kept) (box.querySelector("[tabindex]") || box).focus();
    };
    box.redraw = () => { width = 0; again(); };
    if (window.ResizeObserver) new ResizeObserver(() => requestAnimationFrame(again)).observe(box);
    requestAnimationFrame(again);
    return box;
  };
})(window.memplan = window.memplan || {});

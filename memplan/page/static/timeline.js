// A step as a picture: what is alive at each instant, stacked by category; hover, tap or arrow keys name a row.
(function (M) {
  "use strict";
  const el = M.el, svg = M.svg;
  // From the bottom of the stack to its top: what stays first.
  M.CATEGORIES = ["parameters", "adapters", "reference", "extra_models", "master_weights", "optimizer_states",
    "buffers", "batch", "workspaces", "kv_cache", "gathered_parameters", "autocast_weights", "gradients",
    "activations", "recomputation", "logits", "temporaries", "optimizer_temporaries", "communication",
    "stream_segments", "context", "trainer", "trainer_cache", "trainer_context", "engine"];
  const MOST = 90, SMALLEST = 0.004;
  const rank = (name) => { const n = M.CATEGORIES.indexOf(name); return n < 0 ? M.CATEGORIES.length : n; };
  M.hue = (category) => M.CATEGORIES.includes(category) ? `k-${category}` : "k-other";
  // A layer is of one size over its columns, or has a size at each.
  const size = (layer, n) => layer.sizes ? layer.sizes[n] : layer.bytes;

  // Layers of a ledger on its instants: {name, group, from, to, bytes, row}.
  M.layersOf = function (ledger, instants) {
    const place = new Map(instants.map((each, n) => [each.name, n]));
    return ledger.filter((row) => row.place === "gpu" && row.meter === "allocated" && row.bytes > 0 && place.has(row.born) && place.has(row.dies))
      .map((row) => ({ name: row.name, group: row.category, from: place.get(row.born), to: place.get(row.dies), bytes: row.bytes, row }));
  };

  // The largest layers by themselves; the others summed up by group at each column, so that a picture has few parts.
  function kept(layers, columns) {
    const sums = new Array(columns).fill(0);
    for (const each of layers) for (let n = each.from; n <= each.to; n++) sums[n] += size(each, n);
    const most = Math.max(1, ...sums);
    const large = new Set([...layers].sort((a, b) => b.bytes - a.bytes).slice(0, MOST).filter((each) => each.sizes || each.bytes >= SMALLEST * most));
    const rest = new Map();
    for (const each of layers) {
      if (large.has(each)) continue;
      for (let n = each.from; n <= each.to; n++) {
        const key = `${each.group}\n${n}`, found = rest.get(key) || { group: each.group, from: n, to: n, bytes: 0, count: 0 };
        found.bytes += each.bytes;
        found.count += 1;
        rest.set(key, found);
      }
    }
    const small = [...rest.values()].map((each) => ({ ...each, name: `${each.count} smaller row${each.count > 1 ? "s" : ""} of ${M.words(each.group)}` }));
    const all = [...large, ...small].sort((a, b) => rank(a.group) - rank(b.group) || a.group.localeCompare(b.group) || (b.to - b.from) - (a.to - a.from) || b.bytes - a.bytes);
    return { all, sums, most };
  }

  // options: columns [{name, words, group}], layers, lines [{label, bytes, name}], curves [{label, values, name}], tell(layer) -> pairs
  M.chart = function (options) {
    const { all, sums, most } = kept(options.layers, options.columns.length);
    const stacks = options.columns.map((_, n) => {
      let from = 0;
      return all.filter((each) => each.from <= n && n <= each.to).map((each) => ({ each, from, to: (from += size(each, n)) })).filter((part) => part.to > part.from);
    });
    const said = el("div", { class: "told", role: "status" });
    const tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    const picked = { column: Math.max(0, sums.indexOf(Math.max(...sums))), part: -1 };
    const lines = options.lines || [], curves = options.curves || [];
    const top = 1.06 * Math.max(most, ...lines.map((each) => each.bytes || 0), ...curves.flatMap((each) => each.values)) || 1;
    const box = M.fluid((width) => picture(width));

    function words(column, part) {
      const where = options.columns[column], stack = stacks[column];
      const total = `${M.bytes(sums[column])} at ${where.name}${where.words ? ` (${where.words})` : ""}`;
      if (part < 0 || !stack[part]) return [total, []];
      const layer = stack[part].each;
      return [layer.name, [["bytes", `${M.bytes(size(layer, column))}, of ${total}`], ...options.tell(layer)]];
    }
    function filled(target, column, part) {
      const [name, rows] = words(column, part);
      target.replaceChildren(el("strong", {}, name), rows.length ? M.pairs(rows) : "");
    }

    function picture(width) {
      const columns = options.columns.length, left = 72, right = 8, head = 22, high = Math.min(340, Math.max(220, width * 0.36));
      const wide = (width - left - right) / columns, longest = Math.max(...options.columns.map((each) => each.short.length));
      const upright = wide < 64, foot = upright ? Math.min(210, longest * 7.8 + 24) : Math.min(130, longest * 4.4 + 24);
      const x = (n) => left + n * wide, y = (n) => head + high * (1 - n / top), height = head + high + foot;
      const parts = [], title = M.id("title");
      for (const [level, text] of M.levels(0, top, true)) {
        parts.push(svg("line", { x1: left, x2: width - right, y1: y(level), y2: y(level), class: "grid" }),
          svg("text", { x: left - 6, y: y(level) + 4, "text-anchor": "end", class: "faint" }, text));
      }
      groups(options.columns).forEach((each, n) => {
        const room = (each.to - each.from + 1) * wide;
        if (n % 2) parts.push(svg("rect", { x: x(each.from), y: 0, width: room, height: head + high, class: "phase" }));
        if (each.name.length * 6.6 < room) parts.push(svg("text", { x: x(each.from) + room / 2, y: 14, "text-anchor": "middle", class: "ink" }, each.name));
      });
      const floors = new Map();
      stacks.forEach((stack, n) => stack.forEach(({ each, from, to }) => floors.set(each, [...(floors.get(each) || []), [n, from, to]])));
      for (const [each, spans] of [...floors].flatMap(([of, found]) => runs(found).map((run) => [of, run]))) {
        const up = spans.map(([n, , to]) => `${x(n).toFixed(1)} ${y(to).toFixed(1)}H${x(n + 1).toFixed(1)}`);
        const down = spans.map(([n, from]) => `${x(n + 1).toFixed(1)} ${y(from).toFixed(1)}H${x(n).toFixed(1)}`).reverse();
        parts.push(svg("path", { d: `M${up.join("L")}L${down.join("L")}Z`, class: `layer ${options.hue(each.group)}` }));
      }
      curves.forEach((each) => parts.push(svg("path", { class: `curve ${each.name}`, d: "M" + each.values.map((level, n) => `${x(n).toFixed(1)} ${y(level).toFixed(1)}H${x(n + 1).toFixed(1)}`).join("L") })));
      lines.filter((each) => each.bytes).forEach((each) => parts.push(svg("line", { x1: left, x2: width - right, y1: y(each.bytes), y2: y(each.bytes), class: `level ${each.name}` })));
      let free = -Infinity;
      options.columns.forEach((each, n) => {
        if (!each.short || x(n) < free) return;
        free = x(n) + 13;
        const at = x(n) + wide / 2, under = head + high + 12, turn = upright ? -90 : -32;
        parts.push(svg("text", { transform: `translate(${at + (upright ? 4 : 2)} ${under}) rotate(${turn})`, "text-anchor": "end", class: "faint" }, each.short));
      });
      const frame = svg("rect", { class: "chosen", x: 0, y: 0, width: 0, height: 0 });
      const drawn = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" }, svg("title", { id: title }, options.title), parts, frame);
      const show = (column, part, at) => {
        picked.column = column;
        picked.part = part;
        const found = stacks[column][part];
        const from = found ? found.from : 0, to = found ? found.to : sums[column];
        for (const [key, value] of Object.entries({ x: x(column), y: y(to), width: wide, height: Math.max(1, y(from) - y(to)) })) frame.setAttribute(key, value);
        filled(tip, column, part);
        tip.hidden = false;
        const room = Math.min(340, width);
        tip.style.maxWidth = `${room}px`;
        tip.style.left = `${Math.max(0, Math.min(width - room, (at ? at.x : x(column)) + 14))}px`;
        tip.style.top = `${at ? at.y + 18 : head}px`;
      };
      const found = (event) => {
        const place = drawn.getBoundingClientRect(), px = event.clientX - place.left, py = event.clientY - place.top;
        const column = Math.floor((px - left) / wide), level = top * (1 - (py - head) / high);
        if (column < 0 || column >= columns || py > head + high || py < head) return null;
        const part = stacks[column].findIndex((each) => each.from <= level && level < each.to);
        return { column, part, at: { x: px, y: py } };
      };
      const moved = (event) => { const at = found(event); if (at) show(at.column, at.part, at.at); else tip.hidden = true; };
      const keyed = (event) => {
        const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1], Home: [-columns, 0], End: [columns, 0] }[event.key];
        if (event.key === "Escape") { tip.hidden = true; return; }
        if (!step) return;
        event.preventDefault();
        const column = Math.max(0, Math.min(columns - 1, picked.column + step[0])), stack = stacks[column];
        const was = stacks[picked.column][picked.part], same = was ? stack.findIndex((each) => each.each === was.each) : -1;
        const part = step[0] ? same : Math.max(-1, Math.min(stack.length - 1, picked.part + step[1]));
        show(column, part, null);
        filled(said, column, part);
      };
      const holder = el("div", {
        class: "picture", tabindex: 0, role: "group", "aria-label": `${options.title}: arrow keys left and right go through the instants, up and down through the rows alive there`,
        pointermove: moved, pointerleave: () => { tip.hidden = true; }, keydown: keyed, blur: () => { tip.hidden = true; },
        click: (event) => { const at = found(event); if (at) { show(at.column, at.part, at.at); filled(said, at.column, at.part); } },
      }, drawn, tip);
      return [holder];
    }
    filled(said, picked.column, -1);
    const names = [...new Set(all.map((each) => each.group))];
    const legend = el("ul", { class: "legend" }, names.map((name) => el("li", {}, el("span", { class: `swatch ${options.hue(name)}` }), M.words(name))),
      [...lines.filter((each) => each.bytes), ...curves].map((each) => el("li", {}, el("span", { class: `stroke ${each.name}` }), each.bytes ? `${each.label}: ${M.bytes(each.bytes)}` : each.label)));
    return el("div", { class: "chart" }, box, legend, said);
  };

  // Spans [column, …] without a column between them that has none.
  function runs(spans) {
    const found = [];
    for (const span of spans) {
      const last = found[found.length - 1];
      if (last && last[last.length - 1][0] === span[0] - 1) last.push(span);
      else found.push([span]);
    }
    return found;
  }

  // A curve of memplan.timeline: a layer for each category, with a size at each of its points.
  M.curve = function (curve, usable, words) {
    let last = "", group = "";
    const columns = curve.points.map((point) => {
      const name = point.instant || last, [first, ...rest] = name.split("."), short = name === last ? "" : rest.join(".") || first;
      last = name;
      group = name ? first : group;
      return { name: name || "before the first instant", short, group, words: (words || {})[name] };
    });
    const names = [...new Set(curve.points.flatMap((point) => Object.keys(point.by_category)))], end = curve.points.length - 1;
    const layers = names.map((name) => {
      const sizes = curve.points.map((point) => point.by_category[name] || 0);
      return { name: M.words(name), group: name, from: 0, to: end, bytes: Math.max(...sizes), sizes };
    });
    const reserved = curve.points.every((point) => point.reserved_bytes !== null && point.reserved_bytes !== undefined);
    return M.chart({ title: `${curve.meter} bytes of ${curve.name}`, columns, layers, hue: M.hue, tell: () => [],
      lines: [{ label: "usable on the card", bytes: usable, name: "usable" }, !reserved && curve.reserved_bytes && { label: "reserved by the allocator", bytes: curve.reserved_bytes, name: "reserved" }].filter(Boolean),
      curves: reserved ? [{ label: "reserved by the allocator", values: curve.points.map((point) => point.reserved_bytes), name: "reserved" }] : [] });
  };

  function groups(columns) {
    const found = [];
    columns.forEach((each, n) => {
      const last = found[found.length - 1];
      if (last && last.name === each.group) last.to = n;
      else found.push({ name: each.group, from: n, to: n });
    });
    return found;
  }
})(window.memplan);

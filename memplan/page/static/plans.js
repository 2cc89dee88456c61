// Many answers side by side: memory against speed, each a point, and the table they are rows of.
(function (M) {
  "use strict";
  const el = M.el, svg = M.svg;

  // Points {name, memory, speed, fits}: those that no other beats in both are the front.
  M.front = function (points) {
    return points.filter((each) => !points.some((other) => other !== each && other.memory <= each.memory && other.speed >= each.speed
      && (other.memory < each.memory || other.speed > each.speed)));
  };

  M.pareto = function (points, usable, choose) {
    const known = points.filter((each) => each.speed > 0 && each.memory > 0);
    if (known.length < 2) return null;
    const said = el("div", { class: "told", role: "status" }, "Hover, tap or focus a point to see its plan.");
    const front = M.front(known).sort((a, b) => a.memory - b.memory), best = new Set(front);
    const tell = (each) => said.replaceChildren(el("strong", {}, each.name), M.pairs([["device", M.bytes(each.memory)], ["speed", each.words], ["fits", each.fits || "no card named"], ["on the front", best.has(each) ? "yes" : "no"]]));
    const box = M.fluid((width) => {
      const height = Math.min(380, Math.max(240, width * 0.42)), left = 58, right = 18, top = 22, foot = 44;
      const sizes = known.map((each) => each.memory), limit = usable && usable < 1.6 * Math.max(...sizes) ? usable : 0;
      const low = Math.min(...sizes) * 0.94, high = Math.max(limit, ...sizes) * 1.04, speeds = known.map((each) => each.speed);
      const slowest = Math.min(...speeds), fast = Math.max(...speeds) * 1.08, slow = slowest > fast / 2 ? slowest - (fast - slowest) / 2 : 0;
      const x = (n) => left + (width - left - right) * (n - low) / (high - low), y = (n) => top + (height - top - foot) * (fast - n) / (fast - slow);
      const parts = [];
      for (const [speed, text] of M.levels(slow, fast, false))
        parts.push(svg("line", { x1: left, x2: width - right, y1: y(speed), y2: y(speed), class: "grid" }), svg("text", { x: left - 6, y: y(speed) + 4, "text-anchor": "end", class: "faint" }, text));
      M.levels(low, high, true).forEach(([size, text], n) => {
        if (width > 480 || n % 2 === 0) parts.push(svg("text", { x: x(size), y: height - foot + 18, "text-anchor": "middle", class: "faint" }, text));
      });
      parts.push(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle", class: "ink" }, "device memory of a GPU"));
      parts.push(svg("text", { x: 0, y: 12, class: "ink" }, known[0].words.endsWith("×") ? "speed" : "tokens/s"));
      if (limit) parts.push(svg("line", { x1: x(limit), x2: x(limit), y1: top, y2: height - foot, class: "limit" }));
      parts.push(svg("path", { class: "front", d: "M" + front.map((each) => `${x(each.memory)} ${y(each.speed)}`).join("L") }));
      for (const each of known) {
        parts.push(svg("text", { x: x(each.memory), y: y(each.speed) - 11, "text-anchor": "middle", class: "ink", "aria-hidden": "true" }, each.number));
        parts.push(svg("circle", { cx: x(each.memory), cy: y(each.speed), r: best.has(each) ? 8 : 6, class: `point ${each.fits || "none"}`, tabindex: 0, role: "button",
          "aria-label": `${each.name}: ${M.bytes(each.memory)}, ${each.words}${each.fits ? `, fits: ${each.fits}` : ""}`, pointerenter: () => tell(each), focus: () => tell(each),
          click: () => { tell(each); choose(each); }, keydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(each); } } }));
      }
      return [svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Memory against speed, each point a plan" }, parts)];
    });
    return M.section("Memory against speed", el("p", { class: "faint" }, "Upwards is faster, to the left is smaller; the line joins what no other beats in both. Speeds are rough estimates, good for ranking."), box, said);
  };

  // "8.03 B", "494.0 M", "12.3 K": parameters, or tokens a second.
  M.count = function (n) {
    for (const [size, name] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "K"]]) if (n >= size) return `${(n / size).toFixed(2)} ${name}`;
    return M.plain(Math.round(n * 100) / 100);
  };

  // Rows {name, report, speed, words, fits, changes}: the picture, the table, and the report of the one that is chosen.
  M.many = function (rows, title, words) {
    const place = el("div", { class: "one", tabindex: -1 }), chosen = el("p", { class: "count", role: "status" });
    const choose = (each) => {
      chosen.textContent = M.spoken(`Shown below: ${each.name}`);
      place.replaceChildren(el("h2", {}, each.name), M.report(each.row.report, words));
    };
    const points = rows.map((row, n) => ({ number: n + 1, name: row.name, memory: row.report.per_gpu.device_bytes.expected, speed: row.speed, words: row.words, fits: row.fits, row }));
    const first = points[0], usable = first && first.row.report.verdict ? first.row.report.verdict.usable_bytes : 0;
    const same = points.every((each) => !each.row.report.verdict || each.row.report.verdict.usable_bytes === usable);
    const changed = points.some((each) => each.row.changes);
    const table = M.table(title, ["no.", "name", "fits", M.right("device"), M.right("allocated"), M.right("speed"), ...(changed ? ["changes"] : [])], points.map((each) => [each.number,
      el("button", { type: "button", class: "open", click: () => choose(each) }, each.name), each.fits ? M.fits(each.fits) : "", M.bytes(each.memory),
      M.bytes(each.row.report.per_gpu.allocated_bytes), each.words,
      ...(changed ? [Object.entries(each.row.changes || {}).map(([key, value]) => `${key}=${M.plain(value)}`).join(" ")] : [])]));
    if (first) choose(first);
    return [M.pareto(points, same ? usable : 0, choose), M.section(title, table, chosen), place];
  };

  M.compare = function (found, words) {
    const rows = found.rows.map((row) => ({ ...row, name: row.title || row.name, speed: row.tokens_per_second || row.relative_speed || 0, fits: row.fits,
      words: row.tokens_per_second ? `${M.count(row.tokens_per_second)} tokens/s` : `${M.plain(row.relative_speed)} ×` }));
    return [M.section("Side by side", el("p", { class: "lead" }, found.recommendation || ""), M.list((found.impossible || []).map(M.plain))), M.many(rows, "Each row a job", words), M.said(found)];
  };

  // Of plan --budget: budgets against peak and speed, and the lines to write.
  M.budget = function (of) {
    if (!of) return null;
    const rows = of.rows.map((row) => [row.name, M.bytes(row.device_bytes), M.bytes(row.allocated_bytes), `${M.count(row.tokens_per_second)} tokens/s`]);
    return [M.section("Budgets", M.table("Each is the fastest that allocates no more", ["made again", M.right("nvidia-smi"), M.right("allocated"), M.right("speed")], rows)),
      M.section("What to write", el("p", {}, of.where), el("pre", {}, of.lines.join("\n")))];
  };

  M.plan = function (found, words) {
    const rows = found.plans.map((each) => ({ ...each, speed: each.speed ? each.speed.tokens_per_second : 0, changes: null, fits: each.report.verdict ? each.report.verdict.fits : "",
      words: each.speed ? `${M.count(each.speed.tokens_per_second)} tokens/s` : "unknown" }));
    const count = `${M.plain(found.considered)} considered, ${M.plain(found.priced)} priced in full`;
    const rejected = (found.rejected || []).map((each) => [each.name, each.reason]);
    return [M.section(rows.length ? "Plans that fit, fastest first" : "No plan fits", el("p", { class: "faint" }, count), M.list((found.needed || []).map((each) => `needed: ${M.plain(each)}`))),
      M.budget(found.budget), M.many(rows, "Plans", words), rejected.length ? M.section("What does not fit", M.table("The nearest, and why", ["plan", "why"], rejected)) : null, M.said(found)];
  };
})(window.memplan);

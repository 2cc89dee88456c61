// The verdict: the card as a bar, with what the job needs of it, holds of it, its band, and the margin kept free.
(function (M) {
  "use strict";
  const el = M.el, svg = M.svg;
  const HEADS = { yes: "Fits", tight: "Tight on", no: "Does not fit", unclear: "Unclear on" };

  // Figures that decide, in bytes of the device meter.
  M.figures = function (report) {
    const gpu = report.per_gpu, device = gpu.device_bytes, reserved = gpu.reserved_bytes, verdict = report.verdict;
    const usable = verdict ? verdict.usable_bytes : null;
    const saved = Math.max(0, reserved.high - reserved.needs_high);
    return {
      usable, low: device.low, holds: device.expected, high: device.high,
      needs: verdict ? usable - verdict.headroom_bytes : device.expected - Math.max(0, reserved.expected - reserved.needs),
      needsHigh: device.high - saved,
      margin: verdict ? usable * ((report.job || {}).margin || 0) : 0,
      processes: report.processes || [],
    };
  };

  M.headline = function (report) {
    const verdict = report.verdict;
    if (report.unclear) return ["unclear", `Unclear: ${report.unclear}`];
    if (!verdict) return ["none", `Needs ${M.bytes(report.per_gpu.device_bytes.expected)} on each GPU`];
    const short = verdict.fits === "no" ? `: short by ${M.bytes(verdict.missing_bytes)}`
      : verdict.fits === "yes" ? `: ${M.bytes(verdict.headroom_bytes)} to spare` : "";
    return [verdict.fits, `${HEADS[verdict.fits] || "On"} ${verdict.gpu}${short}`];
  };

  M.verdict = function (report) {
    const [fits, head] = M.headline(report), found = M.figures(report);
    const host = report.host || {};
    const short = host.fits === false ? el("p", { class: "warn" }, "The nodes' own memory does not hold what is put there.") : null;
    const rows = [
      ["needs", M.bytes(found.needs)],
      found.needsHigh !== found.high && ["needs at most", M.bytes(found.needsHigh)],
      ["holds, as expected", M.bytes(found.holds)],
      ["holds, low to high", `${M.bytes(found.low)} to ${M.bytes(found.high)}`],
      found.usable && ["usable on the card", M.bytes(found.usable)],
      found.margin && [`margin, ${M.plain(100 * report.job.margin)} %`, M.bytes(found.margin)],
      ["tensors at the peak (allocated)", `${M.bytes(report.per_gpu.allocated_bytes)} at ${report.per_gpu.peak_instant}`],
      ...found.processes.map((each) => [`process: ${each.name}`, M.bytes(each.device_bytes)]),
      host.bytes_per_node ? ["host memory of a node", M.bytes(host.bytes_per_node)] : null,
    ];
    return el("section", { class: `verdict ${fits}` }, el("h2", {}, head), short, M.fluid((width) => [M.bar(found, fits, width)]), M.pairs(rows));
  };

  // One bar. Needs and processes fill it; what is held beyond is lighter, the band a line, the margin hatched.
  M.bar = function (found, fits, width) {
    const height = 102, left = 4, top = 30, thick = 30;
    const end = Math.max(found.usable || 0, found.high, found.holds) * 1.03 || 1;
    const x = (n) => left + (width - 2 * left) * Math.min(n, end) / end;
    const hatch = M.id("hatch"), title = M.id("title");
    const band = (from, to, name) => svg("rect", { x: x(from), y: top, width: Math.max(0, x(to) - x(from)), height: thick, class: name });
    const words = `needs ${M.bytes(found.needs)}, holds ${M.bytes(found.holds)}, from ${M.bytes(found.low)} to ${M.bytes(found.high)}`
      + (found.usable ? `, of ${M.bytes(found.usable)} usable, margin ${M.bytes(found.margin)}` : "");
    const parts = [band(0, end, "ground")];
    if (found.usable) parts.push(band(0, found.usable, "card"));
    if (found.holds > found.needs) parts.push(band(found.needs, found.holds, `held ${fits}`));
    if (found.processes.length > 1) {
      let from = 0;
      found.processes.forEach((each, n) => {
        parts.push(band(from, Math.min(end, from + each.device_bytes), `process p${n % 4}`));
        from += each.device_bytes;
      });
    } else parts.push(band(0, found.needs, `needs ${fits}`));
    if (found.usable && found.margin) {
      parts.push(svg("rect", { x: x(found.usable - found.margin), y: top, width: x(found.usable) - x(found.usable - found.margin), height: thick, fill: `url(#${hatch})` }));
    }
    const mid = top + thick / 2;
    parts.push(svg("path", { class: "whisker", d: `M${x(found.low)} ${mid - 6}v12M${x(found.low)} ${mid}H${x(found.high)}M${x(found.high)} ${mid - 6}v12` }));
    parts.push(label(x(found.needs), top + thick + 18, `needs ${M.bytes(found.needs)}`, width, "ink"));
    parts.push(svg("line", { x1: x(found.needs), x2: x(found.needs), y1: top, y2: top + thick + 5, class: "mark" }));
    if (found.usable) {
      parts.push(svg("line", { x1: x(found.usable), x2: x(found.usable), y1: top - 8, y2: top + thick + 4, class: "limit" }));
      parts.push(label(x(found.usable), top - 13, `usable ${M.bytes(found.usable)}`, width, "ink"));
    }
    const held = found.low === found.high ? `holds ${M.bytes(found.high)}` : `holds ${M.bytes(found.low)} to ${M.bytes(found.high)}`;
    parts.push(svg("text", { x: left, y: height - 4, class: "faint" }, held));
    return svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-labelledby": title, class: "bar" },
      svg("title", { id: title }, words),
      svg("defs", {}, svg("pattern", { id: hatch, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
        svg("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "hatch" }))), parts);
  };

  // A text at x that stays on the picture.
  function label(x, y, text, width, name) {
    const half = text.length * 3.4;
    const anchor = x + half > width ? "end" : x - half < 0 ? "start" : "middle";
    return svg("text", { x: anchor === "end" ? Math.min(width - 2, x + half) : anchor === "start" ? Math.max(2, x - half) : x, y, "text-anchor": anchor, class: name }, text);
  }
})(window.memplan);

// The parts of a report beside its picture: changes with what to type, ranks, the engine, what was assumed.
(function (M) {
  "use strict";
  const el = M.el;

  // What a remedy changes, line by line: in the words of the job's file, as memplan's options, or as keys of a job.
  M.toType = function (remedy, dressed) {
    if (remedy.write && remedy.write.length) return [].concat(remedy.write);
    if (dressed) return dressed;
    return Object.entries(remedy.changes || {}).map(([key, value]) => `--set ${key}=${typeof value === "object" ? JSON.stringify(value) : value}`);
  };

  M.remedies = function (remedies, dressed, title) {
    if (!remedies || !remedies.length) return null;
    const lines = dressed || [];
    return M.section(title || "Changes with which it fits", el("ol", { class: "remedies" }, remedies.map((each, n) => el("li", {},
      el("h3", {}, each.title, " ", each.fits ? M.fits(each.fits) : null),
      M.pairs([each.device_bytes && ["then needs", M.bytes(each.device_bytes)], each.frees_bytes && ["frees", M.bytes(each.frees_bytes)], each.cost && ["costs", each.cost],
        each.relative_speed && each.relative_speed !== 1 && ["speed, by arithmetic", `${M.plain(each.relative_speed)} ×`],
        each.host_bytes_per_node && ["memory of a node", M.bytes(each.host_bytes_per_node)]]),
      M.toType(each, lines[n]).map((line) => M.copied(line))))));
  };

  // What instants hold beyond their rows, as a layer: an answer lists of a phase only what the steady step has not.
  function unlisted(instants, layers) {
    const sizes = instants.map((each, n) => each.allocated_bytes - layers.reduce((sum, layer) => sum + (layer.from <= n && n <= layer.to ? layer.bytes : 0), 0));
    return sizes.some((left) => left > 0) ? { group: "other", from: 0, to: instants.length - 1, bytes: Math.max(...sizes), sizes: sizes.map((left) => Math.max(0, left)) } : null;
  }

  // Two sections of the phase that is chosen: its picture, and its ledger.
  M.timeline = function (report, words) {
    const gpu = report.per_gpu, moments = [{ name: "the steady step", instants: gpu.instants, ledger: gpu.ledger, peak: gpu.peak_instant },
      ...(gpu.moments || []).map((each) => ({ name: each.name, instants: each.instants, ledger: each.ledger, peak: each.peak_instant }))]
      .filter((each) => each.instants && each.instants.length);
    const usable = report.verdict && report.verdict.usable_bytes, drawn = (report.timeline || {}).curves || [];
    const curves = drawn.filter((each) => each.kind === "played" || (each.kind === "step" && each.name !== gpu.rank))
      .map((curve) => ({ name: curve.kind === "played" ? "the step as it is played, request by request" : `the step of ${curve.name}`, curve }));
    if (!moments.length) return {};
    const place = el("div"), table = el("div"), title = el("h2"), chooser = el("select", { change: () => draw([...moments, ...curves][Number(chooser.value)]) }, [...moments, ...curves].map((each, n) => el("option", { value: n }, each.name)));
    const steady = (each) => each === moments[0];
    function draw(moment) {
      if (moment.curve) {
        place.replaceChildren(M.curve(moment.curve, usable, words));
        return;
      }
      const columns = moment.instants.map((each) => {
        const [group, ...rest] = each.name.split(".");
        return { name: each.name, short: rest.join(".") || group, group, words: (words || {})[each.name] };
      });
      const reserved = gpu.reserved_bytes;
      const lines = [{ label: "usable on the card", bytes: usable, name: "usable" },
        steady(moment) && { label: "reserved by the allocator", bytes: reserved.expected, name: "reserved" },
        steady(moment) && reserved.needs_sought && { label: "reserved at least", bytes: reserved.needs, name: "least" }].filter(Boolean);
      const layers = M.layersOf(moment.ledger || [], moment.instants), rest = unlisted(moment.instants, layers);
      if (rest) layers.unshift({ ...rest, name: steady(moment) ? "what no row here lists" : "what the steady step has, too" });
      const chart = M.chart({ title: `Allocated bytes in ${moment.name}`, columns, lines, hue: M.hue, layers,
        tell: (layer) => layer.row ? [["category", M.words(layer.group)], ...M.rowWords(layer.row)] : [["category", M.words(layer.group)]] });
      const beside = steady(moment) ? null : drawn.find((each) => each.kind === "beside" && each.name === moment.name);
      place.replaceChildren(beside ? M.curve(beside, usable, words) : chart);
      title.textContent = M.spoken(rest && !steady(moment) ? `Rows of ${moment.name} that the steady step has not` : `The ledger of ${moment.name}`);
      table.replaceChildren(moment.ledger && moment.ledger.length ? M.ledger(moment.ledger, moment.instants) : el("p", {}, "Its rows are not in this answer."));
    }
    draw(moments[0]);
    const choose = moments.length + curves.length > 1 ? el("div", { class: "controls" }, el("label", {}, "Phase ", chooser)) : null;
    const lead = `On ${gpu.rank}; the peak of what is allocated is at ${gpu.peak_instant}. Hover, tap, or use the arrow keys for a row.`;
    return { picture: M.section("Memory over a step", el("p", { class: "faint" }, lead), choose, place), ledger: el("section", {}, title, table) };
  };

  // Bars side by side, each of the same scale: ranks, stages, instants of processes.
  M.bars = function (rows, end) {
    return el("ul", { class: "bars" }, rows.map((row) => el("li", {}, el("span", { class: "name" }, row.name),
      M.fluid((width) => [M.svg("svg", { width, height: 16, viewBox: `0 0 ${width} 16`, "aria-hidden": "true" },
        M.svg("rect", { width, height: 16, class: "card" }),
        row.parts.map(([from, to, name]) => M.svg("rect", { x: width * from / end, width: Math.max(0, width * (to - from) / end), height: 16, class: name })))]),
      el("span", { class: "size" }, row.text))));
  };

  M.ranks = function (report) {
    const ranks = report.ranks || [];
    if (ranks.length < 2 && !(ranks[0] && ranks[0].count > 1)) return null;
    const usable = report.verdict ? report.verdict.usable_bytes : 0;
    const end = Math.max(usable, ...ranks.map((each) => each.device_bytes.high));
    return M.section("Ranks and pipeline stages", el("p", { class: "faint" }, "What the device of each holds."),
      el("ul", { class: "legend" }, [["k-parameters", "allocated"], ["held", "beside it, as expected"], ["high", "at worst"]].map(([name, text]) => el("li", {}, el("span", { class: `swatch ${name}` }), text))),
      M.bars(ranks.map((each) => ({
        name: each.name, text: `${M.bytes(each.device_bytes.expected)}, at most ${M.bytes(each.device_bytes.high)}; peaks at ${each.peak_instant}`,
        parts: [[0, each.allocated_bytes, "k-parameters"], [each.allocated_bytes, each.device_bytes.expected, "held"], [each.device_bytes.expected, each.device_bytes.high, "high"]],
      })), end));
  };

  M.together = function (report, words) {
    const rollout = report.rollout || [];
    if (!rollout.length) return null;
    const names = [...new Set(rollout.flatMap((each) => each.processes.map((process) => process.name)))];
    const columns = rollout.map((each) => ({ name: each.name, short: each.name, group: each.first ? "first step" : "each step", words: (words || {})[each.at] }));
    const layers = rollout.flatMap((each, n) => each.processes.filter((process) => process.device_bytes)
      .map((process) => ({ name: process.name, group: process.name, from: n, to: n, bytes: process.device_bytes, process })));
    return M.section("Trainer and engine on one card", M.chart({
      title: "Device bytes of each process over a step", columns, layers, hue: (name) => `process p${names.indexOf(name) % 4}`,
      lines: [{ label: "usable on the card", bytes: report.verdict && report.verdict.usable_bytes, name: "usable" }],
      curves: [{ label: "high figure of their sum", values: rollout.map((each) => each.high_bytes), name: "high" }],
      tell: (layer) => layer.process ? [["allocated", M.bytes(layer.process.allocated_bytes)], ["reserved", M.bytes(layer.process.reserved_bytes)]] : [],
    }));
  };

  const OF_ENGINE = { budget: "what its share makes", weights: "weights", activation: "profile run", non_torch: "outside PyTorch", graph: "graphs", kv: "cache", awake: "device, awake", asleep: "device, asleep" };
  M.engine = function (report) {
    const engine = report.engine, shares = report.shares || [];
    if (!engine) return null;
    const sizes = Object.entries(OF_ENGINE).map(([key, told]) => [told, M.bytes(engine[`${key}_bytes`])]);
    const table = shares.length ? M.table("Shares of the card the engine could have", ["share", "fits", M.right("cache"), M.right("sequences held"), M.right("device, at most")],
      shares.map((each) => [M.plain(each.share) + (each.why.length ? ` (${each.why.join(", ")})` : ""), M.fits(each.fits), M.bytes(each.kv_bytes), M.plain(each.held), M.bytes(each.device_bytes)])) : null;
    return M.section(`The engine: ${engine.name} ${engine.version}`, engine.why ? el("p", { class: "warn" }, engine.why) : null,
      M.pairs([...sizes, ["cache, in tokens", M.plain(engine.kv_tokens)], ["sequences of the longest length at once", M.plain(engine.max_concurrency)]]), table);
  };

  M.cards = function (report) {
    const cards = report.cards || [];
    return cards.length ? M.section("On other cards", M.table("The same job on each card", ["card", "fits", M.right("usable"), M.right("to spare"), "GPUs with ZeRO-3"],
      cards.map((each) => [each.gpu, M.fits(each.fits), M.bytes(each.usable_bytes), M.bytes(each.headroom_bytes), each.gpus_needed ? M.plain(each.gpus_needed) : ""]))) : null;
  };

  M.said = function (answer) {
    const assumptions = answer.assumptions || [], warnings = answer.warnings || [];
    return [warnings.length ? M.section("Warnings", M.list(warnings, "warn")) : null, assumptions.length ? M.section("Assumed", M.list(assumptions)) : null];
  };

  M.job = function (report) {
    const job = report.job || {}, sources = report.sources || {}, origins = report.origins || {};
    const rows = Object.entries(job).map(([key, value]) => [M.name(key), M.name(M.plain(value)), sources[key] || "", origins[key] || ""]);
    return rows.length ? M.section("The job as understood", M.fold(`${rows.length} keys, and where each came from`, false,
      M.table("Keys of the job", ["key", "value", "from", "because"], rows))) : null;
  };
})(window.memplan);

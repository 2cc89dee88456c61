// What each command's answer looks like, and the one way in: memplan.draw(element, kind, payload).
(function (M) {
  "use strict";
  const el = M.el;

  M.report = function (report, words, dressed) {
    const model = report.model || {}, params = model.params || {}, job = report.job || {};
    const lead = [model.name, params.total && `${M.count(params.total)} parameters`, job.method, job.trainer, `${job.num_gpus || 1} GPU${job.num_gpus > 1 ? "s" : ""}`, job.sharding !== "none" && job.sharding].filter(Boolean);
    const step = M.timeline(report, words);
    return el("div", { class: "report" }, el("p", { class: "lead" }, lead.join(" · ")), M.verdict(report), M.remedies(report.remedies, dressed), step.picture,
      M.together(report, words), M.ranks(report), M.engine(report), step.ledger, M.cards(report), M.said(report), M.job(report));
  };

  function estimate(found, words, typed) {
    if (!found.per_gpu) return M.section("Estimate", anything(found));
    const ways = found.ways || [];
    return [ways.length ? M.section("Ways to train it", anything(ways, "Ways to train it")) : null, M.report(found, words, typed)];
  }

  function check(files) {
    return files.map((each) => el("section", { class: `verdict ${each.fits}` }, el("h2", {}, M.fits(each.fits), " ", each.file), el("p", {}, each.text), each.hint ? el("p", {}, each.hint) : null,
      each.usable_bytes ? M.fluid((width) => [M.bar({ usable: each.usable_bytes, low: each.device_bytes, holds: each.device_bytes, high: each.device_bytes, needs: each.usable_bytes - each.headroom_bytes,
        margin: each.usable_bytes * ((each.job || {}).margin || 0), processes: [] }, each.fits, width)]) : null,
      M.pairs([each.framework && ["framework", each.framework], each.cards && ["cards", each.cards], each.device_bytes && ["device", M.bytes(each.device_bytes)], each.missing_bytes && ["short by", M.bytes(each.missing_bytes)]]),
      each.remedy ? [el("h3", {}, `Fits with ${each.remedy}`), (each.write || []).map((line) => M.copied(line))] : null,
      M.list((each.assumed || []).map((text) => `assumed: ${text}`)), M.list((each.warnings || []), "warn"),
      (each.unread || []).length ? anything(each.unread, "Keys that are not understood") : null, M.job(each)));
  }

  function diagnose(found, words, typed) {
    const sizes = [["requested", found.requested_bytes], ["allocated (tensors)", found.allocated_bytes], ["reserved", found.reserved_bytes], ["free", found.free_bytes], ["of other processes", found.other_bytes], ["the card's total", found.capacity_bytes]]
      .filter(([, size]) => size !== null && size !== undefined);
    const total = found.capacity_bytes, reserved = found.reserved_bytes || found.allocated_bytes || 0, other = found.other_bytes || 0;
    const parts = total ? [[0, found.allocated_bytes || 0, "k-parameters"], [found.allocated_bytes || 0, reserved, "held tight"], [reserved, reserved + other, "process p1"]] : [];
    const asked = found.requested_bytes ? `: ${M.bytes(found.requested_bytes)} more requested` : "";
    return [el("section", { class: "verdict no" }, el("h2", {}, `Out of memory${found.phase && found.phase !== "unknown" ? ` in ${found.phase}` : ""}${asked}`), M.list((found.causes || [])),
      parts.length ? M.bars([{ name: "the card", parts, text: `allocated, reserved, other processes, of ${M.bytes(total)}` }], total) : null, M.pairs(sizes.map(([name, size]) => [name, M.bytes(size)]))),
    M.remedies(found.remedies, typed, (found.remedies || []).some((each) => each.fits) ? "" : "What to try; whether it then fits is not known without the job"),
    (found.matches || []).length ? M.section("What was asked for can be", M.table("Tensors of that size", ["tensor", M.right("bytes"), "size", "why"],
      found.matches.map((each) => [each.name, M.bytes(each.bytes), each.shape || "", each.why || ""]))) : null,
    found.estimated ? M.section("The job's estimate", anything(found.estimated), found.solved ? el("p", {}, found.solved) : null) : null];
  }

  // Any value: an object as pairs, a list of objects as a table, the rest as text. What has no view of its own is seen so.
  function anything(value, title, depth = 0) {
    const size = (key, item) => typeof item === "number" && /bytes$/.test(key) ? M.bytes(item) : M.plain(item);
    const isRow = (item) => item && typeof item === "object" && !Array.isArray(item);
    if (Array.isArray(value) && value.length && value.every(isRow)) {
      const keys = [...new Set(value.flatMap((row) => Object.keys(row).filter((key) => !isRow(row[key]) && !Array.isArray(row[key]))))].slice(0, 8);
      return keys.length ? M.table(title || "Rows", keys.map(M.words), value.slice(0, 500).map((row) => keys.map((key) => key in row ? size(key, row[key]) : ""))) : null;
    }
    if (!isRow(value)) return el("p", {}, M.plain(value));
    const deep = Object.entries(value).filter(([, item]) => item && typeof item === "object" && Object.keys(item).length);
    const flat = Object.entries(value).filter(([, item]) => !item || typeof item !== "object");
    return [M.pairs(flat.map(([key, item]) => [M.words(key), size(key, item)])),
      depth < 3 ? deep.map(([key, item]) => M.fold(M.words(key), depth === 0 && deep.length < 6, anything(item, M.words(key), depth + 1))) : null];
  }

  const KINDS = { estimate, check, diagnose, compare: M.compare, plan: M.plan, trace: M.trace, measure: M.measure };

  // Draw an answer into an element in place of what is there. payload: what --json prints; payload.page, where there
  // is one, has words of instants and lines to type, which memplan.page.dressed adds. An error is drawn as an error.
  M.draw = function (element, kind, payload) {
    const page = (payload && payload.page) || {};
    if (page.own) M.language = page.own;
    M.speak(M.language, page.said);
    element.classList.add("memplan");
    if (payload && typeof payload.error === "string") {
      element.replaceChildren(el("section", { class: "verdict unclear", role: "alert" }, el("h2", {}, payload.error), payload.hint ? el("p", {}, payload.hint) : null));
      return;
    }
    const files = kind === "check" && !Array.isArray(payload) ? payload.files || [payload] : payload;
    const made = Object.hasOwn(KINDS, kind) ? KINDS[kind](files, page.words, page.typed, anything) : M.section(M.words(kind), anything(payload));
    const left = page.left_out ? el("p", { class: "warn" }, page.left_out) : null;
    element.replaceChildren(...[left, made].flat(3).filter((each) => each instanceof Node));
  };

  // The page's own answer, where it carries one.
  M.start = function () {
    const data = document.getElementById("memplan-payload"), place = document.getElementById("memplan-answer");
    if (data && place) M.draw(place, data.dataset.kind, M.unpack(JSON.parse(data.textContent)));
  };
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", M.start);
  else M.start();
})(window.memplan);

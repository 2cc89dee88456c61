"use strict";
// The form: made of the list of fields, filled from the state, read into it.
(() => {
  const web = window.memplanWeb;
  const made = (tag, attributes, ...inner) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...inner.map((each) => (typeof each === "string" && tag !== "option" ? window.memplan.spoken(each) : each)));
    return element;
  };
  const idOf = (key) => "key-" + key.replace(".", "-");

  const control = (field, listed) => {
    const base = { id: idOf(field.key), name: field.key };
    if (field.kind === "flag") return made("input", { ...base, type: "checkbox" });
    if (field.kind === "choice") {
      const options = field.choices.map(([value, text]) => made("option", { value }, text));
      return made("select", base, made("option", { value: "" }, window.memplan.spoken("not said")), ...options);
    }
    const more = listed ? { list: "list-" + field.key } : {};
    const mode = field.kind === "number" ? { inputmode: "decimal" } : {};
    return made("input", { ...base, type: "text", placeholder: window.memplan.spoken(field.first), maxlength: 200, spellcheck: "false", ...mode, ...more });
  };

  web.makeForm = (place, form) => {
    form.groups.forEach((group, number) => {
      const rows = group.fields.map((field) => {
        const label = made("label", { for: idOf(field.key) }, field.label);
        return made("div", { class: `ask-field ask-${field.kind}` }, label, control(field, field.key in form.listed));
      });
      const details = made("details", { class: "ask-group" }, made("summary", {}, group.title), ...rows);
      details.open = number === 0;
      place.append(details);
    });
    for (const [key, names] of Object.entries(form.listed))
      place.append(made("datalist", { id: "list-" + key }, ...names.map((value) => made("option", { value }))));
  };

  const keyed = (form) => [...form.elements].filter((each) => each.id.startsWith("key-"));

  web.fill = (form, state) => {
    const left = { ...state.keys };
    for (const element of keyed(form)) {
      const value = left[element.name];
      delete left[element.name];
      if (element.type === "checkbox") element.checked = value === "true";
      else {
        if (value !== undefined && element.tagName === "SELECT" && ![...element.options].some((each) => each.value === value))
          element.append(made("option", { value }, value));
        element.value = value ?? "";
      }
      if (value !== undefined) element.closest("details").open = true;
    }
    for (const element of form.elements.ask) element.checked = element.value === state.ask;
    for (const element of form.elements.allow) element.checked = state.allow.includes(element.value);
    form.querySelector("#name").value = state.name;
    form.querySelector("#text").value = state.text;
    if (state.text || state.ask === "diagnose" || state.ask === "check") form.querySelector("#drop").open = true;
    web.lang = state.lang;
    web.others = left; // keys of the address that the form has no field for
    web.showFor(form, state);
  };

  web.read = (form) => {
    const keys = { ...web.others };
    for (const element of keyed(form)) {
      const value = element.type === "checkbox" ? (element.checked ? "true" : "") : element.value.trim();
      if (value) keys[element.name] = value;
    }
    const allow = [...form.elements.allow].filter((each) => each.checked).map((each) => each.value);
    return { ask: form.elements.ask.value, lang: web.lang, allow, keys, name: form.querySelector("#name").value.trim(), text: form.querySelector("#text").value };
  };

  // What memplan takes where nothing is said stands in empty fields, unless a file says it. A rank is LoRA's.
  web.showFor = (form, state) => {
    if (Object.keys(state.keys).some((key) => key.startsWith("lora."))) form.elements.use_lora.checked = true;
    form.querySelector("#allow").hidden = state.ask !== "plan";
    form.classList.toggle("ask-filed", state.text.trim() !== "");
  };

  const MEMORY_ERROR = /out of memory|OutOfMemoryError|CUDA error: 2\b|HIP out of|NPU out of|cudaErrorMemoryAllocation/i;
  web.askFor = (text, ask) => (MEMORY_ERROR.test(text) ? "diagnose" : ask === "diagnose" ? "estimate" : ask);
})();

"use strict";
// What is asked of the backend, and when: a first look at each key; once one pauses, the same with the step played through
// the allocator, which decides the verdict; once one has stopped, the whole.
(() => {
  const web = window.memplanWeb;
  const AFTER_A_KEY = 40, BEFORE_THE_PLAY = 120, BEFORE_THE_WHOLE = 350; // milliseconds
  let asked = 0, timer = 0, controller = new AbortController(), last = "";

  const show = (status, error) => {
    document.querySelector("#status").textContent = window.memplan.spoken(status);
    const place = document.querySelector("#error");
    place.hidden = !error;
    place.replaceChildren();
    if (!error) return;
    for (const [mark, text] of [["error", error.error], ["hint", error.hint]]) {
      if (!text) continue;
      const line = document.createElement("p");
      const word = document.createElement("strong");
      word.textContent = window.memplan.spoken(mark + ": ");
      line.append(word, text);
      place.append(line);
    }
  };

  const drawn = document.querySelector("#drawn");
  const draw = (ask, payload) => window.memplan.draw(drawn, ask, payload);

  const run = async (number, ask, body, signal, lang) => {
    const spoken = lang === "en" ? {} : { lang };
    const still = async (pause) => {
      await new Promise((done) => setTimeout(done, pause));
      return number === asked;
    };
    const one = async (more, words) => {
      const began = performance.now();
      const [status, text] = await web.backend.ask(ask, JSON.stringify({ ...body, ...more, ...spoken }), signal);
      if (number !== asked) return null;
      const found = JSON.parse(text);
      if (status !== 200) {
        drawn.replaceChildren();
        show("", found);
        return null;
      }
      try {
        draw(ask, found);
      } catch (error) {
        console.error(error);
        show("", { error: "this answer cannot be drawn: " + error.message, hint: `memplan ${ask} --json prints it` });
        return null;
      }
      drawn.dataset.whole = more.quick ? "no" : "yes";
      show(`${words} in ${Math.max(1, Math.round(performance.now() - began))} ms`);
      return found;
    };
    try {
      drawn.setAttribute("aria-busy", "true");
      if (web.backend.loading) show(web.backend.loading);
      if (ask === "estimate") {
        const first = await one({ quick: true, play: false, dressed: true }, "A first look");
        if (!first) return;
        if (first.verdict) {
          drawn.querySelector(".verdict h2").prepend(window.memplan.spoken("At first look: "));
          if (!(await still(BEFORE_THE_PLAY)) || !(await one({ quick: true, dressed: true }, "Answered"))) return;
        }
        if (!(await still(BEFORE_THE_WHOLE))) return;
        show("Looking for changes and cards with which it fits …");
      } else if (!web.backend.loading) show({ plan: "Searching …", check: "Checking …", diagnose: "Reading …" }[ask]);
      await one({ dressed: true }, "The whole answer");
    } catch (error) {
      if (number === asked && error.name !== "AbortError") show("", { error: "no answer: " + error.message, hint: web.backend.hint });
    } finally {
      if (number === asked) drawn.removeAttribute("aria-busy");
    }
  };

  web.askSoon = (state, now) => {
    const [body, missing] = web.bodyOf(state);
    const lang = web.languageOf(state), text = lang + state.ask + JSON.stringify(body);
    if (text === last) return;
    last = text;
    asked += 1;
    clearTimeout(timer);
    controller.abort();
    controller = new AbortController();
    if (body === null) {
      drawn.replaceChildren();
      show(missing);
      return;
    }
    const { signal } = controller, number = asked;
    const wait = now ? 0 : state.ask === "plan" ? BEFORE_THE_WHOLE : AFTER_A_KEY;
    timer = setTimeout(() => run(number, state.ask, body, signal, lang), wait);
  };
})();

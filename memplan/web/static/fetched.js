"use strict";
// The backend of `memplan web`: its JSON API.
window.memplanWeb.backend = {
  hint: "is memplan web still running?",
  ask: async (kind, body, signal) => {
    const found = await fetch("api/" + kind, { method: "POST", headers: { "content-type": "application/json" }, body, signal });
    return [found.status, await found.text()];
  },
};

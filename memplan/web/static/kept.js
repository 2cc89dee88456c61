"use strict";
// Keeps the page and its engine in the browser, so that it works offline. What it keeps is named by what is in it.
const KEPT = "memplan-DIGEST", NAMES = [];

self.addEventListener("install", (event) => event.waitUntil(caches.open(KEPT).then((kept) => kept.addAll(NAMES)).then(() => self.skipWaiting())));
self.addEventListener("activate", (event) =>
  event.waitUntil(
    caches.keys()
      .then((names) => Promise.all(names.filter((name) => name.startsWith("memplan-") && name !== KEPT).map((name) => caches.delete(name))))
      .then(() => self.clients.claim()),
  ));
self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || new URL(event.request.url).origin !== self.location.origin) return;
  event.respondWith(caches.match(event.request, { ignoreSearch: true }).then((found) => found ?? fetch(event.request)));
});

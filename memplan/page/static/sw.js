// Keeps every file of the page, so that it opens without a network; the network's are taken while there is one.

const KEPT = "memplan";

self.addEventListener("install", (event) => {
  event.waitUntil(
    (async () => {
      const { files } = await (await fetch("files.json", { cache: "no-cache" })).json();
      const kept = await caches.open(KEPT);
      await kept.addAll(["./", "files.json", ...Object.keys(files)]);
      await self.skipWaiting();
    })(),
  );
});

self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  if (request.method !== "GET" || request.headers.has("range") || !request.url.startsWith(self.registration.scope)) return;
  event.respondWith(
    (async () => {
      const kept = await caches.open(KEPT);
      try {
        const answer = await fetch(request);
        if (answer.ok && (await kept.match(request))) await kept.put(request, answer.clone());
        return answer;
      } catch (error) {
        const found = await kept.match(request, { ignoreSearch: true });
        if (!found) throw error;
        return found;
      }
    })(),
  );
});

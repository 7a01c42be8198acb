// Models that are not built in: files as they lie, and headers behind addresses, read by ranges.

const FIRST = 4 << 20;
const MOST = 128 << 20;
const SHARD = /-(\d{5})-of-(\d{5})\.gguf$/;

/** Files as a model: the path of the first shard, where Python finds them all. */
export function mountFiles(engine, files) {
  const models = [...files].sort((a, b) => (a.name < b.name ? -1 : 1));
  const folder = engine.mount(models);
  return { path: `${folder}/${models[0].name}`, name: models[0].name };
}

/** The header behind an address, whose shards are looked up beside it. Throws what is wrong. */
export async function readAddress(engine, named, onProgress) {
  const place = await engine.ask("locate", { name: named });
  if (place.error) throw new Error(place.error);
  let address = place.address;
  if (!address) {
    const listing = await get(place.listing);
    const chosen = await engine.ask("choose", { name: named, listing: await listing.text() });
    if (chosen.error) throw new Error(chosen.error);
    address = chosen.address;
  }
  const shard = SHARD.exec(new URL(address).pathname);
  const addresses = shard ? Array.from({ length: Number(shard[2]) }, (_, at) => address.replace(`-${shard[1]}-of-`, `-${String(at + 1).padStart(5, "0")}-of-`)) : [address];
  for (let size = FIRST; ; size *= 4) {
    const files = [];
    for (const from of addresses) {
      onProgress(`reading the header: ${files.length + 1} of ${addresses.length}`);
      files.push(await head(from, Math.min(size, MOST)));
    }
    const model = mountFiles(engine, files);
    const read = await engine.ask("header", { model: model.path });
    if (!read.error) return { ...model, named };
    if (read.type !== "TruncatedHeader" || size >= MOST || files.every((file) => file.size < size)) throw new Error(read.error);
  }
}

/** The first bytes of a file, as a file. */
async function head(address, size) {
  const answer = await get(address, { headers: { Range: `bytes=0-${size - 1}` } });
  const reader = answer.body.getReader();
  const parts = [];
  // a server without ranges sends all of it: no more is taken than was asked for
  for (let have = 0; have < size; ) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    have += value.length;
  }
  await reader.cancel();
  return new File(parts, decodeURIComponent(new URL(address).pathname.split("/").pop()));
}

async function get(address, options) {
  let answer;
  try {
    answer = await fetch(address, { ...options, credentials: "omit", referrerPolicy: "no-referrer" });
  } catch {
    throw new Error(`${new URL(address).host} cannot be read from a page: it is out of reach, or does not let pages read it (CORS); use memplan header ADDRESS -o small.gguf, and drop that file here`);
  }
  if (!answer.ok) throw new Error(`${new URL(address).host} answers ${answer.status} ${answer.statusText}`.trim());
  return answer;
}

// Runs memplan: Pyodide is the Python, memplan.zip the package. One question at a time, as it comes.

import { loadPyodide } from "./pyodide/pyodide.mjs";

const near = (name) => new URL(name, import.meta.url).href;

async function start() {
  const archive = fetch(near("memplan.zip")).then((got) => {
    if (!got.ok) throw new Error(`memplan.zip: ${got.status}`);
    return got.arrayBuffer();
  });
  const python = await loadPyodide({ indexURL: near("pyodide/") });
  python.unpackArchive(await archive, "zip", { extractDir: "/memplan" });
  python.runPython("import sys; sys.path.insert(0, '/memplan')");
  return { python, answer: python.pyimport("memplan.page.engine").answer };
}

const started = start();
started.then(
  () => postMessage({ started: true }),
  (error) => postMessage({ failed: String(error) }),
);

onmessage = async ({ data }) => {
  const { python, answer } = await started;
  if (data.mount) {
    // files are read where they lie, by the slices that a header needs
    python.FS.mkdirTree(data.mount);
    python.FS.mount(python.FS.filesystems.WORKERFS, { files: data.files }, data.mount);
    return;
  }
  try {
    // files are called as the user calls them
    const said = answer(data.kind, JSON.stringify(data.question)).replaceAll(/\/models\/\d+\//g, "");
    postMessage({ id: data.id, answer: JSON.parse(said) });
  } catch (fault) {
    const last = fault.message.trim().split("\n").pop();
    postMessage({ id: data.id, answer: { error: `a fault in memplan itself: ${last}`, type: "Fault", about: "" } });
  }
};

// The engine in a worker of the browser: Python by Pyodide, memplan and what it needs from engine.zip.
import { loadPyodide } from "./pyodide/pyodide.mjs";

const SITE = "/lib/python3.14/site-packages";
const started = (async () => {
  const archive = fetch("engine.zip").then((found) => found.arrayBuffer());
  const python = await loadPyodide({ indexURL: new URL("./pyodide/", self.location.href).href });
  python.unpackArchive(await archive, "zip", { extractDir: SITE });
  return python.runPython(`
import gc
from memplan.web.answers import in_folder
gc.disable()

def answered(kind, body):
    status, text = in_folder("/tmp/requests", kind, body)
    return f"{status} {text}"

answered`);
})();

self.onmessage = async ({ data: { id, kind, body } }) => {
  try {
    const answered = await started;
    if (kind === "start") return self.postMessage({ id, status: 200, text: "" });
    const found = answered(kind, body), space = found.indexOf(" ");
    self.postMessage({ id, status: Number(found.slice(0, space)), text: found.slice(space + 1) });
  } catch (error) {
    self.postMessage({ id, status: 0, text: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};

// The engine in a worker of the browser: Python by Pyodide, which begins from its memory as the build has kept it, with
// all that an answer needs; where a browser cannot, from the start, which takes three times as long.
import { loadPyodide } from "./pyodide/pyodide.mjs";
import createPyodide from "./pyodide/pyodide.asm.mjs";

const indexURL = new URL("./pyodide/", self.location.href).href;
const told = fetch("kept.json").then((found) => found.json());
const core = WebAssembly.compileStreaming(fetch("core.wasm"));
const packed = told.then(({ files }) => unpacked("engine.bin", files.reduce((sum, [, length]) => sum + length, 0)));

// What a compressed file holds, as it comes, into so many bytes.
async function unpacked(name, length, bytes = new Uint8Array(length)) {
  const reader = (await fetch(name)).body.pipeThrough(new DecompressionStream("gzip")).getReader();
  for (let at = 0, part = await reader.read(); !part.done; part = await reader.read()) {
    bytes.set(part.value, at);
    at += part.value.length;
  }
  return bytes;
}

// The library beside the interpreter is put where it was in the memory that was kept: what lies below is taken first.
// What this writes to the memory is replaced by what was kept; only functions and their table are not in that.
async function placed(module, { name, handle, memory, table, bytes }) {
  const library = await core;
  const start = module._malloc(16);
  module._malloc(memory - start - 32); // each block begins 16 bytes behind another's end
  const there = module._malloc(bytes);
  if (there !== memory) throw new Error(`the engine's library would lie at ${there}, not at ${memory}`);
  module._free(there);
  module.wasmTable.grow(table - module.wasmTable.length);
  module.newDSO(name, handle, module.loadWebAssemblyModule(library, { nodelete: true }, name, {}));
}

async function begun() {
  const { size, core: place } = await told;
  const kept = new Uint8Array(size), filled = unpacked("snapshot.bin", size, kept);
  filled.catch(() => {}); // told where it is waited for
  let at, caller; // where Python keeps by what it calls functions of fewer arguments, and what this browser has for it
  const createPyodideModule = async (settings) => {
    const module = await createPyodide(settings);
    at = (module.__PyRuntime + module.HEAP32[module.__PyEM_EMSCRIPTEN_TRAMPOLINE_OFFSET >> 2]) >> 2;
    caller = module.HEAP32[at];
    await placed(module, place);
    module.growMemory(size);
    await filled;
    return module;
  };
  const python = await loadPyodide({ indexURL, _loadSnapshot: kept, createPyodideModule });
  python._module.HEAP32[at] = caller;
  return python;
}

function written(python, name, data) {
  python.FS.mkdirTree(name.slice(0, name.lastIndexOf("/")));
  python.FS.writeFile(name, data, { canOwn: true });
}

const started = (async () => {
  const { files, core: place, start } = await told;
  let kept = true;
  const python = await begun().catch(() => {
    kept = false;
    return loadPyodide({ indexURL });
  });
  const bytes = await packed;
  let at = 0;
  for (const [name, length] of files) written(python, name, bytes.subarray(at, (at += length)));
  if (!kept) written(python, place.name, new Uint8Array(await (await fetch("core.wasm")).arrayBuffer()));
  python.runPython(kept ? "importlib.invalidate_caches()" : start);
  return [python.globals.get("answered"), kept];
})();

self.onmessage = async ({ data: { id, kind, body } }) => {
  try {
    const [answered, kept] = await started;
    if (kind === "start") return self.postMessage({ id, status: 200, text: kept ? "kept" : "" });
    const found = answered(kind, body), space = found.indexOf(" ");
    self.postMessage({ id, status: Number(found.slice(0, space)), text: found.slice(space + 1) });
  } catch (error) {
    self.postMessage({ id, status: 0, text: String(error.message ?? error).trim().split("\n").at(-1) });
  }
};

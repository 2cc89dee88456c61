// Compiles Python for the browser's Python, by that Python, and keeps its memory as it is once it has answered:
// compile.mjs PYODIDE IN.zip DIR. Into DIR go `engine.bin`, the files, `core.wasm`, the library beside the interpreter,
// `snapshot.bin`, the memory, and `kept.json`: where that library lies in it, and how large what is.
import fs from "node:fs";
import path from "node:path";
import zlib from "node:zlib";
import { pathToFileURL } from "node:url";

const [pyodide, from, folder] = process.argv.slice(2).map((each) => path.resolve(each));
const { loadPyodide } = await import(pathToFileURL(path.join(pyodide, "pyodide.mjs")).href);
const SITE = "/lib/python3.14/site-packages";
const python = await loadPyodide({ indexURL: pyodide + path.sep, _makeSnapshot: true });
python.FS.writeFile("/in.zip", fs.readFileSync(from));
const [names, contents] = python.runPython(`
import py_compile, zipfile
names, contents = [], []
with zipfile.ZipFile("/in.zip") as taken:
    for name in sorted(taken.namelist()):
        data = taken.read(name)
        if name.endswith(".py"):
            with open("/source.py", "wb") as file:
                file.write(data)
            made = py_compile.compile("/source.py", "/made.pyc", dfile=name, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
            with open(made, "rb") as file:
                name, data = name + "c", file.read()
        names.append(name)
        contents.append(data)
names, contents
`).toJs();
const kept = await loadPyodide({ indexURL: pyodide + path.sep, _makeSnapshot: true });
const packed = (name, data) => fs.writeFileSync(path.join(folder, name), zlib.gzipSync(data, { level: 9 }));
const core = names.findIndex((name) => name.endsWith(".so"));
names.forEach((name, at) => {
  kept.FS.mkdirTree(path.posix.dirname(`${SITE}/${name}`));
  kept.FS.writeFile(`${SITE}/${name}`, contents[at]);
});
kept._module.wasmTable.grow(64); // some browsers put functions of their own there
const start = `
import gc, importlib, json
importlib.invalidate_caches()
gc.disable()
from memplan.web.answers import in_folder

def answered(kind, body):
    status, text = in_folder("/tmp/requests", kind, body)
    return f"{status} {text}"
`;
kept.runPython(`${start}
from memplan.web.worker import WARM

FILE = {"name": "train.yaml", "text": "# trl sft\\nmodel_name_or_path: gpt2\\ndataset_name: x\\n"}
ASKED = [("estimate", body | more) for body in WARM for more in ({}, {"quick": True, "dressed": True})]
ASKED += [("check", {"file": FILE, "job": {"gpu": "t4"}}), ("diagnose", {"text": "CUDA out of memory. Tried to allocate 3.91 GiB."})]
ASKED += [("plan", {"model": "smollm2-135m", "method": "dpo", "gpu": "t4", "trainer": "trl"})]
for kind, body in ASKED:
    found = answered(kind, json.dumps(body))
    assert found.startswith("200 "), found
gc.collect()
gc.freeze()
`);
const module = kept._module;
const [handle, library] = Object.entries(module.LDSO.loadedLibsByHandle).find(([, each]) => each.name.endsWith(".so"));
const [memory, bytes, table, , data, size] = module.HEAPU32.subarray(handle / 4 + 3, handle / 4 + 9);
module.HEAPU8.fill(0, data, data + size); // the file itself, which nobody reads again
const snapshot = kept.makeMemorySnapshot();
packed("snapshot.bin", snapshot);
packed("engine.bin", Buffer.concat(contents.filter((_, at) => at !== core)));
fs.writeFileSync(path.join(folder, "core.wasm"), contents[core]);
const files = names.map((name, at) => [`${SITE}/${name}`, contents[at].length]).filter((_, at) => at !== core);
const told = { size: snapshot.length, core: { name: library.name, handle: Number(handle), memory, table, bytes }, files, start };
fs.writeFileSync(path.join(folder, "kept.json"), JSON.stringify(told));

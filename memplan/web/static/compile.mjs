// Compiles Python for the browser's Python, by that Python: compile.mjs PYODIDE IN.zip OUT.zip.
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [pyodide, from, to] = process.argv.slice(2).map((each) => path.resolve(each));
const { loadPyodide } = await import(pathToFileURL(path.join(pyodide, "pyodide.mjs")).href);
const python = await loadPyodide({ indexURL: pyodide + path.sep });
python.FS.writeFile("/in.zip", fs.readFileSync(from));
python.runPython(`
import py_compile, sys, zipfile
taken = zipfile.ZipFile("/in.zip")
with zipfile.ZipFile("/out.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
    for name in sorted(taken.namelist()):
        data = taken.read(name)
        if name.endswith(".py"):
            with open("/source.py", "wb") as file:
                file.write(data)
            made = py_compile.compile("/source.py", "/made.pyc", dfile=name, doraise=True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
            with open(made, "rb") as file:
                name, data = name + "c", file.read()
        out.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, 9)
`);
fs.writeFileSync(to, python.FS.readFile("/out.zip"));

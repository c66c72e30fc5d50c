"""Holds the program against its mutants: is a mutant found, and is the mutated kernel named?"""
import concurrent.futures
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

FAILURES = {"nonfinite", "bounds", "unwritten", "canary", "mismatch", "probability", "layout", "device-assert",
            "illegal-access", "launch-failure", "crash", "abort", "hang", "oom", "flaky"}
HANG_SECONDS = 5
PATIENCE = 120  # seconds for one call of the program


def rows_of(folder):
    """The experiments' rows by name ("dense-2"), each as an experiment of its own."""
    rows = {}
    for path in sorted(Path(folder).glob("*.yaml")):
        lines = path.read_text().splitlines(keepends=True)
        at = [i for i, line in enumerate(lines) if line.startswith("  - {")]
        for place, i in enumerate(at, 1):
            name = f"{path.stem}-{place}"
            text = "".join(lines[: at[0]] + [lines[i]] + lines[at[-1] + 1 :])
            rows[name] = text.replace(f"name: {path.stem}\n", f"name: {name}\n")
    return rows


def differences(program, rows, jobs, folder):
    """What differences.cpp says of each mutant: by number, over all rows. Kept in the folder, by row."""

    def one(name):
        target = folder / f"{name}.json"
        if not target.exists():
            case = folder / f"{name}.yaml"
            case.write_text(rows[name])
            done = subprocess.run([program, target, case], capture_output=True, text=True, errors="replace")
            if done.returncode != 0:
                raise SystemExit(f"mutants: {name}: {done.stderr[-2000:]}")
        return json.loads(target.read_text())

    folder.mkdir(parents=True, exist_ok=True)
    order = ["same", "rounds", "differs"]
    result = {}
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, answer in zip(rows, pool.map(one, rows)):
            for number, part in answer.items():
                seen = result.setdefault(int(number), {"outcome": "same", "differs": [], "kernels": []})
                seen["outcome"] = max(seen["outcome"], part["outcome"], key=order.index)
                if part["outcome"] == "differs":
                    seen["differs"].append(name)
                    seen["kernels"] += [k for k in part["kernels"] if k not in seen["kernels"]]
    return dict(sorted(result.items()))


def call(program, arguments, folder, number):
    """The program's JSON; None: it ended without."""
    out = folder / "out.json"
    out.unlink(missing_ok=True)
    environment = {**os.environ, "FAULTLINE_MUTANT": str(number), "OPENBLAS_NUM_THREADS": "1"}
    try:
        subprocess.run([program, *arguments, "--json", str(out), "--device", "cpu", "--jobs", "1", "--quiet", "--timeout",
                        str(HANG_SECONDS)], cwd=folder, env=environment, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return None
    return json.loads(out.read_text()) if out.exists() else None


def screened(program, text, folder, number):
    """The verdict of a row under checks: full, in one run of one worker."""
    (folder / "row.yaml").write_text(text)
    answer = call(program, ["replay", "row.yaml", "--checks", "full"], folder, number)
    return "none" if answer is None else answer["verdict"]


def convicted(program, text, folder, number):
    """Verdict and culprits of a bisection of a row under checks: reference."""
    (folder / "row.yaml").write_text(text)
    answer = call(program, ["bisect", "row.yaml", "--checks", "reference", "--out", "runs"], folder, number)
    shutil.rmtree(folder / "runs", ignore_errors=True)
    if answer is None:
        return "none", []
    return (answer["configurations"][0]["verdict"],
            [[c["culprit"], c["kernel"], c["op"]] for c in answer["localized"]])


def in_turn(names):
    """One row of each experiment, then a second one of each, …"""
    places = {}
    keyed = []
    for name in names:
        experiment = name.rsplit("-", 1)[0]
        places[experiment] = places.get(experiment, 0) + 1
        keyed.append((places[experiment], len(keyed), name))
    return [name for _, _, name in sorted(keyed)]


def examine(program, rows, number, differs, first):
    """Bisects `first` of the rows in which an output differs, and all the others as long as none has failed."""
    result = {"mutant": number, "full": {}, "reference": {}, "culprits": []}
    folder = Path(tempfile.mkdtemp(prefix="mutant-"))
    try:
        for place, name in enumerate(in_turn(differs)):
            if place >= first and not FAILURES.isdisjoint(result["reference"].values()):
                break
            result["reference"][name], culprits = convicted(program, rows[name], folder, number)
            result["culprits"] += culprits
        for name in in_turn(differs):
            result["full"][name] = screened(program, rows[name], folder, number)
            if result["full"][name] in FAILURES:
                break
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def run(program, rows, seen, jobs, seconds, done, first=2):
    """Examines the mutants whose outputs differ, into the file `done` (a line each), until the time is up. What is in
    the file already is not run again."""
    known = {json.loads(line)["mutant"] for line in done.read_text().splitlines()} if done.exists() else set()
    wanted = [n for n, s in seen.items() if s["outcome"] == "differs" and n not in known]
    end = time.monotonic() + seconds

    def one(number):
        return None if time.monotonic() > end else examine(str(program), rows, number, seen[number]["differs"], first)

    with open(done, "a") as out, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for result in pool.map(one, wanted):
            if result is not None:
                out.write(json.dumps(result) + "\n")
                out.flush()

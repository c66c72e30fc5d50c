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
MOST_SCREENED = 1  # rows that a mutant is screened in under checks: full
SPREAD = 7919  # a prime
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
                seen = result.setdefault(int(number), {"outcome": "same", "differs": [], "caught": [], "kernels": []})
                seen["outcome"] = max(seen["outcome"], part["outcome"], key=order.index)
                if part["outcome"] == "differs":
                    seen["differs"].append(name)
                    seen["caught"] += [name] if part["caught"] else []
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


def screened(program, text, checks, folder, number):
    """The verdict of a row in one run of one worker."""
    (folder / "row.yaml").write_text(text)
    answer = call(program, ["replay", "row.yaml", "--checks", checks], folder, number)
    return "none" if answer is None else answer["verdict"]


def bisected(program, text, folder, number):
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


def find(program, rows, number, differs, folder):
    """Screens rows in which an output differs until one fails: all of them under reference, some under full."""
    result = {"mutant": number, "reference": {}, "full": {}}
    for checks, names in (("reference", in_turn(differs)), ("full", in_turn(differs)[:MOST_SCREENED])):
        for name in names:
            result[checks][name] = screened(program, rows[name], checks, folder, number)
            if result[checks][name] in FAILURES:
                break
    return result


def convict(program, rows, number, found, folder):
    """Bisects the row that failed under reference."""
    failed = [name for name, verdict in found["reference"].items() if verdict in FAILURES]
    verdict, culprits = bisected(program, rows[failed[0]], folder, number)
    return {"mutant": number, "row": failed[0], "verdict": verdict, "culprits": culprits}


def known(path):
    """Results of an earlier run, by mutant."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {result["mutant"]: result for result in map(json.loads, lines)}


def run_all(examine, numbers, jobs, end, path):
    """examine(number, folder) for each, a line of the file each, until the time is up."""

    def one(number):
        if time.monotonic() > end:
            return None
        with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
            return examine(number, Path(folder))

    with open(path, "a") as out, concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for future in concurrent.futures.as_completed([pool.submit(one, number) for number in numbers]):
            result = future.result()
            if result is not None:
                out.write(json.dumps(result) + "\n")
                out.flush()


def sampled(numbers, seen):
    """First those that the checks of an op alone missed, then the others in an order that makes any beginning of it a
    sample from all files and operators."""
    most = max(numbers, default=0) + 1
    return sorted(numbers, key=lambda n: (bool(seen[n]["caught"]), n * SPREAD % most))


def run(program, rows, seen, jobs, seconds, out):
    """Examines the mutants whose outputs differ: first which are found, in half of the time at most, then who is named.
    Results in the folder `out` are not made again. Returns both, by mutant."""
    start = time.monotonic()
    program = str(program)

    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        for name, text in rows.items():
            verdict = screened(program, text, "reference", Path(folder), 0)
            if verdict != "pass":
                raise SystemExit(f"mutants: {name} is {verdict} without a mutation: no row for this exam")

    def step(examine, numbers, path, end):
        done = known(path)
        run_all(examine, [n for n in sampled(numbers, seen) if n not in done], jobs, end, path)
        return {n: r for n, r in known(path).items() if n in seen}

    differ = [n for n, s in seen.items() if s["outcome"] == "differs"]
    found = step(lambda n, folder: find(program, rows, n, seen[n]["differs"], folder), differ, out / "found.jsonl",
                 start + seconds / 2)
    failing = [n for n, f in found.items() if not FAILURES.isdisjoint(f["reference"].values())]
    convicted = step(lambda n, folder: convict(program, rows, n, found[n], folder), failing, out / "convicted.jsonl",
                     start + seconds)
    return found, convicted

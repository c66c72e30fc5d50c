"""From sites to a program: mutated copies of the kernels, all mutants compiled at once, each behind its number."""
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import sites as mutation

HERE = Path(__file__).resolve().parent
ROUNDS = 12  # of compiling and leaving out what does not compile
BLAME_LINE_AFTER = 5  # rounds, after which all mutants of a line with an error go


def plan(root, most):
    """The sites of all files under test, numbered from 1."""
    files = sorted(str(p.relative_to(root)) for folder in ("kernels", "src/ops") for p in (root / folder).iterdir()
                   if mutation.is_under_test(str(p.relative_to(root))))
    chosen = []
    for name in files:
        chosen += mutation.sample(mutation.find_sites(name, (root / name).read_text()), most)
    taken = set()
    result = []
    for site in chosen:  # a phase is mutated by one barrier at most
        spans = {(site.file, b, e) for b, e, _ in site.edits if e > b}
        if spans & taken:
            continue
        taken |= spans
        result.append(site)
    for number, site in enumerate(result, 1):
        site.number = number
    return result


class Build:
    """`build`: a finished CMake build folder of the tree at `root`; mutated sources and objects go to `out`."""

    def __init__(self, root, build, out, jobs):
        self.root, self.build, self.out, self.jobs = root, build, out, jobs
        commands = json.loads((build / "compile_commands.json").read_text())
        self.units = {}
        for entry in commands:
            path = os.path.relpath(entry["file"], root)
            if re.fullmatch(r"src/ops/\w+\.cpp|kernels/matmul\w*\.cpp", path):
                self.units[path] = entry["command"]
        self.link = subprocess.run(["ninja", "-C", build, "-t", "commands", "faultline"], check=True, text=True,
                                   capture_output=True).stdout.strip().splitlines()[-1]

    def write(self, plan):
        """Writes the mutated copies; of files that no longer change nothing is touched, so that make-like tools rest."""
        by_file = {}
        for site in plan:
            by_file.setdefault(site.file, []).append(site)
        for name in {site.file for site in plan} | {str(p.relative_to(self.out / "source")) for p in
                                                     (self.out / "source").rglob("*.*")}:
            source = (self.root / name).read_text()
            target = self.out / "source" / name
            text = mutation.apply(source, by_file.get(name, []))
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists() or target.read_text() != text:
                target.write_text(text)

    def command(self, unit, extra):
        words = shlex.split(self.units[unit])
        words[words.index("-c") + 1] = str(self.source(unit))
        at = words.index("-o")
        words[at + 1] = str(self.object(unit))
        words = [w for w in words if not w.startswith("-W") or w.startswith("-Wl")]
        first = next(i for i, w in enumerate(words) if w.startswith("-I"))
        words[first:first] = [f"-I{self.out}/source/src", f"-I{self.out}/source", f"-I{HERE}", "-include", "mutant.h"]
        return words + ["-w", "-fmax-errors=0", "-g0", "-O1", *extra]

    def source(self, unit):
        mutated = self.out / "source" / unit
        return mutated if mutated.exists() else self.root / unit

    def object(self, unit):
        return self.out / "objects" / (unit.replace("/", "_") + ".o")

    def compile(self, units, extra=()):
        """The compiler's messages of each unit that failed."""
        (self.out / "objects").mkdir(parents=True, exist_ok=True)

        def one(unit):
            done = subprocess.run(self.command(unit, extra), cwd=self.build, text=True, capture_output=True)
            return unit, done.returncode, done.stderr

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            return {unit: text for unit, code, text in pool.map(one, units) if code != 0}

    def blamed(self, messages, plan, whole_lines):
        """The numbers of the mutants that the compiler's errors point at."""
        root = str(self.out / "source") + "/"
        places = []
        context = []
        for line in messages.splitlines():
            match = re.match(r"(\S+?):(\d+):(\d+):\s+(\w.*)", line)
            if not match:
                continue
            place = (match[1].removeprefix(root), int(match[2]), int(match[3]))
            if match[4].startswith(("error", "fatal")):
                # An error inside mutant.h was met on behalf of a mutated source.
                here = [place] if match[1].startswith(root) else context[:1]
                places += here
                context = []
            elif match[1].startswith(root) and "required from" in line:
                context.append(place)
        by_line = {}
        for site in plan:
            by_line.setdefault((site.file, site.line), []).append(site)
        blamed = set()
        for file, line, column in set(places):
            text = (self.out / "source" / file).read_text().split("\n")[line - 1]
            near = sorted((abs(m.start() - column), int(m[1])) for m in re.finditer(r"mutant::[\w<>]+\((\d+)", text))
            blamed.update(number for _, number in (near if whole_lines else near[:1]))
        return blamed

    def objects(self, plan):
        """Compiles everything. Returns the plan's sites that compile, and those that do not."""
        refused = []
        plan = list(plan)
        pending = list(self.units)
        for turn in range(ROUNDS):
            self.write(plan)
            failed = self.compile(pending, ["-fsyntax-only"])
            if not failed:
                break
            numbers = self.blamed("\n".join(failed.values()), plan, turn >= BLAME_LINE_AFTER)
            if not numbers:
                raise SystemExit("mutants: cannot tell which mutation does not compile:\n" + next(iter(failed.values()))[:3000])
            refused += [s for s in plan if s.number in numbers]
            plan = [s for s in plan if s.number not in numbers]
            pending = list(failed)
            print(f"mutants: {len(numbers)} do not compile, {len(plan)} left", flush=True)
        else:
            raise SystemExit("mutants: the mutated sources do not compile")
        failed = self.compile(self.units)
        if failed:
            raise SystemExit(next(iter(failed.values()))[:3000])
        return plan, refused

    def program(self, main=None):
        """Links the mutated program, or the program whose main() is in the source `main`, next to this file."""
        words = shlex.split(self.link)
        words = words[words.index("&&") + 1 :]
        words = words[: words.index("&&")]
        name = "faultline" if main is None else Path(main).stem
        target = self.out / name
        words[words.index("-o") + 1] = str(target)
        mine = {f"CMakeFiles/faultline_ops.dir/{unit}.o": str(self.object(unit)) for unit in self.units}
        words = [mine.get(w, w) for w in words]
        runtime = self.extra_object("mutant.cpp")
        words.insert(words.index("-o"), str(runtime))
        if main is not None:
            words = [str(self.extra_object(main)) if w.endswith("src/cli/main.cpp.o") else w for w in words]
        subprocess.run(words, cwd=self.build, check=True)
        return target

    def extra_object(self, name):
        unit = next(iter(self.units))
        words = self.command(unit, [])
        words[words.index("-c") + 1] = str(HERE / name)
        target = self.out / "objects" / (name + ".o")
        words[words.index("-o") + 1] = str(target)
        subprocess.run(words, cwd=self.build, check=True)
        return target

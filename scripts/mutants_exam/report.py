"""The exam's tables as Markdown."""
from collections import Counter

from exam import FAILURES
from sites import OPERATORS

TARGET_FOUND = 0.95


def grade(seen, screened, bisected):
    """One mutant's place in the tables."""
    if seen is None:
        return {"state": "unreached"}
    if seen["outcome"] != "differs":
        return {"state": seen["outcome"]}
    result = {"state": "differs", "caught": bool(seen["caught"]), "run": screened is not None, "wrong": [], "named": None}
    for level in ("reference", "full"):
        result[level] = screened is not None and not FAILURES.isdisjoint(screened[level].values())
    result["survives"] = not (result["reference"] if result["run"] else result["caught"])
    if bisected is not None:
        kernels = {k.split("/")[1] for k in seen["kernels"]}
        named = [c for c in bisected["culprits"] if c[0]]
        result["wrong"] = [c for c in named if c[0] not in ("kernel", "metadata") or c[1] not in kernels]
        result["named"] = "wrong" if result["wrong"] else "right" if named else "none"
    return result


def percent(part, whole):
    return "" if whole == 0 else f"{100 * part / whole:.1f} %"


COLUMNS = ["mutants", "not reached", "no bit changed", "within rounding", "output changed", "caught", "run", "found",
           "found, `full`", "bisected", "convicted", "not localized", "wrong name"]


def table(title, groups, grades):
    """A row for each group of mutants: how many change an output, and what became of those."""
    lines = [f"| {title} | " + " | ".join(COLUMNS) + " |", "|---|" + "---:|" * len(COLUMNS)]
    for name, numbers in groups:
        of = [grades[n] for n in numbers]
        states = Counter(g["state"] for g in of)
        changed = [g for g in of if g["state"] == "differs"]
        named = Counter(g["named"] for g in changed if g["named"])
        counts = [len(of), states["unreached"], states["same"], states["rounds"], len(changed),
                  *(sum(g[key] for g in changed) for key in ("caught", "run", "reference", "full")), sum(named.values()),
                  named["right"], named["none"], named["wrong"]]
        lines.append(f"| {name} | " + " | ".join(map(str, counts)) + " |")
    return lines


def write(plan, refused, seen, screens, bisections, reasons, heading):
    """`reasons`: what is known of survivors, by (file, operator, source line)."""
    grades = {s.number: grade(seen.get(s.number), screens.get(s.number), bisections.get(s.number)) for s in plan}
    states = Counter(g["state"] for g in grades.values())
    changed = [n for n, g in grades.items() if g["state"] == "differs"]
    caught = [n for n in changed if grades[n]["caught"]]
    run = [n for n in changed if grades[n]["run"]]
    found = [n for n in run if grades[n]["reference"]]
    full = [n for n in run if grades[n]["full"]]
    tried = [n for n in run if grades[n]["named"]]
    right = [n for n in tried if grades[n]["named"] == "right"]
    none = [n for n in tried if grades[n]["named"] == "none"]
    wrong = [n for n in tried if grades[n]["named"] == "wrong"]
    alive = [n for n in changed if grades[n]["survives"]]
    lines = [heading.rstrip(), "",
             f"* {len(plan) + len(refused)} mutants; {len(refused)} of them do not compile.",
             f"* {len(changed)} change an output beyond rounding. {states['rounds']} change bits within the format's rounding, "
             f"{states['same']} change nothing, {states['unreached']} are reached by no probe of the exam.",
             f"* **{percent(len(changed) - len(alive), len(changed))} of the {len(changed)} are found** (the aim is "
             f"{TARGET_FOUND:.0%}): the checks of the op alone, under `reference`, catch {len(caught)}; the whole program was run on "
             f"{len(run)}, among them all that those checks missed and otherwise a sample spread over files and operators, and "
             f"found {len(found)} ({percent(len(found), len(run))}), under `full` {len(full)} ({percent(len(full), len(run))}).",
             f"* **{len(wrong)} wrong names** in {len(tried)} bisections: the mutated kernel was named in {len(right)} "
             f"({percent(len(right), len(tried))}), nobody in {len(none)}.", ""]
    by_operator = [(f"{o}: {OPERATORS[o]}", [s.number for s in plan if s.operator == o]) for o in OPERATORS]
    lines += ["## By operator", ""] + table("operator", [g for g in by_operator if g[1]], grades) + [""]
    files = sorted({s.file for s in plan})
    lines += ["## By file", ""] + table("file", [(f"`{f}`", [s.number for s in plan if s.file == f]) for f in files], grades)
    sites = {s.number: s for s in plan}

    def listing(title, numbers, what):
        if not numbers:
            return
        lines.extend(["", f"## {title}", "", "| where | operator | source | what is known |", "|---|---|---|---|"])
        for n in numbers:
            s = sites[n]
            source = s.text.replace("|", "\\|")
            lines.append(f"| `{s.file}:{s.line}` | {s.operator} | `{source}` | {what(n, s)} |")

    reason = lambda s: reasons.get((s.file, s.operator, s.text), "")
    listing("Survivors: output changed, not found", alive,
            lambda n, s: reason(s) or "changes " + ", ".join(seen[n]["kernels"]))
    listing("Found, and nobody named", none,
            lambda n, s: reason(s) or "verdict: " + bisections[n]["verdict"])
    listing("Wrong names", wrong, lambda n, s: reason(s) or "; ".join(f"{c[0]} {c[1]} ({c[2]})" for c in grades[n]["wrong"]))
    return "\n".join(lines) + "\n"

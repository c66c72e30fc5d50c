"""The exam's tables as Markdown."""
from collections import Counter

from exam import FAILURES
from sites import OPERATORS

TARGET_FOUND = 0.95


def grade(site, seen, result):
    """One mutant's place in the tables."""
    if seen is None:
        return {"state": "unreached"}
    if seen["outcome"] != "differs":
        return {"state": seen["outcome"]}
    if result is None:
        return {"state": "unexamined"}
    kernels = {k.split("/")[1] for k in seen["kernels"]}
    found = not FAILURES.isdisjoint(result["reference"].values())
    named = [c for c in result["culprits"] if c[0]]
    wrong = [c for c in named if c[0] not in ("kernel", "metadata") or c[1] not in kernels]
    return {"state": "differs", "found": found, "found_full": not FAILURES.isdisjoint(result["full"].values()),
            "wrong": wrong, "named": "wrong" if wrong else "right" if named else "none"}


def percent(part, whole):
    return "" if whole == 0 else f"{100 * part / whole:.1f} %"


def table(title, groups, grades):
    """A row for each group of mutants: how many change an output, and what became of those."""
    lines = [f"| {title} | mutants | not reached | no bit changed | within rounding | output changed | found, `full` | "
             "found, `reference` | convicted | not localized | wrong name |", "|---|" + "---:|" * 10]
    for name, numbers in groups:
        of = [grades[n] for n in numbers]
        states = Counter(g["state"] for g in of)
        changed = [g for g in of if g["state"] == "differs"]
        named = Counter(g["named"] for g in changed if g["found"])
        found = sum(g["found"] for g in changed)
        lines.append(f"| {name} | {len(of)} | {states['unreached']} | {states['same']} | {states['rounds']} | {len(changed)} | "
                     f"{sum(g['found_full'] for g in changed)} | {found} | {named['right']} | {named['none']} | "
                     f"{named['wrong']} |")
    return lines


def write(plan, refused, seen, results, reasons, heading):
    """`reasons`: what is known of survivors, by (file, operator, source line)."""
    results = {r["mutant"]: r for r in results}
    grades = {s.number: grade(s, seen.get(s.number), results.get(s.number)) for s in plan}
    changed = [n for n, g in grades.items() if g["state"] == "differs"]
    found = [n for n in changed if grades[n]["found"]]
    full = [n for n in changed if grades[n]["found_full"]]
    right = [n for n in found if grades[n]["named"] == "right"]
    wrong = [n for n in changed if grades[n]["named"] == "wrong"]
    lines = [heading.rstrip(), "",
             f"* {len(plan) + len(refused)} mutants; {len(refused)} of them do not compile.",
             f"* {len(changed)} change an output beyond rounding; {sum(g['state'] == 'rounds' for g in grades.values())} change "
             f"bits within the format's rounding, {sum(g['state'] == 'same' for g in grades.values())} change nothing, "
             f"{sum(g['state'] == 'unreached' for g in grades.values())} are reached by no probe of the exam.",
             f"* Of the {len(changed)}: found under `reference` {len(found)} ({percent(len(found), len(changed))}; the aim is "
             f"{TARGET_FOUND:.0%}), under `full` {len(full)} ({percent(len(full), len(changed))}).",
             f"* Of the {len(found)} found: the mutated kernel is named for {len(right)} "
             f"({percent(len(right), len(found))}), nobody for {sum(grades[n]['named'] == 'none' for n in found)}, "
             f"somebody else for {len(wrong)}.", ""]
    if any(g["state"] == "unexamined" for g in grades.values()):
        lines[-1:] = [f"* {sum(g['state'] == 'unexamined' for g in grades.values())} were not examined (time was up).", ""]
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
    listing("Survivors: output changed, not found", [n for n in changed if not grades[n]["found"]],
            lambda n, s: reason(s) or "changes " + ", ".join(seen[n]["kernels"]))
    listing("Found, and nobody named", [n for n in found if grades[n]["named"] == "none"],
            lambda n, s: reason(s) or "verdicts: " + ", ".join(sorted(set(results[n]["reference"].values()) & FAILURES)))
    listing("Wrong names", wrong, lambda n, s: reason(s) or "; ".join(f"{c[0]} {c[1]} ({c[2]})" for c in grades[n]["wrong"]))
    return "\n".join(lines) + "\n"

"""Where the kernels can be mutated: a fixed list of operators, looked for in the text of their bodies.

A site is one place in one file with one operator. Its mutation is written as insertions into the text, so that all
mutants of a file compile at once, each behind its number (mutant.h). Nothing here is random: equal sources give equal
sites, and sample() takes them at even distances.
"""
import re
from dataclasses import dataclass

# Operator -> what is done. The order is that of the report.
OPERATORS = {
    "barrier": "the barrier between two phases of a block dropped",
    "store": "a store (to a tensor, shared memory or a running value) dropped",
    "guard": "the branch of an `if` never taken",
    "unguard": "the branch of an `if` always taken",
    "clamp": "one arm of `?:` always taken (a minimum, a clamp or a default lost)",
    "bound": "a loop's `<` made `<=` or the other way round, `>` likewise",
    "compare": "`<` and `<=`, `>` and `>=`, `==` and `!=` exchanged outside of loop heads",
    "index": "an index one too large or one too small",
    "stride": "a stride one too large",
    "step": "a loop that strides over threads steps one too far",
    "sign": "`+` and `-` exchanged",
    "product": "`*` and `/` exchanged, `%` made `/`",
    "negate": "a leading minus lost",
    "scale": "a scale, factor or reciprocal doubled",
    "constant": "a number or named constant one larger, a fraction doubled",
    "initial": "the initial value of a variable lost: all bits one",
    "accumulate": "`+=` and the like made `=`",
}

# Kernel bodies under test. What the bodies stand on (launch.h, view.h, operand.h) is the machine, not a kernel; of
# src/ops only the functions that call kernels, never a reference.
KERNEL_HEADERS = r"kernels/(?!launch|view|operand|blas|cublaslt|cuda_|matmul_simd)\w+\.h"
KERNEL_SOURCES = r"kernels/matmul(_simd)?\.cpp"
OP_SOURCES = r"src/ops/(?!cuda_)\w+\.cpp|src/ops/attention_kernels\.h"
OP_FUNCTIONS = r"run\w*|launch\w*|\w*operands\w*|expert_rows"

IDENTIFIER = r"[A-Za-z_]\w*"
SCALE_NAMES = r"(?:\w*scale|\w*factor|inverse|inv_freq|correction_?|scaling|temperature|offset|global)"
STORE_CALLS = r"store\w*|scale_rows|set|add_scaled|read_run|read_columns|failed_assertion"


# What is inserted at one place stands in this order: what binds tightest first, what closes before what opens.
PLACES = ["->*", " + ", " - ", " && ", " || ", ")", " }", "{ ", "!", "mutant::"]


@dataclass
class Site:
    file: str
    line: int
    operator: str
    text: str  # the source line
    edits: list  # (position, end, text): end > position replaces; `@` in the text stands for the mutant's number
    number: int = 0
    kernel: str = ""  # file without folder and ending


def is_under_test(path):
    return bool(re.fullmatch(f"{KERNEL_HEADERS}|{KERNEL_SOURCES}|{OP_SOURCES}", path))


def blank(text, begin, end):
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]


def closing(text, at):
    """Position of the bracket that closes the one at `at`; -1: none."""
    depth = 0
    pairs = {"(": ")", "[": "]", "{": "}"}
    wanted = pairs[text[at]]
    for i in range(at, len(text)):
        if text[i] == text[at]:
            depth += 1
        elif text[i] == wanted:
            depth -= 1
            if depth == 0:
                return i
    return -1


def angle_end(text, at):
    """Of a template argument list; -1 where `<` is no bracket."""
    depth = 0
    for i in range(at, min(len(text), at + 200)):
        if text[i] == "<":
            depth += 1
        elif text[i] == ">" and text[i - 1] != "-":
            depth -= 1
            if depth == 0:
                return i
        elif text[i] in ";{}":
            return -1
    return -1


def masked(text):
    """The text with everything blank that is not run: comments, literals, CUDA parts, assertions, constants, types."""
    for match in re.finditer(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', text, re.S):
        text = blank(text, *match.span())
    for match in re.finditer(r"^#ifdef (?:FAULTLINE_HAVE_CUDA|__CUDA_ARCH__)\n.*?^#endif", text, re.S | re.M):
        text = blank(text, *match.span())
    for match in re.finditer(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", text, re.M):
        text = blank(text, *match.span())
    for match in re.finditer(r"\b(?:FAULTLINE_CHECK|if constexpr|static_assert|sizeof|decltype|alignof) ?\(", text):
        text = blank(text, match.start(), closing(text, match.end() - 1) + 1)
    for match in re.finditer(r"\bconstexpr\b[^;{]*;|\busing [^;]*;|\bcase [^:]*:(?!:)|\boperator\(\)", text):
        text = blank(text, *match.span())
    for match in re.finditer(r"(?<=[\w])<(?=[\w:])", text):
        end = angle_end(text, match.start())
        if end > 0:
            text = blank(text, match.start(), end + 1)
    return re.sub(r"\btemplate\b(?! store| load)", lambda m: " " * len(m.group()), text)


def function_bodies(text, names):
    """Spans of function bodies at namespace or class scope, by the names of the functions wanted (None: all)."""
    bodies = []
    stack = []
    at = 0
    while at < len(text):
        char = text[at]
        if char == "}":
            if stack:
                stack.pop()
        elif char == "{":
            head = text[max(text.rfind(c, 0, at) for c in ";{}") + 1 : at]
            is_scope = re.search(r"\b(namespace|struct|class|enum|union)\b", head) and "(" not in head
            called = re.search(rf"({IDENTIFIER})\s*\(", head)
            if not is_scope and (called or re.search(r"\)\s*(const)?\s*$", head)):
                end = closing(text, at)
                name = called.group(1) if called else "operator"
                if names is None or re.fullmatch(names, name):
                    bodies.append((at + 1, end))
                at = end + 1
                continue
            if not is_scope:
                at = closing(text, at) + 1  # an initializer
                continue
            stack.append(at)
        at += 1
    return bodies


def before(text, at):
    """The character before `at` that is no blank, and the word that ends there."""
    i = at - 1
    while i >= 0 and text[i].isspace():
        i -= 1
    word = re.search(rf"{IDENTIFIER}$", text[max(0, i - 40) : i + 1])
    return text[i] if i >= 0 else "", word.group() if word else ""


def begins_statement(text, at):
    char, word = before(text, at)
    return char in ";{}" or word == "else" or (char == ")" and controls(text, at))


def controls(text, at):
    """Whether the `)` before `at` closes the head of an if or a for."""
    i = at - 1
    while text[i].isspace():
        i -= 1
    depth = 0
    for j in range(i, -1, -1):
        depth += {")": 1, "(": -1}.get(text[j], 0)
        if depth == 0:
            return before(text, j)[1] in ("if", "for", "while")
    return False


def statement_end(text, at, end):
    """Position behind the `;` of the statement at `at`."""
    depth = 0
    for i in range(at, end):
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth < 0:
                return -1
        elif text[i] == ";" and depth == 0:
            return i + 1
    return -1


def loop_heads(text, begin, end):
    for match in re.finditer(r"\bfor \(", text[begin:end]):
        at = begin + match.end() - 1
        yield at, closing(text, at)


def find_in_body(text, begin, end, found):
    """Calls found(operator, position, edits) for each site in text[begin:end]."""
    body = lambda pattern, flags=0: re.compile(pattern, flags).finditer(text, begin, end)
    heads = list(loop_heads(text, begin, end))
    in_head = lambda at: any(a < at < b for a, b in heads)

    # Barriers: phases that follow each other in one block of statements.
    phases = []
    for match in body(r"\b(block_?)\.for_each_thread\("):
        close = closing(text, match.end() - 1)
        phases.append((match.start(), match.end(), match.group(1), close))
    for (a, a_open, a_block, a_close), (b, b_open, b_block, _) in zip(phases, phases[1:]):
        between = text[a_close + 1 : b]
        if re.search(r"[{}]|block|return", between) or not re.fullmatch(r";\s*([^;]*;\s*)*", between):
            continue
        found("barrier", a, [(a, a_open, f"mutant::phase({a_block}, @, "), (b, b_open, f"mutant::phase({b_block}, 0, ")])

    for match in body(rf"(?:[\w.\[\]]|->)*\b(?:{STORE_CALLS})\s*\("):
        if begins_statement(text, match.start()):
            drop(text, match.start(), end, found)
    for match in body(r"\*?[\w.]+(?:\[[^\[\];]*\])* (=|\+=|-=|\*=) "):
        at = match.start()
        if not begins_statement(text, at) or in_head(at):
            continue
        drop(text, at, end, found)
        stop = statement_end(text, at, end)
        if match.group(1) != "=" and stop > 0:
            target = match.group().split(" ")[0]
            found("accumulate", at, [(at, at, f"{{ if (mutant::on(@)) {target} = {{}}; "), (stop, stop, " }")])

    for match in body(r"\bif \("):
        open_at = match.end() - 1
        close = closing(text, open_at)
        if ";" in text[open_at:close]:
            continue
        found("guard", match.start(), [(open_at + 1, open_at + 1, "!mutant::on(@) && ("), (close, close, ")")])
        found("unguard", match.start(), [(open_at + 1, open_at + 1, "mutant::on(@) || ("), (close, close, ")")])
    for match in body(r"(?<=[\w)\]]) \?(?=\s)"):
        at = match.start()
        found("clamp", at, [(at, at, " || mutant::on(@)")])
        start = max(text.rfind(c, begin, at) for c in ";{}")
        if "||" not in text[start:at]:
            found("clamp", at, [(at, at, " && !mutant::on(@)")])

    for match in body(r"(?<=\S) (<=?|>=?|==|!=|\+|-|\*|/|%)(?=\s)"):
        at = match.start(1)
        name = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne", "+": "add", "-": "sub", "*": "mul",
                "/": "div", "%": "mod"}[match.group(1)]
        if name in ("lt", "le", "gt", "ge") and in_head(at):
            operator = "bound"
        elif name in ("add", "sub"):
            operator = "sign"
        elif name in ("mul", "div", "mod"):
            operator = "product"
        else:
            operator = "compare"
        found(operator, at, [(at, match.end(1), f"{match.group(1)} mutant::{name}(@) {match.group(1)}")])
    for match in body(r"(?<=[(=,?:] )-(?=[\w(])|(?<=\()-(?=[A-Za-z_(])|(?<=return )-(?=[A-Za-z_(])"):
        found("negate", match.start(), [(match.start(), match.end(), "mutant::minus(@) * ")])

    # Index expressions: the first argument of a view's access, and subscripts.
    turn = 0
    for match in body(r"\.(?:template )?(?:load|store)(?:_as)?\s*\(|(?<=[\w\])])\["):
        open_at = match.end() - 1
        close = closing(text, open_at)
        inside = text[open_at + 1 : close]
        depth = 0
        stop = close
        for i, char in enumerate(inside):
            depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(char, 0)
            if char == "," and depth == 0:
                stop = open_at + 1 + i
                break
        index = text[open_at + 1 : stop]
        if not index.strip() or re.search(r"[?<>=&|]", index) or re.fullmatch(r"k[A-Z]\w*", index.strip()):
            continue
        turn += 1
        found("index", open_at, [(stop, stop, f" {'+' if turn % 2 else '-'} mutant::one(@)")])

    def operand(match):
        """Whether a name or number stands in an expression, and is not declared, set or qualified there."""
        char, word = before(text, match.start())
        after = text[match.end() : match.end() + 3]
        if word and word not in ("return", "else"):
            return False
        if char in ".}" or re.match(r"::|\s[-+*/]?=[^=]|\w|\(|<|\{", after) or char in "&~" or text[match.start() - 2 : match.start()] == "::":
            return False
        return True

    chain = rf"{IDENTIFIER}(?:(?:\.|->){IDENTIFIER}|\[\w*\])*"
    for match in body(rf"(?<![\w.>]){chain}"):
        last = re.sub(r"\[[^\[\]]*\]$", "", match.group())
        last = re.split(r"\.|->", last)[-1]
        if re.fullmatch(r"\w*stride", last) and operand(match):
            found("stride", match.start(), [(match.end(), match.end(), "->*mutant::plus(@)")])
        elif re.fullmatch(SCALE_NAMES, last) and operand(match):
            found("scale", match.start(), [(match.end(), match.end(), "->*mutant::twice(@)")])
        elif re.fullmatch(r"k[A-Z]\w*", match.group()) and operand(match):
            found("constant", match.start(), [(match.end(), match.end(), "->*mutant::more(@)")])
    for match in body(r"\+= block_?\.threads\(\)"):
        found("step", match.start(), [(match.end(), match.end(), "->*mutant::plus(@)")])
    for match in body(r"(?<![\w.\"'])(?:\d+\.\d+(?:e-?\d+)?f?|\d+u?)(?![\w.\"'])"):
        if operand(match):
            found("constant", match.start(), [(match.end(), match.end(), "->*mutant::more(@)")])
    for match in body(r"\b(float|double|int|int32_t|int64_t|uint32_t) \w+ = "):
        if before(text, match.start())[0] not in ";{}" or before(text, match.start())[1] == "const":
            continue
        stop = statement_end(text, match.start(), end)
        if stop > 0:
            found("initial", match.start(),
                  [(match.end(), match.end(), f"mutant::initial<{match.group(1)}>(@, "), (stop - 1, stop - 1, ")")])


def drop(text, at, end, found):
    stop = statement_end(text, at, end)
    if stop > 0:
        found("store", at, [(at, at, "{ if (!mutant::on(@)) "), (stop, stop, " }")])


def find_sites(path, source):
    """All sites of one file, in the order of their place."""
    text = masked(source)
    names = OP_FUNCTIONS if path.startswith("src/ops/") else None
    lines = source.split("\n")
    sites = []

    def found(operator, at, edits):
        line = source.count("\n", 0, at)
        sites.append((at, Site(path, line + 1, operator, lines[line].strip(), edits,
                               kernel=re.sub(r".*/|\.\w+$", "", path))))

    for begin, end in function_bodies(text, names):
        find_in_body(text, begin, end, found)
    order = list(OPERATORS)
    sites.sort(key=lambda pair: (pair[0], order.index(pair[1].operator), pair[1].edits[0][2]))
    return [site for _, site in sites]


def sample(sites, most):
    """At most `most` sites of each file and operator, at even distances; 0: all."""
    groups = {}
    for site in sites:
        groups.setdefault((site.file, site.operator), []).append(site)
    taken = set()
    for group in groups.values():
        count = len(group) if most == 0 else min(most, len(group))
        taken.update(id(group[(2 * i + 1) * len(group) // (2 * count)]) for i in range(count))
    return [site for site in sites if id(site) in taken]


def apply(source, sites):
    """The source with the mutations of all the sites in it, each behind its number."""
    edits = []
    for site in sites:
        for begin, end, text in site.edits:
            edits.append((begin, PLACES.index(next(p for p in PLACES if text.startswith(p))) if begin == end else -1,
                          site.number, end, text.replace("@", str(site.number))))
    result = []
    at = 0
    for begin, _, _, end, text in sorted(edits):
        result.append(source[at:begin])
        result.append(text)
        at = max(at, end)
    return "".join(result) + source[at:]

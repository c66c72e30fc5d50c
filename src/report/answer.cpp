#include "report/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "report/phrases.h"
#include "report/verdict.h"

namespace faultline {
namespace {

// Signatures, combinations or work-arounds named on one line.
constexpr size_t kMaxNamed = 3;

struct Tally {
  size_t total = 0;
  size_t failing = 0;
  size_t ran = 0;
  std::map<std::string, size_t> verdicts;
};

Tally tally_unplanted(const Findings& findings) {
  Tally result;
  for (const ConfigurationResult& row : findings.configurations) {
    if (!row.plant.empty()) continue;
    ++result.total;
    result.failing += verdict_is_failure(row.verdict);
    result.ran += verdict_class(row.verdict) != VerdictClass::kNotRun;
    ++result.verdicts[row.verdict];
  }
  return result;
}

std::string verdict_counts(const Tally& tally, bool failures) {
  std::string text;
  for (const auto& [verdict, count] : tally.verdicts) {
    if (verdict_is_failure(verdict) != failures) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, verdict);
  }
  return text;
}

// The signatures of the unplanted run, the one with most configurations first; of the planted runs where there is none.
std::vector<const Localized*> signatures(const Findings& findings, bool planted) {
  std::vector<const Localized*> list;
  for (const Localized& localized : findings.localized) {
    if (localized.plant.empty() != planted) list.push_back(&localized);
  }
  std::stable_sort(list.begin(), list.end(), [](const Localized* left, const Localized* right) {
    if (left->culprit.empty() != right->culprit.empty()) return right->culprit.empty();
    return left->configurations.size() > right->configurations.size();
  });
  return list;
}

bool any_planted(const Findings& findings) {
  return std::any_of(findings.configurations.begin(), findings.configurations.end(),
                     [](const ConfigurationResult& row) { return !row.plant.empty(); });
}

Text fails_line(const Findings& findings, const Tally& unplanted, const std::vector<const Localized*>& found) {
  Text text;
  const std::string rest = verdict_counts(unplanted, false);
  if (unplanted.failing != 0) {
    text.text(fmt::format("{} of {}", unplanted.failing, counted(unplanted.total, "configuration")));
    text.text(fmt::format(" ({})", verdict_counts(unplanted, true)));
    size_t named = 0;
    for (const Localized* localized : found) {
      if (!localized->plant.empty() || named == kMaxNamed) break;
      text.text(named == 0 ? ": " : "; ").code(localized->signature).text(" in ");
      text.text(ids_text(localized->configurations, 4));
      ++named;
    }
    if (found.size() > named) text.text(fmt::format("; {} below", counted(found.size() - named, "more signature")));
    if (!rest.empty()) text.text("; the others: " + rest);
  } else if (unplanted.ran != 0) {
    text.text(fmt::format("none of {} ({})", counted(unplanted.total, "configuration"), rest));
    if (any_planted(findings)) text.text(" as they are");
  } else if (unplanted.total != 0) {
    text.text(fmt::format("nothing could be run: {}", rest));
  } else {
    text.text("nothing was run");
  }
  // "of 23 configurations" is not the grid where a strategy chose them.
  const SearchCoverage& search = findings.coverage;
  if (search.run < search.runnable)
    text.text(fmt::format("; {} of the grid's {} were run (strategy {})", search.run,
                          counted(static_cast<size_t>(search.grid), "row"), search.strategy));
  const std::vector<std::string> plants = plants_of(findings);
  const auto faults =
      std::count_if(plants.begin(), plants.end(), [](const std::string& plant) { return !plant.empty(); });
  if (faults != 0) {
    size_t changed = 0;
    for (const ConfigurationResult& row : findings.configurations) {
      const bool ran = verdict_class(row.verdict) != VerdictClass::kNotRun;
      changed += !row.plant.empty() && ran && !unchanged_by_plant(findings, row);
    }
    const std::string apart = unplanted.failing != 0 ? ", reported apart," : "";
    text.text(fmt::format("; {} planted on purpose{} {} in {}", counted(static_cast<size_t>(faults), "fault"), apart,
                          faults == 1 ? "shows" : "show", counted(changed, "configuration")));
    if (unplanted.failing == 0) {
      const std::vector<const Localized*> planted = signatures(findings, true);
      for (size_t i = 0; i < std::min(planted.size(), kMaxNamed); ++i)
        text.text(i == 0 ? ": " : "; ")
            .code(planted[i]->signature)
            .text(" in ")
            .text(ids_text(planted[i]->configurations, 4));
      if (planted.size() > kMaxNamed)
        text.text(fmt::format("; {} below", counted(planted.size() - kMaxNamed, "more signature")));
    }
  }
  return text.text(".");
}

void append_combinations(const Findings& findings, const Localized& localized, Text& text) {
  size_t named = 0;
  size_t hidden = 0;
  for (const MinimalCombination& combination : findings.minimal_combinations) {
    if (combination.signature != localized.signature || combination.plant != localized.plant) continue;
    if (named == kMaxNamed) {
      ++hidden;
      continue;
    }
    if (named++ != 0) text.text(", or ");
    if (combination.axes.empty()) {
      text.text("every configuration that ran: no setting of this grid avoids it");
    } else {
      text.append(settings_text(combination.axes, " with "));
    }
    for (size_t i = 0; i < combination.untested.size(); ++i) {
      text.text(i == 0 ? " (untested: " : ", ").code(combination.untested[i]);
    }
    if (!combination.untested.empty()) text.text(")");
  }
  if (named == 0) text.text("not found");
  if (hidden != 0) text.text(fmt::format(" and {} more", hidden));
}

Text combination_line(const Findings& findings, const std::vector<const Localized*>& found, const Tally& unplanted) {
  Text text;
  if (found.empty()) {
    return unplanted.failing == 0 ? text.text("none, since nothing fails.")
                                  : text.text("not searched: no signature was found.");
  }
  for (size_t i = 0; i < std::min(found.size(), kMaxNamed); ++i) {
    if (i != 0) text.text("; for ").code(found[i]->signature).text(": ");
    append_combinations(findings, *found[i], text);
  }
  if (found.size() > kMaxNamed)
    text.text(fmt::format("; {} below", counted(found.size() - kMaxNamed, "more signature")));
  return text.text(".");
}

Text place_line(const Findings& findings, const std::vector<const Localized*>& found, const Tally& unplanted) {
  Text text;
  if (found.empty()) {
    // A failure that nobody could group still has its place.
    for (const ConfigurationResult& row : findings.configurations) {
      if (row.first_violation && row.plant.empty()) {
        return text.append(place_text(*row.first_violation)).text(" (").text(row.id).text("); not localized.");
      }
    }
    if (unplanted.failing != 0) return text.text("none was seen: the worker ended before a check could say.");
    const auto checks = findings.environment.find("checks");
    if (checks == findings.environment.end()) return text.text("none.");
    return text.text("none, under checks: ").code(checks->second).text(".");
  }
  const Localized& main = *found.front();
  if (!main.plant.empty()) text.text("with ").code(main.plant).text(" planted, ");
  const Violation* violation = violation_of(findings, main);
  if (violation != nullptr) {
    text.append(place_text(*violation));
    text.text("; kernel ").append(kernel_text(violation->kernel, violation->provenance, violation->follows));
  } else {
    text.code(main.op.empty() ? main.signature : main.op);
    text.text("; kernel ").append(kernel_text(main.kernel, main.provenance, main.follows));
  }
  if (main.culprit.empty()) {
    text.text("; not localized");
  } else {
    text.text("; culprit: ").strong(main.culprit);
    if (!main.op.empty() && (violation == nullptr || main.op != violation->op)) text.text(" at ").code(main.op);
  }
  if (main.unchanged.mixed())
    text.text(fmt::format("; {} of {} runs fail", main.unchanged.failures, main.unchanged.runs));
  if (main.culprit == "ordering")
    return text.text(" (each op alone is clean; with the first made to wait, so is the run).");
  text.text(fmt::format(" (reproduces alone: {}, necessary: {}).",
                        main.reproduces.empty() ? "unknown" : main.reproduces,
                        main.necessary.empty() ? "unknown" : main.necessary));
  return text;
}

Text irrelevant_line(const Findings& findings, const std::vector<const Localized*>& found) {
  Text text;
  std::set<std::string> ruled_out;
  if (!found.empty()) {
    for (const RuledOut& entry : findings.ruled_out) {
      if (entry.signature == found.front()->signature && entry.plant == found.front()->plant)
        ruled_out.insert(entry.axis);
    }
  }
  for (const std::string& axis : ruled_out) text.text(text.empty() ? "ruled out by rows: " : ", ").code(axis);
  size_t named = 0;
  for (const Inert& inert : findings.inert) {
    if (named == kMaxNamed) break;
    text.text(text.empty() ? "no effect at all: " : named == 0 ? "; no effect at all: " : ", ").code(inert.axis);
    if (!inert.condition.empty()) text.text(" under ").append(settings_text(inert.condition));
    ++named;
  }
  if (findings.inert.size() > named) text.text(fmt::format(" and {} more", findings.inert.size() - named));
  if (text.empty())
    return text.text("nothing: no two failing rows differ in one setting alone, and every setting has an effect.");
  return text.text(".");
}

Text remedy_line(const Findings& findings, const std::vector<const Localized*>& found) {
  Text text;
  if (found.empty()) {
    const auto row =
        std::find_if(findings.configurations.begin(), findings.configurations.end(),
                     [](const auto& candidate) { return verdict_class(candidate.verdict) != VerdictClass::kNotRun; });
    if (row == findings.configurations.end()) return text.text("none needed; nothing to replay.");
    const bool failed = verdict_is_failure(row->verdict);
    return text.text(failed ? "none found. Replay one: " : "none needed. Replay one: ")
        .code(replay_command(findings, row->id));
  }
  const Localized& main = *found.front();
  size_t named = 0;
  for (const Workaround& workaround : findings.workarounds) {
    if (!workaround.signature.empty() && (workaround.signature != main.signature || !main.plant.empty())) continue;
    if (named == kMaxNamed) break;
    text.text(named++ == 0 ? "" : ", or ")
        .append(settings_text(workaround.changes))
        .text(" (")
        .text(workaround.id)
        .text(" passes)");
  }
  if (named == 0)
    text.text(main.plant.empty() ? "no tested configuration nearby passes"
                                 : "the fault was planted, so run without it");
  const ConfigurationResult* example = example_of(findings, main);
  if (example != nullptr) text.text(". Replay: ").code(replay_command(findings, example->id));
  return text;
}

// The first row is the line's. What is tried next is the nearest row that passes.
Text given_line(const Findings& findings) {
  Text text = Text().code(findings.server_args);
  const auto row = std::find_if(findings.configurations.begin(), findings.configurations.end(),
                                [](const ConfigurationResult& candidate) { return candidate.plant.empty(); });
  if (row == findings.configurations.end()) return text.text(" was not run.");
  text.text(" (" + row->id + "): ");
  if (row->first_violation)
    text.append(place_text(*row->first_violation));
  else
    text.strong(row->verdict);
  if (!row->first_violation && !row->reason.empty()) text.text(", " + row->reason);
  if (row->verdict == "pass") {
    text.text(" here, with this program's own kernels");
  } else {
    const ConfigurationResult* nearest = nullptr;
    size_t fewest = 0;
    for (const ConfigurationResult& candidate : findings.configurations) {
      if (candidate.verdict != "pass" || !candidate.plant.empty()) continue;
      size_t changes = 0;
      for (const auto& [axis, value] : candidate.axes) {
        const auto given = row->axes.find(axis);
        changes += given == row->axes.end() || given->second != value;
      }
      if (nearest != nullptr && changes >= fewest) continue;
      nearest = &candidate;
      fewest = changes;
    }
    if (nearest == nullptr) {
      text.text("; no row around it passes");
    } else {
      text.text("; nearest that passes, " + nearest->id + ": ");
      if (!nearest->launch_command.empty()) text.code(nearest->launch_command);
    }
  }
  for (const std::string& warning : findings.server_args_warnings) text.text("; " + warning);
  return text.text(".");
}

Text assumed_line(const Findings& findings) {
  Text text;
  for (const std::string& name : findings.assume_fixed) text.text(text.empty() ? "" : ", ").code(name);
  return text.text(": a reference stood in its place in every row, so that nothing here is said of it.");
}

}  // namespace

std::vector<AnswerLine> answer_lines(const Findings& findings) {
  const Tally unplanted = tally_unplanted(findings);
  std::vector<const Localized*> found = signatures(findings, false);
  const Text fails = fails_line(findings, unplanted, found);
  if (found.empty() && unplanted.failing == 0) found = signatures(findings, true);
  std::vector<AnswerLine> lines = {{"Fails", fails},
                                   {"Smallest combination", combination_line(findings, found, unplanted)},
                                   {"First broken contract", place_line(findings, found, unplanted)},
                                   {"Does not matter", irrelevant_line(findings, found)},
                                   {"Work-around", remedy_line(findings, found)}};
  if (!findings.assume_fixed.empty()) lines.insert(lines.begin(), {"Assumed fixed", assumed_line(findings)});
  if (!findings.server_args.empty()) lines.insert(lines.begin(), {"The line", given_line(findings)});
  return lines;
}

std::vector<std::string> five_line_answer(const Findings& findings) {
  std::vector<std::string> lines;
  for (const AnswerLine& line : answer_lines(findings)) lines.push_back(line.label + ": " + plain(line.text));
  return lines;
}

}  // namespace faultline

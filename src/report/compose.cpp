#include "report/compose.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "report/answer.h"
#include "report/phrases.h"
#include "report/verdict.h"

namespace faultline {
namespace {

void compose_unlocalized(const Findings& findings, const std::string& plant, Document& document) {
  std::set<std::string> grouped;
  for (const Localized& localized : findings.localized) {
    grouped.insert(localized.configurations.begin(), localized.configurations.end());
  }
  std::vector<Text> rest;
  for (const ConfigurationResult& row : findings.configurations) {
    if (row.plant != plant || !verdict_is_failure(row.verdict) || grouped.count(row.id) != 0) continue;
    if (unchanged_by_plant(findings, row)) continue;
    Text text = Text().code(row.id).text(", ").text(row.verdict);
    if (row.first_violation) {
      text.text(": ").append(place_text(*row.first_violation));
    } else if (!row.reason.empty()) {
      text.text(": " + row.reason);
    }
    rest.push_back(std::move(text));
  }
  if (rest.empty()) return;
  document.paragraph("Failures that belong to no signature above:");
  document.list(std::move(rest));
}

void compose_signatures(const Findings& findings, Document& document) {
  document.heading(2, "What broke, and the proof");
  bool any = false;
  for (const Localized& localized : findings.localized) {
    if (!localized.plant.empty()) continue;
    compose_signature(findings, localized, 3, document);
    any = true;
  }
  if (!any) document.paragraph("There are failures, and none could be grouped and searched.");
  compose_unlocalized(findings, "", document);
}

Text ruled_out_text(const RuledOut& entry, bool with_signature) {
  Text text = Text().code(entry.axis).text(" is ruled out");
  if (with_signature) text.text(" for ").code(entry.signature);
  if (!entry.condition.empty()) text.text(" under ").append(settings_text(entry.condition));
  return text.text(": rows that differ in it alone fail alike (" + pairs_text(entry.pairs) + ").");
}

void compose_irrelevant(const Findings& findings, Document& document) {
  document.heading(2, "Ruled out, and without effect");
  std::vector<Text> ruled_out;
  for (const RuledOut& entry : findings.ruled_out) {
    if (entry.plant.empty()) ruled_out.push_back(ruled_out_text(entry, true));
  }
  if (ruled_out.empty()) {
    document.paragraph("No setting is ruled out: that takes two failing rows that differ in it alone.");
  } else {
    document.paragraph("Each pair names two rows that differ in this setting alone and fail in the same way.");
    document.list(std::move(ruled_out));
  }
  if (findings.inert.empty()) return;
  std::vector<Text> inert;
  for (const Inert& entry : findings.inert) {
    Text text = Text().code(entry.axis).text(" never mattered");
    if (!entry.condition.empty()) text.text(" under ").append(settings_text(entry.condition));
    if (!entry.because.empty()) text.text(": " + entry.because);
    if (!entry.pairs.empty()) text.text(" (" + pairs_text(entry.pairs) + ")");
    inert.push_back(text.text("."));
  }
  document.paragraph(
      "Settings whose values resolve to the same kernels and formats, so that changing them changes nothing:");
  document.list(std::move(inert));
}

// What mends a culprit, and whose part that is.
Text advice_text(const Localized& localized) {
  const std::string& culprit = localized.culprit;
  Text text = Text().code(localized.signature).text(": ");
  if (culprit == "kernel")
    return text.text("mend ")
        .code(localized.kernel)
        .text(localized.capsule.empty() ? ", and replay the case until it is good"
                                        : ", and replay its capsule until it is good");
  if (culprit == "layout")
    return text.text("let the reader take the format that is written, or choose settings that pair the two");
  if (culprit == "weights") return text.text("put the tensor right: fetch the checkpoint again, or quantize it anew");
  if (culprit == "metadata")
    return text.text("look at what fills ").code(localized.op).text(" before the pass, and when");
  if (culprit == "setting") return text.text("choose the model's own value, or accept that another model is served");
  if (culprit == "ordering")
    return text.text("make what follows ")
        .code(localized.op)
        .text(" wait until it is done: a missing wait of a dependent launch, or work on two streams without an event");
  if (culprit.empty()) return text.text("no culprit is proven; the evidence above says what was tried");
  return text.text("see the evidence above");
}

void compose_advice(const Findings& findings, bool planted, Document& document) {
  std::vector<Text> advice;
  for (const Localized& localized : findings.localized)
    if (localized.plant.empty() != planted) advice.push_back(advice_text(localized).text("."));
  if (advice.empty()) return;
  document.paragraph(planted ? "Were the planted faults real ones, this would mend them:" : "What mends it:");
  document.list(std::move(advice));
}

void compose_what_to_do(const Findings& findings, bool fails, Document& document) {
  document.heading(2, "What to do now");
  compose_advice(findings, !fails, document);
  if (!fails) {
    document.paragraph(plants_of(findings).size() > 1
                           ? "Without a planted fault nothing fails: there is nothing to work around."
                           : "Nothing fails: there is nothing to work around.");
  } else if (findings.workarounds.empty()) {
    document.paragraph("No configuration of this grid both passes and is near a failing one.");
  } else {
    document.paragraph(
        "The nearest configurations that passed work around the fault; they do not mend it. Each with the server's "
        "command:");
    for (const Workaround& workaround : findings.workarounds) {
      Text text(workaround.from.empty() ? "Set " : "In " + workaround.from + ", set ");
      text.append(settings_text(workaround.changes)).text(": " + workaround.id + " passes");
      if (const ConfigurationResult* row = find_configuration(findings, workaround.id);
          row != nullptr && row->repeats > 1)
        text.text(fmt::format(" ({} of {} runs)", row->repeats - row->failures, row->repeats));
      if (!workaround.signature.empty()) text.text(", without ").code(workaround.signature);
      document.list({text.text(".")});
      if (!workaround.launch_command.empty()) document.code(workaround.launch_command);
    }
  }
  if (findings.next_experiments.empty()) return;
  document.paragraph("Still open, and worth their time:");
  document.list({findings.next_experiments.begin(), findings.next_experiments.end()});
}

void compose_replay(const Findings& findings, Document& document) {
  document.heading(2, "How to reproduce");
  std::vector<std::string> commands;
  for (const Localized& localized : findings.localized) {
    const ConfigurationResult* example = example_of(findings, localized);
    if (example != nullptr) commands.push_back(replay_command(findings, example->id));
    if (!localized.capsule.empty()) commands.push_back(capsule_command(findings, localized));
  }
  if (commands.empty() && !findings.configurations.empty()) {
    commands.push_back(replay_command(findings, findings.configurations.front().id));
  }
  if (commands.empty()) {
    document.paragraph("Nothing was run.");
    return;
  }
  document.paragraph(
      "A case (.yaml) is one configuration, a capsule (.safetensors) one op with its inputs. Each command runs one "
      "alone. "
      "Exit code 0: it is good; 1: it fails; 125: it cannot run here. So the same command serves git bisect run.");
  std::string lines;
  std::set<std::string> seen;
  for (const std::string& command : commands) {
    if (seen.insert(command).second) lines += command + "\n";
  }
  document.code(lines);
}

void compose_environment(const Findings& findings, Document& document) {
  document.heading(2, "Environment");
  if (findings.environment.empty()) {
    document.paragraph("Not recorded.");
    return;
  }
  std::vector<std::vector<Cell>> rows;
  for (const auto& [name, value] : findings.environment) rows.push_back({{Text(name)}, {Text().code(value)}});
  document.table({"what", "value"}, std::move(rows));
}

// What the passing configurations' runs exclude: the fewest runs among them speak for all.
std::string repeats_text(const Findings& findings) {
  int64_t fewest = std::numeric_limits<int64_t>::max();
  for (const ConfigurationResult& row : findings.configurations)
    if (row.verdict == "pass") fewest = std::min(fewest, row.repeats);
  if (fewest == std::numeric_limits<int64_t>::max()) return "No configuration passed.";
  if (fewest <= 1)
    return fmt::format(
        "Passing configurations ran once; a fault that does not show each time can have been missed. "
        "--repeats auto runs them until a failure rate of {} is excluded at {} confidence ({} clean runs).",
        percent(kDesignFailureRate), percent(kConfidenceLevel), clean_runs_needed(kDesignFailureRate));
  return fmt::format(
      "Each passing configuration ran {} times or more without a failure: at {} confidence its failure rate is below "
      "{}. A rarer fault can have been missed.",
      fewest, percent(kConfidenceLevel), percent(rate_at_most({fewest, 0})));
}

void compose_limits(const Findings& findings, Document& document) {
  document.heading(2, "Limits of the evidence");
  std::vector<Text> limits;
  limits.push_back(Text("Kernels of provenance ")
                       .code("own")
                       .text(" are this tool's own. They follow a backend's data layout, indices, tiles and guards; "
                             "they are not that vendor's "
                             "code. What is convicted is the layout, the settings or our own kernel, never the "
                             "vendor's binary. Only a "
                             "third-party kernel that was loaded and run can convict itself."));
  const auto checks = findings.environment.find("checks");
  const std::string level = checks == findings.environment.end() ? "" : checks->second;
  if (level.empty() || level == "full") {
    limits.push_back(
        Text("A pass under ")
            .code("checks: full")
            .text(" says that values were finite, written and in range; finite but wrong results were not looked for. ")
            .code("checks: reference")
            .text(" looks for them."));
  } else if (level == "finite") {
    limits.push_back(Text("A pass under ")
                         .code("checks: finite")
                         .text(" says that values were finite; nothing else was looked for."));
  } else if (level == "off") {
    limits.push_back(Text("Under ")
                         .code("checks: off")
                         .text(" only a worker's death or exit makes a failure; a pass says that it lived."));
  }
  size_t not_run = 0;
  size_t off_target = 0;
  for (const ConfigurationResult& row : findings.configurations) {
    const bool ran = verdict_class(row.verdict) != VerdictClass::kNotRun;
    not_run += !ran;
    off_target += ran && row.target_status != "runs" && !row.target_status.empty();
  }
  if (not_run != 0) {
    limits.push_back(Text(counted(not_run, "configuration") +
                          " did not run (guard, unsupported or skipped). These are read "
                          "from the server's rules for the target and are no evidence for or against anything."));
  }
  if (off_target != 0) {
    limits.push_back(Text(counted(off_target, "configuration") +
                          " ran here although the target refuses or lacks it. The "
                          "verdict is that of this run; the target's status is in the table."));
  }
  limits.emplace_back(repeats_text(findings));
  for (const std::string& limit : findings.limits) limits.emplace_back(limit);
  document.list(std::move(limits));
}

void compose_plant(const Findings& findings, const std::string& plant, Document& document) {
  document.heading(2, Text("Planted: ").code(plant));
  document.note(Text()
                    .strong("This fault was planted on purpose")
                    .text(", to show how the tool tells it from others. It says nothing about the model, the server or "
                          "any kernel."));
  compose_grid(findings, plant, document);
  for (const Localized& localized : findings.localized) {
    if (localized.plant == plant) compose_signature(findings, localized, 3, document);
  }
  compose_unlocalized(findings, plant, document);
  std::vector<Text> ruled_out;
  for (const RuledOut& entry : findings.ruled_out) {
    if (entry.plant == plant) ruled_out.push_back(ruled_out_text(entry, true));
  }
  if (!ruled_out.empty()) {
    document.paragraph("Ruled out with this fault planted:");
    document.list(std::move(ruled_out));
  }
}

}  // namespace

Document compose(const Findings& findings) {
  Document document;
  document.title = findings.experiment.empty() ? "Faultline findings" : "Faultline findings: " + findings.experiment;
  document.heading(1, document.title);
  std::vector<Text> answer;
  for (const AnswerLine& line : answer_lines(findings)) {
    answer.push_back(Text().strong(line.label + ":").text(" ").append(line.text));
  }
  document.numbered(std::move(answer));
  document.paragraph(
      "Faultline ran each configuration of the grid in a process of its own and checked what every op of the model's "
      "forward "
      "pass wrote. A configuration is one choice of server settings; a contract is what must hold of an op's output; "
      "guard means that the server itself refuses a configuration, unsupported that its kernel does not exist for the "
      "target.");

  const bool fails = std::any_of(findings.configurations.begin(), findings.configurations.end(),
                                 [](const auto& row) { return row.plant.empty() && verdict_is_failure(row.verdict); });
  const auto planted = [&] {
    for (const std::string& plant : plants_of(findings))
      if (!plant.empty()) compose_plant(findings, plant, document);
  };
  if (fails) {
    compose_signatures(findings, document);
    compose_irrelevant(findings, document);
  } else {
    planted();  // what there is to tell
  }
  compose_what_to_do(findings, fails, document);
  compose_replay(findings, document);
  document.heading(2, "The grid");
  compose_grid(findings, "", document);
  if (fails) planted();
  compose_environment(findings, document);
  compose_limits(findings, document);
  return document;
}

}  // namespace faultline

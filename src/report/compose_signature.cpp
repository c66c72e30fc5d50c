#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"
#include "report/compose.h"
#include "report/escape.h"
#include "report/phrases.h"
#include "report/verdict.h"

namespace faultline {
namespace {

// Convicted by relaxing one edge, or one buffer of a graph's batch, of a run whose ops are clean one by one.
bool by_relaxing(const Localized& localized) {
  return localized.culprit == "ordering" || (localized.culprit == "metadata" && localized.op != "batch.prepare");
}

// What was repeated differs by culprit: an op alone, a whole run, a checkpoint tensor.
Text reproduces_text(const Localized& localized) {
  const std::string& answer = localized.reproduces;
  if (by_relaxing(localized) && answer == "yes") return "the whole run does, each time; each op alone is clean";
  if (by_relaxing(localized)) return "the whole run does, now and then; each op alone is clean";
  if (localized.culprit == "setting" && answer == "yes")
    return "yes: run again op by op, the same gap to the model shows";
  if (localized.culprit == "weights" && answer == "yes") return "yes: the tensor of the checkpoint is what it is";
  if (verdict_class(localized.kind) == VerdictClass::kDeath && answer == "yes")
    return "yes: run again, the worker ends in the same op in the same way";
  if (answer == "yes") return "yes: replayed alone on its recorded inputs, the op breaks again";
  if (answer == "no")
    return "no: replayed alone on its recorded inputs, the op behaves; the fault needs the run around it";
  return "unknown: it could not be replayed";
}

Text necessary_text(const Localized& localized) {
  const std::string& answer = localized.necessary;
  if (localized.culprit == "ordering" && answer == "yes")
    return "yes: with this one edge forced to wait the failure is gone from the run";
  if (by_relaxing(localized) && answer == "yes")
    return "yes: with this one buffer written anew the failure is gone from the run";
  if (localized.culprit == "setting" && answer == "yes")
    return "yes: with the model's own value in its place the gap is gone";
  if (localized.culprit == "weights" && answer == "yes")
    return "yes: with a usable value in its place the failure is gone from the run";
  if (answer == "yes") return "yes: with a reference in its place the failure is gone from the run";
  if (answer == "no") return "no: with a reference in its place the run still fails this way";
  return "unknown: no run with a reference in its place could be made";
}

std::string how_often_text(const Localized& localized) {
  std::string text = runs_text(localized.unchanged);
  if (localized.changed.runs > 1)
    text += fmt::format("{}with what is convicted taken out of it, {} of {}", text.empty() ? "" : "; ",
                        localized.changed.failures, localized.changed.runs);
  return text;
}

std::string confidence_text(const Localized& localized) {
  if (localized.culprit.empty()) return localized.confidence;
  if (localized.level > 0)
    return fmt::format("{}: luck alone would bring this about in at most {} of cases", localized.confidence,
                       percent(1 - localized.level));
  return localized.confidence + ", taking it to fail each time, as it did in every run";
}

Text build_text(const std::string& build) {
  if (build == "checked") return "checked: every index of the kernel was tested against its tensor";
  if (build == "unchecked") return "unchecked: as it runs in screening";
  return build;
}

Text combinations_text(const Findings& findings, const Localized& localized) {
  Text text;
  for (const MinimalCombination& combination : findings.minimal_combinations) {
    if (combination.signature != localized.signature || combination.plant != localized.plant) continue;
    if (!text.empty()) text.text("; or ");
    text.append(combination.axes.empty() ? Text("none needed: every configuration that ran fails")
                                         : settings_text(combination.axes));
    for (size_t i = 0; i < combination.untested.size(); ++i) {
      text.text(i == 0 ? " (untested, so perhaps not needed: " : ", ").code(combination.untested[i]);
    }
    if (!combination.untested.empty()) text.text(")");
  }
  return text;
}

}  // namespace

void compose_signature(const Findings& findings, const Localized& localized, int level, Document& document) {
  document.heading(level, Text().code(localized.signature));
  document.paragraph(Text(localized.culprit.empty() ? "" : "Convicted: ").append(culprit_text(localized)).text("."));
  if (!localized.explanation.empty()) document.paragraph(localized.explanation);

  std::vector<std::vector<Cell>> rows;
  const auto add = [&](const char* question, Text answer) {
    if (!answer.empty()) rows.push_back({{Text(question)}, {std::move(answer)}});
  };
  const ConfigurationResult* example = example_of(findings, localized);
  const Violation* violation = violation_of(findings, localized);
  if (violation != nullptr) {
    add("First broken contract", place_text(*violation).text(" (" + example->id + ")"));
    if (localized.explanation.find(violation->detail) == std::string::npos) add("What was seen", violation->detail);
    add("Kernel", kernel_text(violation->kernel, violation->provenance, violation->follows));
    if (!localized.op.empty() && localized.op != violation->op)
      add("Convicted op", Text()
                              .code(localized.op)
                              .text(", kernel ")
                              .append(kernel_text(localized.kernel, localized.provenance, localized.follows)));
    if (violation->core) add("GPU core dump", core_text(*violation->core));
    add("Inputs clean", inputs_text(*violation));
    add("Build", build_text(violation->build));
  } else {
    add("Op", localized.op.empty() ? Text() : Text().code(localized.op));
    add("Kernel", kernel_text(localized.kernel, localized.provenance, localized.follows));
  }
  add("Reproduces alone", reproduces_text(localized));
  add("Necessary", necessary_text(localized));
  add("How often it fails", how_often_text(localized));
  add("Confidence", confidence_text(localized));
  add("Smallest combination", combinations_text(findings, localized));
  add("Configurations", fmt::format("{} ({})", ids_text(localized.configurations), localized.configurations.size()));
  if (!localized.capsule.empty()) add("The op alone", Text().code(capsule_command(findings, localized)));
  if (example != nullptr) add("The configuration alone", Text().code(replay_command(findings, example->id)));
  document.table({"question", "answer"}, std::move(rows));

  if (!localized.evidence.empty()) {
    document.paragraph("The evidence, in order:");
    document.numbered({localized.evidence.begin(), localized.evidence.end()});
  }
}

}  // namespace faultline

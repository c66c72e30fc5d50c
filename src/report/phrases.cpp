#include "report/phrases.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "base/text.h"
#include "report/escape.h"

namespace faultline {
namespace {

// "c017+plant" as "c", 17 (three digits wide), "+plant": ids that count on can be written as a range.
struct CountedId {
  std::string_view prefix;
  uint64_t number = 0;
  size_t width = 0;
  std::string_view suffix;
  bool counted = false;
};

CountedId split_id(std::string_view id) {
  const auto digit = [](char c) { return c >= '0' && c <= '9'; };
  const size_t first = static_cast<size_t>(std::find_if(id.begin(), id.end(), digit) - id.begin());
  size_t last = first;
  while (last < id.size() && digit(id[last])) ++last;
  CountedId split{id.substr(0, first), 0, last - first, id.substr(last), false};
  const auto [end, error] = std::from_chars(id.data() + first, id.data() + last, split.number);
  split.counted = error == std::errc() && end == id.data() + last;
  return split;
}

bool follows_on(const CountedId& left, const CountedId& right) {
  return left.counted && right.counted && left.prefix == right.prefix && left.suffix == right.suffix &&
         left.width == right.width && left.number + 1 == right.number;
}

std::string join_limited(const std::vector<std::string>& pieces, size_t limit, size_t hidden) {
  if (pieces.size() <= limit) return fmt::format("{}", fmt::join(pieces, ", "));
  return fmt::format("{} and {} more",
                     fmt::join(pieces.begin(), pieces.begin() + static_cast<std::ptrdiff_t>(limit), ", "), hidden);
}

}  // namespace

std::string plain(const Text& text) {
  std::string line;
  for (const Span& span : text.spans()) line += span.text;
  return clean_text(line);
}

Text settings_text(const AxisValues& axes, std::string_view separator) {
  Text text;
  for (const auto& [axis, value] : axes) {
    if (!text.empty()) text.text(separator);
    text.code(fmt::format("{}={}", axis, value));
  }
  return text;
}

std::string ids_text(const std::vector<std::string>& ids, size_t limit) {
  constexpr size_t kShortestRange = 3;
  std::vector<std::string> pieces;
  size_t shown = 0;  // ids in the first `limit` pieces
  for (size_t begin = 0; begin < ids.size();) {
    size_t end = begin + 1;
    while (end < ids.size() && follows_on(split_id(ids[end - 1]), split_id(ids[end]))) ++end;
    if (end - begin < kShortestRange) end = begin + 1;
    if (pieces.size() < limit) shown += end - begin;
    pieces.push_back(end - begin == 1 ? ids[begin] : ids[begin] + "–" + ids[end - 1]);
    begin = end;
  }
  return join_limited(pieces, limit, ids.size() - shown);
}

std::string pairs_text(const std::vector<std::pair<std::string, std::string>>& pairs, size_t limit) {
  std::vector<std::string> pieces;
  pieces.reserve(pairs.size());
  for (const auto& [left, right] : pairs) pieces.push_back(fmt::format("{}/{}", left, right));
  return join_limited(pieces, limit, pieces.size() - std::min(limit, pieces.size()));
}

std::string percent(double fraction) {
  constexpr double kTens = 10;  // percent from which on a digit behind the point says nothing
  const double value = fraction * 100;
  return value < kTens ? fmt::format("{:.1f} %", value) : fmt::format("{:.0f} %", value);
}

std::string runs_text(const RunCount& count) {
  if (count.runs < 2) return "";
  if (count.failures == count.runs)
    return fmt::format("all of {} runs fail, a rate of {} or more", count.runs, percent(rate_at_least(count)));
  if (count.failures == 0)
    return fmt::format("none of {} runs fails, a rate of {} at most", count.runs, percent(rate_at_most(count)));
  return fmt::format("{} of {} runs fail, a rate between {} and {}", count.failures, count.runs,
                     percent(rate_at_least(count)), percent(rate_at_most(count)));
}

std::string counted(size_t count, std::string_view singular) {
  return fmt::format("{} {}{}", count, singular, count == 1 ? "" : "s");
}

Text kernel_text(std::string_view kernel, std::string_view provenance, std::string_view follows) {
  Text text;
  if (kernel.empty()) return text.text("not known");
  if (provenance == "own") {
    if (!follows.empty()) {
      return text.code(kernel).text(", our own kernel that follows ").text(follows).text(" (not that vendor's code)");
    }
    return text.code(kernel).text(", our own kernel (not a vendor's code)");
  }
  if (provenance == "reference") return text.code(kernel).text(", a reference");
  if (provenance == "third-party") return text.code(kernel).text(", the third party's own binary");
  return text.code(kernel);
}

Text culprit_text(const Localized& localized) {
  const std::string& culprit = localized.culprit;
  Text text;
  if (culprit.empty()) return text.text("Not localized: no culprit could be proven");
  text.strong(culprit).text(": ");
  if (culprit == "kernel") {
    if (localized.provenance == "own") {
      text.text("our own kernel ").code(localized.kernel);
      if (!localized.follows.empty()) text.text(" that follows ").text(localized.follows);
      return text.text(" does not compute what its own specification says; no vendor's code is convicted");
    }
    if (localized.provenance == "third-party") {
      return text.text("the third-party kernel ")
          .code(localized.kernel)
          .text(" does not compute what its specification says");
    }
    return text.text("the kernel ").code(localized.kernel).text(" does not compute what its specification says");
  }
  if (culprit == "layout") {
    return text.text(
        "the writer and the reader of a tensor disagree on its storage format; neither kernel is wrong by itself");
  }
  if (culprit == "weights") return text.text("a tensor of the checkpoint is bad");
  if (culprit == "metadata") return text.text("indices, lengths or graph buffers that an op was given are wrong");
  if (culprit == "setting") return text.text("these settings make the server compute something else than the model");
  if (culprit == "collective") return text.text("ranks that must agree do not");
  if (culprit == "ordering") return text.text("two ops overlap that must not");
  return text.text("what the op was given or did");
}

Text place_text(const Violation& violation) {
  Text text;
  text.text(violation.setting ? violation.kind + " with the model at " : violation.kind + " at ");
  if (violation.op.empty()) {
    text.text("no op");
  } else {
    text.code(violation.op);
  }
  if (violation.layer >= 0) text.text(fmt::format(", layer {}", violation.layer));
  if (!violation.phase.empty()) text.text(fmt::format(", {} step {}", violation.phase, violation.step));
  text.text(fmt::format(", rank {}", violation.rank));
  if (!violation.tensor.empty()) {
    text.text(": ").code(fmt::format("{}[{}]", violation.tensor, fmt::join(violation.index, ", ")));
    if (!violation.value.empty()) text.text(" is ").code(violation.value);
    if (!violation.bits.empty()) text.text(" (bits ").code(violation.bits).text(")");
    if (violation.count > 1) text.text(fmt::format(", one of {} such elements", violation.count));
  }
  return text;
}

Text core_text(const CoreDump& core) {
  Text text;
  if (!core.exception.empty()) text.text(core.exception);
  if (!core.kernel.empty()) text.text(text.empty() ? "in " : " in ").code(core.kernel);
  if (core.line != 0) text.text(text.empty() ? "at " : " at ").code(fmt::format("{}:{}", core.source, core.line));
  if (!core.block.empty()) text.text(fmt::format(", block {}, thread {}", core.block, core.thread));
  if (!core.place.empty()) text.text(fmt::format(" ({})", core.place));
  if (!core.unread.empty()) text.text((text.empty() ? "" : "; ") + core.unread);
  return text.text(text.empty() ? "" : ": ").code(core.file);
}

Text inputs_text(const Violation& violation) {
  if (violation.inputs_clean == "yes")
    return "yes: every input of the op kept its contract, so the fault is not inherited";
  if (violation.inputs_clean == "no") {
    Text text("no: ");
    if (violation.bad_input.empty()) return text.text("an input was already bad");
    return text.code(violation.bad_input).text(" was already bad");
  }
  return "not known";
}

std::vector<std::string> plants_of(const Findings& findings) {
  std::vector<std::string> plants;
  for (const ConfigurationResult& row : findings.configurations) {
    if (std::find(plants.begin(), plants.end(), row.plant) == plants.end()) plants.push_back(row.plant);
  }
  std::stable_partition(plants.begin(), plants.end(), [](const std::string& plant) { return plant.empty(); });
  return plants;
}

const ConfigurationResult* find_configuration(const Findings& findings, std::string_view id) {
  for (const ConfigurationResult& row : findings.configurations) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

std::string outcome_of(const ConfigurationResult& row) {
  if (!row.first_violation) return row.reason;
  const Violation& violation = *row.first_violation;
  const size_t last_dot = violation.op.rfind('.');
  return fmt::format("{} ({}, {})", violation.op.substr(last_dot == std::string::npos ? 0 : last_dot + 1),
                     violation.kernel, violation.phase);
}

bool unchanged_by_plant(const Findings& findings, const ConfigurationResult& row) {
  if (row.plant.empty()) return false;
  return std::any_of(findings.configurations.begin(), findings.configurations.end(),
                     [&](const ConfigurationResult& twin) {
                       return twin.plant.empty() && twin.axes == row.axes && twin.verdict == row.verdict &&
                              outcome_of(twin) == outcome_of(row);
                     });
}

const ConfigurationResult* example_of(const Findings& findings, const Localized& localized) {
  const ConfigurationResult* any = nullptr;
  for (const std::string& id : localized.configurations) {
    const ConfigurationResult* row = find_configuration(findings, id);
    if (row == nullptr) continue;
    if (row->first_violation && (localized.op.empty() || row->first_violation->op == localized.op)) return row;
    if (any == nullptr || (!any->first_violation && row->first_violation)) any = row;
  }
  return any;
}

const Violation* violation_of(const Findings& findings, const Localized& localized) {
  const ConfigurationResult* row = example_of(findings, localized);
  return row != nullptr && row->first_violation ? &*row->first_violation : nullptr;
}

std::string replay_command(const Findings& findings, std::string_view id) {
  const std::string directory = findings.run_directory.empty() ? "RUN" : findings.run_directory;
  const ConfigurationResult* row = find_configuration(findings, id);
  if (row != nullptr && row->failures == 0)
    return fmt::format("faultline replay {} --id {}", shell_word(directory), shell_word(id));
  return "faultline replay " + shell_word(fmt::format("{}/cases/{}.yaml", directory, id));
}

std::string capsule_command(const Findings& findings, const Localized& localized) {
  const std::string directory = findings.run_directory.empty() ? "RUN" : findings.run_directory;
  return "faultline replay " + shell_word(directory + "/" + localized.capsule);
}

}  // namespace faultline

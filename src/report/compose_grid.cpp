#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "report/compose.h"
#include "report/phrases.h"
#include "report/verdict.h"

namespace faultline {
namespace {

using Rows = std::vector<const ConfigurationResult*>;

constexpr size_t kLongGrid = 40;    // rows; a longer table is grouped
constexpr size_t kMaxListed = 400;  // rows of a folded table; findings.json has them all

Tone tone_of(std::string_view verdict) {
  switch (verdict_class(verdict)) {
    case VerdictClass::kPass:
      return Tone::kGood;
    case VerdictClass::kNotRun:
      return Tone::kMuted;
    case VerdictClass::kViolation:
    case VerdictClass::kDeath:
    case VerdictClass::kUnknown:
      return Tone::kBad;
  }
  return Tone::kBad;
}

std::string value_of(const ConfigurationResult& row, const std::string& axis) {
  const auto found = row.axes.find(axis);
  return found == row.axes.end() ? "" : found->second;
}

std::vector<std::string> values_of(const Rows& rows, const std::string& axis) {
  std::vector<std::string> values;
  for (const ConfigurationResult* row : rows) {
    const std::string value = value_of(*row, axis);
    if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
  }
  return values;
}

std::vector<std::string> axes_of(const Rows& rows) {
  AxisValues all;
  for (const ConfigurationResult* row : rows) all.insert(row->axes.begin(), row->axes.end());
  std::vector<std::string> names;
  for (const auto& [axis, value] : all) names.push_back(axis);
  return names;
}

Cell code_cell(const std::string& value) {
  return {Text().code(value), Tone::kPlain};
}

// Why a row was not run is a note too: the server's rule for it and where that stands.
std::vector<std::string> notes_of(const ConfigurationResult& row) {
  std::vector<std::string> notes = row.notes;
  if (verdict_class(row.verdict) == VerdictClass::kNotRun && !row.reason.empty())
    notes.insert(notes.begin(), row.reason);
  return notes;
}

// Notes are said once, below the table: `everywhere` those of all rows, `numbered` the others.
struct SharedNotes {
  std::vector<std::string> everywhere;
  std::vector<std::string> numbered;
};

SharedNotes shared_notes(const Rows& rows) {
  SharedNotes shared;
  std::vector<std::pair<std::string, size_t>> counts;  // in the order of their first row
  for (const ConfigurationResult* row : rows)
    for (const std::string& note : notes_of(*row)) {
      const auto known =
          std::find_if(counts.begin(), counts.end(), [&](const auto& count) { return count.first == note; });
      if (known == counts.end())
        counts.emplace_back(note, 1);
      else
        ++known->second;
    }
  for (const auto& [note, count] : counts) {
    (count == rows.size() ? shared.everywhere : shared.numbered).push_back(note);
  }
  return shared;
}

Text reason_text(const ConfigurationResult& row, const SharedNotes& shared) {
  Text text;
  const bool ran = verdict_class(row.verdict) != VerdictClass::kNotRun;
  if (ran && !row.reason.empty()) {
    if (row.first_violation && !row.first_violation->op.empty()) text.code(row.first_violation->op).text(": ");
    text.text(row.reason);
  } else if (row.first_violation) {
    text.append(place_text(*row.first_violation));
  }
  // A row that ran although the target would not run it, or refuses it.
  if (ran && !row.target_status.empty() && row.target_status != "runs") {
    text.text(fmt::format("{}on the target: {}", text.empty() ? "" : "; ", row.target_status));
  }
  std::string numbers;
  for (const std::string& note : notes_of(row)) {
    const auto has = [&](const std::vector<std::string>& notes) { return std::find(notes.begin(), notes.end(), note); };
    if (has(shared.everywhere) != shared.everywhere.end()) continue;
    const auto at = has(shared.numbered);
    numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", at - shared.numbered.begin() + 1);
  }
  if (!numbers.empty()) text.text(fmt::format("{}note {}", text.empty() ? "" : "; ", numbers));
  return text;
}

// One row a configuration.
void detailed(const Rows& rows, const std::vector<std::string>& varying, Document& document) {
  const SharedNotes shared = shared_notes(rows);
  std::vector<Text> header{"id"};
  for (const std::string& axis : varying) header.push_back(Text().code(axis));
  header.emplace_back("verdict");
  header.emplace_back("reason");
  std::vector<std::vector<Cell>> cells;
  for (const ConfigurationResult* row : rows) {
    if (cells.size() == kMaxListed) break;
    std::vector<Cell> line{{row->id}};
    for (const std::string& axis : varying) line.push_back(code_cell(value_of(*row, axis)));
    const std::string runs = row->repeats > 1 ? fmt::format(" ({} of {} fail)", row->failures, row->repeats) : "";
    line.push_back({row->verdict + runs, tone_of(row->verdict)});
    line.push_back({reason_text(*row, shared)});
    cells.push_back(std::move(line));
  }
  document.table(std::move(header), std::move(cells));
  std::vector<Text> notes;
  for (size_t i = 0; i < shared.numbered.size(); ++i)
    notes.emplace_back(fmt::format("note {}: {}", i + 1, shared.numbered[i]));
  if (!notes.empty()) document.list(std::move(notes));
  if (rows.size() > kMaxListed) {
    document.paragraph(Text(fmt::format("{} more are in ", rows.size() - kMaxListed)).code("findings.json").text("."));
  }
}

void grouped(const Rows& rows, const std::vector<std::string>& varying, Document& document) {
  std::vector<std::tuple<std::string, std::string, Rows>> groups;
  for (const ConfigurationResult* row : rows) {
    const std::string outcome = outcome_of(*row);
    auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& candidate) {
      return std::get<0>(candidate) == row->verdict && std::get<1>(candidate) == outcome;
    });
    if (group == groups.end()) group = groups.insert(groups.end(), {row->verdict, outcome, {}});
    std::get<2>(*group).push_back(row);
  }
  // Failures are what the reader came for.
  std::stable_sort(groups.begin(), groups.end(), [](const auto& left, const auto& right) {
    return verdict_is_failure(std::get<0>(left)) && !verdict_is_failure(std::get<0>(right));
  });

  std::vector<Text> header{"verdict", "rows"};
  for (const std::string& axis : varying) header.push_back(Text().code(axis));
  header.emplace_back("reason");
  header.emplace_back("ids");
  std::vector<std::vector<Cell>> cells;
  for (const auto& [verdict, outcome, members] : groups) {
    std::vector<Cell> line{{verdict, tone_of(verdict)}, {fmt::format("{}", members.size())}};
    std::vector<std::string> ids;
    for (const ConfigurationResult* row : members) ids.push_back(row->id);
    for (const std::string& axis : varying) {
      const std::vector<std::string> values = values_of(members, axis);
      if (values.size() > 1 && values.size() == values_of(rows, axis).size()) {
        line.push_back({"any", Tone::kMuted});
        continue;
      }
      Text text;
      for (const std::string& value : values) text.text(text.empty() ? "" : ", ").code(value);
      line.push_back({text});
    }
    line.push_back({outcome});
    constexpr size_t kMaxIds = 6;
    line.push_back({ids_text(ids, kMaxIds)});
    cells.push_back(std::move(line));
  }
  document.table(std::move(header), std::move(cells));
  document.paragraph("A column lists the values that occur among a line's rows; \"any\" is every value of the grid.");
  Document all;
  detailed(rows, varying, all);
  document.folded(fmt::format("All {}, one a line", counted(rows.size(), "row")), std::move(all));
}

// What each row asks for and what the server's rules make of it, with the command that asks a real server for the same.
void compose_resolved(const Rows& rows, Document& document) {
  Document all;
  for (const ConfigurationResult* row : rows) {
    if (row->launch_command.empty()) continue;
    if (all.blocks.size() / 2 == kMaxListed) break;
    Text text = Text().strong(row->id).text(":");
    bool first = true;
    for (const auto& [axis, requested] : row->axes) {
      const auto found = row->resolved.find(axis);
      const std::string resolved = found == row->resolved.end() ? requested : found->second;
      text.text(first ? " " : "; ").code(axis).text(" ").code(requested);
      if (resolved == "-")
        text.text(" has no effect");
      else if (resolved != requested)
        text.text(" → ").code(resolved);
      first = false;
    }
    constexpr std::string_view kFollows[] = {"kv_format", "prefill_attention", "decode_attention"};
    for (const std::string_view key : kFollows) {
      const auto found = row->resolved.find(std::string(key));
      if (found != row->resolved.end() && found->second != "-") text.text("; ").code(key).text(" ").code(found->second);
    }
    all.paragraph(text.text("."));
    all.code(row->launch_command);
  }
  if (!all.blocks.empty())
    document.folded("Requested → resolved, and the server's command, of each configuration", std::move(all));
}

}  // namespace

void compose_grid(const Findings& findings, const std::string& plant, Document& document) {
  Rows pass;
  for (const ConfigurationResult& row : findings.configurations) {
    if (row.plant == plant) pass.push_back(&row);
  }
  std::vector<std::string> varying;
  AxisValues fixed;
  for (const std::string& axis : axes_of(pass)) {
    const std::vector<std::string> values = values_of(pass, axis);
    if (values.size() > 1) {
      varying.push_back(axis);
    } else {
      fixed[axis] = values.front();
    }
  }

  Rows shown;
  for (const ConfigurationResult* row : pass) {
    // Of a planted pass only what the plant changed is news.
    if (!unchanged_by_plant(findings, *row)) shown.push_back(row);
  }
  if (shown.empty()) {
    document.paragraph(plant.empty() ? "There are no configurations."
                                     : "The planted fault changed no configuration's verdict.");
    return;
  }
  if (shown.size() > kLongGrid) {
    grouped(shown, varying, document);
  } else {
    detailed(shown, varying, document);
  }
  if (shown.size() < pass.size()) {
    document.paragraph(fmt::format("The other {} of this pass came out as they do without the plant.",
                                   counted(pass.size() - shown.size(), "row")));
  }
  if (plant.empty() && !fixed.empty())
    document.paragraph(Text("The same in every row: ").append(settings_text(fixed)).text("."));
  if (plant.empty())
    for (const std::string& note : shared_notes(shown).everywhere) document.paragraph("Of every row: " + note + ".");
  if (plant.empty()) compose_resolved(shown, document);
}

}  // namespace faultline

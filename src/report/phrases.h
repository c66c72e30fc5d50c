// How a report words its facts, in one place, so that the terminal, Markdown, HTML and JUnit say the same.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/document.h"
#include "report/findings.h"

namespace faultline {

// One line without markup, for terminals and attributes. Control characters are replaced.
std::string plain(const Text& text);

// `a=1`, `b=2`.
Text settings_text(const AxisValues& axes, std::string_view separator = ", ");
// "c001, c002 and c005–c009"; at most `limit` pieces, then "and 12 more".
std::string ids_text(const std::vector<std::string>& ids, size_t limit = 12);
std::string pairs_text(const std::vector<std::pair<std::string, std::string>>& pairs, size_t limit = 8);
// "4.0 %", "29 %".
std::string percent(double fraction);
// "3 of 29 runs fail, a rate between 3.0 % and 24 %"; "" for a single run.
std::string runs_text(const RunCount& count);
// "1 configuration", "3 configurations".
std::string counted(size_t count, std::string_view singular);

// What a kernel is. An own kernel is never called by a vendor's name alone.
Text kernel_text(std::string_view kernel, std::string_view provenance, std::string_view follows);
// What is convicted, in a sentence without its full stop. For an own kernel it says so.
Text culprit_text(const Localized& localized);
// "layout at layers.0.self_attn.attention, layer 0, decode step 0, rank 0: kv_cache[12, 540] is nan (bits 0x7f)".
Text place_text(const Violation& violation);
// "yes: every input of the op kept its contract", …
Text inputs_text(const Violation& violation);
// What the dump says of the kernel that faulted: exception, kernel, source line, block and thread, and the file.
Text core_text(const CoreDump& core);

// The passes of a run, the unplanted ("") first, then the plants in order. Empty without configurations.
std::vector<std::string> plants_of(const Findings& findings);
const ConfigurationResult* find_configuration(const Findings& findings, std::string_view id);
// What became of a configuration, coordinates and layer aside: equal for rows that fail, or do not, in the same way.
std::string outcome_of(const ConfigurationResult& row);
// True when the row of a planted pass came out as its twin without the plant did.
bool unchanged_by_plant(const Findings& findings, const ConfigurationResult& row);
// The violation that a localized signature is about: of its first configuration that has one of that op.
const Violation* violation_of(const Findings& findings, const Localized& localized);
const ConfigurationResult* example_of(const Findings& findings, const Localized& localized);

// By the case file of a row that failed, otherwise by its id.
std::string replay_command(const Findings& findings, std::string_view id);

// Of a signature that has a capsule.
std::string capsule_command(const Findings& findings, const Localized& localized);

}  // namespace faultline

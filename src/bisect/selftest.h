// `faultline selftest`: the catalogue of planted faults (bisect/plant.h) against a model and a device. Each fault is
// planted in the smallest configuration that shows it, found or not found by the same driver as everything else, and
// what was convicted is held against what should have been. How far the tool can be trusted here, in one table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"

namespace faultline {

inline constexpr std::string_view kSelftestModel = "synth:tiny";

struct SelftestOptions {
  std::string model{kSelftestModel};
  std::string device = "auto";
  std::string only;    // glob on names; empty: all
  bool quick = false;  // one fault of each class and culprit
  int jobs = 0;
  bool quiet = false;
  std::string out;  // where the run directories are kept; empty: they are not
};

// How a fault's culprit was named.
enum class Naming : uint8_t {
  kRight,  // the right kind of culprit, in the right op
  kWrong,
  kNone,  // not localized
};
std::string_view naming_name(Naming naming);  // "right", "wrong", "none"

struct SelftestEntry {
  std::string name;                   // the plant
  std::string fault_class;            // "RACE"
  std::string expected;               // "ordering layers.*.mlp*.gate_up_proj"; "" where nothing is to be convicted
  std::vector<std::string> verdicts;  // any of them
  std::string checks;                 // the level it ran under
  bool triggered = false;             // false: the fault was never met, so that nothing is known
  bool found = false;                 // it changed the verdict to an expected one
  std::string verdict;
  std::string named;  // "kernel layers.0.self_attn.attention"; "" when nothing was
  Naming localized = Naming::kNone;
  std::string explanation;  // why it was not localized; empty otherwise
  int64_t runs = 0;         // of workers: screening and conviction
  double seconds = 0;       // of these runs, one after the other
};

// Holds what was convicted under an entry's plant against what should have been. `culprit` and `op` (a glob): of the
// plant; no failure is expected where `entry.expected` is empty.
struct Findings;
void judge_naming(const Findings& findings, std::string_view culprit, std::string_view op, SelftestEntry& entry);

// Rows without a fault: everything convicted there is a false alarm.
struct CleanRows {
  int64_t rows = 0;
  std::vector<std::string> alarms;  // "checks full, c004: kernel layers.0.…"
};

struct SelftestReport {
  std::string model;
  std::string device;
  std::vector<SelftestEntry> entries;
  std::vector<std::string> left_out;  // faults that this model or device cannot have: "illegal_access: a GPU"
  CleanRows clean;
  double seconds = 0;  // of the whole, as the clock on the wall has it
  bool interrupted = false;

  int64_t found() const;
  int64_t named(Naming naming) const;
  // Every fault was met and found, none was named wrong, and nothing was convicted without one.
  bool passed() const;
};

// Bad input: a glob that matches nothing, a model or device that cannot be used.
Result<SelftestReport> run_selftest(const SelftestOptions& options);

// One row a fault, totals below. For a terminal, and as Markdown (reports/accuracy.md).
std::string selftest_table(const SelftestReport& report);
std::string selftest_markdown(const SelftestReport& report);
// DESIGN, "findings.json": entries[] and summary.
std::string selftest_json(const SelftestReport& report);

}  // namespace faultline

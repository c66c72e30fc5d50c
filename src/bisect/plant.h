// Planted faults: `--plant NAME[@selector]` breaks one thing in a named way, to show that the tool finds it; `A+B`
// breaks two things at once.
//
// Each stands for a way in which real systems break. A fault is applied where the kernel is called, so that a replay of
// the op on its recorded inputs meets it as well and the reference does not. It depends on the pass, the op and the
// call alone, never on how often it was asked. docs/planted-faults.md lists them; the selector is in
// bisect/plant_selector.h.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "engine/config.h"
#include "engine/hooks.h"
#include "model/config.h"

namespace faultline {

// What is known of a planted fault, and what should be found.
struct PlantInfo {
  std::string name;                   // "late_tile"
  std::string fault_class;            // of the public faults' table: "RACE"
  std::string summary;                // one sentence
  std::string target;                 // where it strikes unless the selector says otherwise
  std::string needs;                  // what a configuration must have for it to show; empty: nothing
  std::string stage;                  // the configuration of the self-test that shows it (bisect/selftest.h)
  std::string culprit;                // kernel, weights, metadata, ordering
  std::vector<std::string> verdicts;  // the first is the one that `seen_from` gives
  std::string seen_at;                // glob on the name of the op where the first violation is, at the default target
  std::string named_at;               // glob on the name of the op that is to be convicted
  CheckLevel seen_from = CheckLevel::kFull;  // the cheapest level that sees it
  bool gpu_only = false;                     // nothing on a CPU is like it: the kernel is left alone there
  std::vector<std::string> reports;          // public reports of such a fault, "repository#number"
  std::vector<std::string> keys;             // of a selector
};

// Sorted by name.
const std::vector<PlantInfo>& plant_catalogue();
std::vector<std::string> plant_names();
// The catalogue as a Markdown table: what docs/planted-faults.md holds.
std::string plant_table();
// By what stands before the '@'; null when there is no such plant.
const PlantInfo* find_plant(std::string_view spec);

class PlantedFault : public FaultInjector {
 public:
  // How often something was broken. 0 after a run: the selector matched nothing that this configuration runs.
  virtual int64_t fired() const = 0;
  virtual const PlantInfo& info() const = 0;
  // The whole selector, defaults filled in.
  virtual std::string where() const = 0;
};

// Bad input: an unknown name (with the nearest), a malformed selector, a layer that the model does not have.
Result<std::unique_ptr<PlantedFault>> make_plant(std::string_view spec, const ModelConfig& config);
// The same without a model: name and selector only.
Status check_plant(std::string_view spec);
// Bad input where the fault cannot be on the device that the run is for.
Status check_plant_device(std::string_view spec, bool cuda);

}  // namespace faultline

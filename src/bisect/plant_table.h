// The catalogue of planted faults as a table: one entry a fault, by theme in plant_table_*.cpp. What an entry says is
// in bisect/plant.h (PlantInfo); docs/planted-faults.md is written from it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bisect/plant_fault.h"

namespace faultline::plants {

enum class Layer : uint8_t { kNone, kFirst, kFirstMoe, kFirstIndexer };

// Where a plant strikes unless told otherwise: one op of one layer, so that a pass meets it once.
struct Target {
  Layer layer = Layer::kFirst;
  std::string_view op = {};      // within the layer
  std::string_view moe_op = {};  // the same in an MoE layer, where that is another one
  std::optional<PassPhase> phase = {};
  std::optional<CountRange> tokens = {};
  std::optional<CountRange> step = {};
  std::optional<bool> graph = {};
};

// What a selector may say: everything; all but `row`; only which weights.
enum class Keys : uint8_t { kAll, kNoRow, kWeights };

// Made by the functions below, then by what differs from them: `kernel_fault(…).needing("an MoE layer")`.
struct Entry {
  PlantInfo info;  // target and keys are filled in from what follows
  Target target;
  Factory make = nullptr;
  Keys keys = Keys::kAll;

  Entry needing(std::string what) &&;
  Entry on(std::string stage) &&;              // PlantInfo::stage
  Entry seen_at(std::string glob) &&;          // where it shows and is named, if that is not the target
  Entry named_at(std::string glob) &&;         // where it is named, if that is not where it shows
  Entry blamed_on(std::string culprit) &&;     // not on the kernel
  Entry also_seen_as(std::string verdict) &&;  // another verdict that it may come to
  Entry keyed(Keys what) &&;
  Entry for_gpus_only() &&;
};

// Name, class (of the table of public faults) and one sentence.
struct Words {
  std::string name;
  std::string fault_class;
  std::string summary;
};

// A fault whose culprit is the kernel of the op that it strikes. `level`: the cheapest that sees it.
Entry kernel_fault(Words words, Target target, Factory make, std::string verdict, CheckLevel level,
                   std::vector<std::string> reports);

std::vector<Entry> index_entries();    // selections, indices, metadata
std::vector<Entry> format_entries();   // scales, codes, caches
std::vector<Entry> value_entries();    // values, structure, stores, order
std::vector<Entry> process_entries();  // launches, the device, the process

}  // namespace faultline::plants

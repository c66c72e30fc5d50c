#include "bisect/plant_table.h"

#include <fmt/format.h>

namespace faultline::plants {
namespace {

// "layers.*.mlp.router" of a target: the op in whatever layer it is.
std::string op_of_any_layer(const Target& target) {
  if (target.layer == Layer::kNone) return std::string(target.op);
  // "mlp.down_proj" and "mlp.experts.down_proj" in one pattern.
  if (!target.moe_op.empty()) return fmt::format("layers.*.mlp*{}", target.op.substr(target.op.rfind('.')));
  return fmt::format("layers.*.{}", target.op);
}

}  // namespace

Entry Entry::needing(std::string what) && {
  info.needs = std::move(what);
  return std::move(*this);
}

Entry Entry::on(std::string stage) && {
  info.stage = std::move(stage);
  return std::move(*this);
}

Entry Entry::seen_at(std::string glob) && {
  info.seen_at = info.named_at = std::move(glob);
  return std::move(*this);
}

Entry Entry::named_at(std::string glob) && {
  info.named_at = std::move(glob);
  return std::move(*this);
}

Entry Entry::blamed_on(std::string culprit) && {
  info.culprit = std::move(culprit);
  return std::move(*this);
}

Entry Entry::also_seen_as(std::string verdict) && {
  info.verdicts.push_back(std::move(verdict));
  return std::move(*this);
}

Entry Entry::keyed(Keys what) && {
  keys = what;
  return std::move(*this);
}

Entry Entry::for_gpus_only() && {
  info.gpu_only = true;
  info.needs = "a GPU (--device cuda)";
  return std::move(*this);
}

Entry kernel_fault(Words words, Target target, Factory make, std::string verdict, CheckLevel level,
                   std::vector<std::string> reports) {
  Entry entry;
  entry.info.name = std::move(words.name);
  entry.info.fault_class = std::move(words.fault_class);
  entry.info.summary = std::move(words.summary);
  entry.info.culprit = "kernel";
  entry.info.verdicts = {std::move(verdict)};
  entry.info.seen_from = level;
  entry.info.reports = std::move(reports);
  entry.info.seen_at = entry.info.named_at = op_of_any_layer(target);
  entry.target = target;
  entry.make = make;
  return entry;
}

}  // namespace faultline::plants

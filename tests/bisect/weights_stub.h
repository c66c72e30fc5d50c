// A process that maps weights of a GPU's memory as a worker does, proves them, runs one kernel on them and ends. For
// tests and benchmarks of what a worker can do to the weights, and of how long it takes to have them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/json.h"
#include "base/subprocess.h"
#include "engine/device_weights.h"

namespace faultline {

inline constexpr int kStubTaskFd = 3;   // sealed text: {"checkpoint", "descriptors", "slabs", "slab_count", "action"}
inline constexpr int kStubFirstFd = 4;  // the checkpoint's descriptors, then the slabs'

struct StubEnd {
  ProcessEnd end;
  // What it printed: monotonic seconds "started", "context", "attached", "proven", "kernel"; "result" is the name of
  // the kernel's error, "error" a sentence. Null when it printed nothing.
  nlohmann::json said;
};

// `action`: "read" or "write", done by one thread to the first word of the slabs.
inline Result<StubEnd> run_weights_stub(const std::string& program, const Checkpoint& checkpoint,
                                        const WeightsManifest& manifest, const std::vector<UniqueFd>& slabs,
                                        const std::string& action) {
  const nlohmann::json task = {{"checkpoint", checkpoint.manifest()},
                               {"descriptors", checkpoint.descriptors().size()},
                               {"slabs", to_text(manifest)},
                               {"slab_count", slabs.size()},
                               {"action", action}};
  FAULTLINE_TRY(const UniqueFd task_fd, make_sealed_text("stub-task", dump_json(task)));
  SpawnOptions spawn;
  spawn.program = program;
  spawn.arguments = {"weights_stub"};
  spawn.fds = {{task_fd.get(), kStubTaskFd}};
  int to = kStubFirstFd;
  for (const int fd : checkpoint.descriptors()) spawn.fds.push_back({fd, to++});
  for (const UniqueFd& fd : slabs) spawn.fds.push_back({fd.get(), to++});
  auto child = Subprocess::spawn(spawn);
  if (!child) return tl::make_unexpected(child.error().error);
  StubEnd result;
  result.end = child->reap();
  if (auto said = parse_json(child->output(), "the stub's output"); said) result.said = std::move(*said);
  return result;
}

}  // namespace faultline

// `faultline preflight --server-args "…"`: one command line of a server, answered.
#pragma once

#include <string>
#include <vector>

#include "grid/neighbourhood.h"
#include "grid/resolve.h"
#include "grid/server_args.h"

namespace faultline {

struct ServerArgsQuestion {
  std::string text;        // the line
  std::string profile;     // empty: the default one
  std::string arch;        // empty: any
  int64_t gpus = 0;        // of the target, where the line has no --tp; 0: as usual
  int64_t gpu_memory = 0;  // bytes of one; 0: as usual for the architecture
};

// One setting that the line asks for, or that the server chooses, and what it comes to.
struct SettingAnswer {
  std::string axis;
  std::string requested;  // "auto" where the line is silent
  std::string resolved;   // "-": no effect
  std::string why;        // who decided; empty: as asked
  std::string source;
};

struct ServerArgsAnswer {
  ServerLine line;
  const Profile* profile = nullptr;
  Target target;
  ResolvedConfiguration configuration;  // of the server, whatever this build can run
  TargetStatus status = TargetStatus::kRuns;
  std::string reason;
  std::string source;
  std::vector<SettingAnswer> settings;
  std::vector<std::string> inert;  // settings that the line gives and that have no effect
  std::string command;             // the same line, without what is the default anyway
  struct Suggestion {
    AxisValues changes;
    ResolvedConfiguration configuration;
    std::string command;
  };
  std::vector<Suggestion> suggestions;                              // the nearest that run
  std::vector<std::pair<std::string, std::string>> other_profiles;  // profile, what the line comes to there
};

// Bad input: as parse_server_args() says, or an unknown profile or architecture.
Result<ServerArgsAnswer> answer_server_args(const ServerArgsQuestion& question);

// For people, and for programs: `rows` as in preflight_json(), with one row, and beside it `line`, `settings`, `inert`,
// `unmodelled`, `refused`, `ignored`, `suggestions` and `other_profiles`.
std::string answer_text(const ServerArgsAnswer& answer);
std::string answer_json(const ServerArgsAnswer& answer, const std::string& text);

// 0: the line can run; 1: it cannot, or conflicts.
int answer_exit_code(const ServerArgsAnswer& answer);

}  // namespace faultline

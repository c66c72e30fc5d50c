// Where a run writes: reports/<experiment>-<time>/, with run.json, journal.jsonl, the reports, cases/, capsules/,
// cores/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace faultline {

class RunDirectory {
 public:
  // Makes `parent` if need be, and in it a new folder of the experiment's name and the time; two runs of the same
  // second get "-2", "-3". Characters that a shell or a file system minds become '_'. Bad input on a full or read-only
  // disk.
  static Result<RunDirectory> create(const std::string& parent, std::string_view experiment);
  // One that exists (--resume, report, replay). Bad input when it holds no journal.
  static Result<RunDirectory> open(const std::string& path);

  const std::string& path() const { return path_; }
  std::string id() const;  // the folder's own name
  std::string journal_path() const { return file("journal.jsonl"); }
  std::string file(std::string_view name) const;
  // Makes it when it is not there: "cases", "capsules", "cores".
  Result<std::string> subfolder(std::string_view name) const;

  // run.json: environment, versions, seeds, arguments. Replaced as a whole.
  Status write_run_json(const nlohmann::json& run) const;
  Result<nlohmann::json> read_run_json() const;

 private:
  explicit RunDirectory(std::string path) : path_(std::move(path)) {}
  std::string path_;  // without a slash at its end
};

}  // namespace faultline

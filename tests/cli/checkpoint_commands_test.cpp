// `faultline inspect` and `faultline synth` as commands: what they write and how they exit.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "cli/inspect.h"
#include "cli/synth.h"
#include "testing.h"

using namespace faultline;
namespace fs = std::filesystem;

namespace {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "faultline-cli-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
};

// Sends a standard stream into a file while it lives.
class Captured {
 public:
  Captured(FILE* stream, std::string path) : stream_(stream), path_(std::move(path)) {
    std::fflush(stream_);
    saved_ = ::dup(::fileno(stream_));
    FILE* file = std::fopen(path_.c_str(), "w");
    ::dup2(::fileno(file), ::fileno(stream_));
    std::fclose(file);
  }
  ~Captured() { restore(); }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  std::string text() {
    restore();
    return read_file(path_).value();
  }

 private:
  void restore() {
    if (saved_ < 0) return;
    std::fflush(stream_);
    ::dup2(saved_, ::fileno(stream_));
    ::close(saved_);
    saved_ = -1;
  }
  FILE* stream_;
  std::string path_;
  int saved_ = -1;
};

struct Ran {
  int exit_code = -1;
  std::string out;
  std::string err;
};

Ran run(const TempFolder& folder, std::vector<std::string> arguments) {
  CLI::App app;
  Ran ran;
  add_inspect_command(app, ran.exit_code);
  add_synth_command(app, ran.exit_code);
  Captured out(stdout, folder / "stdout");
  Captured err(stderr, folder / "stderr");
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  app.parse(arguments);
  ran.out = out.text();
  ran.err = err.text();
  return ran;
}

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("synth writes a checkpoint that inspect finds sound") {
  const TempFolder folder;
  const Ran written = run(folder, {"synth", "tiny", "--out", folder / "m", "--set", "seed=3", "--set",
                                   "num_hidden_layers=2", "--shards", "2"});
  CHECK(written.exit_code == 0);
  CHECK(mentions(written.out, "in 2 shard(s)"));
  CHECK(mentions(written.out, "synth:tiny?num_hidden_layers=2&seed=3"));
  const Ran inspected = run(folder, {"inspect", folder / "m"});
  CHECK(inspected.exit_code == 0);
  CHECK(mentions(inspected.out, "mlp.experts.*.gate_proj           NVFP4"));
  CHECK(mentions(inspected.out, "model-00002-of-00002.safetensors"));
  CHECK(mentions(inspected.out, "result    sound\n"));
  CHECK(inspected.err.empty());
}

TEST_CASE("inspect --json holds modules, shards and faults") {
  const TempFolder folder;
  const Ran to_stdout = run(folder, {"inspect", "synth:tiny", "--json", "-"});
  CHECK(to_stdout.exit_code == 0);
  const auto root = parse_json(to_stdout.out, "stdout");
  REQUIRE(root);
  CHECK((*root)["schema"] == 1);
  CHECK((*root)["result"] == "sound");
  CHECK((*root)["tensors"] == 401);
  CHECK((*root)["modules"].size() == 28);
  CHECK((*root)["shards"].size() == 1);
  CHECK((*root)["faults"].empty());
  CHECK((*root)["quantization"]["group_size"] == 16);

  const Ran to_file = run(folder, {"inspect", "synth:tiny", "--json", folder / "i.json"});
  CHECK(mentions(to_file.out, "result    sound"));
  CHECK(parse_json(read_file(folder / "i.json").value(), "file"));
  CHECK(run(folder, {"inspect", "synth:tiny", "--json", folder / "no/such/i.json"}).exit_code == 2);
}

TEST_CASE("inspect exits 1 for what is faulty and 2 for what is unreadable") {
  const TempFolder folder;
  REQUIRE(run(folder, {"synth", "tiny", "--out", folder / "m"}).exit_code == 0);
  const std::string shard = folder / "m/model-00001-of-00001.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 1);
  const Ran faulty = run(folder, {"inspect", folder / "m"});
  CHECK(faulty.exit_code == 1);
  CHECK(mentions(faulty.out, "fault     file: "));
  CHECK(mentions(faulty.out, "result    readable, but faulty: 1 fault(s)"));

  fs::remove(shard);
  const Ran unreadable = run(folder, {"inspect", folder / "m"});
  CHECK(unreadable.exit_code == 2);
  CHECK(mentions(unreadable.err, "the shard is missing"));

  const Ran nothing = run(folder, {"inspect", folder / "none"});
  CHECK(nothing.exit_code == 2);
  CHECK(nothing.out.empty());
  CHECK(mentions(nothing.err, "no such folder"));
}

TEST_CASE("synth refuses bad input with exit code 2 and leaves nothing") {
  const TempFolder folder;
  const std::string out = folder / "m";
  CHECK(mentions(run(folder, {"synth", "tinny", "--out", out}).err, "did you mean 'tiny'"));
  CHECK(run(folder, {"synth", "tiny", "--out", out, "--set", "seed"}).exit_code == 2);
  CHECK(run(folder, {"synth", "tiny", "--out", out, "--set", "sead=1"}).exit_code == 2);
  CHECK(run(folder, {"synth", "synth:tiny?seed=2", "--out", out, "--set", "seed=1"}).exit_code == 2);
  CHECK_FALSE(fs::exists(out));
  CHECK(run(folder, {"synth", "synth:tiny?seed=2", "--out", out}).exit_code == 0);
  CHECK(run(folder, {"synth", "tiny", "--out", out}).exit_code == 2);
}

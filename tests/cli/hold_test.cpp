// `faultline hold`, over memory of the host's, which needs no GPU.
#include <csignal>
#include <filesystem>

#include "cli/program.h"
#include "device/device.h"
#include "testing.h"

using namespace faultline;

namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A folder of keepers of this test's own; they are released at the end.
struct Holder {
  TempDir folder;
  std::vector<std::string> environment{"XDG_RUNTIME_DIR=" + folder.path()};
  Outcome run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "hold");
    return faultline::faultline(arguments, environment);
  }
  nlohmann::json list() const {
    const Outcome outcome = run({"--list", "--json", "-"});
    CHECK(outcome.code == 0);
    return nlohmann::json::parse(outcome.out);
  }
  ~Holder() { run({"--release", "all"}); }
};

}  // namespace

TEST_CASE("hold keeps a model, lists it, and gives it back") {
  const Holder holder;
  const Outcome held = holder.run({"synth:tiny", "--device", "memory"});
  INFO(held.err);
  REQUIRE(held.code == 0);
  CHECK(contains(held.out, "held by process"));
  const Outcome again = holder.run({"synth:tiny", "--device", "memory"});
  CHECK(again.code == 0);
  CHECK(contains(again.out, "already held"));
  const nlohmann::json all = holder.list();
  REQUIRE(all.size() == 1);
  CHECK(all[0]["model"] == "synth:tiny");
  CHECK(all[0]["device"] == "memory");
  CHECK(all[0]["bytes"] > 0);
  CHECK(all[0]["pid"] > 0);
  CHECK(all[0]["checkpoint"] == "unchanged");
  const Outcome text = holder.run({"--list"});
  CHECK(contains(text.out, "synth:tiny: "));
  CHECK(contains(text.out, "checkpoint unchanged"));
  const Outcome released = holder.run({"--release", "synth:tiny"});
  CHECK(released.code == 0);
  CHECK(contains(released.out, "released synth:tiny"));
  CHECK(holder.list().empty());
  CHECK(contains(holder.run({"--list"}).out, "nothing is held"));
}

TEST_CASE("hold sees that a checkpoint has changed, says what, and loads it anew") {
  const Holder holder;
  const std::string model = holder.folder.file("model");
  REQUIRE(faultline::faultline({"synth", "tiny", "--out", model}).code == 0);
  REQUIRE(holder.run({model, "--device", "memory"}).code == 0);
  const nlohmann::json before = holder.list();
  CHECK(before.at(0)["checkpoint"] == "unchanged");
  for (const std::string& name : files_in(model))
    if (name.ends_with(".safetensors"))
      std::filesystem::last_write_time(model + "/" + name, std::filesystem::file_time_type::clock::now());
  CHECK(contains(holder.list().at(0)["checkpoint"].get<std::string>(), "changed: "));
  const Outcome anew = holder.run({model, "--device", "memory"});
  CHECK(anew.code == 0);
  CHECK(contains(anew.err, "has another time"));
  const nlohmann::json after = holder.list();
  REQUIRE(after.size() == 1);
  CHECK(after[0]["pid"] != before[0]["pid"]);
  CHECK(after[0]["checkpoint"] == "unchanged");
  // A folder that is gone can still be released by its name.
  std::filesystem::remove_all(model);
  CHECK(contains(holder.list().at(0)["checkpoint"].get<std::string>(), "gone: "));
  CHECK(holder.run({"--release", after[0]["model"].get<std::string>()}).code == 0);
  CHECK(holder.list().empty());
}

TEST_CASE("hold cleans up after a keeper that was killed") {
  const Holder holder;
  REQUIRE(holder.run({"synth:tiny", "--device", "memory"}).code == 0);
  const auto pid = holder.list().at(0)["pid"].get<pid_t>();
  REQUIRE(::kill(pid, SIGKILL) == 0);
  CHECK(holder.list().empty());
  REQUIRE(holder.run({"synth:tiny", "--device", "memory"}).code == 0);
  CHECK(holder.list().at(0)["pid"] != pid);
}

TEST_CASE("hold: bad input is said, with exit code 2; no GPU with 5") {
  const Holder holder;
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {"/no/such/folder", "--device", "memory"},
                                             {"synth:nothing", "--device", "memory"},
                                             {"synth:tiny", "--device", "gpu"},
                                             {"synth:tiny", "--list"},
                                             {"--list", "--release"},
                                             {"synth:tiny", "--json", "-"},
                                             {"--release", "synth:tiny"}}) {
    const Outcome outcome = holder.run(arguments);
    CHECK(outcome.code == 2);
    CHECK_FALSE(outcome.err.empty());
  }
  CHECK(holder.run({"--release"}).code == 0);  // nothing is held, and nothing is to be done
  if (!cuda_usable(0)) {
    const Outcome outcome = holder.run({"synth:tiny"});
    CHECK(outcome.code == 5);
    CHECK(contains(outcome.err, "faultline: "));
  }
}

TEST_CASE("hold --release without a name is refused when several models are held") {
  const Holder holder;
  REQUIRE(holder.run({"synth:tiny", "--device", "memory"}).code == 0);
  REQUIRE(holder.run({"synth:tiny?seed=2", "--device", "memory"}).code == 0);
  CHECK(holder.run({"--release"}).code == 2);
  CHECK(holder.list().size() == 2);
  CHECK(holder.run({"--release", "all"}).code == 0);
  CHECK(holder.list().empty());
}

// What a shell, a limit or a typo may do to a run.
#include "program.h"
#include "testing.h"

using namespace faultline;

namespace {

std::string grid() {
  return std::string(
             "name: robust\n"
             "model: synth:tiny\n"
             "axes:\n"
             "  attention_backend: [nsa]\n"
             "  kv_cache_dtype: [bf16, fp8_e4m3]\n") +
         kQuickProbes;
}

}  // namespace

TEST_CASE("memory that runs out anywhere in a worker is the verdict oom and never ends the run") {
  for (const char* limit : {"1", "2"}) {
    const TempDir folder;
    const Bisection run = bisect(folder, grid(), {"--memory-limit", limit});
    INFO(run.outcome.err);
    CHECK((run.outcome.code == 1 || run.outcome.code == 4));
    for (const std::string& verdict : run.verdicts()) CHECK(verdict == "oom");
  }
}

TEST_CASE("without stdin, stdout and stderr a run's journal stays sound") {
  const TempDir folder;
  const std::string experiment = folder.write("robust.yaml", grid());
  const std::string parent = folder.file("reports");
  const Outcome outcome = run_program("sh", {"-c", std::string("exec " FAULTLINE_PROGRAM " bisect ") + experiment +
                                                       " --out " + parent + " <&- >&- 2>&-"});
  CHECK(outcome.signal == 0);
  CHECK(faultline::faultline({"report", run_directory_in(parent)}).code == 0);
}

TEST_CASE("--json where no file can be made is refused before anything runs") {
  const TempDir folder;
  const std::string experiment = folder.write("robust.yaml", grid());
  for (const std::string& path : {folder.file("none/x.json"), folder.path()}) {
    const Outcome outcome =
        faultline::faultline({"bisect", experiment, "--out", folder.file("reports"), "--json", path});
    CHECK(outcome.code == 2);
    CHECK(outcome.err.find("--json") != std::string::npos);
    CHECK_FALSE(exists(folder.file("reports")));
  }
}

TEST_CASE("an experiment edited under a run is not reported as that run's") {
  const TempDir folder;
  const Bisection run = bisect(folder, grid());
  folder.write("reports/" + files_in(folder.file("reports")).front() + "/experiment.yaml", grid() + "seed: 8\n");
  const Outcome outcome = faultline::faultline({"report", run.directory});
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("experiment.yaml") != std::string::npos);
}

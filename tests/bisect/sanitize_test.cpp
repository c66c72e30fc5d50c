// The logs are compute-sanitizer 2025.3's on an H200, shortened.
#include "bisect/sanitize.h"

#include <cstdlib>

#include "testing.h"

using namespace faultline;

namespace {

const char* const kMemcheck = R"(========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at probe::RmsNormBody<float, (bool)0>::operator ()() const+0x310 in /x/y/kernels/faults.cu:20
=========     by thread (6,0,0) in block (1,0,0)
=========     Access to 0x83b31c801000 is out of bounds
=========     and is 4,397,807,439,361 bytes after the nearest allocation at 0x7fb32ac00000 of size 512 bytes
=========         Device Frame: void probe::run_body<probe::RmsNormBody<float, (bool)0>>(T1)+0x10 in faults.cu:28
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x39fb94] in libcuda.so.1
=========         Host Frame:  [0x103e3] in faults
=========
========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure" on CUDA API call to cudaStreamSynchronize.
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame:  [0x4cb045] in libcuda.so.1
=========
========= Target application returned an error
========= ERROR SUMMARY: 4 errors
)";

const char* const kAssert = R"(========= COMPUTE-SANITIZER
========= Warp assert
=========     at __assertfail+0x19a0
=========     by thread (6,0,0) in block (1,0,0)
=========         Device Frame: __assertfail+0x1930
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= ERROR SUMMARY: 1 error
)";

const char* const kInitcheck = R"(========= COMPUTE-SANITIZER
========= Uninitialized __global__ memory read of size 4 bytes
=========     at probe::planted_uninitialised(float *)+0x50 in faults.cu:37
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7ff326801100
=========     Saved host backtrace up to driver entry point at kernel launch time
=========
========= Uninitialized __global__ memory read of size 4 bytes
=========     at probe::planted_uninitialised(float *)+0x50 in faults.cu:37
=========     by thread (1,0,0) in block (0,0,0)
=========     Address 0x7ff326801104
=========
========= ERROR SUMMARY: 64 errors
)";

const char* const kRacecheck = R"(========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at probe::planted_race(float *)+0xc0 in faults.cu:34
=========     and Read access at probe::planted_race(float *)+0xd0 in faults.cu:35 [256 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
)";

const char* const kHazard = R"(========= COMPUTE-SANITIZER
========= Error: Potential RAW hazard detected at __shared__ 0x47c in block (2,0,0) :
=========     Write Thread (31,0,0) at probe::planted_race(float *)+0xc0 in faults.cu:34
=========     Read Thread (32,0,0) at probe::planted_race(float *)+0xd0 in faults.cu:35
=========     Current Value : 0
=========
========= RACECHECK SUMMARY: 3 hazards displayed (257 errors, 0 warnings)
)";

const char* const kClean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n";

}  // namespace

TEST_CASE("memcheck's first error gives access, kernel, line, block, thread and address") {
  const SanitizerReport report = parse_sanitizer_log(kMemcheck);
  REQUIRE(report.first);
  const SanitizerError& error = *report.first;
  CHECK(error.what == "Invalid __global__ write of size 4 bytes");
  CHECK(error.kernel == "probe::run_body<probe::RmsNormBody<float, (bool)0>>");
  CHECK(error.source == "kernels/faults.cu");
  CHECK(error.line == 20);
  CHECK(error.thread == "(6,0,0)");
  CHECK(error.block == "(1,0,0)");
  CHECK(error.address == "0x83b31c801000");
  CHECK(error.size == 4);
  CHECK(error.detail.find("out of bounds and is 4,397,807,439,361 bytes after") != std::string::npos);
  CHECK(report.errors == 4);
  CHECK(report.complete);
  CHECK(verdict_with_sanitizer("launch-failure", "memcheck", report) == "illegal-access");
  CHECK(verdict_with_sanitizer("pass", "memcheck", report) == "illegal-access");
  CHECK(verdict_with_sanitizer("nonfinite", "memcheck", report) == "nonfinite");
}

TEST_CASE("assertions, uninitialised reads and races are read too") {
  const SanitizerReport assertion = parse_sanitizer_log(kAssert);
  REQUIRE(assertion.first);
  CHECK(assertion.first->what == "Warp assert");
  CHECK(assertion.first->thread == "(6,0,0)");
  CHECK(verdict_with_sanitizer("launch-failure", "memcheck", assertion) == "device-assert");

  const SanitizerReport uninitialised = parse_sanitizer_log(kInitcheck);
  REQUIRE(uninitialised.first);
  CHECK(uninitialised.first->kernel == "probe::planted_uninitialised");
  CHECK(uninitialised.first->line == 37);
  CHECK(uninitialised.first->address == "0x7ff326801100");
  CHECK(uninitialised.errors == 64);
  CHECK(verdict_with_sanitizer("pass", "initcheck", uninitialised) == "unwritten");

  const SanitizerReport race = parse_sanitizer_log(kRacecheck);
  REQUIRE(race.first);
  CHECK(race.first->kernel == "probe::planted_race");
  CHECK(race.first->line == 34);
  CHECK(race.first->what == "Error: Race reported between Write access");
  CHECK(race.first->detail.find("Read access") != std::string::npos);
  CHECK(verdict_with_sanitizer("pass", "racecheck", race) == "pass");

  const SanitizerReport hazard = parse_sanitizer_log(kHazard);
  REQUIRE(hazard.first);
  CHECK(hazard.first->kernel == "probe::planted_race");
  CHECK(hazard.first->thread == "(31,0,0)");
  CHECK(hazard.first->block == "(2,0,0)");
}

TEST_CASE("a clean log and a cut one are told apart") {
  const SanitizerReport clean = parse_sanitizer_log(kClean);
  CHECK_FALSE(clean.first);
  CHECK(clean.complete);
  CHECK(sanitizer_sentence("memcheck", clean) == "memcheck: no errors");
  const SanitizerReport cut = parse_sanitizer_log("========= COMPUTE-SANITIZER\n");
  CHECK_FALSE(cut.complete);
  CHECK(sanitizer_sentence("memcheck", cut).find("without a summary") != std::string::npos);
  CHECK(to_json("memcheck", clean).at("complete") == true);
  CHECK(to_json("memcheck", parse_sanitizer_log(kMemcheck)).at("first").at("line") == 20);
}

TEST_CASE("no log makes the parser stumble") {
  uint64_t state = 11;
  const auto random = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  };
  int64_t found = 0;
  for (const std::string text : {kMemcheck, kAssert, kInitcheck, kRacecheck, kHazard}) {
    for (size_t cut = 0; cut <= text.size(); cut += 5) {
      std::string broken = text.substr(0, cut);
      for (int i = 0; i < 4 && !broken.empty(); ++i) broken[random() % broken.size()] = static_cast<char>(random());
      const SanitizerReport report = parse_sanitizer_log(broken);
      found += report.first ? 1 : 0;
      CHECK(sanitizer_sentence("memcheck", report).size() < 4000);
    }
  }
  CHECK(found > 0);
}

TEST_CASE("what is missing is said before anything is run") {
  CHECK(check_sanitizer_tool("memchek").error().message.find("memcheck") != std::string::npos);
  CHECK(check_sanitizer_tool("memchek").error().kind == ErrorKind::kBadInput);
  ::setenv("COMPUTE_SANITIZER", "/nonexistent/compute-sanitizer", 1);
  const auto absent = SanitizerRun::prepare("memcheck", true);
  REQUIRE_FALSE(absent);
  CHECK(absent.error().kind == ErrorKind::kCannotRun);
  ::setenv("COMPUTE_SANITIZER", "/bin/true", 1);
  const auto on_cpu = SanitizerRun::prepare("memcheck", false);
  REQUIRE_FALSE(on_cpu);
  CHECK(on_cpu.error().message.find("--device cuda") != std::string::npos);
  const auto run = SanitizerRun::prepare("racecheck", true);
  ::unsetenv("COMPUTE_SANITIZER");
  REQUIRE(run);
  CHECK(run->command().front() == "/bin/true");
  CHECK_FALSE(run->report().complete);
}

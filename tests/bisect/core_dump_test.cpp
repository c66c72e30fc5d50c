// The texts are what cuda-gdb 13.0 and driver 580 print on an H200 for kernels with planted faults, shortened.
#include "bisect/core_dump.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "bisect/core_dump_report.h"
#include "bisect/core_reader.h"
#include "temporary_folder.h"
#include "testing.h"

using namespace faultline;

namespace {

const char* const kLoad = R"(Opening GPU coredump: o/load.core
[Current focus set to CUDA kernel 0, grid 2, block (1,0,0), thread (37,0,0), device 0, sm 126, warp 1, lane 5]

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7f3ffb7a0ac0  probe::planted_load(char*)  (faults2.cu:20)
#0  0x00007f3ffb7a0ad0 in probe::planted_load<<<(2,1,1),(64,1,1)>>> () at /home/user/faultline/src/probe/faults2.cu:20
warning: 20	/home/user/faultline/src/probe/faults2.cu: No such file or directory
  Kernel Parent Dev Grid Status                             SMs Mask GridDim BlockDim Invocation
*      0      -   0    2 Active 0x0040000000000000000000000000000000 (2,1,1) (64,1,1) probe::planted_load()
#0  0x00007f3ffb7a0ad0 in probe::planted_load<<<(2,1,1),(64,1,1)>>> () at /home/user/faultline/src/probe/faults2.cu:20
Line 20 of "/home/user/faultline/src/probe/faults2.cu" starts at address 0x7f3ffb7a0a50 <_ZN5probe12planted_loadEPc+80> and ends at 0x7f3ffb7a0af0 <_ZN5probe12planted_loadEPc+240>.
)";

// Inlined into the kernel; cuda-gdb stops 3 lines after the exception.
const char* const kMisaligned = R"(Opening GPU coredump: o/misaligned.core
[Current focus set to CUDA kernel 0, grid 2, block (1,0,0), thread (0,0,0), device 0, sm 126, warp 0, lane 0]

CUDA Exception: Warp Misaligned Address
The exception was triggered at PC 0x7f36477a0d20  void probe::run_body<probe::RmsNormBody<float, false> >(probe::RmsNormBody<float, false>)  (faults.cu:21 in _ZNK5probe11RmsNormBodyIfLb0EEclEv inlined from faults.cu:28)
#0  0x00007f36477a0da0 in probe::run_body<probe::RmsNormBody<float, false> ><<<(2,1,1),(64,1,1)>>> () at /x/kernels/faults.cu:24 in _ZNK5probe11RmsNormBodyIfLb0EEclEv inlined from faults.cu:28
*      0      -   0    2 Active 0x0040000000000000000000000000000000 (2,1,1) (64,1,1) probe::run_body<probe::RmsNormBody<float, false> >()
Line 24 of "/x/kernels/faults.cu" starts at address 0x7f36477a0d70 <_ZN5probe8run_bodyINS_11RmsNormBodyIfLb0EEEEEvT_+880> and ends at 0x7f36477a0dd0
)";

// The warp had ended: cuda-gdb 13.0 dies of it, after it has said the line.
const char* const kStore = R"(Opening GPU coredump: o/store.core

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7f355f7a0ad0  probe::planted_store(char*)  (faults2.cu:15)
terminate called after throwing an instance of 'std::out_of_range'
  what():  vector::_M_range_check: __n (which is 4294967294) >= this->size() (which is 64)


Fatal signal: Aborted
----- Backtrace -----
0x545d9b _Z22gdb_internal_backtracev
)";

const char* const kAssert =
    R"([Current focus set to CUDA kernel 0, grid 2, block (1,0,0), thread (37,0,0), device 0, sm 126, warp 1, lane 5]

Assertion failed.
#0  0x00007fbe2b7a0ba0 in probe::planted_assert<<<(2,1,1),(64,1,1)>>> () at /tmp/probe/faults2.cu:30
value is not available
Line 30 of "/tmp/probe/faults2.cu" starts at address 0x7fbe2b7a0a60 <_ZN5probe14planted_assertEi+96> and ends at 0x7fbe2b7a0c80.
)";

const char* const kTrap =
    R"([Current focus set to CUDA kernel 0, grid 2, block (1,0,0), thread (37,0,0), device 0, sm 126, warp 1, lane 5]
Program terminated with signal SIGTRAP, Trace/breakpoint trap.
#0  0x00007fbd137a0a70 in probe::planted_trap<<<(2,1,1),(64,1,1)>>> () at /tmp/probe/faults2.cu:29
)";

const char* const kJump =
    R"([Current focus set to CUDA kernel 0, grid 2, block (1,0,0), thread (37,0,0), device 0, sm 126, warp 1, lane 5]

CUDA Exception: Warp Illegal Instruction
The exception was triggered at PC 0x7f1f578c3e50
#0  0x00007f1f578c3e60 in ?? ()
  Kernel Parent Dev Grid Status                             SMs Mask GridDim BlockDim Invocation
*      0      -   0    2 Active 0x0040000000000000000000000000000000 (2,1,1) (64,1,1) probe::planted_jump()
#0  0x00007f1f578c3e60 in ?? ()
#1  0x00000000000000c0 in ??<<<(2,1,1),(64,1,1)>>> ()
No line number information available for address 0x7f1f578c3e50
)";

// Of the whole program: cuda-gdb finds no lines there.
const char* const kNoLine =
    R"([Current focus set to CUDA kernel 0, grid 252, block (1,0,0), thread (37,0,0), device 0, sm 126, warp 3, lane 5]

CUDA Exception: Warp Illegal Address
The exception was triggered at PC 0x7f13cce762c0  faultline::plants::planted_illegal_access(std::byte*)
#0  0x00007f13cce762d0 in faultline::plants::planted_illegal_access(std::byte*)<<<(2,1,1),(64,1,1)>>> ()
*      0      -   0  252 Active 0x0040000000000000000000000000000000 (2,1,1) (64,1,1) faultline::plants::planted_illegal_access()
No line number information available for address 0x7f13cce762c0 <_ZN9faultline6plants22planted_illegal_accessEPSt4byte+192>
)";

const char* const kHang =
    R"([Current focus set to CUDA kernel 0, grid 2, block (0,0,0), thread (0,0,0), device 0, sm 124, warp 1, lane 0]
#0  probe::planted_hang<<<(1,1,1),(32,1,1)>>> () at /tmp/probe/faults.cu:30
)";

const char* const kProgress =
    R"(faults2.cu:30: void probe::planted_assert(int): block: [1,0,0], thread: [37,0,0] Assertion `i >= 0 && i < n` failed.
[16:29:59.604036] coredump: Starting GPU coredump generation
[16:29:59.607240] coredump: SM 132/132 has finished state collection
[16:29:59.607246] coredump: Detected an exception of type CUDBG_EXCEPTION_WARP_ASSERT (12)
[16:29:59.607268] coredump:   - Device: 0
[16:29:59.607273] coredump:   - Warp: 1
[16:29:59.607290] coredump: Stack trace (lane masks: active 0x00000040, valid 0x00000040):
[16:29:59.607295] coredump:   #0	0x7f06c77a0a10	_ZN5probe8run_bodyINS_11RmsNormBodyIfLb0EEEEEvT_
[16:29:59.607298] coredump:   #1	0x7f06c77a0bb0	_ZNK5probe11RmsNormBodyIfLb0EEclEv
[16:29:59.607400] coredump: All done (took 00s)
)";

}  // namespace

TEST_CASE("a dump gives exception, kernel, source line, block, thread and place") {
  const CoreDump core = parse_core_dump(kLoad);
  CHECK(core.exception == "Warp Illegal Address");
  CHECK(core.kernel == "probe::planted_load");
  CHECK(core.source == "src/probe/faults2.cu");
  CHECK(core.line == 20);
  CHECK(core.block == "(1,0,0)");
  CHECK(core.thread == "(37,0,0)");
  CHECK(core.place == "device 0, sm 126, warp 1, lane 5");
  CHECK(core.unread.empty());
}

TEST_CASE("the line of the exception counts, not where the kernel stopped, and inlined code is named where it stands") {
  const CoreDump core = parse_core_dump(kMisaligned);
  CHECK(core.line == 21);
  CHECK(core.source == "kernels/faults.cu");
  CHECK(core.kernel == "probe::run_body<probe::RmsNormBody<float, false> >");
  CHECK(kernel_of(core.kernel).body == "RmsNormBody");
}

TEST_CASE("what a debugger says before it dies is kept, and what is missing is said") {
  const CoreDump core = parse_core_dump(kStore);
  CHECK(core.exception == "Warp Illegal Address");
  CHECK(core.kernel == "probe::planted_store");
  CHECK(core.line == 15);
  CHECK(core.block.empty());
  CHECK(core.unread.find("block and thread") != std::string::npos);
}

TEST_CASE("a dump without lines still names kernel, block and thread") {
  const CoreDump core = parse_core_dump(kNoLine);
  CHECK(core.kernel == "faultline::plants::planted_illegal_access");
  CHECK(core.line == 0);
  CHECK(core.thread == "(37,0,0)");
  CHECK(core.unread.find("no source line") != std::string::npos);
  CHECK(kernel_of(core.kernel).planted);
}

TEST_CASE("assertions, traps, bad jumps and hangs are told apart") {
  CHECK(parse_core_dump(kAssert).exception == "Warp Assert");
  CHECK(parse_core_dump(kAssert).line == 30);
  CHECK(parse_core_dump(kTrap).exception == "SIGTRAP, Trace/breakpoint trap.");
  CHECK(parse_core_dump(kTrap).kernel == "probe::planted_trap");
  const CoreDump jump = parse_core_dump(kJump);
  CHECK(jump.exception == "Warp Illegal Instruction");
  CHECK(jump.kernel == "probe::planted_jump");
  CHECK(jump.line == 0);
  CHECK_FALSE(jump.unread.empty());
  const CoreDump hang = parse_core_dump(kHang);
  CHECK(hang.exception.empty());
  CHECK(hang.kernel == "probe::planted_hang");
  CHECK(hang.line == 30);
  const CoreDump nothing = parse_core_dump("Failed to read core file: elfOpenByName() failed\nNo stack.\n");
  CHECK(nothing == CoreDump{});
}

TEST_CASE("the driver's own words give the exception and the kernel without a debugger") {
  const CoreDump core = parse_dump_progress(kProgress);
  CHECK(core.exception == "Warp Assert");
  CHECK(core.kernel == "probe::run_body<probe::RmsNormBody<float, false> >");
  CHECK(parse_dump_progress("[1] coredump:   #0\t0x7f1f578c3e60\t[Unknown]\n").kernel.empty());
  CHECK(parse_dump_progress("") == CoreDump{});
}

TEST_CASE("exceptions are verdicts") {
  CHECK(verdict_of_exception("Warp Assert") == "device-assert");
  for (const char* name : {"Warp Illegal Address", "Warp Misaligned Address", "Lane Illegal Address",
                           "Warp Out-of-range Address", "Warp Invalid Address Space", "Invalid Managed Memory Access"})
    CHECK(verdict_of_exception(name) == "illegal-access");
  for (const char* name :
       {"Warp Illegal Instruction", "SIGTRAP, Trace/breakpoint trap.", "Warp Hardware Stack Overflow"})
    CHECK(verdict_of_exception(name) == "launch-failure");
}

TEST_CASE("a kernel's name tells the op kinds that launch it") {
  const KernelOwner norm = kernel_of(
      "void faultline::kernels::run_body<faultline::kernels::RmsNormBody<faultline::Bf16, false>>"
      "(faultline::kernels::RmsNormBody<faultline::Bf16, false>)");
  CHECK(norm.body == "RmsNormBody");
  CHECK(norm.kinds == std::vector<std::string>{"rmsnorm"});
  CHECK_FALSE(norm.checked);
  CHECK(kernel_of("faultline::kernels::run_body<faultline::kernels::TopKBody<true> >").checked);
  CHECK(kernel_of("void run_body<TopKBody<(bool)1>>(T1)").checked);
  CHECK(kernel_of("faultline::plants::(anonymous namespace)::planted_assert").planted);
  const KernelOwner reference = kernel_of("faultline::ops::topk_kernel");
  CHECK(reference.reference);
  CHECK(reference.kinds == std::vector<std::string>{"topk"});
  CHECK(kernel_of("nvjet_hsh_128x64").kinds.empty());
  CHECK(kernel_of("nvjet_hsh_128x64").body == "nvjet_hsh_128x64");
  CHECK(kernel_of("").body.empty());
}

TEST_CASE("paths are shown from the project's own folders on") {
  CHECK(project_path("/home/a/src/faultline/kernels/topk.h") == "kernels/topk.h");
  CHECK(project_path("/home/a/kernels/faultline/src/bisect/cuda_plants.cu") == "src/bisect/cuda_plants.cu");
  CHECK(project_path("faults.cu") == "faults.cu");
}

TEST_CASE("no text makes the parsers stumble") {
  const std::string texts[] = {kLoad, kMisaligned, kStore, kAssert, kTrap, kJump, kHang, kProgress};
  uint64_t state = 7;
  const auto random = [&state] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 33;
  };
  size_t longest = 0;
  for (const std::string& text : texts) {
    for (size_t cut = 0; cut <= text.size(); cut += 7) {
      std::string broken = text.substr(0, cut);
      for (int i = 0; i < 4 && !broken.empty(); ++i) broken[random() % broken.size()] = static_cast<char>(random());
      longest = std::max({longest, parse_core_dump(broken).kernel.size(), parse_dump_progress(broken).kernel.size(),
                          kernel_of(broken).body.size()});
    }
  }
  CHECK(longest > 0);
  CHECK(longest <= 400);
}

TEST_CASE("the dump is read by the debugger that is there, within its time") {
  const TemporaryFolder folder;
  const std::string core = folder.file("c1.7.cudacore", "a core dump");
  CoreReadOptions options;
  options.debugger = folder.file("gdb", std::string("#!/bin/sh\ncat <<'END'\n") + kLoad + "END\nexit 0\n", true);
  const CoreDump read = read_core_dump(core, options);
  CHECK(read.file == core);
  CHECK(read.line == 20);
  options.debugger = folder.file("slow", "#!/bin/sh\nsleep 60\n", true);
  options.limit_s = 0.2;
  CHECK(read_core_dump(core, options).unread.find("did not end within") != std::string::npos);
  options.debugger = folder.file("broken", "#!/bin/sh\nexit 3\n", true);
  options.limit_s = 60;
  CHECK(read_core_dump(core, options).unread.find("exit code 3") != std::string::npos);
  const std::atomic<bool> cancelled{true};
  options.debugger = folder.path + "/slow";
  options.cancel = &cancelled;
  CHECK(read_core_dump(core, options).unread.find("interrupted") != std::string::npos);
}

TEST_CASE("without a debugger the result says what it could not read, and keeps what the driver printed") {
  const TemporaryFolder folder;
  ::setenv("CUDA_GDB", "/nonexistent/cuda-gdb", 1);
  const CoreDump core = read_core_dump(folder.path + "/cores/c1.7.cudacore", {});
  ::unsetenv("CUDA_GDB");
  CHECK(core.unread.find("cuda-gdb was not found") != std::string::npos);

  WorkerFacts facts;
  facts.core_file = folder.path + "/cores/c1.7.cudacore";
  facts.output = kProgress;
  TaskResult result;
  result.verdict = "device-assert";
  result.message = "Warp Assert";
  note_core_dump(result, facts);
  REQUIRE(result.violation);
  CHECK(core_file_of(result) == facts.core_file);
  add_core_dump(result, core, folder.path);
  REQUIRE(result.violation->core);
  CHECK(result.violation->core->file == "cores/c1.7.cudacore");
  CHECK(result.violation->core->exception == "Warp Assert");
  CHECK(result.violation->kernel == "RmsNormBody");
  CHECK(result.message.find("cuda-gdb was not found") != std::string::npos);
  const auto again = task_result_from_json(to_json(result));
  REQUIRE(again);
  CHECK(again->violation->core == result.violation->core);
}

TEST_CASE("a dump refines a verdict that the worker's words left open, and no other") {
  const auto verdict_after = [](const std::string& verdict, const std::string& exception) {
    TaskResult result;
    result.verdict = verdict;
    result.violation.emplace().kind = verdict;
    result.violation->core.emplace().file = "/run/cores/c1.7.cudacore";
    CoreDump core;
    core.file = "/run/cores/c1.7.cudacore";
    core.exception = exception;
    add_core_dump(result, core, "/run");
    CHECK(result.violation->kind == result.verdict);
    return result.verdict;
  };
  CHECK(verdict_after("launch-failure", "Warp Illegal Address") == "illegal-access");
  CHECK(verdict_after("launch-failure", "SIGTRAP, Trace/breakpoint trap.") == "launch-failure");
  CHECK(verdict_after("hang", "") == "hang");
  CHECK(verdict_after("hang", "Warp Illegal Address") == "hang");
}

TEST_CASE("dumps are named after their task, whatever it is called") {
  CHECK(core_dump_prefix("/run/100%/cores", "c1+late tile/x%p") == "/run/100_/cores/c1+late_tile_x_p");
  const CoreDumpFiles files = core_dump_files("/run/cores/c1", 4711);
  CHECK(files.core == "/run/cores/c1.4711.cudacore");
  bool named = false;
  for (const std::string& setting : core_dump_environment("/run/cores/c1"))
    named = named || setting == "CUDA_COREDUMP_FILE=/run/cores/c1.%p.cudacore";
  CHECK(named);
  CHECK_FALSE(ask_for_core_dump(files));
}

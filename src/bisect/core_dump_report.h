// What cuda-gdb prints about a GPU core dump, as data; and whose a kernel is.
//
// Pure text in, plain data out: the text comes from another program, so nothing of it is trusted.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/findings.h"

namespace faultline {

// The command line (with argv[0]) whose output parse_core_dump() reads.
std::vector<std::string> core_dump_command(const std::string& debugger, const std::string& file);

// `file` is left empty. Of what the text does not say, nothing is set; `unread` names what a reader would miss.
CoreDump parse_core_dump(std::string_view output);

// A source line that was found by other means than the debugger's.
void take_source_line(CoreDump& core, std::string_view file, int64_t line);

// The same from what the CUDA driver prints while it writes a dump (CUDA_COREDUMP_SHOW_PROGRESS), to be read without a
// debugger: the exception and, where its warp was still there, the kernel.
CoreDump parse_dump_progress(std::string_view output);

// The verdict of an exception by its name: "Warp Illegal Address" -> illegal-access. Unknown ones are a launch failure.
std::string verdict_of_exception(std::string_view exception);

// "Warp Illegal Address in faultline::plants::planted_illegal_access (src/bisect/cuda_plants.cu:31), block (1,0,0),
// thread (37,0,0) [GPU core dump cores/c017.4711.cudacore]"; or why that cannot be said.
std::string core_dump_sentence(const CoreDump& core);

// A kernel of ours by the name that a debugger or a sanitizer prints, demangled:
// "void faultline::kernels::run_body<faultline::kernels::RmsNormBody<faultline::Bf16, false>>(T1)".
struct KernelOwner {
  std::string body;                // "RmsNormBody", "planted_assert"; the last word of the name for anything else
  std::vector<std::string> kinds;  // of ops that launch it; empty: not known
  bool planted = false;
  bool checked = false;    // the checked build
  bool reference = false;  // a device reference, not a kernel under test
};
KernelOwner kernel_of(std::string_view name);

// "void ns::f<ns::G<float, false> >(ns::G<float, false>)" without what stands around the name.
std::string plain_kernel_name(std::string_view text);

// A source path without the folders above the project: "/x/y/src/bisect/a.cu" -> "src/bisect/a.cu".
std::string project_path(std::string_view path);

}  // namespace faultline

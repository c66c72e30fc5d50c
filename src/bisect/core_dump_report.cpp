#include "bisect/core_dump_report.h"
#include "base/text.h"

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

namespace faultline {
namespace {

constexpr size_t kLongestName = 400;     // of a kernel, in a report
constexpr size_t kLongestSymbol = 4000;  // that is demangled
constexpr std::string_view kPlanted = "planted_";

// Only what may stand in a report.
std::string printable(std::string_view text) {
  std::string result(text.substr(0, kLongestName));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
  return result;
}

std::optional<int64_t> number_in(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data() || value < 0) return std::nullopt;
  return value;
}

// What follows `word` up to one of `ends` (or the end); empty without the word.
std::string_view after(std::string_view line, std::string_view word, std::string_view ends) {
  const size_t at = line.find(word);
  if (at == std::string_view::npos) return {};
  line.remove_prefix(at + word.size());
  return trimmed(line.substr(0, line.find_first_of(ends)));
}

// "faults.cu:21", "faults.cu:21 in _ZNK… inlined from faults.cu:28": of inlined code, where it stands itself.
struct SourceLine {
  std::string file;
  int64_t line = 0;
};
SourceLine source_line(std::string_view text) {
  text = trimmed(text);
  text = text.substr(0, text.find(" inlined from "));
  text = text.substr(0, text.find(" in _Z"));
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return {};
  const auto line = number_in(text.substr(colon + 1));
  if (!line || *line == 0) return {};
  return {printable(project_path(text.substr(0, colon))), *line};
}

std::string_view base_name(std::string_view path) {
  return path.substr(path.find_last_of('/') + 1);  // npos + 1 is 0
}

// The first place said counts; a later one may know the folder of the same file.
void take_line(const SourceLine& found, CoreDump& out) {
  if (found.line == 0) return;
  if (out.line == 0) {
    out.source = found.file;
    out.line = found.line;
  } else if (base_name(found.file) == out.source && found.file.size() > out.source.size()) {
    out.source = found.file;
  }
}

// "[Current focus set to CUDA kernel 0, grid 2, cluster (0,0,0), block (1,0,0), thread (37,0,0), device 0, sm 2, …]"
void take_focus(std::string_view line, CoreDump& out) {
  const auto triple = [&](std::string_view word) -> std::string {
    const size_t at = line.find(word);
    if (at == std::string_view::npos) return "";
    const std::string_view rest = line.substr(at + word.size() - 1);  // the word ends in '('
    const size_t close = rest.find(')');
    return close == std::string_view::npos ? "" : printable(rest.substr(0, close + 1));
  };
  out.block = triple("block (");
  out.thread = triple("thread (");
  const size_t device = line.find("device ");
  if (device == std::string_view::npos) return;
  out.place = printable(trimmed(line.substr(device, line.find(']', device) - device)));
}

// "#0  0x00007f… in NAME<<<(2,1,1),(64,1,1)>>> (args) at FILE:LINE", or without the address.
bool take_kernel_frame(std::string_view line, CoreDump& out) {
  const size_t launch = line.find("<<<");
  if (!line.starts_with('#') || launch == std::string_view::npos) return false;
  std::string_view name = line.substr(0, launch);
  const size_t in = name.find(" in ");
  if (in != std::string_view::npos)
    name.remove_prefix(in + 4);
  else
    name.remove_prefix(std::min(name.size(), name.find(' ')));
  if (trimmed(name) == "??") return false;
  out.kernel = plain_kernel_name(name);
  return !out.kernel.empty();
}

// What follows grid and block dimensions in the table of kernels.
std::string invocation(std::string_view line) {
  for (int dimension = 0; dimension < 2; ++dimension) {
    const size_t close = line.find(')');
    if (close == std::string_view::npos || line.find('(') > close) return "";
    line.remove_prefix(close + 1);
  }
  return plain_kernel_name(line);
}

void note_unread(CoreDump& core) {
  core.unread.clear();
  if (core.exception.empty() && core.kernel.empty()) return;
  if (core.line == 0)
    core.unread = "no source line is found for it (replay --sanitize memcheck may)";
  else if (core.block.empty())
    core.unread = "its warp was gone when the exception came in, and block and thread with it";
}

}  // namespace

std::vector<std::string> core_dump_command(const std::string& debugger, const std::string& file) {
  return {debugger,
          "-nx",
          "-batch",
          "-ex",
          "set pagination off",
          "-ex",
          "set width 0",
          "-ex",
          "target cudacore " + file,
          "-ex",
          "info cuda kernels",
          "-ex",
          "bt",
          "-ex",
          "info line *$errorpc",
          "-ex",
          "info line *$pc",
          "-ex",
          "info cuda devices"};
}

CoreDump parse_core_dump(std::string_view output) {
  constexpr std::string_view kException = "CUDA Exception: ";
  constexpr std::string_view kTriggered = "The exception was triggered at PC";
  constexpr std::string_view kSignal = "Program terminated with signal ";
  CoreDump core;
  std::string thrower;
  std::string running;
  SourceLine stopped;
  while (!output.empty()) {
    const std::string_view line = output.substr(0, output.find('\n'));
    output.remove_prefix(std::min(output.size(), line.size() + 1));
    if (core.exception.empty()) {
      if (line.starts_with(kException)) core.exception = printable(trimmed(line.substr(kException.size())));
      if (line.starts_with("Assertion failed")) core.exception = "Warp Assert";
      if (line.starts_with(kSignal)) core.exception = printable(trimmed(line.substr(kSignal.size())));
    }
    // "… at PC 0x7f…  void ns::f<…>(…)  (faults.cu:21 in _ZNK… inlined from faults.cu:28)"
    if (line.starts_with(kTriggered)) {
      const std::string_view rest = trimmed(line.substr(kTriggered.size()));
      const std::string_view name = trimmed(rest.substr(std::min(rest.size(), rest.find(' '))));
      const size_t open = name.rfind('(');
      if (open != std::string_view::npos) {
        thrower = plain_kernel_name(name.substr(0, open));
        take_line(source_line(name.substr(open + 1, name.rfind(')') - open - 1)), core);
      }
    }
    if (line.starts_with("[Current focus set to CUDA kernel") && core.block.empty()) take_focus(line, core);
    if (core.kernel.empty()) take_kernel_frame(line, core);
    // "*      0      -   0    2 Active 0x00… (2,1,1) (64,1,1) ns::f() " of `info cuda kernels`: where the frames tell
    // none.
    if (line.starts_with('*') && running.empty()) running = invocation(line);
    // The frame that stopped, an inlined function of the kernel's perhaps.
    const size_t at = line.rfind(" at ");
    if (line.starts_with('#') && at != std::string_view::npos && stopped.line == 0)
      stopped = source_line(line.substr(at + 4));
    // "Line 29 of "/…/faults.cu" starts at address …": of the exception first, then of where the kernel stopped.
    constexpr std::string_view kLine = "Line ";
    if (line.starts_with(kLine)) {
      const std::string_view file = after(line, "\"", "\"");
      const auto number = number_in(line.substr(kLine.size()));
      if (number && !file.empty()) take_line({printable(project_path(file)), *number}, core);
    }
  }
  take_line(stopped, core);
  if (core.kernel.empty()) core.kernel = !thrower.empty() ? thrower : running;
  note_unread(core);
  return core;
}

void take_source_line(CoreDump& core, std::string_view file, int64_t line) {
  take_line({printable(project_path(file)), line}, core);
  note_unread(core);
}

CoreDump parse_dump_progress(std::string_view output) {
  constexpr std::string_view kDetected = "Detected an exception of type ";
  constexpr std::string_view kPrefix = "CUDBG_EXCEPTION_";
  CoreDump core;
  while (!output.empty()) {
    const std::string_view line = output.substr(0, output.find('\n'));
    output.remove_prefix(std::min(output.size(), line.size() + 1));
    const size_t mark = line.find("coredump: ");
    if (mark == std::string_view::npos) continue;
    const std::string_view text = trimmed(line.substr(mark + 10));
    if (text.starts_with(kDetected) && core.exception.empty()) {
      std::string_view name = text.substr(kDetected.size());
      name = name.substr(0, name.find(' '));
      if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
      bool first = true;
      for (const char c : name) {
        core.exception += c == '_' ? ' ' : first ? c : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
        first = c == '_';
      }
      core.exception = printable(core.exception);
    }
    // "#1	0x7f…	_ZN…": the kernel is the first; what it has inlined follows.
    if (!text.starts_with("#0") || !core.kernel.empty()) continue;
    const size_t symbol = text.find_last_of("\t ");
    if (symbol == std::string_view::npos) continue;
    const std::string mangled(text.substr(symbol + 1, kLongestSymbol));
    if (mangled == "[Unknown]") continue;
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> name(
        abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
    core.kernel = status == 0 && name != nullptr ? plain_kernel_name(name.get()) : printable(mangled);
  }
  return core;
}

std::string verdict_of_exception(std::string_view exception) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kVerdicts{{
      {"Assert", "device-assert"},
      {"Address", "illegal-access"},
      {"Memory Access", "illegal-access"},
      {"Memory Fault", "illegal-access"},
  }};
  for (const auto& [part, verdict] : kVerdicts)
    if (exception.find(part) != std::string_view::npos) return std::string(verdict);
  return "launch-failure";
}

std::string core_dump_sentence(const CoreDump& core) {
  const std::string file = core.file.empty() ? "" : " " + core.file;
  if (core.exception.empty() && core.kernel.empty())
    return fmt::format("the GPU wrote a core dump{}, but {}", file,
                       core.unread.empty() ? "it says nothing" : core.unread);
  std::string text = core.exception.empty() ? "the GPU was" : core.exception;
  if (!core.kernel.empty()) text += " in " + core.kernel;
  if (core.line != 0) text += fmt::format(" ({}:{})", core.source, core.line);
  if (!core.block.empty()) text += ", block " + core.block;
  if (!core.thread.empty()) text += ", thread " + core.thread;
  text += fmt::format(" [GPU core dump{}]", file);
  const KernelOwner owner = kernel_of(core.kernel);
  if (!owner.kinds.empty()) text += fmt::format("; a kernel of {} ops", fmt::join(owner.kinds, ", "));
  if (!core.unread.empty()) text += "; " + core.unread;
  return text;
}

std::string plain_kernel_name(std::string_view text) {
  text = trimmed(text);
  constexpr std::string_view kVoid = "void ";
  if (text.starts_with(kVoid)) text.remove_prefix(kVoid.size());
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>') --depth;
    if (text[i] != '(' || depth > 0) continue;
    constexpr std::string_view kUnnamed = "(anonymous namespace)";
    if (text.substr(i).starts_with(kUnnamed)) {
      i += kUnnamed.size() - 1;
      continue;
    }
    text = text.substr(0, i);
    break;
  }
  return printable(trimmed(text));
}

std::string project_path(std::string_view path) {
  size_t begin = 0;
  for (const std::string_view folder : {"/src/", "/kernels/", "/tests/", "/benchmarks/"}) {
    const size_t at = path.rfind(folder);
    if (at != std::string_view::npos) begin = std::max(begin, at + 1);
  }
  return std::string(path.substr(begin));
}

KernelOwner kernel_of(std::string_view name) {
  // Bodies (kernels/*.h) and other kernels by the op kinds whose code launches them (src/ops/*.cpp). Sorted.
  using Kinds = std::vector<std::string>;
  static const std::vector<std::pair<std::string_view, Kinds>> kOwners = {
      {"AddBody", {"add"}},
      {"ArgmaxBody", {"argmax"}},
      {"CacheGatherBody", {"cache_gather"}},
      {"CombineBody", {"attention"}},
      {"DenseAttentionBody", {"attention"}},
      {"EmbedBody", {"embed"}},
      {"GatherRowsBody", {"gather_rows"}},
      {"IndexScoresBody", {"index_scores"}},
      {"LayerNormBody", {"layernorm"}},
      {"MoeAlignBody", {"moe_permute"}},
      {"MoeCombineBody", {"moe_combine"}},
      {"PackRowsBody", {"cache_write", "cache_requantize"}},
      {"PrepareBody", {"prepare"}},
      {"QuantizeFp4Body", {"quantize_fp4"}},
      {"RmsNormBody", {"rmsnorm"}},
      {"RopeBody", {"rope"}},
      {"RouterBody", {"router"}},
      {"SampleBody", {"sample"}},
      {"SiluMulBody", {"silu_mul"}},
      {"SoftmaxBody", {"softmax"}},
      {"SparseAttentionBody", {"attention"}},
      {"SplitAttentionBody", {"attention"}},
      {"StoreIndexKeysBody", {"cache_write"}},
      {"StoreRowsBody", {"cache_write"}},
      {"TopKBody", {"topk"}},
  };
  static const Kinds kProducts = {"linear", "linear_w4a4", "expert_linear", "expert_linear_w4a4", "batched_linear"};
  constexpr std::string_view kReferenceEnd = "_kernel";  // src/ops/cuda_reference_*.cu

  KernelOwner owner;
  // "void ns::run_body<ns::Body<…>>(…)": the body of a launch, else the last name before the arguments.
  const size_t launched = name.find("run_body<");
  std::string_view word = launched == std::string_view::npos ? name : name.substr(launched + 9);
  constexpr std::string_view kUnnamed = "(anonymous namespace)::";
  for (size_t at = word.find(kUnnamed); at != std::string_view::npos && at < word.find('<'); at = word.find(kUnnamed))
    word.remove_prefix(at + kUnnamed.size());
  const size_t end = word.find_first_of("<(>,");
  const std::string_view arguments = end == std::string_view::npos ? std::string_view{} : word.substr(end);
  word = trimmed(word.substr(0, end));
  const size_t scope = word.find_last_of(": ");
  if (scope != std::string_view::npos) word.remove_prefix(scope + 1);
  owner.body = printable(word);
  owner.planted = word.starts_with(kPlanted);
  if (owner.planted || word.empty()) return owner;
  owner.checked = launched != std::string_view::npos && (arguments.find("true") != std::string_view::npos ||
                                                         arguments.find("(bool)1") != std::string_view::npos);
  for (const auto& [body, kinds] : kOwners)
    if (body == word) owner.kinds = kinds;
  if (!owner.kinds.empty()) return owner;
  if (word.ends_with(kReferenceEnd) && name.find("faultline") != std::string_view::npos) {
    owner.reference = true;
    owner.kinds = {std::string(word.substr(0, word.size() - kReferenceEnd.size()))};
  } else if (word == "skinny" || word.find("gemm") != std::string_view::npos ||
             word.find("grouped") != std::string_view::npos) {
    owner.kinds = kProducts;
  }
  return owner;
}

}  // namespace faultline

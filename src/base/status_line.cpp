#include "base/status_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace faultline {

namespace {

constexpr std::string_view kClearLine = "\r\x1b[K";
constexpr std::string_view kRed = "\x1b[31m";
constexpr std::string_view kPlain = "\x1b[0m";
constexpr int kDefaultColumns = 80;

bool has_text(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0';
}

bool is_terminal(int fd) {
  const char* term = std::getenv("TERM");
  return ::isatty(fd) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

// Texts come from workers too: a stray escape must not drive the terminal.
std::string without_controls(std::string_view text) {
  constexpr unsigned char kFirstPrintable = 0x20;
  constexpr unsigned char kDelete = 0x7F;
  std::string clean(text);
  for (char& c : clean) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < kFirstPrintable || byte == kDelete) c = ' ';
  }
  return clean;
}

// Where each code point of UTF-8 text begins.
std::vector<size_t> code_points(std::string_view text) {
  constexpr unsigned char kContinuationMask = 0xC0;
  constexpr unsigned char kContinuation = 0x80;
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & kContinuationMask) != kContinuation) starts.push_back(i);
  return starts;
}

}  // namespace

std::string elide_middle(std::string_view text, int width) {
  constexpr std::string_view kDots = "...";
  const std::vector<size_t> starts = code_points(text);
  const size_t columns = width > 0 ? static_cast<size_t>(width) : 0;
  if (starts.size() <= columns) return std::string(text);
  if (columns <= kDots.size()) return std::string(text.substr(0, starts[columns]));
  const size_t kept = columns - kDots.size();
  const size_t head = (kept + 1) / 2;
  const size_t tail = kept - head;
  std::string result(text.substr(0, starts[head]));
  result += kDots;
  if (tail > 0) result += text.substr(starts[starts.size() - tail]);
  return result;
}

StatusLine::StatusLine(StatusOptions options) : options_(std::move(options)) {
  terminal_ = options_.terminal.value_or(is_terminal(options_.fd));
  color_ = options_.color.value_or(terminal_ && !has_text("NO_COLOR"));
  if (!options_.now) options_.now = monotonic_seconds;
}

StatusLine::~StatusLine() {
  finish();
}

void StatusLine::update(const StatusCounts& counts, std::string_view text) {
  if (!active_) {
    active_ = true;
    started_ = options_.now();
    done_at_start_ = counts.done;
    shown_at_.reset();
  }
  counts_ = counts;
  text_ = without_controls(text);
  const double interval = terminal_ ? options_.rewrite_interval_s : options_.plain_interval_s;
  if (shown_at_ && options_.now() - *shown_at_ < interval) {
    held_back_ = true;
    return;
  }
  show();
}

void StatusLine::note(std::string_view line) {
  if (on_screen_) write(kClearLine);
  write(without_controls(line) + "\n");
  if (!on_screen_) return;
  on_screen_ = false;
  show();
}

void StatusLine::finish() {
  if (on_screen_) write(kClearLine);
  if (!terminal_ && held_back_) show();
  on_screen_ = false;
  held_back_ = false;
  active_ = false;
}

std::string StatusLine::estimate() const {
  const int finished = counts_.done - done_at_start_;  // what a resumed run found done took no time
  const int left = counts_.total - counts_.done;
  if (finished <= 0 || left <= 0) return "";
  const double each = (options_.now() - started_) / finished;
  return fmt::format("{} left", duration_text(each * left));
}

std::string StatusLine::line() const {
  std::string text;
  if (counts_.total > 0) text = fmt::format("[{}/{}]", counts_.done, counts_.total);
  std::string parts;
  if (counts_.failing > 0) parts = fmt::format("{} failing", counts_.failing);
  if (const std::string left = counts_.total > 0 ? estimate() : ""; !left.empty())
    parts += (parts.empty() ? "" : ", ") + left;
  if (!parts.empty()) text += (text.empty() ? "" : " ") + parts;
  if (text_.empty()) return text;
  if (text.empty()) return text_;
  return text + (parts.empty() ? " " : ": ") + text_;
}

int StatusLine::columns() const {
  if (options_.width) return *options_.width;
  winsize size{};
  if (::ioctl(options_.fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kDefaultColumns;
}

void StatusLine::write(std::string_view text) const {
  // Progress that cannot be shown (a closed terminal) is no reason to end a run.
  static_cast<void>(write_all(options_.fd, text));
}

void StatusLine::show() {
  shown_at_ = options_.now();
  held_back_ = false;
  if (!terminal_) {
    write(line() + "\n");
    return;
  }
  // The last column stays free: some terminals wrap as soon as it is filled.
  const std::string text = elide_middle(line(), columns() - 1);
  if (color_ && counts_.failing > 0)
    write(fmt::format("{}{}{}{}", kClearLine, kRed, text, kPlain));
  else
    write(fmt::format("{}{}", kClearLine, text));
  on_screen_ = true;
}

}  // namespace faultline

// Progress for people, on stderr: on a terminal one line that rewrites itself (as ninja's), elsewhere a plain line now
// and again, so that a log file stays readable.
//
//   [17/48] 3 failing, 12 s left: c017 decode layers.3.self_attn.attention
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace faultline {

struct StatusOptions {
  int fd = 2;
  std::optional<bool> terminal;     // unset: ask the descriptor and $TERM
  std::optional<bool> color;        // unset: on a terminal, unless $NO_COLOR is set and not empty
  std::optional<int> width;         // columns; unset: ask the terminal
  double rewrite_interval_s = 0.1;  // on a terminal
  double plain_interval_s = 5;      // elsewhere
  std::function<double()> now;      // seconds; unset: the monotonic clock
};

struct StatusCounts {
  int done = 0;
  int total = 0;  // 0: unknown, then neither counts nor an estimate are shown
  int failing = 0;
};

class StatusLine {
 public:
  explicit StatusLine(StatusOptions options = {});
  ~StatusLine();  // finish()
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  // Shows the state, or keeps it for later when something was shown a moment ago.
  void update(const StatusCounts& counts, std::string_view text);
  // A line that stays, above the status.
  void note(std::string_view line);
  // Clears the terminal's line; elsewhere prints the last state if it was held back. The next update begins anew.
  void finish();

 private:
  std::string line() const;
  std::string estimate() const;
  int columns() const;
  void write(std::string_view text) const;
  void show();

  StatusOptions options_;
  bool terminal_ = false;
  bool color_ = false;
  StatusCounts counts_;
  std::string text_;
  double started_ = 0;
  int done_at_start_ = 0;
  bool active_ = false;     // an update has come since the start or the last finish
  bool on_screen_ = false;  // the terminal's line is ours
  bool held_back_ = false;
  std::optional<double> shown_at_;
};

// At most `width` columns; the middle is replaced by "..." (the counts and the op's name are at the ends). One code
// point is taken for one column.
std::string elide_middle(std::string_view text, int width);

}  // namespace faultline

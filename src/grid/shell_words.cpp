#include "grid/shell_words.h"

#include <algorithm>
#include <cctype>

namespace faultline {
namespace {

constexpr std::string_view kNoBreakSpace = "\xc2\xa0";  // what a web page puts between words
constexpr std::string_view kOperators = "|&;<>";

bool is_blank(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v';
}

bool is_name(std::string_view text) {
  if (text.empty() || std::isdigit(static_cast<unsigned char>(text.front())) != 0) return false;
  for (const char c : text)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') return false;
  return true;
}

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}

  Result<std::vector<ShellWord>> run() {
    while (skip_blanks()) {
      if (kOperators.find(peek()) != std::string_view::npos) {
        read_operator();
        continue;
      }
      FAULTLINE_TRY_STATUS(read_word());
    }
    return std::move(words_);
  }

 private:
  bool done() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  char take() {
    const char c = text_[at_++];
    if (c == '\n') {
      ++line_;
      column_ = 1;
    } else if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) {  // not the middle of a character
      ++column_;
    }
    return c;
  }

  // Blanks, comments, and backslashes that stand alone: the end of a line, or what was one before the lines were
  // joined.
  bool skip_blanks() {
    const size_t from = at_;
    const bool more = skip_to_word();
    if (at_ != from) joined_ = false;
    return more;
  }

  bool skip_to_word() {
    while (!done()) {
      if (is_blank(peek())) {
        take();
      } else if (text_.substr(at_).starts_with(kNoBreakSpace)) {
        take();
        take();
      } else if (peek() == '\\' && (is_blank(peek(1)) || at_ + 1 == text_.size())) {
        take();
      } else if (peek() == '#') {
        while (!done() && peek() != '\n') take();
      } else {
        return true;
      }
    }
    return false;
  }

  void read_operator() {
    ShellWord word;
    word.line = line_;
    word.column = column_;
    word.ends = true;
    // "2>&1": the number belongs to the redirection.
    if (peek() == '>' && !words_.empty() && joined_ && words_.back().text.size() == 1 &&
        std::isdigit(static_cast<unsigned char>(words_.back().text[0])) != 0)
      words_.pop_back();
    while (!done() && kOperators.find(peek()) != std::string_view::npos) word.text += take();
    words_.push_back(std::move(word));
    joined_ = false;
  }

  Status read_word() {
    ShellWord word;
    word.line = line_;
    word.column = column_;
    word.begin = at_;
    bool quoted = false;
    while (!done() && !is_blank(peek()) && kOperators.find(peek()) == std::string_view::npos &&
           !text_.substr(at_).starts_with(kNoBreakSpace)) {
      const char c = peek();
      if (c == '\'' || c == '"') {
        quoted = true;
        FAULTLINE_TRY_STATUS(read_quoted(word));
      } else if (c == '\\') {
        take();
        if (peek() == '\r' && peek(1) == '\n') take();
        if (done()) break;
        const char escaped = take();
        if (escaped != '\n') word.text += escaped;
      } else if (c == '$' && peek(1) == '(') {
        read_substitution(word);
      } else {
        if (c == '=' && !quoted && !word.assigns && word.literal) word.assigns = is_name(word.text);
        if (c == '$' || c == '`') word.literal = false;
        word.text += take();
      }
    }
    joined_ = true;
    word.end = at_;
    words_.push_back(std::move(word));
    return {};
  }

  Status read_quoted(ShellWord& word) {
    const size_t line = line_;
    const size_t column = column_;
    const char quote = take();
    while (!done() && peek() != quote) {
      if (quote == '"' && peek() == '\\' && at_ + 1 < text_.size()) {
        take();
        const char escaped = take();
        const bool special = escaped == '"' || escaped == '\\' || escaped == '$' || escaped == '`';
        if (!special && escaped != '\n') word.text += '\\';
        if (escaped != '\n') word.text += escaped;
        continue;
      }
      if (quote == '"' && (peek() == '$' || peek() == '`')) word.literal = false;
      word.text += take();
    }
    if (done()) return bad_input("{}this quote ({}) is never closed", place_in_line(line, column), quote);
    take();
    return {};
  }

  // "$(command)", as one piece.
  void read_substitution(ShellWord& word) {
    word.literal = false;
    size_t depth = 0;
    while (!done()) {
      const char c = take();
      word.text += c;
      if (c == '(') ++depth;
      if (c == ')' && --depth == 0) return;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t line_ = 1;
  size_t column_ = 1;
  bool joined_ = false;  // nothing stands between the last word and here
  std::vector<ShellWord> words_;
};

}  // namespace

Result<std::vector<ShellWord>> shell_words(std::string_view text) {
  return Lexer(text).run();
}

std::string place_in_line(size_t line, size_t column) {
  return fmt::format("server args:{}:{}: ", line, column);
}

}  // namespace faultline

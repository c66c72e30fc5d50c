// A report's content without its format: written once (compose.h), rendered as Markdown and as HTML. Text is raw here;
// each renderer escapes it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace faultline {

struct Span {
  enum class Kind { kText, kCode, kStrong };
  Kind kind = Kind::kText;
  std::string text;
};

// Running text: words, names of things (code), and what must not be overlooked (strong).
class Text {
 public:
  Text() = default;
  Text(std::string_view words) { text(words); }  // NOLINT(google-explicit-constructor): a sentence is the plainest Text
  Text(const std::string& words) : Text(std::string_view(words)) {}
  Text(const char* words) : Text(std::string_view(words)) {}

  Text& text(std::string_view words) { return add(Span::Kind::kText, words); }
  Text& code(std::string_view name) { return add(Span::Kind::kCode, name); }
  Text& strong(std::string_view words) { return add(Span::Kind::kStrong, words); }
  Text& append(const Text& other) {
    spans_.insert(spans_.end(), other.spans_.begin(), other.spans_.end());
    return *this;
  }
  bool empty() const { return spans_.empty(); }
  const std::vector<Span>& spans() const { return spans_; }

 private:
  Text& add(Span::Kind kind, std::string_view words) {
    if (!words.empty()) spans_.push_back({kind, std::string(words)});
    return *this;
  }
  std::vector<Span> spans_;
};

enum class Tone { kPlain, kGood, kBad, kMuted };

struct Cell {
  Text text;
  Tone tone = Tone::kPlain;
};

struct Block {
  enum class Kind { kHeading, kParagraph, kNote, kNumbered, kList, kTable, kCode, kFolded };
  Kind kind = Kind::kParagraph;
  int level = 2;             // headings: 1 … 3
  Text text;                 // heading, paragraph, note; of kFolded the line that stays visible
  std::vector<Text> items;   // kNumbered, kList
  std::vector<Text> header;  // kTable
  std::vector<std::vector<Cell>> rows;
  std::string code;             // kCode: lines to copy
  std::vector<Block> children;  // kFolded
};

class Document {
 public:
  std::string title;
  std::vector<Block> blocks;

  void heading(int level, Text text) { push(Block::Kind::kHeading, std::move(text)).level = level; }
  void paragraph(Text text) { push(Block::Kind::kParagraph, std::move(text)); }
  void note(Text text) { push(Block::Kind::kNote, std::move(text)); }
  void numbered(std::vector<Text> items) { push(Block::Kind::kNumbered, {}).items = std::move(items); }
  void list(std::vector<Text> items) { push(Block::Kind::kList, {}).items = std::move(items); }
  void code(std::string lines) { push(Block::Kind::kCode, {}).code = std::move(lines); }
  void table(std::vector<Text> header, std::vector<std::vector<Cell>> rows) {
    Block& block = push(Block::Kind::kTable, {});
    block.header = std::move(header);
    block.rows = std::move(rows);
  }
  void folded(Text line, Document content) {
    push(Block::Kind::kFolded, std::move(line)).children = std::move(content.blocks);
  }

 private:
  Block& push(Block::Kind kind, Text text) {
    Block& block = blocks.emplace_back();
    block.kind = kind;
    block.text = std::move(text);
    return block;
  }
};

}  // namespace faultline

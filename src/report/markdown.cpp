#include "report/markdown.h"

#include <fmt/format.h>

#include "report/compose.h"
#include "report/escape.h"

namespace faultline {
namespace {

std::string inline_markdown(const Text& text, bool in_table) {
  std::string line;
  for (const Span& span : text.spans()) {
    switch (span.kind) {
      case Span::Kind::kText:
        line += markdown_text(span.text);
        break;
      case Span::Kind::kCode:
        line += markdown_code(span.text, in_table);
        break;
      case Span::Kind::kStrong:
        line += "**" + markdown_text(span.text) + "**";
        break;
    }
  }
  return line;
}

// A line of text at the start of a block: nothing in it may open a list, quote, heading or rule.
std::string block_line(const Text& text) {
  std::string line = inline_markdown(text, false);
  const size_t first = line.find_first_not_of(' ');
  if (first == std::string::npos) return {};
  line.erase(0, first);
  const size_t digits = line.find_first_not_of("0123456789");
  if (digits != 0 && digits != std::string::npos && (line[digits] == '.' || line[digits] == ')')) {
    line.insert(digits, "\\");
  } else if (line[0] == '-' || line[0] == '+' || line[0] == '=' || line[0] == ':') {
    line.insert(0, "\\");
  }
  return line;
}

std::string table_markdown(const Block& block) {
  std::string text = "|";
  for (const Text& cell : block.header) text += " " + inline_markdown(cell, true) + " |";
  text += "\n|";
  for (size_t i = 0; i < block.header.size(); ++i) text += "---|";
  text += "\n";
  for (const std::vector<Cell>& row : block.rows) {
    text += "|";
    for (const Cell& cell : row) {
      const std::string content = inline_markdown(cell.text, true);
      text += cell.tone == Tone::kBad && !content.empty() ? " **" + content + "** |" : " " + content + " |";
    }
    text += "\n";
  }
  return text;
}

std::string code_markdown(const std::string& lines) {
  std::string inside;
  size_t begin = 0;
  while (begin < lines.size()) {
    size_t end = lines.find('\n', begin);
    if (end == std::string::npos) end = lines.size();
    inside += clean_text(std::string_view(lines).substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  std::string fence = "```";
  while (inside.find(fence) != std::string::npos) fence += '`';
  return fence + "\n" + inside + fence + "\n";
}

std::string blocks_markdown(const std::vector<Block>& blocks) {
  std::string text;
  for (const Block& block : blocks) {
    switch (block.kind) {
      case Block::Kind::kHeading:
        text += std::string(static_cast<size_t>(block.level), '#') + " " + inline_markdown(block.text, false) + "\n";
        break;
      case Block::Kind::kParagraph:
        text += block_line(block.text) + "\n";
        break;
      case Block::Kind::kNote:
        text += "> " + block_line(block.text) + "\n";
        break;
      case Block::Kind::kNumbered:
        for (size_t i = 0; i < block.items.size(); ++i)
          text += fmt::format("{}. {}\n", i + 1, block_line(block.items[i]));
        break;
      case Block::Kind::kList:
        for (const Text& item : block.items) text += "- " + block_line(item) + "\n";
        break;
      case Block::Kind::kTable:
        text += table_markdown(block);
        break;
      case Block::Kind::kCode:
        text += code_markdown(block.code);
        break;
      case Block::Kind::kFolded:
        // The only HTML in the file, and none of it from the findings.
        text += "<details><summary>" + inline_markdown(block.text, false) + "</summary>\n\n";
        text += blocks_markdown(block.children) + "</details>\n";
        break;
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string render_markdown(const Document& document) {
  std::string text = blocks_markdown(document.blocks);
  while (text.size() > 1 && text[text.size() - 2] == '\n') text.pop_back();
  return text;
}

std::string findings_markdown(const Findings& findings) {
  return render_markdown(compose(findings));
}

}  // namespace faultline

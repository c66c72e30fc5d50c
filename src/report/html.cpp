#include "report/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/compose.h"
#include "report/escape.h"
#include "report/phrases.h"

namespace faultline {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --ink: #1c2126; --soft: #5b6570; --line: #dde2e7; --page: #ffffff; --panel: #f5f7f9;
  --good: #17703d; --good-page: #e3f4e9; --bad: #a8201f; --bad-page: #fbe6e4; --muted-page: #edf0f3; --accent: #2459a9; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e8ec; --soft: #9aa5b1; --line: #333b44; --page: #14181c;
  --panel: #1c2228; --good: #7fd6a1; --good-page: #173324; --bad: #ff9d96; --bad-page: #41201f; --muted-page: #262d34;
  --accent: #8ab4f8; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 76rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 1rem; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 .75rem; padding-top: .75rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
p, li { max-width: 62rem; overflow-wrap: anywhere; }
li { margin: .3rem 0; }
h1 + ol { background: var(--panel); border: 1px solid var(--line); border-left: 4px solid var(--accent);
  border-radius: 6px; padding: .9rem 1.2rem .9rem 2.4rem; }
nav { color: var(--soft); font-size: .9rem; margin: 1rem 0; }
nav a { color: var(--accent); margin-right: 1rem; white-space: nowrap; }
code { font: .88em/1.4 ui-monospace, monospace; background: var(--muted-page); border-radius: 4px; padding: .1em .3em; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; }
pre code { background: none; padding: 0; }
.wide { overflow-x: auto; margin: .75rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: nowrap; }
td { max-width: 44rem; overflow-wrap: anywhere; }
.badge { border-radius: 999px; padding: .1em .65em; font-weight: 600; font-size: .85em; white-space: nowrap; }
.good { color: var(--good); background: var(--good-page); }
.bad { color: var(--bad); background: var(--bad-page); }
.muted { color: var(--soft); background: var(--muted-page); }
aside { background: var(--bad-page); border-radius: 6px; padding: .7rem 1rem; margin: .75rem 0; }
summary { cursor: pointer; color: var(--accent); margin: .5rem 0; }
@media print { nav { display: none; } body { font-size: 11pt; } }
)";

std::string inline_html(const Text& text) {
  std::string line;
  for (const Span& span : text.spans()) {
    const std::string words = xml_text(span.text);
    switch (span.kind) {
      case Span::Kind::kText:
        line += words;
        break;
      case Span::Kind::kCode:
        line += "<code>" + words + "</code>";
        break;
      case Span::Kind::kStrong:
        line += "<strong>" + words + "</strong>";
        break;
    }
  }
  return line;
}

std::string cell_html(const Cell& cell) {
  std::string content = inline_html(cell.text);
  switch (cell.tone) {
    case Tone::kPlain:
      return content;
    case Tone::kGood:
      return "<span class=\"badge good\">" + content + "</span>";
    case Tone::kBad:
      return "<span class=\"badge bad\">" + content + "</span>";
    case Tone::kMuted:
      return "<span class=\"badge muted\">" + content + "</span>";
  }
  return content;
}

std::string table_html(const Block& block) {
  std::string html = "<div class=\"wide\"><table>\n<thead><tr>";
  for (const Text& cell : block.header) html += "<th scope=\"col\">" + inline_html(cell) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (const std::vector<Cell>& row : block.rows) {
    html += "<tr>";
    for (const Cell& cell : row) html += "<td>" + cell_html(cell) + "</td>";
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string code_html(const std::string& lines) {
  std::string inside;
  size_t begin = 0;
  while (begin < lines.size()) {
    size_t end = lines.find('\n', begin);
    if (end == std::string::npos) end = lines.size();
    inside += xml_text(std::string_view(lines).substr(begin, end - begin)) + "\n";
    begin = end + 1;
  }
  return "<pre><code>" + inside + "</code></pre>\n";
}

std::string list_html(const Block& block, std::string_view element) {
  std::string html = fmt::format("<{}>\n", element);
  for (const Text& item : block.items) html += "<li>" + inline_html(item) + "</li>\n";
  return html + fmt::format("</{}>\n", element);
}

// Headings of level 2 are numbered as targets of the page's own links: section-1, section-2, …
std::string blocks_html(const std::vector<Block>& blocks, int& sections) {
  std::string html;
  for (const Block& block : blocks) {
    switch (block.kind) {
      case Block::Kind::kHeading: {
        const std::string id = block.level == 2 ? fmt::format(" id=\"section-{}\"", ++sections) : "";
        html += fmt::format("<h{0}{1}>{2}</h{0}>\n", block.level, id, inline_html(block.text));
        break;
      }
      case Block::Kind::kParagraph:
        html += "<p>" + inline_html(block.text) + "</p>\n";
        break;
      case Block::Kind::kNote:
        html += "<aside>" + inline_html(block.text) + "</aside>\n";
        break;
      case Block::Kind::kNumbered:
        html += list_html(block, "ol");
        break;
      case Block::Kind::kList:
        html += list_html(block, "ul");
        break;
      case Block::Kind::kTable:
        html += table_html(block);
        break;
      case Block::Kind::kCode:
        html += code_html(block.code);
        break;
      case Block::Kind::kFolded:
        html += "<details><summary>" + inline_html(block.text) + "</summary>\n" +
                blocks_html(block.children, sections) + "</details>\n";
        break;
    }
  }
  return html;
}

std::string navigation(const Document& document) {
  std::string html = "<nav aria-label=\"Sections\">";
  int sections = 0;
  for (const Block& block : document.blocks) {
    if (block.kind != Block::Kind::kHeading || block.level != 2) continue;
    html += fmt::format("<a href=\"#section-{}\">{}</a>\n", ++sections, xml_text(plain(block.text)));
  }
  return html + "</nav>\n";
}

}  // namespace

std::string render_html(const Document& document) {
  int sections = 0;
  std::string html = "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  html += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  // Nothing may be loaded or run, whatever a value of the findings holds.
  html += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n";
  html +=
      "<title>" + xml_text(document.title) + "</title>\n<style>" + std::string(kStyle) + "</style>\n</head>\n<body>\n";
  const auto first_section = std::find_if(document.blocks.begin(), document.blocks.end(), [](const Block& block) {
    return block.kind == Block::Kind::kHeading && block.level == 2;
  });
  html += "<main>\n" + blocks_html({document.blocks.begin(), first_section}, sections) + navigation(document);
  return html + blocks_html({first_section, document.blocks.end()}, sections) + "</main>\n</body>\n</html>\n";
}

std::string findings_html(const Findings& findings) {
  return render_html(compose(findings));
}

}  // namespace faultline

// Text from experiments, journals and checkpoints on its way into a report: made valid, then escaped for the format.
#pragma once

#include <string>
#include <string_view>

namespace faultline {

// Valid UTF-8 of characters that XML 1.0 allows: other bytes become U+FFFD, control characters (newlines too) a space,
// and the marks that reorder text on a screen are dropped.
std::string clean_text(std::string_view text);

// For running text and table cells: nothing in it is Markdown, HTML, or the end of a cell or line.
std::string markdown_text(std::string_view text);
// A code span with a fence longer than any run of backticks inside. `in_table` also escapes pipes.
std::string markdown_code(std::string_view text, bool in_table);

// For element content and quoted attribute values, of HTML and XML.
std::string xml_text(std::string_view text);

}  // namespace faultline

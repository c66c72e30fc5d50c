#include "report/escape.h"

#include <algorithm>
#include <cstdint>

namespace faultline {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Length of the well-formed UTF-8 sequence at `at` and its code point; 0 where there is none (Unicode 15, table 3-7).
size_t decode(std::string_view text, size_t at, uint32_t& code) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(at);
  size_t length = 0;
  uint32_t least = 0;
  if (lead < 0x80) {
    code = lead;
    return 1;
  }
  if ((lead & 0xE0U) == 0xC0) {
    length = 2;
    least = 0x80;
    code = lead & 0x1FU;
  } else if ((lead & 0xF0U) == 0xE0) {
    length = 3;
    least = 0x800;
    code = lead & 0x0FU;
  } else if ((lead & 0xF8U) == 0xF0) {
    length = 4;
    least = 0x10000;
    code = lead & 0x07U;
  } else {
    return 0;
  }
  if (text.size() - at < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xC0U) != 0x80) return 0;
    code = code << 6U | (byte(at + i) & 0x3FU);
  }
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < least || code > 0x10FFFF || surrogate ? 0 : length;
}

bool reorders(uint32_t code) {
  return (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0x200E || code == 0x200F;
}

bool word_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (static_cast<uint8_t>(c) & 0x80U);
}

}  // namespace

std::string clean_text(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    uint32_t code = 0;
    const size_t length = decode(text, at, code);
    if (length == 0 || code == 0xFFFE || code == 0xFFFF) {
      clean += kReplacement;
    } else if (code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x2028 || code == 0x2029) {
      clean += ' ';
    } else if (!reorders(code)) {
      clean += text.substr(at, length);
    }
    at += std::max<size_t>(length, 1);
  }
  return clean;
}

std::string markdown_text(std::string_view text) {
  const std::string clean = clean_text(text);
  std::string result;
  result.reserve(clean.size() + clean.size() / 8);
  for (size_t i = 0; i < clean.size(); ++i) {
    const char c = clean[i];
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '\\':
      case '`':
      case '*':
      case '|':
      case '[':
      case ']':
      case '~':
      case '#':
      case '$':
        result += '\\';
        result += c;
        break;
      case '_':
        // Inside a word an underscore is only itself, and names stay readable in the raw file.
        if (i == 0 || i + 1 == clean.size() || !word_character(clean[i - 1]) || !word_character(clean[i + 1]))
          result += '\\';
        result += c;
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::string markdown_code(std::string_view text, bool in_table) {
  std::string clean = clean_text(text);
  if (clean.find_first_not_of(' ') == std::string::npos) return {};
  size_t longest = 0;
  size_t run = 0;
  std::string inside;
  for (const char c : clean) {
    run = c == '`' ? run + 1 : 0;
    longest = std::max(longest, run);
    if (c == '|' && in_table) inside += '\\';
    inside += c;
  }
  const std::string fence(longest + 1, '`');
  const bool pad = clean.front() == '`' || clean.back() == '`';
  return fence + (pad ? " " : "") + inside + (pad ? " " : "") + fence;
}

std::string xml_text(std::string_view text) {
  const std::string clean = clean_text(text);
  std::string result;
  result.reserve(clean.size() + clean.size() / 8);
  for (const char c : clean) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace faultline

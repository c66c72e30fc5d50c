#include "grid/secrets.h"

#include <algorithm>
#include <cctype>

#include "grid/server_flags.h"

namespace faultline {
namespace {

constexpr std::string_view kDashes = "--";
constexpr size_t kShortestAbbreviation = 5;  // "--api"
// How tokens of Hugging Face, OpenAI, GitHub and NVIDIA begin.
constexpr std::string_view kTokenBeginnings[] = {"hf_", "sk-", "ghp_", "github_pat_", "nvapi-"};
constexpr size_t kShortestToken = 16;
constexpr std::string_view kSecretParts[] = {"key",    "token",      "secret",     "password",
                                             "passwd", "credential", "credentials"};

// One of the words of a name, which dashes or underscores hold apart, says that its value is a secret.
bool name_tells(std::string_view name) {
  std::string part;
  const auto tells = [&] {
    return std::find(std::begin(kSecretParts), std::end(kSecretParts), part) != std::end(kSecretParts);
  };
  for (const char c : name) {
    if (c != '-' && c != '_') {
      part += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
      continue;
    }
    if (tells()) return true;
    part.clear();
  }
  return tells();
}

// Of an abbreviation, whether a flag that it may stand for takes a secret.
bool flag_takes_secret(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  bool short_for_secret = false;
  for (const auto& flags : {flags_that_matter(), flags_without_effect()})
    for (const ServerFlag& flag : flags) {
      if (is_named(flag, name)) return flag.secret;
      short_for_secret =
          short_for_secret || (flag.secret && name.size() >= kShortestAbbreviation && flag.names.starts_with(name));
    }
  return short_for_secret || name_tells(name);
}

bool is_token(std::string_view text) {
  return text.size() >= kShortestToken &&
         std::any_of(std::begin(kTokenBeginnings), std::end(kTokenBeginnings),
                     [&](std::string_view beginning) { return text.starts_with(beginning); });
}

std::string redacted_value(std::string_view name) {
  return fmt::format("{}={}", name, kRedacted);
}

}  // namespace

void redact_words(std::vector<ShellWord>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    ShellWord& word = words[i];
    if (word.ends || !word.literal) continue;
    const size_t equals = word.text.find('=');
    const std::string name = word.text.substr(0, equals);
    const bool flag = name.starts_with(kDashes);
    if (equals != std::string::npos) {
      // "--env=HF_TOKEN=…" has a name within the value.
      const std::string value = word.text.substr(equals + 1);
      const size_t inner = value.find('=');
      const bool inner_tells = inner != std::string::npos && name_tells(std::string_view(value).substr(0, inner));
      if (inner_tells)
        word.text = redacted_value(name + "=" + value.substr(0, inner));
      else if (is_token(value) || (flag ? flag_takes_secret(name) : name_tells(name)))
        word.text = redacted_value(name);
      continue;
    }
    if (is_token(word.text)) word.text = kRedacted;
    if (!flag || !flag_takes_secret(name) || i + 1 == words.size()) continue;
    ShellWord& value = words[i + 1];
    if (!value.ends && value.literal && !value.text.starts_with(kDashes)) value.text = kRedacted;
  }
}

std::string redacted_line(std::string_view text) {
  auto words = shell_words(text);
  if (!words) return std::string(kRedacted);
  const std::vector<ShellWord> given = *words;
  redact_words(*words);
  std::string line;
  size_t at = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    if ((*words)[i].text == given[i].text) continue;
    line += text.substr(at, given[i].begin - at);
    line += (*words)[i].text;
    at = given[i].end;
  }
  line += text.substr(at);
  return line;
}

}  // namespace faultline

#include "grid/server_args.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <set>

#include "base/json.h"
#include "base/text.h"
#include "grid/axes.h"
#include "grid/secrets.h"
#include "grid/server_flags.h"
#include "grid/shell_words.h"

namespace faultline {
namespace {

constexpr std::string_view kDashes = "--";
constexpr std::string_view kNoValue = "-";  // in front of a word that no value begins with, unless it is a number

// U+2010 to U+2015 and U+2212: what a word processor makes of "--".
bool starts_with_typeset_dash(std::string_view text) {
  if (text.starts_with("\xe2\x88\x92")) return true;
  return text.size() >= 3 && text.starts_with("\xe2\x80") && static_cast<unsigned char>(text[2]) >= 0x90 &&
         static_cast<unsigned char>(text[2]) <= 0x95;
}

// The first byte that is not UTF-8 (or is NUL, which no command line can hold); npos: none.
size_t first_bad_byte(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto c = static_cast<unsigned char>(text[i]);
    const size_t more = c < 0x80 ? 0 : (c >> 5) == 0x6 ? 1 : (c >> 4) == 0xE ? 2 : (c >> 3) == 0x1E ? 3 : 4;
    if (c == 0 || more == 4 || i + more >= text.size() + (more == 0 ? 1 : 0)) return i;
    for (size_t k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xC0) != 0x80) return i;
    i += more + 1;
  }
  return std::string_view::npos;
}

bool is_number(std::string_view text) {
  double value = 0;
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  return code == std::errc() && end == text.data() + text.size();
}

std::optional<int64_t> integer_of(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// "4k", "1.5M", "2Ki" (sglang 93109cc utils/common.py:2229).
std::optional<int64_t> human_integer(std::string_view text) {
  constexpr std::pair<std::string_view, int64_t> kUnits[] = {{"Ki", int64_t{1} << 10},
                                                             {"Mi", int64_t{1} << 20},
                                                             {"Gi", int64_t{1} << 30},
                                                             {"Ti", int64_t{1} << 40},
                                                             {"k", 1'000},
                                                             {"M", 1'000'000},
                                                             {"G", 1'000'000'000},
                                                             {"T", 1'000'000'000'000}};
  constexpr double kMost = 1e15;
  for (const auto& [suffix, unit] : kUnits) {
    if (!text.ends_with(suffix)) continue;
    const std::string_view digits = text.substr(0, text.size() - suffix.size());
    double value = 0;
    const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (code != std::errc() || end != digits.data() + digits.size() || value < 0) return std::nullopt;
    value *= static_cast<double>(unit);
    if (!(value <= kMost)) return std::nullopt;
    return static_cast<int64_t>(value);
  }
  return integer_of(text);
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return result;
}

class Parser {
 public:
  Parser(std::vector<ShellWord> words, const Profile& profile)
      : words_(std::move(words)), profile_(profile), version_(server_version_of(profile.name)) {}

  Result<ServerLine> run() {
    find_command();
    if (end_ == 0) return error(words_.front(), "nothing to read in front of '{}'", words_.front().text);
    while (at_ < end_) {
      const ShellWord& word = words_[at_++];
      if (word.assigns && line_.kept.empty() && line_.axes.empty() && !seen_flag_) {
        note_environment(word.text);
        continue;
      }
      FAULTLINE_TRY_STATUS(read_flag(word));
      seen_flag_ = true;
    }
    settle_attention();
    settle_weights();
    if (end_ < words_.size())
      line_.notes.push_back(
          fmt::format("what follows '{}' is another command or a redirection, and is left out", words_[end_].text));
    return std::move(line_);
  }

 private:
  template <class... Args>
  static tl::unexpected<Error> error(const ShellWord& word, fmt::format_string<Args...> format, Args&&... args) {
    return bad_input("{}{}", place_in_line(word.line, word.column), fmt::format(format, std::forward<Args>(args)...));
  }

  // The arguments are what follows the program, up to the end of the simple command; without a program, all words.
  void find_command() {
    for (size_t i = 0; i < words_.size(); ++i) {
      const std::string& text = words_[i].text;
      const bool module = text.ends_with("sglang.launch_server") || text.ends_with("launch_server.py");
      const bool serve = (text == "sglang" || text.ends_with("/sglang")) && i + 1 < words_.size() &&
                         words_[i + 1].text == "serve" && !words_[i + 1].ends;
      if (words_[i].ends || (!module && !serve)) continue;
      at_ = i + (serve ? 2 : 1);
      break;
    }
    for (size_t i = 0; i < at_; ++i)
      if (words_[i].assigns) note_environment(words_[i].text);
    end_ = at_;
    while (end_ < words_.size() && !words_[end_].ends) ++end_;
  }

  void note_environment(const std::string& assignment) {
    line_.environment.push_back(assignment);
    const Remark* remark = find_environment_remark(assignment.substr(0, assignment.find('=')));
    if (remark != nullptr)
      line_.unmodelled.push_back({assignment, std::string(remark->text), std::string(remark->source)});
    else
      line_.ignored.push_back({assignment, "an environment variable that is not known to change what is computed", ""});
  }

  Status read_flag(const ShellWord& word) {
    if (starts_with_typeset_dash(word.text))
      return error(word, "'{}' begins with a typeset dash; type two hyphens, as '--attention-backend'",
                   quotable(word.text));
    if (!word.text.starts_with(kDashes)) {
      if (word.text.starts_with('-') && word.text.size() > 1)
        return error(word, "'{}': the server's flags have two dashes, as '-{}'", quotable(word.text),
                     quotable(word.text.substr(0, word.text.find('='))));
      return error(word,
                   "'{}' is no flag; a line is flags, alone or behind 'python -m sglang.launch_server' or 'sglang "
                   "serve'",
                   quotable(word.text));
    }
    const size_t equals = word.text.find('=');
    FAULTLINE_TRY(const std::string name, canonical_name(word, word.text.substr(0, equals)));
    const ServerFlag& flag = *find_server_flag(name, version_);
    std::vector<const ShellWord*> values;
    ShellWord joined = word;
    if (equals != std::string::npos) {
      joined.text = word.text.substr(equals + 1);
      joined.column += equals + 1;
      if (flag.takes == '0') return error(word, "{} takes no value", name);
      values.push_back(&joined);
    } else {
      FAULTLINE_TRY_STATUS(take_values(word, name, flag, values));
    }
    for (const ShellWord* value : values) FAULTLINE_TRY_STATUS(check_type(*value, name, flag));
    if (!given_.insert(flag.names).second)
      line_.notes.push_back(fmt::format("{} is given more than once; the last one counts, as for the server", name));
    return apply(name, flag, values);
  }

  // argparse's rules: a value is a word that does not begin with a dash, or a negative number.
  bool is_value(const ShellWord& word) const {
    return !word.text.starts_with(kNoValue) || word.text == kNoValue || is_number(word.text);
  }

  Status take_values(const ShellWord& word, const std::string& name, const ServerFlag& flag,
                     std::vector<const ShellWord*>& values) {
    if (flag.takes == '0') return {};
    const bool several = flag.takes == '+' || flag.takes == '*';
    while (at_ < end_ && is_value(words_[at_]) && (several || values.empty())) values.push_back(&words_[at_++]);
    if (values.empty() && flag.takes != '*' && flag.takes != '?')
      return error(word, "{} needs a value{}", name,
                   at_ < end_ ? fmt::format(", and '{}' follows", quotable(words_[at_].text)) : "");
    return {};
  }

  // The server's spelling. Underscores are dashes, an unambiguous beginning is the whole name.
  Result<std::string> canonical_name(const ShellWord& word, std::string name) {
    if (find_server_flag(name, version_) != nullptr) return name;
    std::string dashed = name;
    std::replace(dashed.begin(), dashed.end(), '_', '-');
    if (find_server_flag(dashed, version_) != nullptr) {
      line_.notes.push_back(fmt::format("{} is spelled {} on the server's command line", quotable(name), dashed));
      return dashed;
    }
    std::set<const ServerFlag*> meant;
    std::vector<std::string> spellings;
    if (dashed.size() > kDashes.size())
      for (const std::string& known : server_flag_names(version_)) {
        if (!known.starts_with(dashed)) continue;
        meant.insert(find_server_flag(known, version_));
        spellings.push_back(known);
      }
    if (meant.size() == 1) return spellings.front();
    if (!meant.empty()) {
      constexpr size_t kShown = 4;
      if (spellings.size() > kShown) spellings.resize(kShown);
      return error(word, "'{}' may be {}", quotable(name), fmt::format("{}", fmt::join(spellings, " or ")));
    }
    return error(word, "unknown flag '{}'{}", quotable(name), near_flag(dashed));
  }

  std::string near_flag(const std::string& name) const {
    const std::string near = nearest_name(name, server_flag_names(version_));
    if (!near.empty()) return fmt::format("; did you mean '{}'?", near);
    return fmt::format("; it is none of {}'s flags, nor of another version's that is known here", profile_.name);
  }

  Status check_type(const ShellWord& value, const std::string& name, const ServerFlag& flag) const {
    if (!value.literal) {
      if (flag.role >= FlagRole::kServing) return {};
      return error(value, "'{}' of {} is for the shell to replace; write what it stands for", quotable(value.text),
                   name);
    }
    const char takes = flag.takes;
    if (takes == 'i' && !integer_of(value.text))
      return error(value, "{} takes an integer, not '{}'", name, quotable(value.text));
    if (takes == 'h' && !human_integer(value.text))
      return error(value, "{} takes an integer, as 4096 or 4k, not '{}'", name, quotable(value.text));
    if (takes == 'f' && !is_number(value.text))
      return error(value, "{} takes a number, not '{}'", name, quotable(value.text));
    if (takes == 'j')
      if (const auto json = parse_json(value.text, name); !json)
        return error(value, "{} takes JSON ({}); quote it against the shell", name, json.error().message);
    return {};
  }

  Status apply(const std::string& name, const ServerFlag& flag, const std::vector<const ShellWord*>& values) {
    std::string words = name;
    for (const ShellWord* value : values) words += " " + (value->literal ? shell_word(value->text) : value->text);
    if ((flag.versions & version_) == 0)
      line_.refused.push_back(
          {words,
           fmt::format("{} has no such flag and stops at it (\"unrecognized arguments\"); {} has it", profile_.name,
                       first_profile_with(flag)),
           flag_source(flag)});
    const ShellWord* value = values.empty() ? nullptr : values.front();
    switch (flag.role) {
      case FlagRole::kAxis:
        return set_axis(*value, std::string(flag.detail), name, words, flag);
      case FlagRole::kSets: {
        const size_t equals = flag.detail.find('=');
        set(std::string(flag.detail.substr(0, equals)), std::string(flag.detail.substr(equals + 1)), words, flag);
        return {};
      }
      case FlagRole::kDecodeGraph:
        set("cuda_graph", value->text == "disabled" ? "off" : "on", words, flag);
        return {};
      case FlagRole::kSplitAttention: {
        FAULTLINE_TRY(const std::string backend, axis_value(*value, *find_axis("attention_backend"), name));
        (name.starts_with("--prefill") ? prefill_attention_ : decode_attention_) = {backend, words, flag_source(flag)};
        return {};
      }
      case FlagRole::kModel:
        line_.model = value->text;
        keep(name, values);
        return {};
      case FlagRole::kWeights:
        weights_ = value->text;
        keep(name, values);
        return {};
      default:
        keep(name, values);
        mention(words, flag, value);
        return {};
    }
  }

  void keep(const std::string& name, const std::vector<const ShellWord*>& values) {
    line_.kept.push_back(name);
    for (const ShellWord* value : values) line_.kept.push_back(value->literal ? shell_word(value->text) : value->text);
  }

  void mention(const std::string& words, const ServerFlag& flag, const ShellWord* value) {
    const bool ignored = flag.role >= FlagRole::kServing;
    const bool neutral =
        value != nullptr && (" " + std::string(flag.detail) + " ").find(" " + value->text + " ") != std::string::npos;
    const Remark* remark = find_remark(flag.names.substr(0, flag.names.find(' ')));
    FlagMention entry{words, std::string(remark != nullptr ? remark->text : role_meaning(flag.role)),
                      std::string(remark != nullptr ? remark->source : flag_source(flag))};
    if (neutral) entry.why = "as without the flag";
    (ignored || neutral ? line_.ignored : line_.unmodelled).push_back(std::move(entry));
  }

  // What a choice of the server's may be, in any version: an axis also has values of this program's own.
  Result<std::string> axis_value(const ShellWord& word, const Axis& axis, const std::string& name) const {
    auto canonical = canonical_value(axis, word.text);
    if (!canonical && axis.name == "attention_backend" && word.text.empty()) return error(word, "{} is empty", name);
    std::vector<std::string> choices;
    for (const std::string& profile : profile_names())
      for (const FlagChoices& flag : find_profile(profile)->choices)
        if (flag.axis == axis.name)
          for (const std::string& choice : flag.values)
            if (std::find(choices.begin(), choices.end(), choice) == choices.end()) choices.push_back(choice);
    if (choices.empty()) {
      if (!canonical) return error(word, "{}: {}", name, canonical.error().message);
      return canonical;
    }
    choices.insert(choices.begin(), std::string(kAuto));
    if (!canonical || std::find(choices.begin(), choices.end(), *canonical) == choices.end())
      return error(word, "{} has no value '{}'{}", name, quotable(word.text), suggestion(word.text, choices));
    return canonical;
  }

  Status set_axis(const ShellWord& word, const std::string& axis_name, const std::string& name,
                  const std::string& words, const ServerFlag& flag) {
    const Axis* axis = find_axis(axis_name);
    ShellWord meant = word;
    if (axis_name == "chunked_prefill_size") {
      const std::optional<int64_t> tokens = integer_of(word.text);
      if (tokens && *tokens <= 0) meant.text = "0";  // the server's -1: a prompt is prefilled whole
    }
    if (flag.takes == 'h') meant.text = std::to_string(*human_integer(word.text));
    if (axis == nullptr) {
      set(axis_name, meant.text, words, flag);
      return {};
    }
    FAULTLINE_TRY(const std::string value, axis_value(meant, *axis, name));
    set(axis_name, value, words, flag);
    return {};
  }

  // An axis that this build does not have is a flag that is not modelled.
  void set(const std::string& axis, const std::string& value, const std::string& words, const ServerFlag& flag) {
    if (find_axis(axis) == nullptr) {
      line_.kept.push_back(words);
      line_.unmodelled.push_back({words, "this build has no such setting", flag_source(flag)});
      return;
    }
    line_.axes[axis] = value;
  }

  struct PhaseAttention {
    std::string backend;  // empty: not given
    std::string words;
    std::string source;
  };

  // One backend serves both phases here. A flag for one phase wins over --attention-backend in the server.
  void settle_attention() {
    const auto given = line_.axes.find("attention_backend");
    const std::string both = given == line_.axes.end() ? std::string(kAuto) : given->second;
    const std::string prefill = prefill_attention_.backend.empty() ? both : prefill_attention_.backend;
    const std::string decode = decode_attention_.backend.empty() ? both : decode_attention_.backend;
    if (prefill_attention_.backend.empty() && decode_attention_.backend.empty()) return;
    line_.axes["attention_backend"] = decode;
    if (prefill == decode) return;
    for (const PhaseAttention* phase : {&prefill_attention_, &decode_attention_})
      if (!phase->backend.empty())
        line_.unmodelled.push_back(
            {phase->words,
             fmt::format("{}; the answer is for {} in both", role_meaning(FlagRole::kSplitAttention), decode),
             phase->source});
  }

  void settle_weights() {
    if (!weights_.empty()) {
      line_.nvfp4 = weights_ == "modelopt_fp4" || weights_ == "modelopt_mixed" || weights_ == "nvfp4";
      if (!*line_.nvfp4)
        line_.unmodelled.push_back({"--quantization " + shell_word(weights_),
                                    std::string(role_meaning(FlagRole::kWeights)),
                                    flag_source(*find_server_flag("--quantization", version_))});
      return;
    }
    const std::string name = lower(line_.model);
    if (name.find("fp4") != std::string::npos) line_.nvfp4 = true;
    if (name.find("fp8") != std::string::npos || name.find("bf16") != std::string::npos) line_.nvfp4 = false;
  }

  std::vector<ShellWord> words_;
  const Profile& profile_;
  uint8_t version_ = 0;
  size_t at_ = 0;
  size_t end_ = 0;
  bool seen_flag_ = false;
  std::set<std::string_view> given_;
  PhaseAttention prefill_attention_;
  PhaseAttention decode_attention_;
  std::string weights_;
  ServerLine line_;
};

}  // namespace

Result<ServerLine> parse_server_args(std::string_view text, const Profile& profile) {
  if (text.size() > kMaxServerLine)
    return bad_input("server args: {} is more than the {} that a line may have", bytes_text(text.size()),
                     bytes_text(kMaxServerLine));
  if (const size_t bad = first_bad_byte(text); bad != std::string_view::npos)
    return bad_input("server args: byte {} (0x{:02x}) is not text (UTF-8); paste the line again", bad + 1,
                     static_cast<unsigned>(static_cast<unsigned char>(text[bad])));
  FAULTLINE_TRY(std::vector<ShellWord> words, shell_words(text));
  redact_words(words);
  if (words.empty())
    return bad_input(
        "server args: nothing to read; paste the server's command line, as '--attention-backend triton --tp 8'");
  return Parser(std::move(words), profile).run();
}

}  // namespace faultline

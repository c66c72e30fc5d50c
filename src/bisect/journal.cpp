#include "bisect/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#define XXH_INLINE_ALL  // the header alone, no library to link
#include <xxhash.h>

#include <cerrno>
#include <filesystem>

#include "base/fd.h"
#include "base/json.h"

namespace faultline {

namespace {

constexpr std::string_view kBefore = R"({"xxh64":")";
constexpr std::string_view kBetween = R"(","entry":)";
constexpr std::string_view kAfter = "}";
constexpr size_t kDigits = 16;
constexpr std::string_view kRepair = "restore the file from a copy, or start a new run without --resume";

std::string checksum(std::string_view text) {
  return fmt::format("{:016x}", XXH64(text.data(), text.size(), 0));
}

nlohmann::json header_to_json(const JournalHeader& header) {
  return {{"entry", "header"},        {"schema", kJournalSchema},
          {"run_id", header.run_id},  {"experiment_hash", header.experiment_hash},
          {"model", header.model},    {"arguments", header.arguments},
          {"started", header.started}};
}

Result<JournalHeader> header_from_json(const nlohmann::json& json, std::string_view where) {
  try {
    if (json.value("entry", "") != "header") return bad_input("{}:1: the first line is no header; {}", where, kRepair);
    const int schema = json.at("schema").get<int>();
    if (schema != kJournalSchema)
      return bad_input("{}:1: written by another version of Faultline (schema {}, this one reads {}); use that version",
                       where, schema, kJournalSchema);
    JournalHeader header;
    json.at("run_id").get_to(header.run_id);
    json.at("experiment_hash").get_to(header.experiment_hash);
    json.at("model").get_to(header.model);
    json.at("arguments").get_to(header.arguments);
    json.at("started").get_to(header.started);
    return header;
  } catch (const nlohmann::json::exception& error) {
    return bad_input("{}:1: a broken header: {}; {}", where, error.what(), kRepair);
  }
}

// `line` is without its newline.
Result<nlohmann::json> parse_line(std::string_view line, std::string_view where, size_t number) {
  const auto corrupt = [&](std::string_view why) {
    return bad_input("{}:{}: corrupt journal line: {}; {}", where, number, why, kRepair);
  };
  const size_t entry_at = kBefore.size() + kDigits + kBetween.size();
  if (line.size() < entry_at + kAfter.size() || !line.starts_with(kBefore) || !line.ends_with(kAfter) ||
      line.substr(kBefore.size() + kDigits, kBetween.size()) != kBetween)
    return corrupt("not of the form {\"xxh64\":…,\"entry\":…}");
  const std::string_view entry = line.substr(entry_at, line.size() - entry_at - kAfter.size());
  if (checksum(entry) != line.substr(kBefore.size(), kDigits)) return corrupt("the checksum does not match");
  auto json = parse_json(entry, fmt::format("{}:{}", where, number));
  if (!json) return tl::make_unexpected(json.error());
  if (!json->is_object()) return corrupt("the entry is no object");
  return json;
}

Result<UniqueFd> open_locked(const std::string& path, int flags) {
  constexpr mode_t kMode = 0666;
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC | flags, kMode));
  if (!fd.valid()) {
    if (errno == EEXIST)
      return bad_input("{}: there is a journal already; go on with it by --resume, or choose another folder", path);
    return bad_input("{}", system_error_text("open", path, errno));
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK)
      return bad_input("{}: another run of Faultline is writing it; wait for that run, or end it", path);
    return bad_input("{}: cannot be locked: {}; choose an output folder on another file system", path,
                     errno_text(errno));
  }
  return fd;
}

}  // namespace

std::string journal_line(const nlohmann::json& entry) {
  const std::string text = dump_json(entry);
  return fmt::format("{}{}{}{}{}\n", kBefore, checksum(text), kBetween, text, kAfter);
}

Result<JournalContents> parse_journal(std::string_view text, std::string_view where) {
  JournalContents contents;
  std::vector<nlohmann::json> entries;
  size_t begin = 0;
  for (size_t number = 1; begin < text.size(); ++number) {
    const size_t newline = text.find('\n', begin);
    if (newline == std::string_view::npos) {
      contents.warnings.push_back(
          fmt::format("{}:{}: the last line was cut when its run was killed; dropped, what it "
                      "told is done again",
                      where, number));
      break;
    }
    FAULTLINE_TRY(nlohmann::json entry, parse_line(text.substr(begin, newline - begin), where, number));
    entries.push_back(std::move(entry));
    begin = newline + 1;
  }
  if (entries.empty())
    return bad_input("{}: holds no header: the run was killed before it began; start a new run without --resume",
                     where);
  FAULTLINE_TRY(contents.header, header_from_json(entries.front(), where));
  entries.erase(entries.begin());
  contents.entries = std::move(entries);
  contents.sound_bytes = begin;
  return contents;
}

Result<JournalContents> load_journal(const std::string& path) {
  FAULTLINE_TRY(const std::string text, read_file(path, kMaxJournalBytes));
  return parse_journal(text, path);
}

Result<Journal> Journal::create(const std::string& path, const JournalHeader& header) {
  FAULTLINE_TRY(UniqueFd fd, open_locked(path, O_CREAT | O_EXCL));
  Journal journal(std::move(fd), path, 0);
  auto written = journal.append(header_to_json(header));
  const std::string parent = std::filesystem::path(path).parent_path().string();
  if (written) written = sync_directory(parent.empty() ? "." : parent);
  if (!written) {
    ::unlink(path.c_str());
    return tl::make_unexpected(written.error());
  }
  return journal;
}

Result<Journal> Journal::resume(const std::string& path, JournalContents& contents) {
  FAULTLINE_TRY(UniqueFd fd, open_locked(path, 0));
  FAULTLINE_TRY(contents, load_journal(path));
  if (::ftruncate(fd.get(), static_cast<off_t>(contents.sound_bytes)) != 0)
    return bad_input("{}", system_error_text("write", path, errno));
  return Journal(std::move(fd), path, contents.sound_bytes);
}

Status Journal::write_failed(int error) const {
  // Nothing of the line that did not fit stays behind.
  const bool whole = ::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) == 0;
  return bad_input("{}{}", system_error_text("write", path_, error),
                   whole ? "; then go on with --resume" : "; its last line is torn, --resume drops it");
}

Status Journal::append(const nlohmann::json& entry, Durability durability) {
  FAULTLINE_CHECK(entry.is_object());
  const std::string line = journal_line(entry);
  ssize_t wrote;
  do wrote = ::write(fd_.get(), line.data(), line.size());
  while (wrote < 0 && errno == EINTR);
  if (wrote < 0) return write_failed(errno);
  // A disk takes less than all only when it is full.
  if (static_cast<size_t>(wrote) != line.size()) return write_failed(ENOSPC);
  bytes_ += line.size();
  unsynced_ = true;
  return durability == Durability::kNow ? sync() : Status{};
}

Status Journal::sync() {
  if (!unsynced_) return {};
  if (::fdatasync(fd_.get()) != 0) return bad_input("{}", system_error_text("write", path_, errno));
  unsynced_ = false;
  return {};
}

}  // namespace faultline

// journal.jsonl: what happened in a run, line by line, each line on disk before anybody acts on it. A run that was
// killed resumes from it, and a report is written again from it.
//
//   {"xxh64":"<16 hex digits>","entry":<one JSON object>}\n
//
// The checksum is the XXH64 (seed 0) of the entry's bytes as they stand in the line. The first entry is the header. A
// line is written by one write(2), so a run that dies leaves at most one torn line, the last, without its newline.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace faultline {

inline constexpr int kJournalSchema = 1;
inline constexpr size_t kMaxJournalBytes = size_t{4} << 30;  // more is refused, unread

struct JournalHeader {
  std::string run_id;
  std::string experiment_hash;         // of the experiment's canonical text: a resumed run must have the same
  std::string model;                   // identity of the weights
  std::vector<std::string> arguments;  // argv of the run
  std::string started;                 // UTC
  bool operator==(const JournalHeader&) const = default;
};

struct JournalContents {
  JournalHeader header;
  std::vector<nlohmann::json> entries;  // without the header
  std::vector<std::string> warnings;    // a torn last line, and what that means
  size_t sound_bytes = 0;               // what precedes a torn line
};

// The line of one entry, with its newline.
std::string journal_line(const nlohmann::json& entry);
// `where` (a path) goes into messages. Bad input, with the number of the line: no header, another schema, a line that
// is complete and yet no sound entry. A torn last line is dropped with a warning.
Result<JournalContents> parse_journal(std::string_view text, std::string_view where);
// Reading alone takes no lock: a running journal can be read.
Result<JournalContents> load_journal(const std::string& path);

enum class Durability : uint8_t {
  kNow,    // on disk when append returns
  kLater,  // written when append returns: it survives our death, and the machine's from the next kNow or sync() on
};

// The one writer of a journal. The file is locked for as long as it lives.
class Journal {
 public:
  // A new file. Bad input when there is one already, or when it cannot be written.
  static Result<Journal> create(const std::string& path, const JournalHeader& header);
  // Goes on with an old one, whose entries are moved to `contents`; a torn last line is cut off. Bad input when another
  // process is writing it, and as load_journal.
  static Result<Journal> resume(const std::string& path, JournalContents& contents);

  // An object of at most kMaxFrameBytes (protocol.h) or so. After an error (bad input: full or read-only disk) the file
  // ends with the last whole line, and the run should end.
  Status append(const nlohmann::json& entry, Durability durability = Durability::kNow);
  Status sync();

  const std::string& path() const { return path_; }

 private:
  Journal(UniqueFd fd, std::string path, uint64_t bytes) : fd_(std::move(fd)), path_(std::move(path)), bytes_(bytes) {}
  Status write_failed(int error) const;

  UniqueFd fd_;
  std::string path_;
  uint64_t bytes_;  // of whole lines
  bool unsynced_ = false;
};

}  // namespace faultline

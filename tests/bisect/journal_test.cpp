#include "bisect/journal.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bisect/run_directory.h"
#include "testing.h"

using namespace faultline;
using nlohmann::json;

namespace {

namespace fs = std::filesystem;

struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "faultline-journal-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return path + "/" + name; }
  std::string path;
};

const JournalHeader kHeader{"run-1", "abcd", "synth:tiny", {"faultline", "bisect", "x.yaml"}, "2025-01-01T00:00:00Z"};

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

void append_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

// A journal with two entries, closed.
std::string two_entries(const Folder& folder) {
  const std::string path = folder.file("journal.jsonl");
  auto journal = Journal::create(path, kHeader);
  REQUIRE(journal);
  REQUIRE(journal->append({{"entry", "event"}, {"i", 1}}));
  REQUIRE(journal->append({{"entry", "event"}, {"i", 2}}, Durability::kLater));
  REQUIRE(journal->sync());
  return path;
}

bool mentions(const Error& error, const std::string& text) {
  return error.message.find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("what is appended is loaded again, with its header") {
  const Folder folder;
  const auto contents = load_journal(two_entries(folder));
  REQUIRE(contents);
  CHECK(contents->header == kHeader);
  CHECK(contents->warnings.empty());
  REQUIRE(contents->entries.size() == 2);
  CHECK(contents->entries[0].at("i") == 1);
  CHECK(contents->entries[1].at("i") == 2);
}

TEST_CASE("every line is a JSON object with its checksum") {
  const Folder folder;
  std::stringstream lines(text_of(two_entries(folder)));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json object = json::parse(line);
    CHECK(object.size() == 2);
    CHECK(object.at("xxh64").get<std::string>().size() == 16);
    CHECK(object.at("entry").is_object());
  }
  CHECK(count == 3);
  // XXH64 with seed 0 of "{}" (the published algorithm; xxhsum -H64 prints the same).
  CHECK(journal_line(json::object()) ==
        "{\"xxh64\":\""
        "2e1472b57af294d1"
        "\",\"entry\":{}}\n");
}

TEST_CASE("a torn last line is dropped with a warning, wherever it was cut, and cut off when the run goes on") {
  const Folder folder;
  const std::string path = two_entries(folder);
  const std::string whole = text_of(path);
  const size_t last_line = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t length = last_line + 1; length < whole.size(); ++length) {
    const auto cut = parse_journal(std::string_view(whole).substr(0, length), path);
    REQUIRE(cut);
    CHECK(cut->entries.size() == 1);
    CHECK(cut->warnings.size() == 1);
    CHECK(cut->sound_bytes == last_line);
  }
  fs::resize_file(path, whole.size() - 5);
  JournalContents contents;
  {
    auto journal = Journal::resume(path, contents);
    REQUIRE(journal);
    CHECK(contents.entries.size() == 1);
    REQUIRE(journal->append({{"entry", "event"}, {"i", 3}}));
  }
  const auto again = load_journal(path);
  REQUIRE(again);
  CHECK(again->warnings.empty());
  REQUIRE(again->entries.size() == 2);
  CHECK(again->entries[1].at("i") == 3);
}

TEST_CASE("any flipped bit of a whole line is found and its line named") {
  const Folder folder;
  const std::string path = two_entries(folder);
  const std::string whole = text_of(path);
  const size_t begin = whole.find('\n') + 1;
  const size_t end = whole.find('\n', begin);
  for (size_t at = begin; at < end; ++at) {
    std::string flipped = whole;
    flipped[at] = static_cast<char>(flipped[at] ^ 4);
    const auto contents = parse_journal(flipped, "journal.jsonl");
    REQUIRE_FALSE(contents);
    CHECK(contents.error().kind == ErrorKind::kBadInput);
    CHECK(mentions(contents.error(), "journal.jsonl:2: corrupt journal line"));
    CHECK(mentions(contents.error(), "start a new run"));
  }
}

TEST_CASE("a missing, doubled or foreign piece inside is corrupt too") {
  const Folder folder;
  const std::string path = two_entries(folder);
  const std::string line = GENERATE(std::string("\n"), std::string("{}\n"), std::string("not json\n"),
                                    std::string("{\"xxh64\":\"0000000000000000\",\"entry\":{}}\n"));
  append_text(path, line);
  const auto contents = load_journal(path);
  REQUIRE_FALSE(contents);
  CHECK(mentions(contents.error(), ":4: corrupt journal line"));
}

TEST_CASE("an entry that is no object is refused though its checksum is right") {
  const Folder folder;
  const std::string path = two_entries(folder);
  append_text(path, journal_line(json::array()));
  const auto contents = load_journal(path);
  REQUIRE_FALSE(contents);
  CHECK(mentions(contents.error(), ":4:"));
}

TEST_CASE("a journal without its header, or of another version, is refused") {
  CHECK_FALSE(parse_journal("", "j"));
  CHECK(mentions(parse_journal("", "j").error(), "no header"));
  CHECK(mentions(parse_journal("{\"xxh64\":\"12", "j").error(), "no header"));
  CHECK(mentions(parse_journal(journal_line({{"entry", "event"}}), "j").error(), "no header"));
  CHECK(mentions(parse_journal(journal_line({{"entry", "header"}, {"schema", 2}}), "j").error(), "another version"));
  CHECK(mentions(parse_journal(journal_line({{"entry", "header"}, {"schema", 1}}), "j").error(), "broken header"));
  CHECK(mentions(parse_journal(journal_line({{"entry", 1}, {"schema", 1}}), "j").error(), "broken header"));
}

TEST_CASE("a second driver is refused while the first lives, reading is not") {
  const Folder folder;
  const std::string path = folder.file("journal.jsonl");
  JournalContents contents;
  {
    const auto first = Journal::create(path, kHeader);
    REQUIRE(first);
    const auto second = Journal::resume(path, contents);
    REQUIRE_FALSE(second);
    CHECK(second.error().kind == ErrorKind::kBadInput);
    CHECK(mentions(second.error(), "another run"));
    CHECK(load_journal(path));
  }
  CHECK(Journal::resume(path, contents));
}

TEST_CASE("an existing journal is never overwritten") {
  const Folder folder;
  const std::string path = two_entries(folder);
  const std::string before = text_of(path);
  const auto journal = Journal::create(path, kHeader);
  REQUIRE_FALSE(journal);
  CHECK(mentions(journal.error(), "--resume"));
  CHECK(text_of(path) == before);
}

TEST_CASE("a file that may not grow ends with its last whole line and an error value") {
  const Folder folder;
  const std::string path = folder.file("journal.jsonl");
  auto journal = Journal::create(path, kHeader);
  REQUIRE(journal);
  const std::string before = text_of(path);
  rlimit old{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &old) == 0);
  void (*handler)(int) = ::signal(SIGXFSZ, SIG_IGN);
  rlimit tight = old;
  tight.rlim_cur = before.size() + 10;  // part of the line would fit
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &tight) == 0);
  const Status status = journal->append({{"entry", "event"}, {"text", std::string(100, 'x')}});
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &old) == 0);
  ::signal(SIGXFSZ, handler);
  REQUIRE_FALSE(status);
  CHECK(status.error().kind == ErrorKind::kBadInput);
  CHECK(mentions(status.error(), path));
  CHECK(text_of(path) == before);
  CHECK(journal->append({{"entry", "event"}}));
  CHECK(load_journal(path)->entries.size() == 1);
}

TEST_CASE("a folder that cannot be written is an error value that names it") {
  // /proc refuses new entries even to root, as a read-only disk would.
  const auto journal = Journal::create("/proc/faultline-journal.jsonl", kHeader);
  REQUIRE_FALSE(journal);
  CHECK(journal.error().kind == ErrorKind::kBadInput);
  CHECK(mentions(journal.error(), "/proc/faultline-journal.jsonl"));
  const auto run = RunDirectory::create("/proc/faultline-reports", "x");
  REQUIRE_FALSE(run);
  CHECK(run.error().kind == ErrorKind::kBadInput);
  CHECK(mentions(run.error(), "/proc/faultline-reports"));
}

TEST_CASE("a folder without permission is an error value") {
  if (::geteuid() == 0) return;  // root may write anywhere
  const Folder folder;
  REQUIRE(::chmod(folder.path.c_str(), 0500) == 0);
  CHECK_FALSE(Journal::create(folder.file("journal.jsonl"), kHeader));
  CHECK_FALSE(RunDirectory::create(folder.path, "x"));
  ::chmod(folder.path.c_str(), 0700);
}

TEST_CASE("runs of one second have folders of their own") {
  const Folder folder;
  const auto a = RunDirectory::create(folder.file("reports/deep"), "incident");
  const auto b = RunDirectory::create(folder.file("reports/deep"), "incident");
  REQUIRE(a);
  REQUIRE(b);
  CHECK(a->path() != b->path());
  CHECK(fs::is_directory(a->path()));
  CHECK(fs::is_directory(b->path()));
  CHECK(a->id().starts_with("incident-2"));
}

TEST_CASE("an experiment's name cannot lead out of the reports folder") {
  const Folder folder;
  const std::string name = GENERATE(std::string("../../x"), std::string("a/b"), std::string(".."), std::string(""),
                                    std::string(300, 'n'), std::string("-rf *"));
  const auto run = RunDirectory::create(folder.path, name);
  REQUIRE(run);
  CHECK(fs::canonical(run->path()).parent_path() == fs::canonical(folder.path));
  CHECK(run->id().find_first_of("/ *") == std::string::npos);
  CHECK(run->id().front() != '-');
}

TEST_CASE("a run's folder holds run.json and subfolders and is opened again once it has a journal") {
  const Folder folder;
  const auto run = RunDirectory::create(folder.path, "incident");
  REQUIRE(run);
  REQUIRE(run->write_run_json({{"seed", 7}}));
  REQUIRE(run->write_run_json({{"seed", 8}}));
  CHECK(run->read_run_json()->at("seed") == 8);
  CHECK(fs::is_directory(run->subfolder("cases").value()));
  CHECK(run->subfolder("cases"));
  CHECK_FALSE(RunDirectory::open(run->path()));
  REQUIRE(Journal::create(run->journal_path(), kHeader));
  const auto opened = RunDirectory::open(run->path() + "/");
  REQUIRE(opened);
  CHECK(opened->path() == run->path());
}

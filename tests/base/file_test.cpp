#include "base/file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include "testing.h"

using namespace faultline;
namespace fs = std::filesystem;

namespace {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "faultline-file-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  std::string operator/(const char* name) const { return (path_ / name).string(); }
  size_t entries() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

// Writes past this many bytes fail in this process, as they do on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    previous_handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &previous_);
    const rlimit limit{bytes, previous_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &previous_);
    ::signal(SIGXFSZ, previous_handler_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit previous_{};
  sighandler_t previous_handler_ = nullptr;
};

bool mentions(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a written file is read back whole, and replaces an older one") {
  const TempFolder folder;
  const std::string path = folder / "a.txt";
  REQUIRE(write_file(path, "first"));
  REQUIRE(write_file(path, std::string("second\0third", 12)));
  const auto content = read_file(path);
  REQUIRE(content);
  CHECK(*content == std::string("second\0third", 12));
  CHECK(folder.entries() == 1);
}

TEST_CASE("a write that fails leaves the older file and nothing else") {
  const TempFolder folder;
  const std::string path = folder / "a.txt";
  REQUIRE(write_file(path, "older"));
  {
    const FileSizeLimit limit(1000);
    const Status status = write_file(path, std::string(5000, 'x'));
    REQUIRE_FALSE(status);
    CHECK(status.error().kind == ErrorKind::kBadInput);
    CHECK(mentions(status.error().message, "cannot write " + path + ":"));
  }
  CHECK(read_file(path).value() == "older");
  CHECK(folder.entries() == 1);
}

TEST_CASE("a missing folder, a directory and a pipe are no files") {
  const TempFolder folder;
  CHECK(mentions(read_file(folder / "none").error().message, "No such file"));
  CHECK(mentions(read_file(fs::temp_directory_path().string()).error().message, "not a regular file"));
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  CHECK(mentions(read_file(folder / "pipe").error().message, "not a regular file"));
  const Status status = write_file(folder / "no/such/folder.txt", "x");
  REQUIRE_FALSE(status);
  CHECK(mentions(status.error().message, "check the path"));
}

TEST_CASE("a file larger than its limit is refused unread") {
  const TempFolder folder;
  REQUIRE(write_file(folder / "a", "12345"));
  CHECK(read_file(folder / "a", 5));
  CHECK(mentions(read_file(folder / "a", 4).error().message, "5 bytes, more than the 4"));
}

TEST_CASE("system errors come with advice") {
  CHECK(mentions(system_error_text("write", "/x", ENOSPC), "the disk is full"));
  CHECK(mentions(system_error_text("write", "/x", EROFS), "read-only"));
  CHECK(mentions(system_error_text("write", "/x", EACCES), "check the permissions"));
}

TEST_CASE("a directory appears whole or not at all") {
  const TempFolder folder;
  const std::string path = folder / "out";
  SECTION("commit") {
    auto directory = AtomicDirectory::create(path);
    REQUIRE(directory);
    REQUIRE(write_file(directory->temporary_path() + "/a", "x"));
    CHECK_FALSE(fs::exists(path));
    REQUIRE(directory->commit());
    CHECK(read_file(path + "/a").value() == "x");
  }
  SECTION("no commit") {
    {
      auto directory = AtomicDirectory::create(path);
      REQUIRE(directory);
      REQUIRE(write_file(directory->temporary_path() + "/a", "x"));
    }
    CHECK(folder.entries() == 0);
  }
  SECTION("an empty folder is taken, a trailing slash is no name") {
    fs::create_directory(path);
    auto directory = AtomicDirectory::create(path + "/");
    REQUIRE(directory);
    REQUIRE(directory->commit());
    CHECK(folder.entries() == 1);
  }
}

TEST_CASE("a directory that holds something is never touched") {
  const TempFolder folder;
  const std::string path = folder / "out";
  fs::create_directory(path);
  std::ofstream(path + "/precious") << "x";
  const auto refused = AtomicDirectory::create(path);
  REQUIRE_FALSE(refused);
  CHECK(mentions(refused.error().message, "not empty"));

  std::ofstream(folder / "file") << "x";
  CHECK(mentions(AtomicDirectory::create(folder / "file").error().message, "is no folder"));

  // Filled by somebody else after the check.
  const std::string raced = folder / "raced";
  auto directory = AtomicDirectory::create(raced);
  REQUIRE(directory);
  fs::create_directory(raced);
  std::ofstream(raced + "/precious") << "x";
  CHECK_FALSE(directory->commit());
  CHECK(fs::exists(raced + "/precious"));
}

TEST_CASE("an existing file is not written piece by piece") {
  const TempFolder folder;
  REQUIRE(write_file(folder / "a", "x"));
  CHECK_FALSE(FileWriter::create(folder / "a"));
  auto writer = FileWriter::create(folder / "b");
  REQUIRE(writer);
  REQUIRE(writer->write("one", 3));
  REQUIRE(writer->write("two", 3));
  REQUIRE(writer->close());
  CHECK(read_file(folder / "b").value() == "onetwo");
}

TEST_CASE("a device is written to, never replaced by a file") {
  // Links, so that a failure of this test costs no device.
  const TempFolder folder;
  fs::create_symlink("/dev/null", folder / "null");
  CHECK(write_file(folder / "null", "x"));
  CHECK(fs::is_symlink(folder / "null"));
  fs::create_symlink("/dev/full", folder / "full");
  CHECK_FALSE(write_file(folder / "full", "x"));
  CHECK(fs::is_symlink(folder / "full"));
}

#include "base/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

namespace faultline {

Result<std::string> make_temporary_folder() {
  std::error_code error;
  std::string path = (std::filesystem::temp_directory_path(error) / "faultline-XXXXXX").string();
  if (error) return bad_input("no folder for temporary files ({}); set TMPDIR to one", error.message());
  if (::mkdtemp(path.data()) == nullptr)
    return cannot_run("no temporary folder can be made as {} ({}); set TMPDIR", path, std::strerror(errno));
  return path;
}

}  // namespace faultline

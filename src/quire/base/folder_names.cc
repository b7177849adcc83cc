#include "quire/base/folder_names.h"

#include <dirent.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "quire/base/no_memory.h"
#include "quire/base/str.h"
#include "quire/result.h"

namespace quire::base {
namespace {

Error list_error(const std::filesystem::path& folder, int reason) {
  if (reason == ENOMEM) {
    return no_memory("a file");
  }
  return {.code = reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
          .message = str_cat("cannot list ", folder.string(), ": ", std::strerror(reason)),
          .system_error = reason};
}

}  // namespace

Status for_each_name(const std::filesystem::path& folder,
                     const std::function<void(const std::string&)>& visit) {
  // std::filesystem::directory_iterator of libstdc++ 12 ends the process where memory is refused.
  const auto close = [](DIR* listed) { ::closedir(listed); };
  const std::unique_ptr<DIR, decltype(close)> listed(::opendir(folder.c_str()), close);
  if (listed == nullptr) {
    return list_error(folder, errno);
  }
  while (true) {
    errno = 0;
    const dirent* const entry = ::readdir(listed.get());
    if (entry == nullptr) {
      return errno == 0 ? Status() : Status(list_error(folder, errno));
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") {
      visit(std::string(name));
    }
  }
}

}  // namespace quire::base

#include "quire/base/home_path.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <string_view>

namespace quire::base {
namespace {

// Returns "" for a user whom the system does not know.
std::string home_folder() {
  if (const char* const home = std::getenv("HOME"); home != nullptr && *home != '\0') {
    return home;
  }
  passwd user{};
  passwd* found = nullptr;
  std::array<char, 1 << 14> texts{};
  const bool known =
      ::getpwuid_r(::geteuid(), &user, texts.data(), texts.size(), &found) == 0 && found != nullptr;
  return known ? user.pw_dir : "";
}

}  // namespace

std::string home_path(std::string_view path) {
  if (path != "~" && !path.starts_with("~/")) {
    return std::string(path);
  }
  const std::string home = home_folder();
  return home.empty() ? std::string(path) : home + std::string(path.substr(1));
}

}  // namespace quire::base

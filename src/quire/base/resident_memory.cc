#include "quire/base/resident_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace quire::base {

std::int64_t resident_bytes() {
  const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return 0;
  }
  std::array<char, 128> text{};  // pages: all, in RAM, ...
  const ssize_t size = read(file, text.data(), text.size());
  close(file);
  const std::string_view pages(text.data(), size < 0 ? 0 : static_cast<std::size_t>(size));
  const std::size_t blank = pages.find(' ');
  std::int64_t resident = 0;
  if (blank != std::string_view::npos) {
    std::from_chars(pages.data() + blank + 1, pages.data() + pages.size(), resident);
  }
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace quire::base

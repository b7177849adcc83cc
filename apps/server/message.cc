#include "message.h"

#include <string_view>

namespace quire::server {

std::string_view Request::header(std::string_view name) const {
  for (const HeaderField& field : headers) {
    if (field.name == name) {
      return field.value;
    }
  }
  return {};
}

}  // namespace quire::server

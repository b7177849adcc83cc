// NamedToken: a special token under the name that chat templates know it by.
#pragma once

#include <string>

namespace quire::text {

struct NamedToken {
  std::string name;  // "bos_token"
  std::string text;
};

}  // namespace quire::text

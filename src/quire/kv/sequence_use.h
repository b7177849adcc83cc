// SequenceUse: for whom a sequence is, and what it does with KV that others know or a window has
// passed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "quire/kv/types.h"

namespace quire::kv {

// How a plain sequence is used.
struct SequenceUse {
  bool adopts = false;  // blocks that somebody else has cached for `salt` are used instead of own
                        // ones with the same content
  SessionRef session = {};  // whose request it is
  std::string salt = {};
  BehindWindow past = BehindWindow::kKeeps;
  std::vector<std::int32_t> points = {};  // lengths behind which a later request may go on; the
                                          // window before them stays longer
};

}  // namespace quire::kv

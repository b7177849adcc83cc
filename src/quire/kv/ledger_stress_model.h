// The model of random operations on the ledger: it copies everything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "quire/types.h"

namespace quire::kv::stress {

using Tokens = std::vector<TokenId>;
using Value = std::uint64_t;  // what the slot of a token holds

inline Value next_value(Value before, TokenId token) {
  Value value = (before ^ static_cast<std::uint32_t>(token + 1)) * 0x9e3779b97f4a7c15;
  return value ^ (value >> 29);
}

// Returns the start of plain sequences: KV computed for one salt is of no use to another.
inline Value plain_start(const std::string& salt) { return 1 + 4 * salt.size(); }

struct ModelSequence {
  Tokens tokens;
  std::vector<Value> values;               // [tokens with KV]
  std::vector<std::vector<Value>> sealed;  // KV of the segments before it
  std::int32_t room = 0;
  bool reuse = true;
  std::string salt;
  Value start = plain_start(salt);  // before the first own token

  [[nodiscard]] bool plain() const { return sealed.empty() && start == plain_start(salt); }
  [[nodiscard]] Value value_before(std::size_t index) const {
    return index == 0 ? start : values[index - 1];
  }
};

}  // namespace quire::kv::stress

#include "quire/text/answer/parts.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "quire/chat.h"

namespace quire::text::answer {
namespace {

// Returns the next number of the generator splitmix64 (Steele, Lea and Flood 2014).
std::uint64_t next_random(std::uint64_t& state) {
  state += 0x9E3779B97F4A7C15U;
  std::uint64_t mixed = state;
  mixed = (mixed ^ (mixed >> 30U)) * 0xBF58476D1CE4E5B9U;
  mixed = (mixed ^ (mixed >> 27U)) * 0x94D049BB133111EBU;
  return mixed ^ (mixed >> 31U);
}

}  // namespace

std::string CallIds::next() {
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  std::uint64_t state = seed + made++;
  state = next_random(state);
  std::string id(prefix);
  for (int i = 0; i < digits; ++i) {
    id += kDigits[next_random(state) % kDigits.size()];
  }
  return id;
}

void Parts::append(std::string_view text, Kind& kind, std::string& out) {
  if (text.empty()) {
    return;
  }
  if (kind.begun && kind.ended) {
    out += "\n\n";
  }
  kind = {.begun = true};
  out += text;
}

void Parts::think(std::string_view text) { append(text, think_, taken_.thinking); }
void Parts::say(std::string_view text) { append(text, say_, taken_.content); }

void Parts::call(ToolCall call) {
  std::string made = ids_.next();
  if (call.id.empty()) {
    call.id = std::move(made);
  }
  taken_.tool_calls.push_back(std::move(call));
}

}  // namespace quire::text::answer

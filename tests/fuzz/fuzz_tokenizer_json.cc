// tokenizer.json of a stranger: parse, then encode, decode and stream a short text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/text/detokenizer.h"
#include "quire/text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = quire::text::Tokenizer::from_json(json, "");
  if (!tokenizer.ok()) {
    return 0;
  }
  const std::string text =
      "Hello <s>w\u00f6rld  123\n\u4f60\U0001F600 it's " + std::string(json.substr(0, 32));
  quire::base::WorkMeter meter({.steps = 1'000'000, .bytes = 1 << 20});  // as for an input of 1 kB
  const auto encoded = tokenizer.value().encode(text, {.meter = &meter});
  if (!encoded.ok()) {
    return 0;  // endless work, refused
  }
  const auto& ids = encoded.value();
  quire::text::Detokenizer stream(tokenizer.value(), false);
  std::string streamed;
  for (const quire::TokenId id : ids) {
    streamed += stream.push(id);
  }
  streamed += stream.flush();
  const auto decoded = tokenizer.value().decode(ids, false);
  if (decoded.ok() != stream.status().ok() || (decoded.ok() && decoded.value() != streamed)) {
    std::abort();
  }
  return 0;
}

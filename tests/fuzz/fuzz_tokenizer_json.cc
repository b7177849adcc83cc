// tokenizer.json of a stranger: parse, then encode, decode and stream a short text.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

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
  const auto ids = tokenizer.value().encode(text);
  quire::text::Detokenizer stream(tokenizer.value(), false);
  std::string streamed;
  for (const quire::TokenId id : ids) {
    streamed += stream.push(id);
  }
  streamed += stream.flush();
  const auto decoded = tokenizer.value().decode(ids, false);
  if (!decoded.ok() || decoded.value() != streamed) {
    std::abort();
  }
  return 0;
}

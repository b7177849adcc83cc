// Chat templates: any text is refused with an error or renders a fixed conversation within bounds.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "quire/base/check.h"
#include "quire/base/json.h"
#include "quire/text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const quire::base::Json variables = quire::base::parse_json(R"({
    "messages": [{"role": "system", "content": "s\u00e9"},
                 {"role": "user", "content": [{"type": "text", "text": "<|x|> \ud83d\ude42"}]},
                 {"role": "assistant", "content": null, "tool_calls": [
                   {"id": "1", "function": {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
    "documents": [], "add_generation_prompt": true, "bos_token": "<s>", "n": -7, "s": "a b,c"})",
                                                                     "variables")
                                                 .value();
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-reinterpret-cast): bytes as text
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  const auto parsed = quire::text::ChatTemplate::parse(source);
  if (!parsed.ok()) {
    QUIRE_CHECK(!parsed.error().message.empty(), "an error without a message");
    return 0;
  }
  quire::text::RenderOptions options;
  options.now = std::chrono::local_seconds(std::chrono::seconds(1'700'000'000));
  options.max_steps = 100'000;
  options.max_output_bytes = std::size_t{1} << 20;
  const auto prompt = parsed->render(variables, options);
  if (prompt.ok()) {
    for (const auto& span : prompt->spans) {
      QUIRE_CHECK(!span.text.empty(), "an empty span");
    }
  }
  return 0;
}

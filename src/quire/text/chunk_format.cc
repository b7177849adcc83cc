#include "quire/text/chunk_format.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/normal_text.h"
#include "quire/text/tokenizer.h"
#include "quire/text/unicode.h"
#include "quire/text/utf8.h"
#include "quire/types.h"

namespace quire::text {

std::string_view trimmed(std::string_view text, const Affixes& around) {
  while (around.trims_left && !text.empty()) {
    const auto first = decode_at(text, 0);
    if (!is_python_space(first.code)) {
      break;
    }
    text.remove_prefix(first.bytes);
  }
  while (around.trims_right && !text.empty()) {
    const auto last = decode_before(text, text.size());
    if (!is_python_space(last.code)) {
      break;
    }
    text.remove_suffix(last.bytes);
  }
  return text;
}

ChunkFormat plain_format(const Tokenizer& tokenizer) {
  ChunkFormat format;
  format.contexts_as = "plain";
  format.system.suffix = format.context.suffix = "\n\n";
  format.context.continues = format.query.continues = true;
  const auto ids = tokenizer.encode("");
  const auto bos = tokenizer.bos_token_id();
  if (bos && ids.ok() && !ids->empty() && ids->front() == *bos) {
    auto token = tokenizer.id_to_token(*bos);
    if (token.ok()) {
      format.system.prefix = std::move(token).value();
    }
  }
  return format;
}

Result<std::vector<TokenId>> encode_chunk(const Tokenizer& tokenizer, const Affixes& around,
                                          std::string_view content, base::WorkMeter* meter) {
  const std::string text = repair_utf8(content);
  const std::array<TextSpan, 4> spans = {
      TextSpan{.text = "\n"}, TextSpan{.text = around.prefix},
      TextSpan{.text = trimmed(text, around), .author = Author::kUser},
      TextSpan{.text = around.suffix}};
  if (around.continues) {  // encoded behind a line end, which is taken away again
    QUIRE_TRY(const auto lead, tokenizer.encode_spans(std::span(spans).first(1), meter));
    QUIRE_TRY(auto ids, tokenizer.encode_spans(spans, meter));
    if (ids.size() >= lead.size() && std::equal(lead.begin(), lead.end(), ids.begin())) {
      ids.erase(ids.begin(), ids.begin() + std::ssize(lead));
      return ids;
    }
  }
  return tokenizer.encode_spans(std::span(spans).subspan(1), meter);
}

}  // namespace quire::text

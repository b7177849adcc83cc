#include "quire/text/detokenizer.h"

#include <memory>
#include <string>
#include <string_view>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/decode_stream.h"
#include "quire/text/tokenizer.h"
#include "quire/text/tokenizer_pipeline.h"
#include "quire/text/work_limits.h"
#include "quire/types.h"

namespace quire::text {

struct Detokenizer::Impl {
  explicit Impl(const TokenizerPipeline* from, bool skip)
      : pipeline(from), skip_special_tokens(skip), stream(from->decoder, meter) {}

  const TokenizerPipeline* pipeline;
  bool skip_special_tokens;
  base::WorkMeter meter{kWorkOfCall};
  DecodeStream stream;
  std::string text;  // text that the last call returned
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : impl_(std::make_unique<Impl>(&tokenizer.pipeline(), skip_special_tokens)) {}

Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string_view Detokenizer::push(TokenId id) {
  impl_->text.clear();
  impl_->meter.grant(work_for_bytes(kInputBytesPerToken));
  impl_->pipeline->decode(id, impl_->skip_special_tokens, impl_->stream, impl_->text);
  return impl_->text;
}

std::string_view Detokenizer::flush() {
  impl_->text.clear();
  impl_->stream.flush(impl_->text);
  return impl_->text;
}

Status Detokenizer::status() const { return impl_->meter.status(); }

}  // namespace quire::text

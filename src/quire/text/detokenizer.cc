#include "quire/text/detokenizer.h"

#include <string>
#include <string_view>

#include "quire/base/check.h"
#include "quire/text/decoder.h"
#include "quire/text/tokenizer.h"
#include "quire/text/tokenizer_impl.h"
#include "quire/types.h"

namespace quire::text {

struct Detokenizer::Impl {
  const Tokenizer::Impl* tokenizer;
  bool skip_special_tokens;
  DecodeStream stream;
  std::string text;  // that the last call returned
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : impl_(new Impl{.tokenizer = tokenizer.impl_.get(),
                     .skip_special_tokens = skip_special_tokens,
                     .stream = DecodeStream(tokenizer.impl_->decoder),
                     .text = {}}) {}

Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string_view Detokenizer::push(TokenId id) {
  QUIRE_CHECK(id >= 0 && id < impl_->tokenizer->vocabulary.end_id(), "id outside the vocabulary");
  impl_->text.clear();
  impl_->tokenizer->decode(id, impl_->skip_special_tokens, impl_->stream, impl_->text);
  return impl_->text;
}

std::string_view Detokenizer::flush() {
  impl_->text.clear();
  impl_->stream.flush(impl_->text);
  return impl_->text;
}

}  // namespace quire::text

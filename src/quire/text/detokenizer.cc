#include "quire/text/detokenizer.h"

#include <string>

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
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens)
    : impl_(new Impl{.tokenizer = tokenizer.impl_.get(),
                     .skip_special_tokens = skip_special_tokens,
                     .stream = DecodeStream(tokenizer.impl_->decoder)}) {}

Detokenizer::~Detokenizer() = default;
Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;

std::string Detokenizer::push(TokenId id) {
  QUIRE_CHECK(id >= 0 && id < impl_->tokenizer->vocabulary.end_id(), "id outside the vocabulary");
  std::string text;
  impl_->tokenizer->decode(id, impl_->skip_special_tokens, impl_->stream, text);
  return text;
}

std::string Detokenizer::flush() {
  std::string text;
  impl_->stream.flush(text);
  return text;
}

}  // namespace quire::text

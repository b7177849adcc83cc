// TokenizerPipeline: the steps of a tokenizer, which the readers (tokenizer_json.cc,
// tokenizer_gguf.cc, tokenizer_sentencepiece.cc) fill in.
//
// text -> added tokens (raw) -> normalizers -> added tokens (normalized) -> pre-tokenizers -> model
// -> post-processor; and ids -> spellings -> spelling decoder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "quire/base/work_meter.h"
#include "quire/result.h"
#include "quire/text/added_tokens.h"
#include "quire/text/decode_stream.h"
#include "quire/text/model.h"
#include "quire/text/named_token.h"
#include "quire/text/normal_text.h"
#include "quire/text/normalizer.h"
#include "quire/text/post_processor.h"
#include "quire/text/pre_tokenizer.h"
#include "quire/text/spelling_decoder.h"
#include "quire/text/vocabulary.h"
#include "quire/types.h"

namespace quire::text {

struct SpecialIds {
  std::optional<TokenId> bos;
  std::optional<TokenId> eos;
  std::optional<TokenId> pad;
  std::optional<TokenId> unk;
};

struct TokenizerPipeline {
  Vocabulary vocabulary;
  AddedTokenMatcher raw_added;
  AddedTokenMatcher normalized_added;
  bool has_normalized_specials = false;
  bool split_special_tokens = false;  // special tokens in a text are text, whoever wrote them
  Normalizers normalizers;
  PreTokenizers pre_tokenizers;
  std::unique_ptr<const Model> model;
  PostProcessor post_processor;
  SpellingDecoder decoder;
  // Tokens that the decoder is shown under another name than the vocabulary's.
  std::unordered_map<TokenId, std::string> decoded_as;
  SpecialIds ids;
  std::vector<NamedToken> named_tokens;
  std::vector<TokenId> turn_end_ids;
  std::string fingerprint;

  // Splits `tokens` by their `normalized` flag into the two matchers. After the normalizers. The
  // error of the meter when they make a token's spelling grow without bounds.
  [[nodiscard]] Status set_added_tokens(std::vector<AddedToken> tokens);

  // Names the tokens of `ids`, for a file without names.
  void name_tokens();

  // Appends the ids of well-formed `text`, without special tokens around it. Cut short when `meter`
  // has failed.
  void encode(std::string_view text, const Authors& authors, base::WorkMeter& meter,
              std::vector<TokenId>& out) const;
  // Feeds one id to a stream; nothing for ids of no token.
  void decode(TokenId id, bool skip_special_tokens, DecodeStream& stream, std::string& out) const;

 private:
  // Encodes what stands between added tokens that are matched in raw text.
  void encode_stretch(NormalText normal, ModelScratch& scratch, std::vector<TokenId>& out) const;
  void encode_pieces(const Pieces& pieces, ModelScratch& scratch, std::vector<TokenId>& out) const;
};

}  // namespace quire::text
